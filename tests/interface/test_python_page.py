"""The code of docs/python.md and docs/errors.md runs, block after block, with the smallest runs on digits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
