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
from bench.cli.sweep import Settler
from bench.config import Variant, configure, options
from bench.papers import printed_numbers
from bench.sweeps.plan import Cell, plan
from bench.sweeps.recipe import Recipe, RecipeCell, read

PATHS = sorted((ROOT / "recipes").glob("*.toml"))
OURS = {
    "ablations",
    "answers",
    "attacks",
    "audits",
    "audits-standard",
    "audits-paper",
    "board",
    "cells",
    "controls",
    "devices",
    "dgd-ablations",
    "faces",
    "generators",
    "gpu",
    "ingredients",
    "membership",
    "membership-canaries",
    "membership-few",
    "sizes",
    "teachers",
}
OF_PAPERS = [path for path in PATHS if path.stem not in OURS]
NAMES = {
    "dp-dfd": ["table1", "table2", "table3", "fig2", "fig3"],
    "dpdfd": [f"table{i}" for i in range(1, 7)] + ["fig2"],
    "dgd": ["table1", "table2"] + [f"fig{i}" for i in (3, 4, 6, 7, 8)],
    "dpsd": [f"table{i}" for i in range(1, 7)] + [f"fig{i}" for i in range(4, 10)],
}
ROMAN = {"I": "1", "II": "2", "III": "3", "IV": "4", "V": "5", "VI": "6"}
AT_HAND = {"mnist", "fmnist", "celeba-g", "celeba-h", "cifar10"}
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


def test_there_is_one_recipe_for_every_table_and_figure() -> None:
    assert [path.stem for path in OF_PAPERS] == sorted(f"{paper}-{name}" for paper in NAMES for name in NAMES[paper])
    assert len(printed()) == 17


def test_the_cells_of_the_papers_tables_are_all_in_two_recipes() -> None:
    """For the data sets of the boards, each printed method and epsilon has a run."""
    found: dict[tuple[str, str], set[float]] = {}
    for cell in (cell for name in ("cells", "board") for cell in read(ROOT / "recipes" / f"{name}.toml").cells):
        epsilon = cell.get("epsilon")
        found.setdefault((cell.get("dataset"), cell.get("method")), set()).add(
            math.nan if epsilon == "none" else float(epsilon)
        )
    printed_there = [entry for each in printed() for entry in printed_numbers.table(*each) if entry.dataset in AT_HAND]
    assert len(printed_there) > 400
    for entry in printed_there:
        runs = found.get((entry.dataset, entry.method), set())
        assert runs if entry.epsilon is None else entry.epsilon in runs, entry


@pytest.mark.parametrize("path", OF_PAPERS, ids=lambda path: path.stem)
def test_a_recipe_says_what_it_is_of(path: Path) -> None:
    recipe = read(path)
    paper, _, name = path.stem.rpartition("-")
    kind, _, number = recipe.table.partition(" ")
    assert recipe.paper == paper
    assert name == {"Table": "table", "Fig.": "fig"}[kind] + ROMAN.get(number, number)
    known = set(registry.entries("method"))
    for cell in recipe.cells:
        assert cell.get("method") in known, cell
        assert cell.get("dataset") in DATASETS, cell
        assert cell.get("epsilon"), f"{path.name}: the epsilon of {cell.options} is the command's default by chance"


def test_the_published_recipes_leave_nothing_out() -> None:
    board, attacks = (read(ROOT / "recipes" / f"{name}.toml") for name in ("board", "attacks"))
    assert {cell.get("method") for cell in board.cells} == set(registry.entries("method"))
    assert {cell.get("attack") for cell in attacks.cells} == set(registry.entries("attack"))
    assert {cell.get("dataset") for cell in (*board.cells, *attacks.cells)} == {"digits", "mnist", "fmnist"}


@pytest.mark.parametrize(("paper", "table"), printed())
def test_every_printed_accuracy_is_in_its_recipe(paper: str, table: str) -> None:
    recipe = recipe_of(paper, table)
    assert (recipe.paper, recipe.table) == (paper, table)
    budgets = [cell.get("epsilon") for cell in recipe.cells]
    cells = {
        (cell.get("dataset"), cell.get("method"), None if budget == "none" else float(budget))
        for cell, budget in zip(recipe.cells, budgets, strict=True)
    }
    known = {(dataset, method) for dataset, method, _ in cells}
    for entry in printed_numbers.table(paper, table):
        if "eps-uncertain" in entry.issues:
            assert (entry.dataset, entry.method) in known, entry
        else:
            assert (entry.dataset, entry.method, entry.epsilon) in cells, entry


