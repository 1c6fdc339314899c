"""Teachers over two processes: the same network as in one, with batch normalisation."""

from __future__ import annotations

import pytest
import torch
from shared_parts import CPU, Adversarial, Mixing, normalised, records, with_dropout, with_unused_weights
from torch import Tensor, nn

from bench.dp_training.clipped_sums import owned
from bench.errors import BenchError, RunFailed
from bench.nets import Classifier
from bench.ranks import Ranks
from bench.teachers import Recipe, accuracy, fit
from bench.teachers.shared_batches import share

SGD = {"epochs": 3, "batch": 16, "optimizer": "sgd", "lr": 0.05, "shift": 1, "flip": True}


def trained(recipe: Recipe, ranks: Ranks | None, model: Classifier | None = None, n: int = 35) -> dict[str, Tensor]:
    model = model or normalised()
    fit(model, *records(n), recipe, CPU, 3, ranks=ranks)
    assert not model.training
    return model.state_dict()


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", [Recipe(**SGD), Mixing(**SGD)], ids=["standard", "mixing"])
def test_fit_over_ranks_equals_one_process(ranks: Ranks, recipe: Recipe) -> None:
    """35 images in batches of 16: the last batch of an epoch, of three, is shared out unevenly."""
    single, shared, before = trained(recipe, None), trained(recipe, ranks), normalised().state_dict()
    assert list(shared) == list(single)
    for name, value in single.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-5)
    moved = [name for name, value in single.items() if not torch.allclose(value, before[name], atol=1e-3)]
    assert len(moved) > 10 and any("running_var" in name for name in moved)


@pytest.mark.thorough
def test_fit_over_ranks_with_adamw_and_bf16_learns(ranks: Ranks) -> None:
    model = normalised()
    fit(model, *records(180), Recipe(epochs=6, batch=32, lr=1e-2, shift=0), CPU, 0, autocast=True, ranks=ranks)
    assert accuracy(model, *records(180), CPU) > 0.9
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.thorough
def test_fit_over_ranks_with_dropout_learns(ranks: Ranks) -> None:
    model = with_dropout()
    fit(model, *records(180), Recipe(epochs=10, batch=32, lr=2e-2, shift=0), CPU, 0, ranks=ranks)
    assert accuracy(model, *records(180), CPU) > 0.8


@pytest.mark.thorough
def test_fit_over_ranks_keeps_frozen_weights(ranks: Ranks) -> None:
    found = []
    for by in (None, ranks):
        model = normalised()
        next(model.parameters()).requires_grad_(False)
        found.append(trained(Recipe(**SGD), by, model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(found[1]["body.0.weight"], normalised().state_dict()["body.0.weight"])


@pytest.mark.thorough
def test_fit_over_ranks_with_unused_weights_is_equal(ranks: Ranks) -> None:
    found = [trained(Recipe(**SGD), by, with_unused_weights()) for by in (None, ranks)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_fit_over_ranks_divergence_fails_one_run(ranks: Ranks) -> None:
    with pytest.raises(RunFailed):
        trained(Recipe(**SGD | {"lr": 1e30, "warmup": 0.0}), ranks)
    torch.testing.assert_close(trained(Recipe(**SGD), ranks), trained(Recipe(**SGD), None), rtol=1e-4, atol=1e-5)


def test_fit_over_ranks_adversarial_recipe_is_refused(ranks: Ranks) -> None:
    with pytest.raises(BenchError, match="--devices 2"):
        trained(Adversarial(**SGD), ranks)


def test_fit_over_ranks_unpicklable_network_is_refused(ranks: Ranks) -> None:
    model = normalised()
    model.body.append(nn.Identity())  # type: ignore[operator]
    model.body[-1].forward = lambda x: x  # type: ignore[index, union-attr]
    with pytest.raises(BenchError, match="--devices 2"):
        trained(Recipe(**SGD), ranks, model)


@pytest.mark.slow
def test_fit_over_three_ranks_with_small_batches_is_equal() -> None:
    recipe = Recipe(**SGD)
    with Ranks((CPU, CPU, CPU)) as three:
        shared = trained(recipe, three, n=34)  # the last batch is of two
    torch.testing.assert_close(shared, trained(recipe, None, n=34), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_share_covers_every_image_once(count: int) -> None:
    for images in range(20):
        shares = [share(images, rank, count) for rank in range(count)]
        assert [number for each in shares for number in each] == list(range(images))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        numbers = torch.arange(images)
        parts = [owned(numbers, rank, count) for rank in range(count)]
        assert torch.equal(torch.cat(parts).sort().values, numbers)
