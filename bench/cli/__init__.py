"""The command `bench`. A command's module is imported when it is used, so that `--help` and `list` are fast."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import import_module

from bench import __version__, extensions
from bench.cli import streams
from bench.cli.parsing import Command, Parser, Parsers, join_numbers
from bench.errors import BenchError, RunFailed, disk_is_full


@dataclass(frozen=True)
class Listed:
    """A command in `bench --help`: the `Command` of a module of this package, and a line about it."""

    target: str
    help: str


GROUPS: dict[str, dict[str, Listed]] = {
    "run and attack": {
        "run": Listed(
            "run:RUN", "convert a teacher with a method, attack the student, and write a record and the board"
        ),
        "sweep": Listed("sweep:SWEEP", "run all cells of a recipe (recipes/*.toml)"),
        "prepare": Listed("run:PREPARE", "train only the models that several runs share: teacher and evaluator"),
        "audit": Listed("audit:AUDIT", "measure a lower bound on epsilon, on a release or on a method's mechanism"),
        "account": Listed("account:ACCOUNT", "compute the joint epsilon of all releases of the same private records"),
    },
    "release": {
        "canaries": Listed(
            "release:CANARIES",
            "insert mislabelled records (canaries) into a training set, for `bench assess --canaries`",
        ),
        "assess": Listed(
            "assess:ASSESS",
            "decide by a policy whether a finished model can be released, from attacks on it or on its scores",
        ),
        "export": Listed(
            "release:EXPORT",
            "write the publishable part of a run: the student, its accounted epsilon and a model card",
        ),
        "verify": Listed(
            "release:VERIFY", "check a bundle of `bench export`: its files, its epsilon from its ledger, its student"
        ),
    },
    "boards": {
        "leaderboard": Listed("boards:LEADERBOARD", "show the boards, publish records, check the tables"),
        "choose": Listed("choose:CHOOSE", "recommend a release from the boards for a privacy budget and an accuracy"),
        "reproduce": Listed(
            "reproduce:REPRODUCE", "run the command of a published number again, and say whether the number holds"
        ),
        "report": Listed(
            "report:REPORT", "write a static web site with the boards, charts, and a page for every method and run"
        ),
        "records": Listed("boards:RECORDS", "convert published records of an older format into the current one"),
    },
    "methods, data and machines": {
        "list": Listed(
            "show:LIST", "list methods, baselines, attacks, data sets, networks, teacher recipes and priors"
        ),
        "show": Listed(
            "show:SHOW",
            "show all facts about one method, baseline, attack, data set, network, teacher recipe or prior",
        ),
        "doctor": Listed(
            "doctor:DOCTOR", "show versions, devices, available data sets, and what each missing part blocks"
        ),
    },
}
"""User tasks and their commands, in the order of `bench --help`."""
OWN = {name: command for commands in GROUPS.values() for name, command in commands.items()}
NAMES = (*OWN, *extensions.EXTENSIONS["commands"])
ENDING = ("-h", "--help", "--version")
"""First arguments that print something and end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0: done; 1: a run or a check failed, or something could not be written; 2: bad input; 130: interrupted; 141: done,
    but the reader of standard output has closed it.
    """
    arguments = join_numbers(list(sys.argv[1:] if argv is None else argv))
    streams.make_lenient()
    try:
        status = _execute_reporting_errors(arguments)
    except SystemExit as end:  # raised by --help and --version
        if end.code or (lost := streams.lost_output()) is None:
            raise
        return streams.status_of_lost(lost)
    lost = streams.lost_output()
    return status if status or lost is None else streams.status_of_lost(lost)


def _execute_reporting_errors(arguments: list[str]) -> int:
    """Run a command and return its exit status; print an error in one line on standard error."""
    debug = "--debug" in arguments
    try:
        return execute(arguments)
    except BenchError as error:
        return _complain(f"bench: error: {error}", error, debug, 2)
    except RunFailed as error:
        return _complain(f"bench: failed: {error}", error, debug, 1)
    except KeyboardInterrupt:
        kept = "; finished steps are kept, and the same command resumes the work" if _is_resumable(arguments) else ""
        print(f"\nbench: interrupted{kept}", file=sys.stderr)
        return 130
    except Exception as error:  # libraries raise their own errors for a full disk; others are raised again
        if not disk_is_full(error):
            raise
        advice = "free some space"
        if _is_resumable(arguments):
            advice += " or give another --out, then repeat the command; finished steps are kept"
        return _complain(f"bench: failed: the disk is full; {advice}", error, debug, 1)


def _is_resumable(arguments: list[str]) -> bool:
    """Whether finished steps are kept when the command is interrupted."""
    return bool(arguments) and arguments[0] in NAMES and find_command(arguments[0]).is_resumable


def _complain(line: str, error: Exception, debug: bool, status: int) -> int:
    """Print an error, with its traceback if `debug`, and return the status."""
    from bench.progress import print_error

    if debug:
        import traceback

        for each in "".join(traceback.format_exception(error)).splitlines():
            print_error(each)
    print_error(line)
    return status


def execute(arguments: list[str]) -> int:
    """Parse and run a command, and return its exit status. Raises BenchError and RunFailed."""
    if not arguments:
        build_parsers().top.print_help()
        return 2
    given = parse(arguments)
    from bench.interface.process import keep_freed_memory

    keep_freed_memory()
    status: int = given.execute(given)
    return status


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse arguments, with the options of the plug-ins that they name. Raises BenchError."""
    return parse_with(parsers_for(arguments), arguments)


