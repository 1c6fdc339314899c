"""Sections: pages that another package adds to the report (`bench.extensions`), computed from the report's content."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.boards import Board
from bench.report.points import Panel
from bench.report.sources import Sources
from bench.storage.records import Record


@dataclass(frozen=True)
class Picture:
    """A picture of a run: the kind of images, and the name of its file."""

    record: Record
    kind: str
    key: str

    @property
    def label(self) -> str:
        """Method, variant, setting, seed and attack of the run."""
        release, attack = self.record.spec["release"], self.record.spec["attack"]
        variant = release.get("variant", "printed")
        words = [f"{release['method']} ({variant})", self.record.setting, f"seed {release['seed']}"]
        words += ["" if attack is None else attack["attack"], "smoke" if self.record.spec["tier"] == "smoke" else ""]
        return ", ".join(word for word in words if word)


def gallery(pictures: Collection[Picture], heading: Callable[[Picture], str]) -> list[dict[str, str]]:
    """Return pictures as data for a page, under headings, sorted by heading and label."""
    found = [
        {"run": each.record.hash, "kind": heading(each), "key": each.key, "label": each.label} for each in pictures
    ]
    return sorted(found, key=lambda each: (each["kind"], each["label"], each["run"]))


@dataclass(frozen=True)
class Shown:
    """The content of the report, from which a section makes its pages.

    Attributes:
        rows: the wide rows (`bench.boards.wide`) of all boards, with "dataset" in each; an empty cell is "".
        pictures: pictures of the runs.
        boards: of all data sets, in the order of their rows.
    """

    sources: Sources
    rows: Sequence[Mapping[str, Any]]
    pictures: Sequence[Picture]
    boards: Sequence[Board] = ()


def _no_curves(dataset: str, methods: Collection[str]) -> list[Panel]:
    return []


@dataclass(frozen=True)
class Section:
    """Pages of another package, and its contributions to other pages.

    Attributes:
        script: JavaScript that adds the section's pages to `SECTIONS` (web/elements.js).
        index: data that every page may need, as DATA[the section's name].
        parts: values by name; a page loads them when it needs them.
        flags: a sentence for each flag of the section's rows.
        methods: method to the section's data for its page, stored under the section's name.
        curves: (data set, methods with runs) -> panels of published points for its charts.
    """

    script: bytes
    index: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, Any] = field(default_factory=dict)
    curves: Callable[[str, Collection[str]], list[Panel]] = _no_curves
