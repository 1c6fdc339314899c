"""The Python interface: what the command does, as functions with typed results.

    import bench

    result = bench.run(method="dpsd", attack="gmi", epsilon=10, seed=0)
    result.utility.student.value, result.privacy.accounted.epsilon, result.attack.accuracy
    result.student  # an nn.Module in eval mode
    result.export("bundle", allow_seeded=True)

Functions print nothing: notices go to the logger "bench", progress to a callback. They leave torch's random generators
as they found them. `keep_freed_memory` makes work on big tensors several times faster, and changes the whole process:
call it at the beginning of a script.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.config import EVALUATOR, STUDENT
from bench.core import records
from bench.core.privacy import PrivacyReport
from bench.core.results import AttackReport, Measure, Utility, attack_of, utility_of
from bench.errors import BenchError, RunFailed, unknown
from bench.progress import reporter
from bench.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from torch import nn

    from bench.bundle.checking import Verified
    from bench.bundle.finding import Found

Option = str | int | float | bool
Options = Mapping[str, Option]
Progress = Callable[[str, int, int], None]
"""(stage, steps done, steps in all)."""

NOISE = ("seeded", "os")
FITS = ("crop", "pad", "stretch")
UNFIT = ("refuse", "record")
MEMORY = ("refuse", "warn", "off")

logger = logging.getLogger("bench")


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        record: everything that its file holds, typed.
        path: the directory of the record and its pictures.
        is_cached: whether the run had been made before and was read from `out`.
        out: the folder with the runs and their cached steps.
    """

    record: records.RunRecord
    path: Path
    is_cached: bool
    out: Path

    @property
    def utility(self) -> Utility:
        """Accuracies with intervals, shares in [0, 1]."""
        found = utility_of(self.record)
        if found is None:
            raise RunFailed(f"the run failed: {self.record.reason}")
        return found

    @property
    def accuracy(self) -> float:
        """Accuracy of the released student on the test set, in [0, 1]."""
        return self.utility.student.value

    @property
    def privacy(self) -> PrivacyReport:
        """Claimed, accounted and empirically bounded epsilon, with the ledger."""
        if self.record.privacy is None:
            raise RunFailed(f"the run failed: {self.record.reason}")
        return self.record.privacy

    @property
    def attack(self) -> AttackReport | None:
        """What the attack achieved; None for a run without an attack."""
        return attack_of(self.record)

    @property
    def student(self) -> nn.Module:
        """The released network in eval mode on the CPU: (n, c, h, w) images in [0, 1] to (n, classes) logits.

        Raises:
            BenchError: its weights are no longer in `out`.
        """
        from bench.bundle.network import rebuild, takes

        found = self._found()
        return rebuild(found, takes(found, own_names=True))

    def export(
        self, folder: str | os.PathLike[str], *, allow_seeded: bool = False, own_names: bool = False
    ) -> Verified:
        """Write the release without anything that was measured on private data, as `bench export` does.

        Args:
            folder: new or empty; its parent exists.
            allow_seeded: export a release whose noise came from a seed.
            own_names: name the classes of your own data set.

        Raises:
            BenchError: seeded noise that was not allowed, or a folder that cannot be written.
        """
        from bench import bundle

        return bundle.export(self._found(), Path(folder), allow_seeded=allow_seeded, own_names=own_names)

    def _found(self) -> Found:
        from bench import bundle

        return bundle.find(str(self.path), self.out)

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of the numbers that a reader looks for first."""
        privacy, attack, utility = self.privacy, self.attack, self.utility
        found = [("accuracy of the released student", _shown(utility.student))]
        found += [] if utility.teacher is None else [("accuracy of the teacher", _shown(utility.teacher))]
        claim = privacy.claimed
        found.append(("epsilon claimed", "none" if claim is None else f"{_number(claim.epsilon)} per {claim.unit}"))
        found += [
            ("epsilon accounted", f"{_number(each.epsilon)} per {unit}, delta {each.delta:g}")
            for unit, each in sorted(privacy.accounted_units.items())
        ]
        if privacy.audited is not None:
            bound = privacy.audited
            found.append(("epsilon, empirical lower bound", f"{bound.epsilon_lower:.4g} per {bound.unit}"))
        found.append(("noise", privacy.noise))
        if attack is not None:
            main = attack.accuracy or attack.auc
            found += [] if main is None else [(f"{attack.name} on the student", _shown(main))]
            found.append((f"power of {attack.name}", "yes" if attack.has_power else attack.reason))
        return found

    def __str__(self) -> str:
        release = self.record.spec.release
        heading = (
            f"{release.method} on {release.teacher.data.dataset}, tier {self.record.spec.tier}, seed {release.seed}"
        )
        if self.record.status == "failed":
            return f"{heading}: failed ({self.record.reason})"
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join([heading, *(f"  {name:<{width}}  {value}" for name, value in rows)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        if self.record.status == "failed":
            return f"<p>{escape(str(self))}</p>"
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self.rows())
        return f"<table>{cells}</table>"


def run(
    method: str,
    attack: str | None = None,
    dataset: str = "digits",
    *,
    epsilon: float | None = 10.0,
    delta: float = 1e-5,
    account: Literal["claimed", "accounted"] = "claimed",
    solve: Literal["sigma", "steps"] = "sigma",
    unit: str = "example",
    seed: int = 0,
    split: str = "iid",
    teacher: str = "resnet18",
    student: str = STUDENT,
    evaluator: str = EVALUATOR,
    tier: str = "quick",
    variant: str | None = None,
    attack_variant: str | None = None,
    method_options: Options | None = None,
    attack_options: Options | None = None,
    teacher_options: Options | None = None,
    evaluator_options: Options | None = None,
    noise: Literal["seeded", "os"] | None = None,
    device: str = "auto",
    data_root: str | os.PathLike[str] | None = None,
    download: bool = False,
    skip_broken: bool = False,
    fit: Literal["crop", "pad", "stretch"] = "crop",
    pixel_range: tuple[float, float] | None = None,
    teacher_weights: str | os.PathLike[str] | None = None,
    unfit_attack: Literal["refuse", "record"] = "refuse",
    memory_check: Literal["refuse", "warn", "off"] = "refuse",
    out: str | os.PathLike[str] = "runs",
    fresh: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Train a teacher, convert it with a method, attack the student and record the result, as `bench run` does.

    Finished steps are kept in `out` and used again.

    Args:
        method, attack, dataset, teacher, student, evaluator: names as of `bench list`.
        epsilon: > 0, `math.inf`, or None to keep the method's own noise.
        delta: in (0, 1).
        account: whether the paper's theorem or the accountant must meet the budget.
        solve: what the budget decides: the noise or the number of steps.
        unit: "example", "label", "query" or "client".
        seed: 0 to `bench.seeds.LARGEST_SEED`.
        tier: "smoke", "quick", "standard" or "paper"; it changes sizes, never the algorithm.
        variant, attack_variant: "printed", "working" or "own"; None = the default.
        method_options, attack_options, teacher_options, evaluator_options: values by name, as of `bench show NAME`.
        noise: "seeded" can be repeated, and its epsilon holds only for someone without the seed; "os" cannot. None =
            "os" for your own data or teacher, else "seeded".
        fit, pixel_range: how your own images are made square, and which of their values mean black and white.
        teacher_weights: a file of your own teacher's weights.
        unfit_attack: refuse an attack that can say nothing about these data, or record it as skipped.
        memory_check: refuse a run that needs more memory than is free, say so, or do not look.
        out: folder of runs and cached steps.
        fresh: make the run again where it exists.
        progress: called with (stage, steps done, steps in all).

    Raises:
        BenchError: bad input, with what was expected and what to do.
        RunFailed: a step failed; its record says why.
    """
    from bench import data
    from bench.data.request import Reading
    from bench.pipeline.settings import Settings
    from bench.privacy import Budget
    from bench.privacy.budget import as_unit

    choices = {"noise": (noise or "os", NOISE), "fit": (fit, FITS), "unfit_attack": (unfit_attack, UNFIT)}
    for name, (given, known) in (choices | {"memory_check": (memory_check, MEMORY)}).items():
        if given not in known:
            raise unknown(name, given, known)
    is_own = data.is_own(dataset) or teacher_weights is not None
    weights = None if teacher_weights is None else Path(teacher_weights)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise BenchError(f"seed is {seed!r}; expected a whole number from 0 to {LARGEST_SEED}")
    has_budget = epsilon is not None and math.isfinite(epsilon)
    budget = Budget(epsilon, delta, account, solve if has_budget else "none", as_unit(unit))
    settings = Settings(
        method=method,
        attack=attack,
        dataset=dataset,
        split=split,
        data_root=None if data_root is None else Path(data_root),
        download=download,
        skip_broken=skip_broken,
        teacher=teacher,
        student=student,
        evaluator=evaluator,
        tier=tier,
        variant=variant,
        attack_variant=attack_variant,
        budget=budget,
        device=device,
        noise=noise or ("os" if is_own else "seeded"),
        reading=Reading(fit, pixel_range),
        teacher_weights=weights,
        out=Path(out),
        fresh=fresh,
        method_options=_as_text(method_options),
        attack_options=_as_text(attack_options),
        teacher_options=_as_text(teacher_options),
        evaluator_options=_as_text(evaluator_options),
    )
    import torch

    from bench.pipeline import run as pipeline
    from bench.pipeline.memory import check_memory
    from bench.pipeline.resolve import load_job, refuse_unfit

    with _reporting(progress), torch.random.fork_rng(), closing(load_job(settings, budget=False)) as job:
        if unfit_attack == "refuse":
            refuse_unfit(job)
        if memory_check != "off" and not pipeline.is_published(job, seed):
            job.check()
            check_memory(job, memory_check)
        outcome = pipeline.run(job, seed)
    return RunResult(records.read(outcome.path / "record.json"), outcome.path, outcome.cached, Path(out))


