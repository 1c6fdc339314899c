"""Diagrams of the documentation, written to docs/diagrams as SVG.

    python -m docs.diagrams

`architecture.svg` is drawn from the imports of the code, the curves from the project's own accountant and bounds.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "diagrams"
BLUE, ORANGE, GREEN, GREY = "#d6e6f5", "#fbe3cc", "#d9efdc", "#ececec"
PLUGINS = ("methods", "baselines", "attacks")
STYLE = {"svg.hashsalt": "bench", "font.family": "sans-serif", "axes.spines.top": False,
         "axes.spines.right": False, "savefig.facecolor": "white", "font.size": 10}  # fmt: skip


def main() -> None:
    """Write every diagram."""
    FOLDER.mkdir(exist_ok=True)
    diagrams: dict[str, tuple[Callable[[Axes], None], tuple[float, float]]] = {
        "pipeline": (draw_pipeline, (10, 3.6)),
        "architecture": (draw_architecture, (10, 5.4)),
        "claimed": (draw_claimed, (6.4, 3.4)),
        "accounted": (draw_accounted, (6.4, 3.4)),
        "measured": (draw_measured, (6.4, 3.4)),
        "information": (draw_information, (6.4, 3.4)),
    }
    with mpl.rc_context(STYLE):
        for name, (draw, size) in diagrams.items():
            figure, axes = plt.subplots(figsize=size)
            draw(axes)
            figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
            plt.close(figure)


def draw_pipeline(axes: Axes) -> None:
    """Draw the steps of a run from left to right, and the data that each may see."""
    steps = [
        ("train\nteacher", BLUE),
        ("convert:\nnoisy responses,\nledger", ORANGE),
        ("measure\naccuracy,\nepsilon", GREEN),
        ("attack student,\nteacher and\nuntrained network", GREEN),
        ("verdict,\nrecord,\nboards", GREY),
    ]
    for place, (text, colour) in enumerate(steps):
        _box(axes, 2.4 * place, 1.5, 2.0, 1.1, text, colour)
        if place:
            _arrow(axes, (2.4 * place - 0.4, 2.05), (2.4 * place, 2.05))
    inputs = [("private records", 0), ("synthetic images", 1), ("test records", 2), ("attacker's records", 3)]
    for text, place in inputs:
        _box(axes, 2.4 * place, 0.0, 2.0, 0.6, text, "white")
        _arrow(axes, (2.4 * place + 1.0, 0.6), (2.4 * place + 1.0, 1.5))
    axes.text(1.0, 2.75, "stays inside", ha="center", color="#444444")
    axes.text(3.4, 2.75, "the student may leave", ha="center", color="#444444")
    _frame(axes, (-0.1, 11.8), (-0.1, 3.0))


def rooms() -> dict[str, set[str]]:
    """Return each package or module of `bench`, and the ones that it imports."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "bench").rglob("*.py"):
        room = path.relative_to(ROOT / "bench").parts[0].removesuffix(".py")
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        names += [
            f"bench.{name.name}"
            for n in nodes
            if isinstance(n, ast.ImportFrom) and n.module == "bench"
            for name in n.names
        ]
        names += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
        found.setdefault(room, set()).update(name.split(".")[1] for name in names if name.startswith("bench."))
    for room, imported in found.items():
        imported.intersection_update(set(found) - {room})
    return found


