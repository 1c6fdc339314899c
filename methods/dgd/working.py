"""DGD, variant `working`: a student trained on class posteriors given noisy votes on images of a data-free prior.

It keeps three parts of Ge et al. (IEEE TIP 2023, section III; `methods/dgd/dgd.py` has all of it): synthetic images D^
that contain no private data, noisy votes of an ensemble on a few of them (Eq. 3), and a student trained on these labels
(Eq. 5). `bench/distillation/transcription/loop.py` chooses the queries and trains the student: post-processing of the
votes. "Children" are transformed copies of labelled images.

Privacy. Only the noisy votes leave, one vote per record and query, so epsilon is finite for a private record. For
Gaussian votes (the paper's DGD+) the claim is the accounted epsilon; for Laplace votes it is section III-E's formula.
With `prior baseline` a generator learns from phi_b without protection, as in the paper, and epsilon is infinite.

Differs from the paper: by the `departures` below. Where the paper does not specify a setting, this variant has the
printed variant's. Smaller differences are not in that list: teachers trained by gradient descent have learning rate
0.003 and batches of 16 shifted images (printed: 0.05, 128, not shifted); the student's batch is 256 (128), Adam's betas
are 0.9 and 0.99; queried images have 8 bits.
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
from bench.config import Departure, Size, Solved, configure
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
    BASELINE_ACCESS,
    calibrate_votes,
    limit_queries,
    needs_record_guarantee,
    one_query_game,
    votes_claim,
    votes_ledger,
)
from methods.dgd.dgd import N_SYNTHETIC, Dgd, draw_images, sample_rows

BASELINE_PRIOR = "baseline"
"""Value of `prior` for a generator that learns from phi_b."""
ALPHA, BETA = 5.0, 0.1
"""alpha and beta of Eq. 2, as printed."""
GENERATOR_STEPS, GENERATOR_BATCH, GENERATOR_RATE = 200, 128, 1e-3
"""Training of the generator that learns from phi_b: steps, batch size, learning rate."""
LATENT, WIDTH = 100, 32
"""The same generator's length of z, and number of channels of the last hidden map."""
TEACHER_RATE, TEACHER_SHIFT, TEACHER_BATCH = 3e-3, 1, 16
"""Training of teachers that are networks: learning rate, largest random shift in pixels, batch size."""
TEACHERS = 500
"""n with `teachers 0`, unless the data set has a smaller number."""
ROUNDS = 5
"""Number of rounds with `rounds 0` and little noise."""
MIN_QUERIES, MAX_QUERIES, RELATIVE_NOISE = 1300, 25_600, 0.1
"""With `queries 0`: smallest (the paper's) and largest number of queries, and target noise scale divided by the number
of teachers."""
PRINTED_STEPS = 500
"""The paper's number of student steps (section IV)."""
MIN_PROBABILITY = 1e-5
"""Target probability of every class except the arg-max, with `reading argmax`."""
RATE, UNSURE = 2e-3, 0.0
"""The student's largest learning rate, and its preference for unsure images; 0, because the teachers disagree there."""
TRIPLES = 3000
"""Number of images of D^ for the VAE and for E_u."""


