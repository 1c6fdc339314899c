"""`bench audit` as a user types it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Refused, Type

from bench import registry
from bench.cli import audit
from bench.pipeline.components import Components
from bench.privacy.audit import DistinguishingGame

RELEASE = "audit release --method no-defence --tier smoke --teacher datalens"


CASES = [
    ("audit", ["release", "mechanism"]),
    ("audit releese", ["releese", "mechanism"]),
    ("audit release", ["--method", "bench audit release"]),
    ("audit release --method dpds", ["'dpsd'"]),
    ("RELEASE --canarys 3", ["--canarys", "'--canaries'"]),
    ("audit release --method dpsd --method.querie 3", ["'--method.queries'"]),
    ("RELEASE --canaries 240", ["--canaries 240", "239"]),
    ("RELEASE --canaries many", ["--canaries many"]),
    ("RELEASE --guesses 4", ["4 guesses", "0"]),
    ("RELEASE --confidence 95", ["--confidence 95"]),
    ("RELEASE --epsilon 0", ["epsilon", "> 0"]),
    ("audit mechanism --method no-defence", ["--method no-defence", "bench audit release"]),
    ("audit mechanism --method dpsd --plays 1e6", ["--plays 1e6"]),
    ("audit reconstruction", ["--method", "bench audit reconstruction"]),
    ("audit reconstruction --method rr --unit label", ["--method rr", "dp-sgd"]),
    ("audit reconstruction --method no-defence", ["--method no-defence"]),
    ("audit reconstruction --method dp-sgd --candidates 1", ["--candidates 1"]),
    ("audit reconstruction --method dp-sgd --epsilon 1 --steps 1 --candidates 500", ["--candidates 500", "256"]),
    ("audit reconstruction --method dp-sgd --trials 0", ["--trials 0"]),
    ("audit reconstruction --method dp-sgd --steps 0", ["--steps 0"]),
]


@pytest.mark.parametrize(("line", "values"), CASES, ids=[line for line, _ in CASES])
def test_bad_input_of_an_audit_is_one_line_and_status_2(
    here: Path, refused: Refused, line: str, values: list[str]
) -> None:
    error = refused(line.replace("RELEASE", RELEASE))
    assert [value for value in values if value not in error] == [] and not list(here.rglob("audit.json"))


def test_audit_of_a_release_is_printed_and_cached(here: Path, typed: Type) -> None:
    said = typed(RELEASE, "--canaries 40").out
    assert all(label in said for label in (*audit.NAMES.values(), "40 canaries", "verdict: not refuted"))
    assert "verified" not in said
    (path,) = (here / "runs" / "audits").glob("[!.]*/audit.json")
    assert str(path.relative_to(here)) in said
    assert json.loads(path.read_text())["lines"]["null"]["guesses"] == 20
    assert "(cached)" in typed(RELEASE, "--canaries 40").out


def test_reconstruction_prints_success_and_bounds(here: Path, typed: Type) -> None:
    line = "audit reconstruction --method dp-sgd --epsilon 4 --steps 2 --trials 60 --candidates 4"
    done = typed(line)
    assert done.status == 0 and "verdict: not refuted" in done.out
    rows = [row.strip() for row in done.out.splitlines()]
    chance, attack, by_curve, by_draws, candidates = (
        float(next(row for row in rows if row.startswith(label)).removeprefix(label).split()[0])
        for label in (
            *("without the release ", "attack ", "largest possible by the accounted privacy curve "),
            *("largest possible for DP-SGD, by Monte Carlo ", "candidates "),
        )
    )
    assert (chance, candidates) == (0.25, 4) and 0 <= attack <= 1
    assert 0.25 < by_draws < by_curve + 0.01 < 1


@pytest.mark.parametrize(
    ("command", "options", "others"),
    [
        ("release --method dpsd", "--canaries --overfit --method.mode --epsilon", "--attack --split"),
        ("mechanism", "--plays", "--out"),
    ],
)
def test_help_has_the_options_of_audit_and_method(typed: Type, command: str, options: str, others: str) -> None:
    said = typed("audit", command, "--help").out
    assert [word for word in options.split() if word not in said] == []
    assert [word for word in others.split() if word in said] == []


def test_audit_of_a_mechanism_prints_its_numbers(monkeypatch: pytest.MonkeyPatch, typed: Type) -> None:
    calls: list[Any] = []

    class Made:
        def check(self, *given: Any) -> None:
            calls.append(given)

        def game(self, budget: Any, dataset: str, classes: int) -> DistinguishingGame:
            calls.append((budget, dataset, classes))

            def play(world: bool, n: int, generator: torch.Generator) -> torch.Tensor:
                return torch.randn(n, 1, generator=generator) + 3 * world

            return DistinguishingGame(play, 0.5, float("inf"), 1e-5, "a shifted Gaussian")

    monkeypatch.setattr(registry, "find", lambda kind, name: None)
    monkeypatch.setattr(Components, "plugin", lambda *given: (Made(), "printed"))
    status, said, _ = typed("audit mechanism --method made --epsilon 2 --plays 20000")
    assert status == 0 and calls[1][0].epsilon == 2 and calls[1][1:] == ("digits", 10)
    for word in ("a shifted Gaussian", "0.5", "infinite", "1e-05", "20,000", "verdict: refuted"):
        assert word in said, word
