from __future__ import annotations

import sys
from pathlib import Path

import pytest
from distributions import install

from bench import plugins, registry
from bench.cli import main
from bench.errors import BadPlugin, BenchError


def plugin_file(folder: Path, name: str, doc: str = '"""A line."""\n') -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.py").write_text(doc, encoding="utf-8")


def test_names_are_those_of_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "ROOT", tmp_path)
    plugin_file(tmp_path / "methods", "fed_dpsd", '"""First line.\n\nMore."""\nraise SystemExit\n')
    plugin_file(tmp_path / "methods", "_private")
    plugin_file(tmp_path / "methods" / "in_parts", "in_parts")
    plugin_file(tmp_path / "methods" / "in_parts", "network")
    plugin_file(tmp_path / "methods" / "no_plugin", "network")
    found = registry.entries("method")
    assert list(found) == ["fed-dpsd", "in-parts"]
    assert found["fed-dpsd"].summary == "First line." and found["fed-dpsd"].working is None
    assert found["in-parts"].module == "methods.in_parts.in_parts"
    plugin_file(tmp_path / "methods" / "in_parts", "working")
    assert registry.entries("method")["in-parts"].working == "methods.in_parts.working"


def test_collision_names_both_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "ROOT", tmp_path)
    plugin_file(tmp_path / "methods", "same")
    plugin_file(tmp_path / "baselines", "same")
    with pytest.raises(BenchError, match=r"methods\.same and baselines\.same"):
        registry.entries("method")


PLUGIN = """from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Foreign:
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "a paper"
    tiers: ClassVar = {}
    goal: ClassVar[str] = "inversion"
    access: ClassVar[str] = "label"

    def skip_reason(self, shape, classes, aux):
        return None

    def run(self, target, aux, ctx):
        raise KeyError("nothing is there")
"""


def test_entry_points_of_other_distributions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = "[bench.attacks]\nforeign = foreign_attack\nforeign.working = foreign_attack:Foreign\n"
    install(tmp_path, points, foreign_attack=PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    found = registry.find("attack", "foreign")
    assert (found.folder, found.file, found.summary) == ("attacks", None, "from foreign_attack")
    assert registry.variants("attack", "foreign") == ("printed", "working")
    assert registry.load("attack", "foreign").__name__ == "Foreign"
    assert registry.describe("attack", "foreign").facts["goal"] == "inversion"
    with pytest.raises(BenchError, match=r"'own'.*printed.*working"):
        registry.choose_variant("attack", "foreign", "own")


def test_two_distributions_with_one_name_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        install(tmp_path / name, f"[bench.attacks]\nforeign = foreign_{name}\n")
        monkeypatch.syspath_prepend(tmp_path / name)
    with pytest.raises(BenchError, match=r"'foreign'.*foreign_one and foreign_two"):
        registry.entries("attack")


def test_module_without_a_plugin_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "[bench.attacks]\nforeign = foreign_empty\n", foreign_empty="")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BenchError, match=r"`version` and `tiers`.* 0"):
        registry.load("attack", "foreign")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import nothing_here", "ModuleNotFoundError: No module named 'nothing_here'"),
        ("def half(:", "SyntaxError: "),
        ("raise ValueError('two\\nlines')", "ValueError: two"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_module_that_cannot_be_imported_is_refused(
    source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "[bench.attacks]\nforeign = foreign_broken\n", foreign_broken=source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_broken", raising=False)
    assert main(["show", "foreign"]) == 2
    said = capsys.readouterr().err
    assert "'foreign'" in said and f"foreign_broken ({why}" in said and said.count("\n") == 1
    with pytest.raises(BadPlugin) as caught:
        registry.load("attack", "foreign")
    assert caught.value.__cause__ is not None


def test_every_kind_has_summaries() -> None:
    for kind in plugins.KINDS:
        for entry in plugins.entries(kind).values():
            assert entry.summary and "\n" not in entry.summary


def test_unknown_name_has_a_suggestion() -> None:
    with pytest.raises(BenchError, match=r"'dpds'.*'dpsd'"):
        registry.load("method", "dpds")


def test_entries_can_be_limited_to_a_folder() -> None:
    assert "no-defence" in registry.entries("method", "baselines")
    assert "no-defence" not in registry.entries("method", "methods")
    assert registry.load("method", "no-defence").__name__ == "NoDefence"
