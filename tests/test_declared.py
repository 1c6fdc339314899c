"""Required declarations of third-party methods and attacks, and the record of a run in which one fails."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import pytest
import torch
from conftest import write_toy
from dp_accounting import NonPrivateDpEvent

from bench import nets, registry
from bench.api import AttackResult, Release, Teacher
from bench.config import Departure, Size
from bench.declared import expect, read_old_names
from bench.errors import BenchError, RunFailed, plugin_errors
from bench.pipeline import attacks, canary_audit, run, stages
from bench.pipeline.canary_game import CanaryGame
from bench.pipeline.job import Job
from bench.pipeline.plots import Plot
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Ledger
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

    def skip_reason(self) -> None: ...

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
    with pytest.raises(BenchError, match=f"^method 'mine' of another package: .*Good {said}.*; fix the plug-in"):
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


def failing(raised: BaseException, place: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool = False) -> Job:
    """A job on toy images whose conversion raises."""

    def convert(*_: object) -> None:
        raise raised

    write_toy(place, 40)
    settings = Settings("no-defence", None, f"npz:{place}/toy.npz", teacher="datalens", tier="smoke")
    job = load_job(replace(settings, out=place / "runs", fresh=fresh))
    monkeypatch.setattr(type(job.method), "convert", convert)
    return job


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyError("off"), r"KeyError: 'off' at tests/test_declared\.py:\d+; --debug "),
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


def test_a_picture_that_cannot_be_drawn_is_a_failed_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = failing(ValueError("no such colour"), tmp_path, monkeypatch)
    pictures = {"synthetic": Plot("synthetic.png", bad(ValueError("no such colour")))}
    monkeypatch.setattr(run, "make_run", lambda *_: run.Finished(cast("Any", None), pictures))
    with pytest.raises(RunFailed, match=r"^ValueError: no such colour \(recorded in "):
        run.run(job, 0)
    (path,) = (tmp_path / "runs" / "records").glob(f"*/{RECORD}")
    assert (Record.read(path).status, Record.read(path).reason) == ("failed", "ValueError: no such colour")


def test_a_failure_leaves_a_good_record_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toy(tmp_path, 40)
    settings = Settings("no-defence", None, f"npz:{tmp_path}/toy.npz", teacher="datalens", tier="smoke")
    good = run.run(load_job(replace(settings, out=tmp_path / "runs")), 0)
    job = failing(RuntimeError("no such layer"), tmp_path, monkeypatch, fresh=True)
    with pytest.raises(RunFailed, match=r"^RuntimeError: no such layer \(not recorded: .* "):
        run.run(job, 0)
    assert run.published(good.path) == good.record


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), OSError(28, "No space left on device"), BenchError("bad")])
def test_an_interruption_a_full_disk_and_bad_input_are_no_failed_run(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = failing(raised, tmp_path, monkeypatch)
    with pytest.raises(type(raised)):
        run.run(job, 0)
    assert not list((tmp_path / "runs").glob(f"records/*/{RECORD}"))


@dataclass(frozen=True)
class Departing(Good):
    departures: ClassVar[tuple[Departure, ...]] = ()

    loss: Literal["l1", "l2"] = "l1"


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"los": "l2"}, "has no field `los`, which one of its departures sets"),
        ({"loss": "l3"}, "sets `loss` to 'l3' by a departure; expected one of l1, l2"),
    ],
)
def test_a_departure_that_sets_what_there_is_not_is_told(
    sets: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Departing, "departures", (Departure("It differs.", "It learns.", sets=sets),))
    with pytest.raises(BenchError, match=f"^method 'mine' of another package: .*Departing {said}; fix the plug-in"):
        expect("method", "mine", Departing)


def bad(raised: BaseException) -> Callable[..., Any]:
    """Reads all parts of a third-party plug-in."""

    def asked(*_: object) -> None:
        raise raised

    return asked


@pytest.mark.parametrize("raised", [ValueError("sigma is bad"), KeyError("sigma"), TypeError("no number")])
@pytest.mark.parametrize("asked", ["check", "__post_init__", "needs"])
def test_whatever_a_method_raises_before_anything_is_trained_is_bad_input(
    asked: str, raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toy(tmp_path, 40)
    name, raising = "class-moments" if asked == "__post_init__" else "no-defence", bad(raised)
    settings = Settings(name, None, f"npz:{tmp_path}/toy.npz", teacher="datalens", out=tmp_path / "runs")
    method = registry.load("method", name)
    monkeypatch.setattr(method, asked, property(raising) if asked == "needs" else raising, raising=False)
    usual = asked == "__post_init__" and isinstance(raised, ValueError)  # a value out of its range is the user's
    said = "--method: sigma is bad$" if usual else rf".*{type(raised).__name__}: .* at tests/test_declared\.py:\d+; fix"
    with pytest.raises(BenchError, match=f"^{said}"):
        load_job(settings)


def test_an_attack_that_cannot_say_whether_it_applies_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toy(tmp_path, 40)
    settings = Settings("no-defence", "gmi", f"npz:{tmp_path}/toy.npz", teacher="datalens", out=tmp_path / "runs")
    monkeypatch.setattr(registry.load("attack", "gmi"), "skip_reason", bad(KeyError("classes")))
    with pytest.raises(BenchError, match=r"^attack 'gmi': KeyError: 'classes' at tests/test_declared\.py:\d+; fix"):
        load_job(settings)
    monkeypatch.setattr(registry.load("attack", "gmi"), "skip_reason", lambda *_: True)
    with pytest.raises(BenchError, match=r"^attack 'gmi': TypeError: .*`skip_reason`.* True"):
        load_job(settings)


def test_a_plug_in_that_ends_the_process_while_it_is_asked_is_told() -> None:
    with pytest.raises(BenchError, match="method 'mine': SystemExit: 0"), plugin_errors("method 'mine'"):
        raise SystemExit(0)


def test_an_interruption_and_a_full_disk_are_nobodys_fault() -> None:
    for raised in (KeyboardInterrupt(), OSError(28, "No space left on device"), RunFailed("lost")):
        with pytest.raises(type(raised)), plugin_errors("method 'mine'"):
            raise raised


def test_a_student_that_is_not_the_network_it_is_called_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = failing(AssertionError(), tmp_path, monkeypatch)

    def convert(_: object, teacher: Teacher, *__: object) -> Release:
        ledger = Ledger()
        ledger.spend(NonPrivateDpEvent(), why="all of it")
        return Release(nets.build("datalens", teacher.shape, teacher.classes + 1), "datalens", ledger, None)

    monkeypatch.setattr(type(job.method), "convert", convert)
    with pytest.raises(RunFailed, match=r"no-defence .*datalens .*10 tensors"):
        run.run(job, 0)
    assert not list((tmp_path / "runs" / "steps" / "release").glob("[!.]*"))


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("images", torch.zeros(4, 1, 8, 16), r".*images .*\(4, 1, 8, 16\).*\(1, 16, 16\)"),
        ("images", torch.zeros(0, 1, 16, 16), r".*images .*\(0, 1, 16, 16\)"),
        ("images", torch.full((4, 1, 16, 16), torch.nan), ".*not finite"),
        ("targets", torch.zeros(3), r".*targets .*\(3,\)"),
        ("draws", torch.zeros(4, 1), r".*draws .*\(4, 1\)"),
        ("victims", torch.zeros(5), r".*victims .*\(5,\)"),
        ("targets", torch.tensor([0, 1, 2, 50]), ".*0 to 50.* 4"),
    ],
)
def test_what_an_attack_brings_back_is_looked_at_before_it_is_kept(part: str, value: torch.Tensor, said: str) -> None:
    good = AttackResult(torch.zeros(4, 1, 16, 16), torch.arange(4), torch.zeros(4))
    assert attacks._fault(good, (1, 16, 16), 4, 0) == ""
    assert re.match(said, attacks._fault(replace(good, **{part: value}), (1, 16, 16), 4, 0))


@pytest.mark.parametrize("victims", [None, torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, -1])])
def test_an_attack_that_watches_victims_says_which_each_image_shows(victims: torch.Tensor | None) -> None:
    found = AttackResult(torch.zeros(4, 1, 16, 16), torch.arange(4), torch.zeros(4), victims=victims)
    assert "victim" in attacks._fault(found, (1, 16, 16), 4, 3)
    assert attacks._fault(replace(found, victims=torch.tensor([0, 2, 2, 1])), (1, 16, 16), 4, 3) == ""


@pytest.mark.parametrize("audited", [True, False])
def test_whatever_a_plug_in_raises_in_an_audit_or_before_a_sweep_is_one_line(
    audited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = failing(KeyError("off"), tmp_path, monkeypatch)
    monkeypatch.setattr(canary_audit, "check", lambda *_: None)
    monkeypatch.setattr(stages, "train_teacher", bad(KeyError("off")))
    monkeypatch.setattr(canary_audit, "train_teacher", bad(KeyError("off")))
    with pytest.raises(RunFailed, match=r"^KeyError: 'off' at tests/test_declared\.py:\d+; --debug "):
        if audited:
            canary_audit.prepare_shared(job, CanaryGame(4, 4), 0)
        else:
            run.prepare_shared(job, 0)


def test_attack_with_the_old_name_of_skip_reason_is_read_with_a_warning() -> None:
    @dataclass(frozen=True)
    class Old:
        def applicable(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
            return None if aux else "no images"

    with pytest.warns(DeprecationWarning, match=r"Old: rename its method `applicable` to `skip_reason`"):
        read_old_names("attack", Old)
    assert Old().skip_reason((1, 8, 8), 3, 0) == "no images"  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_old_names("attack", Old)
        read_old_names("method", Old)
