"""The estimated time of a sweep, computed by hand from constructed records."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from records_made import BUDGET, CANARIES, audit_line, privacy

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
    digest,
)
from bench.storage.store import Store
from bench.sweeps.estimate import OVERHEAD, Estimate

WHERE = DataSpec("digits", "f" * 16, "iid")
TEACHER = TeacherSpec(WHERE, "resnet18", None, {}, 0)
RELEASE = ReleaseSpec(TEACHER, "dpsd", 1, {}, "datalens", BUDGET, "seeded", 0)
EVALUATOR = EvaluatorSpec(replace(WHERE, split="all"), "evaluator-cnn", {}, 1)
SPENT = {"teacher": 100.0, "evaluator": 30.0, "release": 20.0}
PLAYED = {"attack_student": 1.0, "attack_teacher": 2.0, "attack_random": 3.0}


def run(seed: int = 0, method: str = "dpsd", attack: str | None = None) -> RunSpec:
    teacher = replace(TEACHER, seed=seed)
    release = replace(RELEASE, teacher=teacher, method=method, seed=seed)
    aim = None if attack is None else AttackSpec(release, "a" * 16, attack, 1, "weights", {}, seed)
    return RunSpec("quick", release, aim, EVALUATOR)


def finished(out: Path, spec: RunSpec, seconds: dict[str, float]) -> None:
    path = out / "records" / spec.hash / RECORD
    path.parent.mkdir(parents=True)
    plain = json.loads(json.dumps(asdict(spec)))
    record = Record(spec.hash, "ok", "", plain, privacy=privacy(), provenance={"seconds": seconds})
    path.write_text(record.to_json())


def test_a_step_counts_for_the_first_run_that_needs_it(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7, attack="gmi"), SPENT | PLAYED)
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(attack="gmi"), "inversion") == OVERHEAD + 100 + 30 + 20 + 6
    assert estimate.seconds(store, run(attack="gmi"), "inversion") == OVERHEAD
    assert estimate.seconds(store, run(), None) == OVERHEAD
    other = run(seed=1, attack="gmi")
    assert estimate.seconds(store, other, "inversion") == OVERHEAD + 100 + 20 + 6, "the evaluator is the same for all"


def test_what_brings_back_no_image_needs_no_evaluator(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7, attack="loss-threshold"), SPENT | PLAYED)
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(), None) == OVERHEAD + 100 + 20
    assert estimate.seconds(store, run(attack="loss-threshold"), "membership") == OVERHEAD + 6


def test_a_method_that_asks_no_teacher_waits_for_none(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7), SPENT)
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(), None, needs_teacher=False) == OVERHEAD + 20


def test_what_lies_in_the_store_costs_nothing(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7, attack="gmi"), SPENT | PLAYED)
    store, spec = Store(tmp_path), run(attack="gmi")
    there = {"teacher": asdict(spec.release.teacher), "attack": asdict(attack_specs(spec)["random"])}
    for kind, plain in there.items():
        (tmp_path / "steps" / kind / digest(plain)).mkdir(parents=True)
    assert Estimate(tmp_path).seconds(store, spec, "inversion") == OVERHEAD + 30 + 20 + 1 + 2


def test_the_median_of_equal_steps(tmp_path: Path) -> None:
    for seed, seconds in enumerate((10.0, 20.0, 90.0)):
        finished(tmp_path, run(seed=seed), SPENT | {"release": seconds})
    finished(tmp_path, run(method="dgd"), SPENT | {"release": 1000.0})
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(seed=5), None) == OVERHEAD + 100 + 20


def test_what_was_never_run_is_not_guessed(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7), SPENT)
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(method="dgd"), None) is None
    assert estimate.seconds(store, run(attack="gmi"), "inversion") is None
    assert estimate.seconds(store, run(), None) == OVERHEAD


def test_another_variant_is_another_step(tmp_path: Path) -> None:
    known = run(seed=7, attack="gmi")
    finished(tmp_path, known, SPENT | PLAYED)
    assert known.attack is not None
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, replace(known, release=replace(known.release, variant="working")), None) is None
    attacked = replace(known, attack=replace(known.attack, variant="working"))
    assert Estimate(tmp_path).seconds(store, attacked, "inversion") is None


def audit(recipe: dict[str, int], score: str = "loss", **release: object) -> AuditSpec:
    teacher = AuditTeacherSpec(WHERE, "resnet18", None, recipe, 0, canaries=200, coins=0)
    return AuditSpec("quick", replace(RELEASE, **release), teacher, score, 100, 0.95)  # type: ignore[arg-type]


def audited(out: Path, spec: AuditSpec, seconds: dict[str, float]) -> None:
    path = out / "audits" / spec.hash / AUDIT
    path.parent.mkdir(parents=True)
    plain = json.loads(json.dumps(asdict(spec)))
    lines = {name: audit_line(50) for name in ("student", "teacher", "null")}
    account = {name: privacy()[name] for name in ("claimed", "accounted", "accounted_units")}
    told = {"seconds": seconds}
    found = Audit(spec.hash, "not refuted", [], plain, CANARIES, 3.5, 1e-5, lines, True, account, told)
    path.write_text(found.to_json())


def test_an_audit_takes_what_audits_with_such_teachers_and_conversions_by_its_method_have_taken(tmp_path: Path) -> None:
    earlier = {"teacher": 300.0, "null_teacher": 200.0, "release": 20.0}
    audited(tmp_path, audit({"epochs": 10}), earlier)
    finished(tmp_path, run(seed=7, method="dgd"), SPENT | {"release": 40.0})
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.audit_seconds(store, audit({"epochs": 10}, method="dgd")) == OVERHEAD + 2 * 250 + 40
    assert estimate.audit_seconds(store, audit({"epochs": 10}, method="dgd", version=2)) == OVERHEAD + 40, "shared"
    assert estimate.audit_seconds(store, audit({"epochs": 10}, "rmia", method="dgd")) == OVERHEAD + 250 + 40
    assert estimate.audit_seconds(store, audit({"epochs": 99})) is None, "a teacher trained at another length"
    assert estimate.audit_seconds(store, audit({"epochs": 10}, method="rr")) is None


def test_an_audit_of_an_ensemble_counts_its_teachers_and_leaves_out_what_is_there(tmp_path: Path) -> None:
    shards = EnsembleSpec(WHERE, {"count": 5}, 0)
    spec = audit({}, ensemble=shards)
    audited(tmp_path, spec, {"teacher": 1.0, "null_teacher": 1.0, "release_ensemble": 90.0, "release": 20.0})
    (tmp_path / "steps" / "teacher" / digest(asdict(teachers_of(spec)["null_teacher"]))).mkdir(parents=True)
    assert Estimate(tmp_path).audit_seconds(Store(tmp_path), spec) == OVERHEAD + 1 + 90 + 20
