"""Privacy accounting: `bench.privacy` compared with direct use of dp_accounting, for the same epsilon and noise.

The peer composes losses with its default grid of 1e-4; ours chooses a grid by the mechanisms, and tries cheaper bounds
first. Epsilons may differ by both grids, calibrated noise by the tolerance of our search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import dp_accounting
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from bench.dp_training.accounting import DpSgdParameters, calibrate
from bench.privacy import Budget, Unit
from peer_pairs._pair import Pair, near

DELTA = 1e-5
SETTINGS = DpSgdParameters(sampling=256 / 60_000, steps=10_000, multiplier=1.0)
"""DP-SGD on 60,000 records for 43 passes."""
EPSILON = 2.0


def pairs() -> Iterator[Pair]:
    """Yield the epsilon of DP-SGD, and the noise for an epsilon, with privacy losses and with Renyi divergences."""
    yield Pair(
        "epsilon of DP-SGD",
        "dp_accounting, PLDAccountant",
        lambda: SETTINGS.epsilon(DELTA),
        lambda: PLDAccountant().compose(event(SETTINGS.multiplier)).get_epsilon(DELTA),
        lambda ours, theirs: near("epsilon", ours, theirs, relative=2e-3),
        bar=1.2,
    )
    yield Pair(
        "noise of DP-SGD",
        "dp_accounting, calibrate_dp_mechanism",
        our_noise,
        their_noise,
        lambda ours, theirs: near("noise multiplier", ours, theirs, relative=3e-3),
        bar=1.2,
    )


def event(multiplier: float) -> dp_accounting.DpEvent:
    """Return the event of the same T steps."""
    step = PoissonSampledDpEvent(SETTINGS.sampling, GaussianDpEvent(multiplier))
    return SelfComposedDpEvent(step, SETTINGS.steps)


def our_noise() -> float:
    """Return the least multiplier that meets the budget."""
    budget = Budget(EPSILON, DELTA, "accounted", "sigma", Unit.EXAMPLE)
    return calibrate(replace(SETTINGS), budget).multiplier


def their_noise() -> float:
    """Return the peer's multiplier, to the same relative width of 1e-3."""
    found = dp_accounting.calibrate_dp_mechanism(
        PLDAccountant,
        event,
        EPSILON,
        DELTA,
        dp_accounting.LowerEndpointAndGuess(0.0, SETTINGS.multiplier),
        tol=1e-3 * SETTINGS.multiplier,
    )
    assert isinstance(found, float)
    return found
