"""The result of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core import records
from bench.core.epsilon import format_epsilon
from bench.core.privacy import PrivacyReport
from bench.core.results import AttackReport, Measure, Utility, attack_of, utility_of
from bench.core.verdict import Verdict, decide
from bench.errors import BadOption, NotFound, RunFailed

if TYPE_CHECKING:
    from torch import nn

    from bench.bundle.checking import Verified
    from bench.bundle.finding import FinishedRun

RECORD = "record.json"


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run, shown as a table in a terminal and in a notebook.

    Attributes:
        record: the content of its file as typed values.
        path: the directory of the record and its pictures.
        is_cached: whether the run was read from `out` instead of being made.
        out: the folder with the runs and their cached steps.
    """

    record: records.RunRecord
    path: Path
    is_cached: bool
    out: Path

    @property
    def utility(self) -> Utility:
        """Accuracies with intervals, shares in [0, 1]. Raises RunFailed for a run that failed."""
        found = utility_of(self.record)
        if found is None:
            raise RunFailed(f"the run failed: {self.record.reason}")
        return found

    @property
    def accuracy(self) -> float:
        """Accuracy of the released student on the test set, in [0, 1]. Raises RunFailed for a run that failed."""
        return self.utility.student.value

    @property
    def privacy(self) -> PrivacyReport:
        """Claimed, accounted and empirically bounded epsilon, with the ledger. Raises RunFailed for a failed run."""
        if self.record.privacy is None:
            raise RunFailed(f"the run failed: {self.record.reason}")
        return self.record.privacy

    @property
    def attack(self) -> AttackReport | None:
        """The attack's result; None for a run without an attack."""
        return attack_of(self.record)

    @property
    def verdict(self) -> Verdict:
        """The conclusion from the attack: the release leaks, no leak was found, or the attack cannot tell."""
        return decide(self.record)

    @property
    def student(self) -> nn.Module:
        """The released network in eval mode on the CPU; it maps (n, c, h, w) images in [0, 1] to (n, classes) logits.

        Raises:
            BenchError: its weights are no longer in `out`; or it is a network of your own code that this process does
                not have.
        """
        from bench.bundle.network import rebuild, student_input

        found = self._found()
        return rebuild(found, student_input(found, own_names=True))

    def export(
        self, folder: str | os.PathLike[str], *, allow_seeded: bool = False, own_names: bool = False
    ) -> Verified:
        """Write a bundle of the release, without measurements on private data, as `bench export`.

        Args:
            folder: new or empty; its parent exists.
            allow_seeded: export a release whose noise came from a seed.
            own_names: name the classes of your own data set.

        Returns:
            The result of checking the written bundle.

        Raises:
            BenchError: seeded noise that was not allowed, or a folder that cannot be written.
        """
        from bench import bundle

        return bundle.export(self._found(), Path(folder), allow_seeded=allow_seeded, own_names=own_names)

    def save(self, folder: str | os.PathLike[str]) -> RunResult:
        """Copy the record, its pictures and the released network into another folder of runs.

        The copy has measurements on private data: protect it like the data, and publish only bundles (`export`).

        Args:
            folder: created if missing; the run is copied to `folder/records/HASH`, its release to `folder/steps`.

        Returns:
            The run in its new place, which `bench.load` reads too.

        Raises:
            NotFound: the record or the release has been moved or deleted.
            BadOption: the folder cannot be written.
        """
        target = Path(folder)
        sources = [self.path] if self.record.status == "failed" else [self.path, self._found().step]
        try:
            for source in sources:
                if not source.is_dir():
                    raise NotFound(f"{source} no longer exists; repeat the run with bench.run(..., fresh=True)")
                where = Path("records") if source == self.path else Path("steps", source.parent.name)
                shutil.copytree(source, target / where / source.name, dirs_exist_ok=True)
        except OSError as error:
            raise BadOption(f"cannot write {target} ({error}); give a folder that you may write to") from None
        return RunResult(self.record, target / "records" / self.path.name, self.is_cached, target)

    def _found(self) -> FinishedRun:
        from bench import bundle

        return bundle.find(str(self.path), self.out)

    @property
    def title(self) -> str:
        """The run in a line: method, data set, tier and seed."""
        release, tier = self.record.spec.release, self.record.spec.tier
        return f"{release.method} on {release.teacher.data.dataset}, tier {tier}, seed {release.seed}"

    def rows(self) -> list[tuple[str, str]]:
        """Return name and value of the main numbers. Raises RunFailed for a run that failed."""
        privacy, attack, utility = self.privacy, self.attack, self.utility
        found = [("accuracy of the released student", _measure(utility.student))]
        found += [] if utility.teacher is None else [("accuracy of the teacher", _measure(utility.teacher))]
        claim = privacy.claimed
        found.append(
            ("epsilon claimed", "none" if claim is None else f"{format_epsilon(claim.epsilon)} per {claim.unit}")
        )
        found += [
            ("epsilon accounted", f"{format_epsilon(each.epsilon)} per {unit}, delta {each.delta:g}")
            for unit, each in sorted(privacy.accounted_units.items())
        ]
        if privacy.audited is not None:
            bound = privacy.audited
            found.append(("epsilon, empirical lower bound", f"{bound.epsilon_lower:.4g} per {bound.unit}"))
        found.append(("noise", privacy.noise))
        if attack is not None:
            main = attack.accuracy or attack.auc
            found += [] if main is None else [(f"{attack.name} on the student", _measure(main))]
            found.append(("verdict", self.verdict.sentence))
        return found

    def __str__(self) -> str:
        if self.record.status == "failed":
            return f"{self.title}: failed ({self.record.reason})"
        return text_table(self.title, self.rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if self.record.status == "failed":
            return html_table(self.title, [("failed", self.record.reason)])
        return html_table(self.title, self.rows())


def load(path: str | os.PathLike[str]) -> RunResult:
    """Read a finished run.

    Args:
        path: the directory of a run, such as `runs/records/HASH`.

    Returns:
        The run, as `bench.run` returned it.

    Raises:
        NotFound: the folder has no record.
        BenchError: the file is not a record of a run.
    """
    folder = Path(path)
    if not (folder / RECORD).is_file():
        raise NotFound(f"no {RECORD} in {folder}; give the directory of a run, as in runs/records/HASH")
    return RunResult(records.read(folder / RECORD), folder, is_cached=True, out=folder.absolute().parents[1])


def text_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Format a title, and below it names and values in two columns; hidden characters are shown as escapes."""
    from bench.escape import visible

    width = max(len(name) for name, _ in rows)
    return "\n".join(visible(line) for line in (title, *(f"  {name:<{width}}  {value}" for name, value in rows)))


def html_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Format a title, names and values as an HTML table; every text is escaped."""
    from html import escape

    from bench.escape import visible

    cells = "".join(
        f"<tr><th style='text-align: left'>{escape(visible(name))}</th>"
        f"<td style='text-align: left'>{escape(visible(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption>{escape(visible(title))}</caption>{cells}</table>"


def _measure(measure: Measure) -> str:
    """Format a number with its interval, if it has one."""
    if measure.low is None or measure.high is None:
        return f"{measure.value:.3f}"
    return f"{measure.value:.3f} [{measure.low:.3f}, {measure.high:.3f}]"
