"""The report as files: a page, its style and scripts, and one data script for each part of its content."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from bench import __version__, extensions
from bench import boards as board_files
from bench.boards import Board
from bench.boards.columns import ALL
from bench.report import boards, figures, glossary, method_pages, points, releases, runs
from bench.report.charts import styles, tag
from bench.report.files import DATA, PICTURES, WEB, Files, script, slug
from bench.report.highlights import EPSILON, attacks, highlights
from bench.report.names import apart
from bench.report.points import Panel
from bench.report.sections import Picture, Section, Shown, gallery
from bench.report.sources import Sources
from bench.storage.provenance import devices
from bench.storage.records import Record

SHARD = 2
"""Number of leading letters of a hash that runs in one script share: at most 256 scripts."""
BEFORE = b'<script defer src="web/routes.js">'
"""Position of the sections' scripts in the page: before the script that reads which pages exist."""
Row = Mapping[str, Any]
Parts = dict[str, Any]
"""Name of a part of the data to its value."""


def render(sources: Sources) -> Files:
    """Return all files of the report; the same sources give the same bytes.

    Everything from records is escaped or passed as JSON, and the scripts write it as text. The page's policy allows
    only its own scripts, styles and pictures.
    """
    found = {name: files("bench.report").joinpath(WEB, name).read_bytes() for name in _web()}
    shown, images = show(sources)
    sections = add_sections(shown)
    found |= {f"{name}.js": section.script for name, section in sections.items()}
    tags = "".join(f'<script defer src="{WEB}/{name}.js"></script>\n' for name in sections).encode()
    page = found.pop("page.html").replace(BEFORE, tags + BEFORE)
    return (
        {"index.html": page}
        | {f"{WEB}/{name}": content for name, content in found.items()}
        | {f"{DATA}/{name}.js": script(name, value) for name, value in parts(shown, sections).items()}
        | {f"{PICTURES}/{name}.png": content for name, content in images.items()}
    )


def _web() -> list[str]:
    return sorted(each.name for each in files("bench.report").joinpath(WEB).iterdir() if each.is_file())


def show(sources: Sources) -> tuple[Shown, dict[str, bytes]]:
    """Build the boards, and name pictures by their content: one file, even if several runs show it."""
    known = {record.hash: record for record in sources.records}
    images: dict[str, bytes] = {}
    pictures = []
    for name, of in sources.pictures.items():
        for kind, png in sorted(of.items()) if name in known else ():
            key = hashlib.sha256(png).hexdigest()[:16]
            images[key] = png
            pictures.append(Picture(known[name], kind, key))
    built = [_board(name, sources) for name in _names(sources)]
    rows = [row for board in built for row in _rows(board)]
    return Shown(sources, rows, pictures, built), images


def add_sections(shown: Shown) -> dict[str, Section]:
    """Return the contributions of other packages to the report, by name."""
    return {name: make(shown) for name, make in extensions.load("report sections").items()}


def parts(shown: Shown, sections: Mapping[str, Section]) -> Parts:
    """Return every part of the data."""
    sources, tables = shown.sources, _by_dataset(shown.rows)
    lines = releases.lines(shown.boards)
    added = {name: section.methods for name, section in sections.items()}
    methods = method_pages.pages(sources.records, sources.audits, lines, added)
    pages = _runs(shown)
    datasets = {board.dataset: _dataset(board, tables[board.dataset], sources) for board in shown.boards}
    found: Parts = {}
    for name in tables:
        found[f"board-{slug(name)}"] = datasets[name]
        found[f"charts-{slug(name)}"] = {"markup": _charts(name, sources, sections.values())}
        mine = [picture for picture in shown.pictures if board_files.dataset(picture.record) == name]
        found[f"images-{slug(name)}"] = gallery(mine, lambda picture: picture.kind)
    found |= {f"method-{slug(page['name'])}": page for page in methods}
    found |= _shards(pages)
    found |= {"choose": lines, "names": _choices(sources.records)}
    for section in sections.values():
        found |= section.parts
    flags = {flag for page in pages.values() for flag in page["flags"]}
    flags |= {flag for of in datasets.values() for row in of["rows"] for flag in row["flags"]}
    index = _index(shown, datasets, methods) | {name: section.index for name, section in sections.items()}
    explained = {flag: glossary.flag(flag) for flag in flags}
    for section in sections.values():
        explained |= section.flags
    index |= {"flags": explained, "shards": sorted(name for name in found if name.startswith("runs-"))}
    return found | {"index": index}


def _by_dataset(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["dataset"]].append(row)
    return dict(found)


