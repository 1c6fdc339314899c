"""dlib's descriptor: refusals, and descriptors if the extra is installed; the identified person by hand."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bench.errors import BenchError
from bench.metrics import face_descriptor
from bench.metrics.identity import class_means, identify

FAR = 0.2
"""A distance that rounding does not reach."""


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = (face_descriptor.LANDMARKS, face_descriptor.NETWORK)
    monkeypatch.setattr(face_descriptor, "_paths", lambda: (tmp_path / names[0], tmp_path / names[1]))
    return tmp_path


def test_absent_names_missing_files_and_the_remedy(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face_descriptor, "find_spec", lambda name: None)
    reason = face_descriptor.absent()
    names = ("dlib", *face_descriptor.MODELS, "pip install 'dp-distill-bench[faces]'")
    assert all(name in reason for name in names) and "\n" not in reason
    face_descriptor.check()
    with pytest.raises(BenchError) as caught:
        face_descriptor.describe(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    assert caught.value.code == "not-found" and reason in str(caught.value)


def test_model_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code imports pkg_resources, which is not everywhere."""
    models = tmp_path / "face_recognition_models" / "models"
    models.mkdir(parents=True)
    (models.parent / "__init__.py").write_text("raise ImportError('no pkg_resources')\n")
    for name in face_descriptor.MODELS:
        (models / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert [path.parent for path in face_descriptor._paths()] == [models, models]
    assert "file" not in face_descriptor.absent()


def test_check_refuses_other_model_files(empty: Path) -> None:
    (empty / face_descriptor.NETWORK).write_bytes(b"another network")
    with pytest.raises(BenchError) as caught:
        face_descriptor.check()
    message = str(caught.value)
    assert str(empty / face_descriptor.NETWORK) in message and "55533b28a95800a5" in message and "\n" not in message


def test_identity_depends_on_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_describe_refuses_other_types_and_shapes(images: torch.Tensor, error: type[Exception]) -> None:
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
def test_descriptors_depend_on_one_image_only() -> None:
    images, done = torch.cat([drawn(0, 8, -8), drawn(0).flip(2)]), list[int]()
    together = face_descriptor.describe(images, done.append)
    assert together.shape == (4, face_descriptor.LENGTH) and together.dtype == torch.float32 and sum(done) == 4
    one_by_one = torch.cat([face_descriptor.describe(image[None]) for image in images.flip(0)]).flip(0)
    assert torch.equal(together, one_by_one)
    assert torch.equal(face_descriptor.describe(images[:, :1]), together)
    assert len(face_descriptor.describe(images[:0])) == 0


@needs_dlib
def test_descriptor_distance_grows_with_the_difference() -> None:
    images = torch.cat([drawn(0, 2), drawn(0).flip(2)])
    same, small, turned = face_descriptor.describe(images)
    assert (same - small).norm() < (same - turned).norm()
    larger = images[:1].repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert (face_descriptor.describe(larger)[0] - same).norm() < FAR


@needs_dlib
def test_installed_models_are_the_known_ones() -> None:
    face_descriptor.check()
    assert face_descriptor.absent() == ""


MEANS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])


def test_class_means_by_hand() -> None:
    descriptors = torch.tensor([[0.0, 1.0], [4.0, 0.0], [2.0, 3.0], [4.0, 2.0]])
    found = class_means(descriptors, torch.tensor([0, 1, 0, 1]), 2)
    assert found.tolist() == [[1.0, 2.0], [4.0, 1.0]]


def test_identify_by_hand() -> None:
    """Distances to the three means: 0.3, 0.7, 2.02 | 0.6, 0.4, 2.09 | 1.8, 2.06, 0.2 | 3, sqrt(10), 1 | 0, 1, 2."""
    descriptors = torch.tensor([[0.3, 0.0], [0.6, 0.0], [0.0, 1.8], [0.0, 3.0], [0.0, 0.0]])
    found = identify(descriptors, torch.tensor([0, 0, 2, 2, 1]), MEANS, 0.6)
    assert found.confusion.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 2]]
    assert (found.right, found.images) == (3, 5)
    assert found.near == 2, "0.3 and 0.2; 0.6 itself is not nearer than 0.6"
    assert found.distance == pytest.approx(0.6), "of 0.3, 0.6, 0.2, 1 and 1"


def test_identify_median_and_threshold_by_hand() -> None:
    found = identify(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0]), MEANS, 0.6)
    assert found.distance == pytest.approx(3.5)
    descriptors = torch.tensor([[0.5, 0.0], [0.25, 0.0]])
    assert identify(descriptors, torch.tensor([0, 0]), MEANS, 0.5).near == 1


def test_identify_depends_on_single_images_only() -> None:
    rng = torch.Generator().manual_seed(0)
    descriptors, targets = torch.randn(3000, 2, generator=rng), torch.randint(3, (3000,), generator=rng)
    order = torch.randperm(3000, generator=rng)
    one, other = (identify(descriptors, targets, MEANS, 0.6), identify(descriptors[order], targets[order], MEANS, 0.6))
    assert torch.equal(one.confusion, other.confusion) and (one.near, one.distance) == (other.near, other.distance)
    singly = [identify(d[None], t[None], MEANS, 0.6) for d, t in zip(descriptors[:50], targets[:50], strict=True)]
    whole = identify(descriptors[:50], targets[:50], MEANS, 0.6)
    assert whole.right == sum(each.right for each in singly) and whole.near == sum(each.near for each in singly)


@pytest.mark.parametrize(
    ("descriptors", "targets", "value"),
    [
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), r"\(0, 2\)"),
        (torch.zeros(3, 2), torch.tensor([0, 1]), r"\(3, 2\)"),
        (torch.zeros(1, 2), torch.tensor([3]), "0 to 2"),
        (torch.full((1, 2), math.nan), torch.tensor([0]), "NaN"),
    ],
)
def test_identify_refuses_bad_input(descriptors: torch.Tensor, targets: torch.Tensor, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        identify(descriptors, targets, MEANS, 0.6)


def test_class_means_need_an_image_of_everyone() -> None:
    for labels in ([0, 0], [0, 2]):
        with pytest.raises(ValueError, match="2"):
            class_means(torch.zeros(2, 2), torch.tensor(labels), 2)
