"""Refusals before training: attacks that cannot have a result, networks and generators that do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Type, toy_job, write_toy

from bench import data
from bench.errors import BenchError, Incompatible
from bench.pipeline.job import Job, run_spec
from bench.pipeline.resolve import fitting_attack, refuse_unfit, unfit_reason

OF_KIND: dict[str, dict[str, Any]] = {
    "two classes": {"train": 160, "classes": 2},
    "four classes": {"train": 160},
    "100 pixels": {"train": 40, "shape": (1, 100, 100), "test": 8},
    "22 pixels": {"train": 40, "shape": (1, 22, 22), "test": 8},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_toy(tmp_path_factory.mktemp("toy"), **given) for kind, given in OF_KIND.items()}


def job(folder: Path, method: str = "no-defence", attack: str | None = None, **others: Any) -> Job:
    return toy_job(folder, method, attack, is_checked=False, **others)


@pytest.mark.parametrize("attack", ["gmi", "mi-face", "ami", "pca-mi"])
def test_inversion_of_two_classes_is_refused(folders: dict[str, Path], attack: str) -> None:
    given = job(folders["two classes"], attack=attack)
    other = fitting_attack(given)
    assert given.attack_skip_reason is None and other is not None
    with pytest.raises(Incompatible, match=f"2 classes.*--attack {other}"):
        refuse_unfit(given)
    assert unfit_reason(job(folders["two classes"], attack=other)) is None


@pytest.mark.parametrize(
    ("kind", "attack"),
    [
        *(("four classes", name) for name in ("gmi", "rmia", "random-guess")),
        *(("two classes", name) for name in ("random-guess", "rmia", "loss-threshold")),
    ],
)
def test_fitting_attack_is_not_refused(folders: dict[str, Path], kind: str, attack: str) -> None:
    given = job(folders[kind], attack=attack)
    refuse_unfit(given)
    assert unfit_reason(given) is None


def test_attack_of_another_image_size_is_refused(folders: dict[str, Path]) -> None:
    given = job(folders["100 pixels"], attack="gmi")
    assert given.attack_skip_reason is not None
    with pytest.raises(BenchError, match="--attack mi-face"):
        refuse_unfit(given)


def test_attack_on_unreleased_images_is_skipped(folders: dict[str, Path]) -> None:
    assert job(folders["four classes"], attack="domias").attack_skip_reason is not None
    assert job(folders["four classes"], "dp-merf", "domias").attack_skip_reason is None


def test_run_with_an_unfit_attack_trains_nothing(folders: dict[str, Path], here: Path, typed: Type) -> None:
    data = f"npz:{folders['two classes']}/toy.npz"
    status, _, said = typed("run --method no-defence --tier smoke --attack gmi --dataset", data)
    *notices, error = said.strip().splitlines()
    assert status == 2 and error.startswith("bench: error") and "--unfit-attack record" in error
    assert not any(line.startswith("bench: error") for line in notices) and not list(here.rglob("steps/teacher"))


@pytest.mark.parametrize("split", data.FROM_ANOTHER_SET)
def test_split_without_attack_needs_no_second_set(folders: dict[str, Path], split: str) -> None:
    given = job(folders["four classes"], split=split)
    assert len(given.material.private[0]) == 160 and len(given.material.aux) == 0
    assert run_spec(given, 0).release.teacher.data.split == split
    with pytest.raises(BenchError, match="--attack"):
        job(folders["four classes"], split=split, attack="gmi")


TOO_LARGE = ["dp-sgd", "dp-teacher", "scatter-cnn", "cluster-rr", "private-features"]


@pytest.fixture(scope="module")
def colour(folders: dict[str, Path]) -> Path:
    """The folder of the large images in colour."""
    folder = folders["100 pixels"] / "colour"
    folder.mkdir()
    grey = dict(np.load(folders["100 pixels"] / "toy.npz"))
    images = {name: np.repeat(value[..., None], 3, -1) for name, value in grey.items() if "images" in name}
    np.savez(folder / "toy.npz", **grey | images)
    return folder


@pytest.mark.parametrize("method", TOO_LARGE)
def test_own_network_of_a_method_is_checked_before_training(colour: Path, method: str) -> None:
    options = (("network", "relu-vgg"),) if method == "dp-teacher" else ()
    with pytest.raises(BenchError, match=r"100x100|100 pixels"):
        job(colour, method, method_options=options).check()


@pytest.mark.parametrize("method", ["dense", "feddafl", "feddf", "non-private-kd"])
def test_generator_is_checked_before_training(folders: dict[str, Path], method: str) -> None:
    with pytest.raises(BenchError, match="22x22"):
        job(folders["22 pixels"], method).check()
    job(folders["four classes"], method).check()


@pytest.mark.parametrize(
    ("method", "option"),
    [("pate-gan", "teachers"), ("datalens", "teachers"), ("g-pate", "teachers"), ("gs-wgan", "critics")],
)
def test_more_teachers_than_records_are_refused(folders: dict[str, Path], method: str, option: str) -> None:
    with pytest.raises(BenchError, match=r"500.*134"):
        job(folders["four classes"], method, method_options=((option, "500"),)).check()
