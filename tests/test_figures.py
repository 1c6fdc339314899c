"""The figures of the docs: which rows of the boards they show, and which of the papers' numbers."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from wide_boards import results_of

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def frontier(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("frontier", None)
    return importlib.import_module("frontier")


def ours(method: str, epsilon: float, accuracy: float, **more: str) -> dict[str, object]:
    """A row of a board with an account for one record."""
    usual = {"variant": "working", "split": "iid", "unit": "example", "seeds": "0"}
    return {**usual, "method": method, "epsilon_accounted": epsilon, "accuracy_mean": accuracy, **more}


def test_frontier_draws_each_setting_once(frontier: ModuleType) -> None:
    found = frontier.measured(results_of(
        ours("dp-sgd", 1.0, 0.9),
        ours("dp-sgd", 1.0, 0.8, seeds="0 1 2"),
        ours("dp-sgd", 1.0, 0.7, seeds="0 1 2", variant="printed"),
        ours("rr", math.inf, 0.6),
    ))  # fmt: skip
    assert found == [("dp-sgd", 1.0, 80.0)], "most seeds; no printed variant, no infinite epsilon"


@pytest.mark.parametrize("flag", ["older-version", "float32-noise", "account-corrected", "refuted"])
def test_frontier_leaves_out_refused_releases(frontier: ModuleType, flag: str) -> None:
    flags = {"flags": f"seeded-noise {flag}"}
    found = results_of(ours("dp-sgd", 1.0, 0.9, **flags), ours("pate", 2.0, 0.8, flags="public-data seeded-noise"))
    assert frontier.measured(found) == [("pate", 2.0, 80.0)]


def test_frontier_leaves_out_pretrained_releases(frontier: ModuleType) -> None:
    pretrained = {"flags": "public-data weights:resnet18@0123456789ab"}
    found = results_of(ours("private-features", 1.0, 0.9, **pretrained), ours("pate", 2.0, 0.8, flags="public-data"))
    assert frontier.measured(found) == [("pate", 2.0, 80.0)]


def test_frontier_keeps_unbeaten_settings(frontier: ModuleType) -> None:
    settings = [("a", 1.0, 90.0), ("b", 1.0, 95.0), ("c", 3.0, 94.0), ("d", 0.5, 80.0), ("e", 8.0, 96.0)]
    assert [name for name, *_ in frontier.frontier(settings)] == ["d", "b", "e"]


def test_frontier_draws_best_printed_number(frontier: ModuleType) -> None:
    reported = pd.read_csv(ROOT / "leaderboards" / "papers" / "reported.csv")
    found = {(method, epsilon): accuracy for method, epsilon, accuracy in frontier.printed(reported, "mnist")}
    assert found["dpsd", 10.0] == pytest.approx(98.19) and found["dgd", 10.0] == pytest.approx(97.4)
