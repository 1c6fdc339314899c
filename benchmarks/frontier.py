"""Draw docs/frontier.png of the README: accuracy against accounted epsilon, from the published boards.

python benchmarks/frontier.py

Hollow marks: numbers published in the papers, at their claimed epsilon. Filled marks: our measurements, at the
accounted epsilon for one private record; among methods with a small epsilon, the best at each epsilon is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.boards.flags import pretrained_flag
from bench.boards.results import Result, results
from bench.boards.tables import read_board

ROOT = Path(__file__).resolve().parent.parent
PAPERS = {"dgd": "o", "dp-dfd": "s", "dpdfd": "^", "dpsd": "D", "fed-dpsd": "v"}
PRINTED_AS = {"feddpsd": "fed-dpsd"}
SMALL = 100.0
"""Largest epsilon with a meaningful guarantee."""
LOWEST = 55.0
"""Smallest accuracy that is drawn."""
NAMED_AT, FROM = 0.25, 0.0015
"""Epsilon at the right end of the names, and at the start of the axis, so that the longest name fits."""
APART = 2.2
"""Vertical distance between two names, in points of accuracy."""
NOT_TAKEN = {"older-version", "float32-noise", "account-corrected", "refuted"}
"""Flags of rows that are not drawn."""
Setting = tuple[str, float, float]
"""Method, epsilon, accuracy in percent."""


def measured(board: Iterable[Result]) -> list[Setting]:
    """Return one entry per setting with a finite accounted epsilon for one record, except printed variants; only those
    that `bench choose` would accept: of present versions, with a valid account. Releases that began from public
    pretrained weights are left out."""
    best: dict[tuple[str, str], Result] = {}
    for result in board:
        row, key = result.release, (result.release.method, result.setting)
        is_meant = row.variant != "printed" and row.unit == "example" and row.split == "iid"
        is_finite = result.accounted is not None and math.isfinite(result.accounted)
        if is_meant and is_finite and not NOT_TAKEN & result.flags and not pretrained_flag(result.flags):
            best[key] = max(best.get(key, result), result, key=lambda each: len(each.runs))
    return [
        (method, result.accounted, 100 * result.accuracy)
        for (method, _), result in best.items()
        if result.accounted is not None and result.accuracy is not None
    ]


def printed(reported: pd.DataFrame, dataset: str) -> list[Setting]:
    """Return the best number that any of the four papers prints for each of their methods at a claimed 1 and 10;
    numbers that were swapped with another one where they are quoted are left out."""
    rows = reported[(reported["dataset"] == dataset) & (reported["metric"] == "accuracy")]
    rows = rows[~rows["issue"].fillna("").str.contains("swapped-values")]
    rows = rows.assign(method=rows["method"].replace(PRINTED_AS))
    rows = rows[rows["method"].isin(list(PAPERS)) & rows["epsilon"].isin([1.0, 10.0])]
    best = rows.groupby(["method", "epsilon"])["value"].max()
    return [(method, epsilon, 100 * value) for (method, epsilon), value in best.items()]


def frontier(settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings that no other one of smaller or equal epsilon beats, by rising epsilon."""
    found: list[Setting] = []
    for setting in sorted(settings, key=lambda s: (s[1], -s[2])):
        if not found or setting[2] > found[-1][2]:
            found.append(setting)
    return found


def draw(axes: Axes, title: str, ours: list[Setting], theirs: list[Setting]) -> None:
    """Draw one data set."""
    for method, marker in PAPERS.items():
        both = [(e, a) for m, e, a in theirs if m == method], [(e, a) for m, e, a in ours if m == method]
        hollow, filled = ([*zip(*points, strict=True)] or [(), ()] for points in both)
        colour = f"C{list(PAPERS).index(method)}"
        axes.scatter(*hollow, marker=marker, facecolors="none", edgecolors=colour, s=45)
        axes.scatter(*filled, marker=marker, color=colour, s=45, label=method)
    sound = [s for s in ours if s[0] not in PAPERS and s[1] <= SMALL]
    axes.scatter([e for _, e, _ in sound], [a for *_, a in sound], marker=".", color="grey", label="baselines")
    best = frontier(s for s in sound if s[2] >= LOWEST)
    axes.plot([e for _, e, _ in best], [a for *_, a in best], color="black", lw=1, label="best of them")
    axes.set(xscale="log", ylim=(LOWEST, 101), xlim=(FROM, None))
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    name(axes, best)


def name(axes: Axes, best: list[Setting]) -> None:
    """Write each method's name once, left of all points, with a line to its point of the least epsilon."""
    height = math.inf
    for method in dict.fromkeys(method for method, *_ in reversed(best)):
        _, epsilon, accuracy = next(s for s in best if s[0] == method)
        height = min(accuracy, height - APART)
        axes.annotate(
            method, (epsilon, accuracy), (NAMED_AT, height), ha="right", va="center", fontsize=7,
            arrowprops={"arrowstyle": "-", "color": "grey", "lw": 0.6, "shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip


def compose(boards: dict[str, list[Result]], reported: pd.DataFrame) -> Figure:
    """Draw a panel for each data set."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, len(boards), squeeze=False)[0]
    for axes, (dataset, board) in zip(panels, boards.items(), strict=True):
        draw(axes, dataset, measured(board), printed(reported, dataset))
    panels[0].set_ylabel("accuracy of what is released, %")
    panels[0].legend(fontsize="small", loc="lower right")
    figure.supxlabel(
        "epsilon   (hollow: claimed, with the printed accuracy; filled: proved for one private record, with ours)",
        fontsize="medium",
    )
    return figure


def main() -> None:
    """Draw the picture."""
    folder = ROOT / "leaderboards"
    boards = {name: results(read_board(folder, name)) for name in ("mnist", "fmnist")}
    reported = pd.read_csv(folder / "papers" / "reported.csv")
    compose(boards, reported).savefig(ROOT / "docs" / "frontier.png", dpi=120, metadata={"Software": None})
    for name, board in boards.items():
        for method, epsilon, accuracy in frontier(s for s in measured(board) if s[1] <= SMALL):
            print(f"{name}: epsilon {epsilon:g}: {method} {accuracy:.1f} %")


if __name__ == "__main__":
    main()
