"""Worst pairs of teachers for differentially private annotation (DPSD, DPDFD), as games that an audit plays.

A world is a teacher; a play is its raw answer to one synthetic image, before the student makes a target of it. The
student's logits are chosen by the adversary, as Theorem 1 and 2 allow. Unit `query`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.distillation.noisy_labels import Mechanism, Plan
from bench.privacy import Claim, Unit
from bench.privacy.accountant import epsilon as accounted_epsilon
from bench.privacy.audit import Game, Play, worst

FAR = 30.0
"""Logits this far below the others have a probability that float32 still tells from 0."""


def gradient_game(
    bound: Callable[[Tensor, Tensor], Tensor],
    noisy: Callable[[Tensor, torch.Generator], Tensor],
    mechanism: Mechanism,
    plan: Plan,
    delta: float,
) -> Game:
    """Data mode: a student undecided between two classes, and two teachers each sure of one of them.

    Their gradients are opposite, so that the bounded rows lie 2 beta apart. With a noise draw per row every row of a
    chunk is a play of its own. With one per batch a play is a whole batch, of which the worlds differ in the first
    image, and its answer is the one noisy mean.

    Args:
        bound: (n, c) student's and (n, c) teacher's logits to (n, c) gradients of norm at most beta.
        noisy: (n, c) bounded gradients to (n, c) raw answers.
    """
    student, (first, second) = _undecided(mechanism.classes), _sure(mechanism.classes, 0, 1)

    def row(world: bool, n: int, generator: torch.Generator) -> Tensor:
        return noisy(bound(student.expand(n, -1), (second if world else first).expand(n, -1)), generator)

    def batch(world: bool, n: int, generator: torch.Generator) -> Tensor:
        asked = torch.stack([second if world else first] + [first] * (mechanism.batch - 1))
        rows = bound(student.expand(mechanism.batch, -1), asked)
        return torch.stack([noisy(rows, generator)[0] for _ in range(n)])

    what = "one noisy gradient" if mechanism.per_row else f"the noisy mean gradient of {mechanism.batch} images"
    play = row if mechanism.per_row else batch
    return _game(play, mechanism, plan, delta, f"{what}; two teachers sure of opposite classes")


def response_game(
    ask: Callable[[Tensor, Tensor, torch.Generator], Tensor], mechanism: Mechanism, plan: Plan, delta: float
) -> Game:
    """Label mode: two teachers whose classes are both candidates, or one a candidate and the other not.

    The pair that looks worse in a short trial is returned.

    Args:
        ask: (n, c) student's and (n, c) teacher's logits, generator, to (n,) answered classes.
    """
    classes = mechanism.classes
    student = -torch.arange(classes, dtype=torch.float32)
    outside = [(0, plan.k, "one class is no candidate")] if plan.k < classes else []

    def pair(one: int, other: int, what: str) -> Game:
        teachers = _sure(classes, one, other)

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            answers = ask(student.expand(n, -1), teachers[int(world)].expand(n, -1), generator)
            return F.one_hot(answers, classes).float()

        describe = f"one randomised response over {plan.k} of {classes} classes; two teachers, {what}"
        return _game(play, mechanism, plan, delta, describe)

    return worst([pair(*each) for each in [(0, 1, "both classes are candidates"), *outside]])


def ensemble_game(
    mechanism: Mechanism, plan: Plan, delta: float, noisy: Callable[[Tensor, torch.Generator], Tensor]
) -> Game:
    """Many teachers: two ensembles that differ in one teacher, which is sure of opposite classes in the two worlds.

    Unit `example`: the other teachers agree on a third class, and add the same to both worlds. With gradients, the
    differing rows are opposite and of the full norm beta.

    Args:
        noisy: (n, c) summed answers to (n, c) released ones.
    """
    classes, others = mechanism.classes, mechanism.teachers - 1
    totals = torch.zeros(2, classes)
    if mechanism.votes:
        totals[0, 0] = totals[1, 1] = 1.0
        totals[:, -1] += others
    else:
        totals[0, 0], totals[0, 1] = plan.beta / 2**0.5, -plan.beta / 2**0.5
        totals[1] = -totals[0]

    def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
        return noisy(totals[int(world)].expand(n, -1), generator)

    proved = accounted_epsilon(mechanism.answer_ledger(plan), Unit.EXAMPLE, delta)
    what = "noisy vote counts" if mechanism.votes else "noisy sum of normalised gradients"
    describe = f"one {what} of {mechanism.teachers} teachers, one of which differs; per private record"
    return Game(play, proved.epsilon, proved.epsilon, proved.delta if proved.finite else 0.0, describe)


def _game(play: Play, mechanism: Mechanism, plan: Plan, delta: float, describe: str) -> Game:
    """With what the paper's theorem says of one answered batch, and what the ledger proves of one answer."""
    once = replace(plan, iterations=1)
    claim = mechanism.claim(once, delta) or Claim(math.inf, delta, Unit.QUERY, "none")
    proved = accounted_epsilon(mechanism.ledger(once), Unit.QUERY, delta)
    held = max(claim.delta, proved.delta if proved.finite else 0.0)
    return Game(play, claim.epsilon, proved.epsilon, held, describe)


def _undecided(classes: int) -> Tensor:
    """Logits of (1/2, 1/2, 0, 0, ...)."""
    return torch.tensor([0.0, 0.0] + [-FAR] * (classes - 2))


def _sure(classes: int, one: int, other: int) -> tuple[Tensor, Tensor]:
    """Logits of two teachers, each sure of its own class and next of the other's."""
    first = torch.full((classes,), -2 * FAR)
    second = first.clone()
    first[one], first[other] = FAR, 0.0
    second[other], second[one] = FAR, 0.0
    return first, second
