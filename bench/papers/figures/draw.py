"""The papers' figures as data for their pages: charts as markup, checked sentences, pictures of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench import boards, data
from bench.papers.figures import FIGURES
from bench.papers.figures.claims import Verdict, answers
from bench.papers.figures.kinds import Figure
from bench.papers.figures.sweep_charts import SIDES, look_of, sweep_figure
from bench.papers.figures.sweep_points import Picture, pictures
from bench.papers.printed_numbers import PrintedNumber
from bench.papers.tables import Recipes
from bench.report import points
from bench.report.charts import Styles, tag
from bench.report.files import readable
from bench.report.sections import Content, GalleryEntry, gallery
from bench.storage.records import Record

Numbers = Sequence[PrintedNumber]


@dataclass(frozen=True)
class Sentence:
    """A sentence of a paper's text about a figure, and what our runs show.

    Attributes:
        picture: title of the picture.
        text: the sentence, in our words.
        numbers: our numbers, in words.
        line: name of our line.
    """

    dataset: str
    picture: str
    text: str
    verdict: Verdict
    numbers: str
    line: str


@dataclass(frozen=True)
class FigureSummary:
    """A figure in the list of all figures.

    Attributes:
        single: markup of the pictures with too few points for a comparison.
        ours, printed: number of our points, and of published numbers, that it shows.
    """

    slug: str
    paper: str
    figure: str
    title: str
    recipe: str | None
    note: str
    single: str
    answers: list[Sentence]
    ours: int
    printed: int


@dataclass(frozen=True)
class FigurePage(FigureSummary):
    """A figure's page: markup of its charts, and pictures of runs."""

    markup: str
    gallery: list[GalleryEntry]


def draw_figures(content: Content, numbers: Numbers, recipes: Recipes) -> list[FigurePage]:
    """Draw the papers' figures that have a number or a picture. Runs of tier smoke are left out."""
    records = [record for record in content.sources.records if record.spec["tier"] != "smoke"]
    groups = {
        True: points.grouped([record for record in records if record.spec["attack"]], attacks=True),
        False: points.grouped(records, attacks=False),
    }
    found = [_draw_figure(figure, content, numbers, groups, recipes) for figure in FIGURES]
    return [figure for figure in found if figure.markup or figure.single or figure.gallery]


def find_undrawn(drawn: Iterable[FigurePage]) -> list[tuple[str, str]]:
    """Return paper and name of the figures that show only images of runs, and of which the report has no image."""
    shown = {(figure.paper, figure.figure) for figure in drawn}
    return [
        (figure.paper, figure.name)
        for figure in FIGURES
        if not figure.sweeps and (figure.paper, figure.name) not in shown
    ]


def _draw_figure(
    figure: Figure, content: Content, numbers: Numbers, groups: Mapping[bool, list[list[Record]]], recipes: Recipes
) -> FigurePage:
    found = [
        picture
        for sweep in figure.sweeps
        for picture in pictures(sweep, figure.paper, groups[bool(sweep.attack)], numbers)
        if picture.ours or picture.printed
    ]
    of_runs = [
        picture
        for picture in content.pictures
        if picture.kind == figure.pictures and picture.record.spec["release"]["method"] in figure.methods
    ]
    recipe = recipes.get((figure.paper, figure.name))
    name = f"{figure.paper} {figure.name}"
    look = look_of(point for picture in found for point in picture.points)
    return FigurePage(
        slug=readable(name),
        paper=figure.paper,
        figure=figure.name,
        title=name if recipe is None else recipe.title,
        recipe=None if recipe is None else recipe.file,
        note=figure.note,
        single=_panels([picture for picture in found if not picture.is_comparable], look),
        answers=check_sentences(figure, found, numbers),
        ours=sum(picture.ours for picture in found if picture.is_comparable),
        printed=len({number for picture in found for number in picture.numbers}),
        markup=_panels([picture for picture in found if picture.is_comparable], look),
        gallery=gallery(of_runs, lambda each: f"{boards.dataset(each.record)}: {each.kind}"),
    )


def check_sentences(figure: Figure, drawn: Iterable[Picture], numbers: Numbers) -> list[Sentence]:
    """Check the sentences of the paper's text about its figure on our runs on its data sets."""
    theirs = {each.dataset for each in numbers if each.paper == figure.paper}
    found = []
    for picture in drawn:
        if picture.dataset not in theirs:
            continue
        chance = None  # accuracy of always predicting the largest class, or one of equal classes
        if picture.sweep.y not in SIDES and picture.ours:
            is_accuracy = picture.sweep.y == "accuracy"
            largest = points.largest(point.commonest for point in picture.points) if is_accuracy else None
            chance = largest or 1 / len(data.facts(picture.dataset).class_names)
        for each in answers(picture.sweep.says, picture.points, chance):
            text, title = each.says.text, picture.sweep.title
            found.append(Sentence(picture.dataset, title, text, each.verdict, each.numbers, each.line))
    return found


def _panels(drawn: Sequence[Picture], look: Styles) -> str:
    return tag("div", "".join(sweep_figure(picture, look) for picture in drawn), class_="panels") if drawn else ""
