"""An assessment bounds its memory, computes outputs once, resumes after a kill, and never uses damaged files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from assess_made import CLASSES, images, trained
from safetensors.torch import save_file
from torch import Tensor, nn

import bench
from bench.assess.attacks import finished
from bench.assess.records import ReadAs, read_records
from bench.assess.remembered import Remembered, number_records
from bench.assess.schema import Assessment
from bench.assess.training import Trainer
from bench.cli import main
from bench.data import to_float
from bench.nets import Classifier
from bench.storage.store import Store
from bench.teachers.weights import save

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
PEAK = """
import sys
from pathlib import Path
from bench.cli import main
main(["assess", "--scores", *sys.argv[1:]])
(line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
print(int(line.split()[1]) * 1024)
"""


def write_scores(folder: Path, count: int) -> list[str]:
    """CSV files with labels and ten logits of `count` members and as many others."""
    folder.mkdir()
    rng = np.random.default_rng(count)
    paths = [folder / "members.csv", folder / "others.csv"]
    for path, shift in zip(paths, (1, 0), strict=True):
        labels = rng.integers(0, 10, count)
        logits = rng.normal(size=(count, 10))
        logits[np.arange(count), labels] += 2 + shift
        header = ",".join(["label", *(f"logit_{place}" for place in range(10))])
        np.savetxt(path, np.column_stack([labels, logits]), ["%d", *["%.5f"] * 10], ",", header=header, comments="")
    return [str(path) for path in paths]


def peak_bytes(scores: list[str]) -> int:
    """The largest resident memory of an assessment, in its own process.

    It is read from the kernel's status: `getrusage` counts the memory of the process that started it, too.
    """
    ran = subprocess.run([sys.executable, "-c", PEAK, *scores], env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.count = trained(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += len(x)
        return self.body(x)


def test_outputs_on_known_records_are_computed_once(tmp_path: Path) -> None:
    records = read_records(images(40, 0).save(tmp_path / "m.npz"), ReadAs())
    body, x = Counting(), to_float(records.images)
    network = Remembered(body, number_records(records, None), CLASSES)
    found = network(x[:30])
    assert body.count == 30 and torch.equal(network(x[:30]), found) and body.count == 30
    both = network(torch.cat([x[25:], x[:5] + 0.001]))
    assert body.count == 30 + 10 + 5, "10 new records, and 5 images that are no records"
    expected = trained()(torch.cat([x[25:], x[:5] + 0.001]))
    assert torch.allclose(both, expected, atol=1e-5) and not torch.equal(both[15:], found[:5])


def test_an_assessment_queries_each_record_of_its_model_once(tmp_path: Path) -> None:
    members, others = images(60, 0).save(tmp_path / "m.npz"), images(90, 1).save(tmp_path / "n.npz")
    body = Counting()
    bench.assess(lambda x: body(x), members, others, attacks=["loss", "label-only"])
    tried, views = 2 + 3 * 60, 40 * (60 + 90)  # two images, and three normalisations of the members
    assert body.count == tried + 60 + 90 + views


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_memory_per_score_allows_a_million_in_2_gb(tmp_path: Path) -> None:
    """The peak of two sizes, extended to a million in a straight line; benchmarks/assess_time.py measures a million."""
    small, large = (peak_bytes(write_scores(tmp_path / str(count), count)) for count in (20_000, 120_000))
    assert small + 980_000 * (large - small) / 100_000 < 2e9


def start(folder: Path, report: str) -> subprocess.Popen[str]:
    """An assessment with reference models and a slow attack, in its own process."""
    command = [sys.executable, "-m", "bench", "assess", "--model", "a.safetensors", "--network", "dense-cnn"]
    command += ["--members", "m.npz", "--nonmembers", "n.npz", "--references", "4", "--attacks", "loss,lira,label-only"]
    return subprocess.Popen(
        [*command, "--report", report], cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=300)
    assert process.returncode in (0, 1, 3), said


@pytest.mark.thorough
@pytest.mark.parametrize("finished", ["reference-1/[0-9a-f]*/step.json", "label-only/[0-9a-f]*/step.json"])
def test_killed_assessment_resumes_with_same_result(tmp_path: Path, finished: str) -> None:
    save(tmp_path / "a.safetensors", trained())
    images(150, 0).save(tmp_path / "m.npz"), images(320, 1).save(tmp_path / "n.npz")
    killed, deadline = start(tmp_path, "killed"), time.time() + 300
    while not (kept := list((tmp_path / "killed" / "work" / "steps").glob(finished))):
        assert killed.poll() is None and time.time() < deadline, "the first part was never finished"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    assert not (tmp_path / "killed" / "assessment.json").exists()
    times = {path: path.stat().st_mtime_ns for path in kept}
    finish(start(tmp_path, "killed"))
    finish(start(tmp_path, "whole"))
    assert {path: path.stat().st_mtime_ns for path in kept} == times
    resumed, whole = (
        Assessment.model_validate_json((tmp_path / report / "assessment.json").read_text(encoding="utf-8"))
        for report in ("killed", "whole")
    )
    assert resumed.attacks == whole.attacks and resumed.verdict == whole.verdict


SCORES = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def fill_with_garbage(file: Path) -> None:
    file.write_bytes(b"\x93NUMPY garbage")


def change_size(file: Path) -> None:
    save_file({"scores": SCORES[:2].clone()}, file)


def replace_by_foreign_scores(file: Path) -> None:
    save_file({"scores": SCORES + 1}, file)


def replace_by_foreign_step(file: Path) -> None:
    other = next(each for each in file.parent.parent.iterdir() if each.is_dir() and each != file.parent)
    shutil.rmtree(file.parent)
    shutil.copytree(other, file.parent)


def test_invalid_folder_of_a_report_is_named_as_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "model.safetensors", trained())
    sets = [str(images(60, seed).save(tmp_path / f"{seed}.npz")) for seed in (0, 5)]
    work = tmp_path / "report" / "work"
    work.mkdir(parents=True)
    (work / "steps").write_text("")
    words = ["assess", "--model", str(tmp_path / "model.safetensors"), "--network", "dense-cnn", "--report"]
    assert main([*words, str(tmp_path / "report"), "--members", sets[0], "--nonmembers", sets[1]]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"bench: error: --report {work}") and "--out" not in error


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    "damage", [truncate, fill_with_garbage, change_size, replace_by_foreign_scores, replace_by_foreign_step, remove]
)
def test_damaged_scores_are_computed_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    made: list[int] = []
    said: list[str] = []
    network = nn.Linear(2, 2)

    def scores(seed: int) -> Tensor:
        def make() -> dict[str, Tensor]:
            made.append(seed)
            return {"scores": SCORES + 10 * seed}

        work = Store(tmp_path, notify=said.append)
        return finished(work, "label-only", [seed], [network], [SCORES], make)["scores"]

    scores(0)
    others = set(tmp_path.rglob("*.safetensors"))
    scores(1)
    assert (scores(1) == SCORES + 10).all() and made == [0, 1] and not said
    (file,) = set(tmp_path.rglob("*.safetensors")) - others
    damage(file)
    assert (scores(1) == SCORES + 10).all() and made == [0, 1, 1]
    assert len(said) == 1 and "damaged" in said[0] and "\n" not in said[0]


def test_damaged_weights_are_trained_again(tmp_path: Path) -> None:
    said: list[str] = []
    trainings = []

    def train(model: Classifier) -> None:
        trainings.append(1)
        with torch.no_grad():
            next(model.parameters()).fill_(0.25)

    def control() -> Classifier:
        trainer = Trainer((1, 8, 8), 3, work=Store(tmp_path, notify=said.append))
        images, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 3
        return trainer._once("control", images, labels, {}, train)

    first = control()
    file = next(tmp_path.rglob("*.safetensors"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    second = control()
    assert len(trainings) == 2 and len(said) == 1
    assert all((ours == theirs).all() for ours, theirs in zip(first.parameters(), second.parameters(), strict=True))
