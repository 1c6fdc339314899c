"""Names of a user's arrays: which array holds the images or the labels of which part."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bench.errors import BadData

IMAGES = ("images", "image", "imgs", "img", "x", "data", "inputs")
LABELS = ("labels", "label", "y", "targets", "target")
PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""Reading order of the parts: the test part is last."""
CLASS_NAMES = ("class_names", "classes", "label_names")
WHOLE = "whole"
"""The part of arrays whose names do not say one, such as x and y."""
EXPECTED = "{train,test}_{images,labels} or {x,y}_{train,test}"


@dataclass(frozen=True)
class Keys:
    """The names of images and labels by part; the name of the list of classes, if there is one; and the names of other
    arrays, which are not read."""

    parts: dict[str, tuple[str, str]]
    class_names: str | None
    unread: tuple[str, ...]

    @property
    def read(self) -> tuple[str, ...]:
        """The names of all arrays to read."""
        names = tuple(key for pair in self.parts.values() for key in pair)
        return names if self.class_names is None else (*names, self.class_names)


def find_keys(found: Iterable[str], problem: str) -> Keys:
    """Find the arrays to read by their names.

    Args:
        problem: beginning of error messages: the data set and its file.

    Raises:
        BenchError: two arrays with one role, images without labels or the reverse, or no training part.
    """
    found = sorted(found)
    meant: dict[tuple[str, str], str] = {}
    for key in found:
        meaning = _meaning(key)
        if meaning is None:
            continue
        if meaning in meant:
            raise BadData(f"{problem} has {meant[meaning]} and {key}, which mean the same; keep one of them")
        meant[meaning] = key
    parts = {part for part, _ in meant}
    if len(parts) > 1:
        parts -= {WHOLE}
    if not parts & {"train", WHOLE}:
        raise BadData(f"{problem} has no train_images; found {', '.join(found) or 'nothing'}; expected {EXPECTED}")
    for part in sorted(parts):
        for what in ("images", "labels"):
            if (part, what) not in meant:
                missing = what if part == WHOLE else f"{part}_{what}"
                raise BadData(f"{problem} has no {missing}; found {', '.join(found)}; expected {EXPECTED}")
    pairs = {part: (meant[part, "images"], meant[part, "labels"]) for part in PARTS | {WHOLE: ()} if part in parts}
    names = next((key for key in found if key.lower() in CLASS_NAMES), None)
    read = {key for pair in pairs.values() for key in pair} | {names}
    return Keys(pairs, names, tuple(key for key in found if key not in read))


def _meaning(key: str) -> tuple[str, str] | None:
    """Return the part, and "images" or "labels"; None for any other name."""
    words = [word for word in re.split(r"[^a-z]+", key.lower()) if word]
    if len(words) == 1 and (joined := re.fullmatch(r"([xy])(train|test|val)|(train|test|val)([xy])", words[0])):
        words = [group for group in joined.groups() if group]
    kinds = {word: what for what, known in (("images", IMAGES), ("labels", LABELS)) for word in known}
    parts = {word: part for part, known in PARTS.items() for word in known}
    if len(words) == 1 and words[0] in kinds:
        return WHOLE, kinds[words[0]]
    if len(words) != 2:
        return None
    part = next((parts[word] for word in words if word in parts), None)
    what = next((kinds[word] for word in words if word in kinds), None)
    return None if part is None or what is None else (part, what)
