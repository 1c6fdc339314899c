"""Private drawings: the release depends on records through the private layer only; account, refusals."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import baseline_runs as runs
import pytest
import torch
from baseline_runs import FREE, epsilon_of, record_calls, refused
from conftest import Type
from torch import Tensor

from baselines import private_drawings
from baselines.private_drawings import PrivateDrawings
from bench.api import Release
from bench.config import configure
from bench.dp_training import feature_training, synthetic_data
from bench.dp_training.feature_training import FeatureTraining
from bench.dp_training.head_accounting import Spending
from bench.dp_training.patch_training import PatchTraining
from bench.dp_training.synthetic_data import Synthesis
from bench.nets.classifiers import patch_nets
from bench.privacy import Budget, Unit
from bench.privacy.audit import audit
from bench.testing import CLASSES, recording_context, toy_private


def smoke(**given: Any) -> PrivateDrawings:
    return runs.smoke(PrivateDrawings, None, **given)


def made(budget: Budget = FREE, private: tuple[Tensor, Tensor] | None = None, **given: Any) -> Synthesis:
    return runs.synthesise(smoke(**given), budget, private)


def drawn(synthesis: Synthesis, count: int = 40) -> tuple[Tensor, Tensor]:
    return synthesis.draw(count, torch.Generator())


def converted(**given: Any) -> Release:
    return runs.convert(PrivateDrawings, Budget(3.0), variant=None, **given)


# Post-processing


def test_same_layer_gives_the_same_images_whatever_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run has other records, but the layer and the second moment that the first one released."""
    calls = record_calls(monkeypatch, FeatureTraining, "train_and_whiten")
    first, second = made(Budget(3.0)), made(Budget(3.0), toy_private(seed=9))
    (images, labels), (others, _) = drawn(first), drawn(second)
    assert not torch.equal(images, others), "the records have an effect through the layer"
    released = calls[0].result
    monkeypatch.setattr(FeatureTraining, "train_and_whiten", lambda *_given, **_named: released)
    again, again_labels = drawn(made(Budget(3.0), toy_private(seed=9)))
    assert torch.equal(again, images) and torch.equal(again_labels, labels)
    nothing = torch.zeros(0, 1, 16, 16, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    empty, empty_labels = drawn(made(Budget(3.0), nothing))
    assert torch.equal(empty, images) and torch.equal(empty_labels, labels)


def test_images_and_labels_train_the_student_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The student gets hard labels of the released images, and never the private layer."""
    trained = record_calls(monkeypatch, synthetic_data, "fit")
    release = converted()
    assert release.arch == "datalens"
    network, x, y = trained[0].arguments[:3]
    assert network is release.student
    assert x.shape == (40, 1, 16, 16) and y.dtype == torch.int64
    assert release.synthetic is not None and release.synthetic.dtype == torch.float32


def test_account_is_that_of_the_layer() -> None:
    budget = Budget(1.0, account="accounted")
    release = made(budget)
    layer = FeatureTraining(steps=3).spending("private", budget)
    assert release.ledger.to_json() == layer.ledger().to_json()
    assert epsilon_of(release.ledger) == release.claim.epsilon == pytest.approx(1.0, rel=1e-3)
    assert release.claim.unit == Unit.EXAMPLE and not release.claim.disputed
    for given in ({"typical": "off"}, {"class_weight": 1.0}, {"drawn": 200}, {"confidence": 0.0, "balanced": False}):
        other = made(budget, **given)
        assert other.ledger.to_json() == release.ledger.to_json() and other.claim == release.claim


def test_replaced_record_needs_twice_the_noise() -> None:
    """The ledger, for a record added or removed, has half of the claimed mu for gradients."""
    add, replace = made(Budget(2.0)), made(Budget(2.0), neighbours="replace")
    noise = [release.ledger.entries()[-1].event.noise_multiplier for release in (add, replace)]
    assert noise[1] / noise[0] == pytest.approx(2.0, rel=1e-3)
    assert replace.claim.epsilon == pytest.approx(2.0, rel=1e-3) and "replaced" in replace.claim.source
    assert epsilon_of(replace.ledger) < 1.3


def test_noise_of_the_layer_has_separate_streams() -> None:
    ctx = recording_context()
    runs.synthesise(smoke(), Budget(1.0), ctx=ctx)
    assert len(ctx.streams) == len(set(ctx.streams)) == 2, "gradients and second moment"


def test_moved_images_use_the_noisy_second_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    whitened = record_calls(monkeypatch, feature_training, "private_whitening")
    moved = record_calls(monkeypatch, private_drawings, "Typicality")
    release = made(Budget(3.0))
    (white,), (measure,) = whitened, moved
    assert measure.arguments[1] is white.result
    assert white.arguments[2] == pytest.approx(release.ledger.entries()[0].event.noise_multiplier)


# The mechanism's game


@pytest.mark.thorough
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace"])
def test_game_has_the_account_of_the_ledger(neighbours: str) -> None:
    """A bound of the right noise stays below the account, and exceeds a claim of a third."""
    method = PrivateDrawings(steps=1, neighbours=neighbours)  # type: ignore[arg-type]
    budget = Budget(3.0)
    game = method.game(budget, "mnist", CLASSES)
    spending = FeatureTraining(steps=1, neighbours=neighbours).spending("private", budget)  # type: ignore[arg-type]
    assert game.accounted == pytest.approx(epsilon_of(spending.ledger()), rel=1e-6)
    assert audit(game, plays=40_000, seed=0).verdict == "not refuted"
    assert audit(replace(game, claimed=game.accounted / 3), plays=40_000, seed=0).verdict == "refuted"


@pytest.mark.thorough
def test_game_refutes_too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is that of the game from before the noise is divided."""
    usual = Spending.gradient_noise
    game = PrivateDrawings(steps=1, classifier="patch-features").game(Budget(3.0), "mnist", CLASSES)
    assert audit(game, plays=40_000, seed=0).verdict == "not refuted"
    monkeypatch.setattr(Spending, "gradient_noise", lambda self, clip: usual(self, clip) / 3)
    assert audit(game, plays=40_000, seed=0).verdict == "accountant refuted"


# Options


CHANGES: dict[str, Any] = {
    "samples": 36,
    "steps": 4,
    "multiplier": 5.0,
    "neighbours": "replace",
    "prior": "shapes+pen",
    "drawn": 300,
    "rounds": 4,
    "choose": 3.0,
    "evolve": 0.3,
    "typical": "off",
    "class_weight": 2.0,
    "confidence": 0.0,
    "balanced": False,
}


@pytest.mark.parametrize("name", CHANGES)
def test_option_changes_the_images(name: str) -> None:
    budget = Budget(3.0) if name == "neighbours" else FREE
    usual, other = drawn(made(budget)), drawn(made(budget, **{name: CHANGES[name]}), 36 if name == "samples" else 40)
    assert usual[0].shape != other[0].shape or not torch.equal(usual[0], other[0])


@pytest.mark.parametrize("name", ["passes", "student_batch", "student_optimiser", "selection"])
def test_option_of_the_student_changes_only_the_student(name: str) -> None:
    value = {"passes": 2, "student_batch": 8, "student_optimiser": "sgd", "selection": "syn"}[name]
    usual, other = converted(), converted(**{name: value})
    assert usual.synthetic is not None and other.synthetic is not None
    assert torch.equal(usual.synthetic, other.synthetic)
    assert not torch.equal(runs.flat(usual.student), runs.flat(other.student))


def test_every_option_is_listed() -> None:
    names = {field.name for field in fields(PrivateDrawings)}
    students = {"passes", "student_batch", "student_optimiser", "selection"}
    assert names - set(CHANGES) - students <= {"classifier"}


def test_patch_features_are_another_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_nets, "FILTERS", 40)
    release = made(Budget(3.0), classifier="patch-features")
    (entry,) = release.ledger.entries()
    assert entry.count == 3 and epsilon_of(release.ledger) == pytest.approx(3.0, rel=1e-3)
    found = configure(PrivateDrawings, "quick", {"classifier": "patch-features"}, "method")
    assert found._training() == PatchTraining()


