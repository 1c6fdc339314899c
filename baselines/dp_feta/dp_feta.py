"""DP-FETA: a diffusion model that learns first from noisy central images and then by DP-SGD; a student of its samples.

Reference: Li, Gong, Li, Zhao, Hou, Wang, "From Easy to Hard: Building a Shortcut for Differentially Private Image
Synthesis", IEEE S&P 2025 (arXiv:2504.01395), its mean images. n records, C classes, small images of d' = d / 4 pixels.

1. m times: every record is in a Poisson sample with probability q_c = B_c / n. Per class y the sum of the small images
   (every second pixel of every second row) gets noise N(0, sigma_c^2 d' I) and is divided by B_c / C.
2. The m C central images are clamped to [0, 1], enlarged, smoothed by the median of 3x3 pixels, and sharpened if grey.
3. A denoiser is trained on central images with random augmentation, without further privacy.
4. The denoiser is trained on the records by DP-SGD, T steps of DPDM (`dpdm`): K noisy copies of each record of a
   Poisson batch, whose mean gradient is clipped to C; noise sigma; Adam; an average of the weights.
5. Images of uniform labels are sampled by deterministic steps, and the student is trained on them.

With `steps` 0 the student learns from central images only: step 4 is left out, and the budget determines sigma_c.

Privacy. For one record added or removed: a record is in one class and has small pixels in [0, 1], so it moves the sums
of a round by at most sqrt(d'), or by `central_clip` times that: m Poisson-sampled Gaussians of multiplier sigma_c at
rate q_c. Step 4 is T Poisson-sampled Gaussians of multiplier sigma at rate q. Both are in one ledger; sigma is solved
for what the central images leave of the budget. Steps 2, 3 and 5 are post-processing; n is public. Claim and account
are the same number.

Defect of the published code that is corrected here: it divides the sum of a class by the number of its records in the
sample, and adds noise for the denominator B_c / C. A class with fewer records than that gets too little noise, the
counts are not accounted, and a class without records becomes NaN.

Differs from the paper:
- The denominator is B_c / C for every class, so that rare classes are darker; data are treated as balanced.
- `central_clip`, a bound on small images below the largest possible norm, is ours.
- Augmentation is a small random rotation, scaling, shear and shift; labels are dropped in step 3 as in step 4.
- The weights' average after step 3 starts step 4.
- The network, its sampling and the student are those of `dpdm`, with the differences listed there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from baselines.dp_feta.accounting import FetaParameters, calibrate
from baselines.dp_feta.central_images import central_round, finished
from bench import validate
from bench.api import Context, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.data.affine import random_affine
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.dp_sgd import WeightAverage
from bench.dp_training.games import RECORDS, SAMPLING, PlayedNoise, accounted_game
from bench.dp_training.private_diffusion import (
    DENSE,
    FEW_STEPS,
    LEVEL_DEVIATION,
    LEVEL_MEAN,
    PLAYED,
    QUICK_SIZES,
    SMOKE_SIZES,
    DenoiserTraining,
    PrivateDiffusion,
    play_noisy_gradients,
    scaled,
)
from bench.dp_training.synthetic_data import STUDENT_BY_ADAM, Synthesis
from bench.errors import BenchError
from bench.nets.denoiser import Denoiser, denoising_losses
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame

ABSENT = 3
"""Positions of absent records for each played one in an audit's game, so that classes are below their average size."""


