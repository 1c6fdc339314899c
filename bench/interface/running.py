"""Runs: `bench.run`, and the arguments and steps that audits and the command line share with it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.config import EVALUATOR, STUDENT
from bench.core import records
from bench.data.own import OwnDataset
from bench.errors import BudgetError
from bench.interface.process import Progress, preserve_process_state
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
    from bench.privacy import Budget

ACCOUNTS = ("claimed", "accounted")
SOLVED = ("sigma", "steps")
NOISE = ("seeded", "os")
PRECISIONS = ("fp32", "bf16", "auto")
UNFIT = ("refuse", "record")
MEMORY = ("refuse", "warn", "off")


@dataclass(frozen=True)
class Arguments:
    """The arguments of `run` and of `audit`, as the caller gave them. `run` describes them.

    The fields with defaults belong to `run` only: an audit has no attack and trains its own teacher.
    """

    method: object
    dataset: object
    epsilon: float | None
    delta: float
    account: Literal["claimed", "accounted"]
    solve: Literal["sigma", "steps"]
    unit: str
    seed: int
    teacher: object
    student: str
    tier: str
    variant: str | None
    method_options: Options | None
    teacher_options: Options | None
    noise: Literal["seeded", "os"] | None
    device: str
    devices: int
    precision: Literal["fp32", "bf16", "auto"]
    compile: bool
    data_root: str | os.PathLike[str] | None
    download: bool
    skip_broken: bool
    fit: Literal["crop", "pad", "stretch"]
    pixel_range: tuple[float, float] | None
    out: str | os.PathLike[str]
    fresh: bool
    attack: object | None = None
    attack_variant: str | None = None
    attack_options: Options | None = None
    split: str = "iid"
    groups: str | os.PathLike[str] | None = None
    evaluator: str = EVALUATOR
    evaluator_options: Options | None = None
    teacher_weights: str | os.PathLike[str] | None = None
    teacher_normalise: tuple[Scale, Scale] | None = None
    pretrained: str | os.PathLike[str] | None = None

    def to_settings(self) -> Settings:
        """Check the arguments and convert them into the settings of the pipeline. Raises BenchError."""
        from bench.pipeline.settings import Settings, usual_noise

        check_seed(self.seed)
        check_choices(
            account=(self.account, ACCOUNTS),
            solve=(self.solve, SOLVED),
            noise=(self.noise or "os", NOISE),
            precision=(self.precision, PRECISIONS),
        )
        out, has_attack = Path(self.out), self.attack not in (None, "none")
        method = as_plugin("method", self.method, self.variant, self.method_options)
        attack = as_plugin("attack", self.attack, self.attack_variant, self.attack_options) if has_attack else None
        images = as_images(self.dataset, out, self.fit, self.pixel_range, self.groups)
        teacher = as_teacher(self.teacher, self.teacher_weights, self.teacher_normalise, out)
        return Settings(
            method=method.name,
            variant=method.variant,
            method_options=method.options,
            attack=None if attack is None else attack.name,
            attack_variant=self.attack_variant if attack is None else attack.variant,
            attack_options=as_texts(self.attack_options) if attack is None else attack.options,
            dataset=images.name,
            reading=images.reading,
            split=self.split,
            teacher=teacher.network,
            teacher_weights=teacher.weights,
            teacher_normalise=teacher.normalise,
            teacher_options=as_texts(self.teacher_options),
            student=self.student,
            evaluator=self.evaluator,
            evaluator_options=as_texts(self.evaluator_options),
            budget=self.to_budget(),
            noise=self.noise or usual_noise(images.name, teacher.weights is not None),
            tier=self.tier,
            device=self.device,
            devices=self.devices,
            precision=self.precision,
            compile=self.compile,
            data_root=None if self.data_root is None else Path(self.data_root),
            download=self.download,
            skip_broken=self.skip_broken,
            out=out,
            fresh=self.fresh,
            pretrained=None if self.pretrained is None else Path(self.pretrained),
        )

    def to_budget(self) -> Budget:
        """Return the privacy budget. Raises BudgetError for values that contradict each other or are out of range."""
        from bench.privacy import Budget
        from bench.privacy.budget import as_unit

        is_unlimited = self.epsilon is None or math.isinf(self.epsilon)
        if is_unlimited and self.account == "accounted":
            raise BudgetError(f"account='accounted' needs a budget, but epsilon is {self.epsilon}; give a finite one")
        solve = "none" if is_unlimited else self.solve
        return Budget(self.epsilon, self.delta, self.account, solve, as_unit(self.unit))


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
    groups: str | os.PathLike[str] | None = None,
    teacher_weights: str | os.PathLike[str] | None = None,
    teacher_normalise: tuple[Scale, Scale] | None = None,
    pretrained: str | os.PathLike[str] | None = None,
    unfit_attack: Literal["refuse", "record"] = "refuse",
    memory_check: Literal["refuse", "warn", "off"] = "refuse",
    out: str | os.PathLike[str] = "runs",
    fresh: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Train a teacher, convert it with a method, attack the student and record the result, as `bench run` does.

    Finished steps are kept in `out` and reused; the same call resumes an interrupted run.

    Args:
        method: a name of `bench.methods()`; or a class that you define, for example in a notebook (CONTRIBUTING.md
            lists its members); or an instance of one, whose fields that differ from their defaults become options.
        attack: a name of `bench.attacks()`, a class or an instance, like `method`; None = no attack.
        dataset: a name of `bench.datasets()`; a path as `npz:PATH` or `imagefolder:PATH`; or a value of
            `bench.data.from_arrays`, `from_folder`, `from_torch` or `from_huggingface`.
        epsilon: > 0, `math.inf`, or None to keep the method's own noise.
        delta: in (0, 1).
        account: the epsilon that must meet the budget: "claimed" (the paper's theorem) or "accounted" (the accountant).
        solve: the parameter that the budget determines: "sigma" (the noise) or "steps".
        unit: "example", "label", "query", "client" or "group".
        seed: 0 to `bench.seeds.LARGEST_SEED`.
        split: how the training images are divided between teacher and attacker (`bench run --help`).
        teacher: the name of a network, which is trained; or a trained nn.Module that maps (n, c, h, w) images in
            [0, 1] to (n, classes) logits.
        student: the name of a network.
        evaluator: the name of the network that classifies reconstructions.
        tier: "smoke", "quick", "standard" or "paper"; it changes sizes, never the algorithm.
        variant: variant of the method: "printed", "working" or "own"; None = the default.
        attack_variant: like `variant`, for the attack.
        method_options: values by name (`bench.methods()` lists them).
        attack_options: values by name (`bench.attacks()` lists them).
        teacher_options: options of the teacher's training recipe, by name (`bench list teacher-recipes`).
        evaluator_options: options of the evaluator's training recipe, by name.
        noise: "seeded" can be repeated, and its epsilon holds only against someone without the seed; "os" is drawn from
            the operating system. None = "os" for your own data or teacher, else "seeded".
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: number of GPUs, or of processes on a CPU, for data-parallel training.
        precision: "bf16" trains with autocast; "auto" does so where it is faster.
        compile: compile the most used networks of a conversion with torch.compile.
        data_root: folder of the data sets; None = $BENCH_DATA, else ~/.cache/dp-distill-bench.
        download: fetch a missing data set.
        skip_broken: leave out image files that cannot be read.
        fit: how images of your own files become square: "crop", "pad" or "stretch".
        pixel_range: the values of black and of white in your own files.
        groups: CSV file with the columns path and group of an image folder: the patient, user or writer of each file;
            None = `groups.csv` in the folder, if it is there.
        teacher_weights: a file of trained weights, or a folder of a model hub's cache, for `teacher` by name.
        teacher_normalise: (mean, std) that your teacher was trained with, for pixels in [0, 1], each one number or one
            per channel; None = as in the configuration next to the weights, else (0.5, 0.5); for a module (0, 1).
        pretrained: a file of public pretrained weights, for methods with the option features "timm:NAME"; None = the
            file in timm's local cache.
        unfit_attack: "refuse" an attack that cannot give a result on these data, or "record" it as skipped.
        memory_check: "refuse" a run whose estimated memory exceeds the free memory, "warn" and run it, or "off".
        out: folder of runs and cached steps.
        fresh: repeat every step, even if it is cached.
        progress: called with (stage, steps done, steps in all); an exception that it raises ends the run.

    Returns:
        The record with accuracies, privacy and the attack's result, and access to the released student.

    Raises:
        BenchError: bad input, with what was expected and what to do; `bench.errors` has a class for each kind.
        RunFailed: a step failed; its record says why.
        KeyboardInterrupt: interrupted; finished steps are kept.
    """
    arguments = Arguments(
        method=method, attack=attack, dataset=dataset, epsilon=epsilon, delta=delta, account=account, solve=solve,
        unit=unit, seed=seed, split=split, teacher=teacher, student=student, evaluator=evaluator, tier=tier,
        variant=variant, attack_variant=attack_variant, method_options=method_options, attack_options=attack_options,
        teacher_options=teacher_options, evaluator_options=evaluator_options, noise=noise, device=device,
        devices=devices, precision=precision, compile=compile, data_root=data_root, download=download,
        skip_broken=skip_broken, fit=fit, pixel_range=pixel_range, groups=groups,
        teacher_weights=teacher_weights, teacher_normalise=teacher_normalise, pretrained=pretrained, out=out,
        fresh=fresh,
    )  # fmt: skip
    check_choices(unfit_attack=(unfit_attack, UNFIT), memory_check=(memory_check, MEMORY))
    with preserve_process_state(progress):
        (outcome,) = run_seeds(arguments.to_settings(), [seed], unfit_attack == "refuse", memory_check)
    return RunResult(records.read(outcome.path / RECORD), outcome.path, outcome.cached, Path(out))


def run_seeds(
    settings: Settings,
    seeds: Sequence[int],
    refuses_unfit: bool = True,
    memory_check: Check = "refuse",
    before: Callable[[Job], None] | None = None,
) -> Iterator[Outcome]:
    """Yield the run of each seed, made unless it is cached; common parts are checked and loaded once.

    Args:
        refuses_unfit: refuse an attack that cannot give a result on these data, instead of recording it as skipped.
        memory_check: action for a run whose estimated memory exceeds the free memory.
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
