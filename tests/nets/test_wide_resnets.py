"""Wide residual networks: sizes, weight standardisation by its formula, and independence of the records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench import nets
from bench.errors import BenchError
from bench.nets.classifiers.wide_resnets import GROUPS, StandardisedConv


def size_of(depth: int, width: int, channels: int, classes: int) -> int:
    """Number of weights, added up layer by layer: filters with gain and bias, and normalisations before them."""

    def conv(inputs: int, outputs: int, kernel: int) -> int:
        return outputs * (inputs * kernel**2 + 2)

    total, inputs = conv(channels, 16, 3), 16
    for stage in range(3):
        outputs = 16 * 2**stage * width
        total += 2 * inputs + conv(inputs, outputs, 1)
        for _ in range((depth - 4) // 6):
            total += 2 * inputs + conv(inputs, outputs, 3) + 2 * outputs + conv(outputs, outputs, 3)
            inputs = outputs
    return total + 2 * inputs + (inputs + 1) * classes


@pytest.mark.parametrize(
    ("name", "depth", "width"), [("wrn-16-4", 16, 4), ("wrn-40-4", 40, 4), ("wrn-16-1", 16, 1), ("wrn-10-1", 10, 1)]
)
def test_network_has_the_layers_of_its_name(name: str, depth: int, width: int) -> None:
    network = nets.build(name, (3, 32, 32), 10)
    assert sum(p.numel() for p in network.parameters()) == size_of(depth, width, 3, 10)
    norms = [layer for layer in network.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == depth and all(layer.num_groups == GROUPS for layer in norms)
    assert not list(network.body.buffers()), "no statistics of data"


def test_sizes_of_the_published_networks() -> None:
    assert size_of(16, 4, 3, 10) == 2_753_818 and size_of(40, 4, 3, 10) == 8_961_306


def test_filters_are_standardised_by_the_formula() -> None:
    torch.manual_seed(0)
    layer = StandardisedConv(3, 4, 3, stride=2).double()
    layer.weight.data.mul_(7).add_(2)
    layer.gain.data.uniform_(0.5, 2)
    layer.bias.data.uniform_(-1, 1)  # type: ignore[union-attr]
    filters = np.empty((4, 3, 3, 3))
    for o, raw in enumerate(layer.weight.detach().numpy()):
        filters[o] = float(layer.gain.detach()[o]) * (raw - raw.mean()) / np.sqrt(raw.size * raw.var())
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    expected = F.conv2d(images, torch.from_numpy(filters), layer.bias, stride=2, padding=1)
    torch.testing.assert_close(layer(images), expected)
    assert np.square(filters).sum((1, 2, 3)) == pytest.approx(layer.gain.detach().numpy() ** 2)


def test_constant_filter_is_zero_and_has_a_finite_gradient() -> None:
    layer = StandardisedConv(1, 2, 3)
    layer.weight.data.fill_(0.3)
    layer(torch.rand(1, 1, 5, 5)).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()
    assert layer.standardised().abs().max() < 1e-4


def test_record_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    network, images = nets.build("wrn-10-1", (1, 16, 16), 4).double(), torch.rand(5, 1, 16, 16, dtype=torch.float64)
    together = network(images)
    images[1:] = 0.1
    torch.testing.assert_close(network(images)[0], together[0], rtol=0, atol=1e-12)


def test_small_images_are_refused() -> None:
    with pytest.raises(BenchError, match=r"wrn-16-4.*7x7"):
        nets.build("wrn-16-4", (1, 7, 7), 4)
