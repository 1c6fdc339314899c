"""The command `bench`. This file imports no torch, so that `--help` and `list` are fast."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from bench import __version__, extensions
from bench.cli import (
    account,
    assess,
    audit,
    boards,
    canaries,
    choose,
    doctor,
    export,
    listing,
    records,
    report,
    run,
    show,
    streams,
    sweep,
    verify,
)
from bench.cli.run_options import PREFIXES
from bench.errors import BadOption, BenchError, RunFailed, disk_is_full
from bench.interface.heap import keep_freed_memory
from bench.progress import complain

GROUPS: dict[str, dict[str, Any]] = {
    "run and attack": {
        "run": run,
        "sweep": sweep,
        "prepare": run.PREPARE,
        "audit": audit,
        "account": account,
    },
    "release": {"canaries": canaries, "assess": assess, "export": export, "verify": verify},
    "boards": {"leaderboard": boards, "choose": choose, "report": report, "records": records},
    "methods, data and machines": {"list": listing.LIST, "show": show.SHOW, "doctor": doctor},
}
"""User tasks and their commands, in the order of `bench --help`."""
FULL = "the disk is full; finished steps are kept: make room, or name another --out, and run the same command to go on"
RESUMED = ("run", "prepare", "audit", "sweep")
"""Commands whose finished work is kept when they are interrupted."""
PLUGGABLE: dict[str, Any] = {"run": run, "prepare": run.PREPARE, "audit": audit}
FAMILIES = tuple(f"--{prefix}" for prefix in PREFIXES)
"""Prefixes of plug-in options."""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that say what to do.

    Attributes:
        named: the parts (method, attack, teacher) whose plug-in was named, so that their options exist.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.named: set[str] = set()

    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}; see `{self.prog} --help`")

    def unknown_option(self, given: str) -> BenchError:
        """Return the error for an option that does not exist, with the nearest one."""
        name = given.split("=")[0]
        family, dot, _ = name.partition(".")
        if dot and family in FAMILIES and family[2:] not in self.named:
            if family not in self._option_string_actions:
                return BadOption(f"{given}: `{self.prog}` has no {family[2:]}; leave it out")
            return BadOption(f"{given} is an option of the {family[2:]}, and none is named; give {family} NAME as well")
        # The common prefix of a plug-in's options does not count as similarity
        start = family + dot if dot else "--"
        known = sorted(option[len(start) :] for option in self._option_string_actions if option.startswith(start))
        close = difflib.get_close_matches(name[len(start) :], known, n=1, cutoff=0.6)
        hint = f" Did you mean '{start}{close[0]}'?" if close else ""
        return BadOption(f"no option '{given}'.{hint} See `{self.prog} --help`")


Parsers = tuple[Parser, dict[str, Parser]]


def parser() -> Parsers:
    """Build the parser of the whole command, and the parsers of its sub-commands."""
    added = extensions.load("commands")
    top = Parser(prog="bench", usage="bench [-h] [--version] COMMAND ...", allow_abbrev=False)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    summary = (__import__("bench").__doc__ or "").partition("\n")[0]
    top.description, top.epilog = summary, _list_commands(added)
    top.add_argument("--version", action="version", version=f"dp-distill-bench {__version__}")
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="bench", parser_class=Parser
    )
    made: dict[str, Parser] = {}
    known = {name: module for commands_of in (*GROUPS.values(), added) for name, module in commands_of.items()}
    for name, module in known.items():
        made[name] = commands.add_parser(name, description=module.DESCRIPTION, allow_abbrev=False)
        made[name].add_argument("--debug", action="store_true", help="show the traceback of an error")
        module.add_arguments(made[name])
        made[name].set_defaults(execute=module.execute)
    return top, made


def _list_commands(added: Mapping[str, Any]) -> str:
    """List the commands by task, and in a last line those of extensions."""
    lines: list[str] = []
    for task, commands in GROUPS.items():
        lines += [f"{task}:", *(f"  {name:<12} {module.HELP}" for name, module in commands.items()), ""]
    others = [f"{name} ({module.HELP})" for name, module in added.items() if module.HELP]
    return "\n".join([*lines, f"also: {', '.join(others)}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0: done; 1: a run or a check failed, or something could not be written; 2: bad input; 130: interrupted; 141: done,
    but the reader of standard output has closed it.
    """
    arguments = joined(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    keep_freed_memory()
    streams.make_lenient()
    try:
        status = _status(arguments, debug)
    except SystemExit as end:  # raised by --help and --version
        if end.code or (lost := streams.lost_output()) is None:
            raise
        return streams.status_of_lost(lost)
    lost = streams.lost_output()
    return status if status or lost is None else streams.status_of_lost(lost)


def _status(arguments: list[str], debug: bool) -> int:
    """Run a command and return its exit status; report bad input in one line on standard error."""
    try:
        return _execute(arguments)
    except BenchError as error:
        return _complain("bench: error", error, debug, 2)
    except RunFailed as error:
        return _complain("bench: failed", error, debug, 1)
    except KeyboardInterrupt:
        kept = "finished steps are kept, run the same command to go on"
        print(f"\nbench: interrupted{f'; {kept}' if arguments[0] in RESUMED else ''}", file=sys.stderr)
        return 130
    except Exception as error:  # libraries raise their own errors for a full disk; others are raised again
        if not disk_is_full(error):
            raise
        full = FULL if arguments[0] in RESUMED else "what is written to is full; make room"
        return _complain("bench: failed", RunFailed(full).with_traceback(error.__traceback__), debug, 1)


def joined(words: Sequence[str]) -> list[str]:
    """Return the words, with an option and a following negative number or pair joined in one word: argparse takes
    -1e-5, -inf and -1,1 for options."""
    found: list[str] = []
    for word in words:
        if word.startswith("-") and found and found[-1].startswith("--") and "=" not in found[-1] and _is_number(word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _is_number(word: str) -> bool:
    try:
        for part in word.split(","):
            float(part)
    except ValueError:
        return False
    return True


def _execute(arguments: list[str]) -> int:
    if not arguments:
        parser()[0].print_help()
        return 2
    given = read(arguments)
    return given.execute(given)


def parser_for(arguments: list[str]) -> Parsers:
    """Build `parser` with the options of the plug-ins that the arguments name. Raises BenchError."""
    made = parser()
    if arguments[0] in PLUGGABLE:
        PLUGGABLE[arguments[0]].add_plugin_arguments(made[1][arguments[0]], arguments)
    return made


def read(arguments: list[str]) -> argparse.Namespace:
    """Parse arguments, with the options of the plug-ins that they name. Raises BenchError."""
    return read_by(parser_for(arguments), arguments)


def read_by(parsers: Parsers, arguments: list[str]) -> argparse.Namespace:
    """Parse arguments with parsers that `parser_for` made for similar arguments. Raises BenchError."""
    top, commands = parsers
    given, extra = top.parse_known_args(arguments)
    if extra:
        raise getattr(given, "parser", commands[given.command]).unknown_option(extra[0])
    return given


def _complain(prefix: str, error: Exception, debug: bool, status: int) -> int:
    if debug:
        import traceback

        for line in "".join(traceback.format_exception(error)).splitlines():
            complain(line)
    complain(f"{prefix}: {error}")
    return status
