"""The most exposed members of an assessment, for the owner of the data only: tables and a page with their pictures.

These files name private records. The report, its PDF and assessment.json are to be passed on, and hold none of this.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.assess.assembly import Material, Options, by_unit, groups_of
from bench.assess.numbers import Scored, measure
from bench.assess.report import STYLE, document, text
from bench.escape import csv_cell

MOST_EXPOSED = 20
"""Members in the list of all, and in that of each class."""
OF_A_GROUP = 6
"""Records shown of each exposed group."""
MOST_CARDS = 4000
"""Records on the page; later classes are only in the tables."""
FALSE_ALARMS = 0.05
"""An attack finds a member if at most this share of the non-members has a score as high."""
PAGE = "exposed.html"
WARNING = (
    "This page shows private records. It is for the owner of the data; do not publish it or pass it on. The report in "
    "the same folder shows none of them."
)
LOOK = """
.warning{background:#a3161a;color:#fff;padding:.8em 1em;border-radius:6px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(9em,1fr));gap:.8em;padding:0;list-style:none}
.cards li{overflow-wrap:anywhere;border:1px solid #ddd;border-radius:6px;padding:.5em;font-size:.85em}
.cards img{display:block;width:6rem;height:6rem;object-fit:contain;image-rendering:pixelated;background:#f4f4f4}
summary{cursor:pointer;font-weight:600;padding:.3em 0}
"""


@dataclass(frozen=True)
class Exposed:
    """A member that the strongest attack ranks among the highest.

    Attributes:
        rank: 1 is the most exposed.
        name: name of the record, or of the group if the unit is the group.
        above: share of the non-members with a score as high, in [0, 1].
        attack: name of the strongest attack, by its AUC.
        label: class of the record; None for a group, or if classes are not known.
        row: its place among the members; None for a group.
        found_by: number of attacks that find the record at `FALSE_ALARMS`.
        attacks: number of attacks that scored the record; 0 for a group.
    """

    rank: int
    name: str
    above: float
    attack: str
    label: int | None = None
    row: int | None = None
    found_by: int = 0
    attacks: int = 0


@dataclass(frozen=True, eq=False)
class Ranking:
    """The records that the strongest attack scored, with what all tables need, computed once. n records.

    Attributes:
        material, options: the assessment.
        attack: the attack with the largest AUC, on groups if there are groups.
        rows: (n,) places of the records among the members.
        above: (n,) shares of the non-members with a score as high.
        ties: (n,) means of these shares over the attacks that scored all members; they order equal scores.
        found_by: (n,) numbers of attacks that find the record at `FALSE_ALARMS`.
        attacks: (n,) numbers of attacks that scored it.
    """

    material: Material
    options: Options
    attack: Scored
    rows: NDArray[np.int64]
    above: NDArray[np.float64]
    ties: NDArray[np.float64]
    found_by: NDArray[np.int64]
    attacks: NDArray[np.int64]


def rank(material: Material, options: Options) -> Ranking:
    """Choose the strongest attack, and count which attacks find each record that it scored."""

    def strength(scored: Scored) -> float:
        unit = by_unit(scored, material.groups, options.combine)
        return measure(unit.members, unit.others, options.delta, 1).auc.value

    attack = max(material.scored, key=strength)
    places = [_rows(scored) for scored in material.scored]
    shares = [_share_as_high(scored) for scored in material.scored]
    found_by, attacks = (np.zeros(1 + max(each.max() for each in places), np.int64) for _ in range(2))
    for each, share in zip(places, shares, strict=True):
        found_by[each] += share <= FALSE_ALARMS
        attacks[each] += 1
    whole = [share for scored, share in zip(material.scored, shares, strict=True) if scored.rows is None]
    rows = _rows(attack)
    ties = np.mean(whole, axis=0)[rows] if whole else np.zeros(len(rows))
    return Ranking(material, options, attack, rows, _share_as_high(attack), ties, found_by[rows], attacks[rows])


def _rows(scored: Scored) -> NDArray[np.int64]:
    """Return the places among the members of the records that an attack scored."""
    return np.arange(len(scored.members)) if scored.rows is None else scored.rows[0]


def _share_as_high(scored: Scored) -> NDArray[np.float64]:
    """Return, for each member, the share of the non-members with a score as high."""
    others = np.sort(scored.others)
    return 1 - np.searchsorted(others, scored.members, side="left") / len(others)


def most_exposed(ranking: Ranking) -> list[Exposed]:
    """Return the members, or groups of members, that the strongest attack ranks highest."""
    attack, groups = ranking.attack, ranking.material.groups
    if groups is None:
        return _listed(ranking, np.lexsort((ranking.ties, -attack.members)))
    combined = by_unit(attack, groups, ranking.options.combine)
    names, above = np.unique(groups_of(attack, groups)[0]), _share_as_high(combined)
    order = np.argsort(-combined.members, kind="stable")[:MOST_EXPOSED]
    return [Exposed(number, str(names[row]), float(above[row]), attack.name) for number, row in enumerate(order, 1)]


def most_exposed_by_class(ranking: Ranking) -> dict[int, list[Exposed]]:
    """Return the most exposed members of each class; records even if the unit is the group; {} without classes."""
    if ranking.material.labels is None:
        return {}
    labels = ranking.material.labels[ranking.rows]
    order = np.lexsort((ranking.ties, -ranking.attack.members, labels))
    classes, starts = np.unique(labels[order], return_index=True)
    parts = np.split(order, starts[1:])
    return {label: _listed(ranking, part) for label, part in zip(classes.tolist(), parts, strict=True)}


def most_exposed_of_group(ranking: Ranking, group: str) -> list[Exposed]:
    """Return the most exposed records of a group; [] without groups."""
    if ranking.material.groups is None:
        return []
    own = np.flatnonzero(groups_of(ranking.attack, ranking.material.groups)[0] == group)
    order = own[np.lexsort((ranking.ties[own], -ranking.attack.members[own]))]
    return _listed(ranking, order)[:OF_A_GROUP]


def _listed(ranking: Ranking, order: NDArray[np.int64]) -> list[Exposed]:
    """Return the first `MOST_EXPOSED` of the ranked records."""
    names, labels = ranking.material.names, ranking.material.labels
    return [
        Exposed(
            rank=number,
            name=str(ranking.rows[place] if names is None else names[ranking.rows[place]]),
            above=float(ranking.above[place]),
            attack=ranking.attack.name,
            label=None if labels is None else int(labels[ranking.rows[place]]),
            row=int(ranking.rows[place]),
            found_by=int(ranking.found_by[place]),
            attacks=int(ranking.attacks[place]),
        )
        for number, place in enumerate(order[:MOST_EXPOSED].tolist(), 1)
    ]


def write_exposed(material: Material, options: Options, folder: Path, with_pictures: bool) -> None:
    """Write exposed.csv, exposed_by_class.csv (if classes are known) and exposed.html into a folder."""
    ranking = rank(material, options)
    (folder / "exposed.csv").write_text(table(most_exposed(ranking)), encoding="utf-8")
    by_class = most_exposed_by_class(ranking)
    if by_class:
        (folder / "exposed_by_class.csv").write_text(table_by_class(by_class), encoding="utf-8")
    (folder / PAGE).write_text(page(ranking, with_pictures), encoding="utf-8")


def table(found: Iterable[Exposed]) -> str:
    """Return CSV with a line for each member or group."""
    lines = [f"{each.rank},{csv_name(each.name)},{each.above:.4f},{each.attack}" for each in found]
    return "\n".join(["rank,member,share of non-members with a score as high,attack", *lines, ""])


def table_by_class(found: dict[int, list[Exposed]]) -> str:
    """Return CSV with a line for each member, sorted by class."""
    lines = [
        f"{label},{each.rank},{csv_name(each.name)},{each.above:.4f},{each.attack}"
        for label, members in found.items()
        for each in members
    ]
    return "\n".join(["class,rank,member,share of non-members with a score as high,attack", *lines, ""])


def csv_name(name: str) -> str:
    """Escape and quote a name as a CSV cell."""
    shown = str(csv_cell(name))
    return '"' + shown.replace('"', '""') + '"' if any(letter in shown for letter in ',"\n') else shown


def page(ranking: Ranking, with_pictures: bool) -> str:
    """Return the page of the most exposed members, with their pictures if there are images and they are wanted."""
    images = ranking.material.images if with_pictures else None
    first = most_exposed(ranking)
    parts = [
        f'<p class="warning">{text(WARNING)}</p>',
        f"<p>Ranked by {text(ranking.attack.name)}, the attack with the largest AUC. The percentage is the share of "
        "non-members with a score as high: a small one means that few other records look as much like training "
        f"records. An attack finds a record if this share is at most {FALSE_ALARMS:.0%}.</p>",
    ]
    if ranking.material.groups is None:
        parts += ["<h2>Most exposed records</h2>", _cards(first, images)]
    else:
        parts += ["<h2>Most exposed groups</h2>"]
        for group in first:
            records = most_exposed_of_group(ranking, group.name)
            parts.append(f"<h3>{group.rank}. {text(group.name)}, {group.above:.1%}</h3>{_cards(records, images)}")
    by_class = most_exposed_by_class(ranking)
    shown = dict(list(by_class.items())[: MOST_CARDS // MOST_EXPOSED])
    if shown:
        parts.append("<h2>Most exposed records of each class</h2>")
    for label, members in shown.items():
        parts.append(f"<details><summary>class {label}</summary>{_cards(members, images)}</details>")
    if len(shown) < len(by_class):
        parts.append(f"<p>{len(by_class) - len(shown)} more classes are in exposed_by_class.csv.</p>")
    return document("Most exposed records: keep private", "".join(parts), STYLE + LOOK)


def _cards(members: Sequence[Exposed], images: NDArray[np.uint8] | None) -> str:
    """Return a list of records, each with its picture if there is one."""
    return f'<ol class="cards">{"".join(_card(each, images) for each in members)}</ol>'


def _card(member: Exposed, images: NDArray[np.uint8] | None) -> str:
    picture = ""
    if images is not None and member.row is not None:
        picture = f'<img alt="record {text(member.name)}" src="data:image/png;base64,{_png(images[member.row])}">'
    label = "" if member.label is None else f"<br>class {member.label}"
    found = f"<br>found by {member.found_by} of {member.attacks} attacks" if member.attacks else ""
    return f"<li>{picture}{member.rank}. <b>{text(member.name)}</b>{label}<br>{member.above:.1%}{found}</li>"


def _png(image: NDArray[np.uint8]) -> str:
    """Return a (c, h, w) image as base64 text of a PNG file."""
    stream = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