def parse_with(parsers: Parsers, arguments: list[str]) -> argparse.Namespace:
    """Parse arguments with parsers that `parsers_for` made for similar arguments. Raises BenchError."""
    given, extra = parsers.top.parse_known_args(arguments)
    if extra:
        raise getattr(given, "parser", parsers.commands[given.command]).unknown_option(extra[0])
    return given


def parsers_for(arguments: list[str]) -> Parsers:
    """Build the parsers that some arguments need, with the options of the plug-ins they name. Raises BenchError."""
    name = arguments[0]
    if name not in NAMES:
        return build_parsers(() if name in ENDING else NAMES)
    parsers = build_parsers((name,))
    if (add := find_command(name).add_plugin_arguments) is not None:
        add(parsers.commands[name], arguments)
    return parsers


def build_parsers(names: Collection[str] = NAMES) -> Parsers:
    """Build the parser of the command line, and those of the named commands, without options of plug-ins."""
    top = Parser(prog="bench", usage="bench [-h] [--version] COMMAND ...", allow_abbrev=False)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    top.description = (__import__("bench").__doc__ or "").partition("\n")[0]
    if len(names) != 1:  # with one command, its own help is printed
        lines = []
        for task, commands in GROUPS.items():
            lines += [f"{task}:", *(f"  {name:<12} {command.help}" for name, command in commands.items()), ""]
        added = extensions.load("commands")
        others = [f"{name} ({command.HELP})" for name, command in added.items() if command.HELP]
        top.epilog = "\n".join([*lines, f"also: {', '.join(others)}"])
    top.add_argument("--version", action="version", version=f"dp-distill-bench {__version__}")
    subparsers = top.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="bench", parser_class=Parser
    )
    made: dict[str, Parser] = {}
    for name in names:
        command = find_command(name)
        made[name] = subparsers.add_parser(name, description=command.description, allow_abbrev=False)
        made[name].add_argument("--debug", action="store_true", help="print the traceback of an error")
        command.add_arguments(made[name])
        made[name].set_defaults(execute=command.execute)
    return Parsers(top, made)


def find_command(name: str) -> Command:
    """Import a command of `NAMES`."""
    if name not in OWN:
        added = extensions.load("commands")[name]
        return Command(added.DESCRIPTION, added.add_arguments, added.execute)
    module, _, command = OWN[name].target.partition(":")
    found: Command = getattr(import_module(f"{__name__}.{module}"), command)
    return found
