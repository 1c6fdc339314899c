"""G-PATE: a generator whose gradients come from noisy votes of many discriminators, trained on disjoint records.

Reference: Long, Wang, Yang, Kailkhura, Zhang, Gunter, Li, "G-PATE: Scalable Differentially Private Data Generator via
Private Aggregation of Teacher Discriminators", NeurIPS 2021, Algorithms 1 and 2. Signs, means and constants are those
of the released code; the equation numbers are those of this docstring.

N teachers D_i distinguish real images from generated ones, given a label; G is the student generator. T times:

1. Only the first time, the private records are divided into N disjoint parts, by a hash of each record's pixels.
2. Teacher i takes a step of Adam, `teacher_steps` times, on L_D = mean BCE(D_i(x, y), 1) + mean BCE(D_i(u, y'), 0),
   (1), x drawn from part i only and u = G(z, y') the same for all teachers.
3. B images u_j = G(z_j, y_j) are made, z uniform in [-1, 1], y uniform. Teacher i's direction for image j is
   g_ij = - gradient in u_j of L_G = mean over j of BCE(D_i(u_j, y_j), 1), (2).
4. Algorithm 2, for every image: a fresh public P of d x k, entries N(0, 1 / k); v_ij = P^T g_ij, (3); each of the k
   coordinates is clipped to [-c, c] and falls into one of 10 equal bins; n_b teachers are in bin b.
5. Confident GNMax on each coordinate: where max n_b + N(0, sigma_1^2) >= tau N, the answer is the midpoint of
   argmax_b n_b + N(0, sigma_2^2), (4), and 0 elsewhere. The k answers a_j give g^_j = P a_j, (5).
6. G takes a step of Adam on sum_j ||u_j + g^_j - G(z_j, y_j)||^2, (6), without a gradient through u_j + g^_j.

A classifier is trained on images of G. Teachers are never released.

Privacy. A record is in one part, hence it influences one teacher during the whole training. A teacher has one vote on
each coordinate of each image, so that the record moves two counts of a histogram by 1, and its largest by at most 1. A
coordinate is charged for the threshold, multiplier sigma_1, and for its answer, multiplier sigma_2 / sqrt(2); k B of
each in every step. All coordinates are charged as if they were answered (or the share `responses` of them, and then no
more are answered), because the set of answered coordinates is a function of the votes. The claim is the paper's Renyi
account of the same Gaussians by its data-independent bound; the accountant composes them exactly. T is fixed.

Differs from the paper:
- The paper's epsilon adds up data-dependent bounds, and training stops when it is spent: both are functions of the
  private votes, and neither is sanitised. Here the data-independent bound counts, and T is fixed in advance.
  `diagnostic` records the data-dependent number for comparison; it is private information and must not be published.
- The paper's numbers are the best of 600 epochs on the test set: 80.9 % at epsilon 10, where the authors of GS-WGAN
  measured 51 %. Here the student after its last pass counts.
- Parts are by hash. The code of DataLens, by the same authors, deals records out class by class and starts again when a
  class is used up, so that 1,138 records of MNIST have two teachers and the proof does not cover them.
- The released code generates images of the teachers' private labels with G in training mode: batch normalisation then
  stores their statistics in buffers that are saved with G. Here u has public labels, and no network has buffers.
- Networks are those of `dp_gan`, without batch normalisation; the paper's have it, and 0.56 million weights a teacher.
- The code's optional private principal components, charged alpha / (4 sigma^2) instead of alpha / (2 sigma^2), and its
  projections that grow with the epochs are left out.
- sigma_1 and tau are given relative to sigma_2 and N, so that other budgets and numbers of teachers keep the ratios.
- `target_estimator mean` uses the mean of all noisy counts instead of the fullest bin: their release is charged for.
- Tier quick, variant working, has 48 teachers on digits, of 25 records each. At an accounted epsilon of 10 sigma_2 is
  13 times the number of teachers, and images are at chance (8 %; without noise 69 %). The budget is the cause, not the
  votes: sigma_2 is sqrt(2 k B T) over the budget's mu, however the votes are spread. With the 1000 teachers of MNIST
  the noise is 0.6 votes per teacher: 22 %, without noise 34 % (attacker's part, logistic regression on 4,000 generated
  images, seed 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.g_pate.aggregation import ORDERS, Aggregator, Reading, projections
from baselines.g_pate.discriminators import Discriminators
from bench import validate
from bench.api import Context, Latents, Sampler, Teacher, uniform_latents
from bench.api.context import Tiers
from bench.config import Departure, Size, Solved
from bench.data.partition import by_hash
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan, calibrate
from bench.distillation.votes.pate import DIAGNOSTIC
from bench.distillation.votes.vote_bounds import epsilon_of
from bench.distillation.votes.vote_game import released_counts, vote_game
from bench.dp_training.synthetic_data import (
    QUICK,
    SMOKE,
    STUDENT_BY_ADAM,
    PrivateGenerator,
    Synthesis,
    conditional,
)
from bench.errors import BenchError
from bench.gan.training import TeacherBatches, descend, teacher_count
from bench.nets.conditional_gan import DcganCritic, DcganGenerator, MlpCritic, MlpGenerator
from bench.privacy import Budget, Claim, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame

SOURCE = "G-PATE (Long et al. 2021), Renyi account of Confident GNMax, data-independent"
BETA = 0.5
"""beta_1 of every Adam."""


@dataclass(frozen=True)
class GPate(PrivateGenerator):
    """Train a generator on noisy votes on projected gradients; the defaults are the code's for MNIST at epsilon 10."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Long et al., G-PATE, NeurIPS 2021, Algorithms 1 and 2"
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE | {"teachers": 3, "steps": 3, "batch": 4, "width": 4, "critic_width": 4, "latent": 8},
        "quick": QUICK
        | {"teachers": 0, "steps": 250, "teacher_steps": 2, "batch": 32, "latent": 16, "critic_width": 32},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        STUDENT_BY_ADAM,
        Departure(
            what="teachers and generator are perceptrons, and all teachers have the same public initial weights",
            why="many convolutional teachers are too slow for two cores; teachers of few records agree on little more "
            "than their initial weights",
            sets={"network": "mlp", "start": "shared"},
            worth="of the shared weights, measured as below: 71 %, with independent initial weights 49 %",
        ),
        Departure(
            what="every coordinate is answered, by the mean of all noisy counts instead of the fullest bin",
            why="all coordinates are charged, answered or not, and the mean uses the votes in all bins",
            sets={"threshold": 0.0, "target_estimator": "mean"},
            worth="little without noise, measured as below: 71 % both ways; with 32 images 74 %, without it 69 %",
        ),
        Departure(
            what="100 projected coordinates instead of 10, clipped to 0.01 instead of 1e-4",
            why="10 coordinates keep little of a gradient, and the total noise at one epsilon is the same; chosen on "
            "the attacker's part of digits, which is neither private (split iid) nor the test set",
            sets={"projected": 100, "clip": 0.01},
            worth="digits, attacker's part, no noise, 40 teachers, 250 steps of 20 images, a small perceptron as "
            "student, seed 0: 71 %; with 10 coordinates 15 %, clipped to 1e-3 73 %, to 0.03 65 %",
        ),
        Departure(
            what="the generator's loss is the cross-entropy of its pixels to the target, not the squared distance",
            why="images turn black before the teachers have learnt, and black images get no gradient by that distance",
            sets={"loss": "entropy"},
            worth="MNIST, attacker's part, logistic regression on 4,000 generated images, 1000 teachers, seed 0: at an "
            "accounted epsilon of 10 22 %, by the squared distance 11 %; without noise 34 and 30 %; digits, 48 "
            "teachers, without noise 69 and 72 %",
        ),
        Departure(
            what="learning rates of 3e-3 (teachers) and 4e-3 (generator) instead of 1e-3",
            why="the 250 steps of tier quick are too few for the paper's rates; chosen on the same images",
            sets={"teacher_rate": 3e-3, "rate": 4e-3},
            worth="measured likewise: 71 %; with the paper's rates 38 %, with only the teachers at the paper's rate "
            "34 %, with 2e-3 for the generator 15 %",
        ),
    )
    recorded_as: ClassVar[dict[str, str]] = {"responses": "answers"}
    only_with: ClassVar[dict[str, str]] = {"threshold_noise": "threshold>0"}

    teachers: Size[int] = 2000
    """N, discriminators on disjoint parts of the records; 0 = 48 on digits, 100 on usps, else 1000."""
    steps: Size[int] = 100
    """T, steps of the generator (the paper stops by its private epsilon); solved from the budget with --solve steps."""
    teacher_steps: Size[int] = 1
    """Steps of every teacher before each step of the generator."""
    batch: Size[int] = 30
    """B, images per step of the generator and of a teacher; 30 is the number of MNIST records of each of 2000."""
    projected: int = 10
    """k, coordinates of an image's projected gradient; the teachers vote on each of them."""
    bins: int = 10
    """Number of equal bins of a projected coordinate, from -c to c."""
    clip: float = 1e-4
    """c, the bound on a projected coordinate of the mean loss' gradient."""
    threshold: float = 0.5
    """tau, share of the teachers that must be in the fullest bin; 0 = every coordinate is answered."""
    threshold_noise: float = 6.0
    """Noise on the threshold over the noise on the counts, sigma_1 / sigma_2 (in the paper 600 and 100 votes)."""
    scale: Solved[float] = 100.0
    """sigma_2, deviation of the counts' noise, in votes; solved from the budget unless --solve steps or none."""
    responses: float = 1.0
    """Largest share of a step's coordinates that are answered, the first ones that pass; this share is accounted."""
    target_estimator: Reading = "argmax"
    """Estimate from the noisy counts: the fullest bin's midpoint (the paper), or the mean of the teachers' votes."""
    loss: Literal["square", "entropy"] = "square"
    """Loss of the generator to its target: the squared distance (the paper), or the cross-entropy of pixels."""
    network: Literal["dcgan", "mlp"] = "dcgan"
    """Generator and teachers: convolutions, or perceptrons of two hidden layers."""
    start: Literal["own", "shared"] = "own"
    """Initial weights of the teachers: independent, or the same for all."""
    teacher_rate: float = 1e-3
    """Learning rate of the teachers (Adam)."""
    rate: float = 1e-3
    """Learning rate of the generator (Adam)."""
    latent: Size[int] = 100
    """Length of the latent vector z of the generator."""
    width: Size[int] = 64
    """Width of the generator: channels of its narrowest map (dcgan), or half of its first hidden layer (mlp); even."""
    critic_width: Size[int] = 32
    """Width of each teacher: channels of its first map (dcgan), or units of its first hidden layer (mlp); even."""
    diagnostic: bool = False
    """Record the paper's data-dependent epsilon. It is private information: never publish it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.one_of(self, "target_estimator", "argmax", "mean")
        validate.one_of(self, "loss", "square", "entropy")
        validate.one_of(self, "network", "dcgan", "mlp")
        validate.one_of(self, "start", "own", "shared")
        validate.at_least(self, 1, "steps", "teacher_steps", "batch", "projected", "latent")
        validate.at_least(self, 2, "bins", "width", "critic_width")
        validate.at_least(self, 0, "teachers", "threshold", "scale", "responses")
        validate.positive(self, "clip", "threshold_noise", "teacher_rate", "rate", "responses")
        validate.between(self, 0, 1, "responses")
        for name in ("width", "critic_width"):
            if getattr(self, name) % 2:
                raise ValueError(f"{name} is {getattr(self, name)}; expected an even number")
        if self.responses < 1 and self.threshold == 0:
            raise ValueError(f"responses is {self.responses}, without a threshold; expected 1, or a threshold above 0")
        if self.diagnostic and self.target_estimator != "argmax":
            raise ValueError("diagnostic is a bound for arg-maxes; expected target_estimator argmax")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of steps meets, before anything is trained."""
        super().check(budget, dataset, classes)
        self.calibrate(budget, teacher_count(self.teachers, dataset))

    def calibrate(self, budget: Budget, teachers: int) -> VotePlan:
        """Plan all votes of a run, in whole steps, and their noise, within the budget."""
        step = self.step_plan(Aggregation("gaussian", self.scale), teachers)
        plan = replace(step, queries=self.steps * step.queries, candidates=self.steps * step.candidates)
        plan = calibrate(plan, partial(self._cost, budget=budget), budget)
        steps = plan.queries // step.queries
        if steps == 0:
            raise BenchError(
                f"--epsilon {budget.epsilon:g} --solve steps: {plan.queries} answers are allowed, fewer than "
                f"the {step.queries} of one step; raise --method.scale or lower --method.batch"
            )
        return replace(plan, queries=steps * step.queries, candidates=steps * step.candidates)

    def step_plan(self, noise: Aggregation, teachers: int) -> VotePlan:
        """Plan one step's votes with this noise on the counts, and noise on the threshold in its ratio."""
        coordinates = self.projected * self.batch
        noise = replace(noise, threshold=self.threshold * teachers, threshold_scale=self.threshold_noise * noise.scale)
        answers = max(1, math.floor(self.responses * coordinates))
        return VotePlan(noise, answers, coordinates, teachers, per_image=self.projected)

    def _cost(self, plan: VotePlan, budget: Budget) -> float:
        if budget.account == "claimed":
            return self.formula(plan, budget.delta)
        return account(plan.ledger(), Unit.EXAMPLE, budget.delta).epsilon

    def formula(self, plan: VotePlan, delta: float) -> float:
        """Compute the claim: alpha / sigma_2^2 for an answer and alpha / (2 sigma_1^2) for a threshold, best alpha."""
        at = plan.aggregation
        if at.scale == 0:
            return math.inf
        threshold = plan.candidates / (2 * at.threshold_scale**2) if at.threshold > 0 else 0.0
        return epsilon_of((plan.queries / at.scale**2 + threshold) * ORDERS, ORDERS, delta)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: the noisy votes on one coordinate, where one teacher may vote either way.

        Images have one pixel and one coordinate: the teachers' gradients fall into the last bin, or one into the first.
        """
        plan = self.calibrate(budget, teacher_count(self.teachers, dataset))

        def step(numbers: Tensor, two: VotePlan, rng: torch.Generator) -> Tensor:
            own = torch.where(numbers == 1, self.clip, -self.clip)
            gradients = torch.stack([own, torch.full_like(own, self.clip)])[:, :, None]
            aggregate = Aggregator(two, self.clip, self.bins, self.target_estimator, rng)
            return released_counts(two, *aggregate.noisy_votes([gradients], torch.ones(len(numbers), 1, 1)))

        claimed = self.formula(replace(plan, queries=1, candidates=1), budget.delta)
        return vote_game(plan, claimed, budget.delta, step)

    def check_data(self, shape: tuple[int, int, int], records: int, dataset: str) -> None:
        """Refuse more teachers than there are private records."""
        if records < (count := teacher_count(self.teachers, dataset)):
            raise BenchError(f"{count} teachers for {records} private records; lower --method.teachers")

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 6."""
        self.check_data(teacher.shape, len(images), teacher.dataset)
        count = teacher_count(self.teachers, teacher.dataset)
        plan = self.calibrate(budget, count)
        # 1: disjoint parts of the private records
        salt = ctx.generator("parts").initial_seed() % 2**32
        batches = TeacherBatches(images, labels, teacher.classes, by_hash(images.cpu(), count, salt))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(ctx.generator("networks").initial_seed())
            source = self.sampler(teacher.shape, teacher.classes, teacher.dataset)
            critics = self.critics(teacher.shape, teacher.classes, count)
        training = Training(self, plan, batches, ctx.prepared(source.generator), source.latents, critics, ctx)
        steps = plan.candidates // (self.projected * self.batch)
        with ctx.track("G-PATE", steps) as advance:
            for _ in range(steps):
                training.step()
                advance(1)
        votes = training.aggregate
        if votes.queries != plan.candidates or votes.answered > plan.queries:
            raise RuntimeError(f"the teachers gave {votes.queries} votes and {votes.answered} answers; expected {plan}")
        claim = Claim(self.formula(plan, budget.delta), budget.delta, Unit.EXAMPLE, SOURCE)
        draw = conditional(training.generator.eval(), teacher.classes, source.latents)
        noise = plan.aggregation
        solved: dict[str, float] = {"scale": noise.scale, "queries": plan.candidates, "answers": plan.queries}
        if noise.threshold > 0:
            solved |= {"threshold_scale": noise.threshold_scale, "answered": votes.answered}
        if votes.diagnostic:
            solved[DIAGNOSTIC] = votes.data_dependent_epsilon(budget.delta)
        return Synthesis(draw, plan.ledger(), claim, solved, training.generator)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build G with its uniform latents and labels."""
        kind = DcganGenerator if self.network == "dcgan" else MlpGenerator
        return Sampler(kind(shape, classes, self.latent, self.width), uniform_latents(self.latent), classes)

    def critic(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Build one new teacher."""
        return (DcganCritic if self.network == "dcgan" else MlpCritic)(shape, classes, self.critic_width)

    def critics(self, shape: tuple[int, int, int], classes: int, count: int) -> list[nn.Module]:
        """Build the untrained teachers: independent ones, or one network for all."""
        if self.start == "shared":
            return [self.critic(shape, classes)] * count
        return [self.critic(shape, classes) for _ in range(count)]


