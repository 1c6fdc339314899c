"""Lines about a user's own data, before anything is trained."""

from __future__ import annotations

import torch

from bench.data import ImageData
from bench.data.own import class_lines


def images(name: str, train: list[int], test: list[int]) -> ImageData:
    """A data set with the given numbers of training and test images per class."""
    parts = []
    for counts in (train, test):
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        parts += [torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), labels]
    names = tuple(f"class-{k:02}" for k in range(len(train)))
    return ImageData(name, *parts, names, conversions=("turned",))


def lines(train: list[int], test: list[int]) -> list[str]:
    return list(class_lines(images("npz-mine", train, test)))


def warnings(train: list[int], test: list[int]) -> list[str]:
    return [line for line in lines(train, test) if "warning" in line]


def test_every_class_is_counted_in_both_parts() -> None:
    found = lines([120, 2000], [30, 40])
    assert found[0].endswith("turned") and "2,120 training and 70 test images" in found[1]
    assert [line.split() for line in found[-2:]] == [["class-00", "120", "30"], ["class-01", "2,000", "40"]]


def test_few_images_warn_below_20() -> None:
    assert warnings([20, 20], [5, 5]) == []
    (found,) = warnings([19, 20, 20], [5, 5, 5])
    assert "class-00" in found and "class-01" not in found


def test_untested_classes_warn() -> None:
    (found,) = warnings([30, 30, 30], [5, 0, 5])
    assert "class-01" in found and "class-00" not in found


def test_imbalance_warns_above_20() -> None:
    assert warnings([20, 400], [5, 5]) == []
    (found,) = warnings([20, 401], [5, 5])
    assert "class-00" in found and "class-01" in found and "20 times" in found


def test_of_many_classes_the_smallest_are_shown() -> None:
    found = lines([*range(1000, 1100)], [5] * 100)
    assert (
        len(found) < 40 and any("class-00" in line for line in found) and not any("class-99" in line for line in found)
    )


def test_published_sets_are_not_listed() -> None:
    assert list(class_lines(images("mnist", [5, 5], [1, 1]))) == []
