"""A user's own teacher on the command line: its file, and the normalisation in a file next to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from bench.errors import BenchError
from bench.interface.teacher_weights import normalisation, weights_file
from bench.nets import build
from bench.report.command import _pair
from bench.teachers import load_user

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write(folder: Path, name: str, content: Any) -> Path:
    """Empty weights with that file next to them."""
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "model.safetensors").touch()
    return folder / "model.safetensors"


def test_a_folder_of_a_hubs_cache_stands_for_its_weights(tmp_path: Path) -> None:
    assert weights_file(None) is None
    assert weights_file(tmp_path / "teacher.pt") == tmp_path / "teacher.pt"
    with pytest.raises(BenchError, match=r"no model\.safetensors or pytorch_model\.bin in this folder"):
        weights_file(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    assert weights_file(tmp_path) == tmp_path / "pytorch_model.bin"
    (tmp_path / "model.safetensors").touch()
    assert weights_file(tmp_path) == tmp_path / "model.safetensors"


def test_without_weights_there_is_nothing_to_normalise() -> None:
    assert normalisation(None, None) is None
    with pytest.raises(BenchError, match="given without --teacher-weights"):
        normalisation("0.1,0.3", None)


def test_one_number_or_one_a_channel(tmp_path: Path) -> None:
    weights = tmp_path / "teacher.pt"
    assert normalisation(None, weights) is None
    assert normalisation("0.1307,0.3081", weights) == (0.1307, 0.3081)
    several = normalisation("0.485/0.456/0.406,0.229/0.224/0.225", weights)
    assert several == (MEAN, STD)
    for found in ((0.1307, 0.3081), several):
        assert normalisation(_pair(found), weights) == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0.1", "expected MEAN,STD"),
        ("a,b", "expected MEAN,STD"),
        ("0.1,0.2,0.3", "expected MEAN,STD"),
        ("0.1,0", "a std above 0"),
        ("0.1,nan", "a std above 0"),
        ("inf,1", "a finite mean"),
        ("0.1/0.2,0.3", "mean of 2 channels and std of 1"),
    ],
)
def test_a_text_that_is_no_normalisation_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BenchError, match=told):
        normalisation(text, tmp_path / "teacher.pt")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"architecture": "resnet18", "pretrained_cfg": {"mean": MEAN, "std": STD}}),
        ("config.json", {"architecture": "resnet18", "mean": MEAN, "std": STD}),
        ("preprocessor_config.json", {"image_mean": MEAN, "image_std": STD}),
    ],
)
def test_what_stands_beside_the_weights_is_taken_unless_another_is_given(
    tmp_path: Path, name: str, content: dict[str, Any]
) -> None:
    weights = write(tmp_path, name, content)
    assert normalisation(None, weights) == (MEAN, STD)
    assert normalisation("0.5,0.25", weights) == (0.5, 0.25)


def test_a_grey_network_has_one_number_and_a_config_may_say_nothing(tmp_path: Path) -> None:
    assert normalisation(None, write(tmp_path, "config.json", {"pretrained_cfg": {"mean": [0.13], "std": [0.31]}})) == (
        0.13,
        0.31,
    )
    assert normalisation(None, write(tmp_path, "config.json", {"architectures": ["ViTForImageClassification"]})) is None
    write(tmp_path, "preprocessor_config.json", {"image_mean": MEAN, "image_std": STD})
    assert normalisation(None, tmp_path / "model.safetensors") == (MEAN, STD)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is no JSON text"),
        ({"mean": [0.5, 0.5], "std": [0.1]}, "mean of 2 channels and std of 1"),
        ({"mean": [0.5], "std": [-1.0]}, "a std above 0"),
        ({"mean": ["x"], "std": [1.0]}, "a finite mean"),
    ],
)
def test_a_broken_config_is_one_line(tmp_path: Path, content: Any, told: str) -> None:
    with pytest.raises(BenchError, match=told):
        normalisation(None, write(tmp_path, "config.json", content))


def test_a_network_that_timm_saved_for_a_hub_answers_as_it_did(tmp_path: Path) -> None:
    """The files are written by timm itself."""
    torch.manual_seed(0)
    own = timm.create_model("resnet10t", num_classes=4).eval()
    timm.models.save_for_hf(own, tmp_path, safe_serialization=True)
    weights = weights_file(tmp_path)
    assert weights is not None
    read = build("resnet10t", (3, 64, 64), 4).eval()
    load_user(weights, read, "resnet10t", normalisation(None, weights))
    images = torch.rand(5, 3, 64, 64)
    mean, std = (torch.tensor(own.pretrained_cfg[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(read(images), own((images - mean) / std))