def _index(
    shown: Shown, datasets: Mapping[str, Mapping[str, Any]], methods: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the data that every page needs; of runs only those on the front page."""
    pictured = {board_files.dataset(picture.record) for picture in shown.pictures}
    return {
        "version": __version__,
        "columns": [asdict(column) for column in ALL],
        "runs": len(shown.sources.records),
        "shard": SHARD,
        "datasets": [
            {
                "name": name,
                "file": slug(name),
                "runs": of["runs"],
                "rows": len(of["rows"]),
                "methods": len({row["method"] for row in of["rows"] if row.get("kind") != "reference"}),
                "attacks": attacks(of["rows"]),
                "best": of["best"],
                "pictures": name in pictured,
            }
            for name, of in datasets.items()
        ],
        "methods": [
            {"file": slug(page["name"])} | {key: page[key] for key in ("name", "folder", "summary", "runs")}
            for page in methods
        ],
        "units": glossary.UNITS,
        "proved": EPSILON,
        "variants": glossary.VARIANTS,
        "statuses": glossary.STATUSES,
        "tiers": glossary.TIERS,
        "order": {"tiers": list(glossary.TIERS), "units": list(glossary.UNITS)},
    }


def _names(sources: Sources) -> list[str]:
    return sorted({board_files.dataset(record) for record in sources.records})


def _board(name: str, sources: Sources) -> Board:
    records = [record for record in sources.records if board_files.dataset(record) == name]
    audits = [audit for audit in sources.audits if board_files.dataset(audit) == name]
    return board_files.build(records, audits)


def _rows(board: Board) -> list[Row]:
    """Return the wide rows of a board; an empty cell is ""."""
    rows = board_files.wide_rows(board)
    return [{key: "" if value is None else value for key, value in row.items()} for row in rows]


def _dataset(board: Board, table: Sequence[Row], sources: Sources) -> dict[str, Any]:
    name = board.dataset
    audits = [audit for audit in sources.audits if board_files.dataset(audit) == name]
    rows = boards.rows(table)
    return {
        "name": name,
        "rows": rows,
        "best": highlights(board),
        "columns": boards.columns(rows),
        "runs": sum(board_files.dataset(record) == name for record in sources.records),
        "audits": runs.audit_lines(audits),
    }


def _runs(shown: Shown) -> dict[str, dict[str, Any]]:
    """Return the page of every run; `seeds` are the runs of its row, by seed."""
    seeds: dict[str, list[list[str]]] = {}
    pictured: dict[str, list[list[str]]] = defaultdict(list)
    for picture in shown.pictures:
        pictured[picture.record.hash].append([picture.kind, picture.key])
    for row in shown.rows:
        names = releases.text(row["runs"]).split()
        pairs = [list(each) for each in zip(releases.text(row["seeds"]).split(), names, strict=True)]
        seeds |= dict.fromkeys(names, pairs)
    audits = board_files.by_release(shown.sources.audits)
    found = {}
    for record in shown.sources.records:
        of = audits.get(board_files.audited_release(record.spec), []) if audits else []
        pictures = {"pictures": pictured[record.hash]} if record.hash in pictured else {}
        found[record.hash] = runs.page(record, of) | pictures | {"seeds": seeds[record.hash]}
    return found


def _shards(pages: Mapping[str, dict[str, Any]]) -> Parts:
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, page in pages.items():
        found[f"runs-{name[:SHARD]}"][name] = page
    return dict(found)


def _choices(records: Sequence[Record]) -> list[list[Any]]:
    """Return the list of runs to choose from; each ends with the fields that distinguish it from equal entries."""
    labels = [_label(record) for record in records]
    names = [tuple(map(str, label[1:-1])) for label in labels]
    told = apart(names, [_unsaid(record) for record in records])
    return sorted(([*label, words] for label, words in zip(labels, told, strict=True)), key=_order)


def _unsaid(record: Record) -> dict[str, str]:
    """Return fields of a run that its entry in the list omits."""
    release, attack = record.spec["release"], record.spec["attack"]
    return {
        "split": f"split {release['teacher']['data']['split']}",
        "teacher": f"teacher={release['teacher']['arch']}",
        "student": f"student={record.student}" if record.student else "",
        "version": f"version {release['version']}",
        "attack": "" if attack is None else f"{attack.get('variant', 'printed')} attack, version {attack['version']}",
        "noise": "float32 noise" if record.privacy and points.is_coarse([record]) else "",
        "device": ", ".join(devices(record.provenance)),
    }


def _label(record: Record) -> list[Any]:
    """Return the entry of a run in a list to choose from."""
    release, attack = record.spec["release"], record.spec["attack"]
    return [
        record.hash,
        board_files.dataset(record),
        f"{release['method']} ({release.get('variant', 'printed')})",
        record.setting,
        record.spec["tier"],
        release["seed"],
        "" if attack is None else attack["attack"],
        record.metrics.get("accuracy"),
    ]


def _order(label: list[Any]) -> list[str | int]:
    """Return the sort key of an entry: data set, method, setting, attack, seed, distinguishing fields."""
    name, dataset, method, setting, tier, seed, attack, _, told = label
    return [dataset, tier, method, setting, attack, seed, told, name]


def _charts(name: str, sources: Sources, sections: Iterable[Section]) -> str:
    look = styles(record.spec["release"]["method"] for record in sources.records)
    records = [record for record in sources.records if board_files.dataset(record) == name]
    heading = tag("h1", escape(f"{name}: charts"), tabindex="-1")

    def published(methods: Collection[str]) -> list[Panel]:
        return [panel for section in sections for panel in section.curves(name, methods)]

    return heading + figures.section(records, published, look)
