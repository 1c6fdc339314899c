"""The figures of the docs: which rows of the boards they show, and which of the papers' numbers."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def frontier(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("frontier", None)
    return importlib.import_module("frontier")


def board(*rows: tuple[str, str, str, float, float, str]) -> pd.DataFrame:
    names = ("method", "variant", "options", "epsilon_accounted", "accuracy_mean", "seeds")
    return pd.DataFrame([dict(zip(names, row, strict=True), unit="example", split="iid", flags="") for row in rows])


def test_what_is_proved_is_drawn_once_for_each_setting(frontier: ModuleType) -> None:
    found = frontier.measured(
        board(
            ("dp-sgd", "working", "{}", 1.0, 0.9, "0"),
            ("dp-sgd", "working", "{}", 1.0, 0.8, "0 1 2"),
            ("dp-sgd", "printed", "{}", 1.0, 0.7, "0 1 2"),
            ("rr", "working", "{}", math.inf, 0.6, "0"),
        )
    )
    assert found == [("dp-sgd", 1.0, 80.0)], "the row of most seeds; nothing printed, nothing without a proof"


@pytest.mark.parametrize("flag", ["older-version", "float32-noise", "account-corrected", "refuted"])
def test_what_choose_would_not_take_is_not_drawn(frontier: ModuleType, flag: str) -> None:
    rows = board(("dp-sgd", "working", "{}", 1.0, 0.9, "0"), ("pate", "working", "{}", 2.0, 0.8, "0"))
    rows["flags"] = ["seeded-noise " + flag, "public-data seeded-noise"]
    assert frontier.measured(rows) == [("pate", 2.0, 80.0)]


def test_the_frontier_is_what_no_smaller_epsilon_beats(frontier: ModuleType) -> None:
    settings = [("a", 1.0, 90.0), ("b", 1.0, 95.0), ("c", 3.0, 94.0), ("d", 0.5, 80.0), ("e", 8.0, 96.0)]
    assert [name for name, *_ in frontier.frontier(settings)] == ["d", "b", "e"]


def test_of_the_papers_the_best_printed_number_is_drawn(frontier: ModuleType) -> None:
    reported = pd.read_csv(ROOT / "leaderboards" / "papers" / "reported.csv")
    found = {(method, epsilon): accuracy for method, epsilon, accuracy in frontier.printed(reported, "mnist")}
    assert found["dpsd", 10.0] == pytest.approx(98.19) and found["dgd", 10.0] == pytest.approx(97.4)
