"""Teachers over two processes: the same network as in one, with batch normalisation."""

from __future__ import annotations

import pytest
import torch
from shared_parts import CPU, Adversarial, Mixing, careless, normalised, records, with_unused_weights
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
def test_weights_and_running_statistics_are_those_of_one_process(ranks: Ranks, recipe: Recipe) -> None:
    """35 images in batches of 16: the last batch of an epoch, of three, is shared out unevenly."""
    alone, shared, before = trained(recipe, None), trained(recipe, ranks), normalised().state_dict()
    assert list(shared) == list(alone)
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-5)
    moved = [name for name, value in alone.items() if not torch.allclose(value, before[name], atol=1e-3)]
    assert len(moved) > 10 and any("running_var" in name for name in moved)


@pytest.mark.thorough
def test_adamw_and_bfloat16_learn_over_ranks(ranks: Ranks) -> None:
    model = normalised()
    fit(model, *records(180), Recipe(epochs=6, batch=32, lr=1e-2, shift=0), CPU, 0, autocast=True, ranks=ranks)
    assert accuracy(model, *records(180), CPU) > 0.9
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.thorough
def test_a_network_with_dropout_learns_over_ranks(ranks: Ranks) -> None:
    model = careless()
    fit(model, *records(180), Recipe(epochs=10, batch=32, lr=2e-2, shift=0), CPU, 0, ranks=ranks)
    assert accuracy(model, *records(180), CPU) > 0.8


@pytest.mark.thorough
def test_frozen_weights_stay_as_they_are(ranks: Ranks) -> None:
    found = []
    for by in (None, ranks):
        model = normalised()
        next(model.parameters()).requires_grad_(False)
        found.append(trained(Recipe(**SGD), by, model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(found[1]["body.0.weight"], normalised().state_dict()["body.0.weight"])


@pytest.mark.thorough
def test_a_network_with_weights_that_no_image_passes(ranks: Ranks) -> None:
    found = [trained(Recipe(**SGD), by, with_unused_weights()) for by in (None, ranks)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_divergence_is_a_failed_run_and_the_next_training_goes_well(ranks: Ranks) -> None:
    with pytest.raises(RunFailed, match="diverged at step"):
        trained(Recipe(**SGD | {"lr": 1e30, "warmup": 0.0}), ranks)
    torch.testing.assert_close(trained(Recipe(**SGD), ranks), trained(Recipe(**SGD), None), rtol=1e-4, atol=1e-5)


def test_a_recipe_that_wants_gradients_of_images_is_refused(ranks: Ranks) -> None:
    with pytest.raises(BenchError, match="--devices 2: the teacher's recipe needs gradients of images; use one"):
        trained(Adversarial(**SGD), ranks)


def test_a_network_that_cannot_be_sent_is_refused(ranks: Ranks) -> None:
    model = normalised()
    model.body.append(nn.Identity())  # type: ignore[operator]
    model.body[-1].forward = lambda x: x  # type: ignore[index, union-attr]
    with pytest.raises(BenchError, match=r"--devices 2: cannot be sent to other processes \(.*; use one"):
        trained(Recipe(**SGD), ranks, model)


@pytest.mark.slow
def test_three_ranks_and_batches_of_fewer_images_than_ranks() -> None:
    recipe = Recipe(**SGD)
    with Ranks((CPU, CPU, CPU)) as three:
        shared = trained(recipe, three, n=34)  # the last batch is of two
    torch.testing.assert_close(shared, trained(recipe, None, n=34), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_everything_is_in_one_share(count: int) -> None:
    for images in range(20):
        shares = [share(images, rank, count) for rank in range(count)]
        assert [number for each in shares for number in each] == list(range(images))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        numbers = torch.arange(images)
        parts = [owned(numbers, rank, count) for rank in range(count)]
        assert torch.equal(torch.cat(parts).sort().values, numbers)
