"""What methods and attacks of other packages must say of themselves, and what becomes of a run in which one fails."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import write_toy

from bench.config import Size
from bench.declared import expect
from bench.errors import BenchError, RunFailed
from bench.pipeline import run
from bench.pipeline.job import Job, load_job
from bench.pipeline.settings import Settings
from bench.storage.records import RECORD, Record


@dataclass(frozen=True)
class Good:
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "nobody"
    unit: ClassVar[str] = "example"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": {"steps": 2}}

    steps: Size[int] = 9
    rate: float = 0.1

    def check(self) -> None: ...

    def convert(self) -> None: ...


@dataclass(frozen=True)
class GoodAttack:
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "nobody"
    goal: ClassVar[str] = "membership"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {}

    @property
    def access(self) -> str:
        return "samples"

    def applicable(self) -> None: ...

    def compare(self) -> None: ...


def test_what_says_all_is_taken_and_so_is_what_depends_on_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    expect("method", "good", Good)
    expect("attack", "good", GoodAttack)
    monkeypatch.setattr(Good, "needs", property(lambda self: frozenset()))
    expect("method", "good", Good)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("version", 0, "has version 0; expected a whole number from 1 on"),
        ("version", True, "has version True"),
        ("reference", None, "has no `reference`"),
        ("unit", "record", "has unit 'record'; expected one of client, example, label, none, query"),
        (
            "needs",
            frozenset({"teachers"}),
            r"has needs frozenset\({'teachers'}\); expected a frozenset of private_data",
        ),
        ("needs", {"teacher"}, "has needs {'teacher'}; expected a frozenset"),
        ("convert", None, "has no method `convert`"),
        ("tiers", {"fast": {}}, "has a tier 'fast'; expected some of smoke, quick"),
        ("tiers", {"quick": {"stepz": 1}}, "has no field `stepz`, which its tier quick sets"),
        ("tiers", {"quick": {"rate": 1.0}}, "sets `rate` at tier quick, which is no size"),
    ],
)
def test_a_method_that_lacks_something_is_told_in_one_line(
    variable: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Good, variable, value)
    with pytest.raises(BenchError, match=f"^method 'mine' of another package: .*Good {said}.*; mend the plug-in"):
        expect("method", "mine", Good)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [("access", "all", "access 'all'"), ("goal", "both", "goal 'both'"), ("compare", None, "no method `run` or `inf")],
)
def test_an_attack_that_lacks_something_is_told_in_one_line(
    variable: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GoodAttack, variable, value)
    with pytest.raises(BenchError, match=f"attack 'mine' of another package: .*GoodAttack has {said}"):
        expect("attack", "mine", GoodAttack)


@dataclass(frozen=True)
class Several(Good):
    rates: tuple[float, ...] = ()


def test_of_a_teacher_recipe_its_sizes_are_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("reference", "unit", "needs", "convert"):
        monkeypatch.delattr(Good, variable)
    expect("teacher recipe", "mine", Good)
    monkeypatch.setattr(Good, "tiers", {"quick": {"rate": 1.0}})
    with pytest.raises(BenchError, match="sets `rate` at tier quick, which is no size"):
        expect("teacher recipe", "mine", Good)


def test_a_field_of_another_type_is_told() -> None:
    with pytest.raises(BenchError, match="cannot be configured: field rates must be int, float, bool, str or a L"):
        expect("method", "several", Several)


def failing(raised: BaseException, place: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job on toy images whose conversion raises."""

    def convert(*_: object) -> None:
        raise raised

    write_toy(place, 40)
    settings = Settings("no-defence", None, f"npz:{place}/toy.npz", teacher="datalens", tier="smoke")
    job = load_job(replace(settings, out=place / "runs"))
    monkeypatch.setattr(type(job.method), "convert", convert)
    return job


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyError("off"), r"KeyError: 'off' at tests/test_declared\.py:\d+; --debug shows the way there"),
        (SystemExit(0), r"SystemExit: 0 at tests/test_declared\.py:\d+"),
        (RuntimeError(""), r"RuntimeError at tests/test_declared\.py:\d+"),
        (RuntimeError("no such layer"), "RuntimeError: no such layer$"),
    ],
)
def test_whatever_a_plug_in_raises_is_a_failed_run_with_a_record(
    raised: BaseException, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = failing(raised, tmp_path, monkeypatch)
    with pytest.raises(RunFailed, match="recorded in"):
        run.run(job, 0)
    (path,) = (tmp_path / "runs" / "records").glob(f"*/{RECORD}")
    record = Record.read(path)
    assert record.status == "failed"
    assert re.match(said, record.reason), record.reason


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), OSError(28, "No space left on device"), BenchError("bad")])
def test_an_interruption_a_full_disk_and_bad_input_are_no_failed_run(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = failing(raised, tmp_path, monkeypatch)
    with pytest.raises(type(raised)):
        run.run(job, 0)
    assert not list((tmp_path / "runs").glob(f"records/*/{RECORD}"))
