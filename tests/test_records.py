"""Specs, records of runs and audits, and their provenance."""

import hashlib
import json
import math
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_made import BUDGET, CANARIES, accounted, audit_line, privacy

from bench.privacy import Budget
from bench.storage.provenance import GitState, Origin, StepLog, collect, git_state
from bench.storage.records import Audit, Record, _digest_as_written
from bench.storage.specs import (
    AttackSpec,
    AuditSpec,
    AuditTeacherSpec,
    DataSpec,
    EnsembleSpec,
    EvaluatorSpec,
    FeaturesSpec,
    GeneratorSpec,
    RandomSpec,
    ReferenceImagesSpec,
    ReleaseSpec,
    RetrievalSpec,
    RunSpec,
    Spec,
    TeacherSpec,
    TrainedGeneratorSpec,
    canonical,
    digest,
)

DATA = DataSpec("digits", "f" * 16, "iid")
TEACHER = TeacherSpec(DATA, "resnet18", None, {"epochs": 2}, 0)
RELEASE = ReleaseSpec(TEACHER, "dpsd", 1, {"sigma": 1.0}, "datalens", BUDGET, "seeded", 0)
EVALUATOR = EvaluatorSpec(DATA, "evaluator-cnn", {}, 1)
RUN = RunSpec("quick", RELEASE, None, EVALUATOR)
AUDIT_TEACHER = AuditTeacherSpec(DATA, "resnet18", None, {}, 0, canaries=9)
AUDIT = AuditSpec("quick", RELEASE, AUDIT_TEACHER, "loss", 4, 0.95)
STEPS: list[tuple[Spec, str]] = [
    (TEACHER, "f41ebb3ca04297ba"),
    (EVALUATOR, "03bd17b2b1a8dc14"),
    (EnsembleSpec(DATA, {"count": 5}, 0), "4107a370de0d5f23"),
    (RELEASE, "2ecdc202a5ea3b26"),
    (AttackSpec(RELEASE, "a" * 16, "gmi", 1, "weights", {"steps": 9}, 0), "58e7ac7e83b7e7dd"),
    (AttackSpec(RandomSpec(DATA, "resnet18", 0), "a" * 16, "rmia", 1, "scores", {}, 0), "3da6d08481f5f631"),
    (RetrievalSpec(TEACHER, "a" * 16, "label"), "75b4b1bc7230a1fa"),
    (FeaturesSpec(DATA, EVALUATOR, version=1), "a9306714b272c4c5"),
    (ReferenceImagesSpec(DATA, EVALUATOR, "a" * 16, images=20, version=1), "da07d7f0d3cac46f"),
    (AttackSpec(GeneratorSpec(DATA, 200, 0, 0), "a" * 16, "domias", 1, "samples", {}, 0), "621a074e7165f6ac"),
    (TrainedGeneratorSpec(DATA, 200, 30, 0, images="b" * 16), "2df0cdc4537db480"),
    (RUN, "b4e16c4da88a33ab"),
    (AUDIT_TEACHER, "d50b4e2cc9e4ff17"),
    (AUDIT, "b7544582d6790706"),
]


def record_of(options: dict[str, Any] | None = None, **metrics: float | None) -> Record:
    return Record(RUN.hash, "ok", "", asdict(RUN), options or {}, metrics=metrics, privacy=privacy())


def read(folder: Path, text: str, kind: Any = Record) -> Any:
    """A file of this text, read as a record or an audit."""
    path = folder / f"{kind.__name__.lower()}.json"
    path.write_text(text, encoding="utf-8")
    return kind.read(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.thorough
@given(JSON)
def test_canonical_equals_json_dumps(data: Any) -> None:
    assert canonical(data) == json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        *((bad, TypeError) for bad in ({1: 2}, {"x": {3}}, [b"x"], {"a": 1, 2: 3})),
        *(({"x": number}, ValueError) for number in (math.nan, math.inf)),
    ],
)
def test_canonical_value_not_json_is_refused(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        canonical(bad)


def test_canonical_ignores_the_order_of_keys() -> None:
    assert canonical({"b": 1, "a": 2.5}) == canonical({"a": 2.5, "b": 1})
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 2, "b": 2})


