"""What the papers' texts say of their figures, and what the boards' runs do."""

from __future__ import annotations

from bench.papers.figures import FIGURES
from bench.papers.figures.draw import answer
from bench.papers.figures.sweep_points import pictures
from bench.papers.printed_numbers import load
from bench.report.points import grouped
from docs.tables.boards import records
from docs.tables.cells import table


def said() -> str:
    """Every sentence that a picture has an answer to, by figure and data set."""
    numbers = load()
    groups = grouped([record for record in records().values() if record.spec["tier"] != "smoke"], attacks=False)
    rows = []
    for figure in FIGURES:
        sweeps = [sweep for sweep in figure.sweeps if sweep.says]
        drawn = [picture for sweep in sweeps for picture in pictures(sweep, figure.paper, groups, numbers)]
        for found in sorted(answer(figure, drawn, numbers), key=lambda each: (each["text"], each["dataset"])):
            where = f"`{figure.paper}` {figure.name}"
            rows.append([where, found["text"], found["dataset"], found["verdict"], found["numbers"]])
    return table(["figure", "the text says", "on", "ours", "ours, in numbers"], rows)
