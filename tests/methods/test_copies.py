"""Responses to copies of an image: never more of them than the ledger contains."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench import registry
from bench.config import configure
from bench.errors import BenchError
from bench.privacy import Budget


@pytest.mark.parametrize("budget", [Budget(10.0), Budget(10.0, account="accounted")], ids=lambda budget: budget.account)
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("dpsd", {}),
        ("dpsd", {"mode": "label", "queries": "891"}),
        ("dpdfd", {}),
        ("dp-dfd", {"amount": "891"}),
        ("fed-dpsd", {}),
        ("fed-dpsd", {"mode": "label", "queries": "891"}),
    ],
    ids=str,
)
def test_more_copies_than_queries_are_refused_by_check(name: str, given: dict[str, str], budget: Budget) -> None:
    """A budget may permit far fewer responses than requested: one image's copies would exceed all of them."""

    def method(copies: int) -> Any:
        return configure(
            registry.load("method", name, "working"), "quick", given | {"copies": str(copies)}, "method", "working"
        )

    with pytest.raises(BenchError, match=r"--method\.copies 30000") as refused:
        method(30_000).check(budget, "mnist", 10)
    most = int(re.findall(r"\d+", str(refused.value))[1])
    method(most).check(budget, "mnist", 10)
    with pytest.raises(BenchError, match=str(most)):
        method(most + 1).check(budget, "mnist", 10)
