"""Face recognition by dlib's 128-dimensional face descriptor, from a network that this project did not train.

King, "High Quality Face Recognition with Deep Metric Learning" (dlib.net, 2017): a residual network of 29 layers, whose
Euclidean distance is below 0.6 for most pairs of images of one person and above it for most others. It is an optional
extra, `[faces]`: dlib, and two model files; files with another hash than in `MODELS` are refused.

It is used only as the *face judge*, which decides whether a reconstruction shows the target person. It was trained on
public photographs of well-known people and may recognise those of a public data set: an attack or a teacher that used
it would gain knowledge that it should not have. tests/test_layers.py checks which modules import it.

Importing this module imports no third-party library.
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
"""Distance below which dlib's author regards two images as showing one person."""
EXTRA = "faces"
LANDMARKS, NETWORK = "shape_predictor_5_face_landmarks.dat", "dlib_face_recognition_resnet_model_v1.dat"
MODELS = {
    LANDMARKS: "c4b1e9804792707d3a405c2c16a80a20269e6675021f64a41d30fffafbc41888",
    NETWORK: "55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30",
}
"""SHA-256 of each model file."""
VERSION = 1
"""Version of the computation; a change recomputes all descriptors."""
SIDE, CHIP = 256, 150
"""Side lengths in pixels: of the image in which landmarks are detected, and of the aligned face."""
FACE = (0.17, 0.20, 0.83, 0.86)
"""Left, top, right and bottom of the face, as fractions of the image. Fixed, as a detector misses many
reconstructions."""
_MARGIN = 0.25
_AT_ONCE = 16


def identity() -> dict[str, Any]:
    """Return all inputs of a descriptor except the image, as plain data for the key under which results are cached."""
    return {"descriptor": "dlib", "version": VERSION, "models": dict(MODELS)}


def absent() -> str:
    """Return why descriptors are unavailable on this machine, in one sentence; "" if available. Imports nothing."""
    missing = [] if find_spec("dlib") else ["the package dlib"]
    missing += [f"the file {path.name}" for path in _paths() if not path.is_file()]
    if not missing:
        return ""
    return f"{' and '.join(missing)} not found: pip install 'dp-distill-bench[{EXTRA}]'"


def check() -> None:
    """Refuse model files with a wrong hash; missing files are ignored.

    Raises:
        BenchError: names the wrong file.
    """
    for path in _paths():
        if path.is_file():
            _check_file(path, MODELS[path.name])


def describe(images: Tensor, advance: Callable[[int], object] = lambda _images: None) -> Tensor:
    """Compute the descriptor of every image, independently of the other images.

    Args:
        images: (n, c, h, w) uint8, c of 1 or 3, faces that fill the image as in the data sets by person (`FACE`).
        advance: called with the number of images done.

    Returns:
        (n, 128) float32 on the CPU.

    Raises:
        BenchError: the extra is not installed, or a model file has a wrong hash.
        TypeError, ValueError: images of a wrong type or shape.
    """
    import numpy as np
    import torch
    from torch.nn.functional import interpolate

    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, not {images.dtype}")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images of shape {tuple(images.shape)}: expected (n, 1 or 3, h, w)")
    if reason := absent():
        raise NotFound(f"the face judge is unavailable: {reason}")
    align, network = _models()
    found = [torch.empty(0, LENGTH)]
    for part in images.cpu().split(_AT_ONCE):
        large = interpolate(part.float(), size=(SIDE, SIDE), mode="bicubic").clamp(0, 255).round().byte()
        chips = [align(picture) for picture in large.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()]
        found.append(torch.from_numpy(np.array(network.compute_face_descriptor(chips), dtype=np.float32)))
        advance(len(part))
    return torch.cat(found)


@cache
def _models() -> tuple[Callable[[np.ndarray], np.ndarray], Any]:
    """Load the face alignment function and the descriptor network."""
    import dlib

    check()
    landmarks, network = (str(path) for path in _paths())
    predictor = dlib.shape_predictor(landmarks)
    face = dlib.rectangle(*(round(SIDE * edge) for edge in FACE))

    def align(picture: np.ndarray) -> np.ndarray:
        chip: np.ndarray = dlib.get_face_chip(picture, predictor(picture, face), CHIP, _MARGIN)
        return chip

    return align, dlib.face_recognition_model_v1(network)


def _paths() -> tuple[Path, Path]:
    """Return the paths of the model files. The package with the files is not imported, as its code needs setuptools."""
    spec = find_spec("face_recognition_models")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    folder = Path(folders[0] if folders else "face_recognition_models") / "models"
    return folder / LANDMARKS, folder / NETWORK


@cache
def _check_file(path: Path, expected: str) -> None:
    """Compare a model file's SHA-256 with the expected one, once per process. Raises BenchError."""
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise BenchError(
            f"{path} is not the face judge's model (SHA-256 {found[:16]}..., expected {expected[:16]}...); "
            f"install face-recognition-models again: pip install --force-reinstall 'dp-distill-bench[{EXTRA}]'"
        )
