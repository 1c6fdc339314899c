"""Terminals and names: a lost output, another encoding or an unusual folder name never loses a finished run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import BENCH, ROOT
from PIL import Image

from bench.cli import main, streams
from bench.pipeline import plots
from bench.storage.specs import canonical, digest
from bench.sweeps.run_sweep import Outcome, Summary

ODD = [os.fsdecode(b"caf\xe9"), "\N{GRINNING FACE}", "two\nlines", "$x^{", "a%b", "[bold]"]
"""Names of folders: Latin-1, an emoji, a line break, mathematics and markup of rich."""
ODD_PLACE = os.fsdecode(b"r\xe9sultats \n[x]")
LIGHT = [["list"], ["show", "dpsd"], ["doctor"], ["--help"], ["--version"], ["run", "--help"]]
OF_BOARDS = [
    ["leaderboard", "--out", str(ROOT), "--dataset", "digits"],
    ["choose", "--max-epsilon", "1", "--dataset", "digits", "--boards", str(ROOT / "leaderboards")],
    ["compare", "--paper", "dpsd", "--table", "Table I", "--boards", str(ROOT / "leaderboards")],
    ["compare", "--paper", "dpsd", "--table", "Table I", "--csv", "--boards", str(ROOT / "leaderboards")],
]
SMOKE = ["--tier", "smoke", "--teacher", "datalens", "--device", "cpu"]
RECIPE = """
title = "one cell"
[[grid]]
method = "no-defence"
dataset = "digits"
teacher = "datalens"
seeds = [0]
"""
AS_TYPED = """
import json, sys
from bench.cli import main
statuses = []
for arguments in json.loads(sys.argv[1]):
    try:
        statuses.append(main(arguments))
    except SystemExit as end:
        statuses.append(end.code or 0)
print("statuses", json.dumps(statuses), file=sys.stderr)
"""


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """The writing end of a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def run_with(stdout: int, *words: str, stderr: int | None = None) -> tuple[int, str]:
    """Return the exit status of `bench` with the given standard output, and its standard error."""
    done = subprocess.run(
        [*BENCH, *words], stdout=stdout, stderr=subprocess.PIPE if stderr is None else stderr, timeout=120
    )
    return done.returncode, (done.stderr or b"").decode()


@pytest.mark.parametrize("words", [["list"], ["--version"]], ids=" ".join)
def test_closed_pipe_has_status_141(words: list[str], closed_pipe: int) -> None:
    assert run_with(closed_pipe, *words) == (141, "")


def test_full_disk_behind_stdout_has_status_1() -> None:
    with open("/dev/full", "w") as full:
        status, said = run_with(full.fileno(), "list")
    assert status == 1 and said.count("\n") == 1 and "standard output" in said


@pytest.mark.thorough
def test_bad_input_has_status_2_without_streams(closed_pipe: int) -> None:
    with open("/dev/full", "w") as full:
        assert run_with(closed_pipe, "show", "nothing-of-this-name", stderr=full.fileno())[0] == 2


def test_closed_descriptors_are_not_reused_for_files() -> None:
    """A file that the command opens gets no number of a standard stream."""
    code = "import os; from bench.cli import streams; streams.make_lenient(); print(os.open('.', 0), flush=True)"
    reading, writing = os.pipe()
    code += f"; os.write({writing}, str(os.open('.', 0)).encode())"
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(["sh", "-c", shell, sys.executable, code], pass_fds=[writing], env=environment)
    os.close(writing)
    with os.fdopen(reading) as received:
        assert int(received.read()) > 2


def test_lenient_stream_stores_the_first_error(closed_pipe: int) -> None:
    with open(closed_pipe, "w", encoding="latin-1", closefd=False) as before:
        stream = streams.lenient(before)
    for _ in range(3):
        print("caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}", file=stream, flush=True)
    assert isinstance(stream.buffer.raw, streams.LenientFile)
    assert isinstance(stream.buffer.raw.lost, BrokenPipeError)


def test_lenient_stream_replaces_unknown_characters() -> None:
    reading, writing = os.pipe()
    with open(writing, "w", encoding="latin-1") as before, os.fdopen(reading, "rb") as received:
        print("caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}", file=streams.lenient(before), flush=True)
        assert received.read1() == b"caf\xe9 ?\n"


def test_lost_stderr_does_not_fail_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_pipe: int) -> None:
    """It raised in the middle of training, and the run was recorded as failed."""
    monkeypatch.chdir(tmp_path)
    with open(closed_pipe, "w", encoding="utf-8", closefd=False) as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        monkeypatch.setattr("sys.__stderr__", stderr)
        status = main(["run", "--method", "no-defence", *SMOKE])
        monkeypatch.undo()
    (record,) = tmp_path.glob("runs/records/[!.]*/record.json")
    assert status == 0 and json.loads(record.read_text())["status"] == "ok"


