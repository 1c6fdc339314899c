"""The face judge in a run: used for every row of people, once, and reported as missing if it is not installed.

dlib's network is replaced by mean colours, and people by patterns.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Type, write_toy
from PIL import Image
from torch import Tensor, nn

from bench import boards
from bench.boards.tables import AttackRow, read_table
from bench.errors import BenchError
from bench.metrics import face_descriptor
from bench.metrics.table import metrics
from bench.pipeline import face_judge, inversion, retrieval, run, stages
from bench.pipeline.attacks import AttackTarget, attack_specs
from bench.pipeline.job import Job, run_spec
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings

PEOPLE, OTHERS = 3, 8
TARGETS = ("", "teacher_", "random_")
ABSENT = "the package dlib not found: pip install 'dp-distill-bench[faces]'"


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LFW's layout at 64 pixels: patterns of 4 x 4 colours with noise, 3 people of 10 images and 8 of 3."""
    root, rng = tmp_path_factory.mktemp("faces"), np.random.default_rng(0)
    for person in range(PEOPLE + OTHERS):
        pattern = np.kron(rng.integers(20, 200, (4, 4, 3)), np.ones((16, 16, 1), dtype=int))
        folder = root / "lfw-64" / f"P_{person}"
        folder.mkdir(parents=True)
        for number in range(10 if person < PEOPLE else 3):
            image = pattern + rng.integers(0, 40, (64, 64, 3))
            Image.fromarray(image.astype(np.uint8)).save(folder / f"P_{person}_{number:04}.png")
    return root


def colours(images: Tensor) -> Tensor:
    """Return (n, 128): the mean colours of 6 x 7 cells, and two zeros."""
    means = nn.functional.adaptive_avg_pool2d(images.float() / 255, (6, 7)).flatten(1)
    return nn.functional.pad(means, (0, face_descriptor.LENGTH - means.shape[1]))


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A judge that uses colours; records the number of images of every query."""
    counts: list[int] = []

    def describe(images: Tensor, advance: Callable[[int], object]) -> Tensor:
        counts.append(len(images))
        advance(len(images))
        return colours(images)

    monkeypatch.setattr(face_descriptor, "describe", describe)
    monkeypatch.setattr(face_descriptor, "absent", lambda: "")
    monkeypatch.setattr(face_descriptor, "check", lambda: None)
    yield counts


def job(faces: Path, out: Path, attack: str = "pca-mi", dataset: str = "lfw:10@16") -> Job:
    split = "identity" if dataset.startswith("lfw") else "iid"
    usual: dict[str, Any] = {"data_root": faces, "teacher": "datalens", "tier": "smoke", "out": out}
    return load_job(Settings("no-defence", attack, dataset, split, **usual))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of runs that share their trainings."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.thorough
def test_inversion_of_people_has_face_judge_metrics(faces: Path, out: Path, described: list[int]) -> None:
    given = job(faces, out)
    assert given.evaluator_recipe.settings()["recipe"] == "faces"
    record = run.run(given, 0).record
    numbers = record.metrics
    for prefix in TARGETS:
        for kind in ("", "retrieval_", "retrieval_best_", "retrieval_mean_", "retrieval_latents_"):
            for key in ("judge_accuracy", "judge_near"):
                name = f"{prefix}{kind}{key}"
                assert 0 <= numbers[f"{name}.lo"] <= numbers[name] <= numbers[f"{name}.hi"] <= 1  # type: ignore[operator]
            assert numbers[f"{prefix}{kind}judge_distance"] > 0  # type: ignore[operator]
        gain = numbers[f"{prefix}judge_accuracy"] - numbers[f"{prefix}retrieval_judge_accuracy"]  # type: ignore[operator]
        assert numbers[f"{prefix}above_floor"] == pytest.approx(gain), "by the judge, not by the evaluator"
        above = numbers[f"{prefix}judge_accuracy"] - numbers[f"{prefix}retrieval_mean_judge_accuracy"]  # type: ignore[operator]
        assert numbers[f"{prefix}above_mean"] == pytest.approx(above), "the mean is judged by it too"
    for name in ("aux", "class_mean", "held_out", "prior", "decoder"):
        assert {f"reference_{name}_{key}" for key in face_judge.NAMES} <= numbers.keys()
    assert numbers["reference_held_out_judge_accuracy"] == numbers["reference_class_mean_judge_accuracy"] == 1.0
    assert numbers["reference_held_out_judge_distance"] < numbers["reference_aux_judge_distance"]  # type: ignore[operator]
    assert not [key for key in record.missing if "judge" in key] and "no-judge" not in boards.flags(record)
    assert not record.artifacts, "no picture is drawn of people"
    rows = read_table(AttackRow, out / "leaderboards" / "attacks" / "lfw-crop-subset-10-16px.csv")
    (judged,) = [row for row in rows if row.metric == "judge_accuracy" and row.evaluation]
    assert None not in (judged.value, judged.teacher, judged.public_images)
    assert {"judge_distance", "retrieval_judge_accuracy"} <= {row.metric for row in rows}


@pytest.mark.thorough
def test_face_descriptors_are_stored_once_for_all_runs(faces: Path, out: Path, described: list[int]) -> None:
    first = run.run(job(faces, out), 0)
    (first.path / "record.json").unlink()
    described.clear()
    again = run.run(job(faces, out), 0).record
    assert described == [] and again.metrics == first.record.metrics
    other = run.run(job(faces, out, "mi-face"), 0).record
    assert 1 <= len(described) <= len(TARGETS), "only its own images"
    assert set(described) == {PEOPLE * face_judge.IMAGES}, "limited to IMAGES per person"
    for key in ("reference_aux_judge_distance", "retrieval_judge_distance", "teacher_retrieval_mean_judge_near"):
        assert other.metrics[key] == again.metrics[key]


def test_inversion_without_dlib_states_missing_metrics(faces: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face_descriptor, "absent", lambda: ABSENT)
    record = run.run(job(faces, out, "random-guess"), 0).record
    numbers = record.metrics
    for prefix in TARGETS:
        for key in face_judge.NAMES:
            assert numbers[f"{prefix}{key}"] is None and ABSENT in record.missing[f"{prefix}{key}"]
        gain = numbers[f"{prefix}attack_accuracy"] - numbers[f"{prefix}retrieval_accuracy"]  # type: ignore[operator]
        assert numbers[f"{prefix}above_floor"] == pytest.approx(gain), "by the evaluator"
    assert not [key for key in numbers if key.startswith(("retrieval_judge", "reference_aux_judge"))]
    assert "no-judge" in boards.flags(record)


def test_run_command_reports_missing_dlib(faces: Path, out: Path, monkeypatch: pytest.MonkeyPatch, typed: Type) -> None:
    monkeypatch.setattr(face_descriptor, "absent", lambda: ABSENT)
    line = "run --method no-defence --attack random-guess --dataset lfw:10@16 --split identity --teacher datalens"
    status, said, _ = typed(line, "--tier smoke --data-root", faces, "--out", out)
    assert status == 0 and ABSENT in " ".join(said.split()) and "no-judge" in said


@pytest.mark.thorough
def test_inversion_of_other_classes_has_no_face_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: list[int]
) -> None:
    write_toy(tmp_path, 160)
    record = run.run(job(tmp_path, tmp_path / "o", "random-guess", f"npz:{tmp_path}/toy.npz"), 0).record
    assert described == [] and not [key for key in record.metrics | record.missing if "judge" in key]
    assert "no-judge" not in boards.flags(record)


def test_face_judge_other_model_is_refused_before_training(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / face_descriptor.NETWORK
    wrong.write_bytes(b"another network")
    monkeypatch.setattr(face_descriptor, "_paths", lambda: (wrong, wrong))
    with pytest.raises(BenchError, match=face_descriptor.NETWORK):
        job(faces, tmp_path / "o")
    assert not (tmp_path / "o" / "steps" / "teacher").exists()
    assert job(faces, tmp_path / "o", "loss-threshold"), "a membership attack needs no judge"


class Sure(nn.Module):
    """Recognises each person on exactly one known image, and no person on any other."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self.known = known

    def forward(self, x: Tensor) -> Tensor:
        same = (x[:, None] - self.known[None]).flatten(2).abs().amax(2) < 1e-6
        return 10 * same.double()


