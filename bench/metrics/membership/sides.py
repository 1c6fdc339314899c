"""Split of scores into members and non-members, and random halves of either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench.seeds import derive

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Halves = tuple[Floats, Floats]


def sides(scores: Tensor, is_member: Tensor) -> tuple[Floats, Floats]:
    """Return the scores of members and of non-members, each ascending."""
    if scores.ndim != 1 or is_member.shape != scores.shape or str(is_member.dtype) != "torch.bool":
        raise ValueError(
            f"scores {tuple(scores.shape)} and is_member {tuple(is_member.shape)} of {is_member.dtype}: "
            "expected (n,) and (n,) of torch.bool"
        )
    if not scores.isfinite().all():
        raise ValueError("a score is NaN or infinite")
    values, member = scores.detach().cpu().double().numpy(), is_member.cpu().numpy()
    members, others = np.sort(values[member]), np.sort(values[~member])
    if min(len(members), len(others)) < 2:
        raise ValueError(f"{len(members)} members and {len(others)} non-members: expected at least 2 of each")
    return members, others


def halves(ascending: Floats, seed: int, name: str) -> Halves:
    """Return two random halves, each ascending; the second has one more if the number is odd."""
    order = np.random.default_rng(derive(seed, "membership-halves", name)).permutation(len(ascending))
    half = len(ascending) // 2
    return np.sort(ascending[order[:half]]), np.sort(ascending[order[half:]])


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless `confidence` is in (0, 1)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: expected a number between 0 and 1")
