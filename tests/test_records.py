from __future__ import annotations

import hashlib
import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_made import BUDGET, CANARIES, accounted, audit_line, privacy

from bench.privacy import Budget
from bench.storage.provenance import Followed, collect, git_state
from bench.storage.records import Audit, Record, _digest_as_written
from bench.storage.specs import (
    AuditSpec,
    AuditTeacherSpec,
    DataSpec,
    EvaluatorSpec,
    ReleaseSpec,
    RunSpec,
    TeacherSpec,
    canonical,
    digest,
)

WHERE = DataSpec("digits", "f" * 16, "iid")
TEACHER = TeacherSpec(WHERE, "resnet18", None, {"epochs": 2}, 0)
RELEASE = ReleaseSpec(TEACHER, "dpsd", 1, {"sigma": 1.0}, "datalens", BUDGET, "seeded", 0)
RUN = RunSpec("quick", RELEASE, None, EvaluatorSpec(WHERE, "evaluator-cnn", {}, 1))


def made(options: dict[str, Any] | None = None, **metrics: float | None) -> Record:
    return Record(RUN.hash, "ok", "", asdict(RUN), options or {}, metrics=metrics, privacy=privacy())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.thorough
@given(JSON)
def test_canonical_form_is_what_json_writes(data: Any) -> None:
    assert canonical(data) == json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("bad", [{1: 2}, {"x": {3}}, [b"x"], {"a": 1, 2: 3}])
def test_canonical_form_refuses_what_json_has_not(bad: Any) -> None:
    with pytest.raises(TypeError):
        canonical(bad)


def test_canonical_form_ignores_the_order_of_keys() -> None:
    assert canonical({"b": 1, "a": 2.5}) == canonical({"a": 2.5, "b": 1})
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 2, "b": 2})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_json_has_no_nan_and_no_infinity(bad: float) -> None:
    with pytest.raises(ValueError):
        canonical({"x": bad})


@pytest.mark.parametrize(
    "changed",
    [
        replace(RUN, tier="paper"),
        replace(RUN, release=replace(RELEASE, seed=1)),
        replace(RUN, release=replace(RELEASE, teacher=replace(TEACHER, recipe={"epochs": 3}))),
        replace(RUN, release=replace(RELEASE, teacher=replace(TEACHER, data=replace(WHERE, fingerprint="0" * 16)))),
        replace(RUN, release=replace(RELEASE, version=2)),
        replace(RUN, release=replace(RELEASE, noise="os")),
    ],
)
def test_the_hash_covers_the_whole_history(changed: RunSpec) -> None:
    assert changed.hash != RUN.hash


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    record = made(accuracy=0.5, fid=None)
    path = tmp_path / "record.json"
    path.write_text(record.to_json())
    assert Record.read(path) == replace(record, spec=json.loads(canonical(asdict(RUN))))
    assert Record.read(path).to_json() == record.to_json()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hash": "x"}', "null"])
def test_what_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"record\.json is not a record"):
        Record.read(path)


def test_an_edited_spec_is_noticed(tmp_path: Path) -> None:
    record = made()
    record.spec["tier"] = "paper"
    (tmp_path / "record.json").write_text(record.to_json())
    with pytest.raises(ValueError, match="hash"):
        Record.read(tmp_path / "record.json")


def test_an_edited_spec_is_noticed_however_it_is_written(tmp_path: Path) -> None:
    path, record = tmp_path / "record.json", made(accuracy=0.5)
    for text in (record.to_json(), json.dumps(asdict(record)), json.dumps(asdict(record), indent=2)):
        path.write_text(text)
        assert Record.read(path) == Record.read(path)
        assert Record.read(path).spec["tier"] == "quick"
        path.write_text(text.replace('"quick"', '"paper"'))
        with pytest.raises(ValueError, match="its hash is not that of its spec"):
            Record.read(path)


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON))
def test_the_digest_of_a_canonical_text_needs_no_second_composing(spec: Any, metrics: Any) -> None:
    text = canonical({"hash": "x", "metrics": metrics, "reason": '\n "spec": {', "spec": spec, "status": "ok"})
    assert _digest_as_written(text.encode(errors="surrogatepass")) in (digest_of(spec), "" if not spec else None)