@pytest.mark.parametrize(("paper", "table"), printed())
def test_every_printed_ablation_and_mode_is_in_its_recipe(paper: str, table: str) -> None:
    settings = [
        {**dict(cell.options), **{"ablation": _ablation(cell.get("method"), dict(cell.options))}}
        for cell in recipe_of(paper, table).cells
    ]
    for entry in printed_numbers.table(paper, table):
        mode = "label" if entry.method == "dpsd" and entry.unit == "label" else "data"
        assert any(
            (cell["dataset"], cell["method"], cell["ablation"]) == (entry.dataset, entry.method, entry.ablation)
            and cell.get("method.mode", "data") == mode
            and entry.teacher in ("", cell["teacher"])
            for cell in settings
        ), entry


def _ablation(method: str, options: dict[str, str]) -> str:
    """Return the result of `ablations.ablation` for a board's row of such a cell."""
    own = {key.removeprefix("method."): _value(text) for key, text in options.items() if key.startswith("method.")}
    return printed_numbers.ablation(method, {"method": own, "budget": {"epsilon": _value(options["epsilon"])}})


def _value(text: str) -> Any:
    """An option as records hold it."""
    try:
        return float(text)
    except ValueError:
        return None if text == "none" else text


@pytest.fixture
def dry_run(data_root: Path, tmp_path: Path) -> Callable[..., list[Cell]]:
    """Plans cells as `bench sweep --dry-run --tier smoke` does."""
    common = ["--tier", "smoke", "--out", str(tmp_path), "--data-root", str(data_root), "--device", "cpu"]
    return lambda cells: plan(replace(read(PATHS[0]), cells=tuple(cells)), common, [], tmp_path, Settler())


def on_mnist() -> list[RecipeCell]:
    """Each different cell of all recipes once, on MNIST, whose images are larger for torchvision's networks."""
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
    """Nothing may be refused, and no method may be missing; how many cells are ready."""
    assert not [f"{cell.name}: {cell.reason}" for cell in planned if cell.state == "refused"]
    assert not [f"{cell.name}: {cell.reason}" for cell in planned if cell.state == "planned"]
    return sum(cell.state == "ready" for cell in planned)


@pytest.mark.thorough
def test_every_option_of_the_recipes_is_known(dry_run: Callable[..., list[Cell]]) -> None:
    """Return one cell for each method with each set of its options; the slow test takes every cell."""
    kinds = {(cell.get("method"), frozenset(dict(cell.options))): cell for cell in on_mnist()}
    own = [cell for (_, names), cell in kinds.items() if any(name.startswith("method.") for name in names)]
    assert check(dry_run(own)) == len(own) >= 20


@pytest.mark.slow
def test_nothing_in_a_recipe_is_refused(dry_run: Callable[..., list[Cell]]) -> None:
    assert check(dry_run(on_mnist())) > 200


def with_options(method: str) -> list[tuple[str, dict[str, str]]]:
    """The variant, "" for the default one, and the options of every cell of the papers' recipes that has some."""
    cells = [cell for path in OF_PAPERS for cell in read(path).cells if cell.get("method") == method]
    given = [{key.removeprefix("method."): v for key, v in cell.options if key.startswith("method.")} for cell in cells]
    return [(cell.get("variant"), options) for cell, options in zip(cells, given, strict=True) if options]


@pytest.mark.parametrize("method", ["dpsd", "dpdfd", "fed-dpsd"])
@pytest.mark.parametrize("variant", ["printed", "working"])
def test_the_papers_recipes_can_be_run_with_either_variant(method: str, variant: Variant) -> None:
    """But for cells that name the printed one, as they vary what only its loop has."""
    plugin, cells = registry.load("method", method, variant), with_options(method)
    for named, given in cells:
        if named in ("", variant):
            configure(plugin, "quick", given, "method", variant)
    assert any(not named for named, _ in cells)


@pytest.mark.parametrize("method", ["dpsd", "dpdfd", "dp-dfd"])
def test_a_recipe_names_the_printed_variant_where_the_working_one_cannot_run_it(method: str) -> None:
    """No cell of dpsd and dpdfd names it except for the comparison of the whole loss with its parts."""
    known = {option.name for option in options(registry.load("method", method, "working"))}
    named = [given for variant, given in with_options(method) if variant == "printed"]
    assert named and (method == "dp-dfd" or all(not given.keys() <= known for given in named if "mode" not in given))
    assert all(given.keys() <= known for variant, given in with_options(method) if not variant)


def test_a_slip_would_be_seen(dry_run: Callable[..., list[Cell]]) -> None:
    slip = RecipeCell((("method", "dpsd"), ("dataset", "mnist"), ("epsilon", "1"), ("method.beat", "1")), (0,))
    with pytest.raises(AssertionError, match=r"no option '--method\.beat'"):
        check(dry_run([slip]))
