"""Random guess: random images of the attacker, returned for every class. The baseline attack of every board.

Reference: none. This attack does not query the target, so its score comes only from the data distribution. Another
attack succeeds only as far as its score exceeds this one.

1. Draw `draws` x `images_per_class` of the attacker's images for every class, uniformly, with replacement.

Differs from the paper: not applicable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, AttackResult, Context, Target
from bench.config import Size
from bench.validate import at_least


@dataclass(frozen=True)
class RandomGuess:
    """Return random images of the attacker; the same for every target."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "the attacker's own images"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "label"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = True
    own: ClassVar[bool] = True
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"draws": 2, "images_per_class": 2},
        "quick": {"images_per_class": 4},
    }

    draws: Size[int] = 5
    """Independent draws of all images."""
    images_per_class: Size[int] = 20
    """Images for each class in each draw."""

    def __post_init__(self) -> None:
        at_least(self, 1, "draws", "images_per_class")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: no auxiliary images."""
        return None if aux > 0 else "0 auxiliary images; expected at least 1 to draw from"

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Draw `draws` x `images_per_class` images for every class, without querying the target."""
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        targets = per_draw.repeat(self.draws)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        rng = ctx.generator("random-guess")
        return AttackResult(
            aux[torch.randint(len(aux), (len(targets),), generator=rng, device=ctx.device)], targets, draws
        )
