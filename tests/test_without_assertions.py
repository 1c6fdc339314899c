"""`python -O` removes assertions: guards of users must not be assertions, and a run must work without them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from bench import testing
from bench.metrics.metric import Metric
from bench.validate import instance, present

SHIPPED = ("bench", "methods", "baselines", "attacks", "leaderboards", "recipes", "docs")
SMOKE = ["run", "--method", "dpsd", "--attack", "gmi", "--tier", "smoke", "--teacher", "datalens", "--device", "cpu"]


def removed_lines(source: str) -> list[int]:
    """Lines of a file with an `assert` or with `__debug__`, both of which `python -O` removes."""
    nodes = ast.walk(ast.parse(source))
    return [n.lineno for n in nodes if isinstance(n, ast.Assert) or (isinstance(n, ast.Name) and n.id == "__debug__")]


def test_shipped_code_has_no_assert() -> None:
    files = [path for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 400
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    suspects = {path: text for path, text in texts.items() if "assert" in text or "__debug__" in text}
    removed = [f"{path.relative_to(ROOT)}:{line}" for path, text in suspects.items() for line in removed_lines(text)]
    assert removed == [], "raise BenchError, RuntimeError or TypeError (`bench.validate.present`, `instance`)"
    assert removed_lines("x = 1\nassert x\nif __debug__:\n    x = 2\n") == [2, 3]


def test_present_and_instance_return_or_refuse() -> None:
    assert present(0, "number") == 0 and instance(True, int, "number") is True
    with pytest.raises(RuntimeError, match=r"number"):
        present(None, "number")
    with pytest.raises(TypeError, match=r"number.*str.*int"):
        instance("1", int, "number")


def test_contract_refuses_a_metric_that_varies() -> None:
    values = iter((0.5, 0.6))

    class Broken(testing.MetricContract):
        metric = Metric("varied", "varied", "Another number each time.", compute=lambda given: next(values))

    with pytest.raises(AssertionError, match=r"0\.5, then 0\.6"):
        Broken().test_value_is_finite_and_reproducible()


TWICE = """
import sys
from bench.cli import main
status = main([*sys.argv[1:], "--student", "vgg11", "--out", "refused"])
sys.exit(main(sys.argv[1:]) if status == 2 else f"expected status 2, and got {status}")
"""
"""The smoke run, after one whose student cannot take the images."""


def python(place: Path, *arguments: str) -> str:
    """Return python's stderr, run in a new folder with this bench and one thread."""
    place.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stderr


def results(place: Path) -> tuple[dict[str, object], bytes]:
    """The record of the only run, without where and when it was made, and its student's weights."""
    (record,) = place.glob("runs/records/[!.]*/record.json")
    (student,) = place.glob("runs/steps/release/[!.]*/model.safetensors")
    kept = {key: value for key, value in json.loads(record.read_text()).items() if key != "provenance"}
    return kept, student.read_bytes()


@pytest.mark.thorough
def test_run_is_the_same_without_assertions(tmp_path: Path) -> None:
    """Refused settings are refused before training."""
    python(tmp_path / "with", "-m", "bench", *SMOKE)
    said = python(tmp_path / "without", "-O", "-c", TWICE, *SMOKE)
    assert said.startswith("bench: error: ") and "'vgg11'" in said, said
    assert not (tmp_path / "without" / "refused" / "steps").exists()
    assert results(tmp_path / "with") == results(tmp_path / "without")
