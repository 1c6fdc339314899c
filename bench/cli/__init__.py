"""The command `bench`. This file imports no torch, so that `--help` and `list` are fast."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench import __version__, extensions
from bench.cli import account, assess, audit, boards, choose, doctor, release, report, run, show, streams, sweep
from bench.cli.parsing import Command, Parser, Parsers, join_numbers
from bench.errors import BenchError, RunFailed, disk_is_full
from bench.interface.process import keep_freed_memory
from bench.progress import print_error

GROUPS: dict[str, dict[str, Command]] = {
    "run and attack": {
        "run": run.RUN,
        "sweep": sweep.SWEEP,
        "prepare": run.PREPARE,
        "audit": audit.AUDIT,
        "account": account.ACCOUNT,
    },
    "release": {
        "canaries": release.CANARIES,
        "assess": assess.ASSESS,
        "export": release.EXPORT,
        "verify": release.VERIFY,
    },
    "boards": {
        "leaderboard": boards.LEADERBOARD,
        "choose": choose.CHOOSE,
        "report": report.REPORT,
        "records": boards.RECORDS,
    },
    "methods, data and machines": {"list": show.LIST, "show": show.SHOW, "doctor": doctor.DOCTOR},
}
"""User tasks and their commands, in the order of `bench --help`."""
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0: done; 1: a run or a check failed, or something could not be written; 2: bad input; 130: interrupted; 141: done,
    but the reader of standard output has closed it.
    """
    arguments = join_numbers(list(sys.argv[1:] if argv is None else argv))
    keep_freed_memory()
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
    is_resumable = bool(arguments) and arguments[0] in COMMANDS and COMMANDS[arguments[0]].is_resumable
    debug = "--debug" in arguments
    try:
        return execute(arguments)
    except BenchError as error:
        return _complain(f"bench: error: {error}", error, debug, 2)
    except RunFailed as error:
        return _complain(f"bench: failed: {error}", error, debug, 1)
    except KeyboardInterrupt:
        kept = "; finished steps are kept, and the same command resumes the work" if is_resumable else ""
        print(f"\nbench: interrupted{kept}", file=sys.stderr)
        return 130
    except Exception as error:  # libraries raise their own errors for a full disk; others are raised again
        if not disk_is_full(error):
            raise
        advice = "free some space"
        if is_resumable:
            advice += " or give another --out, then repeat the command; finished steps are kept"
        return _complain(f"bench: failed: the disk is full; {advice}", error, debug, 1)


def _complain(line: str, error: Exception, debug: bool, status: int) -> int:
    """Print an error, with its traceback if `debug`, and return the status."""
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
    """Build the parsers, with the options of the plug-ins that the arguments name. Raises BenchError."""
    parsers, name = build_parsers(), arguments[0]
    if name in COMMANDS and (add := COMMANDS[name].add_plugin_arguments) is not None:
        add(parsers.commands[name], arguments)
    return parsers


def build_parsers() -> Parsers:
    """Build the parser of the whole command line, and those of its sub-commands, without options of plug-ins."""
    added = {
        name: Command(each.HELP, each.DESCRIPTION, each.add_arguments, each.execute)
        for name, each in extensions.load("commands").items()
    }
    lines = []
    for task, commands in GROUPS.items():
        lines += [f"{task}:", *(f"  {name:<12} {command.help}" for name, command in commands.items()), ""]
    others = [f"{name} ({command.help})" for name, command in added.items() if command.help]
    lines.append(f"also: {', '.join(others)}")
    top = Parser(prog="bench", usage="bench [-h] [--version] COMMAND ...", allow_abbrev=False)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    top.description, top.epilog = (__import__("bench").__doc__ or "").partition("\n")[0], "\n".join(lines)
    top.add_argument("--version", action="version", version=f"dp-distill-bench {__version__}")
    subparsers = top.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="bench", parser_class=Parser
    )
    made: dict[str, Parser] = {}
    for name, command in (COMMANDS | added).items():
        made[name] = subparsers.add_parser(name, description=command.description, allow_abbrev=False)
        made[name].add_argument("--debug", action="store_true", help="print the traceback of an error")
        command.add_arguments(made[name])
        made[name].set_defaults(execute=command.execute)
    return Parsers(top, made)
