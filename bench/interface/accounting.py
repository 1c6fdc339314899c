"""The accountant: the epsilon of a mechanism, the noise for an epsilon, and the joint epsilon of several releases."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BadOption, BudgetError, NotFound

if TYPE_CHECKING:
    from bench.bundle.releases import Composed, Released
    from bench.privacy.accountant import Accounted

MOST_STEPS = 10**9
"""Largest number of steps that the accountant takes."""


@dataclass(frozen=True)
class GaussianAccount:
    """The privacy of Gaussian noise that is added in several steps, each on a Poisson sample of the records.

    Attributes:
        epsilon: >= 0; infinity if no finite bound is known.
        delta: in (0, 1).
        sigma: noise multiplier: standard deviation of the noise over the L2 sensitivity of one record's contribution.
        rate: probability that a record is in the sample of a step, in (0, 1].
        steps: number of steps.
        unit: the protected unit.
        relation: the difference between neighbouring data sets, "add-or-remove" or "replace".
        accountant: the name of the smallest bound, from which epsilon is.
    """

    epsilon: float
    delta: float
    sigma: float
    rate: float
    steps: int
    unit: str
    relation: str
    accountant: str


def account(
    *,
    sigma: float | None = None,
    epsilon: float | None = None,
    rate: float = 1.0,
    steps: int = 1,
    delta: float = 1e-5,
    unit: str = "example",
) -> GaussianAccount:
    """Compute the epsilon of Gaussian noise, such as that of DP-SGD; or the least noise for an epsilon.

    Give `sigma` or `epsilon`; the result has both.

    Args:
        sigma: noise multiplier, > 0: standard deviation of the noise over the L2 sensitivity of one record's
            contribution.
        epsilon: > 0 and finite; the returned noise has at most this epsilon and is within 0.1 % of the least.
        rate: probability that a record is in the sample of a step, in (0, 1].
        steps: 1 to 1,000,000,000.
        delta: in (0, 1).
        unit: "example", "client", "group" (added or removed), "label" or "query" (replaced).

    Returns:
        Noise, epsilon, and the accountant's bound.

    Raises:
        BadOption: both or neither of `sigma` and `epsilon`, or a value out of range.
        BudgetError: no noise has so small an epsilon.

    >>> round(account(sigma=1.0, rate=0.01, steps=1000, delta=1e-5).epsilon, 2)
    1.83
    """
    if (sigma is None) == (epsilon is None):
        raise BadOption("expected either sigma or epsilon; give one of them, the other is computed")
    for name, value in (("sigma", sigma), ("epsilon", epsilon)):
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise BadOption(f"{name} is {value!r}; expected a finite number above 0")
    if not (_is_number(rate) and 0 < rate <= 1):
        raise BadOption(f"rate is {rate!r}; expected a probability in (0, 1]")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise BadOption(f"steps is {steps!r}; expected a whole number from 1 to {MOST_STEPS}")
    if epsilon is not None:
        from bench.privacy import calibrate_noise

        sigma = calibrate_noise(lambda noise: _compute(noise, rate, steps, delta, unit).epsilon, epsilon, 0.5, 8.0)
    noise = float(sigma or 0.0)
    found = _compute(noise, rate, steps, delta, unit)
    return GaussianAccount(
        epsilon=found.epsilon,
        delta=delta,
        sigma=noise,
        rate=float(rate),
        steps=steps,
        unit=found.unit.value,
        relation=found.relation.value,
        accountant=found.accountant,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compute(sigma: float, rate: float, steps: int, delta: float, unit: str) -> Accounted:
    """Account for `steps` subsampled Gaussian mechanisms."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    from bench.privacy import Ledger, accountant
    from bench.privacy.budget import as_unit

    noise, ledger = GaussianDpEvent(float(sigma)), Ledger()
    ledger.spend(noise if rate == 1 else PoissonSampledDpEvent(float(rate), noise), count=steps, unit=as_unit(unit))
    return accountant.account(ledger, as_unit(unit), delta)


def compose(folders: Sequence[str | os.PathLike[str]], *, delta: float | None = None) -> list[Composed]:
    """Compute the joint epsilon of all releases of the same private records, as `bench account --releases`.

    Args:
        folders: the `out` of runs, runs, bundles, or folders of these.
        delta: delta of the joint epsilons, in (0, 1); None = the smallest delta of the releases.

    Returns:
        For each private data set, unit and grouping, the joint epsilon (`proved`) with the names of the releases; or
        the reasons why releases could not be composed. Epsilons of different units or groupings are not added.

    Raises:
        NotFound: a folder without releases.
        BudgetError: a delta out of range.
        BenchError: a record or a bundle that cannot be read.
    """
    check_delta(delta)
    from bench.bundle import releases

    return releases.compose(read_releases(folders), delta)


def check_delta(delta: float | None) -> None:
    """Raise BudgetError if a delta of joint epsilons is out of range."""
    if delta is not None and not (_is_number(delta) and 0 < delta < 1):
        raise BudgetError(f"--delta {delta}: expected 0 < delta < 1, such as 1e-5")


def read_releases(folders: Sequence[str | os.PathLike[str]]) -> list[Released]:
    """Read the releases of `compose`. Raises NotFound and BenchError as it does."""
    from bench.bundle import releases

    found = [release for folder in folders for release in releases.read(Path(folder))]
    if not found:
        raise NotFound("--releases: every run in these folders failed and released nothing; repeat the runs")
    return found