@dataclass(frozen=True)
class DpFeta(PrivateDiffusion):
    """Train a student on samples of a denoiser of noisy central images and records; the defaults are for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Li et al., From Easy to Hard (DP-FETA), IEEE S&P 2025"
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE_SIZES | {"rounds": 2, "central_records": 32, "warm": 2, "warm_batch": 8},
        "quick": QUICK_SIZES | {"warm": 1500},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        STUDENT_BY_ADAM,
        DENSE,
        FEW_STEPS,
        Departure(
            what="Adam's rate on central images is 2e-3 instead of 3e-4",
            why="tier quick has fewer steps and a network of linear layers",
            sets={"warm_rate": 2e-3},
        ),
    )
    only_with: ClassVar[dict[str, str]] = dict.fromkeys(("batch", "copies", "multiplier", "clip", "rate"), "steps>0")

    rounds: Size[int] = 5
    """m, rounds of central images: noisy images of each class."""
    central_records: Size[int] = 6000
    """B_c, expected number of records in a round."""
    central_noise: float = 5.0
    """sigma_c, noise of a round's sums over their sensitivity; solved from the budget if `steps` is 0."""
    central_clip: float = 0.0
    """Bound on a small image's norm, as a share of the largest possible one; 0 = the largest possible one."""
    warm: Size[int] = 2000
    """Training steps on central images; post-processing."""
    warm_batch: Size[int] = 50
    """Central images per training step on them."""
    warm_rate: float = 3e-4
    """Learning rate of Adam on central images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "rounds", "central_records", "warm_batch")
        validate.at_least(self, 0, "steps", "warm", "central_noise", "central_clip")
        validate.below(self, math.inf, "central_noise")
        validate.at_most(self, 1, "central_clip")
        validate.positive(self, "warm_rate")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit than one record, and steps to solve for without DP-SGD."""
        super().check(budget, dataset, classes)
        if budget.solve == "steps" and not self.steps:
            raise BenchError("--solve steps: DP-SGD is left out by --method.steps 0; use --solve sigma")

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 4; the source of images is step 5."""
        self.check(budget, teacher.dataset, teacher.classes)
        parameters = self.calibrate(len(images), budget)
        # 1, 2: central images
        central = self.central_images(images, labels, teacher.classes, parameters, ctx)
        # 3: training on central images
        denoiser = ctx.prepared(self.denoiser(teacher.shape, teacher.classes))
        self.warm_up(denoiser, finished(central, teacher.shape), teacher.classes, ctx)
        # 4: training on records
        if parameters.steps:
            fields = DpSgdParameters(parameters.sampling, parameters.steps, parameters.multiplier)
            DenoiserTraining(self, denoiser, teacher.classes, fields, ctx, "private denoiser").run(images, labels)
        generator = self.generator(denoiser, teacher.shape)
        draw, claim = self.drawing(generator, teacher.classes), parameters.claim(budget.delta)
        return Synthesis(draw, parameters.ledger(), claim, parameters.solved(), generator)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: one round and one step, each with a record in half of the samples or without."""
        parameters = self.calibrate(RECORDS, budget)
        once = replace(
            parameters, central_sampling=SAMPLING, rounds=1, sampling=SAMPLING, steps=min(parameters.steps, 1)
        )
        described = "central images of one round" + (" and one noisy gradient of the denoiser" if once.steps else "")
        describe = f"{described}, with one private record in half of the samples and without"
        return accounted_game(partial(self.play, once), once.ledger(), budget.delta, describe)

    def play(self, once: FetaParameters, world: bool, n: int, generator: torch.Generator) -> Tensor:
        """Return (n, 2) or (n, 4), n plays of one round, and of one step if there is one.

        In the round each record is white and in a separate class, whose pixels are returned as their sum and the first.
        Absent records are never sampled, and NaN.
        """
        positions = PLAYED * (1 + ABSENT)
        images, labels = torch.full((positions, 1, 4, 4), math.nan), torch.arange(positions) % PLAYED
        if world:
            images[:PLAYED] = 1.0
        source = PlayedNoise.drawing(generator, PLAYED if world else 0)
        noise, clip = once.central, self.central_bound(4)
        rounds = [
            central_round(images, labels, PLAYED, SAMPLING, noise, clip, source, source) for _ in range(-(-n // PLAYED))
        ]
        found = torch.cat([torch.stack([rows.sum(1), rows[:, 0]], 1) for rows in rounds])[:n]
        if not once.steps:
            return found
        step = DpSgdParameters(once.sampling, once.steps, once.multiplier)
        return torch.cat([found, play_noisy_gradients(self, step, world, n, generator)], 1)

    def calibrate(self, records: int, budget: Budget) -> FetaParameters:
        """Calibrate to `budget` for n records. Raises BenchError if nothing meets it."""
        fields = FetaParameters(
            central=self.central_noise,
            central_sampling=min(1.0, self.central_records / records),
            rounds=self.rounds,
            sampling=min(1.0, self.batch / records),
            steps=self.steps,
            multiplier=self.multiplier,
        )
        return calibrate(fields, budget)

    def central_bound(self, pixels: int) -> float:
        """Return the bound on the norm of a small image of that many pixels; 0 = no clipping."""
        return self.central_clip * math.sqrt(pixels)

    def central_images(
        self, images: Tensor, labels: Tensor, classes: int, parameters: FetaParameters, ctx: Context
    ) -> Tensor:
        """Run step 1: return (m C, d') noisy means, those of a round adjacent and by class."""
        samples, noise = ctx.privacy_noise("central images/sampling"), ctx.privacy_noise("central images/noise")
        clip, q = self.central_bound(images[0, :, ::2, ::2].numel()), parameters.central_sampling
        found = []
        with ctx.track("central images", parameters.rounds) as advance:
            for _ in range(parameters.rounds):
                found.append(central_round(images, labels, classes, q, parameters.central, clip, samples, noise))
                advance(1)
        return torch.cat(found)

    def warm_up(self, denoiser: Denoiser, central: Tensor, classes: int, ctx: Context) -> None:
        """Run step 3 in place; the denoiser ends with its averaged weights.

        Args:
            central: (m C, c, h, w) in [0, 1], ordered by class in each round.
        """
        rng = ctx.generator("central images")
        optimizer = torch.optim.Adam(denoiser.parameters(), lr=self.warm_rate)
        average = WeightAverage(dict(denoiser.named_parameters()), self.average)
        with ctx.track("training on central images", self.warm) as advance:
            for _ in range(self.warm):
                chosen = torch.randint(len(central), (self.warm_batch,), generator=rng, device=rng.device)
                x = scaled(random_affine(central[chosen], rng), self.side)
                is_dropped = torch.rand(len(x), generator=rng, device=rng.device) < self.unlabelled
                y = torch.where(is_dropped, classes, chosen % classes)
                sigma = (LEVEL_MEAN + LEVEL_DEVIATION * torch.randn(len(x), generator=rng, device=rng.device)).exp()
                e = torch.randn(x.shape, generator=rng, device=rng.device)
                loss = denoising_losses(denoiser(x + sigma[:, None, None, None] * e, sigma, y), x, sigma).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                average.update()
                advance(1)
        if average.seen:
            average.apply()
        optimizer.zero_grad(set_to_none=True)
        denoiser.eval()
