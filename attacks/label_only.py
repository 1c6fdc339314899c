"""Label-only: predict that records whose predicted class is robust to shifts and noise are members.

Choquette-Choo, Tramer, Carlini, Papernot, "Label-Only Membership Inference Attacks", ICML 2021 (arXiv 2007.14321),
sections 4.1 (translations) and 4.3 (noise). f the target's class, (x, y) a suspect with its true class.

1. Query f(x), f of all translations of x by |dx| + |dy| <= d pixels, edges repeated, and f(x + N(0, s^2)).
2. The target classifies its training records correctly more often: the more robust, the likelier a member.

Differs from the paper:
- The score is [f(x) = y] + the share of correct translations + the share of correct noisy copies. The paper trains a
  classifier on the vectors of correct and wrong predictions for a shadow model's records; a sum needs no shadow model.
- All translations of 1 to d pixels, 24 for d = 3; the paper has those of exactly d pixels, 4d + 1 with the image.
- Noise of `levels` standard deviations, s, 2s, ..., with `noises` copies each, 41 queries per suspect in total; the
  paper has 2,500 copies with s = 0.025, as a cheap substitute for the distance to the boundary. The noise is the same
  for all suspects, and images stay in [0, 1].
- The distance itself, by HopSkipJump, is omitted: thousands of queries per suspect for a similar ranking. So are
  rotations, which change some digits into others.
- Every result also has the AUC of the gap attack, whose score is [f(x) = y], on the same records (`gap_auc`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Size
from bench.validate import at_least, positive


@dataclass(frozen=True)
class LabelOnly:
    """Membership by the robustness of correct predictions; trains no network."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Choquette-Choo et al., ICML 2021, arXiv 2007.14321, sections 4.1, 4.3"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "label"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {}

    d: int = 3
    """Largest translation |dx| + |dy| of a suspect, in pixels."""
    s: float = 0.05
    """Smallest standard deviation of the noise, for pixels in [0, 1]."""
    levels: int = 4
    """Number of standard deviations of the noise: s, 2 s, 3 s and so on."""
    noises: int = 4
    """Noisy copies per standard deviation."""
    batch: Size[int] = 512
    """Images per query to the target; affects rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "d", "levels", "noises", "batch")
        positive(self, "s")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return None: the attack needs only the target."""
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 and 2; return a float64 score from 0 to 3 per suspect."""
        x, y = knowledge.images, knowledge.labels
        total = 2 * self.d * (self.d + 1) + self.levels * self.noises + 1
        with ctx.track("label-only: querying", total) as advance:

            def share(copies: Iterator[Tensor]) -> Tensor:
                correct = []
                for copy in copies:
                    predicted = torch.cat([target.labels(part) for part in copy.split(self.batch)])
                    correct.append((predicted == y).double())
                    advance(1)
                return torch.stack(correct).mean(0)

            return MembershipResult(share(iter([x])) + share(translations(x, self.d)) + share(self._noisy(x, ctx)))

    def _noisy(self, x: Tensor, ctx: Context) -> Iterator[Tensor]:
        """Yield (n, c, h, w) copies in [0, 1], with the same noise on every image."""
        rng = ctx.generator("label-only")
        for level in range(1, self.levels + 1):
            for _ in range(self.noises):
                noise = torch.randn(x.shape[1:], generator=rng, device=x.device)
                yield (x + level * self.s * noise).clamp(0, 1)


def translations(images: Tensor, d: int) -> Iterator[Tensor]:
    """Yield the images shifted by each of the 2 d (d + 1) (dx, dy) with 1 <= |dx| + |dy| <= d, edges repeated."""
    height, width = images.shape[-2:]
    framed = pad(images, (d, d, d, d), mode="replicate")
    for y in range(-d, d + 1):
        for x in range(-d, d + 1):
            if 1 <= abs(x) + abs(y) <= d:
                yield framed[..., d + y : d + y + height, d + x : d + x + width]
