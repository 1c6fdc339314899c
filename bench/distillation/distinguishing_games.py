"""Worst pairs of teachers for differentially private annotation (DPSD, DPDFD, FedDPSD), as games that an audit plays.

A world is a teacher; a play is the target, or the reading, that a method's own step makes of its answer to one
synthetic image. The student's logits are chosen by the adversary, as
Theorem 1 and 2 allow. Unit `query`, and for many teachers `example`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters
from bench.distillation.stand_ins import TableNetwork, numbered_images
from bench.nets import Ensemble
from bench.privacy import Claim, Ledger, Unit
from bench.privacy.accountant import account, accounted_curve
from bench.privacy.audit import DistinguishingGame, Play, strongest_game
from bench.privacy.noise import Source
from bench.privacy.plays import play_of_batches, play_of_rows

FAR = 30.0
"""Logits this far below the others have a probability that float32 still tells from 0."""
PLAYS, BATCHES, TRIALS = 100_000, 2_000, 5_000
"""Plays of rows, plays of whole batches, and plays by which the stronger one of several games is found."""
LEAN = 8.0
"""Of teachers where the student is flat: by how much the logit of one class is above, or below, all others."""
SHARED = 2
"""Number of the images that the worlds share: there the teacher is of the student's mind, and its gradient is 0."""
Step = Callable[[Tensor, nn.Module, nn.Module, Source], Tensor]
"""(m, c, h, w) images, a student and a teacher (or an ensemble), noise to (m, d): all that is learnt of the teacher."""


def gradient_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, flat: bool = False
) -> DistinguishingGame:
    """Data mode: two teachers whose gradients are opposite, so that the bounded rows lie 2 beta apart.

    The student is undecided between two classes and each teacher sure of one of them or, where the gradient is taken at
    a flat output, one teacher leans to a class and the other one away from it. With a noise draw per row a play is a
    row; with one per batch it is a batch, of which the worlds differ in the first image, and its noisy mean.
    """
    student, teachers = _gradient_pair(mechanism.classes, flat)
    teacher = TableNetwork(teachers)

    def answers(numbers: Tensor, generator: torch.Generator) -> Tensor:
        return step(numbered_images(numbers), student, teacher, generator).double()

    if mechanism.per_row:
        play, what = play_of_rows(answers, SHARED), "one noisy gradient"
    else:
        play, what = (
            play_of_batches(answers, mechanism.batch, SHARED),
            f"the noisy mean gradient of {mechanism.batch} images",
        )
    plays = PLAYS if mechanism.per_row else BATCHES
    return _game(play, mechanism, parameters, delta, f"{what}; two teachers whose gradients are opposite", plays)


def response_game(
    step: Step,
    mechanism: AnnotationMechanism,
    parameters: AnnotationParameters,
    delta: float,
    clients: tuple[int, ...] = (),
) -> DistinguishingGame:
    """Label mode: two teachers whose classes are both candidates, or one a candidate and the other not.

    The pair that looks worse in a short trial is returned.

    Args:
        clients: of a federation, numbers of clients to try; all but one answer the same in both worlds. () = none.
    """
    classes, k = mechanism.classes, parameters.k
    by_number = torch.arange(classes, dtype=torch.float32)
    student = TableNetwork(-by_number.expand(2, -1))
    outside = [(0, k, "one class is no candidate")] if k < classes else []

    def pair(one: int, other: int, what: str, teachers: int) -> DistinguishingGame:
        table = torch.stack([-by_number, by_number])  # of two minds about all other classes too
        table[0, one] = table[1, other] = FAR
        teacher = _beside_others(table, teachers)

        def answers(numbers: Tensor, generator: torch.Generator) -> Tensor:
            return step(numbered_images(numbers), student, teacher, generator).double()

        of = f"{teachers} randomised responses" if teachers > 1 else "one randomised response"
        describe = f"{of} over {k} of {classes} classes; two teachers, {what}"
        return _game(play_of_rows(answers), mechanism, parameters, delta, describe, PLAYS)

    pairs = [(0, 1, "both classes are candidates"), *outside]
    return strongest_game([pair(*each, m) for m in clients or (0,) for each in pairs], TRIALS)


