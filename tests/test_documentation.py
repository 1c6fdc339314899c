"""The documentation is executed: doctests of every module, the snippets of docs/, and the commands that it names."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest

from bench.cli import build_parsers, parse
from bench.errors import BenchError

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("bench", "methods", "baselines", "attacks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]
PAGES = sorted((ROOT / "docs").glob("*.md"))
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
INLINE, LINE = (
    re.compile(r"(?<!`)`bench ([a-z][^`]*)`(?!`)"),
    re.compile(r"^(?:\$ )?bench ([a-z][^\n#]*)", re.MULTILINE),
)
PLACEHOLDERS = {"METHOD", "NAME", "N"}
"""Words that a reader replaces by a name or a number; paths in capitals are as good as any."""


@pytest.mark.parametrize("name", MODULES)
def test_doctests_of_module(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), verbose=False)
    assert failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_of_page(page: Path) -> None:
    assert doctest.testfile(str(page), module_relative=False).failed == 0


def headings(page: Path) -> set[str]:
    """The headings of a page as links name them: small letters and hyphens, nothing else but words."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_commands_and_links_of_page_exist(page: Path) -> None:
    text, commands = page.read_text(encoding="utf-8"), build_parsers().commands
    for line in re.findall(r"(?:^|`|\$ |    )bench ([a-z]+[^\n`#]*)", text, flags=re.MULTILINE):
        name, *rest = line.split()
        assert name in commands, f"{page.name} names `bench {name}`"
        known = set(commands[name]._option_string_actions)
        for option in (
            word for word in rest if word.startswith("--") and "." not in word and name not in ("audit", "papers")
        ):
            assert option in known, f"{page.name} names `bench {name} {option}`"
    for link, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        target = page.parent / link if link else page
        assert link.startswith("http") or target.exists(), f"{page.name} links to {link}"
        assert not heading or heading in headings(target), f"{page.name} links to {link}#{heading}"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_commands_of_page_can_be_parsed(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for command in [*LINE.findall(text), *INLINE.findall(text)]:
        words = shlex.split(command)
        if PLACEHOLDERS & {*words} or "--help" in words:
            continue
        try:
            parse(words)
        except BenchError as error:
            # Running text names a command without its arguments; with any it is to be typed.
            assert "arguments are required" in str(error) and command not in LINE.findall(text), (
                f"bench {command}: {error}"
            )


def test_every_page_is_in_a_table_of_contents() -> None:
    sections = ("index", "how-to", "reference", "explanation", "study")
    listed = {
        line.strip().removeprefix("/")
        for name in sections
        for block in re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs" / f"{name}.md").read_text(), flags=re.DOTALL)
        for line in block.splitlines()
    }
    assert {page.stem for page in PAGES} - {"index"} <= listed
