"""Canaries: mislabelled records that fair coins put into the training set, for a bound on epsilon without assumptions.

`insert` writes a training set with them before training. `audit` reads the finished model's confidence in them and
counts right guesses (Steinke et al., NeurIPS 2023; Mahloujifar et al., ICML 2025). The coins must stay secret from
everyone who trains the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.assess.models import query
from bench.assess.records import ReadAs, Records, read_records
from bench.assess.schema import Canaries
from bench.assess.scores import Layout, outputs_as_side
from bench.errors import BenchError
from bench.privacy.one_run import correct_guesses, one_run_epsilon
from bench.privacy.one_run_curves import f_dp_epsilon

FEWEST = 50
SHARE = 10
"""One guess for that many canaries, fixed before any score is seen; the auditor abstains on the others."""
LEAST_GUESSES = 20


@dataclass(frozen=True, eq=False)
class Inserted:
    """(m, c, h, w) uint8 images, (m,) int64 wrong labels, and (m,) bool, which of them the training set has."""

    images: Tensor
    labels: Tensor
    coins: NDArray[np.bool_]


def insert(data: Path, count: int, folder: Path, seed: int | None) -> tuple[int, int]:
    """Turn `count` records of a training set into canaries and write `train.npz` and `canaries.npz` into a new folder.

    A canary is a record with a wrong label. It stays in the training set if its coin shows heads, else it is left out.

    Args:
        data: a .npz file of images and labels.
        count: canaries, from 50 to half of the records.
        seed: of choice, labels and coins; None = from the system, as an audit of a claim needs.

    Returns:
        The number of records in the new training set, and of canaries in it.

    Raises:
        BenchError: data that cannot be read, a count out of range, a single class, or a folder that exists.
    """
    records = read_records(data, ReadAs())
    if not FEWEST <= count <= len(records) // 2:
        raise BenchError(f"--count {count}: expected {FEWEST} to {len(records) // 2}, half of the records of '{data}'")
    classes = int(records.labels.max()) + 1
    if classes < 2:
        raise BenchError(f"'{data}' has a single class; canaries need a wrong label")
    if folder.exists():
        raise BenchError(f"'{folder}' exists; name a new folder")
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(records))[:count]
    coins = rng.random(count) < 0.5
    wrong = (records.labels.numpy()[chosen] + rng.integers(1, classes, count)) % classes
    labels = records.labels.numpy().copy()
    labels[chosen] = wrong
    stays = np.ones(len(records), bool)
    stays[chosen[~coins]] = False
    folder.mkdir(parents=True)
    images = records.images.numpy()
    np.savez(folder / "train.npz", images=images[stays], labels=labels[stays])
    np.savez(folder / "canaries.npz", images=images[chosen], labels=wrong, coins=coins)
    return int(stays.sum()), int(coins.sum())


def read_canaries(path: Path, like: Records) -> Inserted:
    """The canaries of `insert`.

    Raises:
        BenchError: a file of another kind, fewer than 50, or images of another shape than the members'.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            images, labels, coins = (archive[name] for name in ("images", "labels", "coins"))
    except Exception as error:  # the bytes may come from anyone, and damaged archives raise a dozen kinds
        raise BenchError(
            f"--canaries '{path}' cannot be read ({type(error).__name__}); give canaries.npz of `bench canaries insert`"
        ) from error
    shape = tuple(like.images.shape[1:])
    fits = images.dtype == np.uint8 and images.shape[1:] == shape and coins.dtype == np.bool_ and coins.ndim == 1
    if not fits or not len(images) == len(labels) == len(coins) or len(coins) < FEWEST:
        raise BenchError(
            f"--canaries '{path}' has images {images.shape} of {images.dtype} and coins {coins.shape}; expected at "
            f"least {FEWEST} images of {shape} and one coin each"
        )
    return Inserted(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), coins)


def audit(module: nn.Module, classes: int, inserted: Inserted, delta: float) -> Canaries:
    """The bounds on epsilon that the model's confidence in the canaries gives, at 95 % confidence.

    Args:
        module: (n, c, h, w) in [0, 1] to (n, classes) logits.
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
