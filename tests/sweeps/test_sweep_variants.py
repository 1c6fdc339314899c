"""Recipes name variants of methods and attacks as `bench run` does; they are other runs with other estimates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import write_toy

from bench import registry
from bench.cli.sweep import SettingsParser
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.sweeps.plan import Cell, plan
from bench.sweeps.recipe import read

GRID = """
[defaults]
teacher = "datalens"
dataset = "npz:{folder}/toy.npz"
method = "dgd"
attack = "mi-face"
[[grid]]
variant = ["printed", "working"]
[[grid]]
attack-variant = "printed"
[[grid]]
variant = "own"
"""
TWO = ("printed", "working")


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    """The cells of GRID."""
    if not registry.variants("method", "dgd") == registry.variants("attack", "mi-face") == TWO:
        pytest.skip("dgd or mi-face has no variants")
    write_toy(tmp_path, 160)
    (tmp_path / "variants.toml").write_text(GRID.format(folder=tmp_path), encoding="utf-8")
    common = ["--tier", "smoke", "--out", str(tmp_path / "runs"), "--device", "cpu"]
    return plan(read(tmp_path / "variants.toml"), common, [], tmp_path, SettingsParser())


def spec(cell: Cell) -> Any:
    settings, _ = SettingsParser()(["run", *cell.arguments])
    return run_spec(load_job(settings), cell.seed)


def test_recipe_variants_are_separate_runs(cells: list[Cell]) -> None:
    assert [cell.state for cell in cells] == ["ready", "ready", "ready", "refused"], [cell.reason for cell in cells]
    assert "'own'" in cells[3].reason
    assert cells[0].name.endswith("variant=printed seed=0") and "attack-variant=printed" in cells[2].name
    found = [(one.release.variant, one.attack.variant) for one in map(spec, cells[:3])]
    assert found == [("printed", "working"), ("working", "working"), ("working", "printed")]
    assert len({cell.record for cell in cells[:3]}) == 3, "a run for each variant"
    assert len({cell.after for cell in cells[:3]}) == 1, "with the same teacher and evaluator"


def test_recipe_default_variant_by_name_is_the_same_run(cells: list[Cell]) -> None:
    settings, _ = SettingsParser()(["run", *cells[1].arguments])
    unnamed = load_job(replace(settings, variant=None))
    assert run_spec(unnamed, 0) == run_spec(load_job(settings), 0)
