"""A ledger taken apart into the few mechanisms that the accountant composes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from dp_accounting import dp_event

from bench.privacy.ledger import Entry


@dataclass
class Parts:
    """Counts of every mechanism used, equal ones merged, so that their order cannot matter.

    Attributes:
        gaussian: {noise multiplier > 0: count}.
        sampled: {(sampling probability in (0, 1), noise multiplier > 0): count}, Poisson-sampled Gaussians.
        laplace: {pure epsilon of one use: count}.
        response: {(pure epsilon of one use, choices >= 2): count}, randomised responses.
        unprovable: in words, the first use that makes epsilon infinite; "" if there is none.
    """

    gaussian: Counter[float] = field(default_factory=Counter)
    sampled: Counter[tuple[float, float]] = field(default_factory=Counter)
    laplace: Counter[float] = field(default_factory=Counter)
    response: Counter[tuple[float, int]] = field(default_factory=Counter)
    unprovable: str = ""

    @property
    def pure(self) -> bool:
        """Whether delta = 0 can be promised."""
        return not (self.gaussian or self.sampled)

    @property
    def pure_sum(self) -> float:
        """Basic composition of the Laplace and randomised-response parts."""
        laplace = [epsilon * count for epsilon, count in self.laplace.items()]
        return math.fsum(laplace + [epsilon * count for (epsilon, _), count in self.response.items()])

    def mu_squared(self, sampling: bool = True) -> float:
        """Squared Gaussian-DP parameter of the Gaussians.

        With `sampling` False the sampled Gaussians are added as if every record were in every sample: an upper bound.
        Beside randomised responses the relation is replacement, where one record moves a sampled sum twice as far.
        """
        terms = [count * (1 / z) * (1 / z) for z, count in self.gaussian.items()]
        if not sampling:
            reach = 2.0 if self.response else 1.0
            terms += [count * (reach / z) * (reach / z) for (_, z), count in self.sampled.items()]
        return math.fsum(terms)


def take_apart(entries: Iterable[Entry]) -> Parts:
    """The mechanisms of these entries; what is not understood is named in `unprovable`, never left out."""
    parts = Parts()
    for entry in entries:
        if not _add(parts, entry.event, entry.count) and not parts.unprovable:
            parts.unprovable = repr(entry.event) + (f" ({entry.why})" if entry.why else "")
    return parts


def _add(parts: Parts, event: dp_event.DpEvent, count: int) -> bool:
    """Count `event` in; False if nothing finite can be proved of it."""
    match event:
        case dp_event.NoOpDpEvent():
            return True
        case dp_event.SelfComposedDpEvent():
            return event.count >= 0 and (event.count == 0 or _add(parts, event.event, count * event.count))
        case dp_event.ComposedDpEvent():
            return all([_add(parts, each, count) for each in event.events])
        case dp_event.GaussianDpEvent():
            return _add_gaussian(parts, event.noise_multiplier, count)
        case dp_event.LaplaceDpEvent():
            return _add_laplace(parts, event.noise_multiplier, count)
        case dp_event.RandomizedResponseDpEvent():
            return _add_response(parts, event.noise_parameter, event.num_buckets, count)
        case dp_event.PoissonSampledDpEvent():
            return _add_sampled(parts, event, count)
    return False


def _add_gaussian(parts: Parts, multiplier: float, count: int) -> bool:
    if not multiplier > 0:
        return False
    if math.isfinite(multiplier):
        parts.gaussian[multiplier] += count
    return True


def _add_laplace(parts: Parts, multiplier: float, count: int) -> bool:
    if not multiplier > 0:
        return False
    if math.isfinite(multiplier):
        parts.laplace[1 / multiplier] += count
    return True


def _add_response(parts: Parts, noise: float, choices: int, count: int) -> bool:
    """epsilon = log((1 - p + p/k) / (p/k)) for replacing the true answer by another."""
    if not (0 <= noise <= 1 and choices >= 1):
        return False
    if choices == 1 or noise == 1:
        return True
    if noise == 0:
        return False
    parts.response[(math.log1p(choices * (1 - noise) / noise), choices)] += count
    return True


def _add_sampled(parts: Parts, event: dp_event.PoissonSampledDpEvent, count: int) -> bool:
    """Poisson sampling of Gaussians only; several on the same sample are one Gaussian of the summed mu squared."""
    inner = Parts()
    probability = event.sampling_probability
    understood = _add(inner, event.event, 1) and not (inner.sampled or inner.laplace or inner.response)
    if probability == 0 or (understood and not inner.gaussian):
        return 0 <= probability <= 1
    if not (understood and 0 < probability <= 1):
        return False
    mu = math.sqrt(inner.mu_squared())
    multiplier = 1 / mu if mu > 0 else math.inf
    if probability == 1 or not 0 < multiplier < math.inf:
        return _add_gaussian(parts, multiplier, count)
    parts.sampled[(probability, multiplier)] += count
    return True
