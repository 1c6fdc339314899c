"""Find published accuracies that need more information than their published settings allow (docs/information.md).

The bound is computed for DPSD in data mode only, the only one with all necessary settings in its paper (section IV-A:
b = 256, T = 200, sigma = 100, for every table and every epsilon). DPDFD prints neither b nor T; labels by
randomised response carry far more; a student trained on private images needs no queries; DPSD-T shows the teacher to
its generator. `SMALLEST_SHARES` leaves out data sets with unknown class shares, and those with too few classes.
"""

from __future__ import annotations

from bench import data
from bench.papers.printed_numbers import PrintedNumber
from bench.privacy.information import even_accuracy, gaussian_capacity, most_accuracy, needed

BATCH, ITERATIONS, SIGMA = 256, 200, 100.0
"""DPSD, section IV-A. An iteration is a batch, as Algorithm 1 has it."""
SMALLEST_SHARES = {"mnist": 892 / 10_000, "fmnist": 0.1, "cifar10": 0.1}
"""Share of the smallest class in the test set; in MNIST that of the fives."""
ISSUE = "exceeds-information"
"""The issue of published accuracies that need more information than their settings allow."""


def has_bound(entry: PrintedNumber) -> bool:
    """Whether the paper prints all settings that the bound for this number needs."""
    queries = not {"data=private", "discriminator=teacher"} & set(entry.ablation.split())
    stated = entry.unit == "data" and entry.epsilon is not None and entry.metric == "accuracy"
    known = entry.dataset in SMALLEST_SHARES
    return (entry.paper, entry.method) == ("dpsd", "dpsd") and stated and queries and known


def carried(entry: PrintedNumber) -> float | None:
    """Return an upper bound in nats on the information in all responses at the published settings; None if the paper
    does not print them."""
    return ITERATIONS * BATCH * gaussian_capacity(SIGMA, classes(entry)) if has_bound(entry) else None


def allowed(entry: PrintedNumber) -> float | None:
    """Return the largest expected test accuracy that the published settings allow; None as for `carried`."""
    nats = carried(entry)
    if nats is None:
        return None
    # Errors cost least in the smallest class
    missed = (1 - most_accuracy(nats, classes(entry))) * classes(entry) * SMALLEST_SHARES[entry.dataset]
    return 1 - missed


def least(entry: PrintedNumber) -> float:
    """Return a lower bound in nats on the information that the accuracy needs; the entry must have a bound."""
    return needed(even_accuracy(entry.value, SMALLEST_SHARES[entry.dataset], classes(entry)), classes(entry))


def exceeds(entry: PrintedNumber) -> bool:
    """Whether the published accuracy needs more information than the published settings allow."""
    nats = carried(entry)
    return nats is not None and least(entry) > nats


def classes(entry: PrintedNumber) -> int:
    """Return the number of classes of an entry's data set."""
    return len(data.facts(entry.dataset).class_names)
