"""Unit group from settings to record: refused inputs, and the unit and bound in what a run reports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Refused

import bench
from bench import registry
from bench.api import refuse_groups
from bench.config import configure
from bench.data import OwnDataset
from bench.errors import BadData, BadOption, BenchError, BudgetError
from bench.privacy import Budget, Unit

COUNT, CLASSES = 240, 4
PROTECTING = {"dp-sgd", "private-features"}
SMALL = {"dp-sgd": {"batch": 20, "steps": 2}, "private-features": {"steps": 2}}


def images(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    labels = np.arange(count) % CLASSES
    noise = np.random.RandomState(seed).randint(0, 90, (count, 16, 16))
    return (noise + 40 * labels[:, None, None]).astype(np.uint8), labels


def own(groups: Any = None, groups_test: Any = None) -> OwnDataset:
    return bench.data.from_arrays(
        *(*images(COUNT, 0), *images(40, 1)), name="mine", groups=groups, groups_test=groups_test
    )


def run(out: Path, dataset: Any, method: str = "dp-sgd", **given: Any) -> bench.RunResult:
    options = {"method_options": SMALL.get(method), "unit": "group", "epsilon": 3.0, "account": "accounted"}
    return bench.run(method, dataset=dataset, tier="smoke", out=out, **{**options, **given})


@pytest.mark.parametrize("method", sorted(registry.entries("method")))
def test_only_methods_that_protect_groups_take_the_unit(method: str) -> None:
    plugin = configure(registry.load("method", method), "smoke", {}, "plugin")
    if method in PROTECTING:
        refuse_groups(plugin, Budget(1.0, unit=Unit.GROUP), method)
        return
    with pytest.raises(BudgetError, match=method) as caught:
        refuse_groups(plugin, Budget(1.0, unit=Unit.GROUP), method)
    assert "\n" not in str(caught.value)
    refuse_groups(plugin, Budget(1.0), method)


FEW, MANY = np.arange(COUNT) % 3, np.arange(COUNT) // 4
OTHERS = np.arange(40) + 99


@pytest.mark.parametrize(
    ("groups", "groups_test", "given", "error", "named"),
    [
        (None, None, {}, BadData, "groups.csv"),
        (MANY, np.arange(40), {}, BadData, "40 groups"),
        (FEW, OTHERS, {}, BadData, "3 private groups"),
        (MANY, OTHERS, {"method_options": {"batch": 100}}, BadOption, "--method.batch"),
        (MANY, OTHERS, {"method": "ts-adp", "method_options": None}, BudgetError, "ts-adp"),
        (MANY, OTHERS, {"unit": "example", "method_options": {"max_per_group": 9}}, BadOption, "9"),
        *((MANY, OTHERS, {"method_options": {"max_per_group": n}}, BenchError, "max_per_group") for n in (0, 257)),
    ],
)
def test_unit_group_is_refused_before_training(
    groups: Any, groups_test: Any, given: dict[str, Any], error: type[BenchError], named: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        run(tmp_path, own(groups, groups_test), **given)
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "records").exists() and not list(tmp_path.glob("steps/release/*"))


@pytest.mark.parametrize("command", ["run --method dp-sgd", "run --method pate", "audit release --method no-defence"])
def test_command_refuses_unit_group_with_status_2(here: Path, refused: Refused, command: str) -> None:
    error = refused(command, "--tier smoke --unit group --dataset digits")
    assert "--unit group" in error or command.startswith("audit")


@pytest.mark.thorough
@pytest.mark.parametrize("method", sorted(PROTECTING))
def test_run_reports_the_unit_and_the_bound(method: str, tmp_path: Path) -> None:
    options = {**SMALL[method], "max_per_group": 3}
    found = run(tmp_path, own(MANY, np.arange(40) + 99), method, method_options=options)
    privacy = found.privacy
    assert privacy.claimed is not None and privacy.accounted.unit == privacy.claimed.unit == "group"
    assert list(privacy.accounted_units) == ["group"] and privacy.accounted.epsilon <= 3
    texts = [privacy.claimed.source, *(entry.why for entry in privacy.events)]
    assert all("at most 3 records" in text for text in texts)
    assert found.record.to_plain()["provenance"]["images"]["private_groups"] == 60
