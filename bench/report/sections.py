"""Sections: pages that another package adds to the report (`bench.extensions`), computed from the report's content."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bench.boards import Board
from bench.boards.results import Result
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


@dataclass(frozen=True, order=True)
class GalleryEntry:
    """A picture on a page: its heading, its caption, the hash of its run, and the name of its file."""

    kind: str
    label: str
    run: str
    key: str


def gallery(pictures: Collection[Picture], heading: Callable[[Picture], str]) -> list[GalleryEntry]:
    """Return the pictures of a page, sorted by heading and label."""
    return sorted(GalleryEntry(heading(each), each.label, each.record.hash, each.key) for each in pictures)


@dataclass(frozen=True)
class Content:
    """The content of the report, from which a section makes its pages.

    Attributes:
        boards: the boards of all data sets.
        results: the results on all boards.
        pictures: pictures of the runs.
    """

    sources: Sources
    boards: Sequence[Board]
    results: Sequence[Result]
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Section:
    """Pages of another package, and its contributions to other pages.

    Attributes:
        script: JavaScript that adds the section's pages to `SECTIONS` (web/elements.js).
        index: data that every page may need, as DATA[the section's name].
        parts: values by name; a page loads them when it needs them.
        flags: a sentence for each flag of the section's rows.
        methods: method to the section's data for its page, where it is `sections` under the section's name.
        curves: (data set, methods with runs) -> panels of published points for its charts.
    """

    script: bytes
    index: Mapping[str, object] = field(default_factory=dict)
    parts: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, object] = field(default_factory=dict)
    curves: Callable[[str, Collection[str]], list[Panel]] = lambda dataset, methods: []
