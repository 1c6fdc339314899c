"""Runs: `bench.run`, and the steps that it shares with the command `bench run`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.config import EVALUATOR, STUDENT
from bench.core import records
from bench.data.own import OwnDataset
from bench.errors import BudgetError
from bench.interface.process import Progress, undisturbed
from bench.interface.result import RECORD, RunResult
from bench.interface.values import (
    Options,
    Scale,
    as_images,
    as_plugin,
    as_teacher,
    as_texts,
    check_choices,
    check_seed,
)

if TYPE_CHECKING:
    from torch import nn

    from bench.pipeline.job import Job
    from bench.pipeline.memory import Check
    from bench.pipeline.run import Outcome
    from bench.pipeline.settings import Settings

ACCOUNTS = ("claimed", "accounted")
SOLVED = ("sigma", "steps")
NOISE = ("seeded", "os")
PRECISIONS = ("fp32", "bf16", "auto")
UNFIT = ("refuse", "record")
MEMORY = ("refuse", "warn", "off")


def run(
    method: str | type[Any] | object,
    attack: str | type[Any] | object | None = None,
    dataset: str | OwnDataset = "digits",
    *,
    epsilon: float | None = 10.0,
    delta: float = 1e-5,
    account: Literal["claimed", "accounted"] = "claimed",
    solve: Literal["sigma", "steps"] = "sigma",
    unit: str = "example",
    seed: int = 0,
    split: str = "iid",
    teacher: str | nn.Module = "resnet18",
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
    devices: int = 1,
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    compile: bool = False,
    data_root: str | os.PathLike[str] | None = None,
    download: bool = False,
    skip_broken: bool = False,
    fit: Literal["crop", "pad", "stretch"] = "crop",
    pixel_range: tuple[float, float] | None = None,
    teacher_weights: str | os.PathLike[str] | None = None,
    teacher_normalise: tuple[Scale, Scale] | None = None,
    unfit_attack: Literal["refuse", "record"] = "refuse",
    memory_check: Literal["refuse", "warn", "off"] = "refuse",
    out: str | os.PathLike[str] = "runs",
    fresh: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Train a teacher, convert it with a method, attack the student and record the result, as `bench run` does.

    Finished steps are kept in `out` and used again. An interrupted run goes on where it was when it is called again.

    Args:
        method: a name of `bench.methods()`; or a class that you define, such as in a notebook (CONTRIBUTING.md says
            what it must have); or an instance of one, whose fields that are not at their defaults are options.
        attack: the same of `bench.attacks()`; None = no attack.
        dataset: a name of `bench.datasets()`; a path as `npz:PATH` or `imagefolder:PATH`; or a value of
            `bench.data.from_arrays`, `from_folder`, `from_torch` or `from_huggingface`.
        epsilon: > 0, `math.inf`, or None to keep the method's own noise.
        delta: in (0, 1).
        account: whether the paper's theorem or the accountant must meet the budget.
        solve: whether the budget decides the noise or the number of steps.
        unit: "example", "label", "query" or "client".
        seed: 0 to `bench.seeds.LARGEST_SEED`.
        split: how the training images are divided between teacher and attacker, as of `bench run --help`.
        teacher: the name of a network, which is trained; or a trained nn.Module that maps (n, c, h, w) images in
            [0, 1] to (n, classes) logits.
        student: the name of a network.
        evaluator: the name of a network, which judges reconstructions.
        tier: "smoke", "quick", "standard" or "paper"; it changes sizes, never the algorithm.
        variant: of the method, "printed", "working" or "own"; None = the default.
        attack_variant: the same of the attack.
        method_options: values by name, as of `bench.methods()`.
        attack_options: values by name, as of `bench.attacks()`.
        teacher_options: how the teacher is trained, by name, as of `bench show teacher-recipes`.
        evaluator_options: how the evaluator is trained, by name.
        noise: "seeded" can be repeated, and its epsilon holds only for someone without the seed; "os" cannot. None =
            "os" for your own data or teacher, else "seeded".
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: number of GPUs, or of processes on a CPU, that training is shared by.
        precision: "bf16" trains with autocast; "auto" does so where it is faster.
        compile: compile the networks that a conversion calls most.
        data_root: where data sets are; None = $BENCH_DATA, else ~/.cache/dp-distill-bench.
        download: fetch a missing data set.
        skip_broken: leave out image files that cannot be read.
        fit: how images of your own files become square: "crop", "pad" or "stretch".
        pixel_range: values of your own files that mean black and white.
        teacher_weights: a file of trained weights, or a folder of a model hub's cache, for `teacher` by name.
        teacher_normalise: (mean, std) that your teacher was trained with, on pixels in [0, 1], each a number or one a
            channel; None = as the weights' folder says, else 0.5 and 0.5; of a module (0, 1).
        unfit_attack: refuse an attack that can say nothing about these data, or record it as skipped.
        memory_check: refuse a run that needs more memory than is free, log so, or do not look.
        out: folder of runs and cached steps.
        fresh: make the run again where it exists.
        progress: called with (stage, steps done, steps in all). An exception of it ends the run.

    Returns:
        The record with accuracies, privacy and the attack's result, and access to the released student.

    Raises:
        BenchError: bad input, with what was expected and what to do; `bench.errors` has a class for each kind.
        RunFailed: a step failed; its record says why.
        KeyboardInterrupt: interrupted; finished steps are kept.
    """
    # Every argument is a setting, except these three
    settings = {
        name: given for name, given in locals().items() if name not in ("unfit_attack", "memory_check", "progress")
    }
    check_choices(unfit_attack=(unfit_attack, UNFIT), memory_check=(memory_check, MEMORY))
    with undisturbed(progress):
        asked = settings_of(**settings)
        (outcome,) = outcomes(asked, [seed], unfit_attack == "refuse", memory_check)
    return RunResult(records.read(outcome.path / RECORD), outcome.path, outcome.cached, Path(out))


