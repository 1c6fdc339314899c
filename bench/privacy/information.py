"""What noisy answers can carry at most, in nats, and the accuracy that needs them: docs/information.md has the proofs.

Epsilon bounds what an answer says of one private record; information bounds what all answers together say of anything.
An answer is one use of a channel: its input depends on the private data and on earlier answers, its noise is fresh.
By the chain rule the answers of a run carry at most the sum of their channels' capacities, also where each question
was chosen by what earlier answers said (Shannon 1948; Cover and Thomas, Elements of Information Theory, ch. 7 and 9).

A method that treats class names symmetrically knows no name before it asks. By Fano's inequality an accuracy needs so
many nats as naming the classes takes: `needed`, and the other way `most_accuracy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.privacy.budget import epsilon_from_json, epsilon_to_json
from bench.privacy.units import Unit

if TYPE_CHECKING:
    from bench.privacy.ledger import Entry, Ledger

HALVINGS = 60
"""Of the interval that `most_accuracy` looks in: float64 has nothing left to halve."""


def gaussian_capacity(noise: float, coordinates: int = 0) -> float:
    """Nats that one vector in a ball carries through independent Gaussian noise on each coordinate, at most.

    (c/2) log(1 + 1/(c s^2)): the entropy of the sum is largest for a Gaussian of the same power, spread evenly (Cover
    and Thomas, ch. 9). It grows with c and tends to 1/(2 s^2).

    Args:
        noise: s >= 0, the noise's standard deviation over the ball's radius; 0 gives infinity.
        coordinates: c >= 1, or 0 where their number is not known: then 1/(2 s^2).

    Raises:
        BenchError: a value outside of these ranges, NaN included.

    >>> gaussian_capacity(100.0), round(gaussian_capacity(100.0, 10) / 5e-5, 6)
    (5e-05, 0.999995)
    """
    inverse = _inverse("noise", noise)
    _count("coordinates", coordinates, 0)
    power = inverse * inverse
    return coordinates / 2 * math.log1p(power / coordinates) if coordinates else power / 2


def laplace_capacity(noise: float, coordinates: int = 0) -> float:
    """Nats that one vector of bounded L1 norm carries through independent Laplace noise on each coordinate, at most.

    c log(1 + 1/(c s)): of all laws with the same mean magnitude the Laplace law has the largest entropy. It grows with
    c and tends to 1/s.

    Args:
        noise: s >= 0, the noise's scale over the bound on the L1 norm; 0 gives infinity.
        coordinates: as of `gaussian_capacity`.

    Raises:
        BenchError: a value outside of these ranges, NaN included.

    >>> laplace_capacity(0.5), round(laplace_capacity(0.5, 1), 6)
    (2.0, 1.098612)
    """
    inverse = _inverse("noise", noise)
    _count("coordinates", coordinates, 0)
    return coordinates * math.log1p(inverse / coordinates) if coordinates else inverse


def response_capacity(epsilon: float, choices: int) -> float:
    """Nats that one randomised response over k candidates carries: log k less the entropy of its noise; exact.

    The channel is symmetric, so that even inputs are the best. A label that is no candidate, answered by any of them
    evenly, is one more input whose answers look like the even mixture: it adds nothing (docs/information.md).

    Args:
        epsilon: >= 0, or infinity: a label without noise.
        choices: k >= 1.

    Raises:
        BenchError: a value outside of these ranges, NaN included.

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
    """Nats that one randomised response carries, at most, whose number of candidates is anything from 2 to c.

    Args:
        epsilon: as of `response_capacity`.
        classes: c >= 2.

    Raises:
        BenchError: a value outside of these ranges, NaN included.

    >>> round(selective_capacity(1.0, 10), 4), round(selective_capacity(math.inf, 10), 4)
    (0.1233, 2.3026)
    """
    _count("classes", classes, 2)
    return max(response_capacity(epsilon, choices) for choices in range(2, classes + 1))


def noise_over_radius(multiplier: float) -> float:
    """The noise over the radius of a ball that holds all vectors, of the noise over their largest distance.

    Vectors no two of which are further than D apart lie in a ball of radius D sqrt(n / (2 (n + 1))) < D / sqrt(2) in n
    dimensions (Jung 1901). Only where the neighbours of a ledger's event are *any* two states of the private data is
    its sensitivity such a D. Where D is twice a bound on the norms, the radius is D / 2 and this is not needed.

    >>> round(noise_over_radius(100.0), 4)
    141.4214
    """
    return math.sqrt(2) * multiplier


