"""Decomposition of a ledger into the few mechanism types that the accountant composes."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from dp_accounting import dp_event

from bench.privacy._events import shown
from bench.privacy.ledger import Entry
from bench.privacy.limits import LEAST_FLIP
from bench.privacy.units import Relation

MOST_USES = 10**300
"""Most uses of one kind; a larger number overflows a float."""
MOST_CHOICES = 2**53
LARGEST = sys.float_info.max
OUTSIDE = "a parameter is outside of its range"


@dataclass
class Composition:
    """Counts of every mechanism used; equal ones are merged, so that the order of use has no effect.

    Attributes:
        gaussian: {noise multiplier > 0: count}.
        sampled: {(sampling probability in (0, 1), noise multiplier > 0): count}, Poisson-sampled Gaussians.
        whole: {noise multiplier > 0: count}, sampled with probability 1; relative to one record's contribution, as
            `sampled`.
        laplace: {pure epsilon of one use: count}.
        response: {(pure epsilon of one use, choices >= 2): count}, randomised responses.
        unprovable: description of the first use that makes epsilon infinite; "" if there is none.
        unit_replaced: True if neighbours replace the unit.
        entry_replaced: True if an entry specifies replacement, or has a randomised response without another relation.
    """

    gaussian: Counter[float] = field(default_factory=Counter)
    sampled: Counter[tuple[float, float]] = field(default_factory=Counter)
    whole: Counter[float] = field(default_factory=Counter)
    laplace: Counter[float] = field(default_factory=Counter)
    response: Counter[tuple[float, int]] = field(default_factory=Counter)
    unprovable: str = ""
    unit_replaced: bool = False
    entry_replaced: bool = False

    @property
    def pure(self) -> bool:
        """Return whether delta = 0 can be achieved."""
        return not (self.gaussian or self.whole or self.sampled)

    @property
    def replaced(self) -> bool:
        """Return whether the guarantee is for replacement of the unit."""
        return self.unit_replaced or self.entry_replaced

    @property
    def gaussian_only(self) -> bool:
        """Return whether all mechanisms are plain Gaussians."""
        return not (self.sampled or self.laplace or self.response)

    @property
    def uses(self) -> int:
        """Return the number of uses, with all plain Gaussians as one."""
        counts = (self.sampled.values(), self.laplace.values(), self.response.values())
        return sum(map(sum, counts)) + bool(self.gaussian or self.whole)

    @property
    def kinds(self) -> int:
        """Return the number of different mechanisms, with all plain Gaussians as one."""
        return len(self.sampled) + len(self.laplace) + len(self.response) + bool(self.gaussian or self.whole)

    @property
    def pure_sum(self) -> float:
        """Return the sum of the pure epsilons of Laplace and randomised responses (basic composition).

        May be infinite.
        """
        costs = [epsilon * count for epsilon, count in self.laplace.items()]
        costs += [epsilon * count for (epsilon, _), count in self.response.items()]
        return math.fsum(costs) if sum(costs) < math.inf else math.inf

    @property
    def pure_root(self) -> float:
        """Return the root of the sum of squared pure epsilons: an epsilon-DP mechanism is (epsilon^2 / 2)-zCDP."""
        terms = [math.sqrt(count) * epsilon for epsilon, count in self.laplace.items()]
        return math.hypot(*terms, *(math.sqrt(count) * epsilon for (epsilon, _), count in self.response.items()))

    def mu(self, sampling: bool = True) -> float:
        """Return the Gaussian-DP parameter mu of the Gaussians, computed without mu^2, which might overflow.

        With `sampling` False the sampled Gaussians are added as if every record were in every sample: an upper bound.
        Under replacement one record changes a sampled sum by twice as much.
        """
        reach = 2.0 if self.replaced else 1.0
        terms = [math.sqrt(count) / z for z, count in self.gaussian.items()]
        terms += [math.sqrt(count) * reach / z for z, count in self.whole.items()]
        if not sampling:
            terms += [math.sqrt(count) * reach / z for (_, z), count in self.sampled.items()]
        return math.hypot(*terms)


def decompose(entries: Iterable[Entry], unit_replaced: bool = False) -> Composition:
    """Decompose the entries into mechanisms; an unknown event is reported in `unprovable`, never dropped."""
    parts, left_out = Composition(unit_replaced=unit_replaced), False
    for entry in entries:
        before = sum(parts.response.values())
        cause = _add(parts, entry.event, entry.count)
        responses = sum(parts.response.values()) > before
        left_out |= entry.relation is Relation.ADD_OR_REMOVE_ONE
        parts.entry_replaced |= (entry.relation or (responses and Relation.REPLACE_ONE)) is Relation.REPLACE_ONE
        if cause and not parts.unprovable:
            why = f" ({shown(entry.why, 200)})" if entry.why else ""
            parts.unprovable = f"{shown(repr(entry.event), 120)}{why}: {cause}"
    if left_out and parts.replaced and not parts.unprovable:
        parts.unprovable = "some of it is known of a unit that is left out alone, some of one that is replaced"
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
    if not (_number(multiplier) and multiplier >= 0):
        return OUTSIDE
    if multiplier == 0:
        return "no noise"
    counts[key(float(multiplier))] += count
    return ""


def _add_response(parts: Composition, noise: Any, choices: Any, count: int) -> str:
    """Add a randomised response, with epsilon = log((1 - p + p/k) / (p/k)) for replacing the true response."""
    if not (_number(noise) and 0 <= noise <= 1 and _number(choices) and 1 <= choices <= MOST_CHOICES):
        return OUTSIDE
    if choices == 1 or noise == 1:
        return ""
    flip = noise * (choices - 1) / choices
    if flip < LEAST_FLIP * (1 - 1e-6):
        return f"answers that flip with a chance of {flip:.2g}, below 2^-32, are too rare to be drawn faithfully"
    parts.response[(math.log1p(choices * (1 - noise) / noise), int(choices))] += count
    return ""


def _add_sampled(parts: Composition, event: dp_event.PoissonSampledDpEvent, count: int) -> str:
    """Add Poisson-sampled Gaussians; several on the same sample are one Gaussian with the sum of the squared mu."""
    inner = Composition()
    probability = event.sampling_probability
    if not (_number(probability) and 0 <= probability <= 1):
        return OUTSIDE
    cause = _add(inner, event.event, 1)
    if probability == 0:
        return ""
    if not inner.gaussian_only:
        return "sampling is understood of Gaussians alone"
    mu = inner.mu()
    if cause or mu == 0:
        return cause
    if math.isinf(mu):
        return "the noise is too small for floating point"
    if probability == 1:
        parts.whole[min(1 / mu, LARGEST)] += count
        return ""
    parts.sampled[(float(probability), min(1 / mu, LARGEST))] += count
    return ""


def _number(given: Any) -> TypeGuard[int | float]:
    """Return whether the value is a number that fits a float; events may hold any values."""
    return isinstance(given, int | float) and not isinstance(given, bool) and -LARGEST <= given <= LARGEST
