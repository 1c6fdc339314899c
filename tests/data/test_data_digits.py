from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn import datasets
from sklearn.datasets import load_digits

from bench import data
from bench.data.sets import digits as digits_file


def test_fingerprint_is_golden() -> None:
    digits = data.load("digits")
    assert digits.fingerprint == "e363053ccf9a5bde"
    assert digits.name == data.slug("digits") == "digits"
    assert (digits.shape, digits.classes) == ((1, 16, 16), 10)
    assert (len(digits.train_images), len(digits.test_images)) == (1438, 359)


def test_test_records_are_those_with_the_smallest_hash() -> None:
    digits = data.load("digits")
    keys = [hashlib.sha256(f"digits:{index}".encode()).hexdigest() for index in range(1797)]
    held_out = sorted(sorted(range(1797), key=keys.__getitem__)[:359])
    kept = sorted(set(range(1797)) - set(held_out))
    target = torch.from_numpy(np.asarray(datasets.load_digits().target)).long()
    assert torch.equal(digits.test_labels, target[held_out])
    assert torch.equal(digits.train_labels, target[kept])


def test_enlarging_is_the_textbook_bilinear_one() -> None:
    digits = data.load("digits")
    raw = np.asarray(datasets.load_digits().images)
    keys = [hashlib.sha256(f"digits:{index}".encode()).hexdigest() for index in range(1797)]
    first_kept = next(
        index for index in range(1797) if index not in set(sorted(range(1797), key=keys.__getitem__)[:359])
    )
    weights = np.zeros((16, 8))
    for row in range(16):
        centre = max((row + 0.5) / 2 - 0.5, 0.0)
        low = int(centre)
        high = min(low + 1, 7)
        weights[row, low] += 1 - (centre - low)
        weights[row, high] += centre - low
    expected = np.rint(weights @ (raw[first_kept] / 16) @ weights.T * 255)
    assert np.array_equal(digits.train_images[0, 0].numpy(), expected)


def test_every_class_is_in_both_parts_and_the_range_is_used() -> None:
    digits = data.load("digits")
    assert digits.train_labels.bincount().min() > 120
    assert digits.test_labels.bincount().min() > 20
    assert (int(digits.train_images.min()), int(digits.train_images.max())) == (0, 255)


def test_they_are_read_as_scikit_learn_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    images, target = digits_file.read_digits()
    bunch = load_digits()
    assert (images == bunch.images).all() and (target == bunch.target).all()
    monkeypatch.setattr(digits_file.importlib.util, "find_spec", lambda name: None)  # its file is somewhere else
    images, target = digits_file.read_digits()
    assert (images == bunch.images).all() and (target == bunch.target).all()
