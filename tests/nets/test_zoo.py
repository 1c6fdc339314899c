"""Classifiers by name: own networks, timm's, torchvision's and a user's, and their stems for small images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from bench.errors import BenchError
from bench.nets import Classifier, SmallNet, build, check, identify, zoo
from bench.nets.users_network import is_users_network
from bench.nets.zoo import choose_patch_size
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit

GREY16, GREY28, COLOUR32 = (1, 16, 16), (1, 28, 28), (3, 32, 32)
SIZES = (GREY28, COLOUR32, (3, 64, 64))
ARCHS = (
    "datalens", "evaluator-cnn", "resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_100", "tv:shufflenet_v2_x0_5",
    "tv:googlenet", "tv:mobilenet_v3_small",
)  # fmt: skip
TEACHERS_OF_PAPERS = (
    "tv:alexnet", "tv:vgg19_bn", "resnet34", "resnet50", "tv:wide_resnet50_2", "tv:densenet161", "tv:mobilenet_v2",
    "tv:shufflenet_v2_x1_0", "tv:googlenet",
)  # fmt: skip


def settle_batch_norm(model: nn.Module, images: torch.Tensor) -> None:
    """Give BatchNorm these images' statistics: with the initial ones deep networks have the same output for all."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0
    with torch.no_grad():
        model(images)
    model.eval()


def head_of(model: Classifier) -> nn.Module:
    body = model.body
    if isinstance(body, SmallNet):
        return body.head
    if hasattr(body, "get_classifier"):
        return body.get_classifier()
    return body.fc if hasattr(body, "fc") else body.classifier[-1]


@pytest.mark.parametrize("shape", [GREY16, GREY28, COLOUR32], ids=str)
@pytest.mark.parametrize("arch", ARCHS)
def test_logits_are_the_linear_head_of_the_features(arch: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = build(arch, shape, 7)
    assert model.training
    images = torch.rand(5, *shape)
    settle_batch_norm(model, images)
    with torch.no_grad():
        logits, features = model(images), model.features(images)
        from_features = head_of(model)(features)
    assert logits.shape == (5, 7) and features.ndim == 2 and len(features) == 5
    torch.testing.assert_close(from_features, logits, rtol=1e-4, atol=1e-5)
    assert logits.std(0).max() > 0, "logits must depend on the image"


@pytest.mark.parametrize("arch", ["datalens", "resnet18", "tv:shufflenet_v2_x0_5"])
def test_classifier_normalises_its_input(arch: str) -> None:
    model = build(arch, GREY16, 3).eval()
    images = torch.rand(4, *GREY16)
    with torch.no_grad():
        torch.testing.assert_close(model(images), model.body(images * 2 - 1))
        assert not torch.allclose(model(images), model.body(images))


def test_classifier_normalises_per_channel() -> None:
    output = Classifier(nn.Flatten(), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))(torch.ones(1, 3, 1, 1))
    torch.testing.assert_close(output, torch.tensor([[0.9, 0.4, 0.175]]))


def test_gradients_reach_every_weight_and_pixel() -> None:
    torch.manual_seed(0)
    model = build("vit_tiny_patch16_224", GREY28, 10)
    images = torch.rand(8, *GREY28, requires_grad=True)
    model(images).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
    assert images.grad is not None and (images.grad != 0).all(), "patches must cover every pixel"


def test_names_read_from_timms_source_are_names_of_timm() -> None:
    names = zoo._names_in_timm_source()
    assert "resnet18" in names and names <= set(timm.list_models())


@pytest.mark.thorough
def test_global_seed_decides_the_weights() -> None:
    def weights(arch: str, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build(arch, GREY16, 10).parameters())

    for arch in ("datalens", "vit_tiny_patch16_224", "tv:shufflenet_v2_x0_5"):
        assert torch.equal(weights(arch, 1), weights(arch, 1))
        assert not torch.equal(weights(arch, 1), weights(arch, 2))


def test_build_leaves_batch_norm_statistics_unchanged() -> None:
    model = build("resnet18", GREY16, 10)
    counted = [value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")]
    assert counted and all(value == 0 for value in counted)


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        ("tv:alexnet", GREY28),
        ("tv:vit_b_16", GREY28),
        ("convnext_atto", GREY16),
        ("gmlp_s16_224", GREY28),
        # networks of patches have no stem
        ("small:vit_tiny_patch16_224", COLOUR32),
        ("small:convnext_atto", COLOUR32),
        ("small:tv:vit_b_16", COLOUR32),
    ],
)
def test_build_refuses_networks_that_do_not_fit(arch: str, shape: tuple[int, int, int]) -> None:
    with pytest.raises(BenchError) as caught:
        build(arch, shape, 10)
    message = str(caught.value)
    assert caught.value.code == "incompatible" and "\n" not in message
    assert arch in message and "x".join(map(str, shape)) in message


