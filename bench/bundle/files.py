"""Check the files of an untrusted bundle: their names, sizes and digests, and their decoded content.

This module imports no numerical library and reads no file beyond a limit, so that an untrusted directory cannot exhaust
the memory before it is refused.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from bench.bundle.contents import check_image, check_weights
from bench.bundle.limits import MIB, Limits
from bench.bundle.schema import (
    CARD,
    FORMAT,
    MANIFEST,
    MODEL,
    PRIVACY,
    Failed,
    Manifest,
    Model,
    Privacy,
    first_error,
    load_json,
)
from bench.errors import NotFound
from bench.escape import visible
from bench.storage.specs import canonical

WEIGHTS, GENERATOR, SYNTHETIC = "student.safetensors", "generator.safetensors", "synthetic"
NEEDED = (PRIVACY, MODEL, WEIGHTS, CARD)
IMAGE = re.compile(rf"{SYNTHETIC}/[0-9]{{3,5}}\.png")
TEXTS = {MANIFEST: 2**21, PRIVACY: 2**20, MODEL: 2**22, CARD: 2**22}
"""Largest size of each text file, in bytes; weights may be as large as the memory limit of the check."""
MOST_IMAGE_BYTES = 2**22
MOST_IMAGES, MOST_FILES = 10_000, 10_010
MOST_PIXELS = 2**28
"""Largest number of pixel values in all images together."""

Decoded = TypeVar("Decoded", Manifest, Privacy, Model)


@dataclass(frozen=True)
class Contents:
    """A bundle with valid files.

    Attributes:
        folder: folder of the files.
        privacy, model: the decoded `privacy.json` and `model.json`.
        card: the bytes of its model card.
        extras: released files other than the student: the generator's file, the folder of images.
        files: number of files in the manifest.
    """

    folder: Path
    privacy: Privacy
    model: Model
    card: bytes
    extras: list[str]
    files: int


def read_bundle(folder: Path, limits: Limits | None) -> Contents:
    """Read and check all files of a bundle.

    Args:
        limits: the memory limit, which its weights must not exceed; None for a bundle that the caller made.

    Raises:
        BenchError: the directory is not a bundle.
        Failed: a file is not listed, is missing, changed or unknown, is a link or not a regular file, is too large, or
            its content does not match its name.
    """
    if not os.path.lexists(folder / MANIFEST):
        raise NotFound(f"DIR {folder}: no {MANIFEST}, so not a bundle; give a directory that `bench export` wrote")
    present = _list_files(folder, limits)
    listed = decode(_read(folder, MANIFEST), MANIFEST, Manifest).files
    differences = {"missing": {*listed, *NEEDED} - present, "added": present - set(listed)}
    faults = [f"{kind}: {', '.join(map(visible, sorted(names)))}" for kind, names in differences.items() if names]
    if faults:
        raise Failed(f"the files are not those of {MANIFEST}; {'; '.join(faults)}")
    changed = []
    for name in sorted(listed):
        with open_file(folder, name) as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != listed[name]:
                changed.append(name)
    if changed:
        raise Failed(f"the files are not those of {MANIFEST}; changed: {', '.join(changed)}")
    privacy, model = read_privacy(folder), read_model(folder)
    for name in (WEIGHTS, GENERATOR):
        if name in present:
            with open_file(folder, name) as stream:
                check_weights(name, stream, os.fstat(stream.fileno()).st_size)
    images = sorted(name for name in present if IMAGE.fullmatch(name))
    if len(images) * math.prod(model.input.shape) > MOST_PIXELS:
        raise Failed(f"{SYNTHETIC} has {len(images)} images, which have more than {MOST_PIXELS} values of pixels")
    for name in images:
        check_image(name, _read(folder, name), model.input.shape)
    extras = ([GENERATOR] if GENERATOR in present else []) + ([SYNTHETIC] if images else [])
    return Contents(folder, privacy, model, _read(folder, CARD), extras, len(listed))


def read_privacy(folder: Path) -> Privacy:
    """Read `privacy.json` of a bundle; raise Failed for an invalid one."""
    return decode(_read(folder, PRIVACY), PRIVACY, Privacy)


def read_model(folder: Path) -> Model:
    """Read `model.json` of a bundle; raise Failed for an invalid one."""
    return decode(_read(folder, MODEL), MODEL, Model)


def _list_files(folder: Path, limits: Limits | None) -> set[str]:
    """Return the names of the files below a directory, without the manifest; raise Failed for an unexpected one."""
    found: set[str] = set()
    for prefix in ("", f"{SYNTHETIC}/"):
        if prefix and SYNTHETIC not in found:
            break
        found.discard(SYNTHETIC)
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                name = prefix + entry.name
                _check_entry(name, entry.stat(follow_symlinks=False), limits)
                found.add(name)
                if len(found) > MOST_FILES:
                    raise Failed(f"there are more than {MOST_FILES:,} files; a bundle has fewer")
    return found - {MANIFEST}


def _check_entry(name: str, status: os.stat_result, limits: Limits | None) -> None:
    """Raise Failed unless an entry is a file that a bundle may have, or its one directory."""
    shown, kind = visible(name), status.st_mode
    if name == SYNTHETIC and stat.S_ISDIR(kind):
        return
    if name not in (*TEXTS, WEIGHTS, GENERATOR) and not IMAGE.fullmatch(name):
        raise Failed(f"the files are not those of a bundle; added: {shown}")
    if stat.S_ISLNK(kind) or not stat.S_ISREG(kind):
        raise Failed(f"{shown} is {'a symbolic link' if stat.S_ISLNK(kind) else 'not a file'}; a bundle has files only")
    if status.st_nlink > 1:
        raise Failed(
            f"{shown} is a hard link, so that it can change from elsewhere; copy the bundle and verify the copy"
        )
    most = TEXTS.get(name, MOST_IMAGE_BYTES)
    if name in (WEIGHTS, GENERATOR):
        if limits is not None and status.st_size > limits.mib * MIB:
            raise Failed(f"{name} has {status.st_size:,} bytes; {limits.exceeded()}")
    elif status.st_size > most:
        raise Failed(f"{shown} has {status.st_size:,} bytes; expected at most {most:,}")


def open_file(folder: Path, name: str) -> BufferedReader:
    """Open a regular file; raise Failed for a link, a pipe or an unreadable file."""
    try:
        stream = os.fdopen(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise Failed(f"{name} cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise Failed(f"{name} is not a file")
    return stream


def _read(folder: Path, name: str) -> bytes:
    most = TEXTS.get(name, MOST_IMAGE_BYTES)
    with open_file(folder, name) as stream:
        content: bytes = stream.read(most + 1)
    if len(content) > most:
        raise Failed(f"{name} has more than {most:,} bytes")
    return content


def decode(content: bytes, name: str, kind: type[Decoded]) -> Decoded:
    """Decode a JSON file as a typed value; raise Failed unless it is exactly the text that `bench export` writes."""
    plain = load_json(content, name)
    if isinstance(plain, dict) and isinstance(plain.get("format"), int) and plain["format"] != FORMAT:
        given = str(plain["format"])[:20]
        raise Failed(f"{name} is of format {given}; this package reads {FORMAT}: export the run again")
    try:
        decoded = kind.model_validate_json(content)
    except ValidationError as error:
        raise Failed(f"{name}: {first_error(error)}") from None
    if canonical(plain).encode() != content:
        raise Failed(f"{name} is not written as `bench export` writes it: keys sorted, one space for each level")
    return decoded
