"""Explain why a result of ours is below the published number: the factor that closes most of the difference.

A factor counts only if a run of ours measures it: the same run without noise, or the accuracy of the teacher. The code
`information` is proved instead. Where no run separates the causes, the code is `unknown` and the experiment is the
command that would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bench.boards.results import Result, release_command
from bench.boards.tables import ACCURACY
from bench.config import TIERS
from bench.papers.comparison import Line
from bench.papers.information import ISSUE
from bench.papers.results import Conditions, conditions, has_no_noise, never_has_noise, queries_teacher
from bench.validate import present

CLOSE = 0.02
"""Difference in accuracy up to which a lower result needs no reason: two points."""
MOST = 0.5
"""Least share of the difference that a factor closes to be its reason."""
Controls = Mapping[Conditions, Result]
"""Results without noise, by all other settings that their accuracy depends on (`conditions`)."""


@dataclass(frozen=True)
class Reason:
    """The reason for a lower accuracy.

    Attributes:
        code: a key of `CODES`.
        experiment: a page of docs/ or a command, by which a reader can check it.
        closes: the share of the difference that the measured factor closes, from 0 to 1; None without a measurement.
    """

    code: str
    experiment: str
    closes: float | None = None

    def __str__(self) -> str:
        """Return the code, with the share that the factor closes.

        >>> str(Reason("noise", "", 0.78)), str(Reason("learns-less", "", 0.1)), str(Reason("unknown", ""))
        ('noise 78 %', 'learns-less, noise 10 %', 'unknown')
        """
        if self.closes is None:
            return self.code
        factor = ", noise" if self.code == "learns-less" else ""
        return f"{self.code}{factor} {100 * self.closes:.0f} %"


CODES = {
    "information": "The settings that the paper prints let through less information than its printed number needs, "
    "for any algorithm. This is proved.",
    "noise": "The same run of ours without noise, at its size or a smaller one, closes at least half of the "
    "difference: it is what the noise of the claimed epsilon costs. The paper's noise may be less for the same claim "
    "(docs/baselines.md).",
    "teacher": "The undefended teacher that our student learns from is itself behind the printed number, by at least "
    "half of the difference.",
    "learns-less": "The same run of ours without noise closes less than half of the difference: at its size ours does "
    "not learn what the paper's does, with or without privacy.",
    "unknown": "Ours was not run without noise in the same settings, so that nothing separates the causes. The command "
    "is the missing run.",
}
"""Code to its meaning."""


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
    entry, result = line.entry, line.result
    if ISSUE in entry.issues:
        return Reason("information", "docs/information.md")
    noise, teacher = _noise(line, controls or {}), _teacher(line)
    most = max((each for each in (noise, teacher) if each), key=lambda each: each.closes or 0.0, default=None)
    if most is not None and (most.closes or 0.0) >= MOST:
        return most
    if noise is not None:
        return replace(noise, code="learns-less")
    return Reason("unknown", release_command(result.release, entry.dataset, {"epsilon": "inf"}))


def _noise(line: Line, controls: Controls) -> Reason | None:
    """Return what the same run without noise closes; None without such a run.

    A run that has no noise itself closes nothing. A smaller run counts only if it closes at least `MOST`: one that is
    behind says nothing about a larger one.
    """
    result, difference = present(line.result, "result"), present(line.difference, "difference")
    release = result.release
    if has_no_noise(result) or never_has_noise(result):
        return Reason("noise", release_command(release, line.entry.dataset, result.options["budget"]), 0.0)
    if result.is_older:
        return None
    same = controls.get(conditions(result))
    key, size = conditions(result, any_size=True), TIERS.index(release.tier)
    smaller = [
        each
        for each in controls.values()
        if TIERS.index(each.release.tier) < size and conditions(each, any_size=True) == key
    ]
    for control in ([] if same is None else [same]) + smaller:
        without = present(control.accuracy, "accuracy of a run without noise")
        closes = (without - present(result.accuracy, "accuracy")) / -difference
        if control is same or closes >= MOST:
            return Reason("noise", _control_command(control, line.entry.dataset), min(1.0, max(0.0, closes)))
    return None


def _teacher(line: Line) -> Reason | None:
    """Return the share of the difference by which the teacher is behind; None if it is not, or not queried."""
    result, difference = present(line.result, "result"), present(line.difference, "difference")
    accuracy = result.on_teacher(ACCURACY)
    if accuracy is None or accuracy >= line.entry.value - CLOSE or not queries_teacher(result):
        return None
    return Reason("teacher", "docs/data.md", min(1.0, (line.entry.value - accuracy) / -difference))


def _control_command(control: Result, dataset: str) -> str:
    """Return the command of a control, and its accuracy."""
    command = release_command(control.release, dataset, {"epsilon": "inf"})
    accuracy = present(control.accuracy, "accuracy of a run without noise")
    return f"{command} # {100 * accuracy:.1f} %"
