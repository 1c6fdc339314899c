"""The recipes contain every number of the papers' tables, and the bench accepts their options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from bench import registry
from bench.cli.sweep import SettingsParser
from bench.config import Variant, configure, options
from bench.papers import printed_numbers
from bench.sweeps.plan import Cell, plan
from bench.sweeps.recipe import Recipe, RecipeCell, read

PATHS = sorted((ROOT / "recipes").glob("*.toml"))
WITHOUT_PAPER = {
    *("ablations", "answers", "attacks", "audits", "audits-standard", "audits-paper", "board", "cells", "controls"),
    *("devices", "dgd-ablations", "faces", "generators", "gpu", "ingredients", "membership", "membership-canaries"),
    *("membership-few", "sizes", "teachers"),
}

OF_PAPERS = [path for path in PATHS if path.stem not in WITHOUT_PAPER]
NAMES = {
    "dp-dfd": ["table1", "table2", "table3", "fig2", "fig3"],
    "dpdfd": [f"table{i}" for i in range(1, 7)] + ["fig2"],
    "dgd": ["table1", "table2"] + [f"fig{i}" for i in (3, 4, 6, 7, 8)],
    "dpsd": [f"table{i}" for i in range(1, 7)] + [f"fig{i}" for i in range(4, 10)],
}
ROMAN = {"I": "1", "II": "2", "III": "3", "IV": "4", "V": "5", "VI": "6"}
ON_BOARDS = {"mnist", "fmnist", "celeba-g", "celeba-h", "cifar10"}
DATASETS = {
    "mnist", "fmnist", "cifar10", "cifar100", "svhn", "celeba-g", "celeba-h", "imagenet", "medmnist", "covidx",
}  # fmt: skip


def printed() -> list[tuple[str, str]]:
    return [
        (paper, table) for paper, tables in printed_numbers.papers().items() for table in tables if table[:5] == "Table"
    ]


def recipe_of(paper: str, table: str) -> Recipe:
    number = table.removeprefix("Table ")
    return read(ROOT / "recipes" / f"{paper}-table{ROMAN.get(number, number)}.toml")


def test_recipes_cover_every_table_and_figure() -> None:
    assert [path.stem for path in OF_PAPERS] == sorted(f"{paper}-{name}" for paper in NAMES for name in NAMES[paper])
    assert len(printed()) == 17


def test_recipes_cells_and_board_have_every_printed_epsilon() -> None:
    """For the data sets of the boards, each printed method and epsilon has a run."""
    found: dict[tuple[str, str], set[float]] = {}
    for cell in (cell for name in ("cells", "board") for cell in read(ROOT / "recipes" / f"{name}.toml").cells):
        epsilon = cell.get("epsilon")
        found.setdefault((cell.get("dataset"), cell.get("method")), set()).add(
            math.nan if epsilon == "none" else float(epsilon)
        )
    entries = [entry for each in printed() for entry in printed_numbers.table(*each) if entry.dataset in ON_BOARDS]
    assert len(entries) > 400
    for entry in entries:
        runs = found.get((entry.dataset, entry.method), set())
        assert runs if entry.epsilon is None else entry.epsilon in runs, entry


@pytest.mark.parametrize("path", OF_PAPERS, ids=lambda path: path.stem)
def test_recipe_names_its_paper_and_table(path: Path) -> None:
    recipe, known = read(path), set(registry.entries("method"))
    paper, _, name = path.stem.rpartition("-")
    kind, _, number = recipe.table.partition(" ")
    assert recipe.paper == paper
    assert name == {"Table": "table", "Fig.": "fig"}[kind] + ROMAN.get(number, number)
    for cell in recipe.cells:
        assert cell.get("method") in known and cell.get("dataset") in DATASETS and cell.get("epsilon"), cell


def test_recipes_board_and_attacks_have_all_plugins() -> None:
    board, attacks = (read(ROOT / "recipes" / f"{name}.toml") for name in ("board", "attacks"))
    assert {cell.get("method") for cell in board.cells} == set(registry.entries("method"))
    assert {cell.get("attack") for cell in attacks.cells} == set(registry.entries("attack"))
    assert {cell.get("dataset") for cell in (*board.cells, *attacks.cells)} == {"digits", "mnist", "fmnist"}


@pytest.mark.parametrize(("paper", "table"), printed())
def test_recipe_has_every_printed_accuracy(paper: str, table: str) -> None:
    recipe = recipe_of(paper, table)
    assert (recipe.paper, recipe.table) == (paper, table)
    cells = {(cell.get("dataset"), cell.get("method"), _value(str(cell.get("epsilon")))) for cell in recipe.cells}
    known = {(dataset, method) for dataset, method, _ in cells}
    for entry in printed_numbers.table(paper, table):
        if "eps-uncertain" in entry.issues:
            assert (entry.dataset, entry.method) in known, entry
        else:
            assert (entry.dataset, entry.method, entry.epsilon) in cells, entry


@pytest.mark.parametrize(("paper", "table"), printed())
def test_recipe_has_every_printed_ablation_and_mode(paper: str, table: str) -> None:
    cells = [dict(cell.options) for cell in recipe_of(paper, table).cells]
    settings = [cell | {"ablation": _ablation(cell["method"], cell)} for cell in cells]
    for entry in printed_numbers.table(paper, table):
        mode = "label" if entry.method == "dpsd" and entry.unit == "label" else "data"
        assert any(
            (cell["dataset"], cell["method"], cell["ablation"]) == (entry.dataset, entry.method, entry.ablation)
            and cell.get("method.mode", "data") == mode
            and entry.teacher in ("", cell["teacher"])
            for cell in settings
        ), entry


def _ablation(method: str, options: dict[str, str]) -> str:
    """Return the name of the ablation of a cell, as on boards."""
    own = {key.removeprefix("method."): _value(text) for key, text in options.items() if key.startswith("method.")}
    return printed_numbers.ablation(method, {"method": own, "budget": {"epsilon": _value(options["epsilon"])}})


def _value(text: str) -> Any:
    """Return the value of an option as in records."""
    try:
        return float(text)
    except ValueError:
        return None if text == "none" else text


@pytest.fixture
def dry_run(data_root: Path, tmp_path: Path) -> Callable[..., list[Cell]]:
    """Plans cells as `bench sweep --dry-run --tier smoke` does."""
    common = ["--tier", "smoke", "--out", str(tmp_path), "--data-root", str(data_root), "--device", "cpu"]
    return lambda cells: plan(replace(read(PATHS[0]), cells=tuple(cells)), common, [], tmp_path, SettingsParser())


def on_mnist() -> list[RecipeCell]:
    """Return each different cell of all recipes once, on MNIST, with larger images for torchvision's networks."""
    cells: dict[Any, RecipeCell] = {}
    for cell in (cell for recipe in map(read, PATHS) for cell in recipe.cells):
        large = str(cell.get("teacher")).startswith("tv:")
        options = dict(cell.options) | {"dataset": "mnist@64" if large else "mnist"}
        if cell.get("dataset") == "cifar100" and "method.k" in options:
            continue  # k above MNIST's ten classes
        if cell.get("split") == "identity":
            continue  # MNIST has no people
        cells.setdefault(frozenset(options.items()), replace(cell, options=tuple(options.items()), seeds=(0,)))
    return list(cells.values())


