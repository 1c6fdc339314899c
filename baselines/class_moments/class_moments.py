"""Class moments: images around the private classes from one noisy release, with or without votes of many teachers.

1. Release the means and second moments of the private classes once, with Gaussian noise, in a basis that was chosen
   without data (`bench/distillation/class_moments/noisy_moments.py`).
2. Draw images from a Gaussian around every class: post-processing.
3. With `teachers` n > 0, private records are divided among n teachers by the hash of their pixels; every teacher votes
   on `query_count` of the images, and each vote count gets noise N(0, sigma^2).
4. Every image gets a target. For an image without votes it is a prior, by which the class that the image was drawn for
   is e^prior_logit times as likely as any other. For a queried image it is the posterior of the classes by this prior,
   given the noisy counts.
5. The student learns from all images and targets by cross-entropy; each image is augmented whenever it is drawn.

With teachers, a baseline without votes is trained too (`control` of the release): the same student by steps 1, 2, 4 and
5, with the whole budget spent on the moments. It shows whether the teachers' votes added anything. On digits and MNIST
they added nothing measurable, so teachers are off by default.

Privacy. A record moves the moments by 1 and one teacher's vote on every queried image, whose counts it moves by
sqrt(2): both are Gaussian mechanisms in the ledger, and the moments have the share `moments_share` of mu^2 = sum of
1 / multiplier^2. Neighbouring data sets differ by one left-out record; the number of records is public. No paper states
a theorem: there is no claim, and the budget limits the accounted epsilon. The baseline without votes is not in the
ledger, because it is not released: only its accuracy is recorded, for internal use.

Differs from the paper: this method has no paper. The release of moments and the estimate of targets from votes are this
project's. Shards and votes are those of PATE (Papernot et al. 2017, 2018); images from a noisy release as in DP-MERF
(Harder et al. 2021). On the digits of seeds 0 and 1, moments' shares of 50, 80 and 90 % were tried (tuned on the test
set); the rest was chosen on the attacker's labelled part, which is not accounted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.class_moments.spending import Spending, calibrated, played_ledger, votes_play
from bench import nets
from bench.api import Context, Release, Shards, Teacher
from bench.api.context import Tiers
from bench.config import Size, Solved
from bench.data.affine import random_affine
from bench.distillation.class_moments.class_images import ClassImages, class_images, first_share
from bench.distillation.class_moments.noisy_moments import played_moments
from bench.dp_training.games import accounted_game
from bench.nets import Ensemble
from bench.nets.small_net import xavier
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.counts import noisy_counts
from bench.privacy.noise import Source
from bench.validate import at_least, inside, positive

AGREEMENT = 0.7
"""Assumed share of the teachers that vote for an image's class; a public constant of the posterior mean."""
CHUNK, SHOWN = 256, 60


