"""Decomposition of a ledger into the few mechanism types that the accountant composes."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from dp_accounting import dp_event

from bench.privacy._event_json import shorten
from bench.privacy.budget import Relation
from bench.privacy.events import LEAST_FLIP
from bench.privacy.ledger import Entry

MOST_USES = 10**300
"""Most uses of one kind; a larger number overflows a float."""
MOST_CHOICES = 2**53
LARGEST = sys.float_info.max
# The reasons below are notes in records and bundles, which `bench verify` compares: their wording cannot change
OUTSIDE = "a parameter is outside of its range"


@dataclass
class Composition:
    """The mechanisms in a ledger and their numbers of uses; equal ones are merged, so the order of use has no effect.

    Attributes:
        gaussian: {noise multiplier > 0: count}.
        sampled: {(sampling probability in (0, 1), noise multiplier > 0): count}, Poisson-sampled Gaussians.
        unsampled: {noise multiplier > 0: count}, Poisson-sampled Gaussians of probability 1; the multiplier is relative
            to one record's contribution, as in `sampled`.
        laplace: {pure epsilon of one use: count}.
        response: {(pure epsilon of one use, choices >= 2): count}, randomised responses.
        why_infinite: description of the first use that makes epsilon infinite; "" if there is none.
        unit_replaced: True if neighbours replace the unit.
        entry_replaced: True if an entry specifies replacement, or has a randomised response without another relation.
    """

    gaussian: Counter[float] = field(default_factory=Counter)
    sampled: Counter[tuple[float, float]] = field(default_factory=Counter)
    unsampled: Counter[float] = field(default_factory=Counter)
    laplace: Counter[float] = field(default_factory=Counter)
    response: Counter[tuple[float, int]] = field(default_factory=Counter)
    why_infinite: str = ""
    unit_replaced: bool = False
    entry_replaced: bool = False

    @property
    def is_pure(self) -> bool:
        """Return whether delta = 0 can be achieved."""
        return not (self.gaussian or self.unsampled or self.sampled)

    @property
    def is_replaced(self) -> bool:
        """Return whether the guarantee is for replacement of the unit."""
        return self.unit_replaced or self.entry_replaced

    @property
    def is_gaussian(self) -> bool:
        """Return whether all mechanisms are Gaussians without sampling."""
        return not (self.sampled or self.laplace or self.response)

    @property
    def uses(self) -> int:
        """Return the number of uses, with all Gaussians without sampling as one."""
        counts = (self.sampled.values(), self.laplace.values(), self.response.values())
        return sum(map(sum, counts)) + bool(self.gaussian or self.unsampled)

    @property
    def kinds(self) -> int:
        """Return the number of different mechanisms, with all Gaussians without sampling as one."""
        return len(self.sampled) + len(self.laplace) + len(self.response) + bool(self.gaussian or self.unsampled)

    @property
    def pure_epsilon(self) -> float:
        """Return the sum of the pure epsilons of Laplace and randomised responses (basic composition).

        May be infinite.
        """
        costs = [epsilon * count for epsilon, count in self.laplace.items()]
        costs += [epsilon * count for (epsilon, _), count in self.response.items()]
        return math.fsum(costs) if sum(costs) < math.inf else math.inf

    @property
    def pure_mu(self) -> float:
        """Return sqrt(2 rho) of the pure mechanisms: an epsilon-DP mechanism is (epsilon^2 / 2)-zCDP."""
        terms = [math.sqrt(count) * epsilon for epsilon, count in self.laplace.items()]
        return math.hypot(*terms, *(math.sqrt(count) * epsilon for (epsilon, _), count in self.response.items()))

    def mu(self, sampling: bool = True) -> float:
        """Return the Gaussian-DP parameter mu of the Gaussians, computed without mu^2, which might overflow.

        With `sampling` False the sampled Gaussians are added as if every record were in every sample: an upper bound.
        Under replacement one record changes a sampled sum by twice as much.
        """
        sensitivity = 2.0 if self.is_replaced else 1.0
        terms = [math.sqrt(count) / z for z, count in self.gaussian.items()]
        terms += [math.sqrt(count) * sensitivity / z for z, count in self.unsampled.items()]
        if not sampling:
            terms += [math.sqrt(count) * sensitivity / z for (_, z), count in self.sampled.items()]
        return math.hypot(*terms)


def decompose(entries: Iterable[Entry], unit_replaced: bool = False) -> Composition:
    """Decompose the entries into mechanisms; an unknown event is reported in `why_infinite`, never dropped."""
    parts, any_removed = Composition(unit_replaced=unit_replaced), False
    for entry in entries:
        before = sum(parts.response.values())
        cause = _add(parts, entry.event, entry.count)
        has_responses = sum(parts.response.values()) > before
        any_removed |= entry.relation is Relation.ADD_OR_REMOVE_ONE
        parts.entry_replaced |= (entry.relation or (has_responses and Relation.REPLACE_ONE)) is Relation.REPLACE_ONE
        if cause and not parts.why_infinite:
            why = f" ({shorten(entry.why, 200)})" if entry.why else ""
            parts.why_infinite = f"{shorten(repr(entry.event), 120)}{why}: {cause}"
    if any_removed and parts.is_replaced and not parts.why_infinite:
        parts.why_infinite = "some of it is known of a unit that is left out alone, some of one that is replaced"
    return parts


def _add(parts: Composition, event: dp_event.DpEvent, count: int) -> str:
    """Add `event` to the counts; return why its epsilon is infinite, or "" if it is finite."""
    if count > MOST_USES:
        return "more than 10^300 uses, a number beyond floating point"
    match event:
        case dp_event.NoOpDpEvent():
            return ""
        case dp_event.SelfComposedDpEvent():
            if not isinstance(event.count, int) or event.count < 0:
                return OUTSIDE
            return _add(parts, event.event, count * event.count) if event.count else ""
        case dp_event.ComposedDpEvent():
            return next(filter(None, [_add(parts, each, count) for each in event.events]), "")
        case dp_event.GaussianDpEvent():
            return _add_noise(parts.gaussian, event.noise_multiplier, count, lambda noise: noise)
        case dp_event.LaplaceDpEvent():
            return _add_noise(parts.laplace, event.noise_multiplier, count, lambda noise: 1 / noise)
        case dp_event.RandomizedResponseDpEvent():
            return _add_response(parts, event.noise_parameter, event.num_buckets, count)
        case dp_event.PoissonSampledDpEvent():
            return _add_sampled(parts, event, count)
    return "nothing finite is known of it"


def _add_noise(counts: Counter[float], multiplier: Any, count: int, key: Callable[[float], float]) -> str:
    if not (_is_number(multiplier) and multiplier >= 0):
        return OUTSIDE
    if multiplier == 0:
        return "no noise"
    counts[key(float(multiplier))] += count
    return ""


def _add_response(parts: Composition, noise: Any, choices: Any, count: int) -> str:
    """Add a randomised response, of epsilon log((1 - p + p/k) / (p/k)) for a replaced true response.

    Args:
        noise: p, the probability of a uniform draw over the k choices.
        choices: k.

    Returns:
        As `_add`.
    """
    if not (_is_number(noise) and 0 <= noise <= 1 and _is_number(choices) and 1 <= choices <= MOST_CHOICES):
        return OUTSIDE
    if choices == 1 or noise == 1:
        return ""
    flip = noise * (choices - 1) / choices
    if flip < LEAST_FLIP * (1 - 1e-6):
        return f"answers that flip with a chance of {flip:.2g}, below 2^-32, are too rare to be drawn faithfully"
    parts.response[(math.log1p(choices * (1 - noise) / noise), int(choices))] += count
    return ""


def _add_sampled(parts: Composition, event: dp_event.PoissonSampledDpEvent, count: int) -> str:
    """Add Poisson-sampled Gaussians; several on the same sample are one Gaussian with the sum of the squared mu.

    Returns:
        As `_add`.
    """
    inner = Composition()
    probability = event.sampling_probability
    if not (_is_number(probability) and 0 <= probability <= 1):
        return OUTSIDE
    cause = _add(inner, event.event, 1)
    if probability == 0:
        return ""
    if not inner.is_gaussian:
        return "sampling is understood of Gaussians alone"
    mu = inner.mu()
    if cause or mu == 0:
        return cause
    if math.isinf(mu):
        return "the noise is too small for floating point"
    multiplier = min(1 / mu, LARGEST)
    if probability == 1:
        parts.unsampled[multiplier] += count
    else:
        parts.sampled[(float(probability), multiplier)] += count
    return ""


def _is_number(given: Any) -> TypeGuard[int | float]:
    """Return whether the value is a number that fits a float; events may hold any values."""
    return isinstance(given, int | float) and not isinstance(given, bool) and -LARGEST <= given <= LARGEST
