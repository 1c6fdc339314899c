"""Image grids and curves as PNG files: labelled, readable, the same bytes for the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from torch import Tensor

matplotlib.use("Agg")
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve

CELL, LABELS, TITLE, HEADS, EDGE = 0.62, 1.6, 0.4, 0.35, 0.12


def grid(path: Path, title: str, columns: Sequence[str], rows: Sequence[tuple[str, Tensor]]) -> None:
    """Write a grid of images with a label per row and per column.

    Args:
        path: the PNG file.
        title: one line above the grid.
        columns: a label per column.
        rows: (label, (n, c, h, w) images in [0, 1]) with n = number of columns.
    """
    left = EDGE + (LABELS if any(label for label, _ in rows) else 0)
    top = TITLE + (HEADS if any(columns) else 0)
    width, height = left + CELL * len(columns) + EDGE, top + CELL * len(rows) + EDGE
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    figure.text(EDGE / width, 1 - 0.22 / height, title, fontsize=9, weight="bold", va="center")
    for index, label in enumerate(columns):
        x = (left + CELL * (index + 0.5)) / width
        figure.text(x, 1 - (top - 0.14) / height, label, fontsize=8, ha="center", va="center")
    for number, (label, images) in enumerate(rows):
        bottom = height - top - CELL * (number + 1)
        figure.text((left - 0.1) / width, (bottom + CELL / 2) / height, label, fontsize=8, ha="right", va="center")
        for index, image in enumerate(images):
            place = (
                (left + CELL * index) / width,
                (bottom + 0.02) / height,
                (CELL - 0.04) / width,
                (CELL - 0.04) / height,
            )
            axes = figure.add_axes(place)
            axes.imshow(_pixels(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
    figure.savefig(path, metadata={"Software": None})


def roc(path: Path, title: str, lines: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Write receiver operating characteristics on logarithmic axes, where membership attacks must be read.

    Args:
        path: the PNG file.
        title: one line above.
        lines: label to (n,) scores and (n,) bool, who is a member; at least one of either.
    """
    figure = Figure(figsize=(5.2, 4.6), dpi=150, facecolor="white")
    axes = figure.add_axes((0.14, 0.12, 0.83, 0.78))
    figure.text(0.02, 0.95, title, fontsize=9, weight="bold", va="center")
    least = min(1 / int((~members).sum()) for _, members in lines.values()) / 2
    for label, (scores, members) in lines.items():
        false, true, _ = roc_curve(members.numpy(), scores.numpy(), drop_intermediate=False)
        axes.step(np.maximum(false, least), np.maximum(true, least), where="post", label=label)
    axes.plot([least, 1], [least, 1], color="grey", linestyle=":", linewidth=1, label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Software": None})


def _pixels(image: Tensor) -> np.ndarray:
    array = image.detach().cpu().numpy()
    return array[0] if len(array) == 1 else np.moveaxis(array, 0, -1)
