"""The speed benchmarks run, print their tables, and assign time to the right parts."""

import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import registry
from bench.nets import Classifier
from bench.storage.specs import digest
from bench.workers import cores

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
NAP = 0.03


def benchmark(line: str) -> str:
    """The output of a script run as a user runs it, on one thread."""
    script, *arguments = line.split()
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def cells(output: str) -> list[list[str]]:
    """The table's rows, in words."""
    lines = output.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    return [line.split() for line in lines[rule + 1 :]]


@pytest.mark.slow
def test_benchmark_convert_reports_every_method() -> None:
    sizes = "--shape 1x16x16 --classes 4 --scale 1 --repeats 1 --precision bf16 --dataset toy"
    rows = cells(benchmark(f"convert.py --tier smoke --teacher datalens {sizes}"))
    assert [row[0] for row in rows[::2]] == list(registry.entries("method", folder="methods"))
    for row in rows:
        method, variant, steps, rate = row[:4]
        assert variant in ("plain", "bf16") and int(steps) > 0 and float(rate.replace(",", "")) > 0
        outside, optimiser, noise, rest = (float(word.rstrip("%")) for word in row if word.endswith("%"))
        assert min(optimiser, noise) >= 0 and rest > 0 and outside <= 100, method
        assert abs(optimiser + noise + rest - outside) < 0.2, method


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="two processes need two cores")
def test_benchmark_ranks_reports_teacher_and_dp_sgd() -> None:
    rows = cells(benchmark("ranks.py --teacher datalens --batch 16 --shape 1x16x16 --steps 1 --repeats 1"))
    assert [row[:2] for row in rows] == [["teacher", "datalens"], ["DP-SGD", "tanh-cnn"]]


@pytest.mark.thorough
def test_benchmark_ensemble_reports_three_modes() -> None:
    sizes = "--teachers 3 --batch 4 --shape 1x16x16 --repeats 1 --seconds 0.01 --net shard-cnn"
    rows = cells(benchmark(f"ensemble.py {sizes}"))
    assert [row[1] for row in rows] == ["one", "stacked", "in"]
    assert rows[0][2:4] == ["1", "128"] and rows[1][2:4] == ["3", "4"]
    assert [row[-1] in ("yes", "no") for row in rows] == [False, True, True]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Function that imports a script, as the scripts import one another."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("convert --shape 28x28", "CxHxW"),
        ("convert --method dpsd --set nonsense=1", "--set nonsense"),
        ("ensemble --net scatter-linear --teachers 2", "closed form"),
    ],
)
def test_benchmark_bad_option_is_one_line(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, line: str, complaint: str
) -> None:
    name, *rest = line.split()
    monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / f"{name}.py"), *rest])
    with pytest.raises(SystemExit, match=rf"^{name}\.py: .*{complaint}") as stopped:
        script("_timing").run(script(name).main)
    assert len(str(stopped.value).splitlines()) == 1


class Nap(torch.autograd.Function):
    """The identity, which takes NAP seconds forward and 2 NAP backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(NAP)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        time.sleep(2 * NAP)
        return gradients[0]


class Sleeper(nn.Module):
    """A linear layer on either side of a nap."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Nap.apply(self.first(x.flatten(1))))


@pytest.mark.thorough
@pytest.mark.parametrize("differentiable_input", [False, True])
def test_watch_attributes_time_to_networks(script: Callable[[str], Any], differentiable_input: bool) -> None:
    timing = script("_timing")
    clock = timing.Clock(torch.device("cpu"))
    watch, network = timing.Watch(clock), Classifier(Sleeper())
    loop = timing.Loop(clock, watch)
    images = torch.rand(5, 1, 2, 2, requires_grad=differentiable_input)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with watch.installed(compiled=False):
        network(images)
        with loop.track("naps", 2) as advance:
            for _ in range(2):
                made = Nap.apply(images * 1)
                loss = Nap.apply(network(made)).sum() + network(made).square().sum()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    network(images)
                advance(1)
    inside, outside = watch.seconds("networks"), 2 * (2 * NAP + 2 * NAP + (2 * NAP if differentiable_input else 0))
    assert inside >= 2 * (3 * NAP + 2 * 2 * NAP) and loop.seconds - inside >= outside
    assert 0 < watch.seconds("optimiser") < loop.seconds - inside
    assert watch.images[network] == 2 * 3 * 5 and loop.steps == 2
    assert Classifier.forward.__module__ == "bench.nets.zoo"
    assert not hasattr(Classifier.forward, "__wrapped__")


@pytest.fixture
def ablations(script: Callable[[str], Any]) -> Any:
    """leaderboards/papers/ablations/runs.csv from the records of a sweep."""
    return script("ablations")


def ablation_rows(method: str, version: str, seeds: str, accuracy: str = "0.5000") -> list[dict[str, str]]:
    usual = {"dataset": "digits", "options": "{}", "accuracy": accuracy, "teacher_accuracy": "0.9000"}
    return [{"method": method, "version": version, "seed": seed} | usual for seed in seeds]


def test_merged_replaces_repeated_runs(ablations: Any) -> None:
    found = ablations.merged(ablation_rows("dpsd", "3", "01"), ablation_rows("dpsd", "3", "12", "0.7000"))
    assert [(row["seed"], row["accuracy"]) for row in found] == [("0", "0.5000"), ("1", "0.7000"), ("2", "0.7000")]


