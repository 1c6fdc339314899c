"""The Gaussian and the Laplace mechanism for integer counts, such as votes: an ideal draw, rounded to an integer.

Rounding is post-processing: count + round(X) = round(count + X) for an integer count. The release is therefore one of
the Gaussian (or Laplace) mechanism of the same scale, with the same privacy cost. Sum and noise are integers, so the
low bits reveal nothing about the count.

The draws are exact, not floating-point approximations. |round(X)| is the largest j with V < S_j, for V uniform in [0,
1), S_0 = 1 and S_j = P(|X| >= j - 1/2) = 2 Phi(-(j - 1/2) / sigma), or exp(-(j - 1/2) / b). The first 62 bits of V
determine j in float64 unless V is closer to some S_j than float64 can resolve (a relative 2^-40, where the functions
are accurate to 2^-43). Then, about once in a billion draws, more bits of V are drawn and the S_j are computed with as
many digits as needed. The sign is a fair coin. At scales above 2^30 neighbouring S_j differ by so little that more than
one draw in a thousand would need those digits, and from about 2^56 on float64 cannot determine j at all: such scales
are refused.

An independent uniform draw from [-1/2, 1/2) is added to the released integer: post-processing, so that ties between
equal counts are broken at random.
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
"""Random bits of V that are drawn first, and each time when they do not determine j."""
UNSURE = 2.0**-40
"""Relative distance of V from an S_j below which float64 is not trusted."""
MOST_SCALE = 2.0**30
"""Largest scale, in counts, at which float64 decides all except one in a thousand draws."""


def require_count_scale(name: str, scale: float) -> None:
    """Refuse a scale of integer noise that cannot be drawn exactly in reasonable time; 0 means no noise.

    Callers that know the scale before training call this early; `noisy_counts` always does.

    Raises:
        BenchError: `scale` is neither 0 nor in [2^-100, 2^30].
    """
    if not (scale == 0 or SMALLEST_SCALE <= scale <= MOST_SCALE):
        raise BenchError(
            f"{name} is {scale:g}; expected 0, or a number from {SMALLEST_SCALE:.2g} to {MOST_SCALE:.2g}, beyond which "
            "whole numbers cannot be drawn exactly in float64: give a larger --epsilon, fewer queries, or less noise"
        )


def noisy_counts(counts: Tensor, law: Law, scale: float, source: Source) -> Tensor:
    """Release counts by the Gaussian or the Laplace mechanism, plus a fraction that breaks ties.

    The privacy cost is that of the mechanism with the same scale on real numbers (see the module). Votes of n teachers:
    one record changes one teacher's vote, so that two counts change by 1 each: L2 sensitivity sqrt(2), L1
    sensitivity 2.

    Args:
        counts: integers below 2^52, any shape and device.
        law: of X: "gaussian", N(0, scale^2), or "laplace", density exp(-|x| / scale) / (2 scale).
        scale: sigma or b, in counts; 0 adds no noise and gives no protection.

    Returns:
        float64, same shape and device: integers, each plus its draw from [-1/2, 1/2) if there is noise. The largest
        of them is report noisy max.

    Raises:
        BenchError: a scale that `require_count_scale` refuses.
        RuntimeError: a count that is not an integer.
    """
    require_count_scale("the noise's scale in counts", scale)
    noise, wide = Noise.of(source), counts.double()
    torch._assert_async((wide == wide.round()).all(), "counts that get integer noise must be whole numbers")
    wide = noise.entering(law, wide, scale)
    if scale > 0:
        fraction = (noise.host.bits(counts.numel()) >> 43) * 2.0**-20 - 0.5
        drawn = rounded(law, scale, counts.numel(), noise.host)
        for part in (drawn, fraction):  # integers first, so that this sum is exact; the fraction is added to it last
            wide = wide + part.view(counts.shape).to(counts.device)
    return noise.released(wide)


def rounded(law: Law, scale: float, count: int, noise: Noise) -> Tensor:
    """Return (count,) float64 integers on the CPU: independent exact draws of round(X)."""
    bits = noise.bits(count).cpu().numpy()
    first, size = bits >> 1, _sizes(bits >> 1, law, scale)
    for at in np.flatnonzero(~_sure(first, size, law, scale)):
        size[at] = exact_size(int(first[at]), int(size[at]), law, scale, noise)
    return torch.from_numpy(np.where(bits & 1, size, -size)).double()


def _sizes(first: NDArray[np.int64], law: Law, scale: float) -> NDArray[np.int64]:
    """Return j as computed in float64; it may be off by one."""
    v = (first + 0.5) * 2.0**-FIRST_BITS
    beyond = -special.ndtri(v / 2) if law == "gaussian" else -np.log(v)
    return np.floor(scale * beyond + 0.5).astype(np.int64)


def _sure(first: NDArray[np.int64], size: NDArray[np.int64], law: Law, scale: float) -> NDArray[np.bool_]:
    """Return whether [v, v + 2^-62) is between S_(j+1) and S_j for any rounding of both."""
    low, high = first * 2.0**-FIRST_BITS, (first + 1) * 2.0**-FIRST_BITS
    above, below = _tail(size, law, scale), _tail(size + 1, law, scale)
    return (high <= above * (1 - UNSURE)) & (low >= below * (1 + UNSURE)) & (first > 0)


def _tail(j: NDArray[np.int64], law: Law, scale: float) -> NDArray[np.float64]:
    """Return S_j."""
    at = (j - 0.5) / scale
    tail = 2 * special.ndtr(-at) if law == "gaussian" else np.exp(-at)
    return np.where(j <= 0, 2.0, tail)


def exact_size(first: int, guess: int, law: Law, scale: float, noise: Noise) -> int:
    """Return j exactly for V = first / 2^62, extended by as many further random bits as necessary."""
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
