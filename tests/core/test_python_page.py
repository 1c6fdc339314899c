"""The code on docs/python.md runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import bench

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.thorough
def test_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    small = first.replace("seed=0)", 'seed=0, tier="smoke")')
    assert small != first
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(small, str(PAGE), "exec"), names)
    assert isinstance(names["again"], bench.RunResult) and names["again"] == bench.load(names["result"].path)  # type: ignore[attr-defined]
    monkeypatch.chdir(PAGE.parents[1])
    exec(compile(second, str(PAGE), "exec"), {})
    assert os.path.isdir(tmp_path / "bundle")
