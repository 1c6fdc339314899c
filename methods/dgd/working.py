"""DGD as it learns: noisy votes on images of a data-free prior that evolve, read whole, and a student of all of them.

What is left of Ge et al. (IEEE TIP 2023, section III; `methods/dgd/dgd.py` has it as printed): synthetic images D^ that
no data went into, an ensemble's noisy votes on few of them (Eq. 3), and a student of the answers (Eq. 5). What is asked
next and how the student learns is `bench/distillation/transcription/loop.py`: post-processing of the votes.

Privacy. The noisy votes are all that is taken, one vote per record and query, so that epsilon is finite for a private
record. For Gaussian votes (the paper's DGD+) it is this project's accountant's, claimed and proved alike; for Laplace
votes the claim is section III-E's formula. With `prior baseline` a generator learns from phi_b, as in the paper,
unprotected, and nothing is proved.

Differs from the paper: in all that `departures` lists, and where the paper leaves things open as the printed variant
does. Smaller ones have no line there: teachers that are networks train at 0.003 on batches of 16 moved images (printed:
0.05, 128, unmoved); the student's batch is 256 (128), Adam's betas are 0.9 and 0.99; asked images are stored in 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import data
from bench.api import Context, Release, Shards, Teacher
from bench.config import Departure, Size, Solved
from bench.distillation.generator_training import l1_activation_loss, make_generator, pretrain
from bench.distillation.image_source import Source as ImageSource
from bench.distillation.image_source import check_source, image_source
from bench.distillation.losses import balance_loss, confidence_loss
from bench.distillation.transcription.learner import Regulariser
from bench.distillation.transcription.loop import Transcription
from bench.distillation.transcription.options import SEEN_TEST_SETS
from bench.distillation.votes.noisy_votes import Aggregation, NoisyEnsemble, VotePlan, log_posterior, noisy_votes
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Source
from bench.validate import at_least
from methods.dgd.accounting import (
    BASELINE,
    UNCHARGED,
    asks_for_a_proof,
    one_query_game,
    readable,
    votes_claim,
    votes_ledger,
    within,
)
from methods.dgd.dgd import Dgd
from methods.dgd.steps import SHOWN, draw_images, draw_rows

BASELINE_PRIOR = "baseline"
ALPHA, BETA = 5.0, 0.1
"""Of Eq. 2, as printed."""
GENERATOR_STEPS, GENERATOR_BATCH, GENERATOR_RATE = 200, 128, 1e-3
LATENT, WIDTH = 100, 32
"""Of the generator that learns from phi_b."""
TEACHER_RATE, TEACHER_SHIFT, TEACHER_BATCH = 3e-3, 1, 16
"""Of teachers that are trained step by step."""
TEACHERS = 500
"""n where the field is 0 and the data set needs no other number."""
ROUNDS = 5
FEWEST, MANY, READABLE = 1300, 25_600, 0.1
"""Queries where the field is 0: as many as leave the noise at this share of the teachers; the paper's 1300 at least."""
PRINTED_STEPS = 500
"""Of the student (section IV)."""
LEAST_ODDS = 1e-5
"""Of a class that the arg-max does not name."""
RATE, UNSURE = 2e-3, 0.0
"""Of the student: largest rate; how much it prefers doubtful images, on which the teachers disagree."""
TRIPLES = 3000
"""Images of D^ for the VAE and for E_u, where it is asked for."""


