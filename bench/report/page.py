"""The page: data as JSON, charts as markup, style and script inside; nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from dataclasses import asdict
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from bench import __version__, leaderboard
from bench.leaderboard.columns import ALL
from bench.report import boards, charts, figures, glossary, runs
from bench.report.charts import tag
from bench.report.highlights import EPSILON, highlights
from bench.report.sources import Sources
from bench.storage.records import Audit


def render(sources: Sources) -> str:
    """The HTML of the report; the same sources give the same text.

    Whatever comes from records is escaped or travels as JSON, and the script writes it as text. The page's policy
    allows no script but its own and no address but data: images.
    """
    css, script = _file("page.css"), _file("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_sha256(css)}; script-src {_sha256(script)}; base-uri 'none'"
    )
    return Template(_file("page.html")).substitute(
        policy=policy, css=css, script=script, data=embedded(content(sources)), charts=_charts(sources)
    )


def _file(name: str) -> str:
    return files("bench.report").joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element: no "<" in it, hence no end tag and no comment."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def content(sources: Sources) -> dict[str, Any]:
    """All that the page shows but its charts, as plain data."""
    audits: dict[str, list[Audit]] = defaultdict(list)
    for audit in sources.audits:
        audits[leaderboard.audited_release(audit.spec)].append(audit)
    shown = {r.hash: runs.page(r, audits[leaderboard.audited_release(r.spec)]) for r in sources.records}
    pictures: dict[str, str] = {}
    for name, found in sources.pictures.items():
        if name in shown:
            shown[name]["pictures"] = [[key, _picture(pictures, data)] for key, data in sorted(found.items())]
    datasets = [_dataset(name, sources) for name in _names(sources)]
    lines = [*shown.values(), *(row for dataset in datasets for row in dataset["rows"])]
    flags = {flag for line in lines for flag in line["flags"]}
    return {
        "version": __version__,
        "columns": [asdict(column) for column in ALL],
        "datasets": datasets,
        "runs": shown,
        "pictures": pictures,
        "reported": sources.reported,
        "flags": {flag: glossary.flag(flag) for flag in sorted(flags)},
        "units": glossary.UNITS,
        "proved": EPSILON,
        "variants": glossary.VARIANTS,
        "statuses": glossary.STATUSES,
        "tiers": glossary.TIERS,
    }


def _names(sources: Sources) -> list[str]:
    return sorted({leaderboard.dataset(record) for record in sources.records})


def _picture(known: dict[str, str], data: bytes) -> str:
    """The key of a picture, which is kept once however many runs show it."""
    key = hashlib.sha256(data).hexdigest()[:16]
    known[key] = "data:image/png;base64," + base64.b64encode(data).decode()
    return key


def _dataset(name: str, sources: Sources) -> dict[str, Any]:
    records = [record for record in sources.records if leaderboard.dataset(record) == name]
    audits = [audit for audit in sources.audits if leaderboard.dataset(audit) == name]
    table = leaderboard.table(records, audits).to_dict("records")
    rows = boards.rows(table)
    return {
        "name": name,
        "rows": rows,
        "best": highlights(name, table),
        "columns": boards.columns(rows),
        "runs": len(records),
        "audits": [runs.audit_line(audit) for audit in audits],
    }


def _charts(sources: Sources) -> str:
    look = charts.styles(record.spec["release"]["method"] for record in sources.records)
    parts = []
    for name in _names(sources):
        records = [record for record in sources.records if leaderboard.dataset(record) == name]
        reported = [row for row in sources.reported if row.get("dataset") == name]
        heading = tag("h1", escape(f"{name}: charts"), tabindex="-1")
        drawn = figures.section(records, reported, look)
        parts.append(f'<div class="charts" data-dataset="{escape(name)}" hidden>{heading}{drawn}</div>')
    return "\n".join(parts)
