"""Where privacy noise comes from: the draws that a guarantee rests on, and nothing else.

A source is `seeded`, for runs that can be repeated, or draws from the system's entropy (`--noise os`). The
recorded seed is public: whoever reads it can subtract seeded noise, so that an epsilon under it holds only for an
adversary without the seed. Whatever is drawn once per private record (which records are in a batch, how a record is
moved about) comes from here too, or is indexed by the record itself; else removing one record would move all others'
draws, and the sensitivity would not be what the ledger says.

Precision, and where each limit comes from:

- All draws start from 63 random bits. Normals are Box and Muller's in float64 with the radius' uniform at full relative
  precision, so that tails reach 9.3 deviations (probability 1e-20), where float32 ends at 5.77 (4e-9). Laplace tails,
  whose mechanism has no delta to hide an end in, reach 87 scales: what one world reaches and a neighbour does not has
  a probability below 1e-33 a number.
- A real-valued release is summed exactly: value and noise are rounded to a lattice of 2^-30 of the scale, added without
  any rounding error, and the sum is rounded to 2^-10 of the scale. Both are post-processing of the ideal mechanism; the
  second hides the low bits that tell sums of floating-point numbers apart (Mironov, CCS 2012). The first moves the
  value by less than sqrt(d) 2^-30 scales, and errors of Box and Muller's functions, 2^-50, move the probability of a
  cell of 2^-10 by less than 2^-39 of itself, in one of d coordinates.
  A release is made of its value here, in one step; a value that is added to a noisy 0 later shows beside the grid.
- Values may be 2^22 times the noise's scale in float64, where the lattice fills the 53 bits of a number, or 2^14 in
  float32, whose own rounding (2^-24 of the value) must stay far below the noise; beyond that the step is refused.
  Narrower types are refused.
- Scales are from 2^-100 to 2^100, where squares neither underflow nor overflow in float64.
- Counts, such as votes, are integers and get integer noise (`bench.privacy.counts`), whose draws are exact.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from bench.errors import BenchError
from bench.seeds import derive

VERSION = 2
"""Of the draws, as records have it: 1 drew float32, whose tails end at 5.77 deviations, and has no number there."""
BITS = 63
"""Of one draw."""
FEW = 1 << 20
"""Below it a uniform draw of whole numbers is too coarse for a tail, and gets as many bits again."""
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**100
MOST_OVER_SCALE = {torch.float32: 2.0**14, torch.float64: 2.0**22}
"""Largest value, in units of the noise's scale, that a release may hold; by dtype."""
LATTICE, GRID = 30, 10
"""Sums are formed in steps of 2^-30 of the scale (rounded down to a power of two), and released in steps of 2^-10."""
Draw = Callable[..., Tensor]
Kind = Literal["gaussian", "laplace", "response"]


