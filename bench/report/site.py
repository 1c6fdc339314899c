"""The report as files: a page, its style and scripts, and one data script for each part of its content."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib.resources import files
from typing import Any

from pydantic_core import to_jsonable_python

from bench import __version__, extensions
from bench import boards as board_files
from bench.boards.results import Result, results
from bench.report import boards, figures, glossary, method_pages, points, releases, runs
from bench.report.boards import Row
from bench.report.charts import styles, tag
from bench.report.columns import ALL
from bench.report.files import DATA, PICTURES, WEB, Files, script, shorten, slug
from bench.report.method_pages import MethodPage, MethodSummary
from bench.report.points import Panel
from bench.report.releases import EPSILON, Highlight, attacks_in, distinguish, highlights
from bench.report.runs import AuditLine, RunPage
from bench.report.sections import Content, Picture, Section, gallery
from bench.report.sources import Sources
from bench.storage.provenance import devices
from bench.storage.records import Record

SHARD = 2
"""Number of leading letters of a hash that runs in one script share: at most 256 scripts."""
BEFORE = b'<script defer src="web/routes.js">'
"""Position of the sections' scripts in the page: before the script that reads which pages exist."""


@dataclass(frozen=True)
class BoardPage:
    """The board of a data set.

    Attributes:
        rows: its rows; `columns` are those that have a value.
        best: the most accurate releases.
        runs: number of its runs.
    """

    name: str
    rows: list[Row]
    columns: list[str]
    best: list[Highlight]
    runs: int
    audits: list[AuditLine]


@dataclass(frozen=True)
class BoardSummary:
    """A board in the list of boards; `file` is the ending of the names of its parts."""

    name: str
    file: str
    runs: int
    rows: int
    methods: int
    attacks: list[str]
    best: list[Highlight]
    pictures: bool


Choice = tuple[str, str, str, str, str, int, str, float | None, str]
"""A run to choose from: hash, data set, method, setting, tier, seed, attack, accuracy, distinguishing fields."""


def render(sources: Sources) -> Files:
    """Return all files of the report; the same sources give the same bytes.

    Everything from records is escaped or passed as JSON, and the scripts write it as text. The page's policy allows
    only its own scripts, styles and pictures.
    """
    web = {each.name: each.read_bytes() for each in files("bench.report").joinpath(WEB).iterdir() if each.is_file()}
    content, images = build_content(sources)
    sections = {name: make(content) for name, make in extensions.load("report sections").items()}
    web |= {f"{name}.js": section.script for name, section in sections.items()}
    tags = "".join(f'<script defer src="{WEB}/{name}.js"></script>\n' for name in sections).encode()
    page = web.pop("page.html").replace(BEFORE, tags + BEFORE)
    return (
        {"index.html": page}
        | {f"{WEB}/{name}": data for name, data in sorted(web.items())}
        | {f"{DATA}/{name}.js": script(name, value) for name, value in parts(content, sections).items()}
        | {f"{PICTURES}/{name}.png": png for name, png in images.items()}
    )


def build_content(sources: Sources) -> tuple[Content, dict[str, bytes]]:
    """Build the boards, and name pictures by their content: one file, even if several runs show it."""
    known = {record.hash: record for record in sources.records}
    images: dict[str, bytes] = {}
    pictures = []
    for name, of in sources.pictures.items():
        for kind, png in sorted(of.items()) if name in known else ():
            key = hashlib.sha256(png).hexdigest()[:16]
            images[key] = png
            pictures.append(Picture(known[name], kind, key))
    built = []
    for name in sorted({board_files.dataset(record) for record in sources.records}):
        records = [record for record in sources.records if board_files.dataset(record) == name]
        audits = [audit for audit in sources.audits if board_files.dataset(audit) == name]
        built.append(board_files.build(records, audits))
    return Content(sources, built, [result for board in built for result in results(board)], pictures), images


def parts(content: Content, sections: Mapping[str, Section]) -> dict[str, Any]:
    """Return every part of the data, by name, as plain JSON data."""
    sources = content.sources
    lines = releases.lines(content.boards)
    added = {name: section.methods for name, section in sections.items()}
    methods = method_pages.pages(sources.records, sources.audits, lines, added)
    pages = _run_pages(content)
    board_pages = {}
    for board in content.boards:
        name, rows = board.dataset, boards.rows(board)
        mine = [audit for audit in sources.audits if board_files.dataset(audit) == name]
        audits = runs.audit_lines(mine)
        page = BoardPage(name, rows, boards.columns(rows), highlights(board), len(board.runs), audits)
        board_pages[name] = page
    found: dict[str, object] = {}
    for name, page in board_pages.items():
        found[f"board-{slug(name)}"] = page
        found[f"charts-{slug(name)}"] = {"markup": _charts(name, sources, sections.values())}
        pictures = [picture for picture in content.pictures if board_files.dataset(picture.record) == name]
        found[f"images-{slug(name)}"] = gallery(pictures, lambda picture: picture.kind)
    found |= {f"method-{slug(page.name)}": page for page in methods}
    shards: dict[str, dict[str, RunPage]] = defaultdict(dict)
    for name, run_page in pages.items():
        shards[f"runs-{name[:SHARD]}"][name] = run_page
    found |= shards
    found |= {"choose": lines, "names": _choices(sources.records)}
    for section in sections.values():
        found |= section.parts
    flags = {flag for run_page in pages.values() for flag in run_page.flags}
    flags |= {flag for result in content.results for flag in result.flags}
    explained = {flag: glossary.flag(flag) for flag in flags}
    for section in sections.values():
        explained |= section.flags
    index = _index(content, board_pages, methods) | {name: section.index for name, section in sections.items()}
    found["index"] = index | {"flags": explained, "shards": sorted(shards)}
    return to_jsonable_python(found)


