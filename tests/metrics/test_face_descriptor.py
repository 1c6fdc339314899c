"""dlib's descriptor: its refusals, and, if the extra is installed, its descriptors of drawn images."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bench.errors import BenchError
from bench.metrics import face_descriptor

FAR = 0.2
"""A distance that rounding does not reach."""


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the models are looked for."""
    names = (face_descriptor.LANDMARKS, face_descriptor.NETWORK)
    monkeypatch.setattr(face_descriptor, "_paths", lambda: (tmp_path / names[0], tmp_path / names[1]))
    return tmp_path


def test_what_is_missing_is_named_with_what_to_type(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face_descriptor, "find_spec", lambda name: None)
    said = face_descriptor.absent()
    assert said.startswith("the package dlib and the file shape_predictor_5_face_landmarks.dat and the file dlib_face")
    assert said.endswith("not found: pip install 'dp-distill-bench[faces]'") and "\n" not in said
    face_descriptor.check()
    with pytest.raises(BenchError, match="the judge of faces is not there: the package dlib"):
        face_descriptor.describe(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


def test_the_package_of_the_models_is_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code imports pkg_resources, which is not everywhere."""
    models = tmp_path / "face_recognition_models" / "models"
    models.mkdir(parents=True)
    (models.parent / "__init__.py").write_text("raise ImportError('no pkg_resources')\n")
    for name in face_descriptor.MODELS:
        (models / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert [path.parent for path in face_descriptor._paths()] == [models, models]
    assert "file" not in face_descriptor.absent()


def test_another_model_is_refused_in_a_line(empty: Path) -> None:
    (empty / face_descriptor.NETWORK).write_bytes(b"another network")
    with pytest.raises(BenchError) as caught:
        face_descriptor.check()
    said = str(caught.value)
    assert f"{empty / face_descriptor.NETWORK} is not the model that judges faces" in said and "\n" not in said
    assert "expected 55533b28a95800a5" in said and "pip install" in said


def test_the_identity_changes_with_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    before = face_descriptor.identity()
    monkeypatch.setitem(face_descriptor.MODELS, face_descriptor.NETWORK, "0" * 64)
    assert face_descriptor.identity() != before


@pytest.mark.parametrize(
    ("images", "error"),
    [
        (torch.zeros(1, 3, 8, 8), TypeError),
        (torch.zeros(1, 2, 8, 8, dtype=torch.uint8), ValueError),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), ValueError),
    ],
)
def test_other_images_are_refused(images: torch.Tensor, error: type[Exception]) -> None:
    with pytest.raises(error):
        face_descriptor.describe(images)


needs_dlib = pytest.mark.skipif(
    find_spec("dlib") is None or bool(face_descriptor.absent()),
    reason="the extra [faces] is not installed: dlib-bin and face-recognition-models",
)


def drawn(*turns: float) -> torch.Tensor:
    """Return (n, 3, 64, 64): a bright oval with two dark spots and a bar, the lower part shifted by given pixels."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    found = []
    for turn in turns:
        face = 190 * (((x - 32) / 22) ** 2 + ((y - 34) / 28) ** 2 < 1).float() + 30
        for across in (23, 41):
            face -= 150 * (((x - across) / 4) ** 2 + ((y - 27) / 3) ** 2 < 1).float()
        face -= 120 * (((x - 32 - turn) / 9) ** 2 + ((y - 48) / 3) ** 2 < 1).float()
        found.append(face.clamp(0, 255))
    return torch.stack(found)[:, None].expand(-1, 3, -1, -1).to(torch.uint8)


@pytest.mark.thorough
@needs_dlib
def test_a_descriptor_is_of_its_image_alone_and_grey_is_colour_of_three_equal_channels() -> None:
    images, done = torch.cat([drawn(0, 8, -8), drawn(0).flip(2)]), list[int]()
    together = face_descriptor.describe(images, done.append)
    assert together.shape == (4, face_descriptor.LENGTH) and together.dtype == torch.float32 and sum(done) == 4
    alone = torch.cat([face_descriptor.describe(image[None]) for image in images.flip(0)]).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(face_descriptor.describe(images[:, :1]), together)
    assert len(face_descriptor.describe(images[:0])) == 0


@needs_dlib
def test_what_differs_more_is_farther_and_the_scale_of_the_image_plays_little_part() -> None:
    images = torch.cat([drawn(0, 2), drawn(0).flip(2)])
    same, small, turned = face_descriptor.describe(images)
    assert (same - small).norm() < (same - turned).norm()
    larger = images[:1].repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert (face_descriptor.describe(larger)[0] - same).norm() < FAR


@needs_dlib
def test_the_installed_models_are_the_known_ones() -> None:
    face_descriptor.check()
    assert face_descriptor.absent() == ""
