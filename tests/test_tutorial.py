"""The commands of the tutorial, in their order, as a reader types them; at the smallest tier."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT

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
