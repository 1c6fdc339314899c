"""Label differential privacy: randomised responses on private labels, and their privacy cost.

Neighbours differ in one private record's label, which is replaced; the images are public in this model. Most methods
here randomise a label once, before any training, and do not use the original again, so that any training on the noisy
labels, for any number of passes, is post-processing (`noisy_label_training.py`). Where labels are randomised in
disjoint parts, one after the other, a label is still used once (parallel composition). `cluster-rr` uses it twice, in a
count and in a response, and `label-protocol` in every pass: their ledgers list each use.

Privacy. Unit `label`: every use of a label, with delta = 0 for a randomised response or Laplace noise. Unit `example`:
infinite, as the private images train the student unprotected. The two units are not comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from dp_accounting import DpEvent, NonPrivateDpEvent
from torch import Tensor

from bench.api import Release
from bench.errors import BenchError
from bench.nets import Classifier
from bench.privacy import Budget, Claim, Ledger, Unit, randomised_response_event
from bench.privacy.accountant import account, accounted_curve
from bench.privacy.audit import DistinguishingGame, strongest_game
from bench.privacy.mechanisms import randomised_response
from bench.privacy.noise import Source
from bench.privacy.plays import play_of_rows

LabelMechanism = Callable[[Tensor, torch.Generator], Tensor]
"""Label mechanism: (n,) labels and a generator -> (n, d), everything that is released about the labels."""

UNITS = (Unit.LABEL, Unit.EXAMPLE)
"""Units of the ledgers of these methods."""
CHUNK = 8192
"""Most labels that are randomised at once."""
PLAYS, TRIALS = 100_000, 5_000
"""Plays of an audit's game, and plays of the trial that chooses the strongest of several games."""


def label_epsilon(budget: Budget, own: float) -> float:
    """Return the epsilon of one label's randomisation within `budget`, > 0; infinity = no noise.

    Args:
        own: the method's option `label_epsilon`, used if no budget determines epsilon.

    Raises:
        BenchError: a unit other than label and example, an account for examples, a budget solved by steps, or an option
            above the budget.
    """
    if budget.unit not in UNITS:
        raise BenchError(f"--unit {budget.unit}: labels are protected and images are not; use --unit label")
    if budget.epsilon is None:
        return own
    if math.isinf(budget.epsilon):
        return math.inf
    if budget.account == "accounted" and budget.unit != Unit.LABEL:
        raise BenchError(
            f"--account accounted --unit {budget.unit}: the private images are used unprotected, so that no "
            "finite epsilon holds for a record; add --unit label"
        )
    if budget.solve == "steps":
        raise BenchError("--solve steps: a label costs the same for any number of steps; use --solve sigma")
    if budget.solve == "sigma":
        return budget.epsilon
    if own > budget.epsilon:
        raise BenchError(
            f"--solve none: --method.label_epsilon {own:g} is over --epsilon {budget.epsilon:g}; "
            "lower it, or use --solve sigma"
        )
    return own


def respond(labels: Tensor, classes: int, epsilon: float, source: Source) -> Tensor:
    """Randomise (n,) labels: keep with probability e^epsilon / (e^epsilon + K - 1), else another class, uniformly."""
    every = torch.arange(classes, device=labels.device)
    parts = labels.split(CHUNK)
    return torch.cat([randomised_response(part, every.expand(len(part), -1), epsilon, source) for part in parts])


def response_probabilities(classes: int, epsilon: float) -> tuple[float, float]:
    """Return the probabilities that `respond` returns the true class, and each other class.

    >>> [round(p, 4) for p in response_probabilities(10, math.log(11))]
    [0.55, 0.05]
    """
    odds = math.exp(-epsilon)
    kept = 1 / (1 + (classes - 1) * odds)
    return kept, kept * odds


def response_event(epsilon: float, choices: int) -> DpEvent:
    """Return the event of one randomised response; without noise, the event of an unprotected use."""
    return NonPrivateDpEvent() if math.isinf(epsilon) else randomised_response_event(epsilon, choices)


def label_ledger(event: DpEvent, why: str, count: int = 1) -> Ledger:
    """Return the ledger of one label's randomisation, with the images as an unprotected use."""
    ledger = Ledger()
    ledger.spend(event, count=count, unit=Unit.LABEL, why=why)
    ledger.spend(NonPrivateDpEvent(), unit=Unit.EXAMPLE, why="the private images train the student unprotected")
    return ledger


def label_claim(epsilon: float, source: str, delta: float = 0.0) -> Claim:
    """Return the paper's claim for one label."""
    return Claim(epsilon, delta, Unit.LABEL, source)


def label_game(
    answer: LabelMechanism, pairs: list[tuple[int, int]], ledger: Ledger, claim: Claim, delta: float
) -> DistinguishingGame:
    """Build the game of one label's randomised response, for the pair of labels that is easiest to distinguish.

    Args:
        answer: the mechanism, for (n,) labels.
        pairs: candidate pairs of classes: the label in world 0 and in world 1.
        ledger, claim: ledger and claim of one label's use.
    """
    accounted, curve = account(ledger, Unit.LABEL, delta), accounted_curve(ledger, Unit.LABEL)
    game_delta = max(claim.delta, accounted.delta if accounted.finite else 0.0)

    def game(pair: tuple[int, int]) -> DistinguishingGame:
        classes = torch.tensor(pair)
        play = play_of_rows(lambda numbers, rng: answer(classes[numbers], rng).double())
        describe = f"the release about one label, of class {pair[0]} or {pair[1]}"
        return DistinguishingGame(play, claim.epsilon, accounted.epsilon, game_delta, describe, curve, PLAYS)

    return strongest_game([game(pair) for pair in pairs], TRIALS) if len(pairs) > 1 else game(pairs[0])


def released(model: Classifier, student: str, ledger: Ledger, claim: Claim, epsilon: float, **solved: float) -> Release:
    """Build the release of a trained student with its ledger; finite calibrated values go into the record."""
    if math.isfinite(epsilon):
        solved["label_epsilon"] = epsilon
    return Release(model, student, ledger, claim, solved=solved)
