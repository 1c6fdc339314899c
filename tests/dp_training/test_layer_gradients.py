"""Per-sample gradients by rules for each kind of layer, against one backward pass per record."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.dp_training.layer_rows import with_channels_last
from bench.dp_training.per_sample_gradients import LayerGradients
from bench.errors import BenchError
from bench.nets import Classifier
from bench.nets.classifiers.wide_resnets import ResidualBlock, StandardisedConv

SHAPE, CLASSES, RECORDS = (2, 12, 10), 3, 5


class Tokens(nn.Module):
    """A linear layer and a layer normalisation of rows of pixels; the linear layer is called twice."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(10, 10, bias=bias), nn.LayerNorm(10, bias=bias)
        self.head = nn.Linear(10, CLASSES, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.norm(self.embed(images.flatten(1, 2)))
        return self.head(self.embed(rows.tanh()).mean(1))


class Tied(nn.Module):
    """Two layers that share one weight, and a parameter on which the loss does not depend."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(240, 240), nn.Linear(240, 240)
        self.second.weight = self.first.weight
        self.unused, self.head = nn.Linear(2, 2), nn.Linear(240, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images.flatten(1)).tanh()))


class Outside(nn.Module):
    """Uses the weight of a layer also without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(240, 240), nn.Linear(240, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.linear(self.inner(images.flatten(1)), self.inner.weight))


class Overwritten(nn.Module):
    """Changes the input of a layer after its call."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(240, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1).clone()
        found = self.head(flat)
        flat.mul_(2)
        return found


def convolutions(bias: bool) -> nn.Module:
    """Strides, paddings, dilations and groups; activations that write into the outputs of layers."""
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 5), (2, 1), padding=(1, 2), bias=bias),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, dilation=(1, 2), groups=2, bias=bias),
        nn.GroupNorm(3, 6),
        nn.LeakyReLU(0.1, inplace=True),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


def residual() -> nn.Module:
    blocks = StandardisedConv(2, 16, 3), ResidualBlock(16, 16, 1, False), ResidualBlock(16, 32, 2, True)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))


def small_filters() -> nn.Module:
    """A standardised convolution one of whose filters is below the limit of its spread."""
    body = nn.Sequential(StandardisedConv(2, 4, 3), nn.Flatten(), nn.Linear(480, CLASSES))
    with torch.no_grad():
        body[0].weight[1].mul_(1e-4)
    return body


NETWORKS = {
    "convolutions": lambda: convolutions(True),
    "convolutions without bias": lambda: convolutions(False),
    "residual blocks": residual,
    "small filters": small_filters,
    "tokens": lambda: Tokens(True),
    "tokens without bias": lambda: Tokens(False),
    "tied": Tied,
}


def classifier(body: nn.Module) -> Classifier:
    model = Classifier(body, 0.5, 0.5)
    model(torch.zeros(2, *SHAPE))  # lazy layers get their shapes
    return model


def drawn(count: int = RECORDS) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(count, *SHAPE, generator=rng), torch.arange(count) % CLASSES


def own_gradient(model: Classifier, image: Tensor, label: Tensor) -> list[Tensor]:
    """Return one record's gradient of every parameter, by autograd."""
    loss = F.cross_entropy(model(image[None]), label[None])
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_equal_the_gradient_of_each_record(name: str) -> None:
    torch.manual_seed(0)
    model, (images, labels) = classifier(NETWORKS[name]()), drawn()
    expected = [own_gradient(model, image, label) for image, label in zip(images, labels, strict=True)]
    gradients = LayerGradients(model, 1)
    for _ in range(2):  # the first call also checks the rows
        found = gradients(images, labels)
        assert list(found) == [name for name, _ in model.named_parameters()]
        for rows, each in zip(found.values(), zip(*expected, strict=True), strict=True):
            torch.testing.assert_close(rows, torch.stack(each), rtol=1e-4, atol=1e-5)
    gradients.close()
    assert not any(layer._forward_hooks for layer in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyBatchNorm1d(), nn.LazyLinear(CLASSES)), "BatchNorm1d at body.1"),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten(), nn.LazyLinear(CLASSES)), "Conv2d"),
        (Outside, r"inner\.weight is also used"),
        (Overwritten, "input of a Linear is changed"),
    ],
)
def test_unsupported_network_is_refused(body: Any, message: str) -> None:
    torch.manual_seed(0)
    model = classifier(body())
    with pytest.raises(BenchError, match=message):
        LayerGradients(model, 1)(*drawn())


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_keeps_values_and_lays_out_channels_innermost(channels: int) -> None:
    images = torch.rand(4, channels, 5, 6)
    found = with_channels_last(images)
    assert torch.equal(found, images)
    assert found.stride() == (30 * channels, 1, 6 * channels, channels)
    assert nn.Conv2d(channels, 8, 3)(found).is_contiguous(memory_format=torch.channels_last)
