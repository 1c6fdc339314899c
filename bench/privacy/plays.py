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
"""(m,) booleans, the world of each row's private value, and a generator to (m, d): what the step releases, by row."""
PER_CALL = 64
SHARED = 1
"""Numbers that a play shows of an answer which the worlds share: noise that is used again shows in one."""


def play_of_rows(answers: Answers) -> Play:
    """Plays of a step whose rows are answers of their own: three rows of two calls are a play.

    A pair of calls makes `PER_CALL` plays, so that what a whole call shares differs from some plays to others.
    """

    def some(world: bool, n: int, generator: torch.Generator) -> Tensor:
        worlds = torch.zeros(n, 2, dtype=torch.bool)
        later = answers(worlds.flatten(), generator)
        worlds[:, 0] = world
        first = answers(worlds.flatten(), generator)
        return torch.cat([first[::2], first[1::2, :SHARED], later[::2, :SHARED]], 1)

    def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
        sizes = [min(PER_CALL, n - start) for start in range(0, n, PER_CALL)]
        return torch.cat([some(world, size, generator) for size in sizes])

    return play


def play_of_batches(answers: Answers, batch: int) -> Play:
    """Plays of a step that answers a whole batch at once: two calls are a play, the first of their rows is shown."""

    def one(world: bool, generator: torch.Generator) -> Tensor:
        worlds = torch.zeros(batch, dtype=torch.bool)
        later = answers(worlds, generator)
        worlds[0] = world
        return torch.cat([answers(worlds, generator)[0], later[0, :SHARED]])

    return lambda world, n, generator: torch.stack([one(world, generator) for _ in range(n)])
