"""Draw labelled image grids and ROC curves as PNG files; the same images give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from bench.storage.specs import encodable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, LABELS, TITLE, HEADS, EDGE, FRAME = 0.62, 1.6, 0.4, 0.35, 0.12, 0.02
"""Sizes in inches: an image's cell, row labels, title, column labels, outer edge, white frame of a cell."""
DPI = 150


class Plot(NamedTuple):
    """A picture of a record: its file name, and the function that draws it to a path."""

    file: str
    draw: Callable[[Path], None]


Plots = dict[str, Plot]
"""Pictures by name."""


def grid(path: Path, title: str, columns: Sequence[str], rows: Sequence[tuple[str, Tensor]]) -> None:
    """Write a grid of images with a label per row and per column.

    Args:
        path: the PNG file.
        title: one line above the grid.
        columns: a label per column.
        rows: (label, (n, c, h, w) images in [0, 1]) with n = number of columns.
    """
    from matplotlib.figure import Figure  # here: many import this module, and few draw

    left = EDGE + (LABELS if any(label for label, _ in rows) else 0)
    top = TITLE + (HEADS if any(columns) else 0)
    width, height = left + CELL * len(columns) + EDGE, top + CELL * len(rows) + EDGE
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    _write(figure, EDGE / width, 1 - 0.22 / height, title, fontsize=9, weight="bold")
    for index, label in enumerate(columns):
        x = (left + CELL * (index + 0.5)) / width
        _write(figure, x, 1 - (top - 0.14) / height, label, fontsize=8, ha="center")
    for number, (label, _) in enumerate(rows):
        y = (height - top - CELL * (number + 0.5)) / height
        _write(figure, (left - 0.1) / width, y, label, fontsize=8, ha="right")
    mosaic = np.concatenate([np.concatenate([_cell(image) for image in images], 1) for _, images in rows])
    figure.figimage(mosaic, round(DPI * left), round(DPI * EDGE), origin="upper")
    _save(figure, path)


def _write(figure: Figure, x: float, y: float, text: str, **how: Any) -> None:
    """Write one line of text literally: class names of users may contain dollars, line breaks or any bytes."""
    one_line = "".join(letter if letter.isprintable() else "?" for letter in encodable(text))
    figure.text(x, y, one_line, va="center", parse_math=False, **how)


def _save(figure: Figure, path: Path) -> None:
    """Write a PNG without transparency, and in grey if it has no colours: half the bytes, the same picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    grey = bool((pixels == pixels[..., :1]).all())
    Image.fromarray(pixels[..., 0] if grey else pixels).save(path, "PNG", dpi=(DPI, DPI))


def _cell(image: Tensor) -> np.ndarray:
    """Return (side, side, 3) uint8: the image centred in a white cell, at the largest whole magnification."""
    side, inner = round(CELL * DPI), round((CELL - 2 * FRAME) * DPI)
    array = np.rint(image.detach().cpu().numpy().clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    sides = [round(inner * size / max(array.shape[:2])) for size in array.shape[:2]]
    rows, columns = (np.arange(n) * size // n for n, size in zip(sides, array.shape[:2], strict=True))
    top, left = ((side - n) // 2 for n in sides)
    cell = np.full((side, side, 3), 255, np.uint8)
    cell[top : top + sides[0], left : left + sides[1]] = array[rows][:, columns]
    return cell


def roc(path: Path, title: str, lines: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Write ROC curves on logarithmic axes, as membership attacks are judged at small false positive rates.

    Args:
        path: the PNG file.
        title: one line above the picture.
        lines: label to (n,) scores and (n,) bool membership; at least one member and one other.
    """
    from matplotlib.figure import Figure
    from sklearn.metrics import roc_curve

    figure = Figure(figsize=(5.2, 4.6), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0.14, 0.12, 0.83, 0.78))
    _write(figure, 0.02, 0.95, title, fontsize=9, weight="bold")
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
    _save(figure, path)
