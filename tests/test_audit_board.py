"""Audits on the board: their rows, the values next to the bound, and the refuted claim."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from board_records import results
from conftest import toy_job as job
from made import record as made_record
from records_made import ACCOUNTED, CANARIES, CLAIM, audit_line

from bench import boards, registry
from bench.boards import differences, publish, read_records
from bench.boards.audit_bounds import by_release, with_audit_result
from bench.boards.installed import needs
from bench.boards.records import file_of
from bench.boards.results import Result
from bench.boards.tables import LOWER, LOWER_CEILING, LOWER_NULL, ReleaseRow, read_table
from bench.config import Variant, describe
from bench.errors import BenchError
from bench.pipeline import canary_audit, run
from bench.pipeline.canary_game import CanaryGame
from bench.privacy import Budget
from bench.storage.records import AUDIT, Audit, Record
from bench.storage.specs import digest

TOY_IMAGES = 360


@pytest.fixture(scope="module")
def record(toy: Path) -> Record:
    return run.run(job(toy, budget=Budget(10.0)), 0).record


def made_up(record: Record, correct: int, hash_of: str = "a" * 16, teacher: int = 95, **privacy: Any) -> Audit:
    """An audit of a record's release with 200 canaries, and these correct guesses of 100 on student and teacher."""
    teacher_spec = record.spec["release"]["teacher"] | {"canaries": 200, "coins": 0, "kind": "audit-teacher"}
    spec = {"tier": record.spec["tier"], "release": record.spec["release"], "guesses": 100, "confidence": 0.95}
    spec |= {"teacher": teacher_spec, "score": "loss", "kind": "audit", "version": 1}
    lines = {name: audit_line(right) for name, right in (("student", correct), ("teacher", teacher), ("null", 50))}
    numbers = {"claimed": CLAIM, "accounted": ACCOUNTED, "accounted_units": {"example": ACCOUNTED}} | privacy
    spec = json.loads(json.dumps(spec))
    return Audit(hash_of, "not refuted", [], spec, CANARIES, 3.49, 1e-5, lines, True, numbers)


def result(record: Record, *audits: Audit, others: Sequence[Record] = ()) -> Result:
    (found,) = results([record, *others], audits)
    return found


def bound(record: Record, *audits: Audit) -> float | None:
    """The lower bound on epsilon of a record's result."""
    return result(record, *audits).value(LOWER)


def bounds(record: Record, *audits: Audit, others: Sequence[Record] = ()) -> list[float | None]:
    """The bounds on the student, the teacher and the null run, and the largest possible one."""
    found = result(record, *audits, others=others)
    return [found.value(LOWER), found.on_teacher(LOWER), found.value(LOWER_NULL), found.value(LOWER_CEILING)]


def with_release(record: Record, **release: Any) -> Record:
    """The record with another release."""
    return replace(record, spec=record.spec | {"release": record.spec["release"] | release})


def test_board_shows_audit_bound_and_refuted_flag(record: Record) -> None:
    assert bound(record) is None
    low, high = result(record, made_up(record, 50)), result(record, made_up(record, 95))
    assert (low.value(LOWER), low.flags) == (0.0, frozenset())
    assert high.value(LOWER) == pytest.approx(2.18, abs=0.02) and high.flags == {"refuted"}
    per_query = result(record, made_up(record, 95, claimed=CLAIM | {"unit": "query"}))
    assert per_query.flags == frozenset() and per_query.value(LOWER) is not None


def test_bound_is_corrected_for_several_audits(record: Record) -> None:
    once = bound(record, made_up(record, 95))
    twice = bound(record, made_up(record, 95), made_up(record, 40, "b" * 16))
    assert once is not None and twice is not None and 1.8 < twice < once


