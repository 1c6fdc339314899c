"""The report as files: a page, its style and scripts, and a script of data for each thing that it shows."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from bench import __version__, data
from bench import boards as board_files
from bench.boards import Board, reasons, reported
from bench.boards.columns import ALL
from bench.report import boards, figures, glossary, method_pages, paper_tables, points, releases, runs
from bench.report.charts.marks import Styles, styles
from bench.report.charts.svg import tag
from bench.report.files import DATA, PICTURES, WEB, Files, readable, script, slug
from bench.report.highlights import EPSILON, attacks, highlights
from bench.report.names import apart
from bench.report.paper_figures import FIGURES
from bench.report.paper_figures.claims import answers
from bench.report.paper_figures.kinds import Figure
from bench.report.paper_figures.sweep_charts import SIDES, agreement, look_of, sweep_figure
from bench.report.paper_figures.sweep_points import Picture, pictures
from bench.report.sources import Sources
from bench.storage.provenance import devices
from bench.storage.records import Record

SHARD = 2
"""Runs whose hashes begin with the same so many letters are in one script: at most 256 of them."""
Parts = dict[str, Any]
"""Name of a part of the data to its value."""


def render(sources: Sources) -> Files:
    """All files of the report; the same sources give the same bytes.

    Whatever comes from records is escaped or travels as JSON, and the scripts write it as text. The page's policy
    allows no script, style or picture but those beside it.
    """
    found = {name: files("bench.report").joinpath(WEB, name).read_bytes() for name in _web()}
    page = found.pop("page.html")
    held, images = parts(sources)
    return (
        {"index.html": page}
        | {f"{WEB}/{name}": content for name, content in found.items()}
        | {f"{DATA}/{name}.js": script(name, value) for name, value in held.items()}
        | {f"{PICTURES}/{name}.png": content for name, content in images.items()}
    )


def _web() -> list[str]:
    return sorted(each.name for each in files("bench.report").joinpath(WEB).iterdir() if each.is_file())


def parts(sources: Sources) -> tuple[Parts, dict[str, bytes]]:
    """Every part of the data, and pictures by the name of their file: one, however many runs show it."""
    images: dict[str, bytes] = {}
    shown = {name: [[kind, _kept(images, png)] for kind, png in sorted(of.items())] for name, of in _pngs(sources)}
    built = {name: _board(name, sources) for name in _names(sources)}
    tables = {name: _rows(board) for name, board in built.items()}
    lines = releases.lines(built.values())
    rows = [row for table in tables.values() for row in table]
    papers = paper_tables.tables(rows, sources.recipes, sources.dataset)
    drawn = _figures(sources, shown)
    methods = method_pages.pages(sources.records, sources.audits, lines, papers)
    pages = _runs(sources, shown, rows)
    datasets = {name: _dataset(built[name], table, sources) for name, table in tables.items()}
    found: Parts = {}
    for name in tables:
        found[f"board-{slug(name)}"] = datasets[name]
        found[f"charts-{slug(name)}"] = {"markup": _charts(name, sources)}
        found[f"images-{slug(name)}"] = _gallery(name, sources.records, shown)
    found |= {f"table-{table['slug']}": table | {"chart": agreement(table["lines"])} for table in papers}
    found |= {f"figure-{figure['slug']}": figure for figure in drawn}
    found |= {f"method-{slug(page['name'])}": page for page in methods}
    found |= _shards(pages)
    found |= {"choose": lines, "names": _choices(sources.records), "reported": sources.reported}
    flags = {flag for page in pages.values() for flag in page["flags"]}
    flags |= {flag for of in datasets.values() for row in of["rows"] for flag in row["flags"]}
    flags |= {flag for table in papers for line in table["lines"] if line["ours"] for flag in line["ours"]["flags"]}
    index = _index(sources, datasets, papers, drawn, methods, flags, shown)
    found["index"] = index | {"shards": sorted(name for name in found if name.startswith("runs-"))}
    return found, images


def _index(
    sources: Sources,
    datasets: Mapping[str, Mapping[str, Any]],
    papers: Sequence[Mapping[str, Any]],
    drawn: Sequence[Mapping[str, Any]],
    methods: Sequence[Mapping[str, Any]],
    flags: Iterable[str],
    shown: Mapping[str, Any],
) -> dict[str, Any]:
    """What every page needs, and no more of any run than the front page shows."""
    pictured = {board_files.dataset(record) for record in sources.records if record.hash in shown}
    return {
        "version": __version__,
        "columns": [asdict(column) for column in ALL],
        "runs": len(sources.records),
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
        "tables": [_without(table, "lines") for table in papers],
        "figures": [_without(figure, "markup", "gallery") for figure in drawn],
        "methods": [
            {"file": slug(page["name"])} | {key: page[key] for key in ("name", "folder", "summary", "runs")}
            for page in methods
        ],
        "printed": len(sources.reported),
        "undrawn": _undrawn(drawn),
        "flags": {flag: glossary.flag(flag) for flag in sorted(flags)},
        "issues": glossary.ISSUES,
        "reasons": reasons.CODES,
        "close": reasons.CLOSE,
        "units": glossary.UNITS,
        "proved": EPSILON,
        "variants": glossary.VARIANTS,
        "statuses": glossary.STATUSES,
        "tiers": glossary.TIERS,
        "order": {"tiers": list(glossary.TIERS), "units": list(glossary.UNITS)},
    }


def _undrawn(drawn: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Paper and name of the figures of pictures alone of which this report has none."""
    shown = {(figure["paper"], figure["figure"]) for figure in drawn}
    return [
        [figure.paper, figure.name]
        for figure in FIGURES
        if not figure.sweeps and (figure.paper, figure.name) not in shown
    ]


