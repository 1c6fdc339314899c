"""Public images in a run: their source, their part of the spec, refused settings, and the flag of the row."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import toy_job
from torch import Tensor

from baselines.pate import Pate
from bench import boards
from bench.api import Teacher
from bench.errors import BenchError
from bench.pipeline import canary_game, run
from bench.pipeline.canary_game import CanaryGame
from bench.pipeline.challenge import ReferenceModels, make_challenge
from bench.pipeline.job import Job, run_spec


def job(toy: Path, method: str = "pate", **changes: Any) -> Job:
    return toy_job(toy, method, **{"attack": "loss-threshold", **changes})


def rows_of(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_parts_of_run_are_disjoint(toy: Path) -> None:
    """Only a method that needs public images takes any from the attacker."""
    with_it, without = job(toy).material, job(toy, "no-defence").material
    assert with_it.public is not None and without.public is None
    parts = [with_it.public, with_it.private[0], with_it.aux, with_it.data.test_images]
    assert [len(part) for part in parts] == [20, 200, 20, 40]
    assert len(set().union(*map(rows_of, parts))) == 280
    assert torch.equal(with_it.private[0], without.private[0])
    assert rows_of(with_it.public) | rows_of(with_it.aux) == rows_of(without.aux)
    assert with_it.aux_labels is not None and len(with_it.aux_labels) == 20


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[Teacher]:
    """The teachers that PATE converts."""
    found: list[Teacher] = []
    original = Pate.convert

    def convert(self: Pate, teacher: Teacher, *rest: Any) -> Any:
        found.append(teacher)
        return original(self, teacher, *rest)

    monkeypatch.setattr(Pate, "convert", convert)
    return found


@pytest.mark.thorough
def test_method_receives_public_images_only(toy: Path, received: list[Teacher]) -> None:
    given = job(toy, out=toy / "received")
    record = run.run(given, 0).record
    (teacher,) = received
    assert teacher.private is None and teacher.public is given.material.public
    assert "public-data" in boards.flags(record)
    assert "public-data" not in boards.flags(run.run(job(toy, "no-defence", out=toy / "received"), 0).record)


@pytest.mark.thorough
def test_reference_students_use_same_public_images(toy: Path, received: list[Teacher]) -> None:
    given = job(toy, out=toy / "references")
    challenge = make_challenge(given.material)
    models = ReferenceModels(given, run_spec(given, 0).release, challenge, "scores")
    models.knowledge("student").references(2, "student")
    assert len(received) == 2 and all(teacher.public is given.material.public for teacher in received)
    assert not rows_of(challenge.images) & rows_of(given.material.public)  # type: ignore[arg-type]


def test_spec_covers_public_images(toy: Path) -> None:
    querying, other = (run_spec(job(toy, method), 0) for method in ("pate", "no-defence"))
    assert querying.release.public is not None and other.release.public is None
    assert querying.attack is not None and other.attack is not None and querying.attack.aux != other.attack.aux
    assert querying.release.teacher == other.release.teacher, "the teacher is the same, trained once"
    strokes = run_spec(job(toy, method_options=(("images", "strokes"),)), 0)
    assert strokes.release.public is None and strokes.attack is not None and strokes.attack.aux == other.attack.aux


def test_canaries_are_attackers_images(toy: Path) -> None:
    given = job(toy, attack=None)
    drawn = canary_game.draw(given, CanaryGame(20), 0)
    assert rows_of(drawn.images) == rows_of(given.material.aux)
    assert torch.equal(drawn.images, canary_game.draw(job(toy, "no-defence", attack=None), CanaryGame(20), 0).images)
    with pytest.raises(BenchError) as caught:
        canary_game.check(given, CanaryGame(21))
    assert "--canaries 21" in str(caught.value) and "20" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"split": "disjoint-low"}, ("'disjoint-low'",)),
        ({"method_options": (("query_count", "21"),)}, ("21", "20")),
    ],
)
def test_impossible_public_images_are_refused(toy: Path, changes: dict[str, Any], values: tuple[str, ...]) -> None:
    with pytest.raises(BenchError) as caught:
        job(toy, out=toy / "refused", **changes)
    assert all(value in str(caught.value) for value in values)
    assert "\n" not in str(caught.value) and not (toy / "refused" / "steps").exists()


def test_synthetic_queries_need_no_public_images(toy: Path) -> None:
    given = job(toy, split="disjoint-low", method_options=(("images", "strokes"),))
    assert given.material.public is None
