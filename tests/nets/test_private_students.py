from __future__ import annotations

import pytest
import torch
from torch import nn

from bench import nets
from bench.errors import BenchError
from bench.nets.classifiers.dp_sgd_nets import ReluCnn, ReluVgg, TanhCnn, TanhVgg, TemperedSigmoid

NETWORKS = {"tanh-cnn": TanhCnn, "relu-cnn": ReluCnn, "tanh-vgg": TanhVgg, "relu-vgg": ReluVgg}


def parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_a_tempered_sigmoid_is_its_formula_and_tanh_by_default() -> None:
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    torch.testing.assert_close(TemperedSigmoid()(x), x.tanh())
    by_hand = 3 / (1 + torch.exp(-0.5 * x)) - 0.25
    torch.testing.assert_close(TemperedSigmoid(3.0, 0.5, 0.25)(x), by_hand)


def test_sizes_are_those_of_the_literature() -> None:
    """Tramer and Boneh 2021: 26,010 parameters for MNIST, 550,570 for CIFAR-10."""
    assert parameters(TanhCnn((1, 28, 28), 10)) == 26_010
    assert parameters(TanhCnn((1, 16, 16), 10)) == 26_010
    assert parameters(TanhVgg((3, 32, 32), 10)) == 550_570


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 32, 32), (3, 24, 40), (1, 64, 64)])
def test_answers_and_features_have_their_shapes(name: str, shape: tuple[int, int, int]) -> None:
    net = NETWORKS[name](shape, 7)
    images = torch.rand(3, *shape)
    assert net(images).shape == (3, 7)
    torch.testing.assert_close(net(images), net.head(net.features(images)))


@pytest.mark.parametrize("name", NETWORKS)
def test_images_of_a_batch_do_not_mix_and_nothing_is_remembered(name: str) -> None:
    torch.manual_seed(0)
    net = NETWORKS[name]((1, 16, 16), 4).train()
    images = torch.rand(4, 1, 16, 16)
    together = net(images)
    alone = torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
    assert not list(net.buffers()) and not any(isinstance(m, nn.Dropout) for m in net.modules())


@pytest.mark.parametrize(("name", "kind"), [("tanh", TemperedSigmoid), ("relu", nn.ReLU)])
def test_the_name_says_the_activation(name: str, kind: type[nn.Module]) -> None:
    other = nn.ReLU if kind is TemperedSigmoid else TemperedSigmoid
    for arch in (f"{name}-cnn", f"{name}-vgg"):
        net = NETWORKS[arch]((1, 16, 16), 4)
        assert any(isinstance(m, kind) for m in net.modules())
        assert not any(isinstance(m, other) for m in net.modules())


def test_features_are_bounded_under_tempered_sigmoids_alone() -> None:
    images = 100 * torch.randn(5, 1, 16, 16)
    torch.manual_seed(0)
    assert float(NETWORKS["tanh-cnn"]((1, 16, 16), 4).features(images).detach().abs().max()) <= 1
    assert float(NETWORKS["relu-cnn"]((1, 16, 16), 4).features(images).detach().abs().max()) > 1


@pytest.mark.parametrize(
    ("name", "shape"), [("tanh-cnn", (1, 8, 8)), ("relu-cnn", (1, 96, 96)), ("tanh-vgg", (3, 4, 4))]
)
def test_other_sizes_are_refused_in_one_line(name: str, shape: tuple[int, int, int]) -> None:
    with pytest.raises(BenchError, match=r"pixels.*use another one") as caught:
        NETWORKS[name](shape, 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_zoo_knows_them(name: str) -> None:
    nets.check(name)
    assert nets.build(name, (1, 16, 16), 4).features(torch.rand(2, 1, 16, 16)).ndim == 2
