"""The estimated time of a sweep by hand from constructed records, and the results that it prints."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from board_records import record
from records_made import BUDGET, CANARIES, audit_line, privacy

from bench.cli import sweep
from bench.pipeline.attacks import attack_specs
from bench.pipeline.canary_audit import teachers_of
from bench.storage.records import AUDIT, RECORD, Audit, Record
from bench.storage.specs import (
    AttackSpec,
    AuditSpec,
    AuditTeacherSpec,
    DataSpec,
    EnsembleSpec,
    EvaluatorSpec,
    ReleaseSpec,
    RunSpec,
    TeacherSpec,
    canonical,
)
from bench.storage.store import Store
from bench.sweeps.estimate import OVERHEAD, Estimate
from bench.sweeps.results import CellResult, cell_results, write_results
from bench.sweeps.run_sweep import Outcome

WHERE = DataSpec("digits", "f" * 16, "iid")
TEACHER = TeacherSpec(WHERE, "resnet18", None, {}, 0)
RELEASE = ReleaseSpec(TEACHER, "dpsd", 1, {}, "datalens", BUDGET, "seeded", 0)
EVALUATOR = EvaluatorSpec(replace(WHERE, split="all"), "evaluator-cnn", {}, 1)
SECONDS = {"teacher": 100.0, "evaluator": 30.0, "release": 20.0}
ATTACKED = {"attack_student": 1.0, "attack_teacher": 2.0, "attack_random": 3.0}


def run(seed: int = 0, method: str = "dpsd", attack: str | None = None) -> RunSpec:
    release = replace(RELEASE, teacher=replace(TEACHER, seed=seed), method=method, seed=seed)
    attack_spec = None if attack is None else AttackSpec(release, "a" * 16, attack, 1, "weights", {}, seed)
    return RunSpec("quick", release, attack_spec, EVALUATOR)


def finished(out: Path, spec: RunSpec, seconds: dict[str, float]) -> None:
    path = out / "records" / spec.hash / RECORD
    path.parent.mkdir(parents=True)
    plain = json.loads(canonical(spec))
    record = Record(spec.hash, "ok", "", plain, privacy=privacy(), provenance={"seconds": seconds})
    path.write_text(record.to_json())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "new")


def test_estimate_counts_a_step_for_the_first_run(tmp_path: Path, store: Store) -> None:
    finished(tmp_path, run(seed=7, attack="gmi"), SECONDS | ATTACKED)
    estimate = Estimate(tmp_path)
    assert estimate.seconds(store, run(attack="gmi"), "inversion") == OVERHEAD + 100 + 30 + 20 + 6
    assert estimate.seconds(store, run(attack="gmi"), "inversion") == OVERHEAD
    assert estimate.seconds(store, run(), None) == OVERHEAD
    other = run(seed=1, attack="gmi")
    assert estimate.seconds(store, other, "inversion") == OVERHEAD + 100 + 20 + 6, "the evaluator is the same for all"


def test_estimate_without_inversion_has_no_evaluator(tmp_path: Path, store: Store) -> None:
    finished(tmp_path, run(seed=7, attack="loss-threshold"), SECONDS | ATTACKED)
    estimate = Estimate(tmp_path)
    assert estimate.seconds(store, run(), None) == OVERHEAD + 100 + 20
    assert estimate.seconds(store, run(attack="loss-threshold"), "membership") == OVERHEAD + 6


def test_estimate_without_teacher_counts_none(tmp_path: Path, store: Store) -> None:
    finished(tmp_path, run(seed=7), SECONDS)
    assert Estimate(tmp_path).seconds(store, run(), None, needs_teacher=False) == OVERHEAD + 20


def test_estimate_stored_steps_take_no_time(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7, attack="gmi"), SECONDS | ATTACKED)
    spec = run(attack="gmi")
    for kind, step in {"teacher": spec.release.teacher, "attack": attack_specs(spec)["random"]}.items():
        (tmp_path / "steps" / kind / step.hash).mkdir(parents=True)
    assert Estimate(tmp_path).seconds(Store(tmp_path), spec, "inversion") == OVERHEAD + 30 + 20 + 1 + 2


def test_estimate_is_the_median_of_similar_steps(tmp_path: Path, store: Store) -> None:
    for seed, seconds in enumerate((10.0, 20.0, 90.0)):
        finished(tmp_path, run(seed=seed), SECONDS | {"release": seconds})
    finished(tmp_path, run(method="dgd"), SECONDS | {"release": 1000.0})
    assert Estimate(tmp_path).seconds(store, run(seed=5), None) == OVERHEAD + 100 + 20


def test_estimate_unknown_step_is_none(tmp_path: Path, store: Store) -> None:
    finished(tmp_path, run(seed=7), SECONDS)
    estimate = Estimate(tmp_path)
    assert estimate.seconds(store, run(method="dgd"), None) is None
    assert estimate.seconds(store, run(attack="gmi"), "inversion") is None
    assert estimate.seconds(store, run(), None) == OVERHEAD


def test_estimate_other_variant_is_another_step(tmp_path: Path, store: Store) -> None:
    known = run(seed=7, attack="gmi")
    finished(tmp_path, known, SECONDS | ATTACKED)
    assert known.attack is not None
    converted = replace(known, release=replace(known.release, variant="working"))
    assert Estimate(tmp_path).seconds(store, converted, None) is None
    attacked = replace(known, attack=replace(known.attack, variant="working"))
    assert Estimate(tmp_path).seconds(store, attacked, "inversion") is None


def audit(recipe: dict[str, int], score: str = "loss", **release: object) -> AuditSpec:
    teacher = AuditTeacherSpec(WHERE, "resnet18", None, recipe, 0, canaries=200, coins=0)
    return AuditSpec("quick", replace(RELEASE, **release), teacher, score, 100, 0.95)  # type: ignore[arg-type]


def audited(out: Path, spec: AuditSpec, seconds: dict[str, float]) -> None:
    path = out / "audits" / spec.hash / AUDIT
    path.parent.mkdir(parents=True)
    lines = {name: audit_line(50) for name in ("student", "teacher", "null")}
    account = {name: privacy()[name] for name in ("claimed", "accounted", "accounted_units")}
    plain, origin = json.loads(canonical(spec)), {"seconds": seconds}
    found = Audit(spec.hash, "not refuted", [], plain, CANARIES, 3.5, 1e-5, lines, True, account, origin)
    path.write_text(found.to_json())


def test_estimate_of_an_audit_uses_similar_steps(tmp_path: Path, store: Store) -> None:
    audited(tmp_path, audit({"epochs": 10}), {"teacher": 300.0, "null_teacher": 200.0, "release": 20.0})
    finished(tmp_path, run(seed=7, method="dgd"), SECONDS | {"release": 40.0})
    estimate = Estimate(tmp_path)
    assert estimate.audit_seconds(store, audit({"epochs": 10}, method="dgd")) == OVERHEAD + 2 * 250 + 40
    assert estimate.audit_seconds(store, audit({"epochs": 10}, method="dgd", version=2)) == OVERHEAD + 40, "shared"
    assert estimate.audit_seconds(store, audit({"epochs": 10}, "rmia", method="dgd")) == OVERHEAD + 250 + 40
    assert estimate.audit_seconds(store, audit({"epochs": 99})) is None, "teachers of another length"
    assert estimate.audit_seconds(store, audit({"epochs": 10}, method="rr")) is None


def test_estimate_of_an_audit_counts_its_ensemble(tmp_path: Path) -> None:
    spec = audit({}, ensemble=EnsembleSpec(WHERE, {"count": 5}, 0))
    audited(tmp_path, spec, {"teacher": 1.0, "null_teacher": 1.0, "release_ensemble": 90.0, "release": 20.0})
    (tmp_path / "steps" / "teacher" / teachers_of(spec)["null_teacher"].hash).mkdir(parents=True)
    assert Estimate(tmp_path).audit_seconds(Store(tmp_path), spec) == OVERHEAD + 1 + 90 + 20


def saved(folder: Path, seed: int, **metrics: float) -> Path:
    """The directory of a record with these metrics of its attack."""
    one = record(seed, 0.5)
    one.metrics = {"accuracy": 0.5, **metrics}
    place = folder / one.hash
    place.mkdir(parents=True)
    (place / RECORD).write_text(one.to_json(), encoding="utf-8")
    return place


def test_cell_results_have_accuracy_epsilon_and_attack(tmp_path: Path) -> None:
    attacked = saved(tmp_path, 0, attack_accuracy=0.25, teacher_attack_accuracy=0.75)
    followed = saved(tmp_path, 1, auc=0.52, teacher_auc=0.61)
    published = followed / RECORD
    outcomes = [
        Outcome("inversion", "ok", record=str(attacked)),
        Outcome("membership", "published", record=str(published)),
        Outcome("refused", "refused", "no budget can be met"),
    ]
    first, second, third = cell_results(outcomes)
    assert (first.accuracy, first.attack) == ("0.5000", "gmi accuracy 25.0% (teacher 75.0%)")
    assert first.epsilon.endswith(" per example") and first.epsilon == second.epsilon
    assert second.attack == "gmi AUC 0.520 (teacher 0.610)"
    assert third == CellResult("refused", "refused", attack="no budget can be met")


def test_results_are_written_in_full_and_printed_in_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [CellResult(f"cell{i}", "ok", "0.5000", "1 per example", "gmi accuracy 25.0%") for i in range(100)]
    path = tmp_path / "table.csv"
    write_results(path, results)
    with path.open(newline="", encoding="utf-8") as stream:
        assert [row["cell"] for row in csv.DictReader(stream)] == [each.cell for each in results]
    sweep.show_results(results, path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and lines[-1].startswith("70 more cells") and lines[-1].endswith(str(path))