@pytest.mark.parametrize(
    "given",
    [{"typical": "off", "classifier": "patch-features"}, {"class_weight": "1", "classifier": "patch-features"},
     {"class_weight": "1", "typical": "off"}, {"evolve": "0.2", "rounds": "1"}],
    ids=str,
)  # fmt: skip
def test_ignored_option_is_refused(given: dict[str, str]) -> None:
    with refused(next(iter(given))):
        configure(PrivateDrawings, "quick", given, "method")


def test_typical_images_of_colour_are_refused() -> None:
    for given, named in (({"typical": "on"}, "typical on"), ({"class_weight": 0.1}, "class_weight 0.1")):
        method = PrivateDrawings(**given)  # type: ignore[arg-type]
        with refused(rf"{named}.*3x32x32"):
            method.check(Budget(1.0), "cifar10", 10)
        method.check(Budget(1.0), "fmnist", 10)
    PrivateDrawings().check(Budget(1.0), "cifar10", 10)


# Refusals


@pytest.mark.parametrize(
    ("given", "named"),
    [({"prior": "photographs"}, "photographs"), ({"samples": 9}, "samples 9 for 10 classes"),
     ({"drawn": 9}, "drawn 9 for 10 classes")],
    ids=str,
)  # fmt: skip
def test_bad_option_is_refused_before_training(given: dict[str, Any], named: str) -> None:
    with refused(named):
        PrivateDrawings(**given).check(Budget(1.0), "mnist", 10)


@pytest.mark.parametrize("budget", [Budget(0.01, solve="steps"), Budget(1.0, unit=Unit.QUERY)], ids=str)
def test_budget_that_is_not_met_is_refused_before_training(budget: Budget) -> None:
    with refused():
        PrivateDrawings().check(budget, "mnist", 10)


def test_class_without_image_is_refused() -> None:
    with refused("no image of class .*--method.confidence"):
        made(confidence=0.9999)


@pytest.mark.parametrize(
    "options",
    ["--method.prior photographs", "--method.samples 3", "--epsilon 0.001 --solve steps", "--method.confidence 0.99999",
     "--method.confidence 1", "--method.rounds 0"],
)  # fmt: skip
def test_command_refuses_in_one_line_with_status_two(options: str, tmp_path: Path, typed: Type) -> None:
    """A class without an image is found after training, so that progress precedes the line."""
    line = f"run --method private-drawings --dataset digits --tier smoke --device cpu --out {tmp_path} {options}"
    status, _, error = typed(line)
    errors = [line for line in error.splitlines() if line.startswith("bench: error: ")]
    assert status == 2 and len(errors) == 1 and error.splitlines()[-1] == errors[0]
    assert not list(tmp_path.rglob("record.json"))


def test_images_are_of_all_classes_and_in_range() -> None:
    images, labels = drawn(made())
    assert labels.bincount().tolist() == [10] * CLASSES
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
