"""Moment tracing: score a record by its inner product with the excess of the released moments over the population's.

An attack on methods that release noisy moments of the private records, or draw images from them (`class-moments`,
`dp-merf`). Dwork, Smith, Steinke, Ullman, Vadhan, "Robust Traceability from Trace Amounts", FOCS 2015, attack released
means; the second moment extends it. A member contributes 1/n of itself to every moment, so that the score of members
exceeds that of others by about D/n, with a standard deviation of about sqrt(D (1/n + 1/m)): D moments, n private
records, m released images. Noise of a private mechanism adds to 1/m.

1. Map all images to whitened principal components of the attacker's images. Scale rows whose norm exceeds the median
   norm of the attacker's rows to that norm, as mechanisms clip.
2. Let a be the mean of the released rows minus that of the attacker's rows, and A the same for their second moments.
3. The score of a suspect x is <a, x> + <A, x x^T> / 2: the first terms of a ratio of densities around the population.

Differs from the paper: real images in whitened components instead of binary attributes, released images instead of the
moments themselves, a second moment next to the mean, and no threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, ReleasedImages
from bench.config import Size
from bench.membership.neighbours import TINY, Components
from bench.validate import at_least


@dataclass(frozen=True)
class MomentTracing:
    """Membership by the moments of released images."""

    version: ClassVar[int] = 1
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "this project; Dwork et al., FOCS 2015"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "samples"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": {"samples": 60}, "quick": {"samples": 5000}}

    samples: Size[int] = 50_000
    """m, number of released images from which the moments are computed."""
    components: int = 64
    """Largest number of whitened principal components; at most one per five of the attacker's images."""
    moments: Literal["first", "second"] = "second"
    """first = the mean only; second = the mean and the second moment."""

    def __post_init__(self) -> None:
        at_least(self, 1, "samples", "components")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: too few images of the attacker."""
        return None if aux >= 10 else f"{aux} auxiliary images; expected at least 10"

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 to 3; return a float64 score per suspect."""
        drawn, aux = released.samples(self.samples, ctx.generator("moment-tracing")), knowledge.population[0]
        whiten = Components.of(aux, self.components).whiten
        x, ours, theirs = whiten(knowledge.images), whiten(drawn), whiten(aux)
        most = theirs.norm(dim=1).median()
        x, ours, theirs = (clipped(rows, most) for rows in (x, ours, theirs))  # 1
        scores = x @ (ours.mean(0) - theirs.mean(0))  # 2, 3
        if self.moments == "second":
            excess = second_moment(ours) - second_moment(theirs)
            scores = scores + ((x @ excess) * x).sum(1) / 2
        return MembershipResult(scores)


def clipped(rows: Tensor, most: Tensor) -> Tensor:
    """Scale the rows of (n, d) whose norm exceeds `most` to that norm."""
    return rows * (most / rows.norm(dim=1, keepdim=True).clamp_min(TINY)).clamp_max(1)


def second_moment(rows: Tensor) -> Tensor:
    """Return the (d, d) mean of x x^T over the rows of (n, d)."""
    return torch.mm(rows.T, rows) / len(rows)
