"""Retrieval on every inversion row; features and reference images, computed once for all runs on the same data."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import toy_job, write_toy
from torch import Tensor, nn

from attacks.gmi import Gmi
from bench import boards
from bench.api import AttackResult, Context, Target
from bench.pipeline import evaluation, inversion, material, reference_images, retrieval, run, stages
from bench.pipeline.job import Job, run_spec
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


def gmi_job(toy: Path, method: str = "no-defence", attack: str = "gmi") -> Job:
    return toy_job(toy, method, attack)


def stored(toy: Path, kind: str) -> list[Path]:
    return sorted((toy / "runs" / "steps" / kind).glob("[0-9a-f]*"))


@pytest.mark.thorough
def test_reference_images_are_scored_once_for_all_attacks(toy: Path) -> None:
    records = [run.run(gmi_job(toy, *pair), 0).record for pair in (("no-defence", "gmi"), ("dpsd", "mi-face"))]
    assert [len(stored(toy, kind)) for kind in ("features", "reference-images")] == [1, 1]
    for name in ("aux", "class_mean", "held_out"):
        keys = [key for key in records[0].metrics if key.startswith(f"reference_{name}_")]
        assert len(keys) == 6 - (name == "held_out")
        assert [records[0].metrics[key] for key in keys] == [records[1].metrics[key] for key in keys]
    own = [any(key.startswith("reference_prior_") for key in record.metrics) for record in records]
    assert own == [True, False], "gmi has a generator, mi-face has none"


def make_scorer(toy: Path) -> tuple[Job, evaluation.Scorer]:
    """Make a run; return its job and the scorer of its images."""
    given = gmi_job(toy)
    spec = run_spec(given, 0)
    run.run(given, 0)
    return given, inversion.make_scorer(given, spec, stages.train_evaluator(given, spec.evaluator).network)


@pytest.mark.thorough
def test_stored_features_equal_extracted_ones(toy: Path) -> None:
    given, kept = make_scorer(toy)
    spec, m, device = run_spec(given, 0), given.material, given.device
    evaluator = stages.train_evaluator(given, spec.evaluator).network
    features = evaluation.extract_features(evaluator, m.private[0], m.data.test_images, device)
    test = (m.data.test_images, m.data.test_labels)
    new = evaluation.make_scorer(evaluator, m.private, test, features, device, m.data.classes)
    for one, other in ((kept.private, new.private), (kept.held_out, new.held_out)):
        assert torch.equal(one.features, other.features) and torch.equal(one.labels, other.labels)
    assert torch.equal(kept.directions, new.directions)
    fresh = reference_images.score_sets(reference_images.data_sets(given), new)
    found = reference_images.reference_metrics(given, given.attack, spec, kept)
    assert {key: found[key] for key in fresh} == fresh


@pytest.mark.thorough
def test_score_computes_only_wanted_metrics(toy: Path) -> None:
    given, scorer = make_scorer(toy)
    targets = torch.arange(given.material.data.classes).repeat_interleave(8)
    images = torch.rand(len(targets), *given.material.data.shape, generator=torch.Generator().manual_seed(0))
    result = AttackResult(images, targets, torch.zeros_like(targets))
    whole, part = (evaluation.score(result, scorer, None, None, wanted) for wanted in (None, ["knn_gap"]))
    assert part.metrics["knn_gap"] == whole.metrics["knn_gap"]
    assert {"ssim", "density", "fid"} <= set(whole.metrics) and not {"ssim", "density", "fid"} & set(part.metrics)
    assert set(part.missing) <= {"knn_gap"}


def test_score_of_victims_has_no_knn_gap(toy: Path) -> None:
    """Even exact copies of all victims would be nearer to unseen images."""
    given, scorer = make_scorer(toy)
    chosen = material.choose_victims(given.material)
    every = torch.arange(len(chosen.images))
    copies = AttackResult(chosen.images.float() / 255, chosen.labels, torch.zeros_like(chosen.labels), victims=every)
    scored = evaluation.score(copies, scorer, None, chosen, ["knn_gap", "ssim_gap"])
    assert scored.metrics["knn_gap"] is None and "ssim_gap" in scored.missing["knn_gap"]
    assert scored.metrics["ssim_gap"] == pytest.approx(0, abs=1e-6)


class Redraws(Gmi):
    """A generator that draws grey images, and redraws any image as its negative."""

    def prior(self, count: int, aux: Tensor, ctx: Context) -> Tensor:
        return torch.full((count, *aux.shape[1:]), 0.5)

    def nearest(self, images: Tensor, aux: Tensor, ctx: Context) -> Tensor:
        return 1 - images


def test_reference_sets_have_the_images_of_their_names(toy: Path) -> None:
    """Private images are black here, the attacker's white, test images grey by their class."""
    given = gmi_job(toy)
    m, (images, labels) = given.material, given.material.private
    tested = (50 + 10 * m.data.test_labels).to(torch.uint8).view(-1, 1, 1, 1).expand(m.data.test_images.shape)
    data = replace(m.data, train_images=torch.zeros_like(m.data.train_images), test_images=tested)
    marked = replace(m, data=data, private=(torch.zeros_like(images), labels), aux=torch.full_like(m.aux, 255))
    given = replace(given, material=marked)
    sets = reference_images.data_sets(given) | reference_images.generator_sets(given, Redraws())
    assert set(sets) == {"aux", "class_mean", "held_out", "prior", "decoder"}
    assert (sets["aux"][0] == 1).all() and not sets["class_mean"][0].any() and (sets["prior"][0] == 0.5).all()
    for name, shades in (("held_out", sets["held_out"][0]), ("decoder", 1 - sets["decoder"][0])):
        found = (255 * shades).round().long()
        assert (found == 50 + 10 * sets[name][1].view(-1, 1, 1, 1)).all()
    counts = m.data.test_labels.bincount()
    fewest = [min(most, int(counts.min())) for most in (reference_images.IMAGES, reference_images.REDRAWN)]
    assert [sets[name][1].bincount().tolist() for name in ("held_out", "decoder")] == [[count] * 4 for count in fewest]
