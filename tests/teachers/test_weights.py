from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.errors import BenchError
from bench.nets import Classifier, build
from bench.teachers import load, load_user, save

SHAPE = (1, 16, 16)
ARCH = "evaluator-cnn"


def fresh(seed: int, classes: int = 3) -> Classifier:
    torch.manual_seed(seed)
    return build(ARCH, SHAPE, classes)


def same(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def test_round_trip_of_parameters_buffers_and_normalisation(tmp_path: Path) -> None:
    source, target = fresh(0), fresh(1)
    source(torch.rand(8, *SHAPE))
    source.mean.fill_(0.25)
    assert not same(source, target)
    save(tmp_path / "w.safetensors", source)
    load(tmp_path / "w.safetensors", target)
    assert same(source, target)
    assert not any(value.requires_grad for value in target.state_dict().values())


def test_shared_and_strided_tensors(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.turned = nn.Parameter(torch.rand(4, 3).T)

    source, target = Tied(), Tied()
    save(tmp_path / "tied", source)
    load(tmp_path / "tied", target)
    assert same(source, target)
    assert target.first.weight is target.second.weight


def test_same_weights_same_bytes(tmp_path: Path) -> None:
    save(tmp_path / "a", fresh(0))
    save(tmp_path / "b", fresh(0))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_own_files_must_fit(tmp_path: Path) -> None:
    save(tmp_path / "w", fresh(0, classes=4))
    with pytest.raises(
        BenchError, match=r"2 names or shapes differ \(.*body\.head\.weight is \(4, 1024\) for \(3, 1024\)"
    ):
        load(tmp_path / "w", fresh(0))
    with pytest.raises(BenchError, match="no weights file"):
        load(tmp_path / "absent", fresh(0))


@pytest.mark.parametrize("container", [None, "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "body.", "module.body."])
def test_every_usual_form_of_the_bare_network(tmp_path: Path, prefix: str, container: str | None) -> None:
    source, target = fresh(0), fresh(1)
    state = OrderedDict(prefixed(source.body.state_dict(), prefix))
    torch.save({container: state, "epoch": 3} if container else state, tmp_path / "user.pt")
    load_user(tmp_path / "user.pt", target, ARCH)
    assert same(source, target)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_wrapped_network_brings_its_normalisation(tmp_path: Path, prefix: str) -> None:
    source, target = fresh(0), fresh(1)
    source.std.fill_(0.3)
    save_file(prefixed(source.state_dict(), prefix), tmp_path / "user.safetensors")
    load_user(tmp_path / "user.safetensors", target, ARCH)
    assert same(source, target)
    load_user(tmp_path / "user.safetensors", target, ARCH, normalise=(0.1307, 0.3081))
    assert (target.mean.item(), target.std.item()) == pytest.approx((0.1307, 0.3081))


def test_a_given_normalisation_is_applied_and_saved(tmp_path: Path) -> None:
    source, target, again = fresh(0).eval(), fresh(1).eval(), fresh(2).eval()
    torch.save(source.body.state_dict(), tmp_path / "user.pt")
    load_user(tmp_path / "user.pt", target, ARCH, normalise=((0.1307,), (0.3081,)))
    save(tmp_path / "ours", target)
    load(tmp_path / "ours", again)
    images = torch.rand(2, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(again(images), source.body((images - 0.1307) / 0.3081))


def test_a_normalisation_that_nothing_says_is_assumed_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(fresh(0).body.state_dict(), tmp_path / "bare.pt")
    save(tmp_path / "whole.safetensors", fresh(0))
    load_user(tmp_path / "whole.safetensors", fresh(1), ARCH)
    load_user(tmp_path / "bare.pt", fresh(1), ARCH, normalise=(0.1307, 0.3081))
    assert capsys.readouterr().err == ""
    load_user(tmp_path / "bare.pt", fresh(1), ARCH)
    said = capsys.readouterr().err
    assert "bare.pt: no mean and std are known of it, 0.5 and 0.5 are taken; --teacher-normalise" in said


@pytest.mark.parametrize("wrong", [(0.5, 0.0), (0.5, -1.0), (float("nan"), 1.0), ((0.1, 0.2), 0.5)])
def test_impossible_normalisations(tmp_path: Path, wrong: tuple[float, float]) -> None:
    save(tmp_path / "w.safetensors", fresh(0))
    with pytest.raises(BenchError, match="a normalisation is a mean and a positive std"):
        load_user(tmp_path / "w.safetensors", fresh(1), ARCH, normalise=wrong)


def refusal(path: Path) -> str:
    target = fresh(1)
    before = fresh(1)
    with pytest.raises(BenchError) as caught:
        load_user(path, target, ARCH)
    assert same(target, before), "a refused file must not leave half of itself behind"
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_other_shapes_missing_and_unexpected_names(tmp_path: Path) -> None:
    path = tmp_path / "user.pt"
    torch.save(fresh(0, classes=10).body.state_dict(), path)
    message = refusal(path)
    assert f"18 tensors in '{path}' do not fit the network's 18, 2 names or shapes differ" in message
    assert "head.weight is (10, 1024) for (3, 1024), head.bias is (10,) for (3,))" in message
    assert f"'{ARCH}'" in message
    state = fresh(0).body.state_dict()
    state["extra"] = state.pop("head.bias")
    torch.save(state, path)
    assert "(missing: head.bias; unexpected: extra)" in refusal(path)
    torch.save({f"layer{i}": torch.zeros(2) for i in range(5)}, path)
    assert f"5 tensors in '{path}' do not fit the network's 18, 23 names or shapes differ" in refusal(path)


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    state = fresh(0).body.state_dict()
    state["head.bias"][1] = float("nan")
    torch.save(state, tmp_path / "user.pt")
    assert "NaN or infinite values (head.bias)" in refusal(tmp_path / "user.pt")


@pytest.mark.parametrize("name", ["user.pt", "user.safetensors", "user.bin"])
@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 broken archive", b"\x80\x02." + bytes(64)])
def test_corrupt_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert "cannot read weights" in refusal(tmp_path / name)


@pytest.mark.parametrize("cut", [0.3, 0.99])
@pytest.mark.parametrize("name", ["user.pt", "user.safetensors"])
def test_truncated_files(tmp_path: Path, name: str, cut: float) -> None:
    path = tmp_path / name
    if name.endswith(".pt"):
        torch.save(fresh(0).body.state_dict(), path)
    else:
        save(path, fresh(0))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])
    assert "cannot read weights" in refusal(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "no weights file" in refusal(tmp_path / "absent.pt")
    assert "no weights file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "content", [{}, [torch.zeros(2)], {"epoch": 3}, {"a": torch.zeros(2), "b": "text"}, torch.zeros(2)]
)
def test_torch_files_without_a_state_dict(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "user.pt")
    assert "holds no state dict" in refusal(tmp_path / "user.pt")


class Malicious:
    """Makes a folder when unpickled without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_runs_code_is_not_run(tmp_path: Path, legacy: bool) -> None:
    trace, path = tmp_path / "trace", tmp_path / "user.pt"
    torch.save({"state_dict": Malicious(trace)}, path, _use_new_zipfile_serialization=not legacy)
    assert "cannot read weights" in refusal(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the trap works: reading the same file carelessly springs it"


def test_a_whole_pickled_module_is_refused(tmp_path: Path) -> None:
    torch.save(fresh(0), tmp_path / "user.pt")
    assert "torch.save(model.state_dict(), FILE)" in refusal(tmp_path / "user.pt")
