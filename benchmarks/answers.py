"""Accuracy over the number of responses: the picture docs/answers.png, from leaderboards/papers/ablations/runs.csv.

bench sweep recipes/answers.toml --data-root DATA --out ANSWERS
python benchmarks/ablations.py ANSWERS
python benchmarks/answers.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from bench.boards.tables import read_options
from bench.papers.effects import read

DOCS = Path(__file__).resolve().parent.parent / "docs"
LABEL, LABEL_1 = "label mode, claimed 10", "label mode, claimed 1"
COPIES = "label mode, claimed 1, 16 and 32 moved copies of each image"
DATA = "data mode, claimed 10: the same budget shared out"
NUMBER, MODE, SHARED, MOVED = "queries", "mode", "max_noise", "copies"
PRINTED = 98.19
"""DPSD, Table VI: label mode on MNIST, claimed epsilon 10, b T = 51,200."""
Curve = list[tuple[int, float]]


def curves(rows: Iterable[dict[str, str]], dataset: str) -> dict[str, Curve]:
    """Return (responses, mean accuracy in percent) by curve, from DPSD's rows that differ only in the number of
    responses."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        options = read_options(row["options"])
        name = _curve(options["method"], options["budget"].get("epsilon", 10.0))
        if (row["method"], row["dataset"]) == ("dpsd", dataset) and name:
            found[name, options["method"].get(NUMBER, 25_600)].append(100 * float(row["accuracy"]))
    made: dict[str, Curve] = {name: [] for name in (LABEL, LABEL_1, COPIES, DATA)}
    for (name, number), accuracies in sorted(found.items()):
        made[name].append((number, mean(accuracies)))
    return made


def _curve(method: dict[str, object], epsilon: float) -> str | None:
    if method.get(MODE) == "label" and set(method) <= {MODE, NUMBER}:
        return {10.0: LABEL, 1.0: LABEL_1}.get(epsilon)
    if method.get(MODE) == "label" and set(method) == {MODE, NUMBER, MOVED}:
        return COPIES if epsilon == 1 else None
    shared = method.get(SHARED) == 0 and set(method) <= {MODE, NUMBER, SHARED} and epsilon == 10
    return DATA if shared else None


def compose(dataset: str, found: dict[str, Curve]) -> Figure:
    """Draw accuracy against the number of responses on a logarithmic axis."""
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    for (name, curve), marker in zip(found.items(), "osD^", strict=True):
        axes.plot(*zip(*curve, strict=True), marker=marker, label=name)
    axes.axhline(PRINTED, color="grey", linestyle=":", label=f"printed, label mode, claimed 10: {PRINTED} %")
    axes.set(xscale="log", xlabel="answers of the teacher", ylabel="accuracy of the student, %")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_title(f"DPSD on {dataset}, variant working", loc="left")
    axes.grid(alpha=0.3)
    figure.legend(fontsize="small", loc="outside lower center")
    return figure


def main() -> None:
    """Draw the picture."""
    found = curves(read(), "mnist")
    compose("MNIST", found).savefig(DOCS / "answers.png", dpi=120, metadata={"Software": None})
    for name, curve in found.items():
        print(name + ": " + ", ".join(f"{number:,} -> {accuracy:.1f} %" for number, accuracy in curve))


if __name__ == "__main__":
    main()
