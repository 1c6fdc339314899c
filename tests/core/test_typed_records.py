"""Published records as typed values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.boards.records import as_line, file_of, readable
from bench.core import records
from bench.core.results import attack_of, utility_of
from bench.errors import BenchError
from bench.storage.records import Audit, Record
from bench.storage.specs import canonical

PUBLISHED = Path(__file__).parents[2] / "leaderboards"
FILES = sorted((PUBLISHED / "records").glob("*/*.jsonl"))


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return [line for file in FILES for line in file.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def plain(lines: list[bytes]) -> dict[str, Any]:
    return json.loads(lines[0])


def decoded(plain: dict[str, Any]) -> records.RunRecord:
    return records.decode(json.dumps(plain).encode(), "record.json")


@pytest.mark.thorough
def test_published_records_keep_their_text(lines: list[bytes]) -> None:
    """A typed record gives the same line and the same canonical text as the plain one."""
    assert len(lines) > 3000
    for line in lines:
        typed, record = records.decode(line, "line"), Record.decode(line, "line")
        assert canonical(typed.to_plain()) == record.to_json(), record.hash
        assert as_line(record).encode() == line, record.hash


def test_published_audits_keep_their_text() -> None:
    audits = [line for file in PUBLISHED.glob("audits/*/*.jsonl") for line in file.read_bytes().splitlines()]
    assert len(audits) > 500
    for line in audits:
        typed = records.validate(records.AuditRecord, json.loads(line))
        assert as_line(Audit.of(typed)).encode() == line, typed.hash


def test_published_records_are_sorted_in_their_files() -> None:
    for kind in (Record, Audit):
        by_file: dict[Path, list[str]] = {}
        for path, kept in readable(kind, PUBLISHED):
            assert path == file_of(PUBLISHED, kept)
            by_file.setdefault(path, []).append(kept.hash)
        assert all(hashes == sorted(set(hashes)) for hashes in by_file.values())
        assert max(path.stat().st_size for path in by_file) < 10_000_000


def test_infinite_epsilon_is_a_word_in_files(plain: dict[str, Any]) -> None:
    changed = plain | {"privacy": plain["privacy"] | {"accounted": plain["privacy"]["accounted"] | {"epsilon": "inf"}}}
    record = decoded(changed)
    assert record.privacy is not None and record.privacy.accounted.epsilon == math.inf
    assert record.to_plain()["privacy"]["accounted"]["epsilon"] == "inf"


@pytest.mark.parametrize("epsilon", ["infinite", True, None, [], -math.inf])
def test_epsilon_of_another_form_is_refused(plain: dict[str, Any], epsilon: Any) -> None:
    changed = plain | {
        "privacy": plain["privacy"] | {"accounted": plain["privacy"]["accounted"] | {"epsilon": epsilon}}
    }
    with pytest.raises(BenchError, match=r"record\.json"):
        decoded(changed)


def test_unknown_field_is_refused_with_its_path(plain: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match=r"privacy\.more"):
        decoded(plain | {"privacy": plain["privacy"] | {"more": 1}})


def test_missing_field_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="status"):
        decoded({key: value for key, value in plain.items() if key != "status"})


def test_failed_run_has_no_privacy_report(plain: dict[str, Any]) -> None:
    record = decoded(plain | {"status": "failed", "privacy": {}, "metrics": {}})
    assert record.privacy is None and utility_of(record) is None
    assert record.to_plain()["privacy"] == {}


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"hash": NaN}'])
def test_text_that_is_not_a_record_is_refused(text: bytes) -> None:
    with pytest.raises(BenchError, match=r"x\.json"):
        records.decode(text, "x.json")


def test_results_separate_the_networks(lines: list[bytes]) -> None:
    typed = (records.decode(line, "line") for line in lines)
    attacked = next(record for record in typed if "random_attack_accuracy" in record.metrics)
    attack, utility = attack_of(attacked), utility_of(attacked)
    assert attack is not None and utility is not None and utility.teacher is not None
    assert attack.accuracy is not None and attack.accuracy.value == attacked.metrics["attack_accuracy"]
    assert attack.teacher["attack_accuracy"].low == attacked.metrics["teacher_attack_accuracy.lo"]
    assert attack.untrained["attack_accuracy"].value == attacked.metrics["random_attack_accuracy"]
    assert utility.student.value == attacked.metrics["accuracy"] and "accuracy" not in attack.student
    assert not [name for name in attack.student if name.startswith(("teacher_", "random_", "reference_"))]
