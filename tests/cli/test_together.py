"""What several releases of the same records promise together."""

from __future__ import annotations

from typing import Any

from dp_accounting import GaussianDpEvent
from report.made import record

from bench.cli.together import together
from bench.privacy import Ledger, Unit
from bench.privacy._bounds import gaussian_epsilon
from bench.storage.records import Record


def released(seed: int, multiplier: float, noise: str = "os", **changes: Any) -> Record:
    """A record whose ledger holds one Gaussian for a private record, and another one for an answer."""
    made, ledger = record(seed=seed, **changes), Ledger()
    ledger.spend(GaussianDpEvent(multiplier))
    ledger.spend(GaussianDpEvent(1.0), unit=Unit.QUERY)
    made.spec["release"]["noise"] = noise
    made.privacy["events"] = ledger.to_json()
    return made


def test_the_ledgers_of_all_releases_add_up_for_a_record_and_not_for_an_answer() -> None:
    """Multipliers of 3 and 4 are one of 12 / 5."""
    (line,) = together([released(0, 3.0), released(1, 4.0)])
    assert line.startswith(
        f"together: who sees all 2 students has an epsilon of {gaussian_epsilon(5 / 12, 1e-5):.4g} per"
    )
    assert " per example at delta 1e-05" in line


def test_nothing_is_said_of_one_release_of_a_known_seed_or_without_a_promise() -> None:
    assert together([released(0, 3.0)]) == []
    assert together([released(0, 3.0), released(1, 4.0, noise="seeded")]) == []
    assert together([released(0, 3.0), released(1, 0.0)]) == []


def test_a_run_that_failed_has_released_nothing() -> None:
    failed = record(seed=2, status="failed")
    assert together([released(0, 3.0), failed]) == []
    assert len(together([released(0, 3.0), failed, released(1, 4.0)])) == 1
