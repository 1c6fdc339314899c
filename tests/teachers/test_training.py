"""Training and evaluation of a classifier, and the augmentation of its images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench.assess.models import BATCH
from bench.data import QUERY_BATCH, query_batch
from bench.data.affine import augmented
from bench.errors import RunFailed
from bench.nets import Classifier, build
from bench.teachers import Recipe, accuracy, features, fit, predict
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


@pytest.mark.thorough
def test_fit_is_determined_by_seed() -> None:
    first = vector(trained("evaluator-cnn", 3))
    torch.rand(5)
    assert torch.equal(first, vector(trained("evaluator-cnn", 3)))
    assert not torch.equal(first, vector(trained("evaluator-cnn", 4)))


def test_fit_keeps_global_generator() -> None:
    model = build("datalens", (1, 12, 12), 3)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    fit(model, *stripes(64, 0), Recipe(epochs=1, batch=32), CPU, 0)
    assert torch.equal(torch.rand(3), expected)


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
