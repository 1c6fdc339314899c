"""Image counts per class of a user's own data, and warnings about classes that make results hard to interpret."""

from __future__ import annotations

from collections.abc import Iterator

from bench.data.images import ImageData
from bench.data.naming import is_by_path

FEW = 20
"""Number of training images of a class below which a warning is shown."""
IMBALANCE = 20
"""Ratio of the largest to the smallest class above which a warning is shown."""
_SHOWN = 30
"""Number of classes that have a line each; of more, the smallest ones are shown."""


def class_lines(images: ImageData) -> Iterator[str]:
    """Yield lines about a user's own data: how they were read, each class with its number of images, and warnings.

    Published data sets have none: their documentation describes them.
    """
    if not is_by_path(images.name):
        return
    for sentence in images.conversions:
        yield f"{images.name}: {sentence}"
    train, test = (
        labels.bincount(minlength=images.classes).tolist() for labels in (images.train_labels, images.test_labels)
    )
    channels, height, width = images.shape
    yield (
        f"{images.name}: {images.classes} classes, {sum(train):,} training and {sum(test):,} test images of "
        f"{channels}x{height}x{width}"
    )
    yield from _table(images.class_names, train, test)
    for warning in _warnings(images.class_names, train, test):
        yield f"{images.name}: warning: {warning}"


def _table(names: tuple[str, ...], train: list[int], test: list[int]) -> Iterator[str]:
    order = sorted(range(len(names)), key=lambda number: train[number])[:_SHOWN]
    if len(names) > _SHOWN:
        yield f"  the {_SHOWN} smallest of {len(names)} classes:"
    wide = max(len("class"), *(len(names[number]) for number in order))
    yield f"  {'class':<{wide}}  {'training':>8}  {'test':>8}"
    for number in order if len(names) > _SHOWN else range(len(names)):
        yield f"  {names[number]:<{wide}}  {train[number]:>8,}  {test[number]:>8,}"


def _warnings(names: tuple[str, ...], train: list[int], test: list[int]) -> Iterator[str]:
    few = [name for name, count in zip(names, train, strict=True) if count < FEW]
    if few:
        yield f"fewer than {FEW} training images in {_listed(few)}: a network hardly learns such a class"
    untested = [name for name, count in zip(names, test, strict=True) if not count]
    if untested:
        yield f"no test image in {_listed(untested)}: the accuracy says nothing of such a class"
    if max(train) > IMBALANCE * min(train) > 0:
        most, least = names[train.index(max(train))], names[train.index(min(train))]
        yield (
            f"{most} has {max(train) / min(train):.0f} times as many training images as {least}: the accuracy of all "
            "says little of the smaller classes"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"class{'es' * (len(names) > 1)} {', '.join(names[:10])}{more}"
