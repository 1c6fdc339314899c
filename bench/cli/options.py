"""The options of `bench run`, which other commands borrow, and the options of plug-ins on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from bench.cli.parsing import PREFIXES, Parser, file_path
from bench.config import DATASET, EVALUATOR, STUDENT, TIERS
from bench.data.dataset import Fit
from bench.privacy import Unit

RECIPES = ("teacher", "evaluator")
"""Networks that a training recipe makes; its options exist without naming a plug-in."""
DESTINATION = "{}_option_{}"
"""Attribute of parsed arguments for an option of a plug-in, from its prefix and its name."""
DEFAULT_RECIPE = "standard"
VARIANTS = ("printed", "working", "own")


@dataclass(frozen=True)
class SharedOption:
    """An option that several commands have.

    Attributes:
        flag: the option as typed.
        help: its explanation.
        metavar: the placeholder of its value; "" = argparse's default.
        default, choices, type: as in argparse.
        is_switch: whether it is typed without a value.
    """

    flag: str
    help: str
    metavar: str = ""
    default: object = None
    choices: tuple[Any, ...] | None = None
    type: Callable[[str], object] = str
    is_switch: bool = False

    @property
    def name(self) -> str:
        """Its attribute of parsed arguments."""
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        """Add it to a group of options."""
        if self.is_switch:
            group.add_argument(self.flag, action="store_true", help=self.help)
            return
        group.add_argument(
            self.flag,
            help=self.help,
            metavar=self.metavar or None,
            default=self.default,
            choices=self.choices,
            type=self.type,
        )


GROUPS: dict[str, tuple[SharedOption, ...]] = {
    "what to run": (
        SharedOption("--method", "method or baseline to run, see `bench list methods` (required)", "NAME"),
        SharedOption(
            "--variant",
            "printed: the algorithm as its paper publishes it; working: with the changes that make it learn, see "
            "`bench show NAME`; own: an algorithm of this project (default: working, if the method has it)",
            choices=VARIANTS,
        ),
        SharedOption("--attack", "attack to run, see `bench list attacks` (default: no attack)", "NAME"),
        SharedOption("--attack-variant", "like --variant, for the attack", choices=VARIANTS),
        SharedOption(
            "--unfit-attack",
            "refuse an attack that cannot give a result on these data before anything is trained, or record the run as "
            "skipped or inconclusive (default refuse)",
            default="refuse",
            choices=("refuse", "record"),
        ),
        SharedOption("--dataset", f"data set, see `bench list datasets` (default {DATASET})", "NAME", DATASET),
        SharedOption(
            "--size",
            "side length of the images, 8 to 256; the same as NAME@PIXELS in --dataset (default: that of the data set)",
            "PIXELS",
            type=int,
        ),
        SharedOption(
            "--channels",
            "1 converts the images to grey, 3 to RGB; the same as NAME@grey and NAME@rgb in --dataset (default: those "
            "of the data set)",
            choices=(1, 3),
            type=int,
        ),
        SharedOption(
            "--fit",
            "how your own images become square: crop keeps the central square, pad adds black bars, stretch changes "
            "the aspect ratio (default crop)",
            default="crop",
            choices=get_args(Fit),
        ),
        SharedOption(
            "--pixel-range",
            "values of black and white in your own arrays or in image files of more than 8 bits, as in -1,1 or 0,4095 "
            "(default: 0,255 for 8 bits, 0,65535 for 16 bits, 0,1 for floats and booleans)",
            "LOW,HIGH",
        ),
        SharedOption(
            "--groups",
            "CSV file with the columns path and group of your own image folder: the patient, user or writer of each "
            "file, which --unit group protects (default: groups.csv in the folder, if it is there)",
            "FILE",
            type=file_path,
        ),
        SharedOption(
            "--split",
            "how the training images are divided between teacher and attacker: iid, canaries, few, full, disjoint-low, "
            "disjoint-high, identity, cross (default iid)",
            default="iid",
        ),
        SharedOption(
            "--tier",
            "size of the run. smoke: seconds, for tests; quick: minutes on two cores; standard: up to an hour; paper: "
            "the sizes of the papers (default quick)",
            default="quick",
            choices=TIERS,
        ),
        SharedOption("--seeds", "seeds separated by commas; each gives a run (default 0)", "LIST", "0"),
    ),
    "networks": (
        SharedOption(
            "--teacher",
            "network of the teacher: a timm model, tv:NAME of torchvision, one of `bench list networks`, or your own "
            "as PACKAGE.MODULE:FUNCTION (default resnet18)",
            "NET",
        ),
        SharedOption(
            "--teacher-weights",
            "weights of your own trained teacher: .safetensors, a torch state dict or checkpoint, or a folder in the "
            "cache of a model hub",
            "FILE",
            type=file_path,
        ),
        SharedOption(
            "--teacher-normalise",
            "mean and std that your teacher was trained with, for pixels in [0, 1]: one number each, or one per "
            "channel, as in 0.49/0.48/0.45,0.25/0.24/0.26 (default: from config.json next to the weights, else "
            "0.5,0.5)",
            "MEAN,STD",
        ),
        SharedOption(
            "--pretrained",
            "public pretrained weights for --method.features timm:NAME: .safetensors or a torch state dict, with "
            "timm's names (default: the file in timm's local cache; nothing is downloaded)",
            "FILE",
            type=file_path,
        ),
        SharedOption(
            "--student",
            f"network of the student, named like the teacher's (default {STUDENT}, as in the papers)",
            "NET",
        ),
        SharedOption(
            "--evaluator",
            "network that classifies the reconstructions of an attack; it should differ from the teacher (default "
            f"{EVALUATOR}; evaluator-vgg is better on photographs)",
            "NET",
        ),
    ),
    "privacy budget": (
        SharedOption(
            "--epsilon",
            "privacy budget; inf for no noise, none to use the noise that the method's options set (default 10)",
            "E",
            "10",
        ),
        SharedOption("--delta", "delta of the budget, in (0, 1) (default 1e-5)", "D", "1e-5"),
        SharedOption(
            "--account",
            "the epsilon that must meet the budget: claimed by the paper's theorem, or computed by the accountant "
            "(default claimed)",
            default="claimed",
            choices=("claimed", "accounted"),
        ),
        SharedOption(
            "--solve",
            "the parameter that the budget determines: the noise (sigma) or the number of steps (default sigma)",
            choices=("sigma", "steps"),
        ),
        SharedOption(
            "--unit",
            "the data that the accounted epsilon protects, see docs/privacy.md (default example: one private record)",
            default="example",
            choices=tuple(str(unit) for unit in Unit if unit != Unit.NONE),
        ),
        SharedOption(
            "--noise",
            "source of the privacy noise: the recorded seed, or the operating system (default os for your own data "
            "set or teacher, else seeded)",
            choices=("seeded", "os"),
        ),
    ),
    "where and how": (
        SharedOption(
            "--data-root",
            "folder of the data sets (default $BENCH_DATA or ~/.cache/dp-distill-bench)",
            "DIR",
            type=file_path,
        ),
        SharedOption("--download", "download a missing data set into the data root", is_switch=True),
        SharedOption(
            "--skip-broken",
            "leave out image files that cannot be read and empty class folders, instead of stopping with an error",
            is_switch=True,
        ),
        SharedOption("--device", "auto, cpu, cuda or cuda:N (default auto)", default="auto"),
        SharedOption(
            "--devices",
            "number of GPUs, or of processes on a CPU, for data-parallel training of teacher, evaluator and DP-SGD "
            "(default 1)",
            "N",
            1,
            type=int,
        ),
        SharedOption(
            "--precision",
            "bf16: train with autocast; auto: use it where a short test finds it at least a fifth faster (default "
            "fp32)",
            default="fp32",
            choices=("fp32", "bf16", "auto"),
        ),
        SharedOption(
            "--memory-check",
            "refuse a run whose estimated memory exceeds the free memory before anything is trained, or warn and run "
            "it; off: do not estimate (default refuse)",
            default="refuse",
            choices=("refuse", "warn", "off"),
        ),
        SharedOption("--compile", "compile the most used networks of a method with torch.compile", is_switch=True),
        SharedOption(
            "--out", "folder of all results and cached steps (default runs)", "DIR", Path("runs"), type=file_path
        ),
        SharedOption("--fresh", "repeat every step, even if it is cached", is_switch=True),
    ),
}
"""The options of `bench run`, by the title of their group."""


def add_run_options(parser: argparse.ArgumentParser, names: Collection[str] | None = None) -> None:
    """Add options of `bench run` to a command.

    Args:
        names: attributes of the options to add; None = all of them.
    """
    for title, options in GROUPS.items():
        chosen = [option for option in options if names is None or option.name in names]
        if chosen:
            group = parser.add_argument_group(title)
            for option in chosen:
                option.add_to(group)


def add_plugin_options(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Add `--method.X`, `--attack.X`, `--teacher.X` and `--evaluator.X` for the plug-ins on the command line.

    Raises:
        BenchError: an unknown plug-in.
    """
    from bench import registry

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    names = ("--method", "--attack", "--teacher", "--evaluator", "--tier", "--variant", "--attack-variant", "--dataset")
    for name in (*names, *(f"--{network}.recipe" for network in RECIPES)):
        first.add_argument(name, nargs="?")
    named, _ = first.parse_known_args(arguments)
    wants_help = bool({"-h", "--help"} & set(arguments))
    for prefix in PREFIXES:
        has_options = any(word.startswith(f"--{prefix}.") for word in arguments)
        name = getattr(named, prefix)
        if prefix == "evaluator":
            if "--attack" not in parser._option_string_actions:
                continue  # an audit has no reconstructions to classify
            name = named.attack  # an evaluator is needed only for an attack
        if name is None and not (has_options and prefix in RECIPES):
            continue
        if isinstance(parser, Parser):
            parser.named.add(prefix)
        if prefix in ("method", "attack") and name != "none":
            registry.find(prefix, name)  # here, so that a typo is reported before torch is imported
        if has_options or wants_help:
            _add_options_of(parser, prefix, named)


