"""Audits of several seeds or games in one row or record: all are used, with a correction for their number."""

from __future__ import annotations

import pytest
from made import record

from bench import boards
from bench.boards.audit_bounds import by_release, noted
from bench.boards.tables import LOWER, LOWER_CEILING, LOWER_NULL
from bench.storage.records import Audit, Record


def audit(of: Record, student: int, teacher: int = 95, name: str = "a") -> Audit:
    """An audit of a record's release, given correct guesses of 100 on student and teacher; 200 canaries."""
    spec = {"tier": of.spec["tier"], "release": of.spec["release"], "guesses": 100, "confidence": 0.95}
    lines = {who: {"correct": right} for who, right in (("student", student), ("teacher", teacher), ("null", 50))}
    privacy = {"claimed": None, "accounted_units": {}}
    return Audit(name * 16, "not refuted", [], spec, {"number": 200}, 3.49, 1e-5, lines, True, privacy)


def test_result_joins_audits_of_all_seeds() -> None:
    """94 right of 100 are at least 2.04 at 95 %, and 1.93 at 97.5 %, where two audits must hold together."""
    first, second = record(seed=0), record(seed=1)
    alone = bounds([first, second], [audit(second, 94, 50)])
    assert alone == pytest.approx([2.0395, 0, 0, 3.4875], abs=1e-3)
    both = bounds([first, second], [audit(first, 50, 50), audit(second, 94, 50, "b")])
    assert both == pytest.approx([1.9346, 0, 0, 3.2738], abs=1e-3)


def bounds(records: list[Record], audits: list[Audit]) -> list[float | None]:
    """The bounds on the student, the teacher and the null run, and the largest possible one."""
    (found,) = boards.results(boards.build(records, audits))
    return [found.value(LOWER), found.on_teacher(LOWER), found.value(LOWER_NULL), found.value(LOWER_CEILING)]


def test_noted_power_uses_joint_confidence() -> None:
    """59 heads or more of 100 are 4.4 % by chance: below 5 %, and above the 2.5 % of each of two audits."""
    for names, powerful in (("a", True), ("ab", False)):
        found = record()
        news = noted(found, by_release([audit(found, 50, 59, name) for name in names]))
        assert news is not None and noted(news, by_release([audit(found, 50, 59, name) for name in names])) is None
        said = news.privacy["audited"]
        assert said["powerful"] == (said["teacher"] > 0) == powerful and said["audits"] == [n * 16 for n in names]