def digest_of(spec: Any) -> str:
    return hashlib.sha256(canonical(spec).encode(errors="surrogatepass")).hexdigest()[:16]


def test_no_budget_and_a_budget_without_noise_are_different_specs() -> None:
    none, endless = Budget(None, solve="none").to_json(), Budget(math.inf, solve="none").to_json()
    assert (none["epsilon"], endless["epsilon"]) == (None, "inf")
    assert digest(none) != digest(endless)
    assert set(none) == {"epsilon", "delta", "account", "solve", "unit"}


OPTIONS = {
    "method": {"teachers": 40, "secure": True},
    "attack": {"steps": 9},
    "teacher": {"lr": 0.01},
    "budget": {"noise": "os", "account": "accounted", "epsilon": "inf"},
}


def test_options_are_data_and_a_line_for_people(tmp_path: Path) -> None:
    record = made(OPTIONS)
    said = "secure=true teachers=40 attack.steps=9 teacher.lr=0.01 epsilon=inf account=accounted noise=os"
    assert record.setting == said
    (tmp_path / "record.json").write_text(record.to_json())
    kept = Record.read(tmp_path / "record.json")
    assert kept.options == OPTIONS and kept.setting == said, "the order on the disk makes no difference"
    assert made({"budget": {"epsilon": None}}).setting == "epsilon=none"
    assert made().setting == ""


@pytest.mark.parametrize(("name", "wrong"), [("metrics", None), ("privacy", []), ("artifacts", "x"), ("options", None)])
def test_a_field_of_another_type_is_no_record(tmp_path: Path, name: str, wrong: Any) -> None:
    """Like a damaged file, it is run again, and reading it gives no traceback."""
    path = tmp_path / "record.json"
    path.write_text(made().to_json(), encoding="utf-8")
    assert Record.read(path).status == "ok"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {name: wrong}), encoding="utf-8")
    with pytest.raises(ValueError, match="is not a record"):
        Record.read(path)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("privacy", {"audited": {"epsilon_lower": 1.0}}, r"privacy\.audited\.delta: Field required"),
        ("provenance", {"seconds": {"teacher": "long"}}, r"provenance\.seconds\.teacher: 'long' is not a number"),
        ("provenance", {"seconds": [1.0]}, r"provenance\.seconds: Input should be a valid dictionary"),
        ("provenance", {"device": True}, r"provenance\.device: Input should be a valid string"),
    ],
)
def test_a_record_whose_readers_would_miss_a_number_is_none(
    tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    path, record = tmp_path / "record.json", made()
    path.write_text(replace(record, **{name: getattr(record, name) | change}).to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        Record.read(path)


def test_a_run_without_an_account_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for record in (replace(made(), privacy={}, status="failed", reason="lost"), made()):
        path.write_text(record.to_json(), encoding="utf-8")
        assert Record.read(path).status == record.status
    path.write_text(replace(made(), privacy={}).to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match=r"privacy\.claimed: Field required"):
        Record.read(path)


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)


def _commit_all(folder: Path) -> None:
    """A new repository of what a folder holds."""
    _git(folder, "init", "--quiet")
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "--message", "all")


