"""The recipes have every number of the papers' tables and audit every guarantee on the boards of digits and MNIST."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT

from bench import registry
from bench.boards import audited_release, read_records
from bench.cli.sweep import SettingsParser
from bench.config import Variant, configure, describe, options
from bench.data import ImageData
from bench.papers import printed_numbers
from bench.pipeline import canary_audit
from bench.pipeline.canary_game import check as check_game
from bench.pipeline.components import Components
from bench.pipeline.material import Material, Wanted, load_material
from bench.pipeline.resolve import load_job
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


RECIPE = ROOT / "recipes" / "audits.toml"
RECIPES = {"quick": RECIPE, **{tier: ROOT / "recipes" / f"audits-{tier}.toml" for tier in ("standard", "paper")}}
BOARDS = {"digits", "mnist"}


def material(wanted: Wanted) -> Material:
    """Digits, which every machine has; blank images instead of MNIST's."""
    if wanted.dataset == "digits":
        return load_material(wanted)
    blank, labels = torch.zeros(3000, 1, 28, 28, dtype=torch.uint8), torch.arange(3000) % 10
    names = tuple(map(str, range(10)))
    images = ImageData(wanted.dataset, blank, labels, blank, labels, names)
    return Material(images, (blank, labels), blank, public=blank if wanted.public else None)


def without_mnist_images(release: dict[str, Any]) -> dict[str, Any]:
    """Return an `audited_release` without the fingerprints of MNIST, whose images are blank here."""
    where = release["release"]["teacher"]["data"]
    if where["dataset"] != "digits":
        where["fingerprint"] = ""
        if release["release"].get("public") is not None:
            release["release"]["public"] = ""
        if release["release"]["ensemble"] is not None:
            release["release"]["ensemble"]["data"]["fingerprint"] = ""
    return release


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The releases that the recipes audit."""
    common = ["--out", str(tmp_path_factory.mktemp("out")), "--device", "cpu"]
    components = Components(caches=True)
    components.material = lru_cache(maxsize=2)(material)  # type: ignore[method-assign]
    read_settings, found = SettingsParser(), list[dict[str, Any]]()
    for tier, wanted in [(tier, cell) for tier, recipe in RECIPES.items() for cell in read(recipe).cells]:
        assert wanted.command == "audit release" and wanted.seeds == (0,)
        settings, game = read_settings(["audit", "release", *wanted.arguments, *common, "--tier", tier])
        assert game is not None
        job = load_job(settings, components)
        check_game(job, game)
        spec = json.loads(json.dumps(asdict(canary_audit.audit_spec(job, game, 0))))
        found.append(without_mnist_images(json.loads(audited_release(spec))))
    return found


def on_boards() -> dict[str, dict[str, Any]]:
    """Return each release with seed 0 on a board that has a finite epsilon, by name.

    An audit of a release has split iid: `few` has 300 private records, too few for canaries, and
    `canaries` has wrong labels already.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in read_records(ROOT / "leaderboards"):
        release = record.spec["release"]
        dataset = release["teacher"]["data"]["dataset"]
        iid = release["teacher"]["data"]["split"] == "iid"
        if dataset in BOARDS and release["seed"] == 0 and iid and has_finite_epsilon(record.privacy):
            name = (
                f"{release['method']} {dataset} {record.spec['tier']} {record.setting} {audited_release(record.spec)}"
            )
            found[name] = without_mnist_images(json.loads(audited_release(record.spec)))
    return found


def has_finite_epsilon(privacy: dict[str, Any]) -> bool:
    """Whether a record has a finite epsilon, claimed or accounted, that an audit can refute."""
    numbers = [privacy.get("claimed"), privacy.get("accounted")]
    return any((each.get("epsilon") if isinstance(each, dict) else each) not in (None, "inf") for each in numbers)


def uncovered(boards: dict[str, dict[str, Any]], audited: list[dict[str, Any]]) -> list[str]:
    """Return the names of releases without an audit."""
    return [name for name, release in boards.items() if not any(covers(each, release) for each in audited)]


