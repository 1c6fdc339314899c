"""Integer noise for integer counts, such as votes: the whole number nearest to an ideal Gaussian or Laplace draw.

Rounding is post-processing: count + round(X) = round(count + X) for a whole count, so that the release is one of the
Gaussian (or Laplace) mechanism of the same scale, and costs what that costs. Sum and noise are whole numbers, so that
nothing of the count can hide in low bits.

The draws are exact, not floating-point approximations. |round(X)| is the largest j with V < S_j, for V uniform in
[0, 1), S_0 = 1 and S_j = P(|X| >= j - 1/2) = 2 Phi(-(j - 1/2) / sigma), or exp(-(j - 1/2) / b). The first 62 bits of V
decide j in float64 unless V lies closer to some S_j than float64 can tell (2^-40 of it, where the functions are right
to 2^-43); then, about once in a billion draws, more bits of V are drawn and the S_j are taken to as many digits as it
needs. The sign is a fair coin. At scales above 2^30 neighbouring S_j differ by so little that more than one draw in a
thousand would need those digits, and from about 2^56 on float64 is no guide to j at all: such scales are refused.

To what is released, a whole number, an even draw from [-1/2, 1/2) is added that knows nothing of it: post-processing,
so that no reader of two equal counts prefers the first.
"""

from __future__ import annotations

from typing import Literal

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from bench.errors import BenchError
from bench.privacy.noise import SMALLEST_SCALE, Noise, Source

Law = Literal["laplace", "gaussian"]

FIRST_BITS, MORE_BITS = 62, 64
UNSURE = 2.0**-40
MOST_SCALE = 2.0**30
"""The largest scale, in counts, whose draws float64 decides but for one in a thousand."""


def require_count_scale(name: str, scale: float) -> None:
    """Refuse a scale of integer noise that cannot be drawn exactly in reasonable time; 0 is no noise.

    Callers that know the scale before anything is trained call this then; `noisy_counts` always does.

    Raises:
        BenchError: `scale` neither 0 nor from 2^-100 to 2^30.
    """
    if not (scale == 0 or SMALLEST_SCALE <= scale <= MOST_SCALE):
        raise BenchError(
            f"{name} is {scale:g}; expected 0, or a number from {SMALLEST_SCALE:.2g} to {MOST_SCALE:.2g}, beyond which "
            "whole numbers cannot be drawn exactly in float64: give a larger --epsilon, fewer queries, or less noise"
        )


def noisy_counts(counts: Tensor, law: Law, scale: float, source: Source) -> Tensor:
    """Counts with independent integer noise on every one, and a fraction that breaks ties.

    Args:
        counts: whole numbers below 2^52, any shape and device.
        law: of X: "gaussian", N(0, scale^2), or "laplace", density exp(-|x| / scale) / (2 scale).
        scale: sigma or b, in counts; 0 adds nothing and protects nothing.

    Returns:
        float64, same shape and device: whole numbers, each with its draw from [-1/2, 1/2), where there is noise.

    Raises:
        BenchError: a scale that `require_count_scale` refuses.
        RuntimeError: a count that is no whole number.
    """
    require_count_scale("the noise's scale in counts", scale)
    noise, wide = Noise.of(source), counts.double()
    torch._assert_async((wide == wide.round()).all(), "counts that get integer noise must be whole numbers")
    wide = noise.entering(law, wide, scale)
    if scale > 0:
        fraction = (noise.host.bits(counts.numel()) >> 43) * 2.0**-20 - 0.5
        drawn = rounded(law, scale, counts.numel(), noise.host)
        for part in (drawn, fraction):  # whole numbers first, whose sum is exact: the fraction is added to it alone
            wide = wide + part.view(counts.shape).to(counts.device)
    return noise.released(wide)


def rounded(law: Law, scale: float, count: int, noise: Noise) -> Tensor:
    """(count,) float64, whole: independent exact draws of round(X); on the CPU."""
    bits = noise.bits(count).cpu().numpy()
    first, size = bits >> 1, _sizes(bits >> 1, law, scale)
    for at in np.flatnonzero(~_sure(first, size, law, scale)):
        size[at] = _exactly(int(first[at]), int(size[at]), law, scale, noise)
    return torch.from_numpy(np.where(bits & 1, size, -size)).double()


def _sizes(first: NDArray[np.int64], law: Law, scale: float) -> NDArray[np.int64]:
    """j as float64 finds it, perhaps one too small or too large."""
    v = (first + 0.5) * 2.0**-FIRST_BITS
    beyond = -special.ndtri(v / 2) if law == "gaussian" else -np.log(v)
    return np.floor(scale * beyond + 0.5).astype(np.int64)


def _sure(first: NDArray[np.int64], size: NDArray[np.int64], law: Law, scale: float) -> NDArray[np.bool_]:
    """Whether [v, v + 2^-62) lies between S_(j+1) and S_j whatever the rounding of both."""
    low, high = first * 2.0**-FIRST_BITS, (first + 1) * 2.0**-FIRST_BITS
    above, below = _tail(size, law, scale), _tail(size + 1, law, scale)
    return (high <= above * (1 - UNSURE)) & (low >= below * (1 + UNSURE)) & (first > 0)


def _tail(j: NDArray[np.int64], law: Law, scale: float) -> NDArray[np.float64]:
    """S_j."""
    at = (j - 0.5) / scale
    tail = 2 * special.ndtr(-at) if law == "gaussian" else np.exp(-at)
    return np.where(j <= 0, 2.0, tail)


def _exactly(first: int, guess: int, law: Law, scale: float, noise: Noise) -> int:
    """j for V = first / 2^62 and as many more bits as it takes."""
    known = FIRST_BITS
    j = max(guess, 0)
    while True:
        more = noise.bits(2).tolist()
        first = (first << MORE_BITS) | ((more[0] >> 31) << 32) | (more[1] >> 31)
        known += MORE_BITS
        with mpmath.workprec(2 * known + 64):
            low, high = mpmath.mpf(first) / 2**known, mpmath.mpf(first + 1) / 2**known
            while j > 0 and low >= _exact_tail(j, law, scale):
                j -= 1
            while high <= _exact_tail(j + 1, law, scale):
                j += 1
            if low >= _exact_tail(j + 1, law, scale) and (j == 0 or high <= _exact_tail(j, law, scale)):
                return j


def _exact_tail(j: int, law: Law, scale: float) -> mpmath.mpf:
    at = (mpmath.mpf(2 * j - 1) / 2) / mpmath.mpf(scale)
    return mpmath.erfc(at / mpmath.sqrt(2)) if law == "gaussian" else mpmath.exp(-at)
