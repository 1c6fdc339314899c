from __future__ import annotations

from pathlib import Path

import pytest

from bench import registry
from bench.errors import BenchError


def plugin_file(folder: Path, name: str, doc: str = '"""A line."""\n') -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.py").write_text(doc, encoding="utf-8")


def test_names_come_from_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ROOT", tmp_path)
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


def test_a_collision_names_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    plugin_file(tmp_path / "methods", "same")
    plugin_file(tmp_path / "baselines", "same")
    with pytest.raises(BenchError, match=r"methods\.same and baselines\.same"):
        registry.entries("method")


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(BenchError, match=r"no method called 'dpds'\. Did you mean 'dpsd'\?"):
        registry.load("method", "dpds")


def test_folder_is_only_a_column() -> None:
    assert "no-defence" in registry.entries("method", "baselines")
    assert "no-defence" not in registry.entries("method", "methods")
    assert registry.load("method", "no-defence").__name__ == "NoDefence"
