"""Plays of a mechanism's own step, for the game of an audit: worlds that differ in one answer, shown with others.

A play calls the step twice, as training does. The worlds differ in one private value of the first call; the play shows
the answer to it, and the answers to values that the worlds share. An answer of the same call shows noise that rows
share, one of the later call shows noise that is used again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.privacy.audit import Play

Answers = Callable[[Tensor, torch.Generator], Tensor]
"""(m,) numbers of private values, int64, and a generator to (m, d) released numbers, row by row.

Value 0 is that of world 0, and value 1 that of world 1.
"""
LEAST_PER_CALL, CALLS = 64, 16
"""Plays that a pair of calls makes at least, and pairs of calls for a large number of plays."""
SHARED = 1
"""Numbers that a play shows of an answer which the worlds share: noise that is used again shows in one."""


def play_of_rows(answers: Answers, shared: int = 0) -> Play:
    """Plays of a step in which each row is one answer: three rows of two calls are a play.

    Several pairs of calls make the plays, so that what a whole call shares differs from some plays to others.

    Args:
        shared: number of the private value that rows have which the worlds share.
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
    """Plays of a step that answers a whole batch at once: two calls are a play, the first of their rows is shown."""

    def one(world: bool, generator: torch.Generator) -> Tensor:
        numbers = torch.full((batch,), shared)
        later = answers(numbers, generator)
        numbers[0] = int(world)
        return torch.cat([answers(numbers, generator)[0], later[0, :SHARED]])

    return lambda world, n, generator: torch.stack([one(world, generator) for _ in range(n)])