@pytest.mark.parametrize(("spec", "expected"), STEPS, ids=lambda each: getattr(each, "kind", None))
def test_spec_of_each_step_keeps_its_hash(spec: Spec, expected: str) -> None:
    plain = asdict(spec)  # type: ignore[call-overload]
    assert spec.hash == digest(plain) == expected and f"{spec.text}\n" == canonical(plain)


@pytest.mark.parametrize(
    "changed",
    [
        replace(RUN, tier="paper"),
        replace(RUN, release=replace(RELEASE, seed=1)),
        replace(RUN, release=replace(RELEASE, teacher=replace(TEACHER, recipe={"epochs": 3}))),
        replace(RUN, release=replace(RELEASE, teacher=replace(TEACHER, data=replace(DATA, fingerprint="0" * 16)))),
        replace(RUN, release=replace(RELEASE, version=2)),
        replace(RUN, release=replace(RELEASE, noise="os")),
    ],
)
def test_spec_hash_covers_the_whole_history(changed: RunSpec) -> None:
    assert changed.hash != RUN.hash


def test_spec_budget_none_differs_from_infinite() -> None:
    none, infinite = Budget(None, solve="none").to_json(), Budget(math.inf, solve="none").to_json()
    assert (none["epsilon"], infinite["epsilon"]) == (None, "inf") and digest(none) != digest(infinite)
    assert set(none) == {"epsilon", "delta", "account", "solve", "unit"}


def test_record_is_read_as_written(tmp_path: Path) -> None:
    record = record_of(accuracy=0.5, fid=None)
    found = read(tmp_path, record.to_json())
    assert found == replace(record, spec=json.loads(canonical(asdict(RUN)))) and found.to_json() == record.to_json()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hash": "x"}', "null"])
def test_record_text_not_a_record_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"record\.json"):
        read(tmp_path, text)


@pytest.mark.parametrize("indent", [None, 1, 2])
def test_record_edited_spec_is_refused(tmp_path: Path, indent: int | None) -> None:
    record = record_of(accuracy=0.5)
    text = record.to_json() if indent == 1 else json.dumps(asdict(record), indent=indent)
    assert read(tmp_path, text).spec["tier"] == "quick"
    with pytest.raises(ValueError, match="hash"):
        read(tmp_path, text.replace('"quick"', '"paper"'))


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON))
def test_digest_of_a_written_spec_equals_that_of_its_data(spec: Any, metrics: Any) -> None:
    text = canonical({"hash": "x", "metrics": metrics, "reason": '\n "spec": {', "spec": spec, "status": "ok"})
    expected = hashlib.sha256(canonical(spec).encode(errors="surrogatepass")).hexdigest()[:16]
    assert _digest_as_written(text.encode(errors="surrogatepass")) in (expected, "" if not spec else None)


OPTIONS = {
    "method": {"teachers": 40, "secure": True},
    "attack": {"steps": 9},
    "teacher": {"lr": 0.01},
    "budget": {"noise": "os", "account": "accounted", "epsilon": "inf"},
}


def test_record_options_are_data_and_a_line(tmp_path: Path) -> None:
    record = record_of(OPTIONS)
    line = "secure=true teachers=40 attack.steps=9 teacher.lr=0.01 epsilon=inf account=accounted noise=os"
    found = read(tmp_path, record.to_json())
    assert found.options == OPTIONS and found.setting == record.setting == line, "in any order of the file"
    assert record_of({"budget": {"epsilon": None}}).setting == "epsilon=none" and record_of().setting == ""


@pytest.mark.parametrize(
    ("name", "wrong", "path"),
    [
        *((name, wrong, name) for name, wrong in (("metrics", None), ("artifacts", "x"), ("options", None))),
        ("privacy", [], "privacy"),
        ("privacy", {}, r"privacy\.claimed"),
        ("privacy", privacy() | {"audited": {"epsilon_lower": 1.0}}, r"privacy\.audited\.delta"),
        ("provenance", {"seconds": {"teacher": "long"}}, r"provenance\.seconds\.teacher"),
        ("provenance", {"seconds": [1.0]}, r"provenance\.seconds"),
        ("provenance", {"device": True}, r"provenance\.device"),
    ],
)
def test_record_field_of_another_type_is_refused(tmp_path: Path, name: str, wrong: Any, path: str) -> None:
    plain = json.loads(record_of().to_json())
    with pytest.raises(ValueError, match=path):
        read(tmp_path, json.dumps(plain | {name: wrong}))


