"""The data set letters: its images, and that the attacker's letters are not the private ones."""

from pathlib import Path

import pytest
import torch
from conftest import toy_job, write_toy
from torch import Tensor

from bench import data
from bench.data.images import ImageData
from bench.data.sets.letters import CLASSES, PER_STYLE, PER_STYLE_OUTSIDE, STYLES
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings


@pytest.fixture(scope="module")
def letters() -> ImageData:
    return data.load("letters")


def test_letters_have_the_stated_counts(letters: ImageData) -> None:
    facts = data.facts("letters")
    assert (len(letters.train_images), len(letters.test_images)) == facts.counts
    assert letters.shape == facts.shape and letters.class_names == facts.class_names == tuple(CLASSES)
    assert letters.outsiders is not None and len(letters.outsiders) == 56 * len(STYLES) * PER_STYLE_OUTSIDE
    labels = torch.cat([letters.train_labels, letters.test_labels])
    assert labels.bincount().tolist() == [len(STYLES) * PER_STYLE] * 10
    assert letters.test_labels.bincount().min() > 10


def test_letters_are_drawn_inside_the_image(letters: ImageData) -> None:
    """Every image has ink, black corners and no ink at the border that would be cut off."""
    for images in (letters.train_images, letters.test_images, letters.outsiders):
        assert images is not None and int(images.amax((1, 2, 3)).min()) > 100
        border = torch.cat([images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]], -1)
        assert float((border > 64).float().mean()) < 0.01


def test_letters_are_the_same_each_time(letters: ImageData) -> None:
    again = data.load("letters")
    assert torch.equal(again.train_images, letters.train_images) and again.fingerprint == letters.fingerprint
    assert again.outsiders is not None and letters.outsiders is not None
    assert torch.equal(again.outsiders, letters.outsiders)


def nearest_class(images: Tensor, letters: ImageData) -> Tensor:
    """Return (n,) squared distances to the nearest training image over those between its own class's images."""
    rows = letters.train_images.flatten(1).float()
    return torch.cdist(images.flatten(1).float(), rows).min(1).values


def test_outsiders_are_other_letters(letters: ImageData) -> None:
    """The test images of the classes are nearer to the training images than the outsiders are."""
    assert letters.outsiders is not None
    inside, outside = nearest_class(letters.test_images, letters), nearest_class(letters.outsiders, letters)
    assert float(inside.median()) < 0.8 * float(outside.median())


def test_split_identity_gives_the_outsiders_to_the_attacker(letters: ImageData) -> None:
    split = data.split(letters, "identity")
    assert split.outside and len(split.private) == len(letters.train_images)
    assert letters.outsiders is not None and len(split.aux) == len(letters.outsiders)


@pytest.mark.parametrize(
    ("name", "split", "others"),
    [
        ("letters", "identity", True),
        ("letters", "iid", False),
        ("digits", "disjoint-low", True),
        ("digits", "iid", False),
    ],
)
def test_evaluator_learns_the_attackers_classes(tmp_path: Path, name: str, split: str, others: bool) -> None:
    """Where the attacker has other classes, the evaluator's step depends on the attacker's images."""
    job = load_job(Settings("no-defence", "gmi", name, split=split, tier="smoke", out=tmp_path), budget=False)
    assert job.material.evaluator_knows_aux == others
    learned = run_spec(job, 0).evaluator.data.split
    assert (job.material.aux_fingerprint in learned) == others and (learned == "all") == (not others)


def test_people_are_left_to_the_face_judge(letters: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published rows of people have an evaluator of the people only."""
    from dataclasses import replace

    split = data.split(letters, "identity")
    assert data.attacker_has_other_classes(letters, split)
    assert not data.attacker_has_other_classes(replace(letters, name="lfw-crop"), split)


def test_toy_data_of_one_source_have_no_further_class(tmp_path: Path) -> None:
    write_toy(tmp_path, 96)
    assert not toy_job(tmp_path, attack="gmi").material.evaluator_knows_aux
