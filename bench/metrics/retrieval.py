"""Gain of an attack over retrieval, the baseline that selects among the attacker's own images.

An attack on people counts as inversion only if its images show the target class more often than public images that the
same target prefers: those are real faces of other people, and reveal nothing private. Classes are the unit of the test,
as in `bench.metrics.power`: a_c and b_c are the shares of images aimed at class c that the evaluator assigns to c, for
the attack and for retrieval. If neither is better, the sign of each d_c = a_c - b_c is a fair coin, provided that both
have the same number of images: shares of one image and of a hundred with equal means have skewed differences. So the
test draws, by a seed, as many of a class's images as the smaller side has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

FLIPS = 20_000
GATED_FROM = 50
"""Smallest number of classes for the sign-flip test. With 62 classes it detects a gain of 20 percentage points, with
201 classes one of 11, but with 10 classes only one of about 65."""
_SEED = 2020
_TIE = 1e-12


@dataclass(frozen=True)
class RetrievalGain:
    """Gain of an attack over retrieval, with its interval and test.

    Attributes:
        gain: mean of d_c over classes, in [-1, 1], computed from all images.
        low, high: its interval, by a bootstrap over classes.
        p: p-value of the one-sided sign-flip test over classes, with equal numbers of images and 20,000 seeded flips,
            (as large + 1) / (20,000 + 1); None with fewer than `GATED_FROM` classes, which are too few.
    """

    gain: float
    low: float
    high: float
    p: float | None


def gain_over_retrieval(attack: Tensor, retrieval: Tensor, tail: float = 0.025) -> RetrievalGain:
    """Compute the gain of an attack over retrieval.

    Args:
        attack, retrieval: (c, k) counts of images, row the target class, column the evaluator's class; k >= c >= 2, no
            empty row. The first c columns are the target classes.
        tail: error probability of each limit of the interval.

    Raises:
        ValueError: counts of different shapes, or a class that is not the target of any image.
    """
    if attack.shape != retrieval.shape or attack.ndim != 2 or len(attack) < 2:
        raise ValueError(f"counts of {tuple(attack.shape)} and {tuple(retrieval.shape)}: expected (c, k) twice, c >= 2")
    (found, number), (public, retrieved) = _counts(attack), _counts(retrieval)
    gains = found / number - public / retrieved
    rng = np.random.RandomState(_SEED)
    drawn = gains[rng.randint(len(gains), size=(FLIPS, len(gains)))].mean(1)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    p = None
    if len(gains) >= GATED_FROM:
        each = np.minimum(number, retrieved)
        p = sign_flip_p((_draw_hits(found, number, each, rng) - _draw_hits(public, retrieved, each, rng)) / each)
    return RetrievalGain(float(gains.mean()), float(low), float(high), p)


def sign_flip_p(gains: NDArray[np.float64]) -> float:
    """Return the one-sided p-value of the (c,) gains for a mean above 0, by 20,000 draws of random signs."""
    signs = np.random.RandomState(_SEED).randint(0, 2, size=(FLIPS, len(gains))) * 2 - 1
    as_large = int(((signs * gains).mean(1) >= gains.mean() - _TIE).sum())
    return (as_large + 1) / (FLIPS + 1)


def _draw_hits(
    found: NDArray[np.int64], number: NDArray[np.int64], each: NDArray[np.int64], rng: np.random.RandomState
) -> NDArray[np.int64]:
    """Return (c,): for each class, the number of hits among `each` images drawn from its `number` images."""
    return rng.hypergeometric(found, number - found, each)


def _counts(counts: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (c,) numbers of each class's images: those that show the class, and all."""
    found = counts.detach().cpu().numpy().astype(np.int64)
    number: NDArray[np.int64] = found.sum(1)
    if (number == 0).any():
        raise ValueError(f"no image has the target class {int((number == 0).argmax())}")
    return np.diag(found), number