def test_names_in_any_encoding_have_text_and_hash() -> None:
    for name in ODD:
        text = canonical({"classes": [name], name: 1})
        assert json.loads(text.encode())["classes"][0].startswith(name[:1]) and digest({"name": name})


def test_summary_of_a_sweep_accepts_any_path(tmp_path: Path) -> None:
    path = tmp_path / ODD_PLACE / "summary.json"
    Summary("recipe", [Outcome(name, "ok", arguments=["--data-root", name]) for name in ODD]).write(path)
    assert [outcome.state for outcome in Summary.read(path).outcomes] == ["ok"] * len(ODD)


def test_pictures_accept_any_class_name(tmp_path: Path) -> None:
    images = torch.zeros(len(ODD), 1, 8, 8)
    plots.grid(tmp_path / "grid.png", " ".join(ODD), ODD, [(name, images) for name in ODD])
    assert (tmp_path / "grid.png").stat().st_size > 0


def image_folder(place: Path) -> Path:
    """A data set of toy images with a class of each odd name."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(ODD):
        (place / name).mkdir(parents=True)
        for each in range(30):
            pixels = rng.integers(0, 60, (16, 16), dtype=np.uint8) + 30 * number
            Image.fromarray(pixels.astype(np.uint8)).save(place / name / f"{each}.png")
    return place


@pytest.mark.thorough
def test_run_on_folders_of_odd_names_is_recorded(tmp_path: Path) -> None:
    """Classes, data set and --out have names that no UTF-8 holds, in a Latin-1 terminal without UTF-8 mode."""
    images = image_folder(tmp_path / ODD_PLACE / "set")
    out = tmp_path / ODD_PLACE / "runs"
    words = ["run", "--method", "no-defence", "--attack", "gmi", *SMOKE, "--dataset", f"imagefolder:{images}@16"]
    terminal = {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | terminal
    command = [*BENCH, *map(os.fsencode, [*words, "--out", str(out)])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (record,) = out.glob("records/[!.]*/record.json")
    assert json.loads(record.read_text(encoding="utf-8"))["status"] in ("ok", "inconclusive", "skipped")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run whose noise came from the system, and a recipe."""
    place = tmp_path_factory.mktemp("finished")
    words = ["run", "--method", "dpsd", "--noise", "os", *SMOKE, "--out", str(place / "runs")]
    assert subprocess.run([*BENCH, *words], cwd=ROOT, capture_output=True, timeout=300).returncode == 0
    (place / "recipe.toml").write_text(RECIPE)
    return place


def commands(finished: Path, place: Path) -> list[list[str]]:
    """Every command, as typed in an empty folder."""
    (run,) = (finished / "runs" / "records").glob("[!.]*")
    boards = ["--boards", str(ROOT / "leaderboards")]
    return [
        *LIGHT,
        *OF_BOARDS,
        ["run", "--method", "no-defence", *SMOKE, "--seeds", "0,1", "--out", str(place / "runs")],
        ["sweep", str(finished / "recipe.toml"), "--tier", "smoke", "--out", str(place / "runs"), "--jobs", "1"],
        ["audit", "mechanism", "--method", "dpsd", "--plays", "1000"],
        ["audit", "release", "--method", "no-defence", *SMOKE, "--canaries", "40", "--out", str(place / "runs")],
        ["export", str(run), str(place / "bundle")],
        ["verify", str(place / "bundle")],
        ["report", "--dataset", "digits", *boards, "--out", str(place / "site")],
    ]


OUTPUTS = {"closed pipe": 141, "full disk": 1, "closed": 0, "latin-1": 0}
"""The exit status of a finished command, by the kind of standard output."""


@pytest.mark.thorough
@pytest.mark.parametrize("output", OUTPUTS)
def test_every_command_finishes_for_any_stdout(output: str, finished: Path, tmp_path: Path, closed_pipe: int) -> None:
    typed = commands(finished, tmp_path)
    words = [sys.executable, "-c", AS_TYPED, json.dumps(typed)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment |= {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"} if output == "latin-1" else {}
    with open("/dev/full", "w") as full:
        stdout = {"closed pipe": closed_pipe, "full disk": full.fileno()}.get(output, subprocess.PIPE)
        if output == "closed":
            words = ["sh", "-c", 'exec "$@" >&-', "sh", *words]
        done = subprocess.run(words, cwd=tmp_path, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=500)
    said = done.stderr.decode(errors="replace")
    assert "Traceback" not in said and "Exception ignored" not in said, said
    statuses = json.loads(said.split("statuses ")[-1])
    lines = [" ".join(line) for line in typed]
    assert dict(zip(lines, statuses, strict=True)) == dict.fromkeys(lines, OUTPUTS[output])
    assert len(list(tmp_path.glob("runs/records/[!.]*/record.json"))) == 2
    assert list(tmp_path.glob("runs/audits/[!.]*/audit.json")) and (tmp_path / "site" / "index.html").is_file()
