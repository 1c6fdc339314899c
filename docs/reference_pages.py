"""Reference pages of the site that are written from the registry and from the command line itself."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from bench import data, plugins, registry
from bench.cli import build_parsers
from bench.config import Option
from bench.metrics.table import metrics

KINDS = {"methods": "Methods of the papers", "baselines": "Baselines", "attacks": "Attacks"}


def write_reference_pages(folder: Path) -> None:
    """Write `commands.md` and `catalogue.md` into `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "commands.md").write_text(commands_page(), encoding="utf-8")
    (folder / "catalogue.md").write_text(catalogue_page(), encoding="utf-8")


def commands_page() -> str:
    """Every command with its options, defaults and allowed values, in Markdown."""
    parts = ["# Options of every command", "`bench COMMAND --help` prints the same in a terminal."]
    for name, command in build_parsers().commands.items():
        parts += [f"## bench {name}", _sentence(command.description or "")]
        for group in command._action_groups:
            shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS and each.dest != "help"]
            rows = [(_usage(each), _escape(_help(each))) for each in shown]
            if rows:
                title = (
                    [] if group.title in ("options", "positional arguments") else [f"### bench {name}: {group.title}"]
                )
                parts += [*title, _table(("option", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def catalogue_page() -> str:
    """Every method, baseline, attack, data set and metric, in Markdown."""
    parts = ["# Catalogue", "Names that commands and functions take. `bench show NAME` prints one entry in full."]
    for folder, title in KINDS.items():
        kind = "attack" if folder == "attacks" else "method"
        parts.append(f"## {title}")
        for name, entry in sorted(plugins.entries(kind, folder if kind == "method" else None).items()):
            parts += _plugin(kind, name, entry.summary)
    rows = [(f"`{name}`", _escape(line)) for name, line in data.names().items()]
    parts += ["## Data sets", _table(("name", "contents"), rows)]
    measured = [(f"`{each.key}`", _escape(each.label), _escape(each.explanation)) for each in metrics().values()]
    parts += [
        "## Metrics",
        "A prefix says whose number it is: none for the released student, `teacher_` for the unprotected teacher, "
        "`random_` for an untrained network.",
        _table(("key", "name", "definition"), measured),
    ]
    return "\n\n".join(parts) + "\n"


def _plugin(kind: str, name: str, summary: str) -> list[str]:
    """The section of one method or attack: source, variants and options of its default variant."""
    described = registry.describe(kind, name)
    facts = [
        ("Source", str(described.facts.get("reference", ""))),
        ("Variants", ", ".join(registry.variants(kind, name))),
    ]
    lines = "\n".join(f"- {key}: {_escape(value)}" for key, value in facts if value)
    rows = [(f"`{each.name}`", f"`{each.default}`", _option_help(each)) for each in described.options]
    return [
        f"### {name}",
        _sentence(summary),
        lines,
        *([_table(("option", "published value", "meaning"), rows)] if rows else []),
    ]


def _option_help(option: Option) -> str:
    choices = f" One of {', '.join(option.choices)}." if option.choices else ""
    return _escape(_sentence(option.help) + choices)


def _usage(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else " " + str(action.metavar or (_choices(action) or action.dest.upper()))
    return f"`{action.option_strings[-1]}{value}`"


def _choices(action: argparse.Action) -> str:
    return "|".join(map(str, action.choices)) if action.choices else ""


def _help(action: argparse.Action) -> str:
    return _sentence((action.help or "").replace("%%", "%"))


def _sentence(text: str) -> str:
    """Text that begins with a capital and ends with a full stop."""
    words = " ".join(text.split())
    if not words:
        return ""
    return words[0].upper() + words[1:] + ("" if words.endswith((".", "?", ")")) else ".")


def _escape(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return re.sub(r"([|<*_\[\]$])", r"\\\1", " ".join(text.split()))


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; a bar in a cell, also in code, does not end the cell."""
    lines = [header, tuple("---" for _ in header), *(tuple(map(_keep_bars, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _keep_bars(cell: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", cell)
