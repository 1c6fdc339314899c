"""Worst pairs of teachers for differentially private annotation (DPSD, DPDFD), as games that an audit plays.

A hypothesis is a teacher; a play is its raw answer to one synthetic image, before the student makes a target of it. The
student's logits are chosen by the adversary, as Theorem 1 and 2 allow. Unit `query`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters
from bench.privacy import Claim, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame, Play, strongest_game

FAR = 30.0
"""Logits this far below the others have a probability that float32 still tells from 0."""


def gradient_game(
    bound: Callable[[Tensor, Tensor], Tensor],
    noisy: Callable[[Tensor, torch.Generator], Tensor],
    mechanism: AnnotationMechanism,
    parameters: AnnotationParameters,
    delta: float,
) -> DistinguishingGame:
    """Data mode: a student undecided between two classes, and two teachers each sure of one of them.

    Their gradients are opposite, so that the bounded rows lie 2 beta apart. With a noise draw per row every row of a
    chunk is a play of its own. With one per batch a play is a whole batch, of which the hypotheses differ in the
    first image, and its answer is the one noisy mean.

    Args:
        bound: (n, c) student's and (n, c) teacher's logits to (n, c) gradients of norm at most beta.
        noisy: (n, c) bounded gradients to (n, c) raw answers.
    """
    student, (first, second) = _undecided(mechanism.classes), _sure(mechanism.classes, 0, 1)

    def row(hypothesis: bool, n: int, generator: torch.Generator) -> Tensor:
        return noisy(bound(student.expand(n, -1), (second if hypothesis else first).expand(n, -1)), generator)

    def batch(hypothesis: bool, n: int, generator: torch.Generator) -> Tensor:
        asked = torch.stack([second if hypothesis else first] + [first] * (mechanism.batch - 1))
        rows = bound(student.expand(mechanism.batch, -1), asked)
        return torch.stack([noisy(rows, generator)[0] for _ in range(n)])

    what = "one noisy gradient" if mechanism.per_row else f"the noisy mean gradient of {mechanism.batch} images"
    play = row if mechanism.per_row else batch
    return _game(play, mechanism, parameters, delta, f"{what}; two teachers sure of opposite classes")


def response_game(
    ask: Callable[[Tensor, Tensor, torch.Generator], Tensor],
    mechanism: AnnotationMechanism,
    parameters: AnnotationParameters,
    delta: float,
) -> DistinguishingGame:
    """Label mode: two teachers whose classes are both candidates, or one a candidate and the other not.

    The pair that looks worse in a short trial is returned.

    Args:
        ask: (n, c) student's and (n, c) teacher's logits, generator, to (n,) answered classes.
    """
    classes = mechanism.classes
    student = -torch.arange(classes, dtype=torch.float32)
    outside = [(0, parameters.k, "one class is no candidate")] if parameters.k < classes else []

    def pair(one: int, other: int, what: str) -> DistinguishingGame:
        teachers = _sure(classes, one, other)

        def play(hypothesis: bool, n: int, generator: torch.Generator) -> Tensor:
            answers = ask(student.expand(n, -1), teachers[int(hypothesis)].expand(n, -1), generator)
            return F.one_hot(answers, classes).float()

        describe = f"one randomised response over {parameters.k} of {classes} classes; two teachers, {what}"
        return _game(play, mechanism, parameters, delta, describe)

    return strongest_game([pair(*each) for each in [(0, 1, "both classes are candidates"), *outside]])


def ensemble_game(
    mechanism: AnnotationMechanism,
    parameters: AnnotationParameters,
    delta: float,
    noisy: Callable[[Tensor, torch.Generator], Tensor],
) -> DistinguishingGame:
    """Many teachers: two ensembles that differ in one teacher, which is sure of opposite classes in the two hypotheses.

    Unit `example`: the other teachers agree on a third class, and add the same under both. The differing rows are
    opposite and of the full norm beta.

    Args:
        noisy: (n, c) sums of gradients to (n, c) released ones.
    """
    total = torch.zeros(mechanism.classes)
    total[0], total[1] = parameters.beta / 2**0.5, -parameters.beta / 2**0.5

    def play(hypothesis: bool, n: int, generator: torch.Generator) -> Tensor:
        return noisy((-total if hypothesis else total).expand(n, -1), generator)

    proved = account(mechanism.answer_ledger(parameters), Unit.EXAMPLE, delta)
    what = f"one noisy sum of normalised gradients of {mechanism.teachers} teachers"
    describe = f"{what}, one of which differs; per private record"
    return DistinguishingGame(play, proved.epsilon, proved.epsilon, proved.delta if proved.finite else 0.0, describe)


def _game(
    play: Play, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, describe: str
) -> DistinguishingGame:
    """With what the paper's theorem says of one answered batch, and what the ledger proves of one answer."""
    once = replace(parameters, iterations=1)
    claim = mechanism.claim(once, delta) or Claim(math.inf, delta, Unit.QUERY, "none")
    proved = account(mechanism.ledger(once), Unit.QUERY, delta)
    held = max(claim.delta, proved.delta if proved.finite else 0.0)
    return DistinguishingGame(play, claim.epsilon, proved.epsilon, held, describe)


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
