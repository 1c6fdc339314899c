import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Refused
from distributions import install

from bench import plugins, registry
from bench.errors import BadPlugin, BenchError


def plugin_file(folder: Path, name: str, doc: str = '"""A line."""\n') -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.py").write_text(doc, encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which plug-ins are looked for."""
    monkeypatch.setattr(plugins, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Function that installs the module of an attack `foreign` as another distribution."""

    def made(module: str, text: str, more: str = "") -> None:
        install(tmp_path, f"[bench.attacks]\nforeign = {module}\n{more}", **{module: text})
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return made


def test_names_are_those_of_files_and_folders(root: Path) -> None:
    plugin_file(root / "methods", "fed_dpsd", '"""First line.\n\nMore."""\nraise SystemExit\n')
    plugin_file(root / "methods", "_private")
    for folder, file in (("in_parts", "in_parts"), ("in_parts", "network"), ("no_plugin", "network")):
        plugin_file(root / "methods" / folder, file)
    found = registry.entries("method")
    assert list(found) == ["fed-dpsd", "in-parts"]
    assert found["fed-dpsd"].summary == "First line." and found["fed-dpsd"].working is None
    assert found["in-parts"].module == "methods.in_parts.in_parts"
    plugin_file(root / "methods" / "in_parts", "working")
    assert registry.entries("method")["in-parts"].working == "methods.in_parts.working"


def test_collision_names_both_modules(root: Path) -> None:
    for folder in ("methods", "baselines"):
        plugin_file(root / folder, "same")
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


def test_entry_points_of_other_distributions_are_found(foreign: Callable[..., None]) -> None:
    foreign("foreign_attack", PLUGIN, "foreign.working = foreign_attack:Foreign\n")
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


def test_module_without_a_plugin_class_is_refused(foreign: Callable[..., None]) -> None:
    foreign("foreign_empty", "")
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
    source: str, why: str, foreign: Callable[..., None], refused: Refused
) -> None:
    foreign("foreign_broken", source)
    error = refused("show foreign")
    assert "'foreign'" in error and f"foreign_broken ({why}" in error
    with pytest.raises(BadPlugin) as caught:
        registry.load("attack", "foreign")
    assert caught.value.__cause__ is not None


def test_entries_can_be_limited_to_a_folder() -> None:
    assert "no-defence" in registry.entries("method", "baselines")
    assert "no-defence" not in registry.entries("method", "methods")
    assert registry.load("method", "no-defence").__name__ == "NoDefence"
