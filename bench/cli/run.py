"""`bench run`: one method, one attack, one data set, one or more seeds."""

from __future__ import annotations

import argparse
import math
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cli import paths, teacher_weights
from bench.config import DATASET, TIERS, Option
from bench.data.naming import SIZES
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.budget import Solve
from bench.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from bench.pipeline.settings import Settings

HELP = "convert a teacher with a method, attack the student, write record and board"
DESCRIPTION = (
    "Train a teacher (or take yours), convert it with a private method, attack student, teacher and a random-weights "
    "net, and write a record, pictures and the board. A teacher that neither method nor attack asks is not trained. "
    "Options of the plug-ins: name them and add --help, as in `bench run --method dpsd --attack gmi --help`."
)
PREFIXES = ("method", "attack", "teacher", "evaluator")
TRAINED = ("teacher", "evaluator")
"""Networks that are trained by a recipe, whose options need no plug-in to be named."""
DESTINATION = "{}_option_{}"
STANDARD = "standard"
"""The recipe by which a teacher is trained where none is named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every run has."""
    what = parser.add_argument_group("what to run")
    what.add_argument("--method", metavar="NAME", help="method or baseline to run; `bench list methods` (required)")
    what.add_argument(
        "--variant",
        choices=("printed", "working", "own"),
        help="printed: the algorithm as its paper prints it; working: with the changes that it needs to learn, which "
        "`bench show NAME` lists; own: an algorithm of this project (default: working, if there is one)",
    )
    what.add_argument("--attack", metavar="NAME", help="attack to run; without it the release is only measured")
    what.add_argument("--attack-variant", choices=("printed", "working", "own"), help="the same of the attack")
    what.add_argument(
        "--dataset", metavar="NAME", default=DATASET, help=f"data set, `bench list datasets` (default {DATASET})"
    )
    what.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="side of the images, 8 to 256; the same as @PIXELS behind the data set's name (default: its own)",
    )
    what.add_argument(
        "--split",
        default="iid",
        help="how the training set is shared out: iid, canaries, few, full, disjoint-low, disjoint-high, identity, "
        "cross (default iid)",
    )
    what.add_argument(
        "--tier",
        choices=TIERS,
        default="quick",
        help="size of the run. smoke: seconds, for tests; quick: minutes on two cores; standard: up to an hour; paper: "
        "the paper's (default quick)",
    )
    what.add_argument("--seeds", default="0", metavar="LIST", help="comma-separated seeds, a record each (default 0)")
    networks = parser.add_argument_group("networks")
    networks.add_argument(
        "--teacher",
        metavar="NET",
        help="any timm model, tv:NAME for torchvision, or one of `bench list networks` (default resnet18)",
    )
    networks.add_argument(
        "--teacher-weights",
        type=paths.named,
        metavar="FILE",
        help="your own trained teacher: .safetensors, a torch state dict, or a folder of a model hub's cache",
    )
    networks.add_argument(
        "--teacher-normalise",
        metavar="MEAN,STD",
        help="what your teacher was trained with, on pixels in [0, 1], each a number or one a channel, as in "
        "0.49/0.48/0.45,0.25/0.24/0.26 (default: as config.json beside the weights says, else 0.5,0.5)",
    )
    networks.add_argument(
        "--student",
        metavar="NET",
        help="network of the student, named as the teacher's (default datalens, as in the papers)",
    )
    networks.add_argument(
        "--evaluator",
        metavar="NET",
        help="network that judges an attack's reconstructions, of another family than the teacher (default "
        "evaluator-cnn; evaluator-vgg knows photographs better)",
    )
    budget = parser.add_argument_group("privacy budget")
    budget.add_argument(
        "--epsilon",
        default="10",
        metavar="E",
        help="budget; inf for no noise, none to keep the method's own fields (default 10)",
    )
    budget.add_argument("--delta", default="1e-5", metavar="D", help="probability of failure, in (0, 1) (default 1e-5)")
    budget.add_argument(
        "--account",
        choices=("claimed", "accounted"),
        default="claimed",
        help="whose epsilon meets the budget: the paper's theorem's or the sound one",
    )
    budget.add_argument("--solve", choices=("sigma", "steps"), help="what the budget determines (default sigma)")
    budget.add_argument(
        "--unit",
        choices=[str(u) for u in Unit if u != Unit.NONE],
        default="example",
        help="unit of the accounted epsilon (default example)",
    )
    budget.add_argument(
        "--noise",
        choices=("seeded", "os"),
        default="seeded",
        help="privacy noise from the recorded seed, or from the system's entropy",
    )
    where = parser.add_argument_group("where and how")
    where.add_argument(
        "--data-root",
        type=paths.named,
        metavar="DIR",
        help="where data sets lie (default $BENCH_DATA or ~/.cache/dp-distill-bench)",
    )
    where.add_argument("--download", action="store_true", help="fetch a missing data set into the data root")
    where.add_argument(
        "--skip-broken", action="store_true", help="leave out image files that cannot be read, instead of refusing them"
    )
    where.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    where.add_argument(
        "--devices",
        type=int,
        default=1,
        metavar="N",
        help="share the training of teacher, evaluator and by DP-SGD out over so many GPUs, or processes on a CPU "
        "(default 1)",
    )
    where.add_argument(
        "--precision",
        choices=("fp32", "bf16", "auto"),
        default="fp32",
        help="bf16: autocast in training loops; auto: where a probe of a second finds it a fifth faster (default fp32)",
    )
    where.add_argument(
        "--compile", action="store_true", help="compile the networks that a conversion calls most (torch.compile)"
    )
    where.add_argument(
        "--out",
        type=paths.named,
        default=Path("runs"),
        metavar="DIR",
        help="where everything is written (default runs)",
    )
    where.add_argument("--fresh", action="store_true", help="make every step again, even if it is cached")


