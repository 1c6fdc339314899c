"""Distinguishing games for private annotation (DPSD, DPDFD, FedDPSD): the worst-case pairs of teachers, for audits.

The two worlds of a game are two teachers (or ensembles). A play is the output of a method's own step for one synthetic
image: the student's target, or the log-likelihoods of the teacher's response. The adversary chooses the student's
logits, as DPSD's Theorems 1 and 2 allow. The unit is `query`, and for many teachers `example`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters
from bench.nets import Ensemble
from bench.privacy import Claim, Ledger, Unit
from bench.privacy.accountant import account, accounted_curve
from bench.privacy.audit import DistinguishingGame, Play, strongest_game
from bench.privacy.noise import Source
from bench.privacy.plays import play_of_batches, play_of_rows

FAR = 30.0
"""Logit gap between a probable and an improbable class, whose probability float32 can still represent."""
PLAYS, BATCHES, TRIALS = 100_000, 2_000, 5_000
"""Plays of games with noise per row, with noise per batch, and of the trial that chooses the strongest of several."""
LOGIT_GAP = 8.0
"""For a flat student: difference of a teacher's logit of one class from all others."""
SHARED = 2
"""Index of the image that both worlds share: on it the teacher agrees with the student, so the gradient is 0."""
Step = Callable[[Tensor, nn.Module, nn.Module, Source], Tensor]
"""A method's step: (m, c, h, w) images, student, teacher (or ensemble), noise -> (m, d), everything about the teacher
that the student's training uses."""


def gradient_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, flat: bool = False
) -> DistinguishingGame:
    """Build the game of data mode: two teachers with opposite gradients, so that the bounded rows are 2 beta apart.

    The student is undecided between two classes and each teacher is confident of one of them. If the gradient is taken
    at a flat output, one teacher favours a class and the other disfavours it. With noise per row a play is a row; with
    noise per batch it is a batch, whose first image differs between the worlds, and its noisy mean.
    """
    student, teachers = _gradient_pair(mechanism.classes, flat)
    teacher = TableNetwork(teachers)

    def responses(numbers: Tensor, generator: torch.Generator) -> Tensor:
        return step(numbered_images(numbers), student, teacher, generator).double()

    opposite = "two teachers whose gradients are opposite"
    if mechanism.per_row:
        play, describe = play_of_rows(responses, SHARED), f"one noisy gradient; {opposite}"
        return _game(play, mechanism, parameters, delta, describe, PLAYS)
    play = play_of_batches(responses, mechanism.batch, SHARED)
    describe = f"the noisy mean gradient of {mechanism.batch} images; {opposite}"
    return _game(play, mechanism, parameters, delta, describe, BATCHES)


def response_game(
    step: Step,
    mechanism: AnnotationMechanism,
    parameters: AnnotationParameters,
    delta: float,
    clients: tuple[int, ...] = (),
) -> DistinguishingGame:
    """Build the game of label mode: two teachers whose classes are both candidates, or only one of them is.

    The pair that is easier to distinguish in a short trial is returned.

    Args:
        clients: for a federation, numbers of clients to try; all except one respond the same in both worlds. () = none.
    """
    classes, k = mechanism.classes, parameters.k
    by_number = torch.arange(classes, dtype=torch.float32) * min(1.0, FAR / classes)  # all below FAR
    student = TableNetwork(-by_number.expand(2, -1))
    outside = [(0, k, "one class is not a candidate")] if k < classes else []

    def pair(one: int, other: int, what: str, teachers: int) -> DistinguishingGame:
        table = torch.stack([-by_number, by_number])  # the teachers also rank all other classes in opposite orders
        table[0, one] = table[1, other] = FAR
        teacher = _with_others(table, teachers)

        def responses(numbers: Tensor, generator: torch.Generator) -> Tensor:
            return step(numbered_images(numbers), student, teacher, generator).double()

        of = f"{teachers} randomised responses" if teachers > 1 else "one randomised response"
        describe = f"{of} over {k} of {classes} classes; two teachers, {what}"
        return _game(play_of_rows(responses), mechanism, parameters, delta, describe, PLAYS)

    pairs = [(0, 1, "both classes are candidates"), *outside]
    return strongest_game([pair(*each, m) for m in clients or (0,) for each in pairs], TRIALS)


