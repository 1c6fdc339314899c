"""Plays of a mechanism's own step for an audit: the worlds differ in one output, shown together with shared ones.

A play calls the step twice, as training does. The worlds differ in one private value of the first call; the play
contains its output, and the outputs of values that the worlds share. A shared output of the same call reveals noise
that rows share; one of the later call reveals noise that is used again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.privacy.audit import Play

Answers = Callable[[Tensor, torch.Generator], Tensor]
"""A step under audit: (m,) int64 private values and a generator -> (m, d) released numbers, row by row.

Value 0 belongs to world 0, and value 1 to world 1.
"""
LEAST_PER_CALL, CALLS = 64, 16
"""Fewest plays per pair of calls, and number of pairs of calls for a large number of plays."""
SHARED = 1
"""Number of coordinates shown of a shared output; reused noise is visible in a single one."""


def play_of_rows(answers: Answers, shared: int = 0) -> Play:
    """Return the plays of a step with one output per row: three rows of two calls are one play.

    The plays are divided over several pairs of calls, so that quantities shared within a call vary between plays.

    Args:
        shared: the private value of the rows that both worlds share.
    """

    def some(world: bool, n: int, generator: torch.Generator) -> Tensor:
        numbers = torch.full((n, 2), shared)
        later = answers(numbers.flatten(), generator)
        numbers[:, 0] = int(world)
        first = answers(numbers.flatten(), generator)
        return torch.cat([first[::2], first[1::2, :SHARED], later[::2, :SHARED]], 1)

    def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
        size = max(LEAST_PER_CALL, n // CALLS)
        sizes = [min(size, n - start) for start in range(0, n, size)]
        return torch.cat([some(world, count, generator) for count in sizes])

    return play


def play_of_batches(answers: Answers, batch: int, shared: int = 0) -> Play:
    """Return the plays of a step with one output per batch: a play is two calls, and shows their first rows."""

    def one(world: bool, generator: torch.Generator) -> Tensor:
        numbers = torch.full((batch,), shared)
        later = answers(numbers, generator)
        numbers[0] = int(world)
        return torch.cat([answers(numbers, generator)[0], later[0, :SHARED]])

    return lambda world, n, generator: torch.stack([one(world, generator) for _ in range(n)])
