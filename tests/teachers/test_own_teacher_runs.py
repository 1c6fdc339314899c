"""A user's own teacher in a run: its weights with a normalisation per channel, and its own network."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import write_toy

from bench.cli import main
from bench.errors import BenchError
from bench.nets import build
from bench.pipeline import run, stages
from bench.pipeline.job import Job, run_spec
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings

SHAPE = (3, 16, 16)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NETWORK = """
from torch import nn

def small(classes, channels):
    layers = nn.Conv2d(channels, WIDTH, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(WIDTH * 49, classes)
    return nn.Sequential(*layers)
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("colour"), 120, SHAPE)


@pytest.fixture
def mynets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "mynets_of_a_run.py"
    path.write_text(f"WIDTH = 8\n{NETWORK}")
    yield path
    sys.modules.pop(path.stem, None)


def job(toy: Path, out: Path, **others: Any) -> Job:
    usual: dict[str, Any] = {"teacher": "datalens", "tier": "smoke", "out": out}
    return load_job(Settings("no-defence", None, f"npz:{toy}/toy.npz", **usual | others))


def test_teacher_normalisation_is_kept_in_cache(toy: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = build("datalens", SHAPE, 4).eval()
    torch.save(own.body.state_dict(), tmp_path / "mine.pt")
    given = job(toy, tmp_path / "runs", teacher_weights=tmp_path / "mine.pt", teacher_normalise=(MEAN, STD))
    for _ in range(2):  # made, then from the cache
        teacher = stages.train_teacher(given, run_spec(given, 0).release.teacher).network
        assert teacher.mean.flatten().tolist() == pytest.approx(MEAN)
        images = torch.rand(2, *SHAPE)
        mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (MEAN, STD))
        torch.testing.assert_close(teacher(images), own.body((images - mean) / std))


@pytest.mark.thorough
def test_run_with_teacher_normalisation_has_record(toy: Path, tmp_path: Path) -> None:
    torch.save(build("datalens", SHAPE, 4).body.state_dict(), tmp_path / "mine.pt")
    given = job(toy, tmp_path / "runs", teacher_weights=tmp_path / "mine.pt", teacher_normalise=(MEAN, STD))
    record = run.run(given, 0).record
    assert record.status == "ok" and record.metrics["accuracy"] == record.metrics["teacher_accuracy"]


def test_spec_covers_source_and_weights(toy: Path, tmp_path: Path, mynets: Path) -> None:
    name = f"{mynets.stem}:small"
    plain = run_spec(job(toy, tmp_path / "runs", teacher=name), 0).release.teacher
    assert plain.arch.startswith(f"{name}#") and plain.weights is None
    torch.save(build(plain.arch, SHAPE, 4).body.state_dict(), tmp_path / "mine.pt")
    given = job(toy, tmp_path / "runs", teacher=name, teacher_weights=tmp_path / "mine.pt")
    loaded = run_spec(given, 0).release.teacher
    assert loaded.arch == plain.arch
    assert loaded.weights == hashlib.sha256((tmp_path / "mine.pt").read_bytes()).hexdigest()
    mynets.write_text(f"WIDTH = 9\n{NETWORK}")
    changed = run_spec(job(toy, tmp_path / "runs", teacher=name), 0).release.teacher
    assert len({plain.hash, loaded.hash, changed.hash}) == 3
    assert replace(changed, arch=plain.arch) == plain, "only the source differs"


def test_users_network_as_student_is_refused(toy: Path, tmp_path: Path, mynets: Path) -> None:
    with pytest.raises(BenchError) as caught:
        job(toy, tmp_path / "runs", student=f"{mynets.stem}:small")
    assert "--teacher" in str(caught.value)


@pytest.mark.parametrize(
    ("teacher", "expected"), [("no_such_module:small", "no_such_module"), ("{}:smal", "'small'"), ("math:sqrt", "math")]
)
def test_run_with_wrong_network_exits_with_2(
    toy: Path, tmp_path: Path, mynets: Path, capsys: pytest.CaptureFixture[str], teacher: str, expected: str
) -> None:
    given = ["run", "--method", "no-defence", "--tier", "smoke", "--dataset", f"npz:{toy}/toy.npz"]
    status = main([*given, "--teacher", teacher.format(mynets.stem), "--out", str(tmp_path / "runs")])
    said = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and len(said) == 1 and expected in said[0]
    assert not list(tmp_path.rglob("record.json"))


@pytest.mark.thorough
def test_users_network_is_trained_and_recorded(toy: Path, tmp_path: Path, mynets: Path) -> None:
    given = ["run", "--method", "no-defence", "--tier", "smoke", "--dataset", f"npz:{toy}/toy.npz", "--attack", "gmi"]
    assert main([*given, "--teacher", f"{mynets.stem}:small", "--out", str(tmp_path / "runs")]) == 0
    (record,) = tmp_path.rglob("record.json")
    assert f'"arch": "{mynets.stem}:small#' in record.read_text()
