"""This project's own classifiers: their contract, the papers' sizes, and the activations of DP-SGD's networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bench import nets, plugins, testing
from bench.errors import BenchError
from bench.nets.classifiers.dp_sgd_nets import ReluCnn, ReluVgg, TanhCnn, TanhVgg, TemperedSigmoid
from bench.nets.classifiers.small_cnns import ConvNet, DataLensNet, DenseNet, EvaluatorNet, StridedNet

DP_SGD = {"tanh-cnn": TanhCnn, "relu-cnn": ReluCnn, "tanh-vgg": TanhVgg, "relu-vgg": ReluVgg}


def parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.thorough
@pytest.mark.parametrize("check", [name for name in dir(testing.NetworkContract) if name.startswith("test_")])
@pytest.mark.parametrize("name", nets.own_names())
def test_contract(name: str, check: str) -> None:
    getattr(type(f"Test_{name}", (testing.NetworkContract,), {"name": name})(), check)()


def test_names_include_those_of_older_releases() -> None:
    known = {"datalens", "evaluator-cnn", "dgd-cnn", "shard-cnn", "scatter-linear", "convnet"}
    assert known | set(DP_SGD) <= set(nets.own_names())


def test_file_with_a_table_defines_several_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bench" / "nets" / "classifiers"
    folder.mkdir(parents=True)
    classes = 'class A:\n    """First A."""\n\nclass B:\n    """First B.\n\n    More."""\n'
    (folder / "family.py").write_text('"""Two."""\nNETWORKS = {"net-a": "A", "net-b": "B"}\n' + classes)
    (folder / "one_net.py").write_text('"""One."""\n')
    monkeypatch.setattr(plugins, "ROOT", tmp_path)
    found = plugins.entries("network")
    modules = {name: entry.module.removeprefix("bench.nets.classifiers.") for name, entry in found.items()}
    assert modules == {"net-a": "family:A", "net-b": "family:B", "one-net": "one_net"}
    assert [entry.summary for entry in found.values()] == ["First A.", "First B.", "One."]


CONVOLUTIONS = 25 * 32 + 32 + 25 * 32 * 64 + 64
DENSE = 7 * 7 * 64 * 1024 + 1024 + 1024 * 10 + 10


@pytest.mark.parametrize(
    ("network", "shape", "classes", "count"),
    [
        (ConvNet, (1, 28, 28), 10, 317_706),
        (DataLensNet, (1, 28, 28), 10, 515_146),
        (DataLensNet, (3, 64, 64), 2, 3_464_322),
        (DenseNet, (1, 28, 28), 10, 29_034),
        (EvaluatorNet, (1, 28, 28), 10, CONVOLUTIONS + DENSE + 2 * (32 + 1024)),
        (StridedNet, (1, 28, 28), 10, 74_074),
        (TanhCnn, (1, 28, 28), 10, 26_010),  # Tramer and Boneh 2021
        (TanhCnn, (1, 16, 16), 10, 26_010),
        (TanhVgg, (3, 32, 32), 10, 550_570),  # Tramer and Boneh 2021
    ],
)
def test_networks_have_the_published_sizes(
    network: type[nn.Module], shape: tuple[int, int, int], classes: int, count: int
) -> None:
    assert parameters(network(shape, classes)) == count


def test_evaluator_stays_small_on_large_images() -> None:
    with torch.device("meta"):
        assert parameters(EvaluatorNet((3, 224, 224), 10)) < 20_000_000


def test_datalens_starts_as_in_keras() -> None:
    torch.manual_seed(0)
    dense = DataLensNet((1, 28, 28), 10).trunk[8]
    assert isinstance(dense, nn.Linear)
    limit = (6 / (7744 + 64)) ** 0.5
    assert limit * 0.99 < dense.weight.abs().max() <= limit
    assert dense.bias.abs().max() == 0


@pytest.mark.parametrize("name", ["datalens", "evaluator-cnn", *DP_SGD])
@pytest.mark.parametrize("shape", [(2, 12, 17), (2, 14, 60), (3, 24, 40), (1, 64, 64)], ids=str)
def test_networks_take_oblong_and_large_images(name: str, shape: tuple[int, int, int]) -> None:
    nets.check(name)
    model, images = nets.build(name, shape, 7).eval(), torch.rand(3, *shape)
    logits = model(images)
    assert logits.shape == (3, 7)
    torch.testing.assert_close(model.body.head(model.features(images)), logits)


@pytest.mark.parametrize(
    ("name", "shape", "limit"),
    [
        ("datalens", (1, 8, 16), "12x12"),
        ("convnet", (1, 7, 7), "8x8"),
        ("tanh-cnn", (1, 8, 8), "12 to 64"),
        ("relu-cnn", (1, 96, 96), "12 to 64"),
        ("tanh-vgg", (3, 4, 4), "8 to 64"),
        ("scatter-linear", (1, 72, 72), "8 to 64"),
        ("wavelet-linear", (1, 72, 72), "8 to 64"),
        ("wavelet-cnn", (2, 16, 16), "1 or 3"),
    ],
)
def test_build_refuses_other_image_shapes(name: str, shape: tuple[int, int, int], limit: str) -> None:
    with pytest.raises(BenchError) as caught:
        nets.build(name, shape, 4)
    assert caught.value.code == "incompatible" and limit in str(caught.value) and "\n" not in str(caught.value)


def test_tempered_sigmoid_is_by_default_tanh() -> None:
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    torch.testing.assert_close(TemperedSigmoid()(x), x.tanh())
    by_hand = 3 / (1 + torch.exp(-0.5 * x)) - 0.25
    torch.testing.assert_close(TemperedSigmoid(3.0, 0.5, 0.25)(x), by_hand)


@pytest.mark.parametrize("name", DP_SGD)
def test_dp_sgd_networks_do_not_mix_images(name: str) -> None:
    torch.manual_seed(0)
    net = DP_SGD[name]((1, 16, 16), 4).train()
    images = torch.rand(4, 1, 16, 16)
    one_by_one = torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(net(images), one_by_one, rtol=1e-4, atol=1e-6)
    assert not list(net.buffers()) and not any(isinstance(m, nn.Dropout) for m in net.modules())


@pytest.mark.parametrize("name", DP_SGD)
def test_dp_sgd_network_has_the_activation_of_its_name(name: str) -> None:
    kinds = {type(m) for m in DP_SGD[name]((1, 16, 16), 4).modules()} & {TemperedSigmoid, nn.ReLU}
    assert kinds == {TemperedSigmoid if name.startswith("tanh") else nn.ReLU}


def test_only_tempered_sigmoids_bound_the_features() -> None:
    images = 100 * torch.randn(5, 1, 16, 16)
    torch.manual_seed(0)
    bounded, unbounded = (net((1, 16, 16), 4).features(images).detach().abs().max() for net in (TanhCnn, ReluCnn))
    assert bounded <= 1 < unbounded