def layers() -> list[list[str]]:
    """Return the packages of `bench` from the lowest layer up: each imports only from lower layers."""
    packages = {path.parent.name for path in (ROOT / "bench").glob("*/__init__.py")}
    imports = {room: imported & packages for room, imported in rooms().items() if room in packages}
    height: dict[str, int] = {}

    def height_of(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((height_of(lower) for lower in imports[room]), default=-1)
        return height[room]

    for room in imports:
        height_of(room)
    return [sorted(room for room in height if height[room] == level) for level in range(max(height.values()) + 1)]


def draw_architecture(axes: Axes) -> None:
    """Draw the packages of `bench` in layers, with the plug-ins next to the layers that they build on."""
    for level, names in enumerate(layers()):
        width = 9.4 / len(names)
        for place, name in enumerate(names):
            _box(axes, width * place, 0.62 * level, width - 0.12, 0.5, name, BLUE)
    top = 0.62 * len(layers())
    _box(axes, 9.7, 0.0, 1.9, top - 0.12, "plug-ins\n\n" + "\n".join(PLUGINS), ORANGE)
    axes.text(
        0, top + 0.05, "A package imports only from the layers below it; plug-ins are loaded by name.", color="#444444"
    )
    _frame(axes, (-0.1, 11.7), (-0.1, top + 0.3))


def draw_claimed(axes: Axes) -> None:
    """Draw epsilon per response and per record against the number of responses, at one noise."""
    import bench

    responses = np.unique(np.logspace(0, 5, 40).astype(int))
    noise = bench.account(epsilon=10, rate=1.0, steps=1, delta=1e-5).sigma
    record = [bench.account(sigma=noise, rate=1.0, steps=int(count), delta=1e-5).epsilon for count in responses]
    axes.loglog(responses, np.full(len(responses), 10.0), color="#1f77b4")
    axes.loglog(responses, record, color="#d62728")
    axes.text(responses[-1], 12, "claimed per response", color="#1f77b4", ha="right", va="bottom")
    axes.text(300, record[-12] * 1.5, "accounted per record", color="#d62728", ha="right", va="bottom")
    axes.set(xlabel="responses of the teacher", ylabel="epsilon (delta 1e-5)")


def draw_accounted(axes: Axes) -> None:
    """Draw the highest true positive rate that (epsilon, delta) allows at each false positive rate."""
    rates = np.logspace(-3, 0, 200)
    axes.plot(rates, rates, color="grey", linestyle=":")
    for epsilon, colour in ((1, "#1f77b4"), (3, "#ff7f0e"), (8, "#d62728")):
        bound = np.minimum(math.exp(epsilon) * rates, 1 - math.exp(-epsilon) * (1 - rates))
        axes.plot(rates, np.clip(bound, 0, 1), color=colour)
        at = 0.003 if epsilon > 1 else 0.05
        place = float(np.interp(at, rates, bound))
        axes.text(at, place, f" epsilon {epsilon} ", color=colour, ha="right", va="bottom")
    axes.set(xscale="log", xlim=(1e-3, 1), ylim=(0, 1.08), xlabel="false positive rate of any attack",
             ylabel="highest true positive rate")  # fmt: skip


def draw_measured(axes: Axes) -> None:
    """Draw the lower bound on epsilon against the share of right guesses, for two numbers of canaries."""
    from bench.privacy.one_run import one_run_epsilon

    shares = np.linspace(0.5, 1.0, 26)
    for canaries, colour in ((100, "#9ecae1"), (1000, "#1f77b4")):
        bound = [one_run_epsilon(canaries, round(share * canaries), canaries, delta=1e-5) for share in shares]
        axes.plot(shares, bound, color=colour)
        axes.text(shares[-1], bound[-1], f" {canaries} guesses", color=colour, va="center")
    axes.set(xlabel="share of right guesses about which canaries were in the training set",
             ylabel="lower bound on epsilon")  # fmt: skip


def draw_information(axes: Axes) -> None:
    """Draw the accuracy that a number of nats allows on ten classes, with DPSD's published settings marked."""
    from bench.privacy.information import gaussian_capacity, most_accuracy

    nats = np.logspace(-2, 3, 200)
    axes.semilogx(nats, [most_accuracy(float(value), 10) for value in nats], color="#1f77b4")
    published = 200 * 256 * gaussian_capacity(100.0)
    axes.plot(published, most_accuracy(published, 10), "o", color="#d62728")
    axes.annotate("DPSD's published settings:\n97.85 % is published", (published, most_accuracy(published, 10)),
                  (0.013, 0.8), color="#d62728", arrowprops={"arrowstyle": "-", "color": "#d62728"})  # fmt: skip
    axes.set(ylim=(0, 1.02), xlabel="nats that all responses can carry", ylabel="highest possible accuracy, 10 classes")


def _box(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, size: float = 10) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", facecolor=colour,
                                  edgecolor="#777777", linewidth=0.8))  # fmt: skip
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color="#555555", linewidth=1))


def _frame(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set(xlim=x, ylim=y)
    axes.axis("off")


if __name__ == "__main__":
    main()
