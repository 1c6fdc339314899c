"""The ROC curves of an assessment as points, and as a picture with logarithmic axes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench.assess.numbers import Scored
from bench.assess.schema import Curve
from bench.escape import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
POINTS = 200
_SIDE = 5.2
"""Inches."""


def curve(scored: Scored) -> Curve:
    """Return up to 200 points of the ROC curve, at false positive rates evenly spaced on a logarithmic scale."""
    others, members = np.sort(scored.others), np.sort(scored.members)
    allowed = np.unique(np.rint(np.geomspace(1, len(others), POINTS)).astype(int))
    thresholds = others[len(others) - allowed]
    fpr = 1 - np.searchsorted(others, thresholds, side="left") / len(others)
    tpr = 1 - np.searchsorted(members, thresholds, side="left") / len(members)
    return Curve(name=scored.name, fpr=tuple(fpr.tolist()), tpr=tuple(tpr.tolist()))


def draw(curves: Sequence[Curve], members: int, others: int) -> Figure:
    """Draw the curves, the line of chance, and its pointwise 95 % band."""
    from matplotlib.figure import Figure
    from scipy.stats import binom

    figure = Figure(figsize=(_SIDE, _SIDE), layout="constrained")
    axes = figure.add_subplot()
    least = 1 / max(members, others, 100) / 2
    x = np.geomspace(least, 1, 200)
    low, high = (binom.ppf(q, members, x) / members for q in (0.025, 0.975))
    axes.fill_between(x, np.maximum(low, least), high, color="0.88", label="chance, 95 % band", linewidth=0)
    axes.plot(x, x, color="0.5", linewidth=0.8)
    for each, style in zip(curves, ["-", "--", "-.", ":"] * 5, strict=False):
        axes.plot(
            np.maximum(each.fpr, least), np.maximum(each.tpr, least), style, label=visible(each.name), linewidth=1.4
        )
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    return figure


def as_svg(figure: Figure) -> str:
    """Return the picture as an SVG element, the same bytes at each call."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "assess", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
