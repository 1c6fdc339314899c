"""The papers' figures as data for their pages: charts as markup, what the text says of them, pictures of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import boards, data
from bench.papers.figures import FIGURES
from bench.papers.figures.claims import answers
from bench.papers.figures.kinds import Figure
from bench.papers.figures.sweep_charts import SIDES, look_of, sweep_figure
from bench.papers.figures.sweep_points import Picture, pictures
from bench.papers.printed_numbers import PrintedNumber
from bench.papers.tables import Recipes
from bench.report import points
from bench.report.charts import Styles, tag
from bench.report.files import readable
from bench.report.sections import Shown, gallery
from bench.storage.records import Record

Numbers = Sequence[PrintedNumber]


def draw_figures(shown: Shown, numbers: Numbers, recipes: Recipes) -> list[dict[str, Any]]:
    """The papers' figures that have a number or a picture. Runs of tier smoke, which mean nothing, are left out."""
    records = [record for record in shown.sources.records if record.spec["tier"] != "smoke"]
    groups = {
        True: points.grouped([record for record in records if record.spec["attack"]], attacks=True),
        False: points.grouped(records, attacks=False),
    }
    found = [_draw_figure(figure, shown, numbers, groups, recipes) for figure in FIGURES]
    return [figure for figure in found if figure["markup"] or figure["single"] or figure["gallery"]]


def find_undrawn(drawn: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Paper and name of the figures that only show pictures, and of which this report has none."""
    shown = {(figure["paper"], figure["figure"]) for figure in drawn}
    return [
        [figure.paper, figure.name]
        for figure in FIGURES
        if not figure.sweeps and (figure.paper, figure.name) not in shown
    ]


def _draw_figure(
    figure: Figure, shown: Shown, numbers: Numbers, groups: Mapping[bool, list[list[Record]]], recipes: Recipes
) -> dict[str, Any]:
    found = [
        picture
        for sweep in figure.sweeps
        for picture in pictures(sweep, figure.paper, groups[bool(sweep.attack)], numbers)
        if picture.ours or picture.printed
    ]
    of_runs = [
        picture
        for picture in shown.pictures
        if picture.kind == figure.pictures and picture.record.spec["release"]["method"] in figure.methods
    ]
    recipe = recipes.get((figure.paper, figure.name))
    name = f"{figure.paper} {figure.name}"
    look = look_of(point for picture in found for point in picture.points)
    return {
        "slug": readable(name),
        "paper": figure.paper,
        "figure": figure.name,
        "title": name if recipe is None else recipe.title,
        "recipe": None if recipe is None else recipe.file,
        "note": figure.note,
        "markup": _panels([picture for picture in found if picture.shows], look),
        "single": _panels([picture for picture in found if not picture.shows], look),
        "answers": answer(figure, found, numbers),
        "gallery": gallery(of_runs, lambda each: f"{boards.dataset(each.record)}: {each.kind}"),
        "ours": sum(picture.ours for picture in found if picture.shows),
        "printed": len({number for picture in found for number in picture.numbers}),
    }


def answer(figure: Figure, drawn: Iterable[Picture], numbers: Numbers) -> list[dict[str, Any]]:
    """The sentences of the paper's text about its figure, checked on our runs on its data sets."""
    theirs = {each.dataset for each in numbers if each.paper == figure.paper}
    return [
        {"dataset": picture.dataset, "picture": picture.sweep.title} | each.to_json()
        for picture in drawn
        if picture.dataset in theirs
        for each in answers(picture.sweep.says, picture.points, _chance(picture))
    ]


def _chance(picture: Picture) -> float | None:
    """Accuracy of a constant guess of the largest class, or of one of equal classes; None if no accuracy is drawn."""
    if picture.sweep.y in SIDES or not picture.ours:
        return None
    known = points.largest(point.commonest for point in picture.points) if picture.sweep.y == "accuracy" else None
    return known or 1 / len(data.facts(picture.dataset).class_names)


def _panels(drawn: Sequence[Picture], look: Styles) -> str:
    return tag("div", "".join(sweep_figure(picture, look) for picture in drawn), class_="panels") if drawn else ""