@dataclass(frozen=True)
class DgdWorking:
    """Noisy votes on a prior's images and on their children, and a student of what the votes say.

    Raises:
        ValueError: a value out of its range; the sentence names it.
    """

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "after Ge et al., DGD, IEEE TIP 2023, section III"
    seen_test_sets: ClassVar[dict[str, str]] = SEEN_TEST_SETS | {"digits": "the number of rounds was chosen"}
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            "D^ is drawn from a data-free prior (pen strokes on digits and mnist), not by a generator that learns from "
            "phi_b",
            "phi_b is unprotected: nothing could be proved",
            without={"prior": BASELINE_PRIOR},
        ),
        Departure(
            "votes have Gaussian noise (the paper's DGD+), as little as the accountant allows, and not Laplace noise",
            "for n queries at epsilon 10 section III-E's formula asks for a standard deviation of 1.80 sqrt(n), the "
            "accountant for 0.71 sqrt(n)",
            without={"aggregation": "laplace"},
        ),
        Departure(
            "as many queries as leave the noise at a tenth of the teachers, at least 1300",
            "noise grows with the root of the queries, votes with the teachers",
            without={"queries": FEWEST},
        ),
        Departure(
            "teachers are least squares on scattering features, or small networks on sets of a few thousand images",
            "a network that is trained on 100 images answers worse",
            without={"teachers": 100, "teacher_net": "shard-cnn"},
        ),
        Departure(
            "queries are asked in five rounds: children of answered images, balanced over what the student sees; one "
            "round where the noise is more than a tenth of the teachers",
            "the prior has few images of some classes; a student that much noise taught chooses badly",
            without={"rounds": 1, "evolve": 0.0, "choose": 1.0},
        ),
        Departure(
            "targets are the posterior given all noisy counts, not the one-hot arg-max of Eq. 3",
            "at much noise the largest count is often not the class that teachers mean",
            without={"reading": "argmax"},
        ),
        Departure(
            "no VAE and no unsupervised energy: the student learns from the answered images alone (Eq. 4, 6 left out)",
            "the student was worse for it, and at chance where answers are few",
            without={"energy": 1.0},
        ),
        Departure(
            "answered images are moved a little when they are seen again",
            "a student of a few thousand images would remember them",
            without={"jitter": False},
        ),
        Departure(
            "one cycle of rate 0.002 at most, 300 steps and one for 15 queries; printed: 500 steps from 0.001",
            "more answers take more steps",
            without={"student_steps": PRINTED_STEPS},
        ),
        Departure(
            "three in five of the student's steps follow the last answer",
            "what is learnt of the first answers alone has to be unlearnt: 10 points with 1,300 queries (MNIST, by the "
            "attacker's images, one seed); with all 25,600 nothing",
            without={"early": 0.8},
        ),
    )
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"teachers": 3, "teacher_net": "shard-cnn", "teacher_steps": 3, "queries": 12, "rounds": 3,
                  "student_steps": 6},
        "quick": {"teachers": 0, "teacher_steps": 120},
    }  # fmt: skip

    teachers: Size[int] = 250
    """n, teachers on disjoint parts of the private data; 0 = as many as suit the data set."""
    teacher_net: Size[str] = "auto"
    """Network of the n teachers, a name as for --teacher (the paper's is dgd-cnn), or `same` for the run's --teacher;
    auto = scatter-linear, or shard-cnn on data sets of a few thousand images (digits, usps)."""
    teacher_steps: Size[int] = 3000
    """Rounds of the teachers' training, where their network is trained step by step."""
    aggregation: Literal["gaussian", "laplace"] = "gaussian"
    """Noise on the vote counts: Gaussian (DGD+, section IV-B) or Laplace (Eq. 3)."""
    scale: Solved[float] = 40.0
    """Sigma of Gaussian votes, or noise scale 2 / epsilon_0 of Eq. 3; solved from the budget unless --solve steps."""
    queries: Size[int] = 0
    """|D^_s|, images put to the ensemble; 0 = as many as leave the noise at a tenth of the teachers, 1300 to 25,600."""
    prior: str = "auto"
    """Where D^ comes from: a prior (`bench list priors`) or several in turns, A+B; auto = the data set's; `baseline`, a
    generator that learns from phi_b (Eq. 2; unprotected); or `generator`, one that learns from the student."""
    rounds: Size[int] = 0
    """Parts in which the queries are asked, the student learning after each; 0 = 5, or where the noise is more than a
    tenth of the teachers 1, of the prior alone."""
    evolve: float = 0.7
    """Share of the candidate images that are children of answered ones."""
    choose: float = 2.0
    """Candidate images for each query; those asked are balanced over the classes that the student sees."""
    reading: Literal["posterior", "argmax"] = "posterior"
    """Target from noisy counts: each class's posterior given all of them, or their arg-max (Eq. 3)."""
    jitter: bool = True
    """Whether answered images are moved a little whenever the student sees them again."""
    student_steps: Size[int] = 0
    """Steps of the student's training in all; 0 = 300 and one more for every 15 queries."""
    early: float = 0.4
    """Share of the student's steps that is taken before the last answers, from 0 to 1."""
    energy: float = 0.0
    """Weight of E_u (Eq. 6) beside the answers, on triples that a VAE of D^ makes (Eq. 4), as printed; 0 = no VAE."""

    def __post_init__(self) -> None:
        at_least(self, 1, "teacher_steps", "choose")
        at_least(self, 0, "teachers", "scale", "queries", "rounds", "student_steps", "energy")
        if not 0 <= self.evolve < 1:
            raise ValueError(f"evolve is {self.evolve}; expected a share from 0 to below 1")
        if not 0 <= self.early <= 1:
            raise ValueError(f"early is {self.early}; expected a share from 0 to 1")

    @property
    def needs(self) -> frozenset[str]:
        """The ensemble, and the baseline where its generator draws the images."""
        return frozenset({"teacher_ensemble"} | ({"teacher"} if self.prior == BASELINE_PRIOR else set()))

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The ensemble of section III-C; `teacher_arch` is the network of phi_b."""
        return Shards(
            count=self.ensemble_size(dataset),
            archs=(self.network(teacher_arch, dataset),),
            steps=self.teacher_steps,
            batch=TEACHER_BATCH,
            lr=TEACHER_RATE,
            shift=TEACHER_SHIFT,
        )

    def ensemble_size(self, dataset: str) -> int:
        """n."""
        return self.teachers or data.facts(dataset).teachers or TEACHERS

    def network(self, teacher_arch: str, dataset: str) -> str:
        """That of a teacher. Least squares on fixed features need a hundred images."""
        small = "shard-cnn" if data.facts(dataset).teachers else "scatter-linear"
        return {"same": teacher_arch, "auto": small}.get(self.teacher_net, self.teacher_net)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Section III. `label` alone asks the ensemble; phi_b is asked only by `prior baseline`."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        noise = ctx.privacy_noise("dgd")
        # III-B: where the synthetic images D^ come from
        source = self.image_source(teacher, ctx)
        # III-C: noisy labels of the few images D^_s (Eq. 3), at most so many in all as the ledger is told
        left = plan.queries

        def label(images: Tensor, _: Tensor) -> Tensor:
            nonlocal left
            left -= len(images)
            if left < 0:
                raise ValueError(f"{plan.queries - left} queries, but the ledger is told of {plan.queries}")
            return self.label(plan, images, teacher.members(), noise)

        # III-D: the student (Eq. 5), between whose rounds D^_s is chosen
        phi_s, asked = self.training(plan).train(
            teacher,
            student,
            source,
            label,
            ctx,
            "DGD",
            loss=cross_entropy,
            regulariser=self.unsupervised_energy(source, teacher, ctx) if self.energy else None,
        )
        return Release(
            student=phi_s,
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan, budget.delta),
            synthetic=asked[:SHOWN],
            solved={"queries": plan.queries, "scale": plan.aggregation.scale},
            votes=NoisyEnsemble(teacher.members(), plan.aggregation, ctx.privacy_noise("votes measured")),
        )

    def image_source(self, teacher: Teacher, ctx: Context) -> ImageSource:
        """D^: of a prior, or of a generator that learns from phi_b (section III-B) or from the student."""
        if self.prior == BASELINE_PRIOR:
            return BaselineGenerator(teacher, ctx)
        return image_source(self.prior, teacher, ctx)

    def training(self, plan: VotePlan) -> Transcription:
        """How the student is trained. One that votes of much noise taught has no good choice of what to ask next."""
        queries, clear = plan.queries, plan.aggregation.scale <= 1.01 * READABLE * plan.teachers
        return Transcription(
            queries=queries,
            rounds=self.rounds or (ROUNDS if clear else 1),
            choose=self.choose,
            evolve=self.evolve,
            uncertainty=UNSURE,
            steps=self.student_steps or 300 + queries // 15,
            gamma_s=RATE,
            jitter=self.jitter,
            early=self.early,
        )

    def unsupervised_energy(self, source: ImageSource, teacher: Teacher, ctx: Context) -> Regulariser:
        """`energy` times E_u (Eq. 6) of a batch of D^, by the printed variant's VAE and triples (Eq. 4)."""
        printed, rng = Dgd(**Dgd.tiers["quick"]), ctx.generator("energy")
        images = source.draw(TRIPLES, teacher.shape, rng)
        with ctx.track("DGD: autoencoder", printed.steps) as advance:
            vae = printed.learn_vae(images, rng, ctx, advance)
        triples = printed.triples(images, vae, rng)

        def energy(phi_s: nn.Module, rng: torch.Generator) -> Tensor:
            # Dropout would move the features more than the steps do
            phi_s.eval()
            found = printed.unsupervised_energy(phi_s, triples[:, draw_rows(TRIPLES, printed.batch, rng)])
            phi_s.train()
            return self.energy * found

        return energy

    def label(self, plan: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> Tensor:
        """(n, classes) log-probabilities of the classes given the noisy votes. All that is learnt of the ensemble."""
        part = replace(plan, queries=len(images), candidates=len(images))
        _, counts = noisy_votes(part, images, members, noise)
        if self.reading == "posterior":
            return log_posterior(counts, plan.aggregation, plan.teachers)
        return F.one_hot(counts.argmax(1), members.classes).float().clamp_min(LEAST_ODDS).log()

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries meets, before anything is trained."""
        self.plan(budget, dataset)
        if self.prior != BASELINE_PRIOR:
            check_source(self.prior, dataset)

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """The queries and, from the budget, the noise on the votes (or the number of queries)."""
        if self.unprotected and asks_for_a_proof(budget):
            raise BenchError(
                "--account accounted: the generator learns from the unprotected baseline; use another --method.prior"
            )
        noise = Aggregation(self.aggregation, self.scale)
        fields = VotePlan(noise, self.queries or MANY, self.queries or MANY, self.ensemble_size(dataset))
        if not self.queries:
            fields = readable(fields, READABLE, FEWEST, budget, self.unprotected)
        return within(fields, budget, self.unprotected)

    @property
    def unprotected(self) -> str:
        """What is taken from the private data without protection; "" = nothing."""
        return BASELINE if self.prior == BASELINE_PRIOR else ""

    def ledger(self, plan: VotePlan) -> Ledger:
        """Everything that is taken from the private data."""
        return votes_ledger(plan, self.unprotected)

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """The votes' epsilon at these settings, whose unit is one private record."""
        return votes_claim(plan, delta, UNCHARGED[self.unprotected])

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """The label of one image, with and without one teacher's change of mind: what an audit plays."""
        return one_query_game(self.plan(budget, dataset), budget.delta, self.label)


class BaselineGenerator:
    """Section III-B: phi_g, trained once against the unprotected phi_b at a constant rate."""

    def __init__(self, teacher: Teacher, ctx: Context) -> None:
        rng = ctx.generator("generator")
        self._phi_g = ctx.prepared(make_generator("upsample", teacher.dataset, teacher.shape, LATENT, WIDTH))
        loss = partial(generator_loss, teacher.model)
        with ctx.track("DGD: generator", GENERATOR_STEPS) as advance:
            pretrain(
                self._phi_g,
                teacher.model,
                GENERATOR_STEPS,
                GENERATOR_BATCH,
                GENERATOR_RATE,
                loss,
                rng,
                advance,
                precision=ctx.precision,
            )

    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """(count, c, h, w) images of random vectors z."""
        return draw_images(self._phi_g, count, rng).float()

    def learn(self, student: nn.Module) -> None:
        """Nothing: phi_b has taught it."""


def generator_loss(discriminator: Any, x: Tensor) -> Tensor:
    """L of Eq. 2, batch mean, as the paper's text has it: sure outputs, balanced classes, large features."""
    logits = discriminator(x).float()
    activation = l1_activation_loss(discriminator.features(x).float(), up=True)
    return confidence_loss(logits) + ALPHA * balance_loss(logits, per_sample=False) + BETA * activation


def cross_entropy(logits: Tensor, log_targets: Tensor) -> Tensor:
    """E_s of Eq. 5, batch mean: (n, c) logits of the student, (n, c) log-probabilities that the votes gave."""
    return F.cross_entropy(logits, log_targets.exp())
