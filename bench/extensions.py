"""Commands, report pages and facts that a package adds without being imported by other packages.

Each is listed here as "MODULE:NAME" and loaded on demand.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

Group = Literal["commands", "report sections", "effects", "published numbers"]
EXTENSIONS: dict[Group, dict[str, str]] = {
    "commands": {"papers": "bench.papers.command:Papers", "compare": "bench.papers.command:Compare"},
    "report sections": {"papers": "bench.papers.section:section"},
    "effects": {"papers": "bench.papers.effects:describe_effect"},
    "published numbers": {"papers": "bench.papers.printed_numbers:load"},
}
"""Extensions by group and name:

- commands: HELP, DESCRIPTION, add_arguments and execute; a command without HELP is not listed.
- report sections: a function of `bench.report.sections.Content` that returns a `Section`.
- effects: a function of a plug-in's name, its description and a departure, which returns the effect in words, or "".
- published numbers: a function without arguments that returns values with `to_row()`.
"""


def load(group: Group) -> dict[str, Any]:
    """Load all extensions of a group, by name."""
    found = {}
    for name, target in EXTENSIONS[group].items():
        module, _, attribute = target.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found
