"""Random guess: the attacker's own images, drawn at random and put down to every class. The floor of every board.

Reference: none. An attack that asks its target nothing has learnt nothing of it; whatever it scores, knowing the data's
distribution scores, and an attack is worth as much as it lies above.

1. Draw `draws` x `images_per_class` of the attacker's images for every class, uniformly, with replacement.

Differs from the paper: there is no paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, AttackResult, Context, Target
from bench.config import Size
from bench.validate import at_least


@dataclass(frozen=True)
class RandomGuess:
    """Brings back what the attacker has; the same for every target."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "the attacker's own images"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "label"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = True
    own: ClassVar[bool] = True
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
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
        """A reason not to run: nothing to draw from."""
        return None if aux > 0 else "0 auxiliary images: a random guess is one of them"

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Bring back `draws` x `images_per_class` images for every class, of which the target is asked nothing."""
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        targets = per_draw.repeat(self.draws)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        rng = ctx.generator("random-guess")
        return AttackResult(
            aux[torch.randint(len(aux), (len(targets),), generator=rng, device=ctx.device)], targets, draws
        )
