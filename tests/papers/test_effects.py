"""The effect of a departure: pairs of runs that differ only in it, and the recipe of the missing ones."""

from __future__ import annotations

import csv
import importlib
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import registry
from bench.config import Departure
from bench.papers import effects
from bench.sweeps import recipe

ROOT = Path(__file__).resolve().parents[2]
FIELDS = ("method", "dataset", "options", "seed", "version", "accuracy", "teacher_accuracy")


def written(path: Path, rows: list[tuple[str, dict[str, Any], int, str, str]], teachers: str = "0.9900") -> Path:
    """A file of runs of `rr`: data set, options, seed, version, accuracy; `teachers`: the accuracy of all teachers."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(FIELDS)
        for dataset, options, seed, version, accuracy in rows:
            given = {"attack": {}, "teacher": {}, "budget": {"epsilon": 1.0}, "method": options}
            table.writerow(["rr", dataset, json.dumps(given), seed, version, accuracy, teachers])
    return path


def test_effect_needs_the_same_teacher(tmp_path: Path) -> None:
    file = written(tmp_path / "runs.csv", [("digits", {}, 0, "1", "0.5000"), ("digits", {}, 1, "1", "0.6000")])
    again = written(tmp_path / "again.csv", [("digits", {"warmup": 0.15}, 1, "1", "0.4000")])
    other = written(tmp_path / "other.csv", [("digits", {"warmup": 0.15}, 0, "1", "0.3000")], teachers="0.9800")
    for more in (again, other):
        file.write_text(file.read_text() + "".join(more.read_text().splitlines(keepends=True)[1:]))
    (found,) = effects.measure_effects("rr", {"warmup": 0.15}, file=file)
    assert (found.kept, found.left) == ({1: 0.6}, {1: 0.4})


def test_effect_compares_runs_seed_by_seed(tmp_path: Path) -> None:
    file = written(tmp_path / "runs.csv", [
        ("digits", {}, 0, "1", "0.5000"), ("digits", {}, 1, "1", "0.6000"), ("digits", {}, 2, "1", "0.9000"),
        ("digits", {"warmup": 0.15}, 0, "1", "0.4000"), ("digits", {"warmup": 0.15}, 1, "1", "0.4200"),
        ("digits", {"warmup": 0.15, "rate": 0.1}, 0, "1", "0.1000"),
        ("mnist", {"warmup": 0.15}, 0, "1", "0.2000"),
    ])  # fmt: skip
    (found,) = effects.measure_effects("rr", {"warmup": 0.15}, file=file)
    assert (found.dataset, found.kept, found.left) == ("digits", {0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.42})
    assert str(found) == "digits, epsilon 1.0: 55.0 ± 7.1 %, without it 41.0 ± 1.4 % (2 seeds)"


def test_effect_names_shared_options_of_one_version(tmp_path: Path) -> None:
    file = written(tmp_path / "runs.csv", [
        ("digits", {"passes": 3}, 0, "2", "0.5000"), ("digits", {"passes": 3, "warmup": 0.15}, 0, "2", "0.4000"),
        ("digits", {"passes": 3}, 1, "2", "0.5000"), ("digits", {"passes": 3, "warmup": 0.15}, 1, "1", "0.4000"),
    ])  # fmt: skip
    (found,) = effects.measure_effects("rr", {"warmup": 0.15}, file=file)
    assert str(found) == "digits, epsilon 1.0, passes 3: 50.0 %, without it 40.0 % (1 seed)"


def test_effect_reverts_all_options_of_a_change(tmp_path: Path) -> None:
    undone = {"optimizer": "sgd", "rate": 0.4}
    rows = [("digits", {}, 0, "1", "0.5000"), ("digits", {"optimizer": "sgd"}, 0, "1", "0.4000")]
    assert effects.measure_effects("rr", undone, file=written(tmp_path / "a.csv", rows)) == []
    rows.append(("digits", undone, 0, "1", "0.3000"))
    (found,) = effects.measure_effects("rr", undone, file=written(tmp_path / "b.csv", rows))
    assert found.left == {0: 0.3}


def test_effect_of_attack_is_success_on_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "attacks.csv"
    none = {"budget": {"epsilon": None, "solve": "none"}, "method": {}, "teacher": {}}
    described = {name: registry.describe("attack", name, "working") for name in ("gmi", "rmia")}
    with file.open("w", newline="", encoding="utf-8") as lines:
        table = csv.writer(lines)
        table.writerow(("attack", "dataset", "options", "seed", "version", "success", "teacher_accuracy"))
        for name, options, success in (
            ("gmi", {}, "0.8100"), ("gmi", {"lr": 0.01}, "0.6000"),
            ("rmia", {}, "0.5400"), ("rmia", {"score": "share"}, "0.5300"),
        ):  # fmt: skip
            version = described[name].facts["version"]
            table.writerow([name, "digits", json.dumps(none | {"attack": options}), 0, version, success, "0.9900"])
    monkeypatch.setitem(effects.FILES, "attack", file)

    def describe(name: str, option: str) -> str:
        (departure,) = (each for each in described[name].departures if set(each.sets) == {option})
        return effects.describe_effect(name, described[name], departure)

    assert describe("gmi", "lr") == "digits: 81.0 %, without it 60.0 % (1 seed)"
    assert describe("rmia", "score") == "digits: AUC 0.540, without it AUC 0.530 (1 seed)"


def test_reverting_options_are_printed_or_named_values() -> None:
    described = registry.describe("method", "rr")
    (warmup,) = (each for each in described.departures if set(each.sets) == {"warmup"})
    printed = {option.name: option.default for option in described.options}
    assert effects.reverting_options(described, warmup) == {"warmup": printed["warmup"]}
    assert printed["warmup"] != warmup.sets["warmup"]
    assert effects.reverting_options(described, Departure("what", "why", without={"rounds": 1})) == {"rounds": 1}
    assert effects.reverting_options(described, Departure("what", "why")) == {}


def test_effect_stated_by_plugin_comes_first() -> None:
    described = registry.describe("method", "rr")
    stated = replace(described.departures[0], worth="two points")
    assert registry.effect("rr", described, stated) == "two points"
    assert effects.describe_effect("rr", described, Departure("what", "why")) == ""


@pytest.mark.parametrize("name", [each for each in registry.entries("method")])
def test_reverting_options_exist_in_every_plugin(name: str) -> None:
    for variant in registry.variants("method", name):
        described = registry.describe("method", name, variant)
        known = {option.name: option.default for option in described.options}
        for departure in described.departures:
            for option, value in effects.reverting_options(described, departure).items():
                assert option in known, f"{departure.what}: no option {option}"
                assert isinstance(value, type(known[option])) or isinstance(known[option], float)


class TestMissing:
    """benchmarks/departures.py"""

    @pytest.fixture
    def departures(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("departures")

    def test_recipe_has_method_and_each_reverted_change(
        self, departures: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        monkeypatch.setattr(departures, "measure_effects", lambda name, undone, kind: [])
        monkeypatch.setattr("sys.argv", ["departures.py", "rr"])
        departures.main()
        path = tmp_path / "departures.toml"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        told = tomllib.loads(path.read_text(encoding="utf-8"))["grid"]
        assert told[0] == {
            "method": "rr", "attack": "random-guess", "epsilon": 1, "unit": "label", "account": "accounted",
            "note": "as it is",
        }  # fmt: skip
        taken = [{key for key in grid if key.startswith("method.")} for grid in told[1:]]
        described = registry.describe("method", "rr")
        assert taken == [{f"method.{name}" for name in each.sets} for each in described.departures]
        assert [cell.seeds for cell in recipe.read(path).cells] == [(0, 1, 2)] * len(told)

    def test_recipe_of_attacks_targets_the_teacher(self, departures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(departures, "measure_effects", lambda name, undone, kind: [])
        first, *others = departures.grids("digits", ["rmia", "domias"], "attack")
        assert first == {"attack": "rmia", "method": "no-defence", "epsilon": "none", "note": "as it is"}
        assert [{key for key in each if "." in key} for each in others] == [{"attack.score"}], (
            "domias needs released images"
        )

    def test_recipe_leaves_out_measured_changes(self, departures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        described = registry.describe("method", "rr")

        def known(version: int) -> list[effects.Effect]:
            return [effects.Effect("digits", version, {}, {0: 0.5}, {0: 0.4})]

        for version, count in ((described.facts["version"], 0), (0, len(described.departures))):
            monkeypatch.setattr(
                departures, "measure_effects", lambda name, undone, kind, version=version: known(version)
            )
            assert len(list(departures.missing("rr", described, "digits"))) == count
        assert len(list(departures.missing("rr", described, "mnist"))) == len(described.departures)
