"""By how much an attack beats what a choice among the attacker's own images scores, class by class.

An attack on people counts as inversion only where its images show their class more often than public images do that
the same target prefers: those are real faces of other people, and nothing private leaves with them. Classes are the
unit of the test, as in `bench.metrics.power`: a_c and b_c are the shares of images aimed at class c that the evaluator
takes for c, of the attack's and of the retrieval's. If neither is better, the sign of each d_c = a_c - b_c is a fair
coin, where both are of as many images: a share of one image and a share of a hundred, equal on average, differ upwards
less far and more often. So the test takes as many of a class's images as the smaller side has, drawn by a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench.metrics.levels import ALPHA

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ALPHA", "AboveFloor", "above_floor", "sign_flip_p"]

FLIPS = 20_000
GATED_FROM = 50
"""Classes from which the test decides: 62 detect a gain of 20 points, 201 one of 11, 10 only one of about 65."""
_SEED = 2020
_TIE = 1e-12


@dataclass(frozen=True)
class AboveFloor:
    """How far an attack lies above retrieval.

    Attributes:
        gain: mean of d_c over classes, in [-1, 1]; of all images.
        low, high: its 95 % interval, by a bootstrap over classes.
        p: of the one-sided sign-flip test over classes, of equally many images, 20,000 seeded flips, one added to both
            counts; None with fewer than `GATED_FROM` classes, which are too few for it to decide anything.
    """

    gain: float
    low: float
    high: float
    p: float | None


def above_floor(attack: Tensor, floor: Tensor) -> AboveFloor:
    """The gain of an attack over retrieval.

    Args:
        attack, floor: (c, c) counts of images, row the class aimed at, column the class the evaluator sees; c >= 2,
            no empty row.

    Raises:
        ValueError: counts of different shapes, or a class that nothing was aimed at.
    """
    if attack.shape != floor.shape or attack.ndim != 2 or len(attack) < 2:
        raise ValueError(f"counts of {tuple(attack.shape)} and {tuple(floor.shape)}: expected (c, c) twice, c >= 2")
    (found, number), (public, retrieved) = _counts(attack), _counts(floor)
    gains = found / number - public / retrieved
    rng = np.random.RandomState(_SEED)
    drawn = gains[rng.randint(len(gains), size=(FLIPS, len(gains)))].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    p = None
    if len(gains) >= GATED_FROM:
        each = np.minimum(number, retrieved)
        p = sign_flip_p((_among(found, number, each, rng) - _among(public, retrieved, each, rng)) / each)
    return AboveFloor(float(gains.mean()), float(low), float(high), p)


def sign_flip_p(gains: NDArray[np.float64]) -> float:
    """One-sided p-value that the mean of (c,) gains is above 0, by random signs."""
    signs = np.random.RandomState(_SEED).randint(0, 2, size=(FLIPS, len(gains))) * 2 - 1
    as_large = int(((signs * gains).mean(1) >= gains.mean() - _TIE).sum())
    return (as_large + 1) / (FLIPS + 1)


def _among(
    found: NDArray[np.int64], number: NDArray[np.int64], each: NDArray[np.int64], rng: np.random.RandomState
) -> NDArray[np.int64]:
    """(c,) of each class's images that show it, among so many drawn of them."""
    return rng.hypergeometric(found, number - found, each)


def _counts(counts: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(c,) of each class's images: those that show it, and all."""
    found = counts.detach().cpu().numpy().astype(np.int64)
    number: NDArray[np.int64] = found.sum(1)
    if (number == 0).any():
        raise ValueError(f"nothing was aimed at class {int((number == 0).argmax())}")
    return np.diag(found), number
