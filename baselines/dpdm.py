"""DPDM: a diffusion model trained by DP-SGD with several noisy copies of each record; a student of its samples.

Reference: Dockhorn, Cao, Vahdat, Kreis, "Differentially Private Diffusion Models", TMLR 2023, arXiv:2210.09929. Images
are in [-1, 1], n records, q = B / n, D(x; s, y) the denoiser with weights theta (`bench/nets/denoiser.py`). T times:

1. every record is in the batch with probability q, independently;
2. for every record in it, K noise levels ln s_k ~ N(-1.2, 1.2^2) and K noises e_k ~ N(0, I) are drawn; with probability
   0.1 its label y is replaced by "no label";
3. l_i = (1/K) sum_k w(s_k) mean over pixels of |D(x_i + s_k e_k; s_k, y_i) - x_i|^2, w(s) = (s^2 + sd^2) / (s sd)^2,
   sd^2 = 1/3;
4. g = (sum_i clip(grad_theta l_i, C) + N(0, sigma^2 C^2 I)) / B;
5. theta <- Adam(theta, g); the average of the weights, with decay 0.999, is kept.

6. Images of uniform labels are sampled from the averaged D by deterministic steps (DDIM): x ~ N(0, s_0^2), then
   x <- x + (s_(j+1) - s_j) (x - D(x; s_j, y)) / s_j along falling levels s_j that end at 0.

Privacy. A step is a Poisson-sampled Gaussian of multiplier sigma, for one record added or removed; T of them are the
ledger. The K copies of a record are averaged before clipping (step 3), so K does not enter: the record moves the sum by
at most C. Their draws belong to the record (`bench/dp_training/record_draws.py`), so that a record that is left out
changes no other one's. Step 6 is post-processing. Claim and account are the same number, by the bench's accountant.

Differs from the paper:
- The network is a U-Net without attention and skip scaling; the paper's is NCSN++ with 1.5 million weights.
- Defaults are DPImageBench's for MNIST: 2,100 steps of 4,096 records. The paper's 300 epochs are 4,400 such steps.
- Sampling is deterministic; the paper chooses stochastic sampling (churn 10, 1,000 steps) for the best accuracy on
  MNIST, a choice that no epsilon covers. Guidance, another such choice, is left out.
- `network dense` and `side half` are ours.
- No quality of samples is computed from private records during the training.
- The student is that of `bench/dp_training/synthetic_data.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor

from bench import validate
from bench.api import Context, Teacher
from bench.api.context import Tiers
from bench.config import Departure
from bench.dp_training.accounting import DpSgdParameters, calibrate
from bench.dp_training.games import RECORDS, SAMPLING, accounted_game
from bench.dp_training.private_diffusion import (
    DENSE,
    FEW_STEPS,
    QUICK_SIZES,
    SMOKE_SIZES,
    DenoiserTraining,
    PrivateDiffusion,
    play_noisy_gradients,
)
from bench.dp_training.synthetic_data import STUDENT_BY_ADAM, Synthesis
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame

SOURCE = "DP-SGD of the denoiser (DPDM, TMLR 2023), by the bench's accountant"


@dataclass(frozen=True)
class Dpdm(PrivateDiffusion):
    """Train a student on samples of a diffusion model trained by DP-SGD; the defaults are DPImageBench's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Dockhorn, Cao, Vahdat, Kreis, Differentially Private Diffusion Models, TMLR 2023"
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE_SIZES,
        "quick": QUICK_SIZES,
    }
    departures: ClassVar[tuple[Departure, ...]] = (STUDENT_BY_ADAM, DENSE, FEW_STEPS)

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "steps")

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 5; the source of images is step 6."""
        fields = DpSgdParameters.of(self.batch, len(images), self.steps, self.multiplier)
        parameters = calibrate(fields, budget)
        denoiser = ctx.prepared(self.denoiser(teacher.shape, teacher.classes))
        DenoiserTraining(self, denoiser, teacher.classes, parameters, ctx, "private denoiser").run(images, labels)
        generator = self.generator(denoiser, teacher.shape)
        draw, claim = self.drawing(generator, teacher.classes), parameters.claim(budget.delta, SOURCE)
        return Synthesis(draw, parameters.ledger(), claim, parameters.solved(), generator)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: a noisy gradient, with one record in half of the samples or without."""
        fields = DpSgdParameters.of(self.batch, RECORDS, self.steps, self.multiplier)
        once = replace(calibrate(fields, budget), sampling=SAMPLING, steps=1)
        describe = "one noisy gradient of the denoiser, with one private record in half of the samples and without"
        return accounted_game(partial(play_noisy_gradients, self, once), once.ledger(), budget.delta, describe)