def test_boards_and_texts_changed_meanwhile_leave_the_code_a_commits_own(tmp_path: Path) -> None:
    for name in ("leaderboards", "docs", "tests", "bench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("1")
    (tmp_path / "README.md").write_text("1")
    _commit_all(tmp_path)
    assert git_state(tmp_path)["clean"]
    (tmp_path / "leaderboards" / "file").unlink()
    (tmp_path / "docs" / "file").write_text("2")
    (tmp_path / "tests" / "untracked.py").write_text("2")
    (tmp_path / "README.md").write_text("2")
    (tmp_path / "bench" / "untracked").write_text("2")
    assert git_state(tmp_path)["clean"] and git_state(tmp_path / "bench")["clean"]
    (tmp_path / "bench" / "file").write_text("2")
    assert not git_state(tmp_path)["clean"] and not git_state(tmp_path / "docs")["clean"]


@pytest.mark.parametrize("place", ["methods/mine.py", "bench/storage/mine.py"])
def test_a_module_that_is_not_tracked_is_no_commits_own(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("1")
    _commit_all(tmp_path)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("")
    assert not git_state(tmp_path)["clean"]


def test_outside_a_checkout_nothing_is_a_commits_own(tmp_path: Path) -> None:
    assert git_state(tmp_path) == {"commit": None, "clean": False}


def test_code_that_changes_while_a_run_is_made_is_not_a_commits_own(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("1")
    _commit_all(tmp_path)
    begun = git_state(tmp_path)
    assert collect(tmp_path, Followed({"git": begun}), {})["git"] == begun | {"clean": True}
    (tmp_path / "code").write_text("2")
    assert collect(tmp_path, Followed({"git": begun}), {})["git"] == begun | {"clean": False}
    _git(tmp_path, "commit", "--quiet", "--all", "--message", "other code")
    assert collect(tmp_path, Followed({"git": begun}), {})["git"] == begun | {"clean": False}
    assert collect(tmp_path, Followed({"git": begun | {"commit": "0" * 40}}), {})["git"]["clean"] is False


def test_boards_committed_while_a_run_is_made_leave_its_code_a_commits_own(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("1")
    _commit_all(tmp_path)
    begun = git_state(tmp_path)
    (tmp_path / "leaderboards").mkdir()
    (tmp_path / "leaderboards" / "digits.csv").write_text("1")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "--message", "boards")
    assert collect(tmp_path, Followed({"git": begun}), {})["git"] == begun


def test_a_step_that_says_nothing_of_where_it_was_made_is_named_and_one_of_the_run_is_not(tmp_path: Path) -> None:
    own = {"git": {"clean": False, "commit": None}, "device": "cpu", "precision": "fp32"}
    taken = {"teacher 01": None, "release 23": own, "evaluator 45": own | {"device": "NVIDIA H200"}}
    assert collect(tmp_path, Followed(own, taken), {})["steps"] == {
        "teacher 01": None,
        "evaluator 45": {"device": "NVIDIA H200"},
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: None, ""),
        (lambda a: a.lines.pop("null"), "lines: lines of student, teacher; expected student, teacher, null"),
        (lambda a: a.lines.update(student=[]), r"lines\.student: Input should be a valid dictionary"),
        (
            lambda a: a.lines["student"].update(epsilon_lower="much"),
            r"lines\.student\.epsilon_lower: ",
        ),
        (lambda a: a.lines["teacher"].pop("correct"), r"lines\.teacher\.correct: Field required"),
        (lambda a: a.canaries.clear(), r"canaries\.number: Field required"),
        (lambda a: a.privacy.clear(), r"privacy\.claimed: Field required"),
    ],
)
def test_an_audit_that_lacks_a_number_is_none(change: Callable[[Audit], None], words: str, tmp_path: Path) -> None:
    lines = {name: audit_line(50) for name in ("student", "teacher", "null")}
    account = {"claimed": None, "accounted": accounted(), "accounted_units": {}}
    spec = AuditSpec("quick", RELEASE, AuditTeacherSpec(WHERE, "resnet18", None, {}, 0, canaries=9), "loss", 4, 0.95)
    plain = json.loads(canonical(asdict(spec)))
    audit = Audit(spec.hash, "not refuted", [], plain, dict(CANARIES), 3.5, 1e-5, lines, False, account)
    change(audit)
    (tmp_path / "audit.json").write_text(audit.to_json())
    if not words:
        assert Audit.read(tmp_path / "audit.json").lines == lines
        return
    with pytest.raises(ValueError, match=rf"audit\.json is not an audit: {words}"):
        Audit.read(tmp_path / "audit.json")
