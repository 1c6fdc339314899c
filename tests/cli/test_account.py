"""Joint guarantee of several releases of the same private records: the end of a run, and `bench account`."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Refused, Type
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent
from made import record

from bench.bundle import releases
from bench.cli import main
from bench.cli.account import describe_joint_guarantee
from bench.privacy import Ledger, Relation, Unit, randomised_response_event
from bench.privacy._bounds import gaussian_epsilon
from bench.storage.records import RECORD, Record
from bench.storage.specs import canonical, digest


def released(
    seed: int, *events: DpEvent | float, noise: str = "os", unit: Unit = Unit.EXAMPLE, **changes: Any
) -> Record:
    """A record whose ledger holds events, or Gaussians of these multipliers, and a Gaussian for an answer."""
    made, ledger = record(seed=seed, **changes), Ledger()
    for event in events:
        ledger.spend(event if isinstance(event, DpEvent) else GaussianDpEvent(event), unit=unit)
    ledger.spend(GaussianDpEvent(1.0), unit=Unit.QUERY)
    made.spec["release"]["noise"] = noise
    made.spec["release"]["budget"]["delta"] = changes.get("delta", 1e-5)
    made.hash = digest(made.spec)
    made.privacy["events"] = ledger.to_json()
    return made


def kept(folder: Path, *records: Record) -> Path:
    """The folder of runs with these records."""
    for one in records:
        path = folder / "records" / one.hash / RECORD
        path.parent.mkdir(parents=True)
        path.write_text(one.to_json(), encoding="utf-8")
    return folder


def composed(*records: Record, delta: float | None = None) -> list[releases.Composed]:
    return releases.compose([found for one in records if (found := releases.of_record(one)) is not None], delta)


def test_joint_guarantee_composes_the_releases_of_a_run(tmp_path: Path) -> None:
    """Noise multipliers of 3 and 4 equal one of 12 / 5; no line is about single responses."""
    (line,) = describe_joint_guarantee([released(0, 3.0), released(1, 4.0)], tmp_path)
    assert f"epsilon of {gaussian_epsilon(5 / 12, 1e-5):.4g} per example at delta 1e-05" in line
    assert "2 releases" in line


def test_joint_guarantee_includes_earlier_releases(tmp_path: Path) -> None:
    other_data, seeded = released(5, 1.0, dataset="mnist"), released(6, 1.0, noise="seeded")
    kept(tmp_path, released(0, 3.0), other_data, seeded, record(seed=7, status="failed"))
    (line,) = describe_joint_guarantee([released(1, 4.0)], tmp_path)
    assert f"epsilon of {gaussian_epsilon(5 / 12, 1e-5):.4g} per example" in line and "2 releases" in line
    (tmp_path / "records" / "damaged").mkdir()
    (tmp_path / "records" / "damaged" / RECORD).write_text("{", encoding="utf-8")
    assert describe_joint_guarantee([released(1, 4.0)], tmp_path) == [line]


def test_joint_guarantee_needs_two_releases_with_os_noise(tmp_path: Path) -> None:
    one = released(0, 3.0)
    assert describe_joint_guarantee([one], kept(tmp_path, one)) == []
    assert describe_joint_guarantee([released(0, 3.0), released(1, 4.0, noise="seeded")], tmp_path) == []
    assert describe_joint_guarantee([released(0, 0.0), released(1, 0.0)], tmp_path / "none") == []
    assert describe_joint_guarantee([record(seed=2, status="failed")], tmp_path) == []


def test_compose_counts_a_shared_release_once() -> None:
    attacked = [released(0, 3.0, attack=name) for name in ("gmi", "mi-face")]
    (found,) = composed(*attacked)
    assert len(found.of) == 1 and found.proved is not None
    assert found.proved.epsilon == pytest.approx(gaussian_epsilon(1 / 3, 1e-5))


def test_compose_uses_the_smallest_delta_by_default() -> None:
    pair = (released(0, 3.0, delta=1e-5), released(1, 4.0, delta=1e-7))
    for delta, expected in ((None, 1e-7), (1e-3, 1e-3)):
        (found,) = composed(*pair, delta=delta)
        assert found.proved is not None and found.proved.delta == expected
        assert found.proved.epsilon == pytest.approx(gaussian_epsilon(5 / 12, expected))


def test_compose_separates_neighbouring_relations() -> None:
    """A Gaussian accounted for removing a record does not cover replacing one, but a randomised response does."""
    pair = (released(0, 3.0), released(1, randomised_response_event(1.0, 3)))
    found = {each.proved.relation: each.proved.epsilon for each in composed(*pair) if each.proved is not None}
    assert found.keys() == {Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE}
    assert found[Relation.REPLACE_ONE] <= 1.0 + 1e-9


def test_compose_gives_reasons_for_releases_left_out() -> None:
    whole = [released(0, 3.0), released(1, 0.0), released(2, 3.0, noise="seeded"), released(3, 1.0, unit=Unit.LABEL)]
    of_example, rest, of_label, without_label = composed(*whole)
    assert (len(of_example.of), len(rest.left_out)) == (1, 3) and rest.proved is None
    reasons = [*rest.left_out.values()]
    assert {"seeded noise", "not accounted per example"} <= {*reasons} and any("noise" in why for why in reasons)
    assert of_label.unit == without_label.unit == Unit.LABEL and len(of_label.of) == 1


def test_compose_joins_image_sizes_of_a_data_set() -> None:
    (found,) = composed(released(0, 3.0, dataset="mnist"), released(1, 4.0, dataset="mnist-32px"))
    assert len(found.of) == 2


def grouped(seed: int, noise: float, fingerprint: str) -> Record:
    """A record of unit group, of data whose groups determine the fingerprint."""
    made = released(seed, noise, unit=Unit.GROUP)
    made.spec["release"]["teacher"]["data"]["fingerprint"] = fingerprint
    made.hash = digest(made.spec)
    return made


def test_compose_separates_different_groupings(tmp_path: Path) -> None:
    """Patients and users are different units; two releases of the same patients compose."""
    patients, users = [grouped(0, 3.0, "a" * 16), grouped(1, 4.0, "a" * 16)], grouped(2, 2.0, "b" * 16)
    first, second = composed(*patients, users)
    assert first.proved is not None and second.proved is not None
    assert (len(first.of), len(second.of)) == (2, 1) and first.grouping != second.grouping
    assert first.proved.epsilon == pytest.approx(gaussian_epsilon(5 / 12, 1e-5))
    assert second.proved.epsilon == pytest.approx(gaussian_epsilon(1 / 2, 1e-5))
    joint, separate = describe_joint_guarantee([*patients, users], tmp_path)
    assert "2 releases" in joint
    assert "digits" in separate and "group in 2 groupings" in separate and "not added" in separate


def test_compose_separates_clients_of_different_seeds() -> None:
    same = [released(0, noise, unit=Unit.CLIENT) for noise in (3.0, 4.0)]
    for made, name in zip(same, ("a", "b"), strict=True):
        made.spec["release"]["method"] = name
    assert [len(each.of) for each in composed(*same)] == [2]
    same[1].spec["release"]["seed"] = 1
    assert [len(each.of) for each in composed(*same)] == [1, 1]


def test_account_command_says_if_only_clients_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two federated releases share unit example; their clients are divided by different seeds."""
    made = [released(seed, 3.0, unit=Unit.CLIENT) for seed in (0, 1)]
    for each in made:
        ledger = Ledger.from_json(each.privacy["events"])
        ledger.spend(GaussianDpEvent(2.0), unit=Unit.EXAMPLE)
        each.privacy["events"] = ledger.to_json()
    assert main(["account", "--releases", str(kept(tmp_path, *made))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "2 releases" in line] == lines[:1] and "example" in lines[0]
    assert "client in 2 groupings" in lines[-1] and "example" not in lines[-1] and "not added" in lines[-1]


def test_account_command_says_if_units_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = kept(tmp_path / "runs", released(0, 3.0), grouped(1, 4.0, "a" * 16))
    assert main(["account", "--releases", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "2 releases" in line] == []
    assert [line for line in lines if "(example, group)" in line and "not added" in line] == lines[-1:]
    both = kept(tmp_path / "both", released(0, 3.0), released(1, 4.0))
    assert main(["account", "--releases", str(both)]) == 0
    assert "not added" not in capsys.readouterr().out


def test_account_command_does_not_join_groups_of_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle does not say which groups it protects, so that it composes with no other release of unit group."""
    runs = kept(tmp_path / "runs", grouped(1, 4.0, "a" * 16))
    made = bundle(tmp_path, "made", GaussianDpEvent(4.0), unit=Unit.GROUP)
    assert main(["account", "--releases", str(runs), str(made)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1].split(",")[0].strip() for line in lines[:2]] == ["1 release", "1 release"]
    assert lines[0].split(":")[0] != lines[1].split(":")[0]  # each line says which groups it means
    assert str(tmp_path) not in "".join(lines)
    assert "group in 2 groupings" in lines[-1]


def bundle(folder: Path, name: str, *events: DpEvent, unit: Unit = Unit.EXAMPLE) -> Path:
    ledger = Ledger()
    for event in events:
        ledger.spend(event, unit=unit)
    (folder / name).mkdir(parents=True)
    proved = {"epsilon": 1.0, "delta": 1e-5, "unit": "example", "relation": "add-or-remove"}
    privacy = {"format": 3, "method": {"name": "made", "version": 1}, "tier": "quick", "noise": "os"}
    privacy |= {"noise_version": 2, "unit": "example", "delta": 1e-5, "accountant": "made", "claimed": None}
    privacy |= {"accounted": {"example": proved | {"accountant": "made", "version": "1"}}, "audited": None}
    privacy |= {"events": ledger.to_json(), "warnings": []}
    model = {"format": 3, "architecture": "datalens", "library": None, "torch": "2.6.0", "classes": 10}
    model |= {"input": {"shape": [1, 16, 16], "layout": "n, c, h, w", "dtype": "float32", "range": [0, 1]}}
    model |= {"normalisation": {"mean": [0.5], "std": [0.5]}, "class_names": None, "data": "digits"}
    model |= {"accuracy": None, "parameters": 100, "buffers": []}
    for file, content in (("privacy.json", privacy), ("model.json", model)):
        (folder / name / file).write_text(canonical(content), encoding="utf-8")
    return folder / name


def test_account_command_composes_records_and_bundles(tmp_path: Path, typed: Type) -> None:
    runs, made = kept(tmp_path / "runs", released(0, 3.0)), bundle(tmp_path, "made", GaussianDpEvent(4.0))
    said = typed("account --releases", runs, made).out
    assert said.startswith(f"digits, per example: 2 releases, epsilon {gaussian_epsilon(5 / 12, 1e-5):.4g} at")
    pure = bundle(tmp_path, "pure", LaplaceDpEvent(2.0))
    assert "epsilon 0.5 at delta 0 " in typed("account --delta 1e-9 --releases", pure).out


@pytest.mark.parametrize("given", ["gone", "empty", "damaged", "no-bundle", "failed"])
def test_account_command_refuses_a_folder_without_release(given: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "empty").mkdir()
    kept(tmp_path / "failed", record(status="failed"))
    for name, file in (("damaged", RECORD), ("no-bundle", "privacy.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text('{"events": [1]}', encoding="utf-8")
    assert "--releases" in refused("account --releases", tmp_path / given)


@pytest.mark.parametrize("delta", ["0", "1", "nan", "much"])
def test_account_command_refuses_a_delta_out_of_range(delta: str, tmp_path: Path, refused: Refused) -> None:
    refused("account --releases", kept(tmp_path, released(0, 3.0)), "--delta", delta)
