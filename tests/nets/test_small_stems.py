"""`small:NAME`: networks of the libraries with a stem for small images, and training steps of every kind of teacher
that the papers have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.errors import BenchError
from bench.nets import build, check
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit

PAPERS = (
    "tv:alexnet", "tv:vgg19_bn", "resnet34", "resnet50", "tv:wide_resnet50_2", "tv:densenet161", "tv:mobilenet_v2",
    "tv:shufflenet_v2_x1_0", "tv:googlenet",
)  # fmt: skip
SIZES = ((1, 28, 28), (3, 32, 32), (3, 64, 64))


def first_convolution(body: nn.Module) -> nn.Conv2d:
    return next(layer for layer in body.modules() if isinstance(layer, nn.Conv2d))


@pytest.mark.parametrize(
    "arch", ["resnet18", "tv:mobilenet_v2", "tv:shufflenet_v2_x0_5", "tv:alexnet", "tv:densenet121"]
)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)], ids=str)
def test_the_first_convolution_looks_at_every_pixel_closely(arch: str, shape: tuple[int, int, int]) -> None:
    small = first_convolution(build(f"small:{arch}", shape, 10).body)
    assert (small.kernel_size, small.stride, small.padding) == ((3, 3), (1, 1), (1, 1))
    assert small.in_channels == shape[0]


def test_nothing_but_the_stem_is_other_than_in_the_library() -> None:
    small, stock = (build(arch, (3, 32, 32), 10).state_dict() for arch in ("small:resnet18", "resnet18"))
    assert list(small) == list(stock)
    assert [name for name in stock if small[name].shape != stock[name].shape] == ["body.conv1.weight"]


def test_the_first_stage_sees_twice_as_much() -> None:
    seen = {}
    for arch in ("small:resnet18", "resnet18"):
        model = build(arch, (3, 32, 32), 10)
        model.body.layer1.register_forward_pre_hook(  # type: ignore[operator, union-attr]
            lambda _module, inputs, arch=arch: seen.update({arch: tuple(inputs[0].shape[2:])})
        )
        model(torch.rand(2, 3, 32, 32))
    assert seen == {"small:resnet18": (16, 16), "resnet18": (8, 8)}


@pytest.mark.thorough
def test_vgg_loses_a_pooling_only_where_nothing_would_be_left() -> None:
    pools = [
        sum(isinstance(layer, nn.MaxPool2d) for layer in build("small:tv:vgg11_bn", shape, 10).modules())
        for shape in SIZES
    ]
    assert pools == [4, 5, 5]


@pytest.mark.parametrize("arch", ["small:vit_tiny_patch16_224", "small:convnext_atto", "small:tv:vit_b_16"])
def test_networks_of_patches_have_no_stem(arch: str) -> None:
    with pytest.raises(BenchError, match="cuts the image into patches and has no stem"):
        build(arch, (3, 32, 32), 10)


@pytest.mark.parametrize("arch", ["small:datalens", "small:resnet81", "small:small:resnet18", "small:"])
def test_only_networks_of_the_libraries_can_be_small(arch: str) -> None:
    with pytest.raises(BenchError, match="network"):
        check(arch)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("arch", [*(f"small:{name}" for name in PAPERS), "vit_base_patch16_224"])
def test_training_steps_of_every_kind_of_teacher(arch: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = build(arch, shape, 10)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    images = torch.randint(0, 256, (4, *shape), dtype=torch.uint8)
    recipe = Recipe(epochs=2, batch=4, lr=1e-2, warmup=0.0)  # the first step of a ResNet moves no inner weight
    fit(model, images, torch.arange(4), recipe, torch.device("cpu"), seed=0)
    moved = [not torch.equal(before[name], weight) for name, weight in model.named_parameters()]
    assert sum(moved) > 0.9 * len(moved)
    assert model(torch.rand(2, *shape)).isfinite().all()
