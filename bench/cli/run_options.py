"""The options of `bench run`, and those of the plug-ins on a command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from bench.cli import paths
from bench.config import DATASET, TIERS, Option
from bench.data.dataset import Fit
from bench.privacy import Unit

PREFIXES = ("method", "attack", "teacher", "evaluator")
TRAINED = ("teacher", "evaluator")
"""Networks trained by a recipe, whose options exist without naming a plug-in."""
DESTINATION = "{}_option_{}"
STANDARD = "standard"
"""The default recipe of a teacher."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every run."""
    _add_what(parser.add_argument_group("what to run"))
    _add_networks(parser.add_argument_group("networks"))
    _add_budget(parser.add_argument_group("privacy budget"))
    _add_where(parser.add_argument_group("where and how"))


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--method", metavar="NAME", help="method or baseline to run; `bench list methods` (required)")
    group.add_argument(
        "--variant",
        choices=("printed", "working", "own"),
        help="printed: the algorithm as its paper prints it; working: with the changes that it needs to learn, which "
        "`bench show NAME` lists; own: an algorithm of this project (default: working, if there is one)",
    )
    group.add_argument("--attack", metavar="NAME", help="attack to run; without it the release is only measured")
    group.add_argument("--attack-variant", choices=("printed", "working", "own"), help="the same of the attack")
    group.add_argument(
        "--unfit-attack",
        choices=("refuse", "record"),
        default="refuse",
        help="an attack that cannot say anything about this data is refused before anything is trained, or the run is "
        "made all the same and recorded as skipped or inconclusive (default refuse)",
    )
    group.add_argument(
        "--dataset", metavar="NAME", default=DATASET, help=f"data set, `bench list datasets` (default {DATASET})"
    )
    group.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="side of the images, 8 to 256; the same as @PIXELS behind the data set's name (default: its own)",
    )
    group.add_argument(
        "--channels",
        type=int,
        choices=(1, 3),
        help="1 makes all images grey, 3 gives grey images three channels, as for a teacher of colour images; the same "
        "as @grey and @rgb behind the data set's name (default: its own)",
    )
    group.add_argument(
        "--fit",
        choices=get_args(Fit),
        default="crop",
        help="how your own images that are not square become square: crop keeps the central square, pad adds black "
        "bars, stretch changes the ratio of the sides (default crop)",
    )
    group.add_argument(
        "--pixel-range",
        metavar="LOW,HIGH",
        help="the values that mean black and white in your own arrays, and in image files of more than 8 bits, as in "
        "-1,1 or 0,4095 (default: 0 to 255, or 65535 of 16 bits, or 1 of floats and bool)",
    )
    group.add_argument(
        "--split",
        default="iid",
        help="how the training set is shared out: iid, canaries, few, full, disjoint-low, disjoint-high, identity, "
        "cross (default iid)",
    )
    group.add_argument(
        "--tier",
        choices=TIERS,
        default="quick",
        help="size of the run. smoke: seconds, for tests; quick: minutes on two cores; standard: up to an hour; paper: "
        "the paper's (default quick)",
    )
    group.add_argument("--seeds", default="0", metavar="LIST", help="comma-separated seeds, a record each (default 0)")


def _add_networks(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--teacher",
        metavar="NET",
        help="any timm model, tv:NAME for torchvision, one of `bench list networks`, or your own as "
        "PACKAGE.MODULE:FUNCTION (default resnet18)",
    )
    group.add_argument(
        "--teacher-weights",
        type=paths.named,
        metavar="FILE",
        help="your own trained teacher: .safetensors, a torch state dict or checkpoint, or a folder of a hub's cache",
    )
    group.add_argument(
        "--teacher-normalise",
        metavar="MEAN,STD",
        help="what your teacher was trained with, on pixels in [0, 1], each a number or one a channel, as in "
        "0.49/0.48/0.45,0.25/0.24/0.26 (default: as config.json beside the weights says, else 0.5,0.5)",
    )
    group.add_argument(
        "--student",
        metavar="NET",
        help="network of the student, named as the teacher's (default datalens, as in the papers)",
    )
    group.add_argument(
        "--evaluator",
        metavar="NET",
        help="network that judges an attack's reconstructions, of another family than the teacher (default "
        "evaluator-cnn; evaluator-vgg knows photographs better)",
    )


