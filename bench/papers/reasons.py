"""Explain why a result of ours is below the published number: a code, and a page or a command to check it.

A code names a known difference between both; of several, the most certain one is used. Only `information` is proved.
`noise` and `learns-less` are measured by the same run without noise. The sentences of the others say what was tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench import data
from bench.boards.results import Result, release_command
from bench.boards.tables import ACCURACY
from bench.config import TIERS
from bench.papers.comparison import Line
from bench.papers.information import ISSUE
from bench.papers.results import Conditions, conditions, has_no_noise, never_has_noise, queries_teacher

CLOSE = 0.02
"""Difference in accuracy up to which a lower result needs no reason: two points."""
WITH_INGREDIENT = {"dgd": "recipes/dgd-ablations.toml", "dp-dfd": "recipes/ingredients.toml"}
"""Methods whose generator learns from the unprotected teacher in their papers, and the recipe that runs ours with such
a generator (docs/methods.md)."""
Controls = Mapping[Conditions, Result]
"""Results without noise, by all other settings that their accuracy depends on (`conditions`)."""


@dataclass(frozen=True)
class Reason:
    """The reason for a lower accuracy.

    Attributes:
        code: a key of `CODES`.
        experiment: a page of docs/, a recipe or a command, by which a reader can check it.
    """

    code: str
    experiment: str


CODES = {
    "information": "The settings that the paper prints let through less information than its printed number needs, "
    "for any algorithm. This is proved.",
    "noise": "The same run of ours without noise, at its size or a smaller one, is as good as the printed number: the "
    "difference is what the noise of the claimed epsilon costs. The paper's noise may be less for the same claim "
    "(docs/baselines.md).",
    "teacher": "The undefended teacher that ours was made of is itself behind the printed number of a student, by more "
    "than two points and by half of the difference at least: better teachers of the same data are in "
    "recipes/teachers.toml, where there are any.",
    "data-subset": "Ours had other data than the paper: fewer images, another size, or decoded from JPEG.",
    "unprotected-generator": "The paper's generator learns from the unprotected teacher, which no epsilon covers; ours "
    "learns only from protected responses. At tier quick the unprotected one did not help either.",
    "learns-less": "The same run of ours without noise is more than two points behind as well: at its size ours does "
    "not learn what the paper's does, with or without privacy.",
    "size": "Ours was run at a smaller size than the paper's. Whether size explains the difference was not tried.",
    "unknown": "Ours was run at the paper's size and is still behind, and was not run without noise at that size: what "
    "explains it is not known.",
}
"""Code to its meaning; the first one that applies is used."""


def without_noise(results: Iterable[Result]) -> dict[Conditions, Result]:
    """Return the results of `--epsilon inf`, the controls of results with noise, by their conditions."""
    return {
        conditions(each): each
        for each in results
        if has_no_noise(each) and not each.is_older and each.accuracy is not None
    }


def reason(line: Line, controls: Controls | None = None) -> Reason | None:
    """Return the reason why a result is more than `CLOSE` below the published number; None for any other line.

    Args:
        controls: `without_noise` of the boards that contain the line's result.
    """
    if line.result is None or line.difference is None or line.difference >= -CLOSE:
        return None
    entry, result, controls = line.entry, line.result, controls or {}
    release = result.release
    if ISSUE in entry.issues:
        return Reason("information", "docs/information.md")
    is_noisy = not (has_no_noise(result) or never_has_noise(result) or result.is_older)
    control = controls.get(conditions(result)) if is_noisy else None
    # If a smaller run without noise reaches the published number, size does not explain the difference
    key, size = conditions(result, any_size=True), TIERS.index(release.tier)
    smaller = [
        each
        for each in controls.values()
        if is_noisy and TIERS.index(each.release.tier) < size and conditions(each, any_size=True) == key
    ]
    for each in ([] if control is None else [control]) + smaller:
        if (each.accuracy or 0.0) >= entry.value - CLOSE:
            return Reason("noise", _control_command(each, entry.dataset))
    teacher = result.on_teacher(ACCURACY)
    is_behind = teacher is not None and teacher < entry.value - max(CLOSE, -line.difference / 2)
    if is_behind and queries_teacher(result):
        return Reason("teacher", "docs/data.md")
    if release.dataset != entry.dataset and data.base_name(release.dataset) == entry.dataset:
        return Reason("data-subset", "docs/data.md")
    if entry.method in WITH_INGREDIENT and release.variant == "working":
        return Reason("unprotected-generator", f"bench sweep {WITH_INGREDIENT[entry.method]}")
    if control is not None:
        return Reason("learns-less", _control_command(control, entry.dataset))
    if release.tier == "paper":
        return Reason("unknown", release_command(release, entry.dataset, {"epsilon": "inf"}))
    return Reason("size", release_command(release, entry.dataset, result.options["budget"], tier="paper"))


def _control_command(control: Result, dataset: str) -> str:
    """Return the command of a control, and its accuracy."""
    command = release_command(control.release, dataset, {"epsilon": "inf"})
    return f"{command} # {100 * (control.accuracy or 0.0):.1f} %"
