"""Training of a classifier and of ensembles, evaluation, and the augmentation of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.api import Shards
from bench.assess.models import BATCH
from bench.data import QUERY_BATCH, query_batch
from bench.data.affine import augmented
from bench.errors import RunFailed
from bench.nets import Classifier, Ensemble, build
from bench.teachers import Recipe, accuracy, features, fit, predict
from bench.teachers.ensemble import How, fit_ensemble
from bench.teachers.training import draw_batches, schedule

CPU = torch.device("cpu")
SHORT = Recipe(epochs=4, batch=32, lr=3e-3, shift=1)


def stripes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy 12x12 images of three classes, which differ in the row of a bright stripe."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    images = torch.randint(0, 120, (n, 1, 12, 12), generator=generator, dtype=torch.uint8)
    images[torch.arange(n), 0, labels * 4 + 1] += 100
    return images, labels


def trained(arch: str, seed: int, recipe: Recipe = SHORT, **options: bool) -> Classifier:
    torch.manual_seed(7)
    model = build(arch, (1, 12, 12), 3)
    fit(model, *stripes(192, 0), recipe, CPU, seed, **options)
    return model


def vector(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten().float() for value in model.state_dict().values()])


@pytest.mark.parametrize("arch", ["datalens", "evaluator-cnn"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_fit_learns_labels_but_not_shuffled_ones(arch: str, optimizer: str) -> None:
    recipe = Recipe(epochs=6, batch=32, optimizer=optimizer, lr=3e-3 if optimizer == "adamw" else 0.02, shift=1)
    images, labels = stripes(300, 1)
    model = trained(arch, 0, recipe)
    assert not model.training
    assert accuracy(model, images, labels, CPU) > 0.95
    shuffled = labels[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
    assert accuracy(model, images, shuffled, CPU) < 0.5


def test_fit_reports_each_step() -> None:
    ticks: list[int] = []
    recipe = Recipe(epochs=2, batch=32)
    fit(build("evaluator-cnn", (1, 12, 12), 3), *stripes(65, 0), recipe, CPU, 0, ticks.append)
    assert ticks == [1] * 4 == [1] * recipe.steps(65), "the last image of 65 would be a batch of one"


def test_fit_with_autocast_keeps_float32_weights() -> None:
    model = trained("datalens", 0, Recipe(epochs=6, batch=32, lr=3e-3, shift=0), autocast=True)
    assert accuracy(model, *stripes(150, 2), CPU) > 0.95
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


def test_fit_divergence_is_a_failed_run() -> None:
    with pytest.raises(RunFailed) as caught:
        trained("datalens", 0, Recipe(epochs=4, batch=32, optimizer="sgd", lr=1e30, warmup=0.0))
    assert "of 24" in str(caught.value) and "lr=1e+30" in str(caught.value)


def test_fit_of_one_image_is_a_failed_run() -> None:
    images, labels = stripes(1, 0)
    with pytest.raises(RunFailed):
        fit(build("datalens", (1, 12, 12), 3), images, labels, SHORT, CPU, 0)


def test_predict_and_features_agree_with_model() -> None:
    model = build("evaluator-cnn", (1, 12, 12), 3)
    images, labels = stripes(33, 5)
    before = vector(model)
    logits, seen = predict(model, images, CPU, batch=7), features(model, images, CPU, batch=33)
    assert model.training and torch.equal(vector(model), before), "mode and BatchNorm statistics are unchanged"
    model.eval()
    with torch.no_grad():
        direct = model(images.float() / 255)
        torch.testing.assert_close(logits, direct, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.body.head(seen), direct, rtol=1e-5, atol=1e-5)
    assert accuracy(model, images, labels, CPU) == pytest.approx(
        sum(int(row.argmax() == label) for row, label in zip(direct, labels, strict=True)) / 33
    )


def test_predict_queries_batches_that_fit_the_cache() -> None:
    """Of 128 images of 32x32 pixels on a CPU, as an assessment does; `model` sees every image once."""
    sizes: list[int] = []
    model = build("datalens", (1, 12, 12), 3)
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    predict(model, stripes(300, 0)[0], CPU)
    assert sizes == [QUERY_BATCH, QUERY_BATCH, 300 - 2 * QUERY_BATCH] and QUERY_BATCH == BATCH
    assert query_batch(torch.device("cuda")) > query_batch(CPU)


def test_predict_refuses_float_images() -> None:
    with pytest.raises(TypeError):
        predict(build("datalens", (1, 12, 12), 3), torch.rand(2, 1, 12, 12), CPU)


def test_draw_batches_permutes_each_pass() -> None:
    recipe = Recipe(epochs=3, batch=4)
    batches = list(draw_batches(10, recipe, 0, recipe.steps(10)))
    passes = [torch.cat(batches[start : start + 3]).tolist() for start in (0, 3, 6)]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert passes[0] != passes[1] != passes[2]


def test_augmented_shift_agrees_with_loop() -> None:
    n, shift = 200, 2
    images = torch.randint(1, 256, (n, 2, 5, 4), dtype=torch.uint8)
    moved = augmented(images, shift, False, torch.Generator().manual_seed(0))
    every = {(dy, dx) for dy in range(-shift, shift + 1) for dx in range(-shift, shift + 1)}
    offsets = []
    for before, after in zip(images, moved, strict=True):
        found = []
        for dy, dx in every:
            expected = torch.zeros_like(before)
            for row, column in ((row, column) for row in range(5) for column in range(4)):
                if 0 <= row + dy < 5 and 0 <= column + dx < 4:
                    expected[:, row, column] = before[:, row + dy, column + dx]
            if torch.equal(expected, after):
                found.append((dy, dx))
        assert len(found) == 1
        offsets += found
    assert set(offsets) == every, "each image has its own offset"


def test_augmented_flip_mirrors_half_of_images() -> None:
    images = torch.arange(4, dtype=torch.uint8).expand(1000, 1, 3, 4)
    mirrored = augmented(images, 0, True, torch.Generator().manual_seed(0))[:, 0, 0]
    turned = (mirrored == torch.tensor([3, 2, 1, 0])).all(1)
    assert (turned | (mirrored == torch.arange(4)).all(1)).all()
    assert 430 < turned.sum() < 570


def test_augmented_without_changes_is_identity() -> None:
    images, _ = stripes(5, 0)
    assert torch.equal(augmented(images, 0, False, torch.Generator()), images)


@pytest.mark.parametrize("total", [1, 2, 7, 100])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 1.0])
def test_schedule_is_in_0_to_1(total: int, warmup: float) -> None:
    factors = [schedule(step, total, warmup) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == 1


SHAPE, CLASSES = (1, 8, 8), 3


def toy(n: int = 120) -> tuple[Tensor, Tensor]:
    """Three classes: bright above, bright below, dark."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % CLASSES
    images = torch.randint(0, 60, (n, *SHAPE), generator=rng)
    images[labels == 0, :, :4] += 150
    images[labels == 1, :, 4:] += 150
    return images.to(torch.uint8), labels


