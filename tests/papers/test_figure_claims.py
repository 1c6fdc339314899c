"""Papers' statements about their figures, checked on constructed lines."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.papers.figures import FIGURES
from bench.papers.figures.claims import Says, answers, doubtful_below
from bench.papers.figures.kinds import WHICH
from bench.report.points import Point


def line(
    name: str, *values: float, spread: float | None = 0.01, seeds: int = 3, first: float = 1.0, teacher: str = "a"
) -> list[Point]:
    """A line with a place at first, first + 1, ...; its name is what it is about."""
    series = json.dumps({"release": {"options": {"name": name}, "teacher": {"arch": teacher}}})
    return [
        Point(name, "", first + i, y, spread, f"{name}{i}", series=series, seeds=seeds) for i, y in enumerate(values)
    ]


def asked(shape: str, *values: float, spread: float | None = 0.01, seeds: int = 3) -> tuple[str, str]:
    says = [Says("", shape, ("dgd",))]  # type: ignore[arg-type]
    (found,) = answers(says, line("dgd printed", *values, spread=spread, seeds=seeds), 0.1)
    return found.verdict, found.numbers


@pytest.mark.parametrize(
    ("shape", "values", "verdict"),
    [
        ("rises", (0.3, 0.5, 0.6), "as said"),
        ("rises", (0.3, 0.9, 0.315), "not seen"),
        ("rises", (0.6, 0.9, 0.3), "the opposite"),
        ("falls", (0.6, 0.9, 0.3), "as said"),
        ("falls", (0.3, 0.5, 0.6), "the opposite"),
        ("peaks", (0.3, 0.5, 0.4), "as said"),
        ("peaks", (0.3, 0.4, 0.5), "not seen"),
        ("peaks", (0.3, 0.31, 0.3), "not seen"),
        ("peaks", (0.3, 0.35, 0.5, 0.45, 0.4, 0.42), "as said"),
        ("peaks", (0.3, 0.5, 0.45, 0.4, 0.9), "not seen"),
        ("waves", (0.3, 0.5, 0.4, 0.6), "as said"),
        ("waves", (0.3, 0.4, 0.6, 0.5, 0.4, 0.5, 0.6), "as said"),
        ("waves", (0.3, 0.5, 0.6, 0.4), "not seen"),
        ("waves", (0.2, 0.6, 0.5, 0.55, 0.3), "not seen"),
        ("waves", (0.3, 0.5, 0.6), "not seen"),
        ("rises", (0.10, 0.12, 0.14), "ours at chance"),
    ],
)
def test_shape_of_line_needs_differences_beyond_deviation(shape: str, values: tuple[float, ...], verdict: str) -> None:
    assert asked(shape, *values)[0] == verdict


def test_chance_of_two_classes() -> None:
    says = [Says("", "rises", ("dgd",))]  # type: ignore[arg-type]

    def verdict(*values: float) -> str:
        return answers(says, line("dgd printed", *values), 0.5)[0].verdict

    assert verdict(0.6, 0.7, 0.8) == "as said" and verdict(0.5, 0.52, 0.62) == "ours at chance"
    assert [doubtful_below(share) for share in (0.1, 0.5)] == [pytest.approx(0.2), pytest.approx(0.625)]


def test_verdict_needs_several_seeds_and_a_difference() -> None:
    assert asked("rises", 0.3, 0.4, 0.335, spread=0.015)[0] == "as said"
    assert asked("rises", 0.3, 0.4, 0.335, spread=0.02)[0] == "not seen"
    assert asked("rises", 0.3, 0.4, 0.9, spread=None, seeds=1)[0] == "one seed"
    many, few = line("dgd", 0.3, 0.4, 0.9), line("dgd", 0.3, 0.4, 0.9, spread=None, seeds=1)
    (found,) = answers([Says("", "rises", ("dgd",))], [many[0], few[1], many[2]], 0.1)
    assert found.verdict == "as said", "one seed in between says nothing of the ends"


def test_answer_has_numbers_with_deviations_and_places() -> None:
    assert asked("rises", 0.3, 0.4, 0.6)[1] == "30.0 ± 1.0 % at 1, 60.0 ± 1.0 % at 3"
    assert asked("peaks", 0.3, 0.5, 0.45, 0.9)[1] == "30.0 ± 1.0 % at 1, 90.0 ± 1.0 % at 4"


def test_claims_differ_by_more_than_two_percent() -> None:
    def falls(*values: float) -> tuple[str, str]:
        points = [
            Point("dgd", "", x, y, None, "a", series="{}") for x, y in zip((10, 60_000, 1e-5), values, strict=True)
        ]
        (found,) = answers([Says("", "falls", ("dgd",))], points, None)
        return found.verdict, found.numbers

    assert falls(70.0, 0.0117, 7e7) == ("as said", "7e+07 at 1e-05, 0.0117 at 60,000")
    assert falls(0.01, 0.001, 0.03)[0] == "as said"
    assert falls(0.01, 0.0299, 0.03)[0] == "not seen"


def test_line_is_ahead_everywhere_or_in_part() -> None:
    def ahead(*values: float) -> tuple[str, str]:
        says = Says("", "ahead", ("=gaussian",), ("=laplace",), but=("=private",))
        private = line("dgd =gaussian images=private", 0.9, 0.9, 0.9, 0.9)
        claims = line("dgd =laplace", 0.3, 0.4, 0.5, first=0.99999)
        (found,) = answers([says], [*line("dgd =gaussian", *values), *private, *claims], 0.1)
        return found.verdict, found.numbers

    assert ahead(0.4, 0.5, 0.6)[0] == "as said"
    assert ahead(0.3, 0.5, 0.6)[0] == "in part"
    assert ahead(0.2, 0.5, 0.6)[0] == "not seen" and ahead(0.3, 0.4, 0.5)[0] == "not seen"
    assert ahead(0.2, 0.3, 0.4)[0] == "the opposite"
    assert ahead(0.4)[1] == "40.0 ± 1.0 % against 30.0 ± 1.0 % at 1", "claims are met from below, and places are common"


def test_two_lines_are_compared_that_differ_in_one_setting() -> None:
    """A longer line of another teacher says nothing of the loss."""
    says = [Says("", "ahead", ("dkd",), ("kd", "classic"))]
    dkd, alike = line("dkd", 0.3, 0.4), line("kd classic", 0.5, 0.6)
    other = line("kd classic", 0.1, 0.2, seeds=9, teacher="b")
    (found,) = answers(says, [*dkd, *alike, *other], 0.1)
    assert found.verdict == "the opposite" and "50.0 ± 1.0 %" in found.numbers
    assert answers(says, [*dkd, *other], 0.1) == []


def test_answer_takes_longest_line_with_most_seeds() -> None:
    says = [Says("", "rises", ("dgd",), most=3)]
    short, few = line("dgd a", 0.9, 0.8), line("dgd b", 0.3, 0.4, 0.5, seeds=1)
    many, other = line("dgd c", 0.5, 0.4, 0.3), line("dpsd", 0.3, 0.3, 0.3, 0.3)
    (found,) = answers(says, [*short, *few, *many, *other], 0.1)
    assert (found.line, found.verdict) == ("dgd c", "the opposite")
    twice = [replace(line("dgd b", 0.9, seeds=9)[0], x=3.0)]
    (found,) = answers(says, [*few, *twice], 0.1)
    assert found.numbers.endswith("90.0 ± 1.0 % at 3"), "of two points of a place the one with more seeds"


def test_no_answer_without_runs() -> None:
    says = [Says("", "rises", ("dgd",)), Says("", "ahead", ("dgd",), ("pate",))]
    assert answers(says, line("dgd", 0.3, 0.4), 0.1) == []
    printed = [Point("dgd", "", x, x / 10, None, "", series="p") for x in (1.0, 2.0, 3.0)]
    assert answers(says, printed, 0.1) == []


def test_sentences_have_ordered_axes() -> None:
    sweeps = [sweep for figure in FIGURES for sweep in figure.sweeps if sweep.says]
    assert len(sweeps) > 10 and all(sweep.x != WHICH and sweep.axis != "names" for sweep in sweeps)
    assert all(bool(says.other) == (says.shape == "ahead") for sweep in sweeps for says in sweep.says)
