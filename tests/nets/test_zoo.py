from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from bench.errors import BenchError
from bench.nets import Classifier, SmallNet, build, check, zoo
from bench.nets.classifiers.small_cnns import DataLensNet, EvaluatorNet
from bench.nets.zoo import choose_patch_size

GREY16, GREY28, COLOUR32 = (1, 16, 16), (1, 28, 28), (3, 32, 32)
ARCHS = (
    "datalens",
    "evaluator-cnn",
    "resnet18",
    "vit_tiny_patch16_224",
    "mobilenetv3_small_100",
    "tv:shufflenet_v2_x0_5",
    "tv:googlenet",
    "tv:mobilenet_v3_small",
)


def parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def settle_batch_norm(model: nn.Module, images: torch.Tensor) -> None:
    """Give BatchNorm these images' statistics: with the initial ones deep networks answer the same to everything."""
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
        again = head_of(model)(features)
    assert logits.shape == (5, 7)
    assert features.ndim == 2
    assert len(features) == 5
    torch.testing.assert_close(again, logits, rtol=1e-4, atol=1e-5)
    assert logits.std(0).max() > 0, "the answer must depend on the image"


@pytest.mark.parametrize("arch", ["datalens", "resnet18", "tv:shufflenet_v2_x0_5"])
def test_normalisation_is_inside(arch: str) -> None:
    model = build(arch, GREY16, 3).eval()
    images = torch.rand(4, *GREY16)
    with torch.no_grad():
        torch.testing.assert_close(model(images), model.body(images * 2 - 1))
        assert not torch.allclose(model(images), model.body(images))


def test_normalisation_is_per_channel_where_given() -> None:
    seen = Classifier(nn.Flatten(), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))(torch.ones(1, 3, 1, 1))
    torch.testing.assert_close(seen, torch.tensor([[0.9, 0.4, 0.175]]))


def test_training_reaches_every_weight_and_the_image() -> None:
    torch.manual_seed(0)
    model = build("vit_tiny_patch16_224", GREY28, 10)
    images = torch.rand(8, *GREY28, requires_grad=True)
    model(images).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
    assert images.grad is not None
    assert (images.grad != 0).all(), "no pixel may be left out by the patches"


def test_the_papers_parameter_counts() -> None:
    assert parameters(DataLensNet((1, 28, 28), 10)) == 515_146
    assert parameters(DataLensNet((3, 64, 64), 2)) == 3_464_322
    convolutions = 25 * 32 + 32 + 25 * 32 * 64 + 64
    dense = 7 * 7 * 64 * 1024 + 1024 + 1024 * 10 + 10
    assert parameters(EvaluatorNet((1, 28, 28), 10)) == convolutions + dense + 2 * (32 + 1024)


def test_datalens_starts_as_in_keras() -> None:
    torch.manual_seed(0)
    dense = DataLensNet((1, 28, 28), 10).trunk[8]
    assert isinstance(dense, nn.Linear)
    limit = (6 / (7744 + 64)) ** 0.5
    assert limit * 0.99 < dense.weight.abs().max() <= limit
    assert dense.bias.abs().max() == 0


def test_uneven_and_smallest_shapes() -> None:
    assert DataLensNet((2, 12, 17), 4).eval()(torch.rand(3, 2, 12, 17)).shape == (3, 4)
    assert EvaluatorNet((2, 9, 66), 4).eval()(torch.rand(3, 2, 9, 66)).shape == (3, 4)
    with pytest.raises(BenchError, match=r"datalens takes images of at least 12x12, not 8x16"):
        build("datalens", (1, 8, 16), 10)


def test_evaluator_stays_small_on_large_images() -> None:
    with torch.device("meta"):
        assert parameters(EvaluatorNet((3, 224, 224), 10)) < 20_000_000


def test_names_read_from_timms_source_are_names_of_timm() -> None:
    written = zoo._written_in_timm()
    assert "resnet18" in written and written <= set(timm.list_models())


@pytest.mark.thorough
def test_the_global_seed_decides_the_weights() -> None:
    def weights(arch: str, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build(arch, GREY16, 10).parameters())

    for arch in ("datalens", "vit_tiny_patch16_224", "tv:shufflenet_v2_x0_5"):
        assert torch.equal(weights(arch, 1), weights(arch, 1))
        assert not torch.equal(weights(arch, 1), weights(arch, 2))


def test_trying_the_network_out_leaves_no_trace() -> None:
    fresh = build("resnet18", GREY16, 10)
    counted = [value for name, value in fresh.state_dict().items() if name.endswith("num_batches_tracked")]
    assert counted
    assert all(value == 0 for value in counted)


@pytest.mark.parametrize(
    ("arch", "shape"),
    [("tv:alexnet", GREY28), ("tv:vit_b_16", GREY28), ("convnext_atto", GREY16), ("gmlp_s16_224", GREY28)],
)
def test_too_small_images_are_refused_by_name_and_size(arch: str, shape: tuple[int, int, int]) -> None:
    with pytest.raises(BenchError) as caught:
        build(arch, shape, 10)
    message = str(caught.value)
    assert arch in message
    assert "x".join(map(str, shape)) in message
    assert "choose another one" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("arch", "close"),
    [("resnet81", "resnet18"), ("alexnet", "tv:alexnet"), ("tv:resnet81", "tv:resnet18"), ("datalense", "datalens")],
)
def test_unknown_names_get_a_few_close_ones(arch: str, close: str) -> None:
    with pytest.raises(BenchError, match=f"no network called '{arch}'") as caught:
        check(arch)
    suggestions = str(caught.value).split("Close: ")[1].split(".")[0].split(", ")
    assert close in suggestions
    assert len(suggestions) <= 5


@pytest.mark.parametrize(
    "arch",
    [
        "hf_hub:someone/model",
        "hf-hub:someone/model",
        "local-dir:/tmp",
        "/tmp/net",
        "../net",
        "resnet18.a1_in1k",
        "",
        "tv:",
    ],
)
def test_nothing_is_downloaded_or_opened(arch: str) -> None:
    for refuse in (check, lambda name: build(name, GREY16, 10)):
        with pytest.raises(BenchError, match="is not a network name"):
            refuse(arch)


def test_check_knows_what_build_knows() -> None:
    for arch in (*ARCHS, "swin_tiny_patch4_window7_224", "tv:alexnet", "tv:vgg16"):
        check(arch)
    with pytest.raises(BenchError):
        check("tv:fasterrcnn_resnet50_fpn")


@pytest.mark.parametrize("side", range(12, 64))
def test_patches_divide_the_image(side: int) -> None:
    patch = choose_patch_size(side, side)
    assert side % patch == 0
    assert side // patch >= 4


def test_patches_of_the_usual_sizes() -> None:
    assert [choose_patch_size(side, side) for side in (16, 28, 32)] == [2, 4, 4]
    assert choose_patch_size(16, 32) == 4
    assert build("vit_tiny_patch16_224", GREY28, 10).body.patch_embed.num_patches == 49
