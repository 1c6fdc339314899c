"""Label-only: records whose class survives being shifted and blurred by noise are called members.

Choquette-Choo, Tramer, Carlini, Papernot, "Label-Only Membership Inference Attacks", ICML 2021 (arXiv 2007.14321),
sections 4.1 (translations) and 4.3 (noise). f the target's class, (x, y) a suspect with its true class.

1. Ask for f(x), for f of all translations of x by |dx| + |dy| <= d pixels, edges repeated, and for f(x + N(0, s^2)).
2. A record that the target was trained on is right more often: the more robustly right, the likelier a member.

Differs from the paper:
- The score is [f(x) = y] + the share of right translations + the share of right noisy copies. The paper trains a
  classifier on the vector of right and wrong of a shadow model's records; a sum needs no model that is like the target.
- Translations of 1 to d pixels together, 24 for d = 3; the paper's have one d, 4d + 1 with the image.
- Noise of `levels` standard deviations, s, 2s, ..., with `noises` copies each, 41 questions a suspect in all; the paper
  has 2,500 copies of s = 0.025, as a cheap stand-in for the distance to the boundary. The noise is the same for all
  suspects, and images stay in [0, 1].
- The distance itself, by HopSkipJump, is left out: thousands of questions a suspect for a similar ranking. So are
  rotations, which turn some digits into others.
- Beside its AUC every row has that of the gap attack, [f(x) = y] alone (`gap_auc`), on the same records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Size
from bench.validate import at_least, positive


@dataclass(frozen=True)
class LabelOnly:
    """How robustly right the target is, and nothing to learn."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Choquette-Choo et al., ICML 2021, arXiv 2007.14321, sections 4.1, 4.3"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "label"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {}

    d: int = 3
    """Most pixels of a translation, |dx| + |dy|."""
    s: float = 0.05
    """Smallest standard deviation of the noise, pixels in [0, 1]."""
    levels: int = 4
    """Standard deviations s, 2s, ... of the noise."""
    noises: int = 4
    """Noisy copies of each."""
    batch: Size[int] = 512
    """Images put to the target at once; changes rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "d", "levels", "noises", "batch")
        positive(self, "s")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """None: nothing but the target is needed."""
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Steps 1 and 2 for every suspect, float64 from 0 to 3."""
        x, y = knowledge.images, knowledge.labels
        total = 2 * self.d * (self.d + 1) + self.levels * self.noises + 1
        with ctx.track("label-only: asking", total) as advance:

            def share(copies: Iterator[Tensor]) -> Tensor:
                rights = []
                for copy in copies:
                    rights.append(self._right(target, copy, y))
                    advance(1)
                return torch.stack(rights).mean(0)

            right = share(iter([x]))
            return MembershipResult(right + share(translations(x, self.d)) + share(self._noisy(x, ctx)))

    def _noisy(self, x: Tensor, ctx: Context) -> Iterator[Tensor]:
        """(n, c, h, w) copies in [0, 1], with the same noise on every image."""
        rng = ctx.generator("label-only")
        for level in range(1, self.levels + 1):
            for _ in range(self.noises):
                noise = torch.randn(x.shape[1:], generator=rng, device=x.device)
                yield (x + level * self.s * noise).clamp(0, 1)

    def _right(self, target: Target, images: Tensor, labels: Tensor) -> Tensor:
        """(n,) float64, 1 where the target names the true class."""
        return (torch.cat([target.labels(part) for part in images.split(self.batch)]) == labels).double()


def translations(images: Tensor, d: int) -> Iterator[Tensor]:
    """(n, c, h, w) images moved by every (dx, dy) with 1 <= |dx| + |dy| <= d, edges repeated: 2 d (d + 1) of them."""
    height, width = images.shape[-2:]
    framed = pad(images, (d, d, d, d), mode="replicate")
    for y in range(-d, d + 1):
        for x in range(-d, d + 1):
            if 1 <= abs(x) + abs(y) <= d:
                yield framed[..., d + y : d + y + height, d + x : d + x + width]
