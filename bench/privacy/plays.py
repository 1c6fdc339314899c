"""Plays of a method's step for the distinguishing game of `bench.privacy.audit`.

A play calls the step twice, as training does. The two worlds differ in one private value of the first call. A play
contains the output for this value, and outputs for values that are equal in both worlds: one of the same call, which
reveals noise that rows share, and one of the other call, which reveals noise that is used again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.privacy.audit import Play

Step = Callable[[Tensor, torch.Generator], Tensor]
"""A step under audit: (m,) int64 private values and a generator -> (m, d) released numbers, row by row.

Value 0 belongs to world 0, and value 1 to world 1.
"""
LEAST_PER_CALL, CALLS = 64, 16
"""Fewest plays per pair of calls, and number of pairs of calls for many plays."""
SHARED = 1
"""Number of coordinates of a shared output in a play; reused noise is visible in a single one."""


def play_of_rows(step: Step, shared: int = 0) -> Play:
    """Return the plays of a step with one output per row: three rows of two calls are one play.

    The plays are divided over several pairs of calls, so that quantities shared within a call vary between plays.

    Args:
        shared: the private value of the rows that are equal in both worlds.
    """

    def pair_of_calls(world: bool, n: int, generator: torch.Generator) -> Tensor:
        values = torch.full((n, 2), shared)
        equal = step(values.flatten(), generator)
        values[:, 0] = int(world)
        different = step(values.flatten(), generator)
        return torch.cat([different[::2], different[1::2, :SHARED], equal[::2, :SHARED]], 1)

    def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
        size = max(LEAST_PER_CALL, n // CALLS)
        sizes = [min(size, n - start) for start in range(0, n, size)]
        return torch.cat([pair_of_calls(world, count, generator) for count in sizes])

    return play


def play_of_batches(step: Step, batch: int, shared: int = 0) -> Play:
    """Return the plays of a step with one output per batch: a play has the first rows of two calls."""

    def pair_of_calls(world: bool, generator: torch.Generator) -> Tensor:
        values = torch.full((batch,), shared)
        equal = step(values, generator)
        values[0] = int(world)
        return torch.cat([step(values, generator)[0], equal[0, :SHARED]])

    return lambda world, n, generator: torch.stack([pair_of_calls(world, generator) for _ in range(n)])
