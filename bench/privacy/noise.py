"""The source of privacy noise: all random draws that a privacy guarantee relies on.

A source is `seeded`, for repeatable runs, or draws from the system's entropy (`--noise os`). The recorded seed is
public: anyone who reads it can subtract seeded noise, so that the epsilon of a seeded run holds only for an adversary
without the seed. Everything drawn once per private record (which records are in a batch, how a record is augmented)
also comes from here, or is indexed by the record itself; otherwise removing one record would shift all other records'
draws, and the sensitivity would not be the ledger's.

Precision, and where each limit comes from:

- All draws start from 63 random bits. Normals use Box and Muller's method in float64, with the radius' uniform at full
  relative precision, so that tails reach 9.3 deviations (probability 1e-20), where float32 ends at 5.77 (4e-9). Laplace
  tails reach 87 scales, as that mechanism has no delta to cover a truncation: outputs that are possible in only one of
  two neighbouring worlds have a probability below 1e-33 per number.
- A real-valued release is summed exactly: value and noise are rounded to a lattice of 2^-30 of the scale, added without
  any rounding error, and the sum is rounded to 2^-10 of the scale. Both are post-processing of the ideal mechanism; the
  second hides the low bits that distinguish sums of floating-point numbers (Mironov, CCS 2012). The first changes the
  value by less than sqrt(d) 2^-30 scales, and errors of Box and Muller's functions, 2^-50, change the probability of a
  cell of 2^-10 by less than a relative 2^-39, in one of d coordinates. A release is made from its value here, in one
  step; a value added to a noisy 0 later would be visible off the grid.
- Values may be 2^22 times the noise's scale in float64, where the lattice fills the 53 bits of a number, or 2^14 in
  float32, whose own rounding (2^-24 of the value) must stay far below the noise; larger values are refused. Narrower
  types are refused.
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
"""Version of the draws, stored in records. Records without this field have version 1, which drew float32, with tails up
to 5.77 deviations."""
BITS = 63
"""Random bits per draw."""
FEW = 1 << 20
"""Below this value a uniform integer is too coarse for a tail, and gets the same number of bits again."""
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**100
MOST_OVER_SCALE = {torch.float32: 2.0**14, torch.float64: 2.0**22}
"""Largest value in a release, in units of the noise's scale; by dtype."""
LATTICE, GRID = 30, 10
"""Exponents: sums are formed in steps of 2^-30 of the scale (rounded down to a power of two), released in 2^-10."""
Draw = Callable[..., Tensor]
Kind = Literal["gaussian", "laplace", "response"]


