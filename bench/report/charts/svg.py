"""Elements of SVG as text, the area of a chart, its rules and ticks."""

from __future__ import annotations

import math
from html import escape

from bench.report.axes import BAND, Scale

WIDTH, HEIGHT = 460, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 436, 14, 288
"""The area of a chart within its view box, in units of that."""
LETTER, LINE = 7.0, 14.0
"""Width of a letter of a name, and height of a line of text, in units of the view box."""
NAME_HEIGHT = 4.0
"""What a letter of the longest name of an axis of names adds to the height; names are turned by 35 degrees."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """An element; attribute values are escaped, `content` is markup already. `class_` is class, `data_x` is data-x."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{content}</{name}>"


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def grid(x: Scale, y: Scale, label: str, side: str = "accuracy", height: int = HEIGHT) -> str:
    """Rules, tick labels and the names of the axes."""
    parts = []
    for value in y.ticks():
        place = y.at(value)
        parts.append(tag("path", d=f"M{LEFT} {place:.1f}H{x.edge}", class_="rule"))
        parts.append(tag("text", _tick(y, value), x=LEFT - 6, y=place + 4, text_anchor="end"))
    for value in x.ticks():
        place = x.at(value)
        parts.append(tag("path", d=f"M{place:.1f} {TOP}V{BOTTOM}", class_="rule"))
        if x.names:
            turned = f"translate({place + 4:.1f} {BOTTOM + 14}) rotate(-35)"
            parts.append(tag("text", escape(x.names[int(value)]), transform=turned, text_anchor="end"))
            continue
        shown = f"{value:.2f}" if label.startswith("AUC") else _tick(x, value)
        parts.append(tag("text", shown, x=place, y=BOTTOM + 18, text_anchor="middle"))
    if x.band:
        parts.append(tag("rect", x=x.edge - BAND + 8, y=TOP, width=BAND - 8, height=BOTTOM - TOP, class_="band"))
        parts.append(tag("text", escape(x.beyond), x=x.edge - (BAND - 8) / 2, y=BOTTOM + 18, text_anchor="middle"))
    parts.append(tag("text", escape(label), x=(LEFT + x.edge) / 2, y=height - 8, text_anchor="middle", class_="axis"))
    turned = f"translate(12 {(TOP + BOTTOM) / 2}) rotate(-90)"
    parts.append(tag("text", escape(side), transform=turned, text_anchor="middle"))
    return "".join(parts)


def _tick(scale: Scale, value: float) -> str:
    if scale.log:
        return _power(value)
    return f"{value:.0%}".replace("%", " %") if scale.percent else f"{value:g}"


def _power(value: float) -> str:
    """A tick of a logarithmic scale: 0.01, 200, 10⁴, 2·10⁴."""
    if 0.001 <= value < 9999:
        return f"{value:g}"
    power = math.floor(math.log10(value) + 1e-9)
    ahead = round(value / 10.0**power)
    return ("" if ahead == 1 else f"{ahead}·") + "10" + str(power).translate(RAISED)