class Noise:
    """A source of privacy noise; every call gives new, independent draws.

    Args:
        device: where draws are made.
        seed: any int, for draws that can be repeated; None draws from the system's entropy: on a CPU each
            draw from the kernel's generator, on an accelerator the exclusive or of two generators whose seeds, of 64
            bits each, are the system's.
    """

    def __init__(self, device: torch.device | str = "cpu", seed: int | None = None) -> None:
        self.device, self._host = torch.device(device), self
        if self.device.type != "cpu":
            self._host = Noise("cpu", None if seed is None else derive(seed, "host"))
        if seed is not None:
            self._generators = [torch.Generator(self.device).manual_seed(seed)]
        elif self.device.type == "cpu":
            self._generators = []
        else:
            self._generators = [torch.Generator(self.device).manual_seed(secrets.randbits(64)) for _ in range(2)]

    @classmethod
    def of(cls, source: Noise | torch.Generator) -> Noise:
        """The source itself, or one that draws from a generator of the caller's: what audits and tests hand in."""
        if isinstance(source, Noise):
            return source
        made = cls.__new__(cls)
        made.device, made._generators, made._host = source.device, [source], made
        return made

    @property
    def host(self) -> Noise:
        """The source of draws that are made on the processor, so that nothing waits for an accelerator."""
        return self._host

    def bits(self, count: int) -> Tensor:
        """(count,) int64, uniform in [0, 2^63)."""
        if not self._generators:
            drawn = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64) if count else torch.zeros(0)
            return drawn.long() & (2**BITS - 1)
        drawn = torch.zeros(count, dtype=torch.int64, device=self.device)
        for generator in self._generators:
            drawn ^= torch.empty_like(drawn).random_(generator=generator)
        return drawn

    def uniform(self, *shape: int) -> Tensor:
        """Independent float64 draws from [0, 1), multiples of 2^-53."""
        return (self.bits(math.prod(shape)) >> 10).double().mul_(2.0**-53).view(shape)

    def normal(self, *shape: int) -> Tensor:
        """Independent float64 draws of N(0, 1), by Box and Muller; they are not rounded to any grid."""
        count = math.prod(shape)
        half = (count + 1) // 2
        bits = self.bits(2 * half)
        radius = ((bits[:half].double() + 0.5) * 2.0**-BITS).log_().mul_(-2).sqrt_()
        angle = (bits[half:] >> 10).double() * (2 * math.pi * 2.0**-53)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].view(shape)

    def integers(self, low: int, high: int, count: int) -> Tensor:
        """(count,) int64 from [low, high), even but for (high - low) 2^-63."""
        return low + self.bits(count) % (high - low)

    def chance(self, probability: Tensor | float, count: int) -> Tensor:
        """(count,) bool, each true with its probability in [0, 1], right to 2^-62.

        A small chance keeps its precision: of two events ask for the rarer one.
        """
        given = torch.as_tensor(probability, dtype=torch.float64).to(self.device)
        below = (given * 2.0**62).round().long()
        return (self.bits(count) >> 1) < below

    def sample(self, records: int, probability: float) -> Tensor:
        """(m,) int64 ascending: each record's number with `probability`, independently of the others; m may be 0."""
        return (self.uniform(records) < probability).nonzero().flatten()

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        """`values` with independent N(0, std^2) on every coordinate: a Gaussian mechanism's release.

        Args:
            values: any shape, float32 or float64, on any device.
            std: >= 0, in the units of `values`; 0 adds nothing and protects nothing.

        Returns:
            Same shape, dtype and device; rounded to the grid of the scale, then to the dtype.

        Raises:
            BenchError: a std or a dtype outside of what floating point can protect; see the module.
            RuntimeError: values too large for the noise, or NaN; on an accelerator at some later call.
        """
        require_scale("the noise's standard deviation", std)
        return self.released(self._noised(self.entering("gaussian", values, std), std, self.normal))

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        """`values` with independent Laplace noise, density exp(-|x| / scale) / (2 scale); else as `gaussian`."""
        require_scale("the Laplace noise's scale", scale)
        return self.released(self._noised(self.entering("laplace", values, scale), scale, self._two_sided))

    def entering(self, kind: Kind, values: Tensor, scale: float) -> Tensor:
        """What is about to be protected by noise of `scale`, or labels by a response of epsilon `scale`.

        A witness of the mechanism looks here (`bench.privacy.witness`). Returns `values`.
        """
        return values

    def released(self, answer: Tensor) -> Tensor:
        """What a mechanism has made, and all that is ever seen of its input; a witness looks here. Returns `answer`."""
        return answer

    def _two_sided(self, *shape: int) -> Tensor:
        bits = self.bits(math.prod(shape))
        whole = bits >> 1
        uniform = whole.double() + 0.5
        # sizes beyond 29 scales lie ever further apart, until a neighbour's lie in other cells of the grid: more bits
        for coarse in (whole < FEW).nonzero()[:, 0]:
            uniform[coarse] = whole[coarse] + (self.bits(1)[0].double() + 0.5) * 2.0**-BITS
        size = -uniform.mul_(2.0**-62).log_()
        return torch.where((bits & 1).bool(), size, -size).view(shape)

    def _noised(self, values: Tensor, scale: float, draw: Draw) -> Tensor:
        if scale == 0:
            return values
        most = MOST_OVER_SCALE.get(values.dtype)
        if most is None:
            raise BenchError(f"noise on numbers of type {values.dtype}: expected float32 or float64, cast them first")
        message = (
            f"noise of scale {scale:.3g} on {values.dtype} numbers more than {most:g} times as large: floating point "
            "cannot protect them; add noise, or bound them more tightly"
        )
        torch._assert_async((values.abs() <= most * scale).all(), message)
        step = 2.0 ** (math.floor(math.log2(scale)) - LATTICE)
        drawn = (draw(*values.shape).to(values.device) * (scale / step)).round_()
        total = (values.double() / step).round_().add_(drawn)
        return (total.mul_(2.0 ** (GRID - LATTICE)).round_() * (step * 2.0 ** (LATTICE - GRID))).to(values.dtype)


Source = Noise | torch.Generator
"""What mechanisms draw from: a run's own source, or an audit's generator."""


def require_room(name: str, scale: float, dtype: torch.dtype) -> None:
    """Refuse, before anything is made, noise that values as large as its bound would be refused with.

    Args:
        name: what the noise is called, for the message.
        scale: of the noise, as a multiple of the largest value; 0 is no noise, and none is promised.
        dtype: of the values, in `MOST_OVER_SCALE`.

    Raises:
        BenchError: the bound is more than `MOST_OVER_SCALE` scales, or a scale that `require_scale` refuses.
    """
    require_scale(name, scale)
    least = 1 / MOST_OVER_SCALE[dtype]
    if 0 < scale < least:
        raise BenchError(
            f"{name} is {scale:.3g} of the bound on what it hides, so little that floating point cannot protect it; "
            f"expected at least {least:.3g}: give a smaller --epsilon, or --epsilon inf for no noise at all"
        )


def require_scale(name: str, scale: float) -> None:
    """Refuse a scale of noise that floating point cannot keep its promise at; 0 is no noise, and none is promised.

    Raises:
        BenchError: `scale` neither 0 nor from 2^-100 to 2^100.
    """
    if not (scale == 0 or SMALLEST_SCALE <= scale <= LARGEST_SCALE):
        raise BenchError(
            f"{name} is {scale:g}; expected 0, or a number from {SMALLEST_SCALE:.2g} to {LARGEST_SCALE:.2g}, beyond "
            "which floating point gives no protection"
        )
