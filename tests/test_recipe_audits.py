"""recipes/audits.toml and audits-TIER.toml audit every guarantee on the boards of digits and MNIST."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT

from bench import registry
from bench.boards import audited_release, read_records
from bench.cli.sweep import SettingsParser
from bench.config import Variant, describe
from bench.data import ImageData
from bench.pipeline import canary_audit
from bench.pipeline.canary_game import check
from bench.pipeline.components import Components
from bench.pipeline.material import Material, Wanted, load_material
from bench.pipeline.resolve import load_job
from bench.sweeps.plan import plan
from bench.sweeps.recipe import read

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
        check(job, game)
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
