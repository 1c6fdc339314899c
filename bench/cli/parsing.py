"""Parsers of the command line: one-line errors, and the definition of a sub-command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bench.errors import BadOption, BenchError

PREFIXES = ("method", "attack", "teacher", "evaluator")
"""Plug-ins whose options have the prefix of their kind, such as --method.sigma."""
LONGEST_NAME = 255
"""Largest number of bytes of a file name on common file systems."""

AddArguments = Callable[[argparse.ArgumentParser], None]
Execute = Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Command:
    """A sub-command of `bench`.

    Attributes:
        description: the first paragraph of `bench COMMAND --help`.
        add_arguments: adds its options to a parser.
        execute: runs it, and returns the exit status.
        add_plugin_arguments: adds the options of the plug-ins that a command line names; None = it has none.
        is_resumable: whether finished steps are kept when it is interrupted.
    """

    description: str
    add_arguments: AddArguments
    execute: Execute
    add_plugin_arguments: Callable[[argparse.ArgumentParser, list[str]], None] | None = None
    is_resumable: bool = False


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that say what to do.

    Attributes:
        named: the prefixes of `PREFIXES` whose plug-in is named on the command line, so that their options exist.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.named: set[str] = set()

    def error(self, message: str) -> NoReturn:
        """Raise BadOption instead of ending the process."""
        raise BadOption(f"{message}; see `{self.prog} --help`")

    def unknown_option(self, given: str) -> BenchError:
        """Return the error for an option that does not exist, with the nearest one."""
        name = given.split("=")[0]
        family, dot, _ = name.partition(".")
        prefix = family.removeprefix("--")
        if dot and prefix in PREFIXES and prefix not in self.named:
            if family not in self._option_string_actions:
                return BadOption(f"{given}: `{self.prog}` has no option {family}; leave it out")
            return BadOption(f"{given} is an option of a {prefix}, and no {prefix} is named; give {family} NAME too")
        # The common prefix of a plug-in's options does not count as similarity
        start = family + dot if dot else "--"
        import difflib

        shown = [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        known = sorted(option[len(start) :] for option in shown if option.startswith(start))
        close = difflib.get_close_matches(name[len(start) :], known, n=1, cutoff=0.6)
        hint = f" Did you mean '{start}{close[0]}'?" if close else ""
        return BadOption(f"no option '{given}'.{hint} See `{self.prog} --help`")


@dataclass(frozen=True)
class Parsers:
    """The parser of the whole command line, and those of its sub-commands by name."""

    top: Parser
    commands: dict[str, Parser]


def file_path(text: str) -> Path:
    """Return a path on the command line. An empty one, often from an unset variable, is refused.

    Raises:
        argparse.ArgumentTypeError: it is empty, or a part of it is longer than file systems allow.
    """
    longest = max(text.split("/"), key=len)
    if len(os.fsencode(longest)) > LONGEST_NAME:
        raise argparse.ArgumentTypeError(
            f"'{longest[:20]}...' has more than {LONGEST_NAME} bytes, the limit of a file name"
        )
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty; give a path, or . for the working directory")
    return Path(text)


def join_numbers(words: list[str]) -> list[str]:
    """Join an option and a negative number or pair after it into one word, as argparse takes -1e-5, -inf and -1,1 for
    options.

    >>> join_numbers(["run", "--epsilon", "-1", "--pixel-range", "-1,1", "--fresh"])
    ['run', '--epsilon=-1', '--pixel-range=-1,1', '--fresh']
    """
    joined: list[str] = []
    for word in words:
        follows_option = joined and joined[-1].startswith("--") and "=" not in joined[-1]
        if follows_option and word.startswith("-") and _are_numbers(word.split(",")):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _are_numbers(words: list[str]) -> bool:
    try:
        return [float(word) for word in words] != []
    except ValueError:
        return False
