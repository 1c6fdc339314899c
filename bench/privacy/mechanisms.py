"""Mechanisms that the methods share: bounded rows with Gaussian noise, and randomised response.

The output of a mechanism may be released; its input may not. `bench.privacy.noise` has the Gaussian and the Laplace
mechanism with their draws and precision, `bench.privacy.counts` those for votes and other counts.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from bench.errors import BenchError
from bench.privacy.events import check_response_epsilon
from bench.privacy.noise import LARGEST_SCALE, SMALLEST_SCALE, Noise, Source


def normalise_rows(grads: Tensor, bound: float, h: float = 1e-4) -> Tensor:
    """Return bound * g / (||g|| + h) for each row g (DPSD and DPDFD, normalisation step).

    Args:
        grads: (n, c), any float dtype.
        bound: B in DPSD, C in DPDFD; > 0, in gradient units.
        h: > 0, a regulariser: rows with norms far below h stay short.

    Returns:
        (n, c), same dtype and device.

    Guarantees:
        Each row's norm is strictly below `bound`, rounding included.
        A row with NaN or inf becomes zero.
        The stack of rows, and their sum, have L2 sensitivity below `2 * bound` for one replaced row.

    Raises:
        BenchError: `bound` or `h` is outside [2^-100, 2^100].
    """
    _require_positive("bound", bound)
    _require_positive("h", h)
    shrink = 1 - 2 * torch.finfo(grads.dtype).eps
    norms = _norms(grads)
    return _scaled(grads, bound * torch.minimum(1 / (norms + h), shrink / norms))


def clip_rows(grads: Tensor, bound: float) -> Tensor:
    """Scale each row of `grads` down to L2 norm at most `bound`; others are unchanged (Abadi et al. 2016, Alg. 1).

    Args:
        grads: (n, p), one row per example, any float dtype.
        bound: > 0, in gradient units.

    Returns:
        (n, p), same dtype and device.

    Guarantees:
        Each row's norm is at most `bound`, up to one machine epsilon of the dtype.
        A row with NaN or inf becomes zero, so that one record cannot spoil the sum.
        The sum over rows has L2 sensitivity `bound` for an added or removed row, `2 * bound` for a replaced one.

    Raises:
        BenchError: `bound` is outside [2^-100, 2^100].
    """
    _require_positive("bound", bound)
    return _scaled(grads, (bound / _norms(grads)).clamp(max=1.0))


def keep_top_k(grads: Tensor, k: int, by: Literal["magnitude", "value"]) -> Tensor:
    """Zero all except k entries of each row: those of largest magnitude, or of largest value.

    Exactly k entries are kept, also if there are ties. The choice of entries costs no privacy only if noise is then
    added to all coordinates: noise on only the kept ones would reveal which they are.

    Args:
        grads: (n, c).
        k: in [1, c].
        by: order of the entries.

    Returns:
        (n, c), same dtype and device.

    Raises:
        BenchError: `k` is outside [1, c], or `by` is unknown.
    """
    if by not in ("magnitude", "value"):
        raise BenchError(f"top-k is by '{by}'; expected 'magnitude' or 'value'")
    if not 1 <= k <= grads.shape[1]:
        raise BenchError(f"top-k keeps {k} of {grads.shape[1]} entries; expected 1 to {grads.shape[1]}")
    kept = (grads.abs() if by == "magnitude" else grads).topk(k, dim=1).indices
    return torch.zeros_like(grads).scatter(1, kept, grads.gather(1, kept))


def gaussian_rows(values: Tensor, std: float, source: Source) -> Tensor:
    """Apply the Gaussian mechanism to every row: N(0, std^2) on every coordinate, including zeros (DPSD, data mode).

    For rows of norm at most B the noise multiplier is std / (2 B) if one row is replaced, and std / (2 B sqrt(n)) if
    one private record may change all n rows.

    Args:
        values: (n, c), float32 or float64.
        std: >= 0, in the units of `values`; 0 adds no noise and gives no protection.

    Returns:
        (n, c), same dtype and device.

    Raises:
        BenchError: a std, a dtype or values outside the range that floating point can protect (`bench.privacy.noise`).
    """
    return Noise.of(source).gaussian(values, std)


def gaussian_shared_mean(rows: Tensor, std: float, source: Source) -> Tensor:
    """Apply the Gaussian mechanism to the sum of the rows, divided by the public n (DPDFD, Alg. 1, line 9).

    (sum of the rows + one draw of N(0, std^2 I)) / n. For rows of norm at most B the noise multiplier is std / (2 B) if
    one row is replaced, and std / (2 B n) if one private record may change all n rows.

    Args:
        rows: (n, c), n >= 1, any float dtype; summed in float64.
        std: >= 0, in the units of `rows`, before the division by n.

    Returns:
        (c,), same dtype and device.

    Raises:
        BenchError: a std that `bench.privacy.noise` refuses, or no rows.
    """
    if len(rows) == 0:
        raise BenchError("a noisy mean needs at least one row, got none")
    return (Noise.of(source).gaussian(rows.double().sum(0), std) / len(rows)).to(rows.dtype)


def randomised_response(labels: Tensor, candidates: Tensor, epsilon: float, source: Source) -> Tensor:
    """Apply k-ary randomised response to each label: epsilon-DP (delta 0) for a replaced label.

    A label among its candidates is kept with probability e^epsilon / (e^epsilon + k - 1) and otherwise replaced by one
    of the other k - 1, uniformly; for a label outside them the response is uniform over the k candidates (DPSD, Alg. 2;
    DP-DFD). No probability ratio between two labels exceeds e^epsilon. The candidates must not depend on the private
    data.

    Args:
        labels: (n,) int64.
        candidates: (n, k) int64, k >= 1, distinct within a row.
        epsilon: >= 0; infinity keeps every label that is among its candidates.

    Returns:
        (n,) int64 on the labels' device.

    Raises:
        BenchError: `flip_probability` refuses the `epsilon`.
        ValueError: shapes that do not match, or a row with a candidate twice.
    """
    noise = Noise.of(source)
    labels = noise.entering("response", labels, epsilon)
    inside, position = _located(labels, candidates)
    n, k = candidates.shape
    flip = noise.chance(flip_probability(epsilon, k), n).to(labels.device)
    shift = noise.integers(1, max(k, 2), n).to(labels.device)
    anywhere = noise.integers(0, k, n).to(labels.device)
    answer = torch.where(inside, torch.where(flip, (position + shift) % k, position), anywhere)
    return noise.released(candidates.gather(1, answer[:, None])[:, 0])


def selective_response(labels: Tensor, allowed: Tensor, epsilon: float, source: Source) -> Tensor:
    """Apply randomised response with a number k of candidates per row: epsilon-DP (delta 0) for a replaced label.

    DP-DFD's selective randomised response (Alg. 1, lines 8-11) with one-hot responses: a label among its row's
    candidates is kept with probability e^epsilon / (e^epsilon + k - 1), every other candidate has 1 / (e^epsilon + k -
    1); for a label outside them the response is uniform over the k candidates. No probability ratio between two labels
    exceeds e^epsilon. The candidates must not depend on the private data. This function does not synchronise with the
    device.

    Args:
        labels: (n,) int64 in [0, c).
        allowed: (n, c) bool, the candidates. A row with one candidate returns it, and a row without any returns class
            0: neither reveals anything about the label.
        epsilon: >= 0; infinity keeps every label that is a candidate.

    Returns:
        (n,) int64 on the labels' device.

    Raises:
        BenchError: `flip_probability` refuses the `epsilon`.
        ValueError: shapes that do not match, or `allowed` not of type bool.
    """
    if allowed.ndim != 2 or allowed.dtype != torch.bool or labels.shape != allowed.shape[:1]:
        given = f"{tuple(labels.shape)} and {tuple(allowed.shape)} of {allowed.dtype}"
        raise ValueError(f"expected labels (n,) and allowed (n, c) of bool, got {given}")
    noise = Noise.of(source)
    labels = noise.entering("response", labels, epsilon)
    own = labels[:, None]
    inside, k = allowed.gather(1, own)[:, 0], allowed.sum(1)
    flip = noise.chance(flip_probability(epsilon, k), len(labels)).to(labels.device)
    others = allowed.scatter(1, own, False)
    choices = others.sum(1)
    rank = noise.bits(len(labels)).to(labels.device) % choices.clamp_min(1)
    other = (others & (others.cumsum(1) == rank[:, None] + 1)).int().argmax(1)
    return noise.released(torch.where(inside & (~flip | (choices == 0)), labels, other))


def randomised_response_as_printed(
    labels: Tensor, candidates: Tensor, classes: int, epsilon: float, source: Source
) -> Tensor:
    """Apply DPSD's Eq. 5 as published, for audits only: it satisfies no finite epsilon.

    A label among its candidates goes through randomised response over all c classes; for a label outside them the
    response is uniform over the k candidates. A response outside the candidates therefore proves that the label was
    among them.

    Args:
        labels: (n,) int64 in [0, classes).
        candidates: (n, k) int64 in [0, classes), distinct within a row.
        classes: c >= 2.
        epsilon: >= 0.

    Returns:
        (n,) int64 on the labels' device.

    Raises:
        BenchError: `flip_probability` refuses the `epsilon`.
        ValueError: shapes that do not match, or a row with a candidate twice.
    """
    noise = Noise.of(source)
    inside, _ = _located(labels, candidates)
    n, k = candidates.shape
    flip = noise.chance(flip_probability(epsilon, classes), n).to(labels.device)
    shift = noise.integers(1, max(classes, 2), n).to(labels.device)
    anywhere = noise.integers(0, k, n).to(labels.device)
    over_all = torch.where(flip, (labels + shift) % classes, labels)
    return noise.released(torch.where(inside, over_all, candidates.gather(1, anywhere[:, None])[:, 0]))


def flip_probability(epsilon: float, choices: int | Tensor) -> Tensor:
    """Return (k - 1) / (e^epsilon + k - 1), the probability that a response over k choices changes its label; float64.

    Args:
        epsilon: >= 0, or infinity.
        choices: k >= 1, or a tensor of them.

    Raises:
        BenchError: `events.check_response_epsilon` refuses the epsilon; a tensor of choices is checked as two choices.
    """
    check_response_epsilon(epsilon, 2 if isinstance(choices, Tensor) else choices)
    others = (torch.as_tensor(choices).double() - 1).clamp_min(0) * math.exp(-epsilon)
    return others / (1 + others)


def _norms(grads: Tensor) -> Tensor:
    return torch.linalg.vector_norm(grads, dim=1, keepdim=True, dtype=torch.float64)


def _scaled(grads: Tensor, scale: Tensor) -> Tensor:
    """Return rows times `scale` (n, 1), computed in float64; rows with a non-finite value become zero."""
    finite = grads.isfinite().all(dim=1, keepdim=True)
    return torch.where(finite, (grads.double() * scale).to(grads.dtype), torch.zeros_like(grads))


def _located(labels: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) whether each label is among its candidates, and its position there."""
    if candidates.ndim != 2 or candidates.shape[1] < 1 or labels.shape != candidates.shape[:1]:
        shapes = f"{tuple(labels.shape)} and {tuple(candidates.shape)}"
        raise ValueError(f"expected labels (n,) and candidates (n, k >= 1), got {shapes}")
    ordered = candidates.sort(dim=1).values
    distinct = (ordered[:, 1:] != ordered[:, :-1]).all()
    if candidates.device.type != "cpu":
        torch._assert_async(distinct)
    elif not distinct:
        raise ValueError("a row of candidates names a class twice, which would break the probabilities")
    hits = candidates == labels[:, None]
    return hits.any(dim=1), hits.int().argmax(dim=1)


def _require_positive(name: str, given: float) -> None:
    if not SMALLEST_SCALE <= given <= LARGEST_SCALE:
        raise BenchError(
            f"{name} is {given:g}; expected a number from {SMALLEST_SCALE:.2g} to {LARGEST_SCALE:.2g}, beyond which "
            "floating point cannot keep a bound"
        )
