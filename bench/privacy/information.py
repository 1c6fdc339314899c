"""Upper bounds on the information of noisy responses, in nats, and the accuracy that it permits (docs/information.md).

Epsilon bounds what a response reveals about one private record; information bounds what all responses together reveal
about anything. A response is one use of a channel: its input depends on the private data and on earlier responses, its
noise is fresh. By the chain rule the responses of a run carry at most the sum of their channels' capacities, even if
each query depends on earlier responses (Shannon 1948; Cover and Thomas, Elements of Information Theory, ch. 7 and 9).

A method is symmetric in class names if renaming the private classes only renames its student's outputs. Such a method
has an expected accuracy of 1 / c without responses. By Fano's inequality a higher accuracy requires the information
that it takes to name the classes: `needed`, and its inverse `most_accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.privacy.budget import Unit, epsilon_from_json, epsilon_to_json

if TYPE_CHECKING:
    from bench.privacy.ledger import Ledger

HALVINGS = 60
"""Number of bisection steps of `most_accuracy`; after them the float64 interval cannot shrink further."""


def gaussian_capacity(noise: float, coordinates: int = 0) -> float:
    """Return an upper bound, in nats, on the information in one vector of a ball with independent Gaussian noise.

    (c/2) log(1 + 1/(c s^2)): the entropy of the sum is largest for a Gaussian of the same power, spread evenly (Cover
    and Thomas, ch. 9). It grows with c and tends to 1/(2 s^2).

    Args:
        noise: s >= 0, the noise's standard deviation over the ball's radius; 0 gives infinity.
        coordinates: c >= 1, or 0 if the number is not known: then 1/(2 s^2).

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> gaussian_capacity(100.0), round(gaussian_capacity(100.0, 10) / 5e-5, 6)
    (5e-05, 0.999995)
    """
    inverse = _inverse("noise", noise)
    _count("coordinates", coordinates, 0)
    power = inverse * inverse
    return coordinates / 2 * math.log1p(power / coordinates) if coordinates else power / 2


def laplace_capacity(noise: float, coordinates: int = 0) -> float:
    """Return an upper bound, in nats, on the information in one vector of bounded L1 norm with Laplace noise.

    c log(1 + 1/(c s)): of all laws with the same mean magnitude the Laplace law has the largest entropy. It grows with
    c and tends to 1/s.

    Args:
        noise: s >= 0, the noise's scale over the bound on the L1 norm; 0 gives infinity.
        coordinates: as in `gaussian_capacity`.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> laplace_capacity(0.5), round(laplace_capacity(0.5, 1), 6)
    (2.0, 1.098612)
    """
    inverse = _inverse("noise", noise)
    _count("coordinates", coordinates, 0)
    return coordinates * math.log1p(inverse / coordinates) if coordinates else inverse


def response_capacity(epsilon: float, choices: int) -> float:
    """Return the exact capacity, in nats, of a randomised response over k candidates: log k minus its noise entropy.

    The channel is symmetric, so uniform inputs are optimal. A label that is not a candidate, for which the response is
    uniform over the candidates, is one more input whose output equals the uniform mixture: it adds nothing
    (docs/information.md).

    Args:
        epsilon: >= 0, or infinity: a label without noise.
        choices: k >= 1.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> round(response_capacity(1.0, 10), 4), round(response_capacity(1.0, 3), 3), response_capacity(math.inf, 1)
    (0.0734, 0.123, 0.0)
    """
    if not epsilon >= 0:
        raise BenchError(f"the epsilon of a randomised response is {epsilon}; expected a number >= 0 or inf")
    _count("choices", choices, 1)
    odds = (choices - 1) * math.exp(-epsilon)
    lost = odds / (1 + odds) * epsilon if odds else 0.0
    return max(0.0, math.log(choices) - math.log1p(odds) - lost)


def selective_capacity(epsilon: float, classes: int) -> float:
    """Return an upper bound, in nats, on the information in one randomised response with 2 to c candidates.

    Args:
        epsilon: as in `response_capacity`.
        classes: c >= 2.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> round(selective_capacity(1.0, 10), 4), round(selective_capacity(math.inf, 10), 4)
    (0.1233, 2.3026)
    """
    _count("classes", classes, 2)
    return max(response_capacity(epsilon, choices) for choices in range(2, classes + 1))


def noise_over_radius(multiplier: float) -> float:
    """Convert noise relative to the largest distance of vectors to noise relative to the radius of their ball.

    Vectors with pairwise distances of at most D are in a ball of radius D sqrt(n / (2 (n + 1))) < D / sqrt(2) in n
    dimensions (Jung 1901). The sensitivity is such a D only if the neighbours of a ledger's event are *any* two states
    of the private data. If D is twice a bound on the norms, the radius is D / 2 and this is not needed.

    >>> round(noise_over_radius(100.0), 4)
    141.4214
    """
    return math.sqrt(2) * multiplier


def needed(accuracy: float, classes: int) -> float:
    """Return a lower bound on the information, in nats, that a method symmetric in class names needs for an accuracy.

    sum over j = 2..c of max(0, log j - phi(a)), phi(a) = h(a) + (1 - a) log(c - 1), h the binary entropy: naming the
    classes one after another, of which j are left, minus the uncertainty that Fano's inequality permits at accuracy a.
    It is at least log c! - c phi(a), the bound for all classes at once.

    Args:
        accuracy: a in [0, 1], expected over the method's draws, with equal weight of every class (`even_accuracy`).
        classes: c >= 2.

    Returns:
        >= 0; 0 up to an accuracy of 1/c, log c! at 1.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> round(needed(0.9785, 10), 4), round(needed(1.0, 10), 4), needed(0.1, 10)
    (13.7449, 15.1044, 0.0)
    """
    if not 0 <= accuracy <= 1:
        raise BenchError(f"the accuracy is {accuracy}; expected 0 to 1")
    _count("classes", classes, 2)
    if accuracy * classes <= 1:
        return 0.0
    left_open = fano(accuracy, classes)
    return math.fsum(max(0.0, math.log(j) - left_open) for j in range(2, classes + 1))


def fano(accuracy: float, classes: int) -> float:
    """Return phi(a) = h(a) + (1 - a) log(c - 1) in nats: Fano's bound on the uncertainty left by a guess of accuracy a.

    >>> fano(1.0, 10), round(fano(0.1, 10) - math.log(10), 12)
    (0.0, 0.0)
    """
    missed = 1 - accuracy
    entropy = -math.fsum(share * math.log(share) for share in (accuracy, missed) if share > 0)
    return entropy + missed * math.log(classes - 1)


def most_accuracy(nats: float, classes: int) -> float:
    """Return the largest accuracy that this much information permits: the inverse of `needed`, rounded up.

    Args:
        nats: >= 0, or infinity.
        classes: c >= 2.

    Returns:
        From 1/c at 0 nats to 1 at log c!, with equal weight of every class.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> round(most_accuracy(2.56, 10), 4), most_accuracy(0.0, 2), most_accuracy(math.inf, 10)
    (0.5965, 0.5, 1.0)
    """
    if not nats >= 0:
        raise BenchError(f"the information is {nats} nats; expected a number >= 0 or inf")
    if nats == 0 or needed(1.0, classes) <= nats:
        return 1.0 if nats else 1 / classes
    low, high = 1 / classes, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if needed(middle, classes) <= nats:
            low = middle
        else:
            high = middle
    return high


def most_chance(accuracy: float, nats: float, classes: int) -> float:
    """Return an upper bound on the probability that a run reaches an accuracy by luck, given its information.

    The largest p with p log(p/q) + (1 - p) log((1 - p)/(1 - q)) <= nats, where q is the chance of a response without
    any information. Two namings of the classes for which one student has accuracy a differ in at most 2 c (1 - a)
    names, so q is the number of permutations that move no more, over c!.

    Args:
        accuracy: a in [0, 1], of one student, with equal weight of every class.
        nats: >= 0, or infinity.
        classes: c >= 2.

    Returns:
        A probability, rounded up.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> round(most_chance(0.9785, 2.56, 10), 3), most_chance(0.5, 2.56, 2)
    (0.203, 1.0)
    """
    if not (0 <= accuracy <= 1 and nats >= 0):
        raise BenchError(f"accuracy {accuracy} and {nats} nats; expected 0 to 1, and a number >= 0 or inf")
    _count("classes", classes, 2)
    moved = min(classes, math.floor(2 * classes * (1 - accuracy) + 1e-9))
    derangements, permutations = 1, 0
    for m in range(moved + 1):  # derangements of m items: 1, 0, 1, 2, 9, ...
        derangements = m * derangements + (-1) ** m if m else 1
        permutations += math.comb(classes, m) * derangements
    blind = permutations / math.factorial(classes)
    if -math.log(blind) <= nats:
        return 1.0
    low, high = blind, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        divergence = middle * math.log(middle / blind) + (1 - middle) * math.log((1 - middle) / (1 - blind))
        low, high = (middle, high) if divergence <= nats else (low, middle)
    return high


def even_accuracy(accuracy: float, smallest_share: float, classes: int) -> float:
    """Return the smallest class-balanced accuracy consistent with a test accuracy, by the smallest class's share.

    1 - (1 - a) / (c w): all errors may be in the class that has the smallest share w of the test set.

    Args:
        accuracy: a in [0, 1], over all test images.
        smallest_share: w in (0, 1/c].
        classes: c >= 2.

    >>> round(even_accuracy(0.9785, 0.0892, 10), 6), even_accuracy(0.9, 0.1, 10)
    (0.975897, 0.9)
    """
    return max(0.0, 1 - (1 - accuracy) / (classes * smallest_share))


@dataclass(frozen=True)
class Information:
    """Upper bound on the information about the private data in all responses of a release.

    Attributes:
        nats: the upper bound; infinity if unbounded, None if unknown.
        why: description of the sum, or the reason for a missing number.
        classes: c of the private data; 0 if unknown.
    """

    nats: float | None
    why: str
    classes: int = 0

    @property
    def most_accuracy(self) -> float | None:
        """Return the largest accuracy that the nats permit for a method symmetric in class names; None if unknown."""
        return most_accuracy(self.nats, self.classes) if self.nats is not None and self.classes >= 2 else None

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        nats = None if self.nats is None else epsilon_to_json(self.nats)
        return {"nats": nats, "why": self.why, "classes": self.classes}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Information:
        """Rebuild from `to_json`; raise ValueError for nats that are neither a number, nor "inf", nor null."""
        nats = item["nats"]
        return cls(None if nats is None else epsilon_from_json(nats), str(item["why"]), int(item["classes"]))


def of_ledger(ledger: Ledger, classes: int = 0) -> Information:
    """Return the information of a release: the sum over its ledger entries of unit `example`, which list every use.

    An entry with a `carries` value adds that; an unprotected use without one is infinite; any other use without one
    (private training, moments) makes the sum unknown. The other units describe the same uses again.
    """
    known = {"NoOpDpEvent": 0.0, "NonPrivateDpEvent": math.inf}
    carried = [
        (known.get(type(entry.event).__name__) if entry.carries is None else entry.carries, entry.why)
        for entry in ledger.entries(Unit.EXAMPLE)
    ]
    return total(carried, classes)


def total(carried: Sequence[tuple[float | None, str]], classes: int = 0) -> Information:
    """Return the sum over uses of the private data, each with its nats (None = unknown) and a description.

    An unbounded use makes the sum infinite; otherwise an unknown use, or no use at all, makes it unknown.
    """
    for limit, cause in ((math.inf, "nothing bounds this"), (None, "no capacity is known of this")):
        for nats, why in carried:
            if nats == limit:
                return Information(limit, f"{cause}: {why}", classes)
    if not carried:
        return Information(None, "the ledger does not speak of private records", classes)
    named = "; ".join(dict.fromkeys(why for _, why in carried))
    return Information(math.fsum(nats or 0.0 for nats, _ in carried), named, classes)


def _inverse(name: str, given: float) -> float:
    """Return 1 / given, infinity for 0; refuses negative values and NaN."""
    if not given >= 0:
        raise BenchError(f"{name} is {given}; expected a number >= 0")
    return 1 / given if given else math.inf


def _count(name: str, given: int, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise BenchError(f"{name} is {given}; expected a whole number >= {least}")
