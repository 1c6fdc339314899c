"""This project's own classifiers: contract, published sizes, activations, dropout, and wide residual networks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from bench import nets, plugins, testing
from bench.errors import BenchError
from bench.nets.classifiers.dp_sgd_nets import ReluCnn, ReluVgg, TanhCnn, TanhVgg, TemperedSigmoid
from bench.nets.classifiers.small_cnns import ConvNet, DataLensNet, DenseNet, EvaluatorNet, StridedNet
from bench.nets.classifiers.wide_resnets import GROUPS, StandardisedConv
from bench.nets.small_net import Dropout

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
    assert abs(float((dropped[1:] * dropped[:-1]).mean())) < 5 * p * (1 - p) / math.sqrt(n), "independent"


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


def test_small_images_are_refused() -> None:
    with pytest.raises(BenchError, match=r"wrn-16-4.*7x7"):
        nets.build("wrn-16-4", (1, 7, 7), 4)


def test_record_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    network, images = nets.build("wrn-10-1", (1, 16, 16), 4).double(), torch.rand(5, 1, 16, 16, dtype=torch.float64)
    together = network(images)
    images[1:] = 0.1
    torch.testing.assert_close(network(images)[0], together[0], rtol=0, atol=1e-12)


def test_only_tempered_sigmoids_bound_the_features() -> None:
    images = 100 * torch.randn(5, 1, 16, 16)
    torch.manual_seed(0)
    bounded, unbounded = (net((1, 16, 16), 4).features(images).detach().abs().max() for net in (TanhCnn, ReluCnn))
    assert bounded <= 1 < unbounded