def test_board_shows_all_bounds_of_the_best_audit(record: Record) -> None:
    """100 right guesses of 100 are a ceiling of 3.487 at 95 %, and of 3.274 where two audits must hold together."""
    assert bounds(record) == [None] * 4
    assert bounds(record, made_up(record, 50, teacher=94)) == pytest.approx([0, 2.0395, 0, 3.4875], abs=1e-3)
    blind = made_up(record, 50, teacher=50)
    assert bounds(record, blind)[:3] == [0, 0, 0]
    both = bounds(record, blind, made_up(record, 50, "b" * 16, teacher=94))
    assert both == pytest.approx([0, 1.9346, 0, 3.2738], abs=1e-3), "of equals the one that had power"
    shows = bounds(record, made_up(record, 94, teacher=50), made_up(record, 50, "b" * 16))
    assert shows == pytest.approx([1.9346, 0, 0, 3.2738], abs=1e-3), "the numbers of a row are of one audit"


def test_audit_applies_only_to_its_release(record: Record) -> None:
    for path, value in (
        (("tier",), "paper"),
        (("release", "seed"), 1),
        (("release", "budget"), {"epsilon": 3.0}),
        (("release", "options"), {"mode": "label"}),
        (("release", "teacher", "arch"), "resnet18"),
        (("release", "teacher", "data", "dataset"), "other"),
    ):
        other = made_up(record, 95)
        part = other.spec
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value
        assert bound(record, other) is None, path
    recipe = made_up(record, 95)
    recipe.spec["release"]["teacher"]["recipe"] = {"epochs": 99}
    assert bound(record, recipe) is not None


@pytest.mark.parametrize(
    ("method", "variant", "options", "depends"),
    [
        ("rr", "working", {}, False),
        ("dpdfd", "working", {"data": "private"}, False),
        ("dpdfd", "working", {}, True),
        ("label-smoothing", "printed", {"network": "student"}, False),
        ("label-smoothing", "printed", {"network": "teacher"}, True),
        ("pate-gnmax", "working", {}, True),
    ],
)
def test_audit_ignores_an_unused_teacher(
    method: str, variant: Variant, options: dict[str, Any], depends: bool, record: Record
) -> None:
    """A release may depend on the teacher's network without queries: `label-smoothing` by default."""
    described = registry.describe("method", method, variant)
    given = described.values("smoke", variant) | options
    record = with_release(record, method=method, variant=variant, version=described.facts["version"], options=given)
    changes = {"arch": "resnet18", "weights": "a" * 64, "normalise": "imagenet", "seed": 5, "recipe": {"epochs": 99}}
    changes["data"] = {"dataset": "other", "split": "iid", "fingerprint": ""}
    for key, value in changes.items():
        audit = made_up(record, 95)
        audit.spec["release"]["teacher"][key] = value
        is_another = {"data": True, "recipe": False}.get(key, depends)
        assert (bound(record, audit) is None) == is_another, key


def test_audit_of_other_version_depends_on_teacher(record: Record) -> None:
    described = registry.describe("method", "rr", "working")
    older = {"version": described.facts["version"] - 1, "options": described.values("smoke", "working")}
    record = with_release(record, method="rr", variant="working", **older)
    audit = made_up(record, 95)
    assert bound(record, audit) is not None
    audit.spec["release"]["teacher"]["arch"] = "resnet18"
    assert bound(record, audit) is None


def test_needs_of_refused_options_are_unknown() -> None:
    assert needs("label-smoothing", "printed", "quick", {"network": "student"}) == {"private_data"}
    assert needs("missing", "printed", "quick", {}) is None
    by_class = describe(registry.load("method", "label-smoothing", "printed"))
    with patch.object(registry, "describe", return_value=by_class):
        assert needs("label-smoothing", "printed", "smoke", {"epochs": 0}) is None


def test_audit_applies_to_records_before_a_new_option(record: Record) -> None:
    """An option that leaves an algorithm as it was needs no new version; records that are older do not have it."""
    described = registry.describe("method", "dpsd", "working")
    usual = described.values("smoke", "working")["queries"]  # of the tier: the class has another default
    newer = {"version": described.facts["version"], "options": {"questions": usual}}
    record = with_release(record, method="dpsd", variant="working", **newer)
    audit, older = made_up(record, 95), replace(record, spec=json.loads(json.dumps(record.spec)))
    del older.spec["release"]["options"]["questions"]
    assert bound(older, audit) is not None
    audit.spec["release"]["options"]["questions"] = usual + 1
    assert bound(older, audit) is None, "the audit is of another value"
    audit.spec["release"]["options"]["questions"] = usual
    for each in (audit.spec["release"], older.spec["release"]):
        each["version"] -= 1
    assert bound(older, audit) is None, "the defaults of an older version are not known"


