"""Canaries: mislabelled records, each put into the training set by a fair coin, for a bound on epsilon.

The bound needs no assumption about the records. `insert` writes a training set with canaries before training. `audit`
guesses the coins from the finished model's confidence in the canaries, and counts right guesses (Steinke et al.,
NeurIPS 2023; Mahloujifar et al., ICML 2025). The coins must stay secret from everyone who trains the model.
"""

from __future__ import annotations

import csv
import math
import shutil
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.assess.models import query
from bench.assess.records import ReadAs, Records, read_records
from bench.assess.schema import Canaries
from bench.assess.scores import Layout, outputs_as_side
from bench.data.folder import list_part, scan
from bench.errors import BenchError
from bench.escape import visible
from bench.privacy.one_run import correct_guesses, one_run_epsilon
from bench.privacy.one_run_curves import f_dp_epsilon

FEWEST = 50
SHARE = 10
"""Number of canaries per guess, fixed before any score is seen; the auditor does not guess the others."""
LEAST_GUESSES = 20
AS_STORED = ReadAs()
CANARIES, COINS = "canaries", "coins.csv"
"""The folder of the canaries of image files, and its file of coins."""


@dataclass(frozen=True, eq=False)
class Inserted:
    """Canaries: (m, c, h, w) uint8 images, (m,) int64 wrong labels, and (m,) bool coins, true = in the training set."""

    images: Tensor
    labels: Tensor
    coins: NDArray[np.bool_]


def insert(data: Path, count: int, folder: Path, seed: int | None) -> tuple[int, int]:
    """Turn `count` records of a training set into canaries and write the new training set into a new folder.

    A canary is a record with a wrong label. It stays in the training set if its coin shows heads, else it is left out.
    A .npz file gives `train.npz` and `canaries.npz`. A folder of images gives the folders `train` and `canaries`, which
    has the canaries below their wrong classes and `coins.csv`.

    Args:
        data: a .npz file of images and labels, or a folder with one folder of images per class.
        count: canaries, from 50 to half of the records.
        seed: seed of choice, labels and coins; None = from the operating system, as an audit of a claim needs.

    Returns:
        The number of records in the new training set, and the number of canaries among them.

    Raises:
        BenchError: data that cannot be read, a count out of range, a single class, or a folder that exists.
    """
    if folder.exists():
        raise BenchError(f"'{folder}' exists; name a new folder")
    if data.is_dir():
        return _insert_files(data, count, folder, seed)
    records = read_records(data, ReadAs())
    labels = records.labels.numpy().copy()
    chosen, wrong, coins = _draw(labels, count, int(labels.max()) + 1, data, seed)
    labels[chosen] = wrong
    stays = np.ones(len(records), bool)
    stays[chosen[~coins]] = False
    folder.mkdir(parents=True)
    images = records.images.numpy()
    np.savez(folder / "train.npz", images=images[stays], labels=labels[stays])
    np.savez(folder / "canaries.npz", images=images[chosen], labels=wrong, coins=coins)
    return int(stays.sum()), int(coins.sum())


def _insert_files(data: Path, count: int, folder: Path, seed: int | None) -> tuple[int, int]:
    """Copy the image files of a folder; canaries get the folder of a wrong class."""
    classes = scan(data, str(data))
    names = tuple(classes)
    listed = list_part(classes, names)
    files = [file for file in listed.files if isinstance(file, Path)]
    chosen, wrong, coins = _draw(np.array(listed.labels, np.int64), count, len(names), data, seed)
    for name in names:
        (folder / "train" / name).mkdir(parents=True)
        (folder / CANARIES / name).mkdir(parents=True)
    is_canary = np.zeros(len(files), bool)
    is_canary[chosen] = True
    for row in np.flatnonzero(~is_canary):
        copy = folder / "train" / files[row].relative_to(data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[row], copy)
    rows = []
    for row, label, coin in zip(chosen.tolist(), wrong.tolist(), coins.tolist(), strict=True):
        copy = _unused(folder / CANARIES / names[label] / files[row].name, folder / "train" / names[label])
        shutil.copyfile(files[row], copy)
        if coin:
            shutil.copyfile(copy, folder / "train" / names[label] / copy.name)
        rows.append((copy.relative_to(folder / CANARIES).as_posix(), int(coin)))
    with (folder / CANARIES / COINS).open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("file", "coin"), *rows])
    return len(files) - int((~coins).sum()), int(coins.sum())


