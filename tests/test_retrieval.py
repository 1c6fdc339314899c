"""Retrieval: the score of the attacker's own images on a target, on every inversion row."""

from pathlib import Path

import pytest
import torch
from conftest import toy_job, write_toy
from torch import Tensor, nn

from bench import boards
from bench.api import Target
from bench.pipeline import retrieval, run
from bench.pipeline.job import Job
from bench.storage.records import Record

KEYS = ("retrieval_accuracy", "retrieval_best_accuracy", "retrieval_next_accuracy", "retrieval_mean_accuracy")


TOY_IMAGES = 160


def job(toy: Path, attack: str, method: str = "no-defence") -> Job:
    return toy_job(toy, method, attack, out=toy / "o")


class ByBrightness(nn.Module):
    """Two classes; brighter images have a larger probability of class 1."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.flatten(1).mean(1)
        return torch.stack([torch.full_like(bright, 0.5), bright], 1)


def target(access: str = "scores") -> Target:
    return Target(ByBrightness(), access, (1, 2, 2), 2)  # type: ignore[arg-type]


def images(*brightness: float) -> Tensor:
    return torch.tensor(brightness).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_preferred_by_labels_draws_from_the_class_or_all() -> None:
    found = retrieval.preferred(target("label"), images(0.2, 0.9, 0.4, 0.8), 3, rng())
    assert set(found[0].tolist()) == {0, 2} and set(found[1].tolist()) == {1, 3}
    nowhere = retrieval.preferred(target("label"), images(0.2, 0.1, 0.4), 3, rng())
    assert set(nowhere[1].tolist()) == {0, 1, 2}


def test_preferred_by_scores_ignores_the_order_of_images() -> None:
    x = torch.rand(40, 1, 2, 2, generator=rng())
    order = torch.randperm(40, generator=rng())
    one, other = (retrieval.preferred(target(), part, 4, rng()) for part in (x, x[order]))
    assert torch.equal(one, order[other])


@pytest.mark.parametrize(
    ("brightness", "count", "expected"),
    [
        ((0.2, 0.9, 0.4, 0.9, 0.1), 3, [[4, 0, 2], [1, 3, 2]]),
        ((0.2, 0.9), 5, [[0, 1, 0, 1, 0], [1, 0, 1, 0, 1]]),
        ((0.3, 0.99, 0.2), 1, [[2], [1]]),
    ],
    ids=["ties by index", "few images", "known image"],
)
def test_preferred_by_scores_is_sorted(brightness: tuple[float, ...], count: int, expected: list[list[int]]) -> None:
    queried = target()
    found = retrieval.preferred(queried, images(*brightness), count, rng())
    assert found.tolist() == expected and queried.queries == len(brightness)


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ["gmi", "brep-mi", "random-guess"])
def test_inversion_metrics_include_retrieval(toy: Path, attack: str) -> None:
    outcome = run.run(job(toy, attack), 0)
    numbers = outcome.record.metrics
    for prefix in ("", "teacher_", "random_"):
        for key in KEYS:
            assert 0 <= numbers[f"{prefix}{key}.lo"] <= numbers[f"{prefix}{key}"] <= 1  # type: ignore[operator]
        gain = numbers[f"{prefix}above_floor"]
        mean = numbers[f"{prefix}attack_accuracy"] - numbers[f"{prefix}retrieval_accuracy"]  # type: ignore[operator]
        assert gain == pytest.approx(mean), "every class has the same number of images"
        assert numbers[f"{prefix}above_floor.lo"] <= gain <= numbers[f"{prefix}above_floor.hi"]  # type: ignore[operator]
        above = numbers[f"{prefix}attack_accuracy"] - numbers[f"{prefix}retrieval_mean_accuracy"]  # type: ignore[operator]
        assert numbers[f"{prefix}above_mean"] == pytest.approx(above)
        for key in ("floor_p", "mean_p"):
            assert numbers[f"{prefix}{key}"] is None and outcome.record.missing[f"{prefix}{key}"]
    drawn = attack in ("gmi", "brep-mi")
    assert ("retrieval_latents_accuracy" in numbers) == ("reference_decoder_attack_accuracy" in numbers) == drawn
    assert numbers["retrieval_accuracy"] == numbers["teacher_retrieval_accuracy"], "no-defence releases the teacher"
    assert "retrieval" not in boards.flags(outcome.record), "with few classes retrieval is not tested"


@pytest.mark.thorough
def test_retrieval_is_stored_per_target_and_access(tmp_path: Path) -> None:
    toy = write_toy(tmp_path, 160)

    def steps(method: str) -> int:
        for attack in ("gmi", "brep-mi", "mi-face"):
            run.run(job(toy, attack, method), 0)
        return len(list((toy / "o" / "steps" / "floor").glob("[0-9a-f]*")))

    assert steps("no-defence") == 4, "teacher and random net, by scores and by labels: the teacher is the release"
    assert steps("non-private-kd") == 6, "also the student"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("p", "status", "shown"), [(0.01, "ok", True), (0.2, "ok", False), (0.01, "inconclusive", False)]
)
def test_flag_retrieval_unless_the_attack_beats_it(toy: Path, p: float, status: str, shown: bool) -> None:
    record: Record = run.run(job(toy, "gmi"), 0).record
    record.metrics["floor_p"], record.status = p, status  # type: ignore[assignment]
    assert ("retrieval" in boards.flags(record)) != shown
