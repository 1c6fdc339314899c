"""Draw docs/releases.png: the accuracy that each kind of private release reaches at an accounted epsilon.

python benchmarks/best_releases.py

One panel per data set. A line joins the most accurate releases of a kind whose accounted epsilon for one private record
is at most 1, 3, 8 and 10: networks trained on the records, students that saw only responses or noisy moments, images.
Networks on pretrained features of public photographs are another kind. Hollow marks are results that papers on private
learning publish at that epsilon, with the source below them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.boards.flags import pretrained_flag
from bench.boards.results import Result, results
from bench.boards.tables import read_board

ROOT = Path(__file__).resolve().parent.parent
BOARDS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "cifar10-jpeg": "CIFAR-10, as JPEG"}
EPSILONS = (1.0, 3.0, 8.0, 10.0)
PUBLIC, NETWORK, STUDENT, IMAGES = "network,\npublic photographs", "network", "student", "images"
COLOURS = {PUBLIC: "C4", NETWORK: "C0", STUDENT: "C1", IMAGES: "C2"}
OF_STUDENTS = {
    "dgd",
    "dpsd",
    "dpdfd",
    "dp-dfd",
    "fed-dpsd",
    "dp-teacher",
    "pate",
    "pate-gnmax",
    "class-moments",
}
"""Methods whose released network did not see the records: it learned from responses or from noisy moments."""
OF_IMAGES = {
    "dp-merf", "dp-ntk", "dp-kernel", "dpdm", "dp-feta", "sim-pe", "p3gm", "psg", "dp-gan", "dp-sinkhorn", "pate-gan",
    "gs-wgan", "g-pate", "datalens", "private-drawings",
}  # fmt: skip
"""Methods that release images or a generator; their accuracy is that of a network trained on images."""
NOT_TAKEN = {"older-version", "float32-noise", "account-corrected", "refuted"}
"""Flags of rows that are not drawn."""


@dataclass(frozen=True)
class Published:
    """A result that a paper publishes without public photographs.

    Attributes:
        dataset: a key of BOARDS. The papers use CIFAR-10 itself, the board JPEG copies of it.
        accuracy: in percent.
    """

    dataset: str
    kind: str
    epsilon: float
    accuracy: float
    source: str


PUBLISHED = (
    Published("mnist", NETWORK, 3, 98.7, "Tramer and Boneh 2021"),
    Published("fmnist", NETWORK, 3, 89.7, "Tramer and Boneh 2021"),
    Published("cifar10-jpeg", NETWORK, 3, 69.3, "Tramer and Boneh 2021"),
    Published("cifar10-jpeg", NETWORK, 1, 72.3, "Tang et al. 2023"),
    Published("cifar10-jpeg", NETWORK, 8, 81.4, "De et al. 2022"),
    Published("mnist", IMAGES, 1, 95.6, "DP-FETA 2025"),
    Published("mnist", IMAGES, 10, 98.1, "DP-FETA 2025"),
    Published("fmnist", IMAGES, 1, 81.7, "DP-FETA 2025"),
    Published("fmnist", IMAGES, 10, 87.3, "DP-FETA 2025"),
)


def kind_of(result: Result) -> str:
    """Return what leaves: a key of COLOURS."""
    method = result.release.method
    if pretrained_flag(result.flags):
        return PUBLIC
    return STUDENT if method in OF_STUDENTS else IMAGES if method in OF_IMAGES else NETWORK


def best(board: Iterable[Result]) -> dict[str, dict[float, Result]]:
    """Return the most accurate release of each kind within each epsilon, of those that `bench choose` would accept."""
    found: dict[str, dict[float, Result]] = {kind: {} for kind in COLOURS}
    for result in board:
        row, accounted = result.release, result.accounted
        is_meant = row.variant != "printed" and row.unit == "example" and row.split == "iid" and row.tier != "smoke"
        if not is_meant or accounted is None or result.accuracy is None or NOT_TAKEN & result.flags:
            continue
        for epsilon in EPSILONS:
            if accounted <= epsilon:
                kept = found[kind_of(result)].setdefault(epsilon, result)
                if result.accuracy > (kept.accuracy or 0):
                    found[kind_of(result)][epsilon] = result
    return found


def draw(axes: Axes, dataset: str, releases: dict[str, dict[float, Result]]) -> None:
    """Draw one data set, with the kind and the method of the last point next to each line."""
    for kind, by_epsilon in releases.items():
        points = [
            (EPSILONS.index(epsilon), 100 * (result.accuracy or 0)) for epsilon, result in sorted(by_epsilon.items())
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=COLOURS[kind])
            method = by_epsilon[max(by_epsilon)].release.method
            axes.annotate(
                f"{kind}\n{method} {points[-1][1]:.1f}", points[-1], (7, 0), textcoords="offset points", va="center",
                fontsize=7.5, color=COLOURS[kind],
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
        found = best(results(read_board(ROOT / "leaderboards", dataset)))
        draw(axes, dataset, found)
        for kind, by_epsilon in found.items():
            for epsilon, result in sorted(by_epsilon.items()):
                seeds = f"{len(result.finished)} seeds" if len(result.finished) > 1 else "one seed"
                attack = result.attack.attack if result.attack else "no attack"
                method, accuracy = result.release.method, 100 * (result.accuracy or 0)
                what = " ".join(kind.split())
                print(f"{dataset}: {what} within {epsilon:g}: {method} {accuracy:.1f} % ({seeds}, {attack})")
    panels[0].set_ylabel("accuracy, %")
    figure.supxlabel("accounted epsilon for one private record   (hollow: published by others)", fontsize="medium")
    figure.savefig(ROOT / "docs" / "releases.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