@pytest.mark.parametrize(
    ("arch", "close"),
    [("resnet81", "resnet18"), ("alexnet", "tv:alexnet"), ("tv:resnet81", "tv:resnet18"), ("datalense", "datalens")],
)
def test_check_suggests_up_to_five_close_names(arch: str, close: str) -> None:
    with pytest.raises(BenchError) as caught:
        check(arch)
    assert caught.value.code == "unknown-name"
    suggestions = str(caught.value).split("Close: ")[1].split(".")[0].split(", ")
    assert close in suggestions and len(suggestions) <= 5


@pytest.mark.parametrize(
    "arch",
    ["hf_hub:someone/model", "hf-hub:someone/model", "local-dir:/tmp", "/tmp/net", "../net", "resnet18.a1_in1k", "",
     "tv:", "small:datalens", "small:resnet81", "small:small:resnet18", "small:", "tv:fasterrcnn_resnet50_fpn"],
)  # fmt: skip
def test_other_names_are_unknown_and_open_nothing(arch: str) -> None:
    for refuse in (check, lambda name: build(name, GREY16, 10)):
        with pytest.raises(BenchError) as caught:
            refuse(arch)
        assert caught.value.code == "unknown-name"


@pytest.mark.parametrize("arch", [*ARCHS, "swin_tiny_patch4_window7_224", "tv:alexnet", "tv:vgg16"])
def test_check_knows_names_of_all_libraries(arch: str) -> None:
    check(arch)


