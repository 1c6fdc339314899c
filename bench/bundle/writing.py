"""Write a bundle to a temporary directory, check it there, and rename it, so that it is complete or absent."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from pydantic import ValidationError

from bench.bundle import account, card
from bench.bundle.checking import Verified, verify
from bench.bundle.files import GENERATOR, MOST_IMAGES, SYNTHETIC, decode
from bench.bundle.finding import FinishedRun
from bench.bundle.network import write_network
from bench.bundle.schema import CARD, FORMAT, MANIFEST, MODEL, PRIVACY, Failed, Manifest, Model, Privacy, first_error
from bench.errors import BadOption, BenchError
from bench.storage.specs import canonical
from bench.storage.store import load_tensors


def export(run: FinishedRun, folder: Path, *, allow_seeded: bool = False, own_names: bool = False) -> Verified:
    """Write the bundle of a run into `folder`; return the result of `verify`.

    Args:
        folder: new or empty directory; its parent must exist.
        allow_seeded: export also if the noise came from the recorded seed.
        own_names: include class names of a user's own data set, which are withheld otherwise.

    Raises:
        BenchError: seeded noise without `allow_seeded`, a folder that is not empty or not writable, or a release that
            cannot be rebuilt. No files are left behind.
    """
    if run.record.privacy["noise"] == "seeded" and not allow_seeded:
        raise BenchError(
            f"RUN {run.record.hash}: its noise was drawn from a seed, so that its epsilon holds only for those who "
            "do not know the seed; run it with --noise os, or give --allow-seeded, and the card will say so"
        )
    with _temporary_sibling(folder) as work:
        try:
            _write_files(work, run, own_names)
            verified = verify(work, limits=None)
        except Failed as error:
            raise BenchError(f"RUN {run.record.hash}: what would be written does not verify: {error}") from None
        except ValidationError as error:
            raise BenchError(f"RUN {run.record.hash}: a bundle cannot hold it: {first_error(error)}") from None
        try:
            work.rename(folder)
        except OSError as error:
            raise BadOption(f"DIR {folder}: cannot be put there ({error.strerror}); give a new directory") from None
    return verified


@contextmanager
def _temporary_sibling(folder: Path) -> Iterator[Path]:
    """Yield an empty directory next to `folder`, removed at the end unless renamed.

    Directories of killed exports are removed too.

    Raises:
        BadOption: `folder` exists and is not an empty directory, or its parent cannot be written.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise BadOption(f"DIR {folder}: there is a file of this name; give a new directory")
    if folder.is_dir() and any(folder.iterdir()):
        raise BadOption(f"DIR {folder}: not empty, and nothing is overwritten; give a new directory")
    folder = folder.absolute()
    if not folder.parent.is_dir():
        raise BadOption(f"DIR {folder}: there is no {folder.parent} to write into; make it first")
    for stale in folder.parent.glob(f".{glob.escape(folder.name)}.exporting-*"):
        try:
            os.kill(int(stale.name.rpartition("-")[2]), 0)  # fails if the process that wrote there has ended
        except (ValueError, ProcessLookupError):
            shutil.rmtree(stale, ignore_errors=True)
        except PermissionError:  # another user's process
            continue
    work = folder.with_name(f".{folder.name}.exporting-{os.getpid()}")
    try:
        work.mkdir()
    except OSError as error:
        raise BadOption(f"DIR {folder}: cannot write there ({error.strerror}); give another directory") from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_files(work: Path, run: FinishedRun, own_names: bool) -> None:
    """Write all files of the bundle of a run into an empty directory."""
    privacy = _write(work / PRIVACY, account.account(run.record))
    model = _write(work / MODEL, write_network(work, run, own_names))
    extras = _images(work, run)
    if (run.step / GENERATOR).exists():
        shutil.copyfile(run.step / GENERATOR, work / GENERATOR)
        extras.insert(0, GENERATOR)
    # The card is built from the decoded files, as in `bench verify`: their keys have another order
    text = card.card(decode(privacy, PRIVACY, Privacy), decode(model, MODEL, Model), extras)
    (work / CARD).write_bytes(text.encode())
    _write(work / MANIFEST, manifest(work))
    for path in work.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _write(path: Path, value: Privacy | Model | Manifest) -> bytes:
    """Write a JSON file; return its bytes."""
    content = canonical(value.to_json()).encode()
    path.write_bytes(content)
    return content


def manifest(folder: Path) -> Manifest:
    """Return the SHA-256 of every file below `folder` except the manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return Manifest(format=FORMAT, files=sums)


def _images(work: Path, run: FinishedRun) -> list[str]:
    """Write the synthetic images as PNG files, if the method releases some; return the name of their folder."""
    source = run.step / "synthetic.safetensors"
    if not source.exists():
        return []
    images = load_tensors(source)["images"].numpy()[:MOST_IMAGES]
    folder = work / SYNTHETIC
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(folder / f"{number:03d}.png")
    return [folder.name] if len(images) else []