def trained_ensemble(
    images: Tensor,
    labels: Tensor,
    parts: list[np.ndarray],
    how: How = "in turn",
    archs: tuple[str, ...] = ("shard-cnn",),
    steps: int = 12,
    lr: float = 5e-3,
) -> Ensemble:
    ensemble = Ensemble.build(archs, len(parts), SHAPE, CLASSES, seeds=range(len(parts)))
    shards = Shards(len(parts), archs, steps=steps, batch=16, lr=lr, weight_decay=0.01, shift=1)
    fit_ensemble(ensemble, images, labels, parts, shards, device=torch.device("cpu"), seed=3, how=how)
    return ensemble


def unchanged(one: Ensemble, other: Ensemble) -> list[bool]:
    return [
        all(torch.equal(a, b) for a, b in zip(x.parameters(), y.parameters(), strict=True))
        for x, y in zip(one.members, other.members, strict=True)
    ]


PARTS = [np.arange(0, 50), np.arange(50, 110), np.arange(110, 120)]


@pytest.mark.thorough
@pytest.mark.parametrize(("arch", "lr"), [("shard-cnn", 1e-3), ("resnet10t", 1e-6)])
def test_stacked_training_equals_training_in_turn(arch: str, lr: float) -> None:
    """At a small rate for the network with BatchNorm, as Adam's first step is the sign of a gradient that may be 0."""
    images, labels = toy()
    pair = [trained_ensemble(images, labels, PARTS, how, (arch,), steps=4, lr=lr) for how in ("stacked", "in turn")]
    fresh = Ensemble.build((arch,), 3, SHAPE, CLASSES, seeds=range(3)).state_dict()
    for (name, one), other in zip(pair[0].state_dict().items(), pair[1].state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)
        assert torch.equal(one, fresh[name]) == (".mean" in name or ".std" in name), name


@pytest.mark.parametrize("how", ["stacked", "in turn"])
def test_record_changes_only_its_member(how: How) -> None:
    images, labels = toy()
    other_images, other_labels = images.clone(), labels.clone()
    other_images[60], other_labels[60] = 255 - images[60], (labels[60] + 1) % CLASSES
    before = trained_ensemble(images, labels, PARTS, how)
    shorter = [PARTS[0], PARTS[1][:-7], PARTS[2]]
    for other in (
        trained_ensemble(other_images, other_labels, PARTS, how),
        trained_ensemble(images, labels, shorter, how),
    ):
        assert unchanged(before, other) == [True, False, True]


