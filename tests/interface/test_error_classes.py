"""Errors have classes with stable codes, raised where users meet them, and a page that lists them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Refused

import bench
from bench import errors

CODES = {
    "BenchError": "bad-input",
    "UnknownName": "unknown-name",
    "BadOption": "bad-option",
    "BadData": "bad-data",
    "BadWeights": "bad-weights",
    "BadPlugin": "bad-plugin",
    "BudgetError": "budget",
    "Incompatible": "incompatible",
    "OutOfMemory": "memory",
    "NotFound": "not-found",
    "RunFailed": "run-failed",
}
"""Codes that scripts match: a change here breaks them."""


def test_codes_are_stable() -> None:
    assert {kind.__name__: kind.code for kind in errors.kinds()} == CODES


def run(folder: Path, method: Any = "rr", **given: Any) -> object:
    return bench.run(method, out=folder, **given)


def arrays(folder: Path) -> None:
    (folder / "broken.npz").write_bytes(b"no archive")
    run(folder, dataset=f"npz:{folder / 'broken.npz'}")


def weights(folder: Path) -> None:
    (folder / "w.safetensors").write_bytes(b"no weights")
    run(folder, "no-defence", tier="smoke", teacher_weights=folder / "w.safetensors")


RAISED: list[tuple[str, Callable[[Path], object]]] = [
    *(("unknown-name", partial(run, **given)) for given in (
        {"method": "dpds"}, {"attack": "gmii"}, {"dataset": "mnits"}, {"unit": "person"}, {"tier": "huge"},
        {"noise": "none"}, {"account": "guessed"}, {"variant": "best"}, {"teacher": "resnet19"},
        {"memory_check": "no"}, {"method_options": {"rat": 1}},
    )),
    *(("bad-option", partial(run, **given)) for given in (
        {"method": "dpsd", "method_options": {"sigma": "many"}}, {"seed": -1}, {"method_options": {"rate": [1]}},
        {"device": "tpu"},
    )),
    ("bad-data", arrays),
    ("bad-weights", weights),
    ("bad-plugin", partial(run, method=dict)),
    *(("budget", partial(run, **given)) for given in (
        {"epsilon": -1}, {"delta": 1}, {"method": "no-defence", "account": "accounted", "tier": "smoke"},
    )),
    ("incompatible", partial(run, attack="gan-leaks", tier="smoke")),
    ("not-found", partial(run, dataset="npz:missing.npz")),
    ("not-found", lambda folder: bench.run("rr", dataset="mnist", data_root=folder, out=folder)),
    ("not-found", bench.load),
]  # fmt: skip


@pytest.mark.parametrize(("code", "raising"), RAISED, ids=[f"{code}-{k}" for k, (code, _) in enumerate(RAISED)])
def test_bad_input_has_the_code_of_its_kind(code: str, raising: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(errors.BenchError) as raised:
        raising(tmp_path)
    assert raised.value.code == code and len(str(raised.value).splitlines()) == 1
    assert not list(tmp_path.rglob("record.json"))


def test_command_prints_the_same_error_with_status_2(tmp_path: Path, refused: Refused) -> None:
    with pytest.raises(errors.UnknownName) as raised:
        bench.run("dpds", out=tmp_path)
    assert refused("run --method dpds --out", tmp_path) == f"bench: error: {raised.value}\n"
