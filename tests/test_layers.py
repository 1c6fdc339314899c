"""Imports point one way; the command answers without torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from records_made import accounted, privacy

from bench.cli.sweep import SettingsParser
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.storage.records import RECORD, Record
from bench.storage.specs import canonical

ROOT = Path(__file__).resolve().parent.parent

FLOORS: list[set[str]] = [
    {"escape", "extensions"},
    {"errors", "fingerprint", "seeds", "progress", "validate", "workers"},
    {"core", "plugins", "renamed"},
    {"config", "data", "metrics", "nets", "privacy", "ranks", "storage"},
    {"declared", "manifest"},
    {"api", "priors", "registry"},
    {"boards", "distillation", "dp_training", "gan", "membership", "teachers"},
    {"bundle", "pipeline", "report", "testing"},
    {"assess", "sweeps"},
    {"interface"},
    {"cli"},
    {"__main__", "papers"},
]
"""The packages of `bench` from the lowest layer up; a package imports only from lower layers."""
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
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
CACHED = """
import sys
from bench.cli import main
assert main({0!r}) == 0
slow = {{"timm", "torchvision", "torch._dynamo", "torchmetrics", "sklearn", "pandas", "matplotlib", "dp_accounting"}}
slow = (slow | {{"scipy.signal", "scipy.optimize", "scipy.special", "bench.pipeline.stages"}}) & set(sys.modules)
assert not slow, slow
"""
TOOLBOXES = {"api", "config", "data", "errors", "nets", "priors", "privacy", "seeds", "validate"}
TOOLBOXES |= {"distillation", "dp_training", "gan", "membership", "teachers"}
KINDS = ("methods", "baselines", "attacks")
PLUGINS = sorted(path for kind in KINDS for path in (ROOT / kind).rglob("*.py"))


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
def test_bench_imports_only_lower_layers(path: Path) -> None:
    room = path.relative_to(ROOT / "bench").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    above = {other for other in rooms(path) - {room} if FLOOR[other] >= FLOOR[room]}
    assert not above, f"{room} is on floor {FLOOR[room]} and imports from its own or a higher one"
    assert not [name for name in imported(path) if name.split(".")[0] in KINDS]


def test_no_other_package_imports_the_papers() -> None:
    """`bench.extensions` loads it by name."""
    paths = [p for kind in ("bench", *KINDS) for p in (ROOT / kind).rglob("*.py")]
    paths = [path for path in paths if not path.is_relative_to(ROOT / "bench" / "papers")]
    assert len(paths) > 300 and not [path for path in paths if "papers" in rooms(path)]
    named = {path.name for path in paths if "bench.papers" in path.read_text(encoding="utf-8")}
    assert named == {"extensions.py"}


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: str(path.relative_to(ROOT)))
def test_plugins_import_only_toolboxes_and_their_folder(path: Path) -> None:
    assert rooms(path) <= TOOLBOXES
    own = ".".join(path.relative_to(ROOT).parts[:2])
    others = [n for n in imported(path) if n.split(".")[0] in KINDS and not n.startswith(f"{own}.")]
    assert not others, "a plug-in must not import another plug-in; shared code belongs in a package of bench/"


JUDGE = {"face_descriptor", "face_judge", "dlib", "face_recognition_models"}
"""The face judge and its modules."""
MAY_JUDGE = {"pipeline/face_judge.py", "pipeline/retrieval.py", "pipeline/inversion.py"}
MAY_JUDGE |= {"pipeline/reference_images.py", "pipeline/components.py", "cli/doctor.py"}
"""Files of `bench` that use the face judge, or check whether it is installed."""


def uses_judge(path: Path) -> bool:
    """Whether a file imports the face judge or its modules, or contains the name of such a module as text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return bool(JUDGE & ({part for name in imported(path) for part in name.split(".")} | texts))


def test_only_scoring_uses_the_face_judge() -> None:
    """It knows people whom the attacker does not, so it may only score reconstructions."""
    everywhere = sorted(path for kind in ("bench", *KINDS) for path in (ROOT / kind).rglob("*.py"))
    found = {path.relative_to(ROOT).as_posix() for path in everywhere if uses_judge(path)}
    assert found == {"bench/metrics/face_descriptor.py", *(f"bench/{name}" for name in MAY_JUDGE)}
    assert "metrics" not in TOOLBOXES and "pipeline" not in TOOLBOXES


@pytest.mark.parametrize("line", ["import dlib", "from bench.metrics import face_descriptor", "import_module('dlib')"])
def test_use_of_the_face_judge_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "attack.py").write_text(f"def run():\n    {line}\n")
    assert uses_judge(tmp_path / "attack.py")


@pytest.mark.parametrize("kind", KINDS)
def test_plugin_folders_have_only_plugins(kind: str) -> None:
    for path in (ROOT / kind).iterdir():
        if path.name.startswith("__"):
            continue
        assert path.suffix == ".py" or (path / f"{path.name}.py").exists(), f"{path} is not a plug-in"


LIGHT_COMMANDS = (
    *("--help", "list", "list datasets", "show dpsd", "show gmi", "show dp-sgd", "show pate", "doctor"),
    *(f"{name} --help" for name in ("run", "sweep", "report", "papers compare", "choose", "export", "verify")),
    *("assess --help", "audit --help"),
    *("audit release --help", "audit release --method dpsd --help", "run --method dpsd --help"),
    "run --method dp-sgd --attack gmi --teacher resnet18 --help",
    "run --method dpsd --variant printed --tier paper --help",
)


@pytest.mark.parametrize("line", LIGHT_COMMANDS)
def test_light_commands_import_nothing_heavy(line: str) -> None:
    run = subprocess.run([sys.executable, "-c", LIGHT.format(line.split())], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_cached_run_imports_no_slow_library(tmp_path: Path) -> None:
    """A record is written into the cache; the teacher is a timm network, whose name is looked up."""
    words = f"run --method dpsd --attack gmi --teacher resnet18 --tier smoke --out {tmp_path}"
    settings, _ = SettingsParser()(words.split())
    with closing(load_job(settings)) as job:
        spec = run_spec(job, 0)
    claimed = {"epsilon": 10.0, "delta": 1e-5, "unit": "query", "source": "DPSD, Theorem 1", "disputed": ""}
    report = privacy(accounted(9.5, "query"), claimed=claimed)
    record = Record(spec.hash, "ok", "", json.loads(canonical(asdict(spec))), student="datalens", privacy=report)
    (tmp_path / "records" / spec.hash).mkdir(parents=True)
    (tmp_path / "records" / spec.hash / RECORD).write_text(record.to_json(), encoding="utf-8")
    run = subprocess.run([sys.executable, "-c", CACHED.format(words.split())], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "(cached)" in run.stdout