@pytest.mark.parametrize("how", ["stacked", "in turn"])
def test_member_without_records_is_unchanged(how: How) -> None:
    images, labels = toy()
    parts = [np.arange(0, 60), np.arange(0, 0), np.arange(60, 120)]
    fresh = Ensemble.build(("shard-cnn",), 3, SHAPE, CLASSES, seeds=range(3))
    assert unchanged(fresh, trained_ensemble(images, labels, parts, how)) == [False, True, False]


def test_members_learn_and_votes_are_counts() -> None:
    images, labels = toy()
    ensemble = trained_ensemble(images, labels, PARTS, archs=("shard-cnn", "dgd-cnn"), steps=40)
    x = images.float() / 255
    votes, logits = ensemble.votes(x), ensemble(x)
    assert logits.shape == (3, 120, CLASSES) and len(ensemble) == 3 and not ensemble.is_stackable()
    assert (logits.argmax(2) == labels).double().mean() > 0.95
    counted = torch.stack([(logits.argmax(2) == c).sum(0) for c in range(CLASSES)], 1)
    assert torch.equal(votes, counted.float()) and (votes.sum(1) == 3).all()
    assert not any(p.requires_grad for p in ensemble.parameters()) and not ensemble.training


def test_build_uses_one_seed_per_member() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    three = Ensemble.build(("shard-cnn",), 3, SHAPE, CLASSES, seeds=(7, 8, 9))
    assert torch.equal(torch.get_rng_state(), before)
    two = Ensemble.build(("shard-cnn",), 2, SHAPE, CLASSES, seeds=(7, 9))
    weights = [next(iter(member.parameters())) for member in (*three.members, *two.members)]
    assert torch.equal(weights[0], weights[3]) and torch.equal(weights[2], weights[4])
    assert not torch.equal(weights[0], weights[1])


def test_ensemble_divergence_is_a_failed_run() -> None:
    images, labels = toy()
    with pytest.raises(RunFailed):
        trained_ensemble(images, labels, PARTS, lr=1e30)


@pytest.mark.parametrize("rows", [20, 900])
def test_fixed_features_are_solved_by_ridge_regression(rows: int) -> None:
    """The gradient of |a w - y|^2 + p |w|^2 is 0 at every member's weights, for few rows and for many."""
    images, labels = toy(rows)
    images = images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    parts = [np.arange(0, rows // 2), np.arange(rows // 2, rows), np.arange(0, 0)]
    ensemble = Ensemble.build(("scatter-linear",), 3, (1, 16, 16), CLASSES, seeds=range(3))
    untouched = ensemble.members[2].body.head.weight.clone()
    shards = Shards(3, ("scatter-linear",), steps=1, batch=1, lr=1.0, ridge=0.05)
    fit_ensemble(ensemble, images, labels, parts, shards, device=torch.device("cpu"), seed=0)
    assert ensemble.fixed_features and ensemble.members[0].body.trunk is ensemble.members[1].body.trunk
    x = images.float() / 255
    a = ensemble.features(x).double()
    for j in (0, 1):
        own, y = a[parts[j]], torch.nn.functional.one_hot(labels[parts[j]], CLASSES).double() - 1 / CLASSES
        w = ensemble.members[j].body.head.weight.double().T
        penalty = 0.05 * own.square().sum(1).mean()
        slope = own.T @ (own @ w - y) + penalty * w
        assert slope.norm() < 1e-3 * (own.T @ y).norm()
        torch.testing.assert_close(ensemble(x)[j], ensemble.members[j](x), rtol=1e-4, atol=1e-5)
    assert torch.equal(ensemble.members[2].body.head.weight, untouched)
    assert ensemble.votes(x).sum(1).eq(3).all()


def test_fixed_features_are_computed_per_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs may choose kernels by the size of a batch."""
    images, labels = toy(60)
    images = images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    features = Ensemble.features
    monkeypatch.setattr(Ensemble, "features", lambda self, x: features(self, x) + len(x) * 1e-3)
    shards = Shards(2, ("scatter-linear",), steps=1, batch=1, lr=1.0, ridge=0.05)

    def heads(rows: int) -> list[Tensor]:
        ensemble = Ensemble.build(("scatter-linear",), 2, (1, 16, 16), CLASSES, seeds=range(2))
        parts = [np.arange(30), np.arange(30, rows)]
        fit_ensemble(ensemble, images[:rows], labels[:rows], parts, shards, device=torch.device("cpu"), seed=0)
        return [member.body.head.weight for member in ensemble.members]

    (first, second), (same, other) = heads(60), heads(59)
    assert torch.equal(first, same) and not torch.equal(second, other)