def _without(found: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in keys}


def _names(sources: Sources) -> list[str]:
    return sorted({board_files.dataset(record) for record in sources.records})


def _pngs(sources: Sources) -> list[tuple[str, dict[str, bytes]]]:
    known = {record.hash for record in sources.records}
    return [(name, of) for name, of in sources.pictures.items() if name in known]


def _kept(known: dict[str, bytes], png: bytes) -> str:
    """The name of a picture."""
    name = hashlib.sha256(png).hexdigest()[:16]
    known[name] = png
    return name


def _board(name: str, sources: Sources) -> Board:
    records = [record for record in sources.records if board_files.dataset(record) == name]
    audits = [audit for audit in sources.audits if board_files.dataset(audit) == name]
    return board_files.build(records, audits)


def _rows(board: Board) -> list[dict[str, Any]]:
    """The wide rows of a board with the papers' numbers; an empty cell is ""."""
    rows = [row if row["unit"] is None else row | reported.join(row) for row in board_files.wide_rows(board)]
    return [{key: "" if value is None else value for key, value in row.items()} for row in rows]


def _dataset(board: Board, table: Sequence[Mapping[Any, Any]], sources: Sources) -> dict[str, Any]:
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


def _runs(
    sources: Sources, shown: Mapping[str, list[list[str]]], rows: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The page of every run; `seeds` are the runs of its row, by seed."""
    seeds: dict[str, list[list[str]]] = {}
    for row in rows:
        names = releases.text(row["runs"]).split()
        pairs = [list(each) for each in zip(releases.text(row["seeds"]).split(), names, strict=True)]
        seeds |= dict.fromkeys(names, pairs)
    audits = board_files.by_release(sources.audits)
    found = {}
    for record in sources.records:
        of = audits.get(board_files.audited_release(record.spec), []) if audits else []
        pictured = {"pictures": shown[record.hash]} if record.hash in shown else {}
        found[record.hash] = runs.page(record, of) | pictured | {"seeds": seeds[record.hash]}
    return found


def _shards(pages: Mapping[str, dict[str, Any]]) -> Parts:
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, page in pages.items():
        found[f"runs-{name[:SHARD]}"][name] = page
    return dict(found)


def _choices(records: Sequence[Record]) -> list[list[Any]]:
    """The list of runs to choose from; each ends with what tells it from others that would read the same."""
    labels = [_label(record) for record in records]
    names = [tuple(map(str, label[1:-1])) for label in labels]
    told = apart(names, [_unsaid(record) for record in records])
    return sorted(([*label, words] for label, words in zip(labels, told, strict=True)), key=_order)


def _unsaid(record: Record) -> dict[str, str]:
    """What a run's place in the list does not say."""
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
    """A run in a list to choose from."""
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
    """Of the list to choose from: data set, method, setting, attack, seed, what tells it apart."""
    name, dataset, method, setting, tier, seed, attack, _, told = label
    return [dataset, tier, method, setting, attack, seed, told, name]


def _gallery(name: str, records: Iterable[Record], shown: Mapping[str, list[list[str]]]) -> list[dict[str, Any]]:
    """The pictures of a data set's runs, by kind, method and setting."""
    mine = [record for record in records if board_files.dataset(record) == name and record.hash in shown]
    found = [_picture(record, kind, key) for record in mine for kind, key in shown[record.hash]]
    return sorted(found, key=lambda each: (each["kind"], each["label"], each["run"]))


def _picture(record: Record, kind: str, key: str) -> dict[str, Any]:
    release, attack = record.spec["release"], record.spec["attack"]
    words = [f"{release['method']} ({release.get('variant', 'printed')})", record.setting, f"seed {release['seed']}"]
    words += ["" if attack is None else attack["attack"], "smoke" if record.spec["tier"] == "smoke" else ""]
    label = ", ".join(word for word in words if word)
    return {"run": record.hash, "kind": kind, "key": key, "label": label}


def _figures(sources: Sources, shown: Mapping[str, list[list[str]]]) -> list[dict[str, Any]]:
    """The papers' figures, those without a number or a picture left out; smoke runs mean nothing and are no points."""
    records = [record for record in sources.records if record.spec["tier"] != "smoke"]
    groups = {
        True: points.grouped([record for record in records if record.spec["attack"]], attacks=True),
        False: points.grouped(records, attacks=False),
    }
    return [
        found
        for figure in FIGURES
        if (found := _figure(figure, sources, groups, shown))["markup"] or found["single"] or found["gallery"]
    ]


def _figure(
    figure: Figure,
    sources: Sources,
    groups: Mapping[bool, list[list[Record]]],
    shown: Mapping[str, list[list[str]]],
) -> dict[str, Any]:
    found = [
        picture
        for sweep in figure.sweeps
        for picture in pictures(sweep, figure.paper, groups[bool(sweep.attack)], sources.reported)
        if picture.ours or picture.printed
    ]
    mine = [record for record in sources.records if record.spec["release"]["method"] in figure.methods]
    gallery = [
        _picture(record, f"{board_files.dataset(record)}: {kind}", key)
        for record in mine
        for kind, key in shown.get(record.hash, [])
        if kind == figure.pictures
    ]
    recipe = sources.recipes.get((figure.paper, figure.name))
    name = f"{figure.paper} {figure.name}"
    look = look_of(point for picture in found for point in picture.points)
    return {
        "slug": readable(name),
        "paper": figure.paper,
        "figure": figure.name,
        "title": name if recipe is None else recipe.title,
        "recipe": None if recipe is None else recipe.file,
        "note": figure.note,
        "markup": _panels([picture for picture in found if picture.shows], look),
        "single": _panels([picture for picture in found if not picture.shows], look),
        "answers": asked(figure, found, sources.reported),
        "gallery": sorted(gallery, key=lambda each: (each["kind"], each["label"], each["run"])),
        "ours": sum(picture.ours for picture in found if picture.shows),
        "printed": len(frozenset[tuple[str, ...]]().union(*(picture.rows for picture in found))),
    }


def asked(figure: Figure, drawn: Iterable[Picture], reported: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """What the paper's text says of its figure, and what ours do on its data sets."""
    theirs = {row["dataset"] for row in reported if row["paper"] == figure.paper}
    return [
        {"dataset": picture.dataset, "picture": picture.sweep.title} | answer.to_json()
        for picture in drawn
        if picture.dataset in theirs
        for answer in answers(picture.sweep.says, picture.points, _chance(picture))
    ]


def _chance(picture: Picture) -> float | None:
    """What whoever names the commonest class reaches, or one of equal classes; None where no accuracy is drawn."""
    if picture.sweep.y in SIDES or not picture.ours:
        return None
    known = points.largest(point.commonest for point in picture.points) if picture.sweep.y == "accuracy" else None
    return known or 1 / len(data.facts(picture.dataset).class_names)


def _panels(drawn: Sequence[Picture], look: Styles) -> str:
    return tag("div", "".join(sweep_figure(picture, look) for picture in drawn), class_="panels") if drawn else ""


def _charts(name: str, sources: Sources) -> str:
    look = styles(record.spec["release"]["method"] for record in sources.records)
    records = [record for record in sources.records if board_files.dataset(record) == name]
    reported = [row for row in sources.reported if row.get("dataset") == name]
    heading = tag("h1", escape(f"{name}: charts"), tabindex="-1")
    return heading + figures.section(records, reported, look)
