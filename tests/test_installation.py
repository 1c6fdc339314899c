"""A wheel or an sdist installs the whole bench, which runs outside the checkout."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from bench import __version__

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; build_meta.{}(sys.argv[1])"


def test_the_version_is_the_same_wherever_it_stands() -> None:
    """In a release the changelog's "unreleased" becomes a date, and CITATION.cff gets the same one."""
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.findall(r"^(version|date-released): (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert first is not None
    version, date = first.groups()
    assert __version__ == version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert dict(cited) == {"version": version} | ({} if date == "unreleased" else {"date-released": date})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files that git tracks, so that a build leaves nothing behind and uses no stray file."""
    copy = tmp_path_factory.mktemp("checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


def build(kind: str, checkout: Path) -> Path:
    """The wheel or sdist of the checkout, built by the installed setuptools."""
    made = checkout / f"made-{kind}"
    made.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILD.format(f"build_{kind}"), str(made)]
    run = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    (found,) = made.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    return build("wheel", checkout)


def tracked(*folders: str) -> set[str]:
    """The modules below the folders, as git knows them."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split() if name.endswith(".py") and (ROOT / name).is_file()}


def test_the_wheel_holds_every_module_and_all_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert tracked("bench", "methods", "attacks", "baselines") <= names
    web = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bench" / "report" / "web").iterdir()}
    assert "bench/report/web/page.html" in web
    papers = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bench" / "papers").rglob("*.[jt]*[sl]")}
    assert papers == {"bench/papers/web/papers.js", "bench/papers/figures/figures.toml"}
    boards = {"papers/reported.csv", "papers/ablations/runs.csv", "releases/mnist.csv"}
    assert {"recipes/board.toml", *web, *papers, *(f"leaderboards/{name}" for name in boards)} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "leaderboards/records/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.thorough
def test_the_sdist_holds_what_it_is_tested_with(checkout: Path) -> None:
    sdist = build("sdist", checkout)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = tracked("bench", "methods", "attacks", "baselines", "tests", "benchmarks")
    assert wanted <= names
    assert {"LICENSE", "CITATION.cff", "README.md", "Makefile", "docs/privacy.md", "recipes/board.toml"} <= names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bench` of a fresh venv with the wheel; its dependencies are borrowed from the running environment.

    A line of a .pth file puts the borrowed directory last on the path; .pth files in that directory (such as an
    editable install of this checkout) are not read.
    """
    home = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    )
    (Path(asked.stdout.strip()) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home / "bin" / "bench"


def bench(command: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "BENCH_DATA")}
    return subprocess.run([command, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.thorough
def test_the_main_job_runs_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    where = bench(installed.with_name("python"), tmp_path, "-c", "import bench; print(bench.__file__)")
    assert str(installed.parent.parent) in where.stdout, "the checkout, not the wheel, is imported"
    run = bench(installed, tmp_path, *shlex.split("run --method dpsd --attack gmi --tier smoke"))
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "runs" / "leaderboards" / "releases" / "digits.csv").exists()
    assert list((tmp_path / "runs" / "records").glob("*/record.json"))


@pytest.mark.parametrize(
    "line",
    ["list", "show dpsd", "doctor", "papers compare --paper dpsd --table 'Table I'",
     "choose --max-epsilon 1 --dataset mnist"],
)  # fmt: skip
def test_other_commands_find_their_data(installed: Path, tmp_path: Path, line: str) -> None:
    run = bench(installed, tmp_path, *shlex.split(line))
    assert run.returncode == 0, run.stderr