def _add_options_of(parser: argparse.ArgumentParser, prefix: str, named: argparse.Namespace) -> None:
    """Add the options of the plug-in that `named` selects for a prefix. Raises BenchError if there is none."""
    from bench import data, registry

    group = parser.add_argument_group(f"options of the {prefix}")
    if prefix in RECIPES:
        recipe, variant = getattr(named, f"{prefix}.recipe"), None
        if recipe is None and prefix == "evaluator":
            own = data.facts(data.slug(named.dataset or DATASET)).evaluator
            recipe = None if own is None else own[0]
        recipe = recipe or DEFAULT_RECIPE
        described = registry.describe("teacher recipe", recipe)
        group.add_argument(
            f"--{prefix}.recipe",
            dest=DESTINATION.format(prefix, "recipe"),
            metavar="NAME",
            help=f"training recipe of the {prefix}, see `bench list teacher-recipes` [{recipe}]",
        )
    else:
        variant = named.variant if prefix == "method" else named.attack_variant
        described = registry.describe(prefix, getattr(named, prefix), variant)
    defaults = described.values(named.tier if named.tier in TIERS else "quick", variant)
    for option in described.options:
        default, is_switch = defaults[option.name], option.kind is bool
        note = f"[{default}]" if default == option.default else f"[{default}; paper {option.default}]"
        if prefix == "evaluator" and option.size:
            note = ""  # an evaluator has its own sizes, which `bench show DATASET` prints
        condition = f"(only with {option.only_with})" if option.only_with else ""
        text = " ".join(part for part in (option.help, condition, note) if part)
        group.add_argument(
            f"--{prefix}.{option.name}",
            dest=DESTINATION.format(prefix, option.name),
            metavar="|".join(option.choices) if option.choices else option.kind.__name__,
            help=text.replace("%", "%%"),
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
        )
    for old in described.recorded_as.values():
        if "=" not in old:
            name = f"--{prefix}.{old}"
            group.add_argument(name, dest=DESTINATION.format(prefix, old), help=argparse.SUPPRESS)