def test_patches_divide_the_image() -> None:
    assert all(side % choose_patch_size(side, side) == 0 for side in range(12, 64))
    assert all(side // choose_patch_size(side, side) >= 4 for side in range(12, 64))
    assert [choose_patch_size(side, side) for side in (16, 28, 32)] == [2, 4, 4]
    assert choose_patch_size(16, 32) == 4
    assert build("vit_tiny_patch16_224", GREY28, 10).body.patch_embed.num_patches == 49


@pytest.mark.parametrize(
    "arch", ["resnet18", "tv:mobilenet_v2", "tv:shufflenet_v2_x0_5", "tv:alexnet", "tv:densenet121"]
)
@pytest.mark.parametrize("shape", [GREY28, COLOUR32], ids=str)
def test_small_stem_is_a_3x3_convolution_of_stride_1(arch: str, shape: tuple[int, int, int]) -> None:
    stem = next(layer for layer in build(f"small:{arch}", shape, 10).modules() if isinstance(layer, nn.Conv2d))
    assert (stem.kernel_size, stem.stride, stem.padding) == ((3, 3), (1, 1), (1, 1))
    assert stem.in_channels == shape[0]


def test_small_stem_changes_only_the_first_weights() -> None:
    small, stock = (build(arch, COLOUR32, 10).state_dict() for arch in ("small:resnet18", "resnet18"))
    assert list(small) == list(stock)
    assert [name for name in stock if small[name].shape != stock[name].shape] == ["body.conv1.weight"]


def test_small_stem_doubles_the_first_stage() -> None:
    sizes = {}
    for arch in ("small:resnet18", "resnet18"):
        model = build(arch, COLOUR32, 10)
        model.body.layer1.register_forward_pre_hook(  # type: ignore[operator, union-attr]
            lambda _module, inputs, arch=arch: sizes.update({arch: tuple(inputs[0].shape[2:])})
        )
        model(torch.rand(2, *COLOUR32))
    assert sizes == {"small:resnet18": (16, 16), "resnet18": (8, 8)}


@pytest.mark.thorough
def test_small_vgg_loses_a_pooling_on_28_pixels() -> None:
    pools = [
        sum(isinstance(layer, nn.MaxPool2d) for layer in build("small:tv:vgg11_bn", shape, 10).modules())
        for shape in SIZES
    ]
    assert pools == [4, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("arch", [*(f"small:{name}" for name in TEACHERS_OF_PAPERS), "vit_base_patch16_224"])
def test_teachers_of_the_papers_train(arch: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = build(arch, shape, 10)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    images = torch.randint(0, 256, (4, *shape), dtype=torch.uint8)
    recipe = Recipe(epochs=2, batch=4, lr=1e-2, warmup=0.0)  # the first step of a ResNet moves no inner weight
    fit(model, images, torch.arange(4), recipe, torch.device("cpu"), seed=0)
    moved = [not torch.equal(before[name], weight) for name, weight in model.named_parameters()]
    assert sum(moved) > 0.9 * len(moved)
    assert model(torch.rand(2, *shape)).isfinite().all()


SHAPE, CLASSES = (3, 8, 8), 4
Write = Callable[[str, str], str]

NETWORK = """
import torch
from torch import nn

def network(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, 16), nn.ReLU(), nn.Linear(16, classes))

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))

def library_names(num_classes=1000, in_chans=1, depth=2):
    return network(num_classes, in_chans)

class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(192, classes)

    def forward(self, x):
        return self.layer(x.flatten(1))

one = plain()
number = 3

def same(): return one
def fixed():
    torch.manual_seed(0)
    return plain()
def text(): return "resnet"
def broken(): return 1 / 0
def wrong_classes(classes): return network(classes + 1, 3)
def pairs(classes):
    class Pair(Network):
        def forward(self, x):
            return super().forward(x), x
    return Pair(classes)
def grey(classes): return network(classes, 1)
def layerless():
    class Layerless(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(192, 4))

        def forward(self, x):
            return x.flatten(1) @ self.weight
    return Layerless()
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Write]:
    """Return a function that writes a module below the current folder and returns its unique import name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    package = f"mine_{abs(hash(request.node.nodeid))}"

    def written(name: str, source: str) -> str:
        path = tmp_path / package / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return f"{package}.{name}"

    yield written
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_is_users_network_excludes_library_names() -> None:
    assert is_users_network("package.module:function") and is_users_network("module:function#0123456789abcdef")
    assert not any(map(is_users_network, ("resnet18", "tv:resnet18", "small:resnet18", "small:tv:alexnet", "a:b:c")))
    assert identify("resnet18") == "resnet18"


@pytest.mark.parametrize("function", ["network", "plain", "library_names", "Network"])
def test_build_calls_the_users_function(write: Write, function: str) -> None:
    name = identify(f"{write('nets', NETWORK)}:{function}")
    torch.manual_seed(3)
    model = build(name, SHAPE, CLASSES)
    torch.manual_seed(3)
    again, other = build(name, SHAPE, CLASSES), build(name, SHAPE, CLASSES)
    first, second, third = (next(made.parameters()) for made in (model, again, other))
    assert torch.equal(first, second) and not torch.equal(first, third)
    assert model(torch.rand(5, *SHAPE)).shape == (5, CLASSES)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("same", "same"),
        ("fixed", "fixed"),
        ("text", "str"),
        ("broken", "ZeroDivisionError"),
        ("wrong_classes", "(2, 5)"),
        ("pairs", "tuple"),
        ("grey", "RuntimeError"),
        ("layerless", "layerless"),
    ],
)
def test_build_refuses_broken_functions(write: Write, function: str, value: str) -> None:
    name = identify(f"{write('nets', NETWORK)}:{function}")
    with pytest.raises(BenchError) as caught:
        build(name, SHAPE, CLASSES)
    message = str(caught.value)
    assert caught.value.code == "bad-plugin" and "\n" not in message and function in message and value in message


def test_identify_refuses_modules_without_the_function(write: Write) -> None:
    good, raising, partial = write("nets", NETWORK), write("raising", "1 / 0"), write("partial", "import no_such_thing")
    for name, code, value in (
        (f"{good}:netwrok", "unknown-name", "'network'"),
        (f"{good}:number", "unknown-name", "'number'"),
        ("no_such_package.nets:network", "not-found", "'no_such_package'"),
        (f"{good}_too:network", "not-found", f"'{good}_too'"),
        (f"{raising}:network", "bad-plugin", "ZeroDivisionError"),
        (f"{partial}:network", "bad-plugin", "no_such_thing"),
        ("math:sqrt", "bad-plugin", "math"),
    ):
        with pytest.raises(BenchError) as caught:
            identify(name)
        assert caught.value.code == code and value in str(caught.value) and "\n" not in str(caught.value)


def test_hash_covers_imported_local_modules(write: Write) -> None:
    write("parts", "WIDTH = 16")
    name = write("nets", f"from .parts import WIDTH\n{NETWORK}")
    before = identify(f"{name}:network")
    assert identify(f"{name}:network") == before == identify(before)
    write("unused", "WIDTH = 16")
    assert identify(f"{name}:network") == before
    write("parts", "WIDTH = 17")
    after = identify(f"{name}:network")
    assert after != before
    with pytest.raises(BenchError) as caught:
        identify(before)
    assert caught.value.code == "bad-plugin" and after.partition("#")[2] in str(caught.value)


def test_names_of_other_users_records_run_no_code(write: Write, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    module = write("trap", f"open({str(trace)!r}, 'w')\n{NETWORK}")
    for use in (check, lambda name: build(name, SHAPE, CLASSES)):
        with pytest.raises(BenchError) as caught:
            use(f"{module}:network#0123456789abcdef")
        assert caught.value.code == "unknown-name"
    assert not trace.exists() and module not in sys.modules
    identify(f"{module}:network")
    assert trace.exists(), "the trap works"
