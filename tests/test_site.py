"""Notebooks and diagrams of the site (`make docs` runs the notebooks)."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from conftest import ROOT

from docs import diagrams
from docs.reference_pages import write_reference_pages

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
