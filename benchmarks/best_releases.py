"""Draw docs/releases.png: the accuracy that each kind of private release reaches at an accounted epsilon.

python benchmarks/best_releases.py

One panel per data set. A line joins the most accurate releases of a kind whose accounted epsilon for one private record
is at most 1, 3, 8 and 10: networks trained on the records, students that saw only responses or noisy moments, images.
Networks on pretrained features of public photographs are another kind. Hollow marks are results that papers on private
learning publish at that epsilon, with the source below them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.boards.best import EPSILONS, Best, Kind, best_releases
from bench.boards.tables import read_board

ROOT = Path(__file__).resolve().parent.parent
BOARDS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "cifar10-jpeg": "CIFAR-10, as JPEG"}
COLOURS = {Kind.PUBLIC: "C4", Kind.NETWORK: "C0", Kind.STUDENT: "C1", Kind.IMAGES: "C2"}


@dataclass(frozen=True)
class Published:
    """A result that a paper publishes without public photographs.

    Attributes:
        dataset: a key of BOARDS. The papers use CIFAR-10 itself, the board JPEG copies of it.
        accuracy: in percent.
    """

    dataset: str
    kind: Kind
    epsilon: float
    accuracy: float
    source: str


PUBLISHED = (
    Published("mnist", Kind.NETWORK, 3, 98.7, "Tramer and Boneh 2021"),
    Published("fmnist", Kind.NETWORK, 3, 89.7, "Tramer and Boneh 2021"),
    Published("cifar10-jpeg", Kind.NETWORK, 3, 69.3, "Tramer and Boneh 2021"),
    Published("cifar10-jpeg", Kind.NETWORK, 1, 72.3, "Tang et al. 2023"),
    Published("cifar10-jpeg", Kind.NETWORK, 8, 81.4, "De et al. 2022"),
    Published("mnist", Kind.IMAGES, 1, 95.6, "DP-FETA 2025"),
    Published("mnist", Kind.IMAGES, 10, 98.1, "DP-FETA 2025"),
    Published("fmnist", Kind.IMAGES, 1, 81.7, "DP-FETA 2025"),
    Published("fmnist", Kind.IMAGES, 10, 87.3, "DP-FETA 2025"),
)


def draw(axes: Axes, dataset: str, found: list[Best]) -> None:
    """Draw one data set, with the kind and the method of the last point next to each line."""
    for kind, colour in COLOURS.items():
        of_kind = [each for each in found if each.kind is kind]
        points = [(EPSILONS.index(each.limit), 100 * (each.release.accuracy or 0)) for each in of_kind]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=colour)
            words = [*kind.split(", "), f"{of_kind[-1].release.row.method} {points[-1][1]:.1f}"]
            axes.annotate(
                "\n".join(words), points[-1], (7, 0),
                textcoords="offset points", va="center", fontsize=7.5, color=colour,
            )  # fmt: skip
    for each in (each for each in PUBLISHED if each.dataset == dataset):
        place = (EPSILONS.index(each.epsilon), each.accuracy)
        axes.plot(*place, marker="D", ls="", mfc="none", color=COLOURS[each.kind])
        axes.annotate(
            each.source, place, (0, -8), textcoords="offset points", ha="center", va="top", fontsize=6.5,
            color="dimgrey", bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )  # fmt: skip
    axes.set(xlim=(-0.7, 6.2), xticks=range(len(EPSILONS)), xticklabels=[f"{epsilon:g}" for epsilon in EPSILONS])
    axes.set_title(BOARDS[dataset], loc="left")
    axes.grid(alpha=0.3)


def main() -> None:
    """Draw the picture and print its points."""
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    panels = figure.subplots(1, len(BOARDS), squeeze=False)[0]
    for axes, dataset in zip(panels, BOARDS, strict=True):
        found = best_releases(read_board(ROOT / "leaderboards", dataset))
        draw(axes, dataset, found)
        for each in found:
            release = each.release
            seeds = f"{release.finished} seeds" if release.finished > 1 else "one seed"
            accuracy = f"{100 * (release.accuracy or 0):.1f} % ({seeds})"
            print(f"{dataset}: {each.kind} within {each.limit:g}: {release.name} {accuracy}; {each.attacks}")
    panels[0].set_ylabel("accuracy, %")
    figure.supxlabel("accounted epsilon for one private record   (hollow: published by others)", fontsize="medium")
    figure.savefig(ROOT / "docs" / "releases.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