def check(planned: list[Cell]) -> int:
    """Require that no cell is refused or planned; return the number of ready cells."""
    assert not [f"{cell.name}: {cell.reason}" for cell in planned if cell.state in ("refused", "planned")]
    return sum(cell.state == "ready" for cell in planned)


@pytest.mark.thorough
def test_recipe_method_options_are_known(dry_run: Callable[..., list[Cell]]) -> None:
    """Return one cell for each method with each set of its options; the slow test takes every cell."""
    kinds = {(cell.get("method"), frozenset(dict(cell.options))): cell for cell in on_mnist()}
    own = [cell for (_, names), cell in kinds.items() if any(name.startswith("method.") for name in names)]
    assert check(dry_run(own)) == len(own) >= 20


@pytest.mark.slow
def test_recipe_cells_are_not_refused(dry_run: Callable[..., list[Cell]]) -> None:
    assert check(dry_run(on_mnist())) > 200


def with_options(method: str) -> list[tuple[str, dict[str, str]]]:
    """Return variant ("" = default) and options of every cell with options in the papers' recipes."""
    cells = [cell for path in OF_PAPERS for cell in read(path).cells if cell.get("method") == method]
    given = [{key.removeprefix("method."): v for key, v in cell.options if key.startswith("method.")} for cell in cells]
    return [(cell.get("variant"), options) for cell, options in zip(cells, given, strict=True) if options]


@pytest.mark.parametrize("method", ["dpsd", "dpdfd", "fed-dpsd"])
@pytest.mark.parametrize("variant", ["printed", "working"])
def test_recipes_of_papers_accept_both_variants(method: str, variant: Variant) -> None:
    """Cells that name the variant printed vary options that only this variant has."""
    plugin, cells = registry.load("method", method, variant), with_options(method)
    for named, given in cells:
        if named in ("", variant):
            configure(plugin, "quick", given, "method", variant)
    assert any(not named for named, _ in cells)


@pytest.mark.parametrize("method", ["dpsd", "dpdfd", "dp-dfd"])
def test_recipe_names_variant_printed_where_needed(method: str) -> None:
    """In dpsd and dpdfd only the comparison of the whole loss with its parts names it."""
    known = {option.name for option in options(registry.load("method", method, "working"))}
    named = [given for variant, given in with_options(method) if variant == "printed"]
    assert named and (method == "dp-dfd" or all(not given.keys() <= known for given in named if "mode" not in given))
    assert all(given.keys() <= known for variant, given in with_options(method) if not variant)


def test_recipe_check_detects_an_unknown_option(dry_run: Callable[..., list[Cell]]) -> None:
    slip = RecipeCell((("method", "dpsd"), ("dataset", "mnist"), ("epsilon", "1"), ("method.beat", "1")), (0,))
    with pytest.raises(AssertionError, match=r"--method\.beat"):
        check(dry_run([slip]))
