"""The JSON Schema of records: it is current, and published records and audits satisfy it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from bench.core.schema import main, schemas

ROOT = Path(__file__).parents[2]
FOLDERS = {"record.json": "records", "audit.json": "audits"}


def published(name: str) -> list[bytes]:
    files = sorted((ROOT / "leaderboards" / FOLDERS[name]).glob("*/*.jsonl"))
    return [line for file in files for line in file.read_bytes().splitlines()]


def test_schema_of_the_documentation_is_current(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    for name, text in schemas().items():
        assert (tmp_path / name).read_text() == text
        assert (ROOT / "docs" / "schema" / name).read_text() == text, "run `python -m bench.core.schema docs/schema`"


def test_schema_command_without_a_folder_has_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and "FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize("name", FOLDERS)
def test_published_records_meet_the_schema(name: str) -> None:
    check = jsonschema.Draft202012Validator(json.loads(schemas()[name]))
    for line in published(name)[::200]:
        plain = json.loads(line)
        check.validate(plain)
        with pytest.raises(jsonschema.ValidationError, match="additional"):
            check.validate(plain | {"more": 1})
        with pytest.raises(jsonschema.ValidationError):
            check.validate(plain | {"hash": 3})


@pytest.mark.parametrize("name", FOLDERS)
def test_schema_allows_infinity_and_failed_runs(name: str) -> None:
    check = jsonschema.Draft202012Validator(json.loads(schemas()[name]))
    plain = json.loads(published(name)[0])
    accounted = plain["privacy"]["accounted"]
    for epsilon, is_valid in (("inf", True), (2, True), ("infinite", False), (-1, False), (None, False)):
        changed = plain["privacy"] | {"accounted": accounted | {"epsilon": epsilon}}
        assert check.is_valid(plain | {"privacy": changed}) == is_valid
    assert check.is_valid(plain | {"status": "failed", "privacy": {}}) == (name == "record.json")
