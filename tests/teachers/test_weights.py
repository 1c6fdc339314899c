"""Saving and loading weights: our files, and a user's as training libraries write them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.errors import BadWeights, BenchError, NotFound
from bench.nets import Classifier, build
from bench.nets.recognise import likely_network
from bench.teachers import load, load_user, save

SHAPE = (3, 16, 16)
ARCH = "datalens"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
State = dict[str, Tensor]


def fresh(seed: int, arch: str = ARCH, classes: int = 3) -> Classifier:
    torch.manual_seed(seed)
    return build(arch, SHAPE, classes)


def bare(seed: int = 0, classes: int = 3) -> State:
    return fresh(seed, classes=classes).body.state_dict()


def per_channel(seed: int = 0) -> Classifier:
    made = fresh(seed)
    made.mean, made.std = (torch.tensor(value).view(1, 3, 1, 1) for value in (MEAN, STD))
    return made


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def below(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def loaded(content: Any, path: Path) -> Classifier:
    """A network of seed 1 after the file was read into it."""
    torch.save(content, path)
    target = fresh(1)
    load_user(path, target, ARCH, shape=SHAPE)
    return target


def refused(path: Path, *values: object, error: type[BenchError] = BadWeights, content: Any = None) -> None:
    """Write the content if there is any, and load the file: the error names it, and the network does not change."""
    if content is not None:
        torch.save(content, path)
    target = fresh(1)
    with pytest.raises(error) as caught:
        load_user(path, target, ARCH, shape=SHAPE)
    message = str(caught.value)
    assert caught.type is error and are_equal(target, fresh(1)) and "\n" not in message
    missing = [str(value) for value in (path, *values) if str(value) not in message]
    assert not missing, f"{missing} not in: {message}"


@pytest.mark.parametrize("made", [fresh, per_channel])
def test_save_and_load_keep_all_tensors(tmp_path: Path, made: Callable[[int], Classifier]) -> None:
    source, target = made(0), fresh(1)
    source(torch.rand(8, *SHAPE))  # moves the statistics of BatchNorm
    source.mean.add_(0.25)
    for name in ("a", "b"):
        save(tmp_path / name, source)
    load(tmp_path / "a", target)
    assert are_equal(source, target) and (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert not any(value.requires_grad for value in target.state_dict().values())
    load(tmp_path / "a", per_channel(2))


def test_save_and_load_keep_shared_and_strided_tensors(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.turned = nn.Parameter(torch.rand(4, 3).T)

    source, target = Tied(), Tied()
    save(tmp_path / "tied", source)
    load(tmp_path / "tied", target)
    assert are_equal(source, target) and target.first.weight is target.second.weight


def test_load_refuses_weights_of_other_shape(tmp_path: Path) -> None:
    save(tmp_path / "w", fresh(0, classes=4))
    with pytest.raises(BadWeights) as caught:
        load(tmp_path / "w", fresh(0))
    assert "body.head.weight is (4, " in str(caught.value)
    with pytest.raises(NotFound):
        load(tmp_path / "absent", fresh(0))


@pytest.mark.parametrize("container", [None, "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module._orig_mod.", "body.", "module.body."])
def test_load_user_reads_usual_forms(tmp_path: Path, prefix: str, container: str | None) -> None:
    state = below(prefix, bare())
    assert are_equal(loaded({container: state, "epoch": 3} if container else state, tmp_path / "user.pt"), fresh(0))


PREFIXES = ["module.", "_module.", "model.", "net.", "_orig_mod.", "ema.", "module._orig_mod.", "model.module.body."]


@pytest.mark.parametrize("prefix", [*PREFIXES, "backbone."])
def test_load_user_removes_and_reports_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str) -> None:
    assert are_equal(loaded(below(prefix, bare()), tmp_path / "user.pt"), fresh(0))
    assert f"'{prefix}'" in capsys.readouterr().err


EXTRA = {"criterion.weight": torch.ones(3), "accuracy.total": torch.tensor(7)}
CHECKPOINTS: dict[str, Callable[[State], dict[str, Any]]] = {
    "lightning": lambda state: {"state_dict": below("model.", state) | EXTRA, "epoch": 3, "callbacks": {}},
    "opacus": lambda state: {
        "module_state_dict": below("_module.", state),
        "privacy_accountant_state_dict": {"history": [(1.1, 0.01, 5)], "mechanism": "rdp"},
    },
    "averaged model": lambda state: below("module.", state) | {"n_averaged": torch.tensor(5)},
    "model": lambda state: {"model": state, "args": {"lr": 0.1}},
    "ema": lambda state: {"ema": state, "updates": 4},
    "ema in a module": lambda state: {"ema": {"module": state, "decay": 0.99}, "epoch": 1},
    "compiled layers": lambda state: {name.replace(".", "._orig_mod.", 1): value for name, value in state.items()},
    "with its average": lambda state: below("ema.", bare(2)) | below("model.", state),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_load_user_reads_checkpoint_of(tmp_path: Path, kind: str) -> None:
    assert are_equal(loaded(CHECKPOINTS[kind](bare()), tmp_path / "user.ckpt"), fresh(0))


def test_load_user_reports_unused_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = CHECKPOINTS["lightning"](bare()) | {"ema": bare(2)}
    assert are_equal(loaded(given, tmp_path / "user.ckpt"), fresh(0)), "the trained weights, not their average"
    said = capsys.readouterr().err
    assert all(value in said for value in ("criterion.weight", "accuracy.total", "ema", "'state_dict'"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_load_user_converts_and_reports_dtype(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: torch.dtype
) -> None:
    found = loaded({name: value.to(dtype) for name, value in bare().items()}, tmp_path / "user.pt").body.state_dict()
    for name, value in bare().items():
        assert torch.equal(found[name], value.to(dtype).float()) and found[name].dtype == value.dtype
    assert str(dtype).removeprefix("torch.") in capsys.readouterr().err


@pytest.mark.parametrize("prefix", ["", "module."])
def test_load_user_uses_normalisation_of_classifier(
    tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, source, target = tmp_path / "whole.safetensors", per_channel(), fresh(1)
    save_file(below(prefix, source.state_dict()), path)
    load_user(path, target, ARCH, shape=SHAPE)
    assert are_equal(source, target) and "--teacher-normalise" not in capsys.readouterr().err
    load_user(path, target, ARCH, normalise=(0.1307, 0.3081))
    assert (target.mean.item(), target.std.item()) == pytest.approx((0.1307, 0.3081))


def test_load_user_given_normalisation_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, again = (fresh(seed).eval() for seed in range(3))
    torch.save(source.body.state_dict(), tmp_path / "user.pt")
    load_user(tmp_path / "user.pt", target, ARCH, normalise=((0.1307,), (0.3081,)))
    assert capsys.readouterr().err == ""
    save(tmp_path / "ours", target)
    load(tmp_path / "ours", again)
    images = torch.rand(2, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(again(images), source.body((images - 0.1307) / 0.3081))


def test_load_user_reports_assumed_normalisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = loaded(bare(), tmp_path / "user.pt")
    assert (float(target.mean), float(target.std)) == (0.5, 0.5) and "--teacher-normalise" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [(0.5, 0.0), (0.5, -1.0), (float("nan"), 1.0), ((0.1, 0.2), 0.5)])
def test_load_user_refuses_impossible_normalisation(tmp_path: Path, wrong: tuple[float, float]) -> None:
    save(tmp_path / "w.safetensors", fresh(0))
    with pytest.raises(BadWeights) as caught:
        load_user(tmp_path / "w.safetensors", fresh(1), ARCH, normalise=wrong)
    assert str(wrong[1]) in str(caught.value)


@pytest.mark.parametrize("std", [torch.zeros(1, 3, 1, 1), torch.full((1, 2, 1, 1), 0.2)])
def test_load_user_refuses_impossible_scales_in_file(tmp_path: Path, std: Tensor) -> None:
    state = fresh(0).state_dict() | {"std": std, "mean": torch.zeros_like(std)}
    refused(tmp_path / "whole.pt", std.shape[1], content=state)


def test_load_user_lists_differences(tmp_path: Path) -> None:
    path, state, head = tmp_path / "user.pt", bare(), bare()["head.weight"].shape[1]
    shapes = (f"head.weight is (10, {head}) for (3, {head})", "head.bias is (10,) for (3,)")
    refused(path, f"'{ARCH}'", len(state), *shapes, content=bare(classes=10))
    state["extra"] = state.pop("head.bias")
    refused(path, "head.bias", "extra", content=state)
    unknown = [f"layer{i}.weight" for i in range(8)]
    first = ", ".join(list(bare())[:5])
    values = (", ".join(unknown[:5]) + " and 3 more", f"{first} and", 8 + len(bare()))
    refused(path, *values, content={name: torch.zeros(2) for name in unknown})


REFUSED: dict[str, Callable[[], tuple[object, tuple[str, ...]]]] = {
    "integers": lambda: (bare() | {"head.bias": torch.zeros(3, dtype=torch.int8)}, ("head.bias", "int8")),
    "nan": lambda: (below("module.", bare() | {"head.bias": torch.tensor([0, math.nan, 0])}), ("head.bias",)),
    "infinity": lambda: (bare() | {"head.bias": torch.tensor([0, math.inf, 0])}, ("head.bias",)),
    "beyond float32": lambda: (bare() | {"head.bias": torch.tensor([0, 1e300, 0]).double()}, ("head.bias",)),
    "two networks": lambda: (below("teacher.", bare(0)) | below("student.", bare(2)), ("'teacher.'", "'student.'")),
    "another network": lambda: (
        below("module.", fresh(0, "evaluator-cnn").body.state_dict()),
        ("--teacher evaluator-cnn",),
    ),
    "code": lambda: ({"state_dict": bare(), "config": Path("config")}, ("pathlib",)),
    "module": lambda: (fresh(0), ("torch.save(model.state_dict(), FILE)",)),
}
"""Contents of a file, and values in the message."""


@pytest.mark.parametrize("kind", REFUSED)
def test_load_user_refuses_and_names(tmp_path: Path, kind: str) -> None:
    content, values = REFUSED[kind]()
    refused(tmp_path / "user.pt", *values, content=content)


@pytest.mark.thorough
def test_likely_network_ignores_classes_and_colours() -> None:
    torch.manual_seed(0)
    state = build("resnet34", (1, 32, 32), 7).body.state_dict()
    assert likely_network(state, SHAPE) == "resnet34"
    assert likely_network({name: value for name, value in state.items() if "layer4" not in name}, SHAPE) != "resnet34"
    assert likely_network({"a.weight": torch.zeros(3)}, SHAPE) is None


@pytest.mark.parametrize("name", ["user.pt", "user.safetensors", "user.bin"])
@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 broken archive", b"\x80\x02." + bytes(64)])
def test_load_user_refuses_corrupt_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name)


@pytest.mark.parametrize("share", [0.3, 0.99])
@pytest.mark.parametrize("name", ["user.pt", "user.safetensors"])
def test_load_user_refuses_truncated_file(tmp_path: Path, name: str, share: float) -> None:
    path = tmp_path / name
    if name.endswith(".pt"):
        torch.save(bare(), path)
    else:
        save(path, fresh(0))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refused(path)


def test_load_user_refuses_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pt", tmp_path):
        refused(path, error=NotFound)


@pytest.mark.parametrize(
    "content", [{}, [torch.zeros(2)], {"epoch": 3}, {"a": torch.zeros(2), "b": "text"}, torch.zeros(2)]
)
def test_load_user_refuses_file_without_state_dict(tmp_path: Path, content: object) -> None:
    refused(tmp_path / "user.pt", "model_state_dict", content=content)


class Malicious:
    """Makes a folder when unpickled without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("legacy", [False, True])
def test_load_user_runs_no_code(tmp_path: Path, legacy: bool) -> None:
    trace, path = tmp_path / "trace", tmp_path / "user.pt"
    torch.save({"state_dict": Malicious(trace)}, path, _use_new_zipfile_serialization=not legacy)
    refused(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the trap works: reading the same file carelessly runs it"
