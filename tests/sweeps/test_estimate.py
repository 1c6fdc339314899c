"""How long a sweep will take, worked by hand from made-up records."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from bench import stage
from bench.records import (
    RECORD,
    AttackSpec,
    DataSpec,
    EvaluatorSpec,
    Record,
    ReleaseSpec,
    RunSpec,
    TeacherSpec,
    digest,
)
from bench.store import Store
from bench.sweeps.estimate import BESIDES, Estimate

WHERE = DataSpec("digits", "f" * 16, "iid")
TEACHER = TeacherSpec(WHERE, "resnet18", None, {}, 0)
RELEASE = ReleaseSpec(TEACHER, "dpsd", 1, {}, "datalens", {}, "seeded", 0)
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
    record = Record(spec.hash, "ok", "", json.loads(json.dumps(asdict(spec))), provenance={"seconds": seconds})
    path.write_text(record.to_json())


def test_a_step_counts_for_the_first_run_that_needs_it(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7, attack="gmi"), SPENT | PLAYED)
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(attack="gmi"), "inversion") == BESIDES + 100 + 30 + 20 + 6
    assert estimate.seconds(store, run(attack="gmi"), "inversion") == BESIDES
    assert estimate.seconds(store, run(), None) == BESIDES
    assert estimate.seconds(store, run(seed=1), None) == BESIDES + 100 + 20, "the evaluator is the same for all seeds"


def test_what_lies_in_the_store_costs_nothing(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7, attack="gmi"), SPENT | PLAYED)
    store, spec = Store(tmp_path), run(attack="gmi")
    there = {"teacher": asdict(spec.release.teacher), "attack": asdict(stage.targets(spec)["random"])}
    for kind, plain in there.items():
        (tmp_path / "steps" / kind / digest(plain)).mkdir(parents=True)
    assert Estimate(tmp_path).seconds(store, spec, "inversion") == BESIDES + 30 + 20 + 1 + 2


def test_the_median_of_what_is_alike(tmp_path: Path) -> None:
    for seed, seconds in enumerate((10.0, 20.0, 90.0)):
        finished(tmp_path, run(seed=seed), SPENT | {"release": seconds})
    finished(tmp_path, run(method="dgd"), SPENT | {"release": 1000.0})
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(seed=5), None) == BESIDES + 100 + 30 + 20


def test_what_nobody_has_run_is_not_guessed(tmp_path: Path) -> None:
    finished(tmp_path, run(seed=7), SPENT)
    estimate, store = Estimate(tmp_path), Store(tmp_path / "new")
    assert estimate.seconds(store, run(method="dgd"), None) is None
    assert estimate.seconds(store, run(attack="gmi"), "inversion") is None
    assert estimate.seconds(store, run(), None) == BESIDES