def test_merged_keeps_runs_of_other_versions(ablations: Any) -> None:
    before = ablation_rows("dpsd", "10", "0") + ablation_rows("dgd", "2", "0")
    found = ablations.merged(before, ablation_rows("dpsd", "9", "01"))
    versions = [(row["method"], row["seed"], row["version"]) for row in found]
    assert versions == [("dgd", "0", "2"), ("dpsd", "0", "10"), ("dpsd", "0", "9"), ("dpsd", "1", "9")]


def write_records(folder: Path, changes: list[tuple[str, str, dict[str, float]]]) -> None:
    """Write a record for each method, attack and metrics; the attack's own metrics are left out."""
    boards = importlib.import_module("boards")
    for number, (method, attack, metrics) in enumerate(changes):
        made = boards.record(number)
        made.spec["release"]["method"], made.spec["attack"]["attack"] = method, attack
        made.hash = digest(made.spec)
        for name in ("teacher_attack_accuracy", "teacher_auc"):
            made.metrics.pop(name, None)
        made.metrics |= {"teacher_accuracy": 0.9, **metrics}
        path = folder / "records" / f"{number:016x}" / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(made.to_json(), encoding="utf-8")


def test_ablations_omit_runs_with_an_attack(ablations: Any, tmp_path: Path) -> None:
    write_records(tmp_path, [("dpsd", attack, {"accuracy": 0.81234}) for attack in ("random-guess", "gmi")])
    found = ablations.rows([tmp_path])
    assert [(row["method"], row["seed"], row["accuracy"]) for row in found] == [("dpsd", "0", "0.8123")]
    assert ablations.rows([tmp_path], "attack") == [], "attacks on students are not ablations of the attack"


def test_ablations_of_attacks_are_those_on_the_teacher(ablations: Any, tmp_path: Path) -> None:
    scores = ({"teacher_attack_accuracy": 0.9}, {"teacher_auc": 0.61}, {})
    write_records(tmp_path, [("no-defence", "an-attack", {"accuracy": 0.8, **each}) for each in scores])
    found = ablations.rows([tmp_path], "attack")
    assert [(row["attack"], row["success"]) for row in found] == [("an-attack", "0.9000"), ("an-attack", "0.6100")]


@pytest.fixture
def pairs(script: Callable[[str], Any]) -> Any:
    """Pairs are compared only where both compute the same thing, and a ratio says which one is slower."""
    return script("peer_pairs._pair")


@pytest.mark.thorough
def test_measure_ratio_above_one_is_slower(pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]
    monkeypatch.setattr(pairs.time, "process_time", lambda: spent[0])

    def taking(seconds: float) -> Any:
        return lambda: spent.append(spent.pop() + seconds)

    first: list[int] = []
    slow, fast = taking(6.0), taking(2.0)
    pair = pairs.Pair("p", "q", slow, fast, lambda ours, theirs: None, 1.2, lambda: first.append(1))
    times = pairs.measure(pair, 3)
    assert times.ratios == [3.0] * 3 and times.ratio == 3.0 and len(first) == 1 + 2 * 3
    assert pairs.measure(pairs.Pair("p", "q", fast, slow, lambda ours, theirs: None, 1.2), 1).ratio == 1 / 3


@pytest.mark.thorough
def test_measure_different_results_are_refused(pairs: Any) -> None:
    def check(ours: float, theirs: float) -> None:
        pairs.near("number", ours, theirs, relative=1e-3)

    pairs.measure(pairs.Pair("p", "q", lambda: 1.0005, lambda: 1.0, check, 1.2), 1)
    for other in (1.002, float("nan"), float("inf")):
        with pytest.raises(pairs.Different, match=r"1\.0"):
            pairs.measure(pairs.Pair("p", "q", lambda o=other: o, lambda: 1.0, check, 1.2), 1)


@pytest.mark.thorough
def test_same_weights_detects_other_clipping(pairs: Any) -> None:
    training = importlib.import_module("peer_pairs.private_training")

    def clipping_twice_as_tight(*given: Any) -> None:
        training.bare_loop(*given[:-1], given[-1] / 2)

    start, private = training.network(), training.records(256)
    for route in ("func", "layers"):
        training.same_weights(start, private, training.our_loop(route), training.bare_loop)
    with pytest.raises(pairs.Different):
        training.same_weights(start, private, training.our_loop("func"), clipping_twice_as_tight)


def test_slopes_are_exponents_of_powers(script: Callable[[str], Any]) -> None:
    slopes = script("growth").slopes
    assert slopes((1, 2, 4, 8), (5.0, 10.0, 20.0, 40.0)) == (1.0, 1.0)
    assert slopes((16, 32), (1.0, 4.0)) == (2.0, 2.0) and slopes((1, 10, 100), (1.0, 1.0, 10.0)) == (0.5, 1.0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium: apt-get install chromium")
def test_benchmark_report_times_every_page() -> None:
    out = benchmark("report.py --runs 12 --repeats 1")
    assert out.startswith("12 runs: made in ")
    rows = cells(out)
    assert rows[0][:2] == ["front", "page"] and len(rows) == 10
    assert all(float(row[-5]) > 0 and int(row[-1].replace(",", "")) > 100 for row in rows), "seconds, elements"


@pytest.mark.thorough
def test_benchmark_client_ensembles_reports_combinations() -> None:
    (line,) = benchmark("client_ensembles.py --dataset digits --student shard-cnn --tier smoke").splitlines()
    assert line.startswith("digits shard-cnn seed 0: client 0 ")
    parts = line.split(": ", 1)[1].split(";")
    expected = ["client 0", "client 1", "mean of logits", "mean of probabilities", "votes", "averaged weights"]
    assert [part.rsplit(" ", 2)[0].strip() for part in parts] == expected
    assert all(0 <= float(part.split()[-2]) <= 100 for part in parts)