def test_record_without_privacy_is_a_failed_run(tmp_path: Path) -> None:
    failed = replace(record_of(), privacy={}, status="failed", reason="lost")
    assert read(tmp_path, failed.to_json()).status == "failed"


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)


def commit_all(folder: Path, **files: str) -> GitState:
    """Commit the content of a folder, with these files, in a new repository; return its state."""
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "all")
    return git_state(folder)


def test_git_state_changed_texts_and_boards_stay_clean(tmp_path: Path) -> None:
    for name in ("leaderboards", "docs", "tests", "bench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("1")
    assert commit_all(tmp_path, **{"README.md": "1"}).clean
    (tmp_path / "leaderboards" / "file").unlink()
    for name in ("docs/file", "tests/untracked.py", "README.md", "bench/untracked"):
        (tmp_path / name).write_text("2")
    assert git_state(tmp_path).clean and git_state(tmp_path / "bench").clean
    (tmp_path / "bench" / "file").write_text("2")
    assert not git_state(tmp_path).clean and not git_state(tmp_path / "docs").clean


@pytest.mark.parametrize("place", ["methods/mine.py", "bench/storage/mine.py"])
def test_git_state_untracked_module_is_not_clean(tmp_path: Path, place: str) -> None:
    assert git_state(tmp_path) == GitState(None, False), "outside a checkout"
    assert commit_all(tmp_path, file="1").clean
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("")
    assert not git_state(tmp_path).clean


def collected_git(root: Path, start: GitState) -> dict[str, Any]:
    found: dict[str, Any] = collect(root, StepLog(Origin(start)), {}).get("git")
    return found


def test_provenance_code_changed_during_a_run_is_not_clean(tmp_path: Path) -> None:
    start = commit_all(tmp_path, code="1")
    assert collected_git(tmp_path, start) == {"commit": start.commit, "clean": True}
    (tmp_path / "code").write_text("2")
    assert collected_git(tmp_path, start) == {"commit": start.commit, "clean": False}
    git(tmp_path, "commit", "--quiet", "--all", "--message", "other code")
    assert collected_git(tmp_path, start) == {"commit": start.commit, "clean": False}
    assert not collected_git(tmp_path, replace(start, commit="0" * 40))["clean"]


def test_provenance_committed_boards_stay_clean(tmp_path: Path) -> None:
    start = commit_all(tmp_path, code="1")
    (tmp_path / "leaderboards").mkdir()
    (tmp_path / "leaderboards" / "digits.csv").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "boards")
    assert collected_git(tmp_path, start) == asdict(start)


def test_provenance_has_differing_origins_of_reused_steps(tmp_path: Path) -> None:
    own = Origin(GitState(), "cpu")
    steps = {"teacher 01": None, "release 23": own, "evaluator 45": replace(own, device="NVIDIA H200")}
    found = collect(tmp_path, StepLog(own, steps), {}).steps
    assert found == {"teacher 01": None, "evaluator 45": {"device": "NVIDIA H200"}}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda a: None, ""),
        (lambda a: a.lines.pop("null"), "lines"),
        (lambda a: a.lines.update(student=[]), r"lines\.student"),
        (lambda a: a.lines["student"].update(epsilon_lower="much"), r"lines\.student\.epsilon_lower"),
        (lambda a: a.lines["teacher"].pop("correct"), r"lines\.teacher\.correct"),
        (lambda a: a.canaries.clear(), r"canaries\.number"),
        (lambda a: a.privacy.clear(), r"privacy\.claimed"),
    ],
)
def test_audit_without_a_number_is_refused(change: Callable[[Audit], None], path: str, tmp_path: Path) -> None:
    lines = {name: audit_line(50) for name in ("student", "teacher", "null")}
    account = {"claimed": None, "accounted": accounted(), "accounted_units": {}}
    plain = json.loads(canonical(AUDIT))
    audit = Audit(AUDIT.hash, "not refuted", [], plain, dict(CANARIES), 3.5, 1e-5, lines, False, account)
    change(audit)
    with pytest.raises(ValueError, match=rf"audit\.json.* {path}") if path else nullcontext():
        assert read(tmp_path, audit.to_json(), Audit).lines == lines
