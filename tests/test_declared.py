"""Required declarations of third-party methods and attacks, and the record of a run in which one fails."""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import pytest
import torch
from conftest import refuses, toy_job, write_toy
from dp_accounting import NonPrivateDpEvent

from bench import nets, registry
from bench.api import AttackResult, Release, Teacher
from bench.config import Departure, Size
from bench.declared import expect, read_old_names
from bench.errors import BadOption, BadPlugin, BenchError, RunFailed, plugin_errors
from bench.pipeline import attacks, canary_audit, run, stages
from bench.pipeline.canary_game import CanaryGame
from bench.pipeline.job import Job
from bench.pipeline.plots import Plot
from bench.privacy import Ledger
from bench.storage.records import RECORD, Record


@dataclass(frozen=True)
class Good:
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "a paper"
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
    reference: ClassVar[str] = "a paper"
    goal: ClassVar[str] = "membership"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {}

    @property
    def access(self) -> str:
        return "samples"

    def skip_reason(self) -> None: ...

    def compare(self) -> None: ...


@dataclass(frozen=True)
class Several(Good):
    rates: tuple[float, ...] = ()


def test_complete_plugins_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    expect("method", "good", Good)
    expect("attack", "good", GoodAttack)
    monkeypatch.setattr(Good, "needs", property(lambda self: frozenset()))
    expect("method", "good", Good)


@pytest.mark.parametrize(
    ("kind", "cls", "variable", "value", "named"),
    [
        ("method", Good, "version", 0, "version 0"),
        ("method", Good, "version", True, "version True"),
        ("method", Good, "reference", None, "`reference`"),
        ("method", Good, "unit", "record", "'record'"),
        ("method", Good, "needs", frozenset({"teachers"}), "frozenset({'teachers'})"),
        ("method", Good, "needs", {"teacher"}, "{'teacher'}"),
        ("method", Good, "convert", None, "`convert`"),
        ("method", Good, "tiers", {"fast": {}}, "'fast'"),
        ("method", Good, "tiers", {"quick": {"stepz": 1}}, "`stepz`"),
        ("method", Good, "tiers", {"quick": {"rate": 1.0}}, "`rate` at tier quick"),
        ("attack", GoodAttack, "access", "all", "access 'all'"),
        ("attack", GoodAttack, "goal", "both", "goal 'both'"),
        ("attack", GoodAttack, "compare", None, "`run` or `infer` or `compare`"),
        ("method", Several, "version", 1, "rates"),
    ],
    ids=str,
)
def test_incomplete_plugin_is_refused(
    kind: str, cls: type, variable: str, value: object, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cls, variable, value)
    with refuses(BadPlugin, f"{kind} 'mine'", cls.__qualname__, named):
        expect(kind, "mine", cls)


def test_teacher_recipe_is_checked_for_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("reference", "unit", "needs", "convert"):
        monkeypatch.delattr(Good, variable)
    expect("teacher recipe", "mine", Good)
    monkeypatch.setattr(Good, "tiers", {"quick": {"rate": 1.0}})
    with pytest.raises(BadPlugin, match=r"`rate` at tier quick"):
        expect("teacher recipe", "mine", Good)


def plain_job(place: Path, **changes: Any) -> Job:
    """A job on toy images."""
    write_toy(place, 40)
    return toy_job(place, **changes)


def failing(raised: BaseException, place: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool = False) -> Job:
    """A job on toy images whose conversion raises."""
    job = plain_job(place, fresh=fresh)
    monkeypatch.setattr(type(job.method), "convert", bad(raised))
    return job


def recorded(place: Path) -> Record:
    (path,) = (place / "runs" / "records").glob(f"*/{RECORD}")
    return Record.read(path)


def bad(raised: BaseException) -> Callable[..., Any]:
    """Return a method of a plug-in that raises."""

    def method(*_: object) -> None:
        raise raised

    return method


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyError("off"), r"KeyError: 'off' at tests/test_declared\.py:\d+; --debug"),
        (SystemExit(0), r"SystemExit: 0 at tests/test_declared\.py:\d+"),
        (RuntimeError(""), r"RuntimeError at tests/test_declared\.py:\d+"),
        (RuntimeError("no such layer"), "RuntimeError: no such layer$"),
    ],
)
def test_any_exception_of_a_plugin_fails_the_run(
    raised: BaseException, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunFailed, match=r"records"):
        run.run(failing(raised, tmp_path, monkeypatch), 0)
    record = recorded(tmp_path)
    assert record.status == "failed" and re.match(said, record.reason), record.reason


def test_exception_while_drawing_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = failing(ValueError("no such colour"), tmp_path, monkeypatch)
    pictures = {"synthetic": Plot("synthetic.png", bad(ValueError("no such colour")))}
    monkeypatch.setattr(run, "make_run", lambda *_: run.Finished(cast("Any", None), pictures))
    with pytest.raises(RunFailed, match=r"^ValueError: no such colour "):
        run.run(job, 0)
    assert (recorded(tmp_path).status, recorded(tmp_path).reason) == ("failed", "ValueError: no such colour")


def test_failure_keeps_an_earlier_good_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = run.run(plain_job(tmp_path), 0)
    job = failing(RuntimeError("no such layer"), tmp_path, monkeypatch, fresh=True)
    with pytest.raises(RunFailed, match=f"^RuntimeError: no such layer .*{good.path}"):
        run.run(job, 0)
    assert run.published(good.path) == good.record


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), OSError(28, "No space left on device"), BenchError("bad")])
def test_interruption_is_not_recorded_as_failed_run(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(raised)):
        run.run(failing(raised, tmp_path, monkeypatch), 0)
    assert not list((tmp_path / "runs").glob(f"records/*/{RECORD}"))


