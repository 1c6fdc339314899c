"""`bench run`: one method, one attack, one data set, one or more seeds."""

from __future__ import annotations

import argparse
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from bench.cli.read_given import read_options, read_seeds, read_settings
from bench.cli.run_options import add_arguments as add_run_options
from bench.cli.run_options import add_plugin_arguments
from bench.errors import BadOption
from bench.interface import teacher_weights

if TYPE_CHECKING:
    from bench.pipeline.job import Job
    from bench.pipeline.settings import Settings

__all__ = ["DESCRIPTION", "HELP", "PREPARE", "add_arguments", "add_plugin_arguments", "execute", "settle"]

HELP = "convert a teacher with a method, attack the student, write record and board"
DESCRIPTION = (
    "Train a teacher (or take yours), convert it with a private method, attack student, teacher and a random-weights "
    "net, and write a record, pictures and the board. A teacher that neither method nor attack asks is not trained. "
    "Options of the plug-ins: name them and add --help, as in `bench run --method dpsd --attack gmi --help`."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run, and the level of detail of its result."""
    add_run_options(parser)
    parser.add_argument("--details", action="store_true", help="print every metric with its interval and baselines too")


def execute(given: argparse.Namespace) -> int:
    """Run all seeds; print the result of each. Returns the exit status."""
    settings, seeds = settle(given)
    from bench.cli.details import show_details
    from bench.cli.result import WIDEST, show
    from bench.cli.together import together
    from bench.interface.running import outcomes
    from bench.progress import out, say

    made = []
    notices = partial(_notices, given, settings)
    for outcome in outcomes(settings, seeds, given.unfit_attack == "refuse", given.memory_check, notices):
        made.append(outcome.record)
        show(outcome, settings.out, out.width if out.is_terminal else WIDEST)
        if given.details:
            show_details(outcome, settings)
        if given.student not in (None, outcome.record.student):
            say(f"--student {given.student} was not used: {given.method} releases its own {outcome.record.student}")
    for line in together(made, settings.out):
        say(line)
    return 0


def _notices(given: argparse.Namespace, settings: Settings, job: Job) -> None:
    """Print notices on options without effect, and on the source of the noise."""
    from bench.progress import say

    if (reason := job.attack_skip_reason) is not None:
        say(f"{settings.attack} does not apply here and will be skipped: {reason}")
    unasked = not job.needs_teacher and (given.teacher is None or "teacher_network" not in job.method.needs)
    if unasked and (ignored := _asked_of(given, "teacher")):
        say(f"{ignored} will not be used: {given.method} asks no teacher")
    if not job.needs_evaluator and (ignored := _asked_of(given, "evaluator")):
        why = _unjudged(given.attack) if reason is None else "the attack is skipped"
        say(f"{ignored} will not be used: no reconstruction is judged, as {why}")
    if given.noise is None and settings.noise == "os":
        say(
            "--noise os: the data set or the teacher is yours, so the noise comes from the system's entropy; "
            "--noise seeded repeats a run exactly, and its epsilon holds only for those without the seed"
        )
    records = len(job.material.private[0])
    if settings.budget.delta * records >= 1:
        say(f"--delta {given.delta} is 1 in {records} records or more: it allows to publish one of them as it is")


def _unjudged(attack: str | None) -> str:
    return "no attack is named" if attack in (None, "none") else f"{attack} reconstructs no images"


def _asked_of(given: argparse.Namespace, network: str) -> str:
    """Return the first given option about a network, "teacher" or "evaluator", or ""."""
    if getattr(given, network) is not None:
        return f"--{network}"
    options = read_options(given, network)
    return f"--{network}.{options[0][0]}" if options else ""


def settle(given: argparse.Namespace) -> tuple[Settings, list[int]]:
    """Return the settings and the seeds from the options. Raises BenchError."""
    if given.method is None:
        raise BadOption(
            "--method is missing; name one of `bench list methods`, as in `bench run --method dpsd --attack gmi`"
        )
    seeds, weights = read_seeds(given.seeds), teacher_weights.weights_file(given.teacher_weights)
    normalise = teacher_weights.normalisation(given.teacher_normalise, weights)
    attack = None if given.attack in (None, "none") else given.attack
    settings = read_settings(
        given,
        attack=attack,
        teacher_weights=weights,
        teacher_normalise=normalise,
        attack_options=read_options(given, "attack"),
        evaluator_options=read_options(given, "evaluator"),
    )
    return settings, seeds


class PREPARE:
    """The sub-command `prepare`: make the steps that several runs share."""

    HELP = "make what runs share: teacher and evaluator, those of them that the run asks, and nothing else"
    DESCRIPTION = "Takes the options of `bench run`; `bench sweep` begins with it, so that no run waits for another."
    add_plugin_arguments = staticmethod(add_plugin_arguments)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the options of `bench run`, and `--only`."""
        add_run_options(parser)
        parser.add_argument("--only", choices=("teacher", "evaluator"), help="make this one alone (default both)")

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        """Train the networks that the runs of every seed share, unless they exist."""
        settings, seeds = settle(given)
        from bench.pipeline.memory import check_memory
        from bench.pipeline.resolve import load_job
        from bench.pipeline.run import prepare_shared

        with closing(load_job(settings)) as job:
            check_memory(job, given.memory_check)
            for seed in seeds:
                prepare_shared(job, seed, given.only)
        return 0
