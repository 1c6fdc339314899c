"""A user's weights as training libraries write them: containers, prefixes, number formats, and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.errors import BenchError
from bench.nets import Classifier, build
from bench.nets.recognise import likely_network
from bench.teachers import load, load_user, save

SHAPE = (3, 16, 16)
ARCH = "datalens"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
State = dict[str, Tensor]


def fresh(seed: int, arch: str = ARCH, shape: tuple[int, int, int] = SHAPE) -> Classifier:
    torch.manual_seed(seed)
    return build(arch, shape, 3)


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def below(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def loaded(content: Any, path: Path) -> tuple[Classifier, Classifier]:
    """The network of seed 0, and one of seed 1 after the file was read into it."""
    torch.save(content, path)
    target = fresh(1)
    load_user(path, target, ARCH, shape=SHAPE)
    return fresh(0), target


def test_load_keeps_a_mean_and_a_std_per_channel(tmp_path: Path) -> None:
    source, target = fresh(0), fresh(1)
    source.mean, source.std = (torch.tensor(value).view(1, 3, 1, 1) for value in (MEAN, STD))
    save(tmp_path / "model.safetensors", source)
    load(tmp_path / "model.safetensors", target)
    assert are_equal(source, target) and target.mean.shape == (1, 3, 1, 1)
    back = fresh(2)
    save(tmp_path / "scalar.safetensors", back)
    load(tmp_path / "scalar.safetensors", target)
    assert are_equal(back, target) and target.mean.shape == (1, 1, 1, 1)


def test_load_user_takes_a_classifier_with_channels(tmp_path: Path) -> None:
    source, target = fresh(0), fresh(1)
    source.mean, source.std = (torch.tensor(value).view(1, 3, 1, 1) for value in (MEAN, STD))
    save_file(below("module.", source.state_dict()), tmp_path / "whole.safetensors")
    load_user(tmp_path / "whole.safetensors", target, ARCH, shape=SHAPE)
    assert are_equal(source, target)


@pytest.mark.parametrize("std", [torch.zeros(1, 3, 1, 1), torch.full((1, 2, 1, 1), 0.2)])
def test_load_user_refuses_impossible_scales_in_a_file(tmp_path: Path, std: Tensor) -> None:
    state = fresh(0).state_dict() | {"std": std, "mean": torch.zeros_like(std)}
    torch.save(state, tmp_path / "whole.pt")
    with pytest.raises(BenchError, match="one number or one a channel"):
        load_user(tmp_path / "whole.pt", fresh(1), ARCH, shape=SHAPE)


WRAPPED = ["module.", "_module.", "model.", "net.", "_orig_mod.", "ema.", "module._orig_mod.", "model.module.body.",
           "backbone."]  # fmt: skip


@pytest.mark.parametrize("prefix", WRAPPED)
def test_load_user_removes_and_names_a_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str) -> None:
    source, target = loaded(below(prefix, fresh(0).body.state_dict()), tmp_path / "user.pt")
    assert are_equal(source, target)
    assert f"'{prefix}'" in capsys.readouterr().err


def lightning(state: State) -> dict[str, Any]:
    extra = {"criterion.weight": torch.ones(3), "accuracy.total": torch.tensor(7)}
    return {"state_dict": below("model.", state) | extra, "epoch": 3, "hyper_parameters": {"lr": 0.1}, "callbacks": {}}


def opacus(state: State) -> dict[str, Any]:
    accountant = {"history": [(1.1, 0.01, 5)], "mechanism": "rdp"}
    return {"module_state_dict": below("_module.", state), "privacy_accountant_state_dict": accountant}


def averaged(state: State) -> dict[str, Any]:
    return below("module.", state) | {"n_averaged": torch.tensor(5)}


CHECKPOINTS: dict[str, Callable[[State], dict[str, Any]]] = {
    "lightning": lightning,
    "opacus": opacus,
    "averaged model": averaged,
    "model": lambda state: {"model": state, "args": {"lr": 0.1}},
    "ema": lambda state: {"ema": state, "updates": 4},
    "ema in a module": lambda state: {"ema": {"module": state, "decay": 0.99}, "epoch": 1},
    "compiled layers": lambda state: {name.replace(".", "._orig_mod.", 1): value for name, value in state.items()},
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_load_user_reads_the_checkpoint_of(tmp_path: Path, kind: str) -> None:
    source, target = loaded(CHECKPOINTS[kind](fresh(0).body.state_dict()), tmp_path / "user.ckpt")
    assert are_equal(source, target)


def test_load_user_names_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = lightning(fresh(0).body.state_dict()) | {"ema": fresh(2).body.state_dict()}
    source, target = loaded(given, tmp_path / "user.ckpt")
    said = capsys.readouterr().err
    assert are_equal(source, target), "the weights that were trained, not their average"
    assert "criterion.weight" in said and "accuracy.total" in said and "not used: ema" in said


def test_load_user_prefers_trained_weights_to_their_average(tmp_path: Path) -> None:
    both = below("ema.", fresh(2).body.state_dict()) | below("model.", fresh(0).body.state_dict())
    source, target = loaded(both, tmp_path / "user.pt")
    assert are_equal(source, target)


def test_load_user_refuses_two_networks_in_one_file(tmp_path: Path) -> None:
    both = below("teacher.", fresh(0).body.state_dict()) | below("student.", fresh(2).body.state_dict())
    with pytest.raises(BenchError, match=r"'teacher\.'.*'student\.'|'student\.'.*'teacher\.'"):
        loaded(both, tmp_path / "user.pt")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_load_user_converts_numbers_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: torch.dtype
) -> None:
    state = {name: value.to(kind) for name, value in fresh(0).body.state_dict().items()}
    source, target = loaded(state, tmp_path / "user.pt")
    for name, value in source.body.state_dict().items():
        assert torch.equal(target.body.state_dict()[name], value.to(kind).float())
        assert target.body.state_dict()[name].dtype == value.dtype
    assert f"{str(kind).removeprefix('torch.')} were converted to float32" in capsys.readouterr().err


def test_load_user_refuses_integers_for_weights(tmp_path: Path) -> None:
    state = fresh(0).body.state_dict()
    state["head.bias"] = torch.zeros(3, dtype=torch.int8)
    with pytest.raises(BenchError, match=r"head\.bias holds int8"):
        loaded(state, tmp_path / "user.pt")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_load_user_names_a_tensor_that_is_not_finite(tmp_path: Path, value: float) -> None:
    state = {name: tensor.double() for name, tensor in fresh(0).body.state_dict().items()}
    state["head.bias"][1] = value
    with pytest.raises(BenchError, match=r"NaN or infinite values \(head\.bias\)"):
        loaded(below("module.", state), tmp_path / "user.pt")


def test_load_user_lists_five_names_of_each_kind(tmp_path: Path) -> None:
    torch.save({f"layer{i}.weight": torch.zeros(2) for i in range(8)}, tmp_path / "user.pt")
    with pytest.raises(BenchError) as caught:
        load_user(tmp_path / "user.pt", fresh(0), ARCH, shape=SHAPE)
    message = str(caught.value)
    assert "unexpected: layer0.weight, layer1.weight, layer2.weight, layer3.weight, layer4.weight and 3 more" in message
    first = list(fresh(0).body.state_dict())[:5]
    assert f"missing: {', '.join(first)} and" in message


def test_load_user_names_the_network_that_weights_are_of(tmp_path: Path) -> None:
    torch.save(below("module.", fresh(0, "evaluator-cnn").body.state_dict()), tmp_path / "user.pt")
    with pytest.raises(BenchError, match="give --teacher evaluator-cnn"):
        load_user(tmp_path / "user.pt", fresh(1), ARCH, shape=SHAPE)


@pytest.mark.thorough
def test_likely_network_ignores_classes_and_colours() -> None:
    torch.manual_seed(0)
    state = build("resnet34", (1, 32, 32), 7).body.state_dict()
    assert likely_network(state, SHAPE) == "resnet34"
    assert likely_network({name: value for name, value in state.items() if "layer4" not in name}, SHAPE) != "resnet34"
    assert likely_network({"a.weight": torch.zeros(3)}, SHAPE) is None


def test_load_user_names_the_code_that_a_pickle_needs(tmp_path: Path) -> None:
    torch.save({"state_dict": fresh(0).body.state_dict(), "config": Path("config")}, tmp_path / "user.pt")
    with pytest.raises(BenchError, match="objects of code, pathlib"):
        load_user(tmp_path / "user.pt", fresh(1), ARCH)
