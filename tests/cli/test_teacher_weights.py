"""A user's own teacher on the command line: its file, and the normalisation in a file next to it."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from conftest import Refused

from bench.errors import BadOption, BadWeights, BenchError, NotFound
from bench.interface.teacher_weights import find_weights, parse_normalisation, read_normalisation
from bench.nets import build
from bench.report.command import _pair
from bench.teachers import load_user

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write(folder: Path, name: str, content: Any) -> Path:
    """Return empty weights with a file next to them."""
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "model.safetensors").touch()
    return folder / "model.safetensors"


def test_find_weights_takes_a_file_or_a_folder(tmp_path: Path) -> None:
    assert find_weights(None) is None
    assert find_weights(tmp_path / "teacher.pt") == tmp_path / "teacher.pt"
    with pytest.raises(NotFound, match=str(tmp_path)):
        find_weights(tmp_path)
    for name in ("pytorch_model.bin", "model.safetensors"):  # the later one is preferred
        (tmp_path / name).touch()
        assert find_weights(tmp_path) == tmp_path / name


def test_normalisation_without_weights_is_refused(refused: Refused) -> None:
    assert "--teacher-weights" in refused("run --method dpsd --teacher-normalise 0.1,0.3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.1307,0.3081", (0.1307, 0.3081)), ("0.485/0.456/0.406,0.229/0.224/0.225", (MEAN, STD))],
)
def test_parse_normalisation_reads_what_records_show(text: str, expected: Any) -> None:
    assert parse_normalisation("--n", text) == expected
    assert parse_normalisation("--n", _pair(expected)) == expected


@pytest.mark.parametrize("text", ["0.1", "a,b", "0.1,0.2,0.3", "0.1,0", "0.1,nan", "inf,1", "0.1/0.2,0.3"])
def test_parse_normalisation_refuses_other_texts(text: str) -> None:
    with pytest.raises(BadOption, match=f"--n {text}"):
        parse_normalisation("--n", text)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", {"architecture": "resnet18", "pretrained_cfg": {"mean": MEAN, "std": STD}}, (MEAN, STD)),
        ("config.json", {"architecture": "resnet18", "mean": MEAN, "std": STD}, (MEAN, STD)),
        ("config.json", {"pretrained_cfg": {"mean": [0.13], "std": [0.31]}}, (0.13, 0.31)),
        ("config.json", {"architectures": ["ViTForImageClassification"]}, None),
        ("preprocessor_config.json", {"image_mean": MEAN, "image_std": STD}, (MEAN, STD)),
        ("other.json", {"mean": MEAN, "std": STD}, None),
    ],
)
def test_read_normalisation_from_a_configuration(tmp_path: Path, name: str, content: Any, expected: Any) -> None:
    assert read_normalisation(write(tmp_path, name, content)) == expected


def test_read_normalisation_tries_every_configuration(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"architectures": ["ViTForImageClassification"]})
    weights = write(tmp_path, "preprocessor_config.json", {"image_mean": MEAN, "image_std": STD})
    assert read_normalisation(weights) == (MEAN, STD)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("{", BadWeights),
        ({"mean": [0.5, 0.5], "std": [0.1]}, BadOption),
        ({"mean": [], "std": []}, BadOption),
        ({"mean": [0.5], "std": [-1.0]}, BadOption),
        ({"mean": ["x"], "std": [1.0]}, BadOption),
    ],
)
def test_read_normalisation_refuses_a_damaged_file(tmp_path: Path, content: Any, kind: type[BenchError]) -> None:
    with pytest.raises(kind, match=r"config\.json"):
        read_normalisation(write(tmp_path, "config.json", content))


def test_network_saved_by_timm_has_the_same_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = timm.create_model("resnet10t", num_classes=4).eval()
    timm.models.save_for_hf(own, tmp_path, safe_serialization=True)
    weights = find_weights(tmp_path)
    assert weights is not None
    read = build("resnet10t", (3, 64, 64), 4).eval()
    load_user(weights, read, "resnet10t", read_normalisation(weights))
    images = torch.rand(5, 3, 64, 64)
    mean, std = (torch.tensor(own.pretrained_cfg[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(read(images), own((images - mean) / std))
