"""`bench list`, without heavy imports."""

from __future__ import annotations

import argparse

from bench import data, manifest, plugins
from bench.errors import unknown
from bench.progress import out, tell

KINDS = {
    "methods": "method",
    "baselines": "method",
    "attacks": "attack",
    "datasets": "data set",
    "networks": "network",
    "teacher-recipes": "teacher recipe",
    "priors": "prior",
}
"""The word after `bench list` to the kind of plug-in."""


class LIST:
    """The sub-command `list`."""

    HELP = "what there is: methods, baselines, attacks, data sets, networks, teacher recipes, priors"
    DESCRIPTION = "List what can be named on the command line, with a line each."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", nargs="?", metavar="|".join(KINDS), help="one kind only")

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        if given.what not in (None, *KINDS):
            raise unknown("kind", given.what, KINDS)
        for kind in KINDS if given.what is None else (given.what,):
            _print_kind(kind)
        return 0


def _print_kind(kind: str) -> None:
    if kind == "datasets":
        found = data.names()
    else:
        folder = kind if KINDS[kind] == "method" else None
        found = {name: manifest.summary(entry) for name, entry in plugins.entries(KINDS[kind], folder).items()}
    if kind == "networks":
        found |= {
            "NAME": "any timm model",
            "tv:NAME": "any classification model of torchvision",
            "small:NAME": "either of them with a stem for small images",
        }
    out.print(f"[bold]{kind}[/bold]")
    for name, line in found.items():
        tell(f"  {name:<18} {line}")
    if not found:
        out.print("  (none yet)")
