"""What the papers' texts say of their figures, asked of our runs: a sentence, the lines it is of, and what ours do.

A difference counts if it is larger than the two standard deviations over seeds together; a point of one seed counts as
if its own were two percent. Of lines whose accuracies are all below twice chance nothing can be said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any, Literal

from bench.report.points import Point

Shape = Literal["rises", "falls", "peaks", "waves", "ahead"]
Verdict = Literal["as said", "in part", "not seen", "the opposite", "ours at chance"]
Write = Callable[[float, float | None], str]
"""A mean and its deviation to words."""
ONE_SEED = 0.02
"""What the deviation of a point of one seed is taken for, as a share of it where it is no accuracy."""


@dataclass(frozen=True)
class Says:
    """A sentence on one picture.

    Attributes:
        text: what the paper says, in our words.
        shape: of the line over the axis: `rises` or `falls` from its first place to its last; `peaks`, up and then
            down; `waves`, up, down, and up again; or `ahead` of the line `other` at every place that both have.
        line, other: words that the line's name has, all of them.
        but: words that neither has.
        least, most: the part of the axis that is spoken of.
    """

    text: str
    shape: Shape
    line: tuple[str, ...]
    other: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    least: float = 0.0
    most: float = float("inf")


@dataclass(frozen=True)
class Answer:
    """What ours do: in words with their numbers, and the name of the line that was looked at."""

    says: Says
    verdict: Verdict
    told: str
    line: str

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {"text": self.says.text, "verdict": self.verdict, "told": self.told, "line": self.line}


def answers(says: Iterable[Says], points: Sequence[Point], chance: float | None) -> list[Answer]:
    """Of each sentence that our lines can be asked about, what they say.

    Args:
        points: of a picture.
        chance: what guessing reaches, where they are accuracies, which are told in percent; None of other numbers.
    """
    number = _number if chance is None else _percent
    found = []
    for each in says:
        line, other = (_line(each, words, points) for words in (each.line, each.other))
        answer = _ahead(each, line, other, number) if each.shape == "ahead" else _along(each, line, number)
        if answer is not None:
            guessed = chance is not None and all(point.y < 2 * chance for point in [*line, *other])
            found.append(replace(answer, verdict="ours at chance") if guessed else answer)
    return found


def _line(says: Says, words: tuple[str, ...], points: Sequence[Point]) -> list[Point]:
    """Of the lines that have all the words, the one with the most places, then with the most seeds; by place.

    Of several points of it at one place, the one with the most seeds.
    """
    lines: dict[str, dict[float, Point]] = defaultdict(dict)
    for point in points:
        meant = all(word in point.method for word in words) and not any(word in point.method for word in says.but)
        if words and meant and point.run and says.least <= point.x <= says.most:
            line, at = lines[point.series], _place(point)
            line[at] = max(line.get(at, point), point, key=lambda each: each.seeds)
    best = max(
        lines.items(), key=lambda item: (len(item[1]), sum(p.seeds for p in item[1].values()), item[0]), default=None
    )
    return [] if best is None else [best[1][at] for at in sorted(best[1])]


def _place(point: Point) -> float:
    """To three digits: claims are met from below, each by its own little."""
    return float(f"{point.x:.3g}")


def _along(says: Says, line: list[Point], number: Write) -> Answer | None:
    """None of a line of fewer than three places."""
    if len(line) < 3:
        return None
    ups = {"rises": (1,), "falls": (-1,), "peaks": (1, -1), "waves": (1, -1, 1)}[says.shape]
    ends = len(ups) == 1  # what is said of a whole line is asked of its ends
    choices = [(line[0], line[-1])] if ends else combinations(line, len(ups) + 1)
    found = next((chosen for chosen in choices if _turns(chosen) == ups), None)
    opposite = ends and _turns((line[0], line[-1])) == (-ups[0],)
    verdict: Verdict = "as said" if found else "the opposite" if opposite else "not seen"
    shown = found or sorted({line[0], max(line, key=lambda point: point.y), line[-1]}, key=lambda point: point.x)
    told = ", ".join(f"{number(point.y, point.spread)} at {_place(point):,.10g}" for point in shown)
    return Answer(says, verdict, told, line[0].method)


def _turns(points: Sequence[Point]) -> tuple[int, ...]:
    return tuple(_beyond(one, two) for one, two in pairwise(points))


def _ahead(says: Says, line: list[Point], other: list[Point], number: Write) -> Answer | None:
    """None of lines without a common place."""
    theirs = {_place(point): point for point in other}
    pairs = [(point, theirs[_place(point)]) for point in line if _place(point) in theirs]
    if not pairs:
        return None
    signs = [_beyond(b, a) for a, b in pairs]
    mixed: Verdict = "in part" if max(signs) > 0 and min(signs) == 0 else "not seen"
    verdict: Verdict = "as said" if min(signs) > 0 else "the opposite" if max(signs) < 0 else mixed
    told = ", ".join(f"{number(a.y, a.spread)} against {number(b.y, b.spread)} at {_place(a):,.10g}" for a, b in pairs)
    return Answer(says, verdict, told, f"{line[0].method} against {other[0].method}")


def _beyond(one: Point, two: Point) -> int:
    """1 where the second is higher by more than the deviations together, -1 where it is lower by so much, else 0."""
    apart = two.y - one.y
    return (abs(apart) > _deviation(one) + _deviation(two)) * (1 if apart > 0 else -1)


def _deviation(point: Point) -> float:
    if point.spread is not None:
        return point.spread
    return ONE_SEED * max(1.0, point.y)


def _percent(value: float, spread: float | None) -> str:
    return f"{100 * value:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}") + " %"


def _number(value: float, spread: float | None) -> str:
    return f"{value:,.3g}" + ("" if spread is None else f" ± {spread:,.2g}")
