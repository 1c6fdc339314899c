"""Masks equal torch's bit for bit, where torch draws them without MKL, and are Bernoulli everywhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from bench import nets
from bench.nets.small_net import Dropout

LAYOUTS = {"usual": torch.contiguous_format, "channels-last": torch.channels_last}


def run(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, gradient and the generator's state afterwards, with seed 3."""
    inputs = x.clone(memory_format=torch.preserve_format).requires_grad_()
    torch.manual_seed(3)
    y = layer.train()(inputs)
    y.sum().backward()
    assert inputs.grad is not None
    return y.detach(), inputs.grad, torch.get_rng_state()


@pytest.mark.usefixtures("usual_draws")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("p", [0.0, 0.2, 0.25, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masks_equal_torchs_bit_for_bit(dtype: torch.dtype, p: float, layout: str) -> None:
    x = torch.randn(7, 5, 6, 9, dtype=dtype).to(memory_format=LAYOUTS[layout])
    for theirs, ours in zip(run(nn.Dropout(p), x), run(Dropout(p), x), strict=True):
        assert torch.equal(theirs, ours)


@pytest.mark.parametrize("p", [0.2, 0.25, 0.3])
def test_share_p_is_dropped_and_the_rest_scaled(p: float) -> None:
    """400,000 numbers: five standard deviations."""
    n = 400_000
    y, gradient, _ = run(Dropout(p), torch.ones(n))
    assert torch.equal(y, gradient) and set(y.unique().tolist()) == {0.0, float(torch.tensor(1.0) / (1 - p))}
    assert abs(float((y == 0).double().mean()) - p) < 5 * math.sqrt(p * (1 - p) / n)
    dropped = (y == 0).double() - p
    assert abs(float((dropped[1:] * dropped[:-1]).mean())) < 5 * p * (1 - p) / math.sqrt(n), (
        "neighbours are independent"
    )


def test_masks_depend_only_on_the_seed() -> None:
    """The last 53 of 64 bits are compared with (1 - p) 2^53: the first numbers of seed 1."""
    torch.manual_seed(1)
    bits = [int(each) % 2**53 for each in torch.empty(12, dtype=torch.int64).random_()]
    torch.manual_seed(1)
    assert Dropout(0.25).train()(torch.ones(12)).bool().tolist() == [each < 0.75 * 2**53 for each in bits]


def test_evaluation_mode_drops_nothing() -> None:
    x = torch.randn(4, 5)
    before = torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x and torch.equal(torch.get_rng_state(), before)


def test_vmapped_members_have_different_masks() -> None:
    first, second = vmap(Dropout(0.5).train(), randomness="different")(torch.ones(2, 256))
    assert not torch.equal(first, second) and 64 < int((first == 0).sum()) < 192


@pytest.mark.parametrize("name", ["datalens", "evaluator-cnn", "face-net"])
def test_own_networks_use_own_dropout(name: str) -> None:
    found = [layer for layer in nets.build(name, (3, 32, 32), 4).modules() if isinstance(layer, nn.Dropout)]
    assert found and all(isinstance(layer, Dropout) for layer in found)
