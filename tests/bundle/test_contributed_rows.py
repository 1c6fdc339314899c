"""`bench verify --record`: a contributed row passes with its own bundle, and a forged one is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundles import bundle_of, record_of, renew
from safetensors.torch import load_file, save_file

import bench
from bench.bundle import Failed, check_record, verify
from bench.cli import main
from bench.errors import BadData
from bench.storage.specs import canonical, digest

KIND = "dpsd data"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return shutil.copyfile(record_of(KIND) / "record.json", tmp_path / "record.json")


def forge(record: Path, change: Callable[[Any], None]) -> None:
    """Change a record, with the hash that fits its spec again."""
    plain = json.loads(record.read_text())
    change(plain)
    plain["hash"] = digest(plain["spec"])
    record.write_text(canonical(plain))


def test_own_record_of_a_bundle_passes(record: Path) -> None:
    folder = bundle_of(KIND)
    found = check_record(record, folder, verify(folder, limits=None))
    stated = json.loads(record.read_text())["metrics"]["accuracy"]
    assert (found.stated, found.images) == (stated, 359) and abs(found.measured - stated) <= 0.002


def lower_epsilon(plain: Any) -> None:
    plain["privacy"]["accounted"]["epsilon"] /= 2


def lower_epsilon_of_a_unit(plain: Any) -> None:
    plain["privacy"]["accounted_units"]["example"]["epsilon"] /= 2


def fewer_queries_in_the_ledger(plain: Any) -> None:
    plain["privacy"]["events"][0]["count"] -= 1


def higher_accuracy(plain: Any) -> None:
    plain["metrics"]["accuracy"] = 0.99


def another_method(plain: Any) -> None:
    plain["spec"]["release"]["method"] = "dpdfd"


def noise_of_the_system(plain: Any) -> None:
    plain["privacy"]["noise"] = "os"


@pytest.mark.parametrize(
    "change",
    [lower_epsilon, lower_epsilon_of_a_unit, fewer_queries_in_the_ledger, higher_accuracy, another_method,
     noise_of_the_system],
)  # fmt: skip
def test_forged_record_is_refused(record: Path, change: Callable[[Any], None]) -> None:
    forge(record, change)
    folder = bundle_of(KIND)
    with pytest.raises(Failed):
        check_record(record, folder, verify(folder, limits=None))


def test_accuracy_of_another_student_is_refused(record: Path, tmp_path: Path) -> None:
    """The files of the bundle agree with one another; only measuring shows that the accuracy is not the student's."""
    folder = shutil.copytree(bundle_of(KIND), tmp_path / "bundle")

    def claim(plain: Any) -> None:
        plain["metrics"] |= {"accuracy": 0.9, "accuracy.lo": 0.85, "accuracy.hi": 0.95}

    forge(record, claim)
    verified = verify(folder, limits=None)
    accuracy = verified.model.accuracy
    assert accuracy is not None
    better = accuracy.model_copy(update={"share": 0.9, "low": 0.85, "high": 0.95})
    model = verified.model.model_copy(update={"accuracy": better})
    with pytest.raises(Failed, match="student"):
        check_record(record, folder, type(verified)(**{**vars(verified), "model": model}))


def test_weights_of_another_student_are_refused(record: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle_of("resnet18"), tmp_path / "bundle")
    with pytest.raises(Failed):
        check_record(record, folder, verify(folder, limits=None))
    own = shutil.copytree(bundle_of(KIND), tmp_path / "own")
    state = load_file(own / "student.safetensors")
    save_file({name: value.flip(0).contiguous() for name, value in state.items()}, own / "student.safetensors")
    renew(own)
    with pytest.raises(Failed):
        check_record(record, own, verify(own, limits=None))


def test_row_of_another_data_set_is_refused(record: Path) -> None:
    """MNIST's images do not even have the size that the student takes."""
    forge(record, lambda plain: plain["spec"]["release"]["teacher"]["data"].update(dataset="mnist"))
    with pytest.raises(Failed):
        check_record(record, bundle_of(KIND), verify(bundle_of(KIND), limits=None))


def test_data_folder_is_for_records(tmp_path: Path) -> None:
    assert main(["verify", str(bundle_of(KIND)), "--data-root", str(tmp_path)]) == 2


def test_exit_status_tells_forged_from_unreadable(record: Path, tmp_path: Path) -> None:
    folder = str(bundle_of(KIND))
    assert main(["verify", folder, "--record", str(record)]) == 0
    forge(record, lower_epsilon)
    assert main(["verify", folder, "--record", str(record)]) == 1
    record.write_text("{}")
    assert main(["verify", folder, "--record", str(record)]) == 2


def test_python_checks_a_row_too(record: Path) -> None:
    folder = bundle_of(KIND)
    assert bench.verify(folder, record=record).privacy.method.name == "dpsd"
    forge(record, lower_epsilon)
    with pytest.raises(Failed):
        bench.verify(folder, record=record)


def test_failed_run_has_no_row(record: Path) -> None:
    forge(record, lambda plain: plain.update(status="failed", reason="it diverged"))
    folder = bundle_of(KIND)
    with pytest.raises(BadData):
        check_record(record, folder, verify(folder, limits=None))
