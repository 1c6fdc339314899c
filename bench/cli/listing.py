"""`bench list` (without importing anything heavy) and `bench show NAME`."""

from __future__ import annotations

import argparse
import inspect
import textwrap

from bench import data, registry
from bench.config import options
from bench.errors import unknown
from bench.progress import out

PER = {
    "example": "epsilon of one private record (unit example)",
    "label": "epsilon of one private record's label (unit label)",
    "query": "epsilon of one synthetic image's answer (unit query), not of a private record",
    "client": "epsilon of all data of one client (unit client)",
    "none": "nothing",
}
KINDS = ("methods", "baselines", "attacks", "datasets")


class LIST:
    """The sub-command `list`."""

    HELP = "what there is: methods, baselines, attacks, data sets"
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
        entries = registry.entries("attack" if kind == "attacks" else "method", kind)
        found = {name: entry.summary for name, entry in entries.items()}
    out.print(f"[bold]{kind}[/bold]")
    for name, line in found.items():
        out.print(f"  {name:<18} {line}", markup=False, soft_wrap=True)
    if not found:
        out.print("  (none yet)")


class SHOW:
    """The sub-command `show`."""

    HELP = "all about one method, baseline or attack"
    DESCRIPTION = "Reference, needs, unit, options with defaults and help, and where it differs from its paper."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", help="a name from `bench list`")

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        known = {**registry.entries("attack"), **registry.entries("method")}
        if given.name not in known:
            raise unknown("method, baseline or attack", given.name, known)
        _print_plugin(known[given.name])
        return 0


def _print_plugin(entry: registry.Entry) -> None:
    cls = registry.load(entry.kind, entry.name)
    out.print(f"[bold]{entry.name}[/bold]  ({entry.kind} in {entry.folder}/, version {cls.version})")
    facts = {"reference": cls.reference}
    if entry.kind == "method":
        facts |= {"needs": ", ".join(sorted(cls().needs)), "claimed": PER[cls.unit]}
        facts |= {"accounted": f"{PER['example']}, and of every other unit in its ledger", "audited": PER["example"]}
    else:
        facts |= {"goal": cls.goal, "access": cls.access}
    for name, value in facts.items():
        out.print(f"  {name:<13} {value}", markup=False, soft_wrap=True)
    out.print()
    out.print(textwrap.indent(inspect.getdoc(inspect.getmodule(cls)) or "", "  "), markup=False, soft_wrap=True)
    out.print(
        f"\n[bold]options[/bold]  (--{entry.kind}.NAME VALUE; default is the paper's; overrides per tier in brackets)"
    )
    for option in options(cls):
        tiers = [f"{tier} {given[option.name]}" for tier, given in cls.tiers.items() if option.name in given]
        value = (
            "|".join(option.choices) + f" = {option.default}"
            if option.choices
            else f"{option.kind.__name__} = {option.default}"
        )
        out.print(
            f"  {option.name:<20} {value}" + (f"  [{', '.join(tiers)}]" if tiers else ""), markup=False, soft_wrap=True
        )
        if option.help:
            out.print(textwrap.indent(textwrap.fill(option.help, 100), "      "), markup=False)