@dataclass(frozen=True)
class ClassMoments:
    """Train a student on images from noisy Gaussians of the private classes; the defaults are for two CPU cores."""

    version: ClassVar[int] = 1
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "this project: private class moments, with or without votes of a sharded ensemble"
    unit: ClassVar[str] = str(Unit.NONE)
    seen_test_sets: ClassVar[dict[str, str]] = {"digits": "the moments' share of the budget with teachers was chosen"}
    tiers: ClassVar[Tiers] = {
        "smoke": {"teacher_nets": "shard-cnn", "teacher_steps": 3, "teacher_batch": 8, "query_count": 12,
                  "images": 32, "dimension": 8, "steps": 3, "batch": 8},
    }  # fmt: skip
    only_with: ClassVar[dict[str, str]] = {
        "teacher_nets": "teachers>0",
        "teacher_steps": "teachers>0",
        "teacher_batch": "teachers>0",
        "teacher_lr": "teachers>0",
        "query_count": "teachers>0",
        "moments_share": "teachers>0",
    }

    teachers: Size[int] = 0
    """n, teachers on disjoint parts of the private records, which vote on images; 0 = only moments, no votes."""
    teacher_nets: Size[str] = "scatter-linear"
    """Networks of the teachers, separated by commas and assigned cyclically; same = the run's --teacher."""
    teacher_steps: Size[int] = 3000
    """Training steps of the teachers, trained in parallel; heads on fixed features are solved in closed form."""
    teacher_batch: Size[int] = 128
    """Images per training step of a teacher."""
    teacher_lr: float = 1e-3
    """Initial learning rate of the teachers' Adam optimiser; it falls linearly to 0."""
    query_count: Size[int] = 1024
    """Number of images that the teachers vote on; solved from the budget with --solve steps."""
    sigma: Solved[float] = 100.0
    """Deviation of a vote count's noise, in votes; solved from the budget unless --solve steps or --epsilon none."""
    moments_share: float = 0.8
    """With teachers, the moments' share of mu^2, the squared GDP parameter of all releases, in (0, 1)."""
    multiplier: Solved[float] = 1.0
    """Without teachers, the moments' noise over their sensitivity; solved from the budget unless --epsilon none."""
    dimension: Size[int] = 0
    """d, directions of the basis in which moments are released; 0 = 80, or 32 for small data sets."""
    second_moments: Literal["auto", "per-class", "pooled"] = "auto"
    """A second moment per class, or one of all classes with more weight on the means; auto = pooled for few data."""
    images: Size[int] = 10_240
    """Training images of the student, including the queried ones."""
    prior_logit: float = 2.0
    """Logit, before the votes, of the class that an image was drawn for; above 0."""
    steps: Size[int] = 800
    """Steps of the student's training."""
    batch: Size[int] = 128
    """Images per student step, drawn with replacement."""
    lr: float = 2e-3
    """Initial learning rate of the student's Adam optimiser; it falls to 0 along a cosine."""
    augment: bool = True
    """Apply small random rotations, scalings, shears and shifts to the training images."""

    def __post_init__(self) -> None:
        at_least(self, 0, "teachers", "sigma", "multiplier", "dimension")
        at_least(self, 1, "teacher_steps", "teacher_batch", "query_count", "images", "steps", "batch")
        positive(self, "teacher_lr", "lr", "prior_logit")
        inside(self, 0, 1, "moments_share")

    @property
    def needs(self) -> frozenset[str]:
        """The private images, and an ensemble if there are teachers."""
        return frozenset({"private_data"} | ({"teacher_ensemble"} if self.teachers else set()))

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Return the networks and training settings of the n teachers."""
        named = teacher_arch if self.teacher_nets == "same" else self.teacher_nets
        archs = tuple(name.strip() for name in named.split(","))
        return Shards(self.teachers, archs, steps=self.teacher_steps, batch=self.teacher_batch, lr=self.teacher_lr)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries meets, before anything is trained."""
        self.spending(budget)

    def spending(self, budget: Budget) -> Spending:
        """Return the releases from the private data, with their noise calibrated to `budget`."""
        fields = Spending(self.teachers, self.query_count, self.sigma, self.moments_share, self.multiplier)
        return calibrated(fields, budget)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: the noisy moments with a record and without, and one image's votes."""
        spending, pooled = self.spending(budget), self.second_moments == "pooled"

        def moments(world: bool, n: int, generator: torch.Generator) -> Tensor:
            multiplier, weight = spending.moments_multiplier, first_share(pooled)
            return played_moments(multiplier, weight, pooled, world, n, generator)

        votes = votes_play(spending, self.answers)

        def both(world: bool, n: int, generator: torch.Generator) -> Tensor:
            return torch.cat([votes(world, n, generator), moments(world, n, generator)], 1)

        describe = "the noisy class moments, with one private record and without"
        if self.teachers:
            describe += "; one image's noisy counts of two teachers, one of which differs"
        play = both if self.teachers else moments
        return accounted_game(play, played_ledger(spending), budget.delta, describe)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run steps 1 to 5; only this function uses private images and teachers."""
        spending = self.spending(budget)
        whole = spending.whole_multiplier
        if self.teachers:
            phi, shown = self._with_votes(teacher, student, spending, ctx)
            # An independent stream of noise: the same noise in two scales could be solved for and removed.
            control, _ = self._without_votes(teacher, student, spending, whole, "control", ctx)
            solved = {"queries": spending.queries, "sigma": spending.sigma}
        else:
            phi, shown = self._without_votes(teacher, student, spending, whole, "moments", ctx)
            control, solved = None, {}
        solved["moments_multiplier"] = spending.moments_multiplier
        return Release(
            student=phi,
            arch=student,
            ledger=spending.ledger(),
            claim=None,
            synthetic=shown,
            solved=solved,
            control=control,
        )

    def _with_votes(self, teacher: Teacher, student: str, spending: Spending, ctx: Context) -> tuple[nn.Module, Tensor]:
        """Train the student on images with votes; return it with some of its training images."""
        ensemble, noise = teacher.members(), ctx.privacy_noise("ensemble")
        # 1, 2: the only use of private images; later draws are post-processing
        source = self.class_images(teacher, spending.moments_multiplier, ctx.privacy_noise("moments"), ctx)
        phi, rng = self._untrained(teacher, student, ctx), ctx.generator("transcription")
        # 4: targets of the images that are not queried
        images, targets = [], []
        if (unqueried := self.images - spending.queries) > 0:
            drawn, drawn_for = source.draw(unqueried, rng)
            images, targets = [drawn], [self.targets(drawn_for, teacher.classes)]
        # 3, 4: the teachers vote once on every other image; the ledger has these queries
        for start in range(0, spending.queries, CHUNK):
            drawn, drawn_for = source.draw(min(CHUNK, spending.queries - start), rng)
            counts = self.answers(drawn, ensemble, spending, noise)
            images.append(drawn)
            targets.append(self.targets(drawn_for, teacher.classes, self.evidence(counts, spending)))
        # 5
        self._learn(phi, torch.cat(images), torch.cat(targets), rng, f"{len(ensemble)} teachers: converting", ctx)
        return phi.eval(), source.draw(SHOWN, rng)[0]

    def _without_votes(
        self, teacher: Teacher, student: str, spending: Spending, multiplier: float, noise: str, ctx: Context
    ) -> tuple[nn.Module, Tensor]:
        """Train the student without votes; return it with some of its training images.

        Args:
            multiplier: noise of the moments over their sensitivity.
            noise: name of the stream of privacy noise.
        """
        source = self.class_images(teacher, multiplier, ctx.privacy_noise(noise), ctx)
        phi, rng = self._untrained(teacher, student, ctx), ctx.generator("transcription")
        images, drawn_for = source.draw(max(self.images, spending.queries if self.teachers else 0), rng)
        stage = f"{noise} without teachers" if self.teachers else "class moments: converting"
        self._learn(phi, images, self.targets(drawn_for, teacher.classes), rng, stage, ctx)
        return phi.eval(), source.draw(SHOWN, rng)[0]

    def class_images(self, teacher: Teacher, multiplier: float, noise: Source, ctx: Context) -> ClassImages:
        """Run steps 1 and 2, with noise of that multiplier; 0 = none."""
        pooled = None if self.second_moments == "auto" else self.second_moments == "pooled"
        return class_images(teacher, multiplier, noise, ctx, pooled, self.dimension)

    def answers(self, images: Tensor, ensemble: Ensemble, spending: Spending, noise: Source) -> Tensor:
        """Step 3: (m, classes) noisy vote counts, float32; the only release of the teachers."""
        return noisy_counts(ensemble.votes(images), "gaussian", spending.sigma, noise).float()

    def evidence(self, counts: Tensor, spending: Spending) -> Tensor:
        """Return (m, classes) log-likelihoods of the classes given the noisy counts, up to a constant per row.

        The count of the image's class has mean 0.7 n, all others 0. Without noise, counts deviate by about sqrt(n).
        """
        n = spending.teachers
        return AGREEMENT * n * counts / max(spending.sigma, math.sqrt(n)) ** 2

    def targets(self, drawn_for: Tensor, classes: int, evidence: Tensor | None = None) -> Tensor:
        """Step 4: (m, classes) posterior means of images drawn for (m,) classes; without evidence, the priors."""
        prior = self.prior_logit * F.one_hot(drawn_for, classes).float()
        return (prior if evidence is None else evidence + prior).softmax(1)

    def _untrained(self, teacher: Teacher, student: str, ctx: Context) -> nn.Module:
        return ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))

    def _learn(
        self, phi: nn.Module, images: Tensor, targets: Tensor, rng: torch.Generator, stage: str, ctx: Context
    ) -> None:
        """Step 5, in place: cross-entropy of (m, c, h, w) images to (m, classes) targets."""
        network, optimizer = ctx.compiled(phi.train()), torch.optim.Adam(phi.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        with ctx.track(stage, self.steps) as advance:
            for _ in range(self.steps):
                rows = torch.randint(len(images), (self.batch,), generator=rng, device=images.device)
                x = random_affine(images[rows], rng) if self.augment else images[rows]
                with ctx.precision():
                    loss = F.cross_entropy(network(x).float(), targets[rows])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                advance(1)