@pytest.mark.thorough
def test_audit_reaches_board_in_either_order(toy: Path) -> None:
    out = toy / "order"
    given = job(toy, out=out)

    def column() -> list[float | None]:
        board = out / "leaderboards" / "releases" / f"{given.material.data.name}.csv"
        return [row.epsilon_lower for row in read_table(ReleaseRow, board)]

    canary_audit.run(given, CanaryGame(40), 0)
    assert not (out / "leaderboards").exists()
    run.run(given, 0)
    assert column() == [0.0]
    run.run(given, 1)
    canary_audit.run(given, CanaryGame(40), 1)
    assert column() == [0.0]
    for path in out.glob("records/[!.]*/record.json"):
        lower = Record.read(path).privacy["audited"]
        of_audit = [lower[key] for key in ("epsilon_lower", "canaries", "unit", "null_run", "teacher", "powerful")]
        assert of_audit == [0.0, 40, "example", 0.0, 0.0, False] and len(lower["audits"]) == 1
        assert lower["ceiling"] > 0.5


def test_audit_of_newer_game_replaces_older(record: Record) -> None:
    old, new = made_up(record, 95), made_up(record, 60)
    new.spec = old.spec | {"version": 2}
    new.hash = digest(new.spec)
    (found,) = boards.by_release([old, new]).values()
    assert found == [new] and [*boards.by_release([old]).values()] == [[old]]


def test_audits_are_published_with_records(record: Record, tmp_path: Path) -> None:
    quick, folder = json.loads(json.dumps(record.spec)), tmp_path / "leaderboards"
    quick["tier"] = "quick"
    clean = {"git": {"clean": True}}
    run = replace(record, spec=quick, hash=digest(quick), provenance=record.provenance | clean)
    found = made_up(run, 95)
    found.hash, found.provenance = digest(found.spec), clean
    for name, file, item in (("r", "record.json", run), ("a", AUDIT, found)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(item.to_json())
    (board,) = publish(folder, [tmp_path / "r", tmp_path / "a"])
    (line,) = read_table(ReleaseRow, board)
    assert line.flags == "refuted" and not differences(folder)
    ((published,),) = [read_records(folder)]
    lower = published.privacy["audited"]
    assert lower["audits"] == [found.hash] and lower["powerful"] and lower["teacher"] == lower["epsilon_lower"] > 1
    file_of(folder, found).unlink()
    assert differences(folder)
    found.provenance = {}
    (tmp_path / "a" / AUDIT).write_text(found.to_json())
    with pytest.raises(BenchError, match=AUDIT):
        publish(folder, [tmp_path / "a" / AUDIT])


def test_result_joins_audits_of_all_seeds() -> None:
    """94 right of 100 are at least 2.04 at 95 %, and 1.93 at 97.5 %, where two audits must hold together."""
    first, second = made_record(seed=0), made_record(seed=1)
    one = bounds(first, made_up(second, 94, teacher=50), others=[second])
    assert one == pytest.approx([2.0395, 0, 0, 3.4875], abs=1e-3)
    audits = made_up(first, 50, teacher=50), made_up(second, 94, "b" * 16, teacher=50)
    assert bounds(first, *audits, others=[second]) == pytest.approx([1.9346, 0, 0, 3.2738], abs=1e-3)


@pytest.mark.parametrize(("names", "powerful"), [("a", True), ("ab", False)])
def test_noted_power_uses_joint_confidence(names: str, powerful: bool) -> None:
    """59 right or more of 100 are 4.4 % by chance: below 5 %, and above the 2.5 % of each of two audits."""
    found = made_record()
    audits = by_release([made_up(found, 50, name * 16, teacher=59) for name in names])
    news = with_audit_result(found, audits)
    assert news is not None and with_audit_result(news, audits) is None
    audited = news.privacy["audited"]
    assert audited["powerful"] == (audited["teacher"] > 0) == powerful
    assert audited["audits"] == [name * 16 for name in names]