def needed(accuracy: float, classes: int) -> float:
    """Nats that a method which treats class names symmetrically needs, at least, for an accuracy.

    sum over j = 2..c of max(0, log j - phi(a)), phi(a) = h(a) + (1 - a) log(c - 1), h the binary entropy: naming the
    classes one after another, of which j are left, less what Fano's inequality allows an accuracy of a to leave open.
    Not less than log c! - c phi(a), the same for all classes at once.

    Args:
        accuracy: a in [0, 1], expected over the method's draws, every class counting the same (`even_accuracy`).
        classes: c >= 2.

    Returns:
        >= 0; 0 up to an accuracy of 1/c, log c! at 1.

    Raises:
        BenchError: a value outside of these ranges, NaN included.

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
    """phi(a) = h(a) + (1 - a) log(c - 1) in nats: what a guess that is right with probability a can leave open.

    >>> fano(1.0, 10), round(fano(0.1, 10) - math.log(10), 12)
    (0.0, 0.0)
    """
    missed = 1 - accuracy
    entropy = -math.fsum(share * math.log(share) for share in (accuracy, missed) if share > 0)
    return entropy + missed * math.log(classes - 1)


def most_accuracy(nats: float, classes: int) -> float:
    """The largest accuracy that so many nats allow: the inverse of `needed`, rounded up.

    Args:
        nats: >= 0, or infinity.
        classes: c >= 2.

    Returns:
        From 1/c at 0 nats to 1 at log c!, every class counting the same.

    Raises:
        BenchError: a value outside of these ranges, NaN included.

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
    """How often a run may reach an accuracy by luck, where so many nats do not allow it on the mean.

    The largest p with p log(p/q) + (1 - p) log((1 - p)/(1 - q)) <= nats, q being what an answer that has seen nothing
    reaches: two ways of naming the classes that one student serves with accuracy a differ in at most 2 c (1 - a) names,
    so q is the number of permutations that move no more, over c!.

    Args:
        accuracy: a in [0, 1], of one student, every class counting the same.
        nats: >= 0, or infinity.
        classes: c >= 2.

    Returns:
        A probability, rounded up.

    Raises:
        BenchError: a value outside of these ranges, NaN included.

    >>> round(most_chance(0.9785, 2.56, 10), 3), most_chance(0.5, 2.56, 2)
    (0.203, 1.0)
    """
    if not (0 <= accuracy <= 1 and nats >= 0):
        raise BenchError(f"accuracy {accuracy} and {nats} nats; expected 0 to 1, and a number >= 0 or inf")
    _count("classes", classes, 2)
    moved = min(classes, math.floor(2 * classes * (1 - accuracy) + 1e-9))
    blind = sum(math.comb(classes, m) * _derangements(m) for m in range(moved + 1)) / math.factorial(classes)
    if -math.log(blind) <= nats:
        return 1.0
    low, high = blind, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        divergence = middle * math.log(middle / blind) + (1 - middle) * math.log((1 - middle) / (1 - blind))
        low, high = (middle, high) if divergence <= nats else (low, middle)
    return high


def _derangements(count: int) -> int:
    """Permutations of so many that leave none in its place: 1, 0, 1, 2, 9, ..."""
    found = 1
    for size in range(1, count + 1):
        found = size * found + (-1) ** size
    return found


def even_accuracy(accuracy: float, smallest_share: float, classes: int) -> float:
    """The least mean of the accuracies in c classes that a test accuracy leaves possible, by the smallest class.

    1 - (1 - a) / (c w): all errors may lie in the class that has the smallest share w of the test set.

    Args:
        accuracy: a in [0, 1], of all test images together.
        smallest_share: w in (0, 1/c].
        classes: c >= 2.

    >>> round(even_accuracy(0.9785, 0.0892, 10), 6), even_accuracy(0.9, 0.1, 10)
    (0.975897, 0.9)
    """
    return max(0.0, 1 - (1 - accuracy) / (classes * smallest_share))


@dataclass(frozen=True)
class Information:
    """What all answers behind a release can carry about the private data.

    Attributes:
        nats: at most so many; infinity where nothing bounds them, None where it is not known.
        why: in words, what was summed, or why there is no number.
        classes: c of the private data; 0 where it is not known.
    """

    nats: float | None
    why: str
    classes: int = 0

    @property
    def most_accuracy(self) -> float | None:
        """The largest accuracy that the nats allow a method which treats class names symmetrically; None if unknown."""
        return most_accuracy(self.nats, self.classes) if self.nats is not None and self.classes >= 2 else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        nats = None if self.nats is None else epsilon_to_json(self.nats)
        return {"nats": nats, "why": self.why, "classes": self.classes}

    @classmethod
    def from_json(cls, item: dict[str, Any]) -> Information:
        """What `to_json` wrote. Raises ValueError for nats that are neither a number, nor "inf", nor null."""
        nats = item["nats"]
        return cls(None if nats is None else epsilon_from_json(nats), str(item["why"]), int(item["classes"]))


def of_ledger(ledger: Ledger, classes: int = 0) -> Information:
    """What a release carries by its ledger: the sum over the entries of unit `example`, which name every use.

    An entry that says what it carries counts so much; a use without protection that does not is infinite; any other
    use (private training, moments) makes the sum unknown. The other units describe the same uses again.
    """
    return total([(_carried(entry), entry.why) for entry in ledger.entries(Unit.EXAMPLE)], classes)


def total(carried: Sequence[tuple[float | None, str]], classes: int = 0) -> Information:
    """The sum over uses of the private data, each with what it carries (None = not known) and what it was.

    One that nothing bounds makes the sum infinite; else one that is not known leaves it unknown, and so does none.
    """
    for unbounded, what in ((math.inf, "nothing bounds this"), (None, "no capacity is known of this")):
        for nats, why in carried:
            if nats == unbounded:
                return Information(unbounded, f"{what}: {why}", classes)
    if not carried:
        return Information(None, "the ledger does not speak of private records", classes)
    named = "; ".join(dict.fromkeys(why for _, why in carried))
    return Information(math.fsum(nats or 0.0 for nats, _ in carried), named, classes)


def _carried(entry: Entry) -> float | None:
    """What an entry carries: as it says, else 0 where nothing was done and infinity where nothing protects."""
    known = {"NoOpDpEvent": 0.0, "NonPrivateDpEvent": math.inf}.get(type(entry.event).__name__)
    return known if entry.carries is None else entry.carries


def _inverse(name: str, given: float) -> float:
    """1 / given, infinity for 0; refuses what is negative or no number."""
    if not given >= 0:
        raise BenchError(f"{name} is {given}; expected a number >= 0")
    return 1 / given if given else math.inf


def _count(name: str, given: int, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise BenchError(f"{name} is {given}; expected a whole number >= {least}")