def ensemble_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, flat: bool = False
) -> DistinguishingGame:
    """Build the game of many teachers, for unit `example`: in each world an ensemble of two teachers.

    The gradients of one teacher are opposite in the two worlds; the other teacher responds the same in both.
    """
    return _game_of_sums(step, mechanism, delta, flat, mechanism.answer_ledger(parameters), Unit.EXAMPLE)


def client_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, clients: int
) -> DistinguishingGame:
    """Build the game of a federation's gradients: those of one client are opposite in the two worlds, others equal.

    Args:
        clients: number of clients played, 1 or 2; the ledger is that of one client's response to one image.
    """
    once, one_client = replace(parameters, iterations=1), replace(mechanism, clients=1)
    claim = mechanism.claim(once, delta)
    return _game_of_sums(step, mechanism, delta, False, one_client.ledger(once), Unit.QUERY, clients, claim)


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
    """Build a game of noisy sums of the normalised gradients of several teachers, of which one differs.

    Args:
        claim: the paper's; None = the accountant's epsilon.
    """
    student, teachers = _gradient_pair(mechanism.classes, flat)
    ensemble = _with_others(teachers, members)

    def responses(numbers: Tensor, generator: torch.Generator) -> Tensor:
        return step(numbered_images(numbers), student, ensemble, generator).double()

    accounted = account(ledger, unit, delta)
    return DistinguishingGame(
        play=play_of_rows(responses, SHARED),
        claimed=accounted.epsilon if claim is None else claim.epsilon,
        accounted=accounted.epsilon,
        delta=accounted.delta if accounted.finite else 0.0,
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
    """Build a game with the claim of the paper's theorem for one batch, and the ledger of one response."""
    once = replace(parameters, iterations=1)
    claim = mechanism.claim(once, delta) or Claim(math.inf, delta, Unit.QUERY, "none")
    ledger = mechanism.ledger(once)
    accounted = account(ledger, Unit.QUERY, delta)
    largest_delta = max(claim.delta, accounted.delta if accounted.finite else 0.0)
    curve = accounted_curve(ledger, Unit.QUERY)
    return DistinguishingGame(play, claim.epsilon, accounted.epsilon, largest_delta, describe, curve, plays)


def _with_others(table: Tensor, members: int) -> nn.Module:
    """Return the teacher of a table, or an ensemble of it and of others that always respond with row 0.

    Args:
        members: size of the ensemble; 0 = only the teacher.
    """
    if not members:
        return TableNetwork(table)
    others = [TableNetwork(table[0].expand_as(table)) for _ in range(members - 1)]
    return Ensemble([TableNetwork(table), *others], table.shape[1])  # type: ignore[list-item]


def _gradient_pair(classes: int, flat: bool) -> tuple[nn.Module, Tensor]:
    """Return a student and (3, c) logits: two teachers with opposite gradients at its output, one with gradient 0."""
    if not flat:
        undecided = torch.tensor([0.0, 0.0] + [-FAR] * (classes - 2))  # (1/2, 1/2, 0, 0, ...)
        confident = torch.full((2, classes), -2 * FAR)  # each teacher has the other's class second
        confident[0, 0] = confident[1, 1] = FAR
        confident[0, 1] = confident[1, 0] = 0.0
        return TableNetwork(undecided.expand(3, -1)), torch.cat([confident, undecided[None]])
    logits = torch.zeros(classes)
    logits[0] = LOGIT_GAP
    return TableNetwork(torch.zeros(3, classes)), torch.stack([logits, -logits, 0 * logits])


class TableNetwork(nn.Module):
    """A toy classifier of numbered images: the logits of an image whose first pixel is i are row i of a table.

    Args:
        table: (images, classes) logits.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.body = nn.Identity()  # an ensemble looks here for features that its members share

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n, classes)."""
        return self.table[images[:, 0, 0, 0].long()]


def numbered_images(numbers: Tensor) -> Tensor:
    """Return (n, 1, 1, 1) images of (n,) numbers."""
    return numbers.float().view(-1, 1, 1, 1)


def classify_by_number(*classes: int, of: int) -> TableNetwork:
    """Return a network that classifies image i as the i-th of these classes.

    Args:
        of: number of all classes.
    """
    return TableNetwork(torch.nn.functional.one_hot(torch.tensor(classes), of).float())
