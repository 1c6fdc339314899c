"""`bench audit` as a user types it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import registry
from bench.cli import main
from bench.pipeline.components import Components
from bench.privacy.audit import DistinguishingGame

Bench = Callable[..., subprocess.CompletedProcess[str]]
RELEASE = ["audit", "release", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens"]

CASES = {
    "no action": (["audit"], ["release", "mechanism"]),
    "unknown action": (["audit", "releese"], ["releese", "mechanism"]),
    "no method": (["audit", "release"], ["--method is missing"]),
    "unknown method": (["audit", "release", "--method", "dpds"], ["Did you mean 'dpsd'"]),
    "unknown option": ([*RELEASE, "--canarys", "3"], ["--canarys", "Did you mean '--canaries'"]),
    "unknown option of the method": (
        ["audit", "release", "--method", "dpsd", "--method.question", "3"],
        ["--method.questions"],
    ),
    "too many canaries": ([*RELEASE, "--canaries", "240"], ["--canaries 240", "239 images"]),
    "canaries not a number": ([*RELEASE, "--canaries", "many"], ["--canaries many", "whole number"]),
    "too few guesses": ([*RELEASE, "--guesses", "4"], ["4 guesses", "bound is 0"]),
    "confidence": ([*RELEASE, "--confidence", "95"], ["--confidence 95"]),
    "epsilon": ([*RELEASE, "--epsilon", "0"], ["epsilon", "> 0"]),
    "no mechanism of its own": (["audit", "mechanism", "--method", "no-defence"], ["no-defence", "no mechanism"]),
    "plays": (["audit", "mechanism", "--method", "dpsd", "--plays", "1e6"], ["--plays 1e6", "whole number"]),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    arguments, words = CASES[case]
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said
    assert all(word in said for word in words), said
    assert not list(tmp_path.rglob("audit.json"))


def test_the_audit_of_a_release_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RELEASE, "--canaries", "40"]) == 0
    said = capsys.readouterr().out
    for word in ("student", "teacher, undefended", "null run", "ceiling", "verdict: not refuted", "40 canaries"):
        assert word in said, word
    assert "verified" not in said
    (path,) = (tmp_path / "runs" / "audits").glob("[!.]*/audit.json")
    assert str(path.relative_to(tmp_path)) in said
    assert json.loads(path.read_text())["lines"]["null"]["guesses"] == 20
    assert main([*RELEASE, "--canaries", "40"]) == 0 and "(cached)" in capsys.readouterr().out


def test_help_shows_the_options_of_game_and_method(bench: Bench) -> None:
    said = bench("audit", "release", "--method", "dpsd", "--help").stdout
    for word in ("--canaries", "--overfit", "--method.mode", "--epsilon"):
        assert word in said, word
    assert "--attack" not in said and "--split" not in said
    said = bench("audit", "mechanism", "--help").stdout
    assert "--plays" in said and "--out" not in said


def test_the_audit_of_a_mechanism_prints_its_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    class Made:
        def check(self, *given: Any) -> None:
            asked.append(given)

        def game(self, budget: Any, dataset: str, classes: int) -> DistinguishingGame:
            import torch

            asked.append((budget, dataset, classes))

            def play(world: bool, n: int, generator: torch.Generator) -> torch.Tensor:
                return torch.randn(n, 1, generator=generator) + 3 * world

            return DistinguishingGame(play, 0.5, float("inf"), 1e-5, "a shifted Gaussian")

    monkeypatch.setattr(registry, "find", lambda kind, name: None)
    monkeypatch.setattr(Components, "plugin", lambda *given: (Made(), "printed"))
    assert main(["audit", "mechanism", "--method", "made", "--epsilon", "2", "--plays", "20000"]) == 0
    said = capsys.readouterr().out
    assert asked[1][0].epsilon == 2 and asked[1][1:] == ("digits", 10)
    for word in ("a shifted Gaussian", "lower bound", "0.5", "infinite", "1e-05", "20,000", "verdict: refuted"):
        assert word in said, word