def load(path: str | os.PathLike[str]) -> RunResult:
    """The run in a directory, such as `runs/records/HASH`.

    Raises:
        BenchError: there is no record, or it is not one.
    """
    folder = Path(path)
    return RunResult(records.read(folder / "record.json"), folder, is_cached=True, out=folder.absolute().parents[1])


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for later tensors, which makes big ones 4 to 5 times faster with glibc.

    Returns:
        Whether it was changed: not where the C library is another one or the environment sets its allocator.
    """
    from bench.cli.heap import keep_freed_memory as keep

    return keep()


@dataclass(frozen=True)
class _Listener:
    """Sends notices to the logger and progress to a callback."""

    progress: Progress | None

    def step(self, stage: str, done: int, total: int) -> None:
        """As `bench.progress.Reporter`."""
        if self.progress is not None:
            self.progress(stage, done, total)

    def notice(self, line: str) -> None:
        """As `bench.progress.Reporter`."""
        logger.warning(line)


@contextmanager
def _reporting(progress: Progress | None) -> Iterator[None]:
    token = reporter.set(_Listener(progress))
    try:
        yield
    finally:
        reporter.reset(token)


def _as_text(options: Options | None) -> tuple[tuple[str, str], ...]:
    """Options as the command line would have them, sorted by name."""
    given = sorted((options or {}).items())
    for name, value in given:
        if not isinstance(value, str | int | float | bool):
            raise BenchError(f"option {name} is a {type(value).__name__}; expected a number, a string or a boolean")
    return tuple((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in given)


def _shown(measure: Measure) -> str:
    if measure.low is None or measure.high is None:
        return f"{measure.value:.3f}"
    return f"{measure.value:.3f} [{measure.low:.3f}, {measure.high:.3f}]"


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "infinite"
