"""Features of the scorer and reference images: extracted and scored once for all runs on the same data."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import toy_job
from torch import Tensor

from attacks.gmi import Gmi
from bench.api import AttackResult, Context
from bench.pipeline import evaluation, inversion, material, reference_images, run, stages
from bench.pipeline.job import Job, run_spec

TOY_IMAGES = 160


def job(toy: Path, method: str = "no-defence", attack: str = "gmi") -> Job:
    return toy_job(toy, method, attack)


def stored(toy: Path, kind: str) -> list[Path]:
    return sorted((toy / "runs" / "steps" / kind).glob("[0-9a-f]*"))


@pytest.mark.thorough
def test_reference_images_are_scored_once_for_all_attacks(toy: Path) -> None:
    records = [run.run(job(toy, *pair), 0).record for pair in (("no-defence", "gmi"), ("dpsd", "mi-face"))]
    assert [len(stored(toy, kind)) for kind in ("features", "reference-images")] == [1, 1]
    for name in ("aux", "class_mean", "held_out"):
        keys = [key for key in records[0].metrics if key.startswith(f"reference_{name}_")]
        assert len(keys) == 6 - (name == "held_out")
        assert [records[0].metrics[key] for key in keys] == [records[1].metrics[key] for key in keys]
    own = [any(key.startswith("reference_prior_") for key in record.metrics) for record in records]
    assert own == [True, False], "gmi has a generator, mi-face has none"


def make_scorer(toy: Path) -> tuple[Job, evaluation.Scorer]:
    """Make a run; return its job and the scorer of its images."""
    given = job(toy)
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
    new = evaluation.make_scorer(evaluator, m.private, test, features, device)
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
    given = job(toy)
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