def add_plugin_arguments(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Add `--method.X`, `--attack.X`, `--teacher.X`, `--evaluator.X` for the plug-ins that the command line names.

    Raises:
        BenchError: an unknown plug-in.
    """
    from bench import registry

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    names = ("--method", "--attack", "--teacher", "--evaluator", "--tier", "--variant", "--attack-variant", "--dataset")
    for name in (*names, *(f"--{trained}.recipe" for trained in TRAINED)):
        first.add_argument(name, nargs="?")
    named, _ = first.parse_known_args(arguments)
    wants_help = bool({"-h", "--help"} & set(arguments))
    for prefix in PREFIXES:
        asked = any(word.startswith(f"--{prefix}.") for word in arguments)
        name = getattr(named, prefix)
        if prefix == "evaluator":
            if "--attack" not in parser._option_string_actions:
                continue  # an audit reconstructs nothing that would have to be judged
            name = named.attack  # what there is to judge
        if name is None and not (asked and prefix in TRAINED):
            continue
        parts: set[str] = getattr(parser, "named", set())  # of the command's own parsers; other ones tell no errors
        parts.add(prefix)
        if prefix in ("method", "attack") and name != "none":
            registry.find(prefix, name)  # now: a word that is mistyped is told before torch is imported
        if asked or wants_help:
            _add_options(parser, prefix, named)


def _add_options(parser: argparse.ArgumentParser, prefix: str, named: argparse.Namespace) -> None:
    """Add the options of the plug-in that `named` names for a prefix. Raises BenchError if there is none."""
    from bench import registry

    if prefix in TRAINED:
        recipe, variant = getattr(named, f"{prefix}.recipe") or _usual_recipe(prefix, named.dataset), None
        described = registry.describe("teacher recipe", recipe)
    else:
        variant = named.variant if prefix == "method" else named.attack_variant
        described = registry.describe(prefix, getattr(named, prefix), variant)
    group = parser.add_argument_group(f"options of the {prefix}")
    if prefix in TRAINED:
        group.add_argument(
            f"--{prefix}.recipe",
            dest=DESTINATION.format(prefix, "recipe"),
            metavar="NAME",
            help=f"how the {prefix} is trained, `bench list teacher-recipes` [{recipe}]",
        )
    usual = described.values(named.tier if named.tier in TIERS else "quick", variant)
    for option in described.options:
        # of an evaluator sizes are its own, which `bench show DATASET` tells
        _add_option(group, prefix, option, None if prefix == "evaluator" and option.size else usual[option.name])


def _usual_recipe(prefix: str, dataset: str | None) -> str:
    """The recipe of a teacher or an evaluator where none is named."""
    if prefix == "teacher":
        return STANDARD
    from bench import data

    named = data.facts(data.slug(dataset or DATASET)).evaluator
    return STANDARD if named is None else named[0]


def _add_option(group: argparse._ArgumentGroup, prefix: str, option: Option, usual: Any) -> None:
    note = "" if usual is None else f"[{usual}]" if usual == option.default else f"[{usual}; paper {option.default}]"
    extra: dict[str, Any] = {"nargs": "?", "const": "true"} if option.kind is bool else {}
    group.add_argument(
        f"--{prefix}.{option.name}",
        dest=DESTINATION.format(prefix, option.name),
        metavar="|".join(option.choices) if option.choices else option.kind.__name__,
        help=f"{option.help} {_when(option)}{note}".rstrip().replace("%", "%%"),
        **extra,
    )


def _when(option: Option) -> str:
    return f"(only with {option.only_with}) " if option.only_with else ""


def execute(given: argparse.Namespace) -> int:
    """Run all seeds; print the result of each. Returns the exit status."""
    settings, seeds = settle(given)
    from bench.cli import result
    from bench.pipeline import run
    from bench.pipeline.job import load_job
    from bench.progress import say

    with closing(load_job(settings, budget=False)) as job:
        if (reason := job.unplayable) is not None:
            say(f"{settings.attack} does not apply here and will be skipped: {reason}")
        unasked = not job.asks_teacher and (given.teacher is None or "teacher_network" not in job.method.needs)
        if unasked and (ignored := _asked_of(given, "teacher")):
            say(f"{ignored} will not be used: {given.method} asks no teacher")
        if not job.judged and (ignored := _asked_of(given, "evaluator")):
            why = _unjudged(given.attack) if reason is None else "the attack is skipped"
            say(f"{ignored} will not be used: no reconstruction is judged, as {why}")
        records = len(job.material.private[0])
        if settings.budget.delta * records >= 1:
            say(f"--delta {given.delta} is 1 in {records} records or more: it allows to publish one of them as it is")
        for seed in seeds:
            outcome = run.run(job, seed)
            result.show(outcome, settings)
            if given.student not in (None, outcome.record.student):
                say(f"--student {given.student} was not used: {given.method} releases its own {outcome.record.student}")
    return 0


def _unjudged(attack: str | None) -> str:
    return "no attack is named" if attack in (None, "none") else f"{attack} reconstructs no images"


def _asked_of(given: argparse.Namespace, network: str) -> str:
    """The first option about a network, "teacher" or "evaluator", that was given, or ""."""
    if getattr(given, network) is not None:
        return f"--{network}"
    options = read_options(given, network)
    return f"--{network}.{options[0][0]}" if options else ""


def settle(given: argparse.Namespace) -> tuple[Settings, list[int]]:
    """The settings and the seeds that the options ask for. Raises BenchError."""
    if given.method is None:
        raise BenchError(
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
    """The sub-command `prepare`: what several runs share, made before them."""

    HELP = "make what runs share: teacher and evaluator, those of them that the run asks, and nothing else"
    DESCRIPTION = "Takes the options of `bench run`; `bench sweep` begins with it, so that no run waits for another."
    add_plugin_arguments = staticmethod(add_plugin_arguments)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The options of `bench run`, and one of its own."""
        add_arguments(parser)
        parser.add_argument("--only", choices=("teacher", "evaluator"), help="make this one alone (default both)")

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        """Train what the runs of every seed share, unless it is there."""
        settings, seeds = settle(given)
        from bench.pipeline.job import load_job
        from bench.pipeline.walk import prepare_shared

        with closing(load_job(settings)) as job:
            for seed in seeds:
                prepare_shared(job, seed, given.only)
        return 0


COPIED = [
    "dataset",
    "split",
    "data_root",
    "download",
    "skip_broken",
    "teacher",
    "student",
    "evaluator",
    "tier",
    "variant",
    "attack_variant",
    "device",
    "devices",
    "precision",
    "compile",
    "noise",
    "out",
    "fresh",
]


def read_settings(given: argparse.Namespace, **others: Any) -> Settings:
    """The settings of a run, from those of its options that the command has, and `others`. Raises BenchError."""
    budget = read_budget(given)
    from bench.pipeline.settings import Settings

    copied = {name: getattr(given, name) for name in COPIED if getattr(given, name, None) is not None}
    return Settings(
        method=given.method,
        budget=budget,
        method_options=read_options(given, "method"),
        teacher_options=read_options(given, "teacher"),
        **copied | {"dataset": sized(given.dataset, given.size)},
        **others,
    )


def sized(dataset: str, size: int | None) -> str:
    """The data set's name with its size behind it, where one is given. Raises BenchError for two sizes."""
    if size is None:
        return dataset
    if re.search(r"@[0-9]+$", dataset):
        raise BenchError(f"--size {size}: --dataset {dataset} names a size already; give one of them")
    if size not in SIZES:
        raise BenchError(f"--size {size}: expected {SIZES[0]} to {SIZES[-1]} pixels")
    return f"{dataset}@{size}"


def read_options(given: argparse.Namespace, prefix: str) -> tuple[tuple[str, str], ...]:
    """What was given as `--PREFIX.NAME VALUE`, sorted by name."""
    start = DESTINATION.format(prefix, "")
    return tuple(
        sorted(
            (key[len(start) :], value)
            for key, value in vars(given).items()
            if key.startswith(start) and value is not None
        )
    )


def read_seeds(text: str) -> list[int]:
    """The seeds of `--seeds`. Raises BenchError."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise BenchError(f"--seeds {text}: expected whole numbers with commas, as in 0,1,2") from None
    if len(set(seeds)) != len(seeds) or not 0 <= min(seeds) <= max(seeds) <= LARGEST_SEED:
        raise BenchError(f"--seeds {text}: expected different numbers from 0 to {LARGEST_SEED}, as in 0,1,2")
    return seeds


def read_budget(given: argparse.Namespace) -> Budget:
    """The budget that the options ask for. Raises BenchError."""
    epsilon = None if given.epsilon == "none" else read_number("--epsilon", given.epsilon)
    endless = epsilon is None or math.isinf(epsilon)
    if endless and given.solve is not None:
        raise BenchError(f"--solve {given.solve} --epsilon {given.epsilon}: there is no budget to solve for; give one")
    if endless and given.account == "accounted":
        raise BenchError(f"--account accounted --epsilon {given.epsilon}: there is no budget to meet; give one")
    solve: Solve = "none" if endless else given.solve or "sigma"
    return Budget(epsilon, read_number("--delta", given.delta), given.account, solve, Unit(given.unit))


def read_number(flag: str, text: str) -> float:
    """The number given to `flag`. Raises BenchError."""
    try:
        return float(text)
    except ValueError:
        raise BenchError(
            f"{flag} {text}: expected a number, as in {flag} {'10' if flag == '--epsilon' else '1e-5'}"
        ) from None
