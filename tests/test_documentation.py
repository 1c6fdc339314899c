"""What the documentation says is run: doctests of every module, the snippets of docs/, and the commands it names."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from bench.cli import parser

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("bench", "methods", "baselines", "attacks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", MODULES)
def test_doctests_of(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), verbose=False)
    assert failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_of(page: Path) -> None:
    assert doctest.testfile(str(page), module_relative=False).failed == 0


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_commands_and_links_exist(page: Path) -> None:
    text, (_, commands) = page.read_text(encoding="utf-8"), parser()
    for line in re.findall(r"(?:^|`|\$ |    )bench ([a-z]+[^\n`#]*)", text, flags=re.MULTILINE):
        name, *rest = line.split()
        assert name in commands, f"{page.name} names `bench {name}`"
        known = set(commands[name]._option_string_actions)
        for option in (word for word in rest if word.startswith("--") and "." not in word and name != "audit"):
            assert option in known, f"{page.name} names `bench {name} {option}`"
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} links to {link}"
