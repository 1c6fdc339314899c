"""Imports point one way, the command answers without torch, and a run works without assertions."""

import ast
import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import ROOT
from records_made import accounted, privacy

from bench import testing
from bench.cli.sweep import SettingsParser
from bench.metrics.metric import Metric
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.storage.records import RECORD, Record
from bench.storage.specs import canonical
from bench.validate import instance, present

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


SHIPPED = ("bench", "methods", "baselines", "attacks", "leaderboards", "recipes", "docs")
SMOKE = ["run", "--method", "dpsd", "--attack", "gmi", "--tier", "smoke", "--teacher", "datalens", "--device", "cpu"]


def removed_lines(source: str) -> list[int]:
    """Lines of a file with an `assert` or with `__debug__`, both of which `python -O` removes."""
    nodes = ast.walk(ast.parse(source))
    return [n.lineno for n in nodes if isinstance(n, ast.Assert) or (isinstance(n, ast.Name) and n.id == "__debug__")]


def test_shipped_code_has_no_assert() -> None:
    files = [path for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 400
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    suspects = {path: text for path, text in texts.items() if "assert" in text or "__debug__" in text}
    removed = [f"{path.relative_to(ROOT)}:{line}" for path, text in suspects.items() for line in removed_lines(text)]
    assert removed == [], "raise BenchError, RuntimeError or TypeError (`bench.validate.present`, `instance`)"
    assert removed_lines("x = 1\nassert x\nif __debug__:\n    x = 2\n") == [2, 3]


def test_present_and_instance_return_or_refuse() -> None:
    assert present(0, "number") == 0 and instance(True, int, "number") is True
    with pytest.raises(RuntimeError, match=r"number"):
        present(None, "number")
    with pytest.raises(TypeError, match=r"number.*str.*int"):
        instance("1", int, "number")


def test_contract_refuses_a_metric_that_varies() -> None:
    values = iter((0.5, 0.6))

    class Broken(testing.MetricContract):
        metric = Metric("varied", "varied", "Another number each time.", compute=lambda given: next(values))

    with pytest.raises(AssertionError, match=r"0\.5, then 0\.6"):
        Broken().test_value_is_finite_and_reproducible()


TWICE = """
import sys
from bench.cli import main
status = main([*sys.argv[1:], "--student", "vgg11", "--out", "refused"])
sys.exit(main(sys.argv[1:]) if status == 2 else f"expected status 2, and got {status}")
"""
"""The smoke run, after one whose student cannot take the images."""


def python(place: Path, *arguments: str) -> str:
    """Return python's stderr, run in a new folder with this bench and one thread."""
    place.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stderr


def results(place: Path) -> tuple[dict[str, object], bytes]:
    """The record of the only run, without where and when it was made, and its student's weights."""
    (record,) = place.glob("runs/records/[!.]*/record.json")
    (student,) = place.glob("runs/steps/release/[!.]*/model.safetensors")
    kept = {key: value for key, value in json.loads(record.read_text()).items() if key != "provenance"}
    return kept, student.read_bytes()


@pytest.mark.thorough
def test_run_is_the_same_without_assertions(tmp_path: Path) -> None:
    """Refused settings are refused before training."""
    python(tmp_path / "with", "-m", "bench", *SMOKE)
    said = python(tmp_path / "without", "-O", "-c", TWICE, *SMOKE)
    assert said.startswith("bench: error: ") and "'vgg11'" in said, said
    assert not (tmp_path / "without" / "refused" / "steps").exists()
    assert results(tmp_path / "with") == results(tmp_path / "without")