def _add_budget(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--epsilon",
        default="10",
        metavar="E",
        help="budget; inf for no noise, none to keep the method's own fields (default 10)",
    )
    group.add_argument("--delta", default="1e-5", metavar="D", help="probability of failure, in (0, 1) (default 1e-5)")
    group.add_argument(
        "--account",
        choices=("claimed", "accounted"),
        default="claimed",
        help="whose epsilon meets the budget: the paper's theorem's or the sound one",
    )
    group.add_argument("--solve", choices=("sigma", "steps"), help="what the budget determines (default sigma)")
    group.add_argument(
        "--unit",
        choices=[str(u) for u in Unit if u != Unit.NONE],
        default="example",
        help="unit of the accounted epsilon (default example)",
    )
    group.add_argument(
        "--noise",
        choices=("seeded", "os"),
        help="privacy noise from the recorded seed, or from the system's entropy (default os for your own data set or "
        "teacher, else seeded)",
    )


def _add_where(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data-root",
        type=paths.named,
        metavar="DIR",
        help="where data sets lie (default $BENCH_DATA or ~/.cache/dp-distill-bench)",
    )
    group.add_argument("--download", action="store_true", help="fetch a missing data set into the data root")
    group.add_argument(
        "--skip-broken",
        action="store_true",
        help="leave out image files that cannot be read and empty class folders, instead of refusing them",
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    group.add_argument(
        "--devices",
        type=int,
        default=1,
        metavar="N",
        help="share the training of teacher, evaluator and by DP-SGD out over so many GPUs, or processes on a CPU "
        "(default 1)",
    )
    group.add_argument(
        "--precision",
        choices=("fp32", "bf16", "auto"),
        default="fp32",
        help="bf16: autocast in training loops; auto: where a probe of a second finds it a fifth faster (default fp32)",
    )
    group.add_argument(
        "--memory-check",
        choices=("refuse", "warn", "off"),
        default="refuse",
        help="what to do with a run whose estimated memory is more than what is free: refuse it before anything is "
        "trained, or warn and run it; off: do not estimate (default refuse)",
    )
    group.add_argument(
        "--compile", action="store_true", help="compile the networks that a conversion calls most (torch.compile)"
    )
    group.add_argument(
        "--out",
        type=paths.named,
        default=Path("runs"),
        metavar="DIR",
        help="where everything is written (default runs)",
    )
    group.add_argument("--fresh", action="store_true", help="make every step again, even if it is cached")


def add_plugin_arguments(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Add `--method.X`, `--attack.X`, `--teacher.X`, `--evaluator.X` for the plug-ins on the command line.

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
                continue  # an audit makes no reconstructions to score
            name = named.attack  # an evaluator is needed only for an attack
        if name is None and not (asked and prefix in TRAINED):
            continue
        parts: set[str] = getattr(parser, "named", set())  # only the command's own parsers report errors
        parts.add(prefix)
        if prefix in ("method", "attack") and name != "none":
            registry.find(prefix, name)  # here, so that a typo is reported before torch is imported
        if asked or wants_help:
            _add_options(parser, prefix, named)


def _add_options(parser: argparse.ArgumentParser, prefix: str, named: argparse.Namespace) -> None:
    """Add the options of the plug-in that `named` selects for a prefix. Raises BenchError if there is none."""
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
        # An evaluator has its own sizes, which `bench show DATASET` prints
        _add_option(group, prefix, option, None if prefix == "evaluator" and option.size else usual[option.name])


def _usual_recipe(prefix: str, dataset: str | None) -> str:
    """Return the default recipe of a teacher or an evaluator."""
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
