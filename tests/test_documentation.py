"""The documentation is executed: doctests, snippets, the tutorial, the examples of CONTRIBUTING.md, its commands."""

import doctest
import importlib
import inspect
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Type, write_toy
from distributions import install

from bench import data, plugins, registry
from bench.cli import build_parsers, main, parse
from bench.errors import BenchError
from docs import diagrams
from docs.reference_pages import write_reference_pages

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
        re.sub(r"^.* <(.*)>$", r"\1", line.strip()).removeprefix("/")
        for name in sections
        for block in re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs" / f"{name}.md").read_text(), flags=re.DOTALL)
        for line in block.splitlines()
    }
    assert {page.stem for page in PAGES} - {"index"} <= listed


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 100_000
"""Bytes of a notebook without outputs."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells and not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    assert path.stat().st_size < LARGEST


def test_notebooks_are_listed() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) >= 3
    assert {path.stem for path in NOTEBOOKS} == set(re.findall(r"^notebooks/(\S+)$", page, flags=re.MULTILINE))


def rows_of_another_length(page: str) -> list[str]:
    """The rows of a page's tables that have more or fewer cells than the row before."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = [(line, len(re.findall(r"(?<!\\)\|", line))) for line in page.splitlines()]
    pairs = itertools.pairwise(lines)
    return [line for (before, wanted), (line, bars) in pairs if {before[:1], line[:1]} == {"|"} and bars != wanted]


def test_rows_of_tables_are_complete(tmp_path: Path) -> None:
    """Also of the pages from the registry and the command, whose options have bars: `--variant printed|working`."""
    write_reference_pages(tmp_path)
    pages = [*tmp_path.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(pages) > 20 and any("printed\\|working" in page.read_text(encoding="utf-8") for page in pages)
    found = {page.name: rows_of_another_length(page.read_text(encoding="utf-8")) for page in pages}
    assert not {name: rows for name, rows in found.items() if rows}


def test_architecture_has_every_package_in_a_layer() -> None:
    packages = {path.parent.name for path in (ROOT / "bench").glob("*/__init__.py")}
    placed = [name for names in diagrams.layers() for name in names]
    assert len(placed) == len(set(placed)) and set(placed) == packages
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [name for name in packages if f"`{name}`" not in page]


def test_architecture_layers_import_only_downwards() -> None:
    level = {name: number for number, names in enumerate(diagrams.layers()) for name in names}
    for room, imported in diagrams.rooms().items():
        assert room not in level or all(level[name] < level[room] for name in imported if name in level)


@pytest.mark.thorough
def test_diagrams_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagrams, "FOLDER", tmp_path / "diagrams")
    diagrams.main()
    written = {path.name for path in (tmp_path / "diagrams").iterdir()}
    assert written == {path.name for path in (ROOT / "docs" / "diagrams").iterdir()}


TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.thorough
def test_commands_of_the_tutorial_run(tmp_path: Path, bench: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert [language for language, _ in BLOCKS].count("bash") >= 5
    for language, text in BLOCKS:
        if language == "python":
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)
            continue
        for line in text.splitlines():
            words = line.split()[1:]
            done = bench(*words, *(["--tier", "smoke"] if words[0] == "run" else []))
            assert done.returncode == 0, f"{line}: {done.stderr}"
    assert (tmp_path / "release").is_dir()


PREAMBLE = """
from bench.interface import attacking, auditing, running
for function in (running.run, auditing.audit, attacking.attack):
    function.__kwdefaults__["tier"] = "smoke"
for function in (running.run, auditing.audit):
    function.__kwdefaults__["teacher"] = "datalens"
"""
"""Shorter runs by smaller defaults; the page's own code is run as it is."""


def blocks(page: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["python.md", "errors.md"])
def test_code_of_page_runs(page: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(PREAMBLE + blocks(page), encoding="utf-8")
    (tmp_path / "leaderboards").symlink_to(ROOT / "leaderboards")
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = {name: text for name, text in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", TEXT, flags=re.DOTALL)}
POINTS = tomllib.loads(re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)[0])["project"]["entry-points"]
CONTRACTS = re.findall(r"^class (Test\w+)", FILES["test_mine"], flags=re.MULTILINE)
RUNS = {
    "method": ["--method", "noisy-answers"],
    "attack": ["--method", "no-defence", "--attack", "best-auxiliary"],
    "printed attack": ["--method", "no-defence", "--attack", "best-auxiliary", "--attack-variant", "printed"],
    "data set": ["--method", "no-defence", "--dataset", "stripes"],
    "network": ["--method", "noisy-answers", "--student", "one-layer"],
    "teacher recipe": ["--method", "no-defence", "--teacher.recipe", "mixed", "--teacher.share", "0.4"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path, with the examples installed in it and a toy data set."""
    folder = tmp_path_factory.mktemp("examples")
    points = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in POINTS.items()]
    install(folder, "\n".join(points), **FILES)
    write_toy(folder, 160)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in FILES:
        sys.modules.pop(name, None)


def test_every_kind_has_an_example(place: Path) -> None:
    for kind, where in plugins.KINDS.items():
        for name in POINTS[where.group]:
            assert plugins.find(kind, name).module in FILES
    described = registry.describe("attack", "best-auxiliary")
    assert registry.variants("attack", "best-auxiliary") == ("printed", "working") and described.departures
    assert data.facts("stripes").class_names[0] == "upright"


@pytest.mark.thorough
@pytest.mark.parametrize("contract", CONTRACTS)
def test_examples_pass_their_contracts(place: Path, contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    made = getattr(importlib.import_module("test_mine"), contract)()
    checks = [check for name, check in inspect.getmembers(made) if name.startswith("test_")]
    assert len(checks) >= 4
    for check in checks:
        check()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", RUNS)
def test_examples_run(place: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    usual = f"--dataset npz:{place}/toy.npz --teacher datalens --tier smoke --out {tmp_path}".split()
    assert main(["run", *usual, *RUNS[kind]]) == 0, capsys.readouterr().err
    (path,) = (tmp_path / "records").glob("[!.]*/record.json")
    record: dict[str, Any] = json.loads(path.read_text())
    assert record["status"] in ("ok", "inconclusive"), record["reason"]
    said = json.dumps(record["spec"])
    assert all(json.dumps(word) in said for word in RUNS[kind] if not word.startswith("--") and word != "0.4")


def test_examples_are_listed_and_shown(place: Path, typed: Type) -> None:
    listed = typed("list").out
    assert all(f"  {name} " in listed for kind in plugins.KINDS.values() for name in POINTS[kind.group])
    assert "1. Scores are compared with those of the other classes." in typed("show best-auxiliary").out