def covers(audited: dict[str, Any], release: dict[str, Any]) -> bool:
    """Whether an audit is of a release, or of the release that a newer plug-in makes at its settings."""
    if audited == release:
        return True
    newer, older = dict(audited["release"]), dict(release["release"])
    if audited["tier"] != release["tier"] or newer.pop("version") < older.pop("version"):
        return False
    if audited["release"]["version"] > release["release"]["version"]:  # sizes may have changed with it
        usual = usual_sizes(newer["method"], newer["variant"], audited["tier"]).items()
        newer["options"] = {name: value for name, value in newer["options"].items() if (name, value) not in usual}
    return agree(newer, older)


@lru_cache
def usual_sizes(method: str, variant: Variant, tier: str) -> dict[str, Any]:
    """Return the default sizes of a plug-in, which may differ from those of an older version."""
    described = describe(registry.load("method", method, variant))
    values = described.values(tier, variant)
    return {option.name: values[option.name] for option in described.options if option.size}


def agree(one: Any, other: Any) -> bool:
    """Whether two values are equal except for options that only one of them has."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(agree(one[key], other[key]) for key in one.keys() & other.keys())
    return bool(one == other)


@pytest.mark.thorough
def test_recipe_audits_every_guarantee_on_the_boards(audited: list[dict[str, Any]]) -> None:
    boards = on_boards()
    assert {release["release"]["teacher"]["data"]["dataset"] for release in boards.values()} == BOARDS
    assert not [name.partition("{")[0] for name in uncovered(boards, audited)]


def with_changes(audit: dict[str, Any], version: int, tier: str = "", **changes: Any) -> dict[str, Any]:
    """A copy of an audit with another version of its plug-in, and other options."""
    made = json.loads(json.dumps(audit))
    made["release"]["version"] += version
    made["release"]["budget"]["epsilon"] = changes.pop("epsilon", made["release"]["budget"]["epsilon"])
    made["release"]["options"] |= changes
    return made | {"tier": tier or made["tier"]}


@pytest.mark.parametrize(
    ("changes", "is_uncovered"),
    [
        ({"version": 0}, False),
        ({"version": -1}, False),
        ({"version": -1, "an-old-name": 1}, False),
        ({"version": -1, "student_steps": 77}, False),
        ({"version": -1, "epsilon": 3.0}, True),
        ({"version": -1, "mode": "label", "beta": 0.5}, True),
        ({"version": 1}, True),
        ({"version": 0, "tier": "paper"}, True),
    ],
    ids=["same", "older", "older name", "older size", "epsilon", "options", "unknown version", "tier"],
)
def test_uncovered_detects_a_release_without_audit(
    audited: list[dict[str, Any]], changes: dict[str, Any], is_uncovered: bool
) -> None:
    """An audit of a newer version covers it, with other names and sizes; none is of a version that does not exist."""
    changed = with_changes(audited[0], **changes)
    assert uncovered({"it": changed}, audited) == ["it"] * is_uncovered


def test_recipe_audits_have_these_canaries_and_epochs() -> None:
    cells = read(RECIPE).cells
    assert {(cell.get("dataset"), cell.get("canaries"), cell.get("teacher.epochs")) for cell in cells} == {
        ("digits", "200", ""),
        ("digits", "100", ""),
        ("mnist", "1000", "10"),
    }


@pytest.mark.slow
def test_recipe_audits_are_not_refused(data_root: Path, tmp_path: Path) -> None:
    common = ["--tier", "quick", "--out", str(tmp_path), "--data-root", str(data_root), "--device", "cpu"]
    planned = plan(read(RECIPE), common, [], tmp_path, SettingsParser())
    assert [f"{cell.name}: {cell.reason}" for cell in planned if cell.state != "ready"] == []
    groups = {(cell.get("dataset"), cell.get("canaries"), cell.get("teacher")) for cell in read(RECIPE).cells}
    assert len({cell.after for cell in planned}) == len(groups), "audits with the same canaries share their teachers"
