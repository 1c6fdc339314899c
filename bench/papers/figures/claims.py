"""Check sentences of the papers about their figures on our runs.

Two accuracies differ if they are apart by more than the sum of their standard deviations over seeds. Nothing is
concluded from accuracies of one seed, or from a line near chance (`doubtful_below`). Numbers that do not depend on the
seed, such as a claimed epsilon, differ if they are apart by more than two percent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any, Literal

from bench.boards.flags import nothing_below
from bench.report.points import Point

Shape = Literal["rises", "falls", "peaks", "waves", "ahead"]
Verdict = Literal["as said", "in part", "not seen", "the opposite", "ours at chance", "one seed"]
CLOSE = 0.02
"""The largest difference of two equal numbers that do not depend on the seed, as a share of the larger one."""


@dataclass(frozen=True)
class Says:
    """A sentence about one picture.

    Attributes:
        text: the sentence, in our words.
        shape: the shape of the line from its first point to its last: `rises` or `falls`; `peaks`, up to its highest
            point and down from it; `waves`, up, down, and up again; or `ahead` of the line `other` at every common x.
        line, other: words that the name of the line must contain.
        but: words that neither name may contain.
        least, most: the range of x that the sentence is about.
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
    """The verdict on a sentence by our runs.

    Attributes:
        numbers: our numbers in words.
        line: name of our line.
    """

    says: Says
    verdict: Verdict
    numbers: str
    line: str


def answers(says: Iterable[Says], points: Sequence[Point], chance: float | None) -> list[Answer]:
    """Check the sentences for which we have lines.

    Args:
        points: the points of a picture.
        chance: accuracy of a constant guess of the largest class; None for numbers that do not depend on the seed.
    """
    found = []
    for each in says:
        answer = _ahead(each, points, chance) if each.shape == "ahead" else _along(each, points, chance)
        if answer is not None:
            found.append(answer)
    return found


def _lines(says: Says, words: tuple[str, ...], points: Sequence[Point]) -> list[list[Point]]:
    """Return the lines whose names have all the words, sorted by x; of several points at one x that with most seeds."""
    lines: dict[str, dict[float, Point]] = defaultdict(dict)
    for point in points:
        is_meant = all(word in point.method for word in words) and not any(word in point.method for word in says.but)
        if is_meant and point.run and says.least <= _place(point) <= says.most:
            line, at = lines[point.series], _place(point)
            line[at] = max(line.get(at, point), point, key=lambda each: each.seeds)
    return [[line[at] for at in sorted(line)] for _, line in sorted(lines.items())]


def _place(point: Point) -> float:
    """Return x to three digits, since a claim is slightly below its budget, such as 9.9997 for 10."""
    return float(f"{point.x:.3g}")


def _weight(line: Sequence[Point]) -> tuple[int, int]:
    """Return the numbers of points and of seeds; the line with more of them is preferred."""
    return len(line), sum(point.seeds for point in line)


def _along(says: Says, points: Sequence[Point], chance: float | None) -> Answer | None:
    """Check the shape of the line with the largest `_weight`; None if it has fewer than three points."""
    line = max(_lines(says, says.line, points), key=_weight, default=[])
    if len(line) < 3:
        return None
    # The points between which the line must go up (1) or down (-1), ends included, and these directions
    inner: Sequence[Point] = ()
    wanted: tuple[int, ...] = (1 if says.shape == "rises" else -1,)
    if says.shape == "peaks":
        inner, wanted = (max(line[1:-1], key=lambda point: point.y),), (1, -1)
    elif says.shape == "waves":
        inner, wanted = max(combinations(line[1:-1], 2), key=lambda two: two[0].y - two[1].y, default=()), (1, -1, 1)
    judged = (line[0], *inner, line[-1])
    turns = tuple(_beyond(one, two, chance) for one, two in pairwise(judged))
    opposite = len(wanted) == 1 and turns == (-wanted[0],)
    verdict: Verdict = "as said" if turns == wanted else "the opposite" if opposite else "not seen"
    shown: Sequence[Point] = judged
    if turns != wanted:  # the ends do not show where it is highest
        shown = sorted({line[0], max(line, key=lambda point: point.y), line[-1]}, key=_place)
    numbers = ", ".join(f"{point.format_y(chance is not None)} at {_place(point):,.10g}" for point in shown)
    return Answer(says, _cautious(verdict, judged, line, chance), numbers, line[0].method)


def _ahead(says: Says, points: Sequence[Point], chance: float | None) -> Answer | None:
    """Compare the two lines that differ in one setting and have the most x in common; None if there are none."""
    pairs = []
    for line, other in product(_lines(says, says.line, points), _lines(says, says.other, points)):
        one, two = (dict(_settings(json.loads(each[0].series))) for each in (line, other))
        if sum(one.get(name) != two.get(name) for name in one.keys() | two.keys()) <= 1:
            theirs = {_place(point): point for point in other}
            pairs.append([(point, theirs[_place(point)]) for point in line if _place(point) in theirs])
    pair = max(pairs, key=lambda common: _weight([point for two in common for point in two]), default=[])
    if not pair:
        return None
    signs = [_beyond(b, a, chance) for a, b in pair]
    mixed: Verdict = "in part" if max(signs) > 0 and min(signs) == 0 else "not seen"
    verdict: Verdict = "as said" if min(signs) > 0 else "the opposite" if max(signs) < 0 else mixed
    numbers = ", ".join(
        f"{a.format_y(chance is not None)} against {b.format_y(chance is not None)} at {_place(a):,.10g}"
        for a, b in pair
    )
    both = [point for two in pair for point in two]
    names = f"{pair[0][0].method} against {pair[0][1].method}"
    return Answer(says, _cautious(verdict, both, both, chance), numbers, names)


def _settings(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its path."""
    if not isinstance(found, dict):
        yield name, found
        return
    for key, value in found.items():
        yield from _settings(value, f"{name}.{key}")


def _cautious(verdict: Verdict, judged: Sequence[Point], line: Sequence[Point], chance: float | None) -> Verdict:
    """Replace a verdict that rests on one seed, or on accuracies near chance."""
    if chance is None:
        return verdict
    if all(point.y < doubtful_below(chance) for point in line):
        return "ours at chance"
    return "one seed" if any(point.seeds == 1 for point in judged) else verdict


def doubtful_below(chance: float) -> float:
    """Return the accuracy below which the order of a line may be luck: twice as far from chance as `nothing_below`."""
    return chance + 2 * (nothing_below(chance) - chance)


def _beyond(one: Point, two: Point, chance: float | None) -> int:
    """Return 1 if the second point is higher by more than the sum of both deviations, -1 if lower by more, else 0."""
    apart = two.y - one.y
    if chance is None:
        least = CLOSE * max(abs(one.y), abs(two.y))
    else:
        least = (one.spread or 0.0) + (two.spread or 0.0)
    return (abs(apart) > least) * (1 if apart > 0 else -1)