@dataclass(frozen=True)
class Departing(Good):
    departures: ClassVar[tuple[Departure, ...]] = ()

    loss: Literal["l1", "l2"] = "l1"


@pytest.mark.parametrize(
    ("sets", "named"),
    [({"los": "l2"}, "Departing .*`los`"), ({"loss": "l3"}, "Departing .*`loss` to 'l3'.* l1, l2")],
)
def test_departure_with_an_unknown_field_is_refused(
    sets: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Departing, "departures", (Departure("It differs.", "It learns.", sets=sets),))
    with pytest.raises(BadPlugin, match=named):
        expect("method", "mine", Departing)


@pytest.mark.parametrize("raised", [ValueError("sigma is bad"), KeyError("sigma"), TypeError("no number")])
@pytest.mark.parametrize("member", ["check", "__post_init__", "needs"])
def test_exception_of_a_method_before_training_is_bad_input(
    member: str, raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, raising = "class-moments" if member == "__post_init__" else "no-defence", bad(raised)
    method = registry.load("method", name)
    monkeypatch.setattr(method, member, property(raising) if member == "needs" else raising, raising=False)
    is_range = member == "__post_init__" and isinstance(raised, ValueError)  # a value out of its range is the user's
    said = "--method: sigma is bad$" if is_range else rf".*{type(raised).__name__}: .* at tests/test_declared\.py:\d+;"
    with pytest.raises(BadOption if is_range else BadPlugin, match=f"^{said}"):
        plain_job(tmp_path, method=name, tier="quick")


@pytest.mark.parametrize(
    ("skip_reason", "said"),
    [
        (bad(KeyError("classes")), r"KeyError: 'classes' at tests/test_declared\.py:\d+;"),
        (lambda *_: True, "TypeError: .*`skip_reason` .*True"),
    ],
)
def test_broken_skip_reason_is_bad_input(
    skip_reason: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.load("attack", "gmi"), "skip_reason", skip_reason)
    with pytest.raises(BadPlugin, match=rf"^attack 'gmi': {said}"):
        plain_job(tmp_path, attack="gmi")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (SystemExit(0), BadPlugin),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), OSError),
        (RunFailed("lost"), RunFailed),
    ],
)
def test_plugin_errors_converts_only_faults_of_a_plugin(raised: BaseException, expected: type[BaseException]) -> None:
    with pytest.raises(expected), plugin_errors("method 'mine'"):
        raise raised


def test_student_of_another_architecture_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = failing(AssertionError(), tmp_path, monkeypatch)

    def convert(_: object, teacher: Teacher, *__: object) -> Release:
        ledger = Ledger()
        ledger.spend(NonPrivateDpEvent(), why="all of it")
        return Release(nets.build("datalens", teacher.shape, teacher.classes + 1), "datalens", ledger, None)

    monkeypatch.setattr(type(job.method), "convert", convert)
    with pytest.raises(RunFailed, match=r"no-defence .*datalens"):
        run.run(job, 0)
    assert not list((tmp_path / "runs" / "steps" / "release").glob("[!.]*"))


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("images", torch.zeros(4, 1, 8, 16), ["images", "(4, 1, 8, 16)", "(1, 16, 16)"]),
        ("images", torch.zeros(0, 1, 16, 16), ["images"]),
        ("images", torch.full((4, 1, 16, 16), torch.nan), ["images", "finite"]),
        ("targets", torch.zeros(3), ["targets", "(3,)", "4 images"]),
        ("draws", torch.zeros(4, 1), ["draws", "(4, 1)", "4 images"]),
        ("victims", torch.zeros(5), ["victims", "(5,)", "4 images"]),
        ("targets", torch.tensor([0, 1, 2, 50]), ["0 to 50", "4"]),
    ],
)
def test_invalid_attack_result_is_found(part: str, value: torch.Tensor, named: list[str]) -> None:
    good = AttackResult(torch.zeros(4, 1, 16, 16), torch.arange(4), torch.zeros(4))
    assert attacks._fault(good, (1, 16, 16), 4, 0) == ""
    fault = attacks._fault(replace(good, **{part: value}), (1, 16, 16), 4, 0)
    assert [word for word in named if word not in fault] == []


@pytest.mark.parametrize("victims", [None, torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, -1])])
def test_attack_with_victims_names_one_for_each_image(victims: torch.Tensor | None) -> None:
    found = AttackResult(torch.zeros(4, 1, 16, 16), torch.arange(4), torch.zeros(4), victims=victims)
    assert attacks._fault(found, (1, 16, 16), 4, 3) != ""
    assert attacks._fault(replace(found, victims=torch.tensor([0, 2, 2, 1])), (1, 16, 16), 4, 3) == ""


@pytest.mark.parametrize("prepare", [partial(canary_audit.prepare_shared, game=CanaryGame(4, 4)), run.prepare_shared])
def test_exception_of_a_plugin_in_prepare_has_its_location(
    prepare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_audit, "check", lambda *_: None)
    monkeypatch.setattr(stages, "train_teacher", bad(KeyError("off")))
    monkeypatch.setattr(canary_audit, "train_teacher", bad(KeyError("off")))
    with pytest.raises(RunFailed, match=r"^KeyError: 'off' at tests/test_declared\.py:\d+; --debug"):
        prepare(plain_job(tmp_path), seed=0)


def test_old_method_name_is_read_with_a_warning() -> None:
    @dataclass(frozen=True)
    class Old:
        def applicable(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
            return None if aux else "no images"

    with pytest.warns(DeprecationWarning, match=r"Old.*`applicable`.*`skip_reason`"):
        read_old_names("attack", Old)
    assert Old().skip_reason((1, 8, 8), 3, 0) == "no images"  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_old_names("attack", Old)
        read_old_names("method", Old)