@dataclass(frozen=True)
class DgdWorking:
    """Options of DGD's variant `working`: noisy votes on images of a prior and on their children, in rounds.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "after Ge et al., DGD, IEEE TIP 2023, section III"
    seen_test_sets: ClassVar[dict[str, str]] = SEEN_TEST_SETS | {"digits": "the number of rounds was chosen"}
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            "D^ comes from a data-free prior (pen strokes on digits and mnist), not from a generator that learns from "
            "phi_b",
            "phi_b is not protected, so the accounted epsilon would be infinite",
            without={"prior": BASELINE_PRIOR},
        ),
        Departure(
            "the votes have Gaussian noise (the paper's DGD+), calibrated by the accountant, not Laplace noise",
            "for n queries at epsilon 10 section III-E's formula requires a standard deviation of 1.80 sqrt(n), the "
            "accountant 0.71 sqrt(n)",
            without={"aggregation": "laplace"},
        ),
        Departure(
            "as many queries as the budget allows with a noise scale of a tenth of the number of teachers, at least "
            "1300",
            "the required noise grows with the square root of the number of queries, the vote counts with the number "
            "of teachers",
            without={"queries": MIN_QUERIES},
        ),
        Departure(
            "teachers are linear classifiers fitted to scattering features by least squares, or small networks on "
            "data sets of a few thousand images",
            "a convolutional network trained on about 100 images is less accurate",
            without={"teachers": 100, "teacher_net": "shard-cnn"},
        ),
        Departure(
            "queries are sent in five rounds; candidates are images of the prior and transformed copies (children) of "
            "labelled ones, and the queries are balanced over the classes that the student predicts. One round if the "
            "noise scale is more than a tenth of the number of teachers",
            "the prior draws few images of some classes; a student trained on noisier labels chooses badly",
            without={"rounds": 1, "evolve": 0.0, "choose": 1.0},
        ),
        Departure(
            "targets are the class posteriors given all noisy counts, not the one-hot arg-max of Eq. 3",
            "with much noise the largest count is often not the plurality of the teachers",
            without={"reading": "argmax"},
        ),
        Departure(
            "no VAE and no unsupervised energy E_u: the student learns only from the labelled images (Eq. 4 and 6 are "
            "omitted)",
            "with them the student was less accurate, and at chance with few labels",
            without={"energy": 1.0},
        ),
        Departure(
            "labelled images are randomly rotated, scaled, sheared and shifted a little at every training step",
            "otherwise a student memorises a few thousand images",
            without={"jitter": False},
        ),
        Departure(
            "one learning-rate cycle up to 0.002, and 300 steps plus one per 15 queries; printed: 500 steps from 0.001",
            "more labels need more steps",
            without={"student_steps": PRINTED_STEPS},
        ),
        Departure(
            "three in five of the student's steps follow the last round of labels",
            "the student has to unlearn its fit to the first labels: these steps add 10 points of accuracy with 1,300 "
            "queries (MNIST, on the attacker's images, one seed), and have no effect with all 25,600",
            without={"early": 0.8},
        ),
    )
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"teachers": 3, "teacher_net": "shard-cnn", "teacher_steps": 3, "queries": 12, "rounds": 3,
                  "student_steps": 6},
        "quick": {"teachers": 0, "teacher_steps": 120},
    }  # fmt: skip

    teachers: Size[int] = 250
    """n, number of teachers on disjoint parts of the private data; 0 = 500, or fewer on small data sets."""
    teacher_net: Size[str] = "auto"
    """Network of the n teachers: a name as for --teacher (the paper's is dgd-cnn), or `same` = that of --teacher;
    auto = scatter-linear, or shard-cnn on data sets of a few thousand images (digits, usps)."""
    teacher_steps: Size[int] = 3000
    """Training steps of each teacher, if it is trained by gradient descent."""
    aggregation: Literal["gaussian", "laplace"] = "gaussian"
    """Noise on the vote counts: Gaussian (DGD+, section IV-B) or Laplace (Eq. 3)."""
    scale: Solved[float] = 40.0
    """Sigma of Gaussian votes, or noise scale 2 / epsilon_0 of Eq. 3, in votes; solved from the budget unless --solve
    steps."""
    queries: Size[int] = 0
    """|D^_s|, number of images that the ensemble labels; 0 = 1300 to 25,600, as many as the budget allows with a noise
    scale of a tenth of the number of teachers."""
    prior: str = "auto"
    """Source of D^: a prior (`bench list priors`), or several that alternate, A+B; auto = the data set's; `baseline` =
    a generator that learns from phi_b (Eq. 2; unprotected); `generator` = one that learns from the student."""
    rounds: Size[int] = 0
    """Rounds of queries; the student is trained after each. 0 = 5, or 1 if the noise scale is more than a tenth of the
    number of teachers; a single round has no children."""
    evolve: float = 0.7
    """Share of the candidate images that are transformed copies (children) of labelled images."""
    choose: float = 2.0
    """Candidate images per query; the queried ones are balanced over the classes that the student predicts."""
    reading: Literal["posterior", "argmax"] = "posterior"
    """Training target: posterior of the classes given all noisy counts, or the counts' arg-max (Eq. 3)."""
    jitter: bool = True
    """Randomly rotate, scale, shear and shift labelled images a little at every training step."""
    student_steps: Size[int] = 0
    """Total steps of the student; 0 = 300, and one more per 15 queries."""
    early: float = 0.4
    """Share of the student's steps that precede the last round of labels, from 0 to 1."""
    energy: float = 0.0
    """Weight of E_u (Eq. 6) relative to the labels, on triples of a VAE of D^ (Eq. 4); 0 = no VAE."""

    def __post_init__(self) -> None:
        at_least(self, 1, "teacher_steps", "choose")
        at_least(self, 0, "teachers", "scale", "queries", "rounds", "student_steps", "energy")
        if not 0 <= self.evolve < 1:
            raise ValueError(f"evolve is {self.evolve}; expected a share from 0 to below 1")
        if not 0 <= self.early <= 1:
            raise ValueError(f"early is {self.early}; expected a share from 0 to 1")

    @property
    def needs(self) -> frozenset[str]:
        """Return the inputs: the ensemble, and with `prior baseline` phi_b."""
        return frozenset({"teacher_ensemble"} | ({"teacher"} if self.prior == BASELINE_PRIOR else set()))

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Describe the ensemble of section III-C; `teacher_arch` is the network of phi_b."""
        return Shards(
            count=self.ensemble_size(dataset),
            archs=(self.network(teacher_arch, dataset),),
            steps=self.teacher_steps,
            batch=TEACHER_BATCH,
            lr=TEACHER_RATE,
            shift=TEACHER_SHIFT,
        )

    def ensemble_size(self, dataset: str) -> int:
        """Return n, the number of teachers for a data set."""
        return self.teachers or data.facts(dataset).teachers or TEACHERS

    def network(self, teacher_arch: str, dataset: str) -> str:
        """Return the name of the teachers' network; data sets with few images per teacher get a small one."""
        small = "shard-cnn" if data.facts(dataset).teachers else "scatter-linear"
        return {"same": teacher_arch, "auto": small}.get(self.teacher_net, self.teacher_net)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Label images and train the student. Only `label` queries the ensemble; only `prior baseline` uses phi_b."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        noise = ctx.privacy_noise("dgd")
        # III-B: the source of the synthetic images D^
        source = self.image_source(teacher, ctx)
        # III-C: noisy labels of the few images D^_s (Eq. 3), never more than the ledger contains
        left = plan.queries

        def label(images: Tensor, _: Tensor) -> Tensor:
            nonlocal left
            left -= len(images)
            if left < 0:
                raise ValueError(f"{plan.queries - left} queries, but the ledger contains {plan.queries}")
            return self.label(plan, images, teacher.members(), noise)

        # III-D: the student (Eq. 5), which chooses D^_s between its rounds
        phi_s, queried = self.training(plan).train(
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
            synthetic=queried[:N_SYNTHETIC],
            solved={"queries": plan.queries, "scale": plan.aggregation.scale},
            votes=NoisyEnsemble(teacher.members(), plan.aggregation, ctx.privacy_noise("votes measured")),
        )

    def image_source(self, teacher: Teacher, ctx: Context) -> ImageSource:
        """Return the source of D^: a prior, or a generator that learns from phi_b (III-B) or from the student."""
        if self.prior == BASELINE_PRIOR:
            return BaselineGenerator(teacher, ctx)
        return image_source(self.prior, teacher, ctx)

    def training(self, plan: VotePlan) -> Transcription:
        """Return the settings of the queries and of the student's training.

        With much noise there is one round, as the student's choice of images would be poor.
        """
        queries, clear = plan.queries, plan.aggregation.scale <= 1.01 * RELATIVE_NOISE * plan.teachers
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
        """Return `energy` times E_u (Eq. 6) of a batch of D^, with the printed variant's VAE and triples (Eq. 4)."""
        printed, rng = configure(Dgd, "quick", {}, "method"), ctx.generator("energy")
        images = source.draw(TRIPLES, teacher.shape, rng)
        with ctx.track("DGD: autoencoder", printed.steps) as advance:
            vae = printed.learn_vae(images, rng, ctx, advance)
        triples = printed.triples(images, vae, rng)

        def energy(phi_s: nn.Module, rng: torch.Generator) -> Tensor:
            # Dropout would change the features more than the steps do
            phi_s.eval()
            e_u = printed.unsupervised_energy(phi_s, triples[:, sample_rows(TRIPLES, printed.batch, rng)])
            phi_s.train()
            return self.energy * e_u

        return energy

    def label(self, plan: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> Tensor:
        """Return (n, classes) log-probabilities given the noisy votes, the only output of the ensemble that is used."""
        part = replace(plan, queries=len(images), candidates=len(images))
        _, counts = noisy_votes(part, images, members, noise)
        if self.reading == "posterior":
            return log_posterior(counts, plan.aggregation, plan.teachers)
        return F.one_hot(counts.argmax(1), members.classes).float().clamp_min(MIN_PROBABILITY).log()

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries can meet, before anything is trained."""
        self.plan(budget, dataset)
        if self.prior != BASELINE_PRIOR:
            check_source(self.prior, dataset)

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """Calibrate the noise on the votes, or with `--solve steps` the number of queries, to the budget."""
        if self.unprotected and needs_record_guarantee(budget):
            raise BenchError(
                "--account accounted: the generator learns from the unprotected baseline; use another --method.prior"
            )
        noise = Aggregation(self.aggregation, self.scale)
        fields = VotePlan(noise, self.queries or MAX_QUERIES, self.queries or MAX_QUERIES, self.ensemble_size(dataset))
        if not self.queries:
            fields = limit_queries(fields, RELATIVE_NOISE, MIN_QUERIES, budget, self.unprotected)
        return calibrate_votes(fields, budget, self.unprotected)

    @property
    def unprotected(self) -> str:
        """Return the ledger's description of the unprotected access to the private data; "" = none."""
        return BASELINE_ACCESS if self.prior == BASELINE_PRIOR else ""

    def ledger(self, plan: VotePlan) -> Ledger:
        """Return the ledger of all access to the private data."""
        return votes_ledger(plan, self.unprotected)

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """Return the claim of the votes at these settings; its unit is one private record."""
        return votes_claim(plan, delta, self.unprotected)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: the label of one image, with and without a changed vote of one teacher."""
        return one_query_game(self.plan(budget, dataset), budget.delta, self.label)


class BaselineGenerator:
    """Image source of section III-B: phi_g, trained once against the unprotected phi_b at a constant learning rate."""

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
        """Draw (count, c, h, w) images of random vectors z."""
        return draw_images(self._phi_g, count, rng).float()

    def learn(self, student: nn.Module) -> None:
        """Do nothing: the generator learns from phi_b only."""


def generator_loss(discriminator: Any, x: Tensor) -> Tensor:
    """Return L of Eq. 2, batch mean; low for confident outputs, balanced classes and large features (paper's text)."""
    logits = discriminator(x).float()
    activation = l1_activation_loss(discriminator.features(x).float(), up=True)
    return confidence_loss(logits) + ALPHA * balance_loss(logits, per_sample=False) + BETA * activation


def cross_entropy(logits: Tensor, log_targets: Tensor) -> Tensor:
    """Return E_s of Eq. 5, batch mean, for the student's (n, c) logits and (n, c) target log-probabilities."""
    return F.cross_entropy(logits, log_targets.exp())
