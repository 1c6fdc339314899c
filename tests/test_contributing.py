"""The examples of CONTRIBUTING.md are installed as a third-party package, and run."""

import importlib
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Type, write_toy
from distributions import install

from bench import data, plugins, registry
from bench.cli import main

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
