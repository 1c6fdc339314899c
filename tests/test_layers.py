"""Imports point one way; the command answers without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LEAVES = {"errors", "seeds", "privacy", "data", "metrics", "nets"}
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "seeds": set(),
    "files": set(),
    "privacy": {"errors", "seeds"},
    "data": {"errors", "seeds"},
    "metrics": {"errors", "seeds"},
    "nets": {"errors", "seeds"},
    "console": set(),
    "teachers": LEAVES,
    "api": LEAVES,
    "config": {"errors"},
    "registry": {"errors"},
    "records": set(),
    "provenance": set(),
    "pictures": set(),
    "store": {"errors", "files", "records"},
    "scoring": LEAVES | {"api", "teachers"},
    "steps": LEAVES | {"api", "teachers", "records", "store"},
    "reported": {"errors", "registry"},
    "choosing": set(),
    "leaderboard": {"errors", "files", "registry", "records", "reported", "privacy"},
    "testing": LEAVES | {"api", "config"},
    "bundle": LEAVES | {"records", "registry", "store", "teachers"},
}
BELOW["job"] = set(BELOW) - {"testing", "bundle"}
BELOW["stage"] = BELOW["suspects"] = BELOW["audit"] = BELOW["references"] = BELOW["job"] | {"job"}
BELOW["inversion"] = BELOW["membership"] = BELOW["suspects"] | {"stage", "suspects", "references"}
BELOW["runner"] = BELOW["membership"] | {"inversion", "membership"}
BELOW["sweeps"] = BELOW["runner"] | {"runner", "audit"}
BELOW["report"] = {"choosing", "config", "errors", "leaderboard", "records", "registry", "reported", "teachers"}
BELOW["cli"] = BELOW["sweeps"] | {"bundle", "report", "sweeps"}
BELOW["__main__"] = {"cli"}
LIGHT = """
import sys
from bench.cli import main
try:
    main({0!r})
except SystemExit:
    pass
heavy = {{"torch", "timm", "pandas", "sklearn", "scipy"}} & set(sys.modules)
assert not heavy, heavy
"""
PLUGINS = {"api", "nets", "privacy", "data", "errors", "seeds"}


def imported(path: Path) -> set[str]:
    """The modules a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms(path: Path) -> set[str]:
    """The rooms of `bench` that a file imports from."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("bench.")} - {"__version__"}


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_bench_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT / "bench").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert rooms(path) - {room} <= BELOW[room]
    assert not [name for name in imported(path) if name.split(".")[0] in ("methods", "baselines", "attacks")]


@pytest.mark.parametrize(
    "path",
    sorted(p for d in ("methods", "baselines", "attacks") for p in (ROOT / d).glob("*.py")),
    ids=lambda p: f"{p.parent.name}/{p.name}",
)
def test_plugins_import_only_the_api_and_the_toolboxes(path: Path) -> None:
    assert rooms(path) <= PLUGINS
    others = [
        n
        for n in imported(path)
        if n.split(".")[0] in ("methods", "baselines", "attacks") and not n.split(".")[1].startswith("_")
    ]
    assert not others, "a plug-in may share helpers, whose names start with _, but not import another plug-in"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["run", "--help"],
        ["sweep", "--help"],
        ["report", "--help"],
        ["compare", "--help"],
        ["choose", "--help"],
        ["export", "--help"],
        ["verify", "--help"],
        ["audit", "--help"],
        ["audit", "release", "--help"],
        ["list", "datasets"],
    ],
)
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    run = subprocess.run([sys.executable, "-c", LIGHT.format(arguments)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