def _unused(path: Path, other: Path) -> Path:
    """Return the path, with a number before its suffix if it exists, or if its name exists in the folder `other`."""
    found, number = path, 2
    while found.exists() or (other / found.name).exists():
        found, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return found


def _draw(
    labels: NDArray[np.int64], count: int, classes: int, data: Path, seed: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Draw (count,) canaries, their wrong labels and their coins. Raises BenchError as `insert`."""
    if not FEWEST <= count <= len(labels) // 2:
        raise BenchError(f"--count {count}: expected {FEWEST} to {len(labels) // 2}, half of the records of '{data}'")
    if classes < 2:
        raise BenchError(f"'{data}' has a single class; canaries need a wrong label")
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(labels))[:count]
    coins = rng.random(count) < 0.5
    wrong = (labels[chosen] + rng.integers(1, classes, count)) % classes
    return chosen, wrong, coins


def read_canaries(path: Path, like: Records, how: ReadAs = AS_STORED) -> Inserted:
    """Read the canaries of `insert`.

    Args:
        path: `canaries.npz`, the folder `canaries`, or the folder that `insert` wrote.
        like: the members, whose shape and classes the canaries must have.
        how: how the members' image files were read.

    Raises:
        BenchError: files of another kind, fewer than 50, or images of another shape than the members'.
    """
    if path.is_dir():
        for name in ("canaries.npz", CANARIES):
            path = path / name if (path / name).exists() else path
    images, labels, coins = _read_folder(path, like, how) if path.is_dir() else _read_archive(path)
    shape = tuple(like.images.shape[1:])
    fits = images.dtype == np.uint8 and images.shape[1:] == shape and coins.dtype == np.bool_ and coins.ndim == 1
    if not fits or not len(images) == len(labels) == len(coins) or len(coins) < FEWEST:
        raise BenchError(
            f"--canaries '{path}' has images {images.shape} of {images.dtype} and coins {coins.shape}; expected at "
            f"least {FEWEST} images of {shape} and one coin each"
        )
    return Inserted(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), coins)


def _read_archive(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["images"], archive["labels"], archive["coins"]
    except Exception as error:  # the bytes may come from anyone, and damaged archives raise a dozen kinds
        raise BenchError(
            f"--canaries '{path}' cannot be read ({type(error).__name__}); give what `bench canaries insert` wrote"
        ) from error


def _read_folder(path: Path, like: Records, how: ReadAs) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Read images, wrong labels (their folders) and coins (coins.csv) of canaries, in the order of the files."""
    try:
        with (path / COINS).open(newline="", encoding="utf-8") as stream:
            rows = map(itemgetter("file", "coin"), csv.DictReader(stream))
            coins = {file: coin == "1" for file, coin in rows}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise BenchError(
            f"--canaries '{path}' has no readable {COINS} ({type(error).__name__}); give what `bench canaries insert` "
            "wrote"
        ) from error
    records = read_records(path, replace(how, groups=None), replace(like, groups=None))
    names = like.class_names or ()
    classes = scan(path, str(path))
    files = [file.relative_to(path).as_posix() for name in names for file in classes.get(name, [])]
    missing = [file for file in files if file not in coins]
    if missing:
        raise BenchError(f"--canaries '{path}': {COINS} has no coin for '{visible(missing[0])}'")
    found = np.array([coins[file] for file in files], np.bool_)
    return records.images.numpy(), records.labels.numpy(), found


def audit(module: nn.Module, classes: int, inserted: Inserted, delta: float) -> Canaries:
    """Guess the coins from the model's confidence in the canaries; return lower bounds on epsilon at 95 % confidence.

    Args:
        module: maps (n, c, h, w) images in [0, 1] to (n, classes) logits.
        delta: in [0, 1).
    """
    logits = query(module, inserted.images).double().numpy()
    count = len(inserted.coins)
    layout = Layout("logit", classes, True, False, ())
    side = outputs_as_side("canaries", "", layout, logits, inserted.labels.numpy(), None, np.empty((count, 0)))
    guesses = min(count, max(LEAST_GUESSES, math.ceil(count / SHARE)))
    correct = correct_guesses(side.confidence, inserted.coins, guesses)
    gaussian = f_dp_epsilon(guesses, correct, count, delta) if delta > 0 else None
    return Canaries(
        canaries=count,
        guesses=guesses,
        correct=correct,
        epsilon_lower=one_run_epsilon(guesses, correct, count, delta),
        epsilon_lower_gaussian=gaussian,
        delta=delta,
    )
