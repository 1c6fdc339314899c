"""What the papers' texts say of their figures, and what the boards' runs do."""

from __future__ import annotations

import csv

from bench.report.paper_figures import FIGURES
from bench.report.paper_figures.sweep_points import pictures
from bench.report.points import grouped
from bench.report.site import asked
from docs.tables.boards import ROOT, records
from docs.tables.cells import table


def said() -> str:
    """Every sentence that a picture has an answer to, by figure and data set."""
    with (ROOT / "leaderboards" / "reported.csv").open(newline="", encoding="utf-8") as stream:
        reported = list(csv.DictReader(stream))
    groups = grouped([record for record in records().values() if record.spec["tier"] != "smoke"], attacks=False)
    rows = []
    for figure in FIGURES:
        sweeps = [sweep for sweep in figure.sweeps if sweep.says]
        drawn = [picture for sweep in sweeps for picture in pictures(sweep, figure.paper, groups, reported)]
        for answer in sorted(asked(figure, drawn, reported), key=lambda each: (each["text"], each["dataset"])):
            where = f"`{figure.paper}` {figure.name}"
            rows.append([where, answer["text"], answer["dataset"], answer["verdict"], answer["told"]])
    return table(["figure", "the text says", "on", "ours", "ours, in numbers"], rows)
