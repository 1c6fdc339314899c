"""`bench run`: one method, one attack, one data set, one or more seeds; and `bench prepare`, its shared steps."""

from __future__ import annotations

import argparse
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from bench.cli.options import add_plugin_options, add_run_options
from bench.cli.parsing import Command
from bench.cli.settings import read_options, read_seeds, read_settings
from bench.errors import BadOption
from bench.interface.teacher_weights import find_weights, parse_normalisation, read_normalisation

if TYPE_CHECKING:
    from bench.pipeline.job import Job
    from bench.pipeline.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench run`."""
    add_run_options(parser)
    parser.add_argument(
        "--details", action="store_true", help="also print every metric with its interval and baselines"
    )


def execute(given: argparse.Namespace) -> int:
    """Run all seeds; print the result of each. Returns the exit status."""
    settings, seeds = read_run(given)
    from bench.cli.account import describe_joint_guarantee
    from bench.cli.details import show_details
    from bench.cli.result import WIDEST, show
    from bench.interface.running import run_seeds
    from bench.progress import notify, out

    made = []
    before = partial(_print_notices, given, settings)
    for outcome in run_seeds(settings, seeds, given.unfit_attack == "refuse", given.memory_check, before):
        made.append(outcome.record)
        show(outcome, settings.out, out.width if out.is_terminal else WIDEST)
        if given.details:
            show_details(outcome, settings)
        if given.student not in (None, outcome.record.student):
            notify(f"--student {given.student} was not used: {given.method} always releases a {outcome.record.student}")
    for line in describe_joint_guarantee(made, settings.out):
        notify(line)
    return 0


def _print_notices(given: argparse.Namespace, settings: Settings, job: Job) -> None:
    """Print notices about options without effect, about the noise, and about a delta that is too large."""
    from bench.progress import notify

    if (reason := job.attack_skip_reason) is not None:
        notify(f"{settings.attack} does not apply here and will be skipped: {reason}")
    needs_network = job.needs_teacher or (given.teacher is not None and "teacher_network" in job.method.needs)
    if not needs_network and (option := _option_of_network(given, "teacher")):
        notify(f"{option} will not be used: {given.method} needs no teacher")
    if not job.needs_evaluator and (option := _option_of_network(given, "evaluator")):
        why = "the attack is skipped"
        if reason is None:
            why = "no attack is named" if given.attack in (None, "none") else f"{given.attack} reconstructs no images"
        notify(f"{option} will not be used: an evaluator classifies reconstructions, but {why}")
    if given.noise is None and settings.noise == "os":
        notify(
            "--noise os was chosen because the data set or the teacher is yours: the noise is from the operating "
            "system. With --noise seeded the run can be repeated exactly, but its epsilon holds only against those "
            "without the seed"
        )
    records = len(job.material.private[0])
    if settings.budget.delta * records >= 1:
        notify(
            f"--delta {given.delta} is at least 1 / {records} records: such a delta permits releasing a record verbatim"
        )


def _option_of_network(given: argparse.Namespace, network: str) -> str:
    """Return the first given option of a network, "teacher" or "evaluator"; "" if there is none."""
    if getattr(given, network) is not None:
        return f"--{network}"
    options = read_options(given, network)
    return f"--{network}.{options[0][0]}" if options else ""


def read_run(given: argparse.Namespace) -> tuple[Settings, list[int]]:
    """Return the settings and the seeds from the options. Raises BenchError."""
    if given.method is None:
        raise BadOption(
            "--method is missing; give one of `bench list methods`, as in `bench run --method dpsd --attack gmi`"
        )
    seeds, weights = read_seeds(given.seeds), find_weights(given.teacher_weights)
    if given.teacher_normalise is not None and weights is None:
        raise BadOption("--teacher-normalise is for your own teacher; give --teacher-weights too, or leave it out")
    normalise = None if weights is None else read_normalisation(weights)
    if given.teacher_normalise is not None:
        normalise = parse_normalisation("--teacher-normalise", given.teacher_normalise)
    attack = None if given.attack in (None, "none") else given.attack
    return read_settings(given, attack, weights, normalise), seeds


def add_prepare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench prepare`."""
    add_run_options(parser)
    parser.add_argument("--only", choices=("teacher", "evaluator"), help="train only this network (default both)")


def prepare(given: argparse.Namespace) -> int:
    """Train the networks that the runs of every seed share, unless they are cached. Returns the exit status."""
    settings, seeds = read_run(given)
    from bench.pipeline.memory import check_memory
    from bench.pipeline.resolve import load_job
    from bench.pipeline.run import prepare_shared

    with closing(load_job(settings)) as job:
        check_memory(job, given.memory_check)
        for seed in seeds:
            prepare_shared(job, seed, given.only)
    return 0


RUN = Command(
    "Train a teacher (or use your own), convert it with a private method, attack the student, the teacher and an "
    "untrained network, and write a record, pictures and the board. The teacher is trained only if the method or the "
    "attack needs it. To see the options of plug-ins, name them and add --help, as in `bench run --method dpsd "
    "--attack gmi --help`.",
    add_arguments,
    execute,
    add_plugin_options,
    is_resumable=True,
)
PREPARE = Command(
    "Takes the options of `bench run`, and trains the teacher and the evaluator that this run needs. `bench sweep` "
    "starts with it, so that no run waits for another.",
    add_prepare_arguments,
    prepare,
    add_plugin_options,
    is_resumable=True,
)