def outcomes(
    settings: Settings,
    seeds: Sequence[int],
    refuses_unfit: bool = True,
    memory_check: Check = "refuse",
    before: Callable[[Job], None] | None = None,
) -> Iterator[Outcome]:
    """The run of each seed, made unless it is there; what all of them share is checked and loaded once.

    Args:
        refuses_unfit: refuse an attack that can say nothing about these data, instead of recording it as skipped.
        memory_check: what to do with a run that needs more memory than is free.
        before: called before anything is trained.

    Raises:
        BenchError, RunFailed: as `run`.
    """
    from bench.pipeline import run as pipeline
    from bench.pipeline.memory import check_memory
    from bench.pipeline.resolve import load_job, refuse_unfit

    with closing(load_job(settings, budget=False)) as job:
        if refuses_unfit:
            refuse_unfit(job)
        if before is not None:
            before(job)
        if memory_check != "off" and not all(pipeline.is_published(job, seed) for seed in seeds):
            job.check()
            check_memory(job, memory_check)
        for seed in seeds:
            yield pipeline.run(job, seed)


def settings_of(
    *,
    method: object,
    attack: object | None,
    dataset: object,
    epsilon: float | None,
    delta: float,
    account: Any,
    solve: Any,
    unit: str,
    seed: int,
    teacher: object,
    variant: str | None,
    attack_variant: str | None,
    method_options: Options | None,
    attack_options: Options | None,
    teacher_options: Options | None,
    evaluator_options: Options | None,
    noise: Any,
    precision: Any,
    data_root: str | os.PathLike[str] | None,
    fit: Any,
    pixel_range: tuple[float, float] | None,
    teacher_weights: str | os.PathLike[str] | None,
    teacher_normalise: tuple[Scale, Scale] | None,
    out: str | os.PathLike[str],
    **same: Any,
) -> Settings:
    """The settings that the arguments of `run` ask for; those in `same` are settings as they are. Raises BenchError."""
    from bench.pipeline.settings import Settings, usual_noise
    from bench.privacy import Budget
    from bench.privacy.budget import as_unit

    check_seed(seed)
    check_choices(
        account=(account, ACCOUNTS),
        solve=(solve, SOLVED),
        noise=(noise or "os", NOISE),
        precision=(precision, PRECISIONS),
    )
    folder = Path(out)
    by_method = as_plugin("method", method, variant, method_options)
    by_attack = None
    if attack not in (None, "none"):
        by_attack = as_plugin("attack", attack, attack_variant, attack_options)
    images = as_images(dataset, folder, fit, pixel_range)
    trained = as_teacher(teacher, teacher_weights, teacher_normalise, folder)
    endless = epsilon is None or math.isinf(epsilon)
    if endless and account == "accounted":
        raise BudgetError(f"account='accounted' with epsilon={epsilon}: no budget is given; give a finite epsilon")
    return Settings(
        method=by_method.name,
        variant=by_method.variant,
        method_options=by_method.options,
        attack=None if by_attack is None else by_attack.name,
        attack_variant=attack_variant if by_attack is None else by_attack.variant,
        attack_options=as_texts(attack_options) if by_attack is None else by_attack.options,
        dataset=images.name,
        reading=images.reading,
        teacher=trained.network,
        teacher_weights=trained.weights,
        teacher_normalise=trained.normalise,
        teacher_options=as_texts(teacher_options),
        evaluator_options=as_texts(evaluator_options),
        budget=Budget(epsilon, delta, account, "none" if endless else solve, as_unit(unit)),
        noise=noise or usual_noise(images.name, trained.weights is not None),
        precision=precision,
        data_root=None if data_root is None else Path(data_root),
        out=folder,
        **same,
    )
