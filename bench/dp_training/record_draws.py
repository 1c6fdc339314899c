"""Random numbers that belong to a private record: a function of a secret key of the record, and of nothing else.

A training step that needs thousands of numbers for each record of a batch cannot draw them for every record of the data
set. It draws one key per record from the privacy noise instead, and expands the keys of the sampled records. A record
that is left out of the batch then changes no number of the others, and the numbers are as secret as the source.

The expansion is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): number j of key k is mix(k + j gamma), in 64-bit
arithmetic that wraps around. It is not cryptographic. No guarantee relies on it, as any numbers that are fixed for each
record keep the sensitivity of a clipped sum; noise that hides a record comes from `bench.privacy.noise` only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST, SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
"""Constants of SplitMix64, as signed 64-bit integers."""
LOW = (1 << 32) - 1


def expand_keys(keys: Tensor, start: int, count: int) -> Tensor:
    """Return (..., count) int64: numbers start + 1 to start + count of each of the (...) int64 keys."""
    positions = torch.arange(start + 1, start + 1 + count, device=keys.device)
    z = keys[..., None] + positions * GAMMA
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return z ^ _shifted(z, 31)


def uniform_of_keys(keys: Tensor, start: int, count: int) -> Tensor:
    """Return (..., count) float32 in [0, 1), multiples of 2^-24, from the numbers after `start`."""
    return _shifted(expand_keys(keys, start, count), 40).float() * 2.0**-24


def normal_of_keys(keys: Tensor, start: int, count: int) -> Tensor:
    """Return (..., count) float32 of N(0, 1) by Box and Muller, two from each of the (count + 1) // 2 numbers."""
    bits = expand_keys(keys, start, (count + 1) // 2)
    radius = ((_shifted(bits, 32).float() + 0.5) * 2.0**-32).log().mul(-2).clamp_min(0).sqrt()
    angle = (bits & LOW).float() * (2 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :count]


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shift 64-bit integers to the right, filled with zeros."""
    return (z >> by) & ((1 << (64 - by)) - 1)