def test_retrieval_finds_a_leaked_private_face(faces: Path, out: Path, described: list[int]) -> None:
    plain = job(faces, out)
    images, labels = plain.material.private
    leaked = images[torch.stack([(labels == c).nonzero()[0, 0] for c in range(PEOPLE)])]
    none_recognised = 1 - torch.eye(PEOPLE, dtype=torch.int64)
    gains = {}
    for name, aux in {"clean": plain.material.aux, "leak": torch.cat([plain.material.aux, leaked])}.items():
        given = replace(plain, material=replace(plain.material, aux=aux))
        spec, attack = run_spec(given, 0), given.attack
        judge = inversion.make_scorer(given, spec, stages.train_evaluator(given, spec.evaluator).network)
        target = AttackTarget("student", attack_specs(spec)["student"], Sure(leaked.float() / 255))  # type: ignore[arg-type]
        gains[name] = retrieval.retrieval_metrics(
            given, attack, [target], {"student": none_recognised}, judge, face_judge.make_face_judge(given)
        ).metrics  # type: ignore[arg-type]
    assert gains["leak"]["retrieval_best_judge_accuracy"] == gains["leak"]["retrieval_best_judge_near"] == 1.0
    assert gains["clean"]["retrieval_best_judge_near"] == 0.0
    assert gains["leak"]["retrieval_best_judge_distance"] < 0.1 < gains["clean"]["retrieval_best_judge_distance"]
    baseline = gains["leak"]["retrieval_judge_accuracy"]
    assert gains["leak"]["above_floor"] == pytest.approx(-baseline), "an attack that shows no person"


def test_boards_of_records_without_face_judge_are_unchanged(faces: Path, out: Path, described: list[int]) -> None:
    record = run.run(job(faces, out), 0).record
    record.metrics = {key: value for key, value in record.metrics.items() if "judge" not in key}
    assert "no-judge" not in boards.flags(record)
    assert not [row for row in boards.build([record]).attacks if "judge" in row.metric]
    newer = [metric for key, metric in metrics().items() if "judge" in key]
    assert len(newer) == 15 and all(metric.newer for metric in newer)


def test_doctor_reports_the_face_judge(monkeypatch: pytest.MonkeyPatch, typed: Type) -> None:
    def refuse() -> None:
        raise BenchError("another model")

    cases = [(ABSENT, lambda: None, ABSENT), ("", refuse, "another model"), ("", lambda: None, "faces          found")]
    for absent, check, said in cases:
        monkeypatch.setattr(face_descriptor, "absent", lambda absent=absent: absent)
        monkeypatch.setattr(face_descriptor, "check", check)
        assert said in typed("doctor").out