class Training:
    """Training state of generator and teachers.

    Args:
        by: the options.
        plan: the votes of the whole run.
        batches: the private records by teacher.
        generator: G.
        latents: distribution of z.
        critics: the untrained teachers, as many as in the plan; they are not modified.
        ctx: streams of random numbers and device.
    """

    def __init__(
        self,
        by: GPate,
        plan: VotePlan,
        batches: TeacherBatches,
        generator: nn.Module,
        latents: Latents,
        critics: list[nn.Module],
        ctx: Context,
    ) -> None:
        self.by, self.batches, self.generator, self.latents = by, batches, generator, latents
        self.rng, self.minibatches = ctx.generator("training"), ctx.privacy_noise("minibatches")
        self.teachers = Discriminators([ctx.prepared(critic) for critic in critics], by.teacher_rate, BETA)
        self.of_generator = torch.optim.Adam(generator.parameters(), lr=by.rate, betas=(BETA, 0.999))
        noisy = by.diagnostic and plan.aggregation.scale > 0
        self.aggregate = Aggregator(
            by.step_plan(plan.aggregation, plan.teachers), by.clip, by.bins, by.target_estimator,
            ctx.privacy_noise("votes"), noisy,
        )  # fmt: skip

    def step(self) -> None:
        """Run steps 2 to 6 once."""
        # 2: (1), every teacher on its own records
        for _ in range(self.by.teacher_steps):
            self.teach()
        # 3: (2), every teacher's direction for B images
        z, y = self._inputs()
        u = self.generator(z, y)
        found = self.teachers.directions(u, self._one_hot(y))
        # 4: (3), a projection for each image; 5: (4) and (5), the votes
        projection = projections(len(u), u[0].numel(), self.by.projected, self.rng)
        moved = u.detach() + self.aggregate(found, projection).view_as(u)
        # 6: (6), the generator
        if self.by.loss == "square":
            descend(self.of_generator, (moved - u).square().sum())
        else:
            descend(self.of_generator, F.binary_cross_entropy(u, moved.clamp(0, 1), reduction="sum"))

    def teach(self) -> None:
        """Step 2: one step of every teacher, on records of its part and the same generated images for all."""
        z, y = self._inputs()
        with torch.no_grad():
            u = self.generator(z, y)
        self.teachers.learn(self.batches, self.batches.draw(self.by.batch, self.minibatches), u, self._one_hot(y))

    def _inputs(self) -> tuple[Tensor, Tensor]:
        """Draw B latents and uniform labels, which are public."""
        z = self.latents(self.by.batch, self.rng)
        return z, torch.randint(self.batches.classes, (len(z),), generator=self.rng, device=self.rng.device)

    def _one_hot(self, labels: Tensor) -> Tensor:
        return F.one_hot(labels, self.batches.classes).float()
