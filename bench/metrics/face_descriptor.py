"""Who is on an image: dlib's 128 numbers of a face, by a network that this project did not train.

King, "High Quality Face Recognition with Deep Metric Learning" (dlib.net, 2017): a residual network of 29 layers, whose
Euclidean distance is below 0.6 for most pairs of images of one person and above it for most others. It is an optional
extra, `[faces]`: dlib, and the files of two models, which are those of `MODELS` or refused.

A judge alone. It was trained on public photographs of well-known people and may know those of a public data set: an
attack or a teacher that asked it would bring knowledge that it was not given. tests/test_layers.py holds who may
import it.

Importing this module imports no library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError, NotFound

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LENGTH = 128
NEAR = 0.6
"""The distance below which dlib's author takes two images for one person."""
EXTRA = "faces"
LANDMARKS, NETWORK = "shape_predictor_5_face_landmarks.dat", "dlib_face_recognition_resnet_model_v1.dat"
MODELS = {
    LANDMARKS: "c4b1e9804792707d3a405c2c16a80a20269e6675021f64a41d30fffafbc41888",
    NETWORK: "55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30",
}
"""File to its SHA-256."""
VERSION = 1
"""Of what is computed with the models; with another one descriptors are made again."""
SIDE, CHIP = 256, 150
"""Pixels of a side: of the image on which landmarks are looked for, and of the aligned face."""
FACE = (0.17, 0.20, 0.83, 0.86)
"""Left, top, right and bottom of the face, in sides of the image. Fixed: a detector misses many reconstructions."""
_MARGIN = 0.25
_AT_ONCE = 16


def identity() -> dict[str, Any]:
    """What a descriptor depends on besides the image, as plain data for the hash of a step."""
    return {"descriptor": "dlib", "version": VERSION, "models": dict(MODELS)}


def absent() -> str:
    """Why nobody can be judged on this machine, in a sentence; "" where everything is there. Imports nothing."""
    lacking = [] if find_spec("dlib") else ["the package dlib"]
    lacking += [f"the file {path.name}" for path in _paths() if not path.is_file()]
    if not lacking:
        return ""
    return f"{' and '.join(lacking)} not found: pip install 'dp-distill-bench[{EXTRA}]'"


def check() -> None:
    """Refuse models that are not the known ones; nothing is said of models that are not there.

    Raises:
        BenchError: the file that is another one.
    """
    for path in _paths():
        if path.is_file():
            _check_file(path, MODELS[path.name])


def describe(images: Tensor, advance: Callable[[int], object] = lambda _images: None) -> Tensor:
    """The descriptor of every image, whichever are beside it.

    Args:
        images: (n, c, h, w) uint8, c of 1 or 3, faces that fill the image as data sets by person cut them (`FACE`).
        advance: called with the number of images done.

    Returns:
        (n, 128) float32 on the CPU.

    Raises:
        BenchError: the extra is not there, or a model is not the known one.
        TypeError, ValueError: images of another type or shape.
    """
    import numpy as np
    import torch

    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, not {images.dtype}")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images of shape {tuple(images.shape)}: expected (n, 1 or 3, h, w)")
    if reason := absent():
        raise NotFound(f"the judge of faces is not there: {reason}")
    align, network = _models()
    found = [torch.empty(0, LENGTH)]
    for part in images.cpu().split(_AT_ONCE):
        chips = [align(picture) for picture in _enlarged(part)]
        found.append(torch.from_numpy(np.array(network.compute_face_descriptor(chips), dtype=np.float32)))
        advance(len(part))
    return torch.cat(found)


def _enlarged(images: Tensor) -> np.ndarray:
    """(n, SIDE, SIDE, 3) uint8 of (n, c, h, w) uint8, by bicubic interpolation."""
    from torch.nn.functional import interpolate

    found = interpolate(images.float(), size=(SIDE, SIDE), mode="bicubic").clamp(0, 255).round().byte()
    pictures: np.ndarray = found.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()
    return pictures


@cache
def _models() -> tuple[Callable[[np.ndarray], np.ndarray], Any]:
    """What turns a picture into an aligned face, and the network."""
    import dlib

    check()
    landmarks, network = (str(path) for path in _paths())
    predictor = dlib.shape_predictor(landmarks)
    face = dlib.rectangle(*(round(SIDE * place) for place in FACE))

    def align(picture: np.ndarray) -> np.ndarray:
        chip: np.ndarray = dlib.get_face_chip(picture, predictor(picture, face), CHIP, _MARGIN)
        return chip

    return align, dlib.face_recognition_model_v1(network)


def _paths() -> tuple[Path, Path]:
    """Where the models lie, or would. The package that holds them is not imported: its own code needs setuptools."""
    spec = find_spec("face_recognition_models")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    folder = Path(places[0] if places else "face_recognition_models") / "models"
    return folder / LANDMARKS, folder / NETWORK


@cache
def _check_file(path: Path, expected: str) -> None:
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise BenchError(
            f"{path} is not the model that judges faces (SHA-256 {found[:16]}..., expected {expected[:16]}...); "
            f"install face-recognition-models again: pip install --force-reinstall 'dp-distill-bench[{EXTRA}]'"
        )
