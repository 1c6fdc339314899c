"""How a network is trained by DP-SGD: public, and the same whatever the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bench import validate
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP, MOST_CHUNK, Clipping


@dataclass(frozen=True)
class DpSgdSettings:
    """The letters are those of `dp_sgd.py`.

    Attributes:
        batch: B, records expected in a batch; at most N are.
        steps: T.
        multiplier: z, used where no budget determines it; 0 = no noise.
        clip: C, in gradient units.
        clipping: "flat" over all parameters jointly, or "layer": each of the m layers clipped to C / sqrt(m).
        rate, momentum: of SGD.
        decay: the rate falls to 0 linearly.
        falls: (share of the steps, factor) pairs: from that share on the rate is multiplied by that factor.
        nesterov, weight_decay: of SGD.
        views: jittered copies of each record, whose mean gradient is clipped (De et al. 2022); 1 = the record itself.
        average: decay of an exponential average of the weights, which is returned; 0 = the last weights.
        gradients: "opacus" hooks or "func", torch.func's vmap. They give the same.
        chunk: records whose gradients are held in memory at once, at most 256.
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
    average: float = 0.0
    gradients: Literal["opacus", "func"] = "opacus"
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
        """What enters the mechanism, for so many private records, before anything is calibrated."""
        return DpSgdParameters.of(self.batch, records, self.steps, self.multiplier)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, from 0, of so many."""
        fallen = math.prod(factor for share, factor in self.falls if step >= share * steps)
        return self.rate * fallen * (1 - step / steps if self.decay else 1.0)
