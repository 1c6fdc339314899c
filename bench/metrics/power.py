"""The check before a protection claim: the attack must succeed on the teacher and fail on a random network.

Reconstructions of one class are not independent: on a random network all of them may become the same digit, so a
binomial test over images would be significant without any success. The unit of the test is therefore the class. The
statistic is the mean over target classes of the share of images that the evaluator assigns to the target. Under the
null hypothesis that the output does not depend on the target, target classes are exchangeable, and the p-value is the
share of permutations with a statistic at least as large.

Fewer than four classes have too few permutations for a p-value of 0.05, so no attack on them can pass. A test on single
images would be invalid: if all images of a class become one random label, for the teacher and for the random network,
binomial bounds on images report a working attack in 3 of 16 cases with two classes and in a fifth of those with three.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from torch import Tensor

from bench.core.verdict import SIGNIFICANCE

DRAWS = 20_000
"""Number of random permutations, if there are too many for all."""
_EXACT_UP_TO = 7
"""Number of classes up to which all permutations are used."""
FEWEST = 4
"""Number of classes below which no attack on classes can pass."""
_SEED = 2020
_TIE = 1e-12


@dataclass(frozen=True)
class Power:
    """Whether one attack is strong enough, for a data set and split, to be evidence about a defence.

    Attributes:
        passed: True if a failure of this attack on a student is evidence for the defence.
        p_teacher, p_random: permutation p-values; None with fewer than four classes.
        reason: explanation in a sentence.
    """

    passed: bool
    p_teacher: float | None
    p_random: float | None
    reason: str


def power(hits_teacher: Tensor, hits_random: Tensor, alpha: float = SIGNIFICANCE) -> Power:
    """Check that the attack beats chance on the undefended teacher, and not on a network with random weights.

    Args:
        hits_teacher, hits_random: (c, k) counts of reconstructions, row the target class, column the evaluator's class;
            k >= c >= 2, no empty row. The first c columns are the target classes.
        alpha: level of both tests, in (0, 1).

    Raises:
        ValueError: counts of a wrong shape, negative counts, or a class that is not the target of any reconstruction.
    """
    teacher, random = _checked_counts(hits_teacher), _checked_counts(hits_random)
    if teacher.shape != random.shape:
        raise ValueError(f"counts of {teacher.shape} and {random.shape}: expected the same classes")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha {alpha}: expected a number between 0 and 1")
    share_teacher, share_random = (float((np.diag(c) / c.sum(1)).mean()) for c in (teacher, random))
    if len(teacher) < FEWEST:
        reason = (
            f"{len(teacher)} classes are too few for a test whose unit is the class: {share_teacher:.1%} of the "
            f"teacher's reconstructions show their class, against {share_random:.1%} of a random network's."
        )
        return Power(False, None, None, reason)
    p_teacher, p_random = permutation_p(teacher), permutation_p(random)
    on_teacher = f"{share_teacher:.1%} of the teacher's reconstructions show their class (p = {p_teacher:.2g})"
    on_random = f"{share_random:.1%} of a random network's (p = {p_random:.2g})"
    if p_teacher > alpha:
        reason = f"The attack does not beat chance on the undefended teacher: {on_teacher}."
        return Power(False, p_teacher, p_random, reason)
    if p_random <= alpha:
        reason = f"The attack also beats chance on a network that knows nothing: {on_teacher}, and {on_random}."
        return Power(False, p_teacher, p_random, reason)
    return Power(True, p_teacher, p_random, f"The attack works: {on_teacher}, against {on_random}.")


def permutation_p(counts: np.ndarray) -> float:
    """Return the one-sided p-value of a permutation test of the share of hits, over the target classes.

    It uses all permutations for up to 7 classes; above that, 20,000 seeded draws, with one added to both counts.

    Args:
        counts: (c, k), row the target class, no empty row; columns as in `power`.
    """
    shares = counts / counts.sum(1, keepdims=True)
    c = len(shares)
    rows = np.arange(c)
    if c <= _EXACT_UP_TO:
        columns, extra = np.array(list(permutations(range(c)))), 0
    else:
        columns, extra = np.random.RandomState(_SEED).rand(DRAWS, c).argsort(1), 1
    null = shares[rows, columns].mean(1)
    as_large = int((null >= np.diag(shares).mean() - _TIE).sum())
    return (as_large + extra) / (len(columns) + extra)


def _checked_counts(hits: Tensor) -> np.ndarray:
    """Return (c, k) float64 counts. Raises ValueError as `power`."""
    counts = hits.detach().cpu().numpy().astype(np.float64)
    if counts.ndim != 2 or counts.shape[0] > counts.shape[1] or len(counts) < 2:
        raise ValueError(f"counts of shape {counts.shape}: expected (c, k) with k >= c >= 2")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError("a count is negative or not finite")
    if (counts.sum(1) == 0).any():
        raise ValueError(f"no image has the target class {int((counts.sum(1) == 0).argmax())}")
    return counts
