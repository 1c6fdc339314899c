"""Public settings of a DP-SGD training run; they do not depend on the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bench import validate
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.augmentation import AugmentationName
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP, MOST_CHUNK, Clipping

WarmUp = Literal["mean", "tensorflow"]


@dataclass(frozen=True)
class DpSgdSettings:
    """Settings of DP-SGD; symbols as in `dp_sgd.py`.

    Attributes:
        batch: B, expected records per batch; at most N.
        steps: T, number of steps.
        multiplier: z, used if no budget determines it; 0 = no noise.
        clip: C, in gradient units.
        clipping: "flat" over all parameters jointly, or "layer": each of the m layers clipped to C / sqrt(m).
        rate, momentum: learning rate and momentum of SGD.
        decay: True = the learning rate falls to 0 linearly.
        falls: (fraction of the steps, factor) pairs; from that fraction on the rate is multiplied by the factor.
        nesterov, weight_decay: Nesterov momentum, and the L2 penalty of SGD.
        views: augmented copies of each record, whose mean gradient is clipped (De et al. 2022); 1 = the record itself.
        augmentation: how the copies are made; of no effect if `views` is 1.
        average: decay of an exponential average of the weights, which is returned; 0 = the last weights.
        warm_up: how that average starts: "mean" = as the plain mean; "tensorflow" = with the smaller decay
            (1 + t) / (10 + t) at step t, as De et al. (2022) and TensorFlow do.
        gradients: "opacus" hooks, "func" (vmap of torch.func) or "layers" (a rule for each kind of layer); all
            compute the same gradients.
        chunk: records whose gradients are in memory at once, at most 256.
    """

    batch: int
    steps: int
    multiplier: float
    clip: float
    clipping: Clipping
    rate: float
    momentum: float
    decay: bool = False
    views: int = 1
    augmentation: AugmentationName = "affine"
    average: float = 0.0
    warm_up: WarmUp = "mean"
    gradients: Literal["opacus", "func", "layers"] = "opacus"
    chunk: int = MOST_CHUNK
    falls: tuple[tuple[float, float], ...] = ()
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "batch", "steps", "views")
        validate.positive(self, "rate")
        validate.at_least(self, 0, "multiplier", "momentum", "average", "weight_decay")
        validate.below(self, 1, "momentum", "average")
        validate.between(self, LEAST_CLIP, LARGEST_CLIP, "clip")
        validate.between(self, 1, MOST_CHUNK, "chunk")

    def parameters(self, records: int) -> DpSgdParameters:
        """Return the mechanism's parameters for this many private records, before calibration."""
        return DpSgdParameters.of(self.batch, records, self.steps, self.multiplier)

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of step `step` (from 0) out of `steps`."""
        fallen = math.prod(factor for share, factor in self.falls if step >= share * steps)
        return self.rate * fallen * (1 - step / steps if self.decay else 1.0)