def _index(content: Content, board_pages: Mapping[str, BoardPage], methods: Sequence[MethodPage]) -> dict[str, object]:
    """Return the data that every page needs; of runs only those on the front page."""
    pictured = {board_files.dataset(picture.record) for picture in content.pictures}
    of_board: dict[str, list[Result]] = defaultdict(list)
    for result in content.results:
        of_board[result.release.dataset].append(result)
    return {
        "version": __version__,
        "columns": ALL,
        "runs": len(content.sources.records),
        "shard": SHARD,
        "datasets": [
            BoardSummary(
                name=name,
                file=slug(name),
                runs=page.runs,
                rows=len(page.rows),
                methods=len({result.release.method for result in of_board[name]}),
                attacks=attacks_in(of_board[name]),
                best=page.best,
                pictures=name in pictured,
            )
            for name, page in board_pages.items()
        ],
        "methods": [asdict(shorten(MethodSummary, page)) | {"file": slug(page.name)} for page in methods],
        "units": glossary.UNITS,
        "proved": EPSILON,
        "variants": glossary.VARIANTS,
        "statuses": glossary.STATUSES,
        "tiers": glossary.TIERS,
        "order": {"tiers": list(glossary.TIERS), "units": list(glossary.UNITS)},
    }


def _run_pages(content: Content) -> dict[str, RunPage]:
    """Return the page of every run."""
    seeds: dict[str, list[tuple[str, str]]] = {}
    pictured: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for picture in content.pictures:
        pictured[picture.record.hash].append((picture.kind, picture.key))
    for result in content.results:
        pairs = [(str(run.seed), run.run) for run in result.runs]
        seeds |= dict.fromkeys((run.run for run in result.runs), pairs)
    audits = board_files.by_release(content.sources.audits)
    found = {}
    for record in content.sources.records:
        of = audits.get(board_files.audited_release(record.spec), []) if audits else []
        page = runs.page(record, of)
        found[record.hash] = replace(page, seeds=seeds[record.hash], pictures=pictured.get(record.hash))
    return found


def _choices(records: Sequence[Record]) -> list[Choice]:
    """Return the list of runs to choose from, sorted by data set, tier, method, setting, attack and seed."""
    entries, omitted = [], []
    for record in records:
        release, attack = record.spec["release"], record.spec["attack"]
        variant = release.get("variant", "printed")
        name = board_files.dataset(record), f"{release['method']} ({variant})", record.setting, record.spec["tier"]
        entries.append((record, name, release["seed"], "" if attack is None else attack["attack"]))
        of_attack = "" if attack is None else f"{attack.get('variant', 'printed')} attack, version {attack['version']}"
        omitted.append({
            "split": f"split {release['teacher']['data']['split']}",
            "teacher": f"teacher={release['teacher']['arch']}",
            "student": f"student={record.student}" if record.student else "",
            "version": f"version {release['version']}",
            "attack": of_attack,
            "noise": "float32 noise" if record.privacy and points.is_coarse([record]) else "",
            "device": ", ".join(devices(record.provenance)),
        })  # fmt: skip
    words = distinguish([entry[1:] for entry in entries], omitted)
    found: list[Choice] = [
        (record.hash, *name, seed, attack, record.metrics.get("accuracy"), apart)
        for (record, name, seed, attack), apart in zip(entries, words, strict=True)
    ]

    def order(choice: Choice) -> tuple[str, str, str, str, str, int, str, str]:
        run, dataset, method, setting, tier, seed, attack, _, apart = choice
        return dataset, tier, method, setting, attack, seed, apart, run

    return sorted(found, key=order)


def _charts(name: str, sources: Sources, sections: Collection[Section]) -> str:
    look = styles(record.spec["release"]["method"] for record in sources.records)
    records = [record for record in sources.records if board_files.dataset(record) == name]
    heading = tag("h1", escape(f"{name}: charts"), tabindex="-1")

    def published(methods: Collection[str]) -> list[Panel]:
        return [panel for section in sections for panel in section.curves(name, methods)]

    return heading + figures.section(records, published, look)
