"""Every method and every attack on a toy data set, through the runner: the pairs that cover both."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_toy

from bench import registry
from bench.pipeline import run
from bench.pipeline.job import load_job
from bench.pipeline.settings import Settings


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy data set with 160 training images."""
    return write_toy(tmp_path_factory.mktemp("toy"), 160)


EVERY = list(registry.entries("method"))
METHODS = {None: EVERY, "gmi": EVERY, "loss-threshold": ["dp-merf", "fed-dpsd", "no-defence"]}
"""Attack to the methods it is played on; other attacks on one that releases the teacher and one that does not."""
KINDS = {"class-moments", "dp-merf", "dp-sgd", "dpsd", "fed-dpsd", "no-defence", "pate"}
"""Of every kind of release one, to be attacked in the fast tests; the others make a record there all the same."""
PAIRS = [
    pytest.param(method, attack, marks=pytest.mark.slow if attack == "gmi" and method not in KINDS else ())
    for attack in [None, *registry.entries("attack")]
    for method in METHODS.get(attack, ["no-defence", "dpsd"])
]


@pytest.mark.parametrize(("method", "attack"), PAIRS)
def test_every_pair_gives_a_record(toy: Path, method: str, attack: str | None) -> None:
    settings = Settings(
        method=method, attack=attack, dataset=f"npz:{toy}/toy.npz", teacher="datalens", tier="smoke", out=toy / "runs"
    )
    outcome = run.run(load_job(settings), 0)
    record = outcome.record
    assert record.status in ("ok", "inconclusive", "skipped"), record.reason
    assert (record.reason == "") == (record.status == "ok")
    assert 0 <= record.metrics["accuracy"] <= 1  # type: ignore[operator]
    assert record.privacy["accounted"]["unit"] == "example"
    assert all((outcome.path / file).stat().st_size > 1000 for file in record.artifacts.values())
    if attack == "brep-mi":
        shares = [record.metrics[f"{prefix}without_start"] for prefix in ("", "teacher_", "random_")]
        assert all(0 <= share <= 1 for share in shares if share is not None) and None not in shares
    if attack and record.status != "skipped":
        main = "attack_accuracy" if registry.load("attack", attack).goal == "inversion" else "auc"
        assert 0 <= record.metrics[main] <= 1  # type: ignore[operator]