def ensemble_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, flat: bool = False
) -> DistinguishingGame:
    """Many teachers: two ensembles of two that differ in one teacher, whose gradients are opposite in the two worlds.

    Unit `example`: the other teacher answers the same under both.
    """
    return _game_of_sums(step, mechanism, delta, flat, mechanism.answer_ledger(parameters), Unit.EXAMPLE)


def client_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, clients: int
) -> DistinguishingGame:
    """A federation's gradients: one of the clients has opposite gradients in the two worlds, another one the same.

    Args:
        clients: that are played, 1 or 2; the ledger is that of one client's answer to one image.
    """
    once, alone = replace(parameters, iterations=1), replace(mechanism, clients=1)
    claim = mechanism.claim(once, delta)
    return _game_of_sums(step, mechanism, delta, False, alone.ledger(once), Unit.QUERY, clients, claim)


def _game_of_sums(
    step: Step,
    mechanism: AnnotationMechanism,
    delta: float,
    flat: bool,
    ledger: Ledger,
    unit: Unit,
    members: int = 2,
    claim: Claim | None = None,
) -> DistinguishingGame:
    student, teachers = _gradient_pair(mechanism.classes, flat)
    ensemble = _beside_others(teachers, members)

    def answers(numbers: Tensor, generator: torch.Generator) -> Tensor:
        return step(numbered_images(numbers), student, ensemble, generator).double()

    proved = account(ledger, unit, delta)
    return DistinguishingGame(
        play=play_of_rows(answers, SHARED),
        claimed=proved.epsilon if claim is None else claim.epsilon,
        accounted=proved.epsilon,
        delta=proved.delta if proved.finite else 0.0,
        describe=f"one noisy sum of normalised gradients of {members} teachers, one of which differs; per {unit}",
        curve=accounted_curve(ledger, unit),
        plays=PLAYS,
    )


def _game(
    play: Play,
    mechanism: AnnotationMechanism,
    parameters: AnnotationParameters,
    delta: float,
    describe: str,
    plays: int,
) -> DistinguishingGame:
    """With what the paper's theorem says of one answered batch, and what the ledger proves of one answer."""
    once = replace(parameters, iterations=1)
    claim = mechanism.claim(once, delta) or Claim(math.inf, delta, Unit.QUERY, "none")
    ledger = mechanism.ledger(once)
    proved = account(ledger, Unit.QUERY, delta)
    held = max(claim.delta, proved.delta if proved.finite else 0.0)
    curve = accounted_curve(ledger, Unit.QUERY)
    return DistinguishingGame(play, claim.epsilon, proved.epsilon, held, describe, curve, plays)


def _beside_others(table: Tensor, members: int) -> nn.Module:
    """The teacher of a table, or an ensemble of it and of others that always answer by row 0.

    Args:
        members: of the ensemble; 0 = the teacher alone.
    """
    if not members:
        return TableNetwork(table)
    others = [TableNetwork(table[0].expand_as(table)) for _ in range(members - 1)]
    return Ensemble([TableNetwork(table), *others], table.shape[1])  # type: ignore[list-item]


def _gradient_pair(classes: int, flat: bool) -> tuple[nn.Module, Tensor]:
    """A student, and (3, c) logits: of two teachers whose gradients at its output are opposite, and the student's."""
    if not flat:
        undecided = torch.tensor([0.0, 0.0] + [-FAR] * (classes - 2))  # (1/2, 1/2, 0, 0, ...)
        return TableNetwork(undecided.expand(3, -1)), torch.cat([_sure(classes, 0, 1), undecided[None]])
    lean = torch.zeros(classes)
    lean[0] = LEAN
    return TableNetwork(torch.zeros(3, classes)), torch.stack([lean, -lean, 0 * lean])


def _sure(classes: int, one: int, other: int) -> Tensor:
    """(2, c) logits of two teachers, each sure of its own class and next of the other's."""
    both = torch.full((2, classes), -2 * FAR)
    both[0, one] = both[1, other] = FAR
    both[0, other] = both[1, one] = 0.0
    return both
