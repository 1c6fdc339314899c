"""Which printed accuracies need more information than the settings printed beside them let through.

Judged is DPSD in data mode alone: of the four papers only it prints all that the bound needs (section IV-A: b = 256,
T = 200, sigma = 100, for every table and every epsilon). DPDFD prints neither b nor T; labels by randomised response
carry far more; a student trained on private images is asked nothing; DPSD-T shows the teacher to its generator. Data
sets whose test set's class shares are not known here, or whose classes are too few for the bound to say anything, are
left out of `SMALLEST_SHARES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import data
from bench.privacy.information import even_accuracy, gaussian_capacity, most_accuracy, needed

if TYPE_CHECKING:
    from bench.papers.printed_numbers import Reported

BATCH, ITERATIONS, SIGMA = 256, 200, 100.0
"""DPSD, section IV-A. An iteration is a batch, as Algorithm 1 has it."""
SMALLEST_SHARES = {"mnist": 892 / 10_000, "fmnist": 0.1, "cifar10": 0.1}
"""The share of the test set that the smallest class has; of MNIST the fives."""
ISSUE = "exceeds-information"
"""How the column `issue` says it."""


def judged(entry: Reported) -> bool:
    """Whether the paper prints, beside this number, all that bounds the information behind it."""
    asked = not {"data=private", "discriminator=teacher"} & set(entry.ablation.split())
    stated = entry.unit == "data" and entry.epsilon is not None and entry.metric == "accuracy"
    known = entry.dataset in SMALLEST_SHARES
    return (entry.paper, entry.method) == ("dpsd", "dpsd") and stated and asked and known


def carried(entry: Reported) -> float | None:
    """Nats that the answers of the printed settings carry at most; None where they are not printed."""
    return ITERATIONS * BATCH * gaussian_capacity(SIGMA, classes(entry)) if judged(entry) else None


def allowed(entry: Reported) -> float | None:
    """The largest test accuracy that the printed settings allow, expected over the method's draws; None as above."""
    nats = carried(entry)
    if nats is None:
        return None
    # The errors may lie in the smallest class, where they weigh least
    missed = (1 - most_accuracy(nats, classes(entry))) * classes(entry) * SMALLEST_SHARES[entry.dataset]
    return 1 - missed


def least(entry: Reported) -> float:
    """Nats that the printed accuracy needs at least, on a judged entry's data set."""
    return needed(even_accuracy(entry.value, SMALLEST_SHARES[entry.dataset], classes(entry)), classes(entry))


def exceeds(entry: Reported) -> bool:
    """Whether the printed accuracy needs more than the printed settings let through."""
    nats = carried(entry)
    return nats is not None and least(entry) > nats


def classes(entry: Reported) -> int:
    """c of an entry's data set."""
    return len(data.facts(entry.dataset).class_names)