class Noise:
    """A source of privacy noise; every call returns new, independent draws.

    Args:
        device: device of the draws.
        seed: any int, for repeatable draws; None draws from the system's entropy: on a CPU each draw is from the
            kernel's generator, on an accelerator the exclusive or of two generators with 64-bit seeds from the system.
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
        """Return the source itself, or wrap a torch generator, which audits and tests pass, in a source."""
        if isinstance(source, Noise):
            return source
        made = cls.__new__(cls)
        made.device, made._generators, made._host = source.device, [source], made
        return made

    @property
    def host(self) -> Noise:
        """Return a source that draws on the CPU, to avoid synchronising with an accelerator."""
        return self._host

    def bits(self, count: int) -> Tensor:
        """Draw (count,) int64, uniform in [0, 2^63)."""
        if not self._generators:
            drawn = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64) if count else torch.zeros(0)
            return drawn.long() & (2**BITS - 1)
        drawn = torch.zeros(count, dtype=torch.int64, device=self.device)
        for generator in self._generators:
            drawn ^= torch.empty_like(drawn).random_(generator=generator)
        return drawn

    def uniform(self, *shape: int) -> Tensor:
        """Draw independent float64 values from [0, 1), multiples of 2^-53."""
        return (self.bits(math.prod(shape)) >> 10).double().mul_(2.0**-53).view(shape)

    def normal(self, *shape: int) -> Tensor:
        """Draw independent float64 values of N(0, 1), by Box and Muller; they are not rounded to any grid."""
        count = math.prod(shape)
        half = (count + 1) // 2
        bits = self.bits(2 * half)
        radius = ((bits[:half].double() + 0.5) * 2.0**-BITS).log_().mul_(-2).sqrt_()
        angle = (bits[half:] >> 10).double() * (2 * math.pi * 2.0**-53)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].view(shape)

    def integers(self, low: int, high: int, count: int) -> Tensor:
        """Draw (count,) int64 from [low, high), uniform to within (high - low) 2^-63."""
        return low + self.bits(count) % (high - low)

    def chance(self, probability: Tensor | float, count: int) -> Tensor:
        """Draw (count,) bool, each true with its probability in [0, 1], accurate to 2^-62.

        Small probabilities are more accurate: of two complementary events draw the rarer one.
        """
        given = torch.as_tensor(probability, dtype=torch.float64).to(self.device)
        below = (given * 2.0**62).round().long()
        return (self.bits(count) >> 1) < below

    def sample(self, records: int, probability: float) -> Tensor:
        """Draw a Poisson sample: (m,) int64 ascending indices, each included independently with `probability`.

        The number m of indices may be 0.
        """
        return (self.uniform(records) < probability).nonzero().flatten()

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        """Release `values` by the Gaussian mechanism: independent N(0, std^2) noise on every coordinate.

        An input of L2 sensitivity D is released with noise multiplier std / D.

        Args:
            values: any shape, float32 or float64, on any device.
            std: >= 0, in the units of `values`; 0 adds no noise and gives no protection.

        Returns:
            Same shape, dtype and device; rounded to the grid of the scale, then to the dtype.

        Raises:
            BenchError: a std or a dtype outside the range that floating point can protect; see the module.
            RuntimeError: values too large for the noise, or NaN; on an accelerator it may be raised by a later call.
        """
        require_scale("the noise's standard deviation", std)
        return self.released(self._noised(self.entering("gaussian", values, std), std, self.normal))

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        """Release `values` by the Laplace mechanism: noise of density exp(-|x| / scale) / (2 scale).

        Otherwise as `gaussian`. An input of L1 sensitivity D is released with epsilon = D / scale, delta 0.
        """
        require_scale("the Laplace noise's scale", scale)
        return self.released(self._noised(self.entering("laplace", values, scale), scale, self.standard_laplace))

    def entering(self, kind: Kind, values: Tensor, scale: float) -> Tensor:
        """Return `values`, the input of a mechanism; `bench.privacy.witness` overrides this hook to record it.

        Args:
            kind: the mechanism.
            values: private values, or labels of a randomised response.
            scale: scale of the noise, or the epsilon of the response.
        """
        return values

    def released(self, output: Tensor) -> Tensor:
        """Return `output`, all that a mechanism releases; `bench.privacy.witness` overrides this hook to record it."""
        return output

    def standard_laplace(self, *shape: int) -> Tensor:
        """Draw independent float64 values of density exp(-|x|) / 2; they are not rounded to any grid."""
        bits = self.bits(math.prod(shape))
        whole = bits >> 1
        uniform = whole.double() + 0.5
        # Beyond 29 scales the values of 62 bits are more than a grid cell apart: draw more bits
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
"""Source of a mechanism's draws: a run's noise source, or an audit's generator."""


def require_room(name: str, scale: float, dtype: torch.dtype) -> None:
    """Refuse, before any computation, noise too small for values as large as their bound.

    Args:
        name: name of the noise, for the message.
        scale: scale of the noise divided by the bound on the values; 0 = no noise, and no guarantee.
        dtype: dtype of the values, a key of `MOST_OVER_SCALE`.

    Raises:
        BenchError: the bound is more than `MOST_OVER_SCALE` scales, or `require_scale` refuses the scale.
    """
    require_scale(name, scale)
    least = 1 / MOST_OVER_SCALE[dtype]
    if 0 < scale < least:
        raise BenchError(
            f"{name} is {scale:.3g} of the bound on what it hides, so little that floating point cannot protect it; "
            f"expected at least {least:.3g}: give a smaller --epsilon, or --epsilon inf for no noise at all"
        )


def require_scale(name: str, scale: float) -> None:
    """Refuse a noise scale whose guarantee floating point cannot keep; 0 = no noise, and no guarantee.

    Raises:
        BenchError: `scale` is neither 0 nor in [2^-100, 2^100].
    """
    if not (scale == 0 or SMALLEST_SCALE <= scale <= LARGEST_SCALE):
        raise BenchError(
            f"{name} is {scale:g}; expected 0, or a number from {SMALLEST_SCALE:.2g} to {LARGEST_SCALE:.2g}, beyond "
            "which floating point gives no protection"
        )
