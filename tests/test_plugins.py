"""The contract tests of every registered plug-in, and runs of every method and attack on toy data of every kind."""

from pathlib import Path
from typing import Any

import pytest
from conftest import toy_job, write_toy

from bench import registry, testing
from bench.pipeline import run

NOT_RANDOM = {"no-defence"}
READS_BATCH_NORM = {"dp-dfd"}
ONCE_MORE = {"test_unneeded_teacher_has_no_effect", "test_release_depends_on_the_seed"}


def contracts(kind: str, contract: type[Any]) -> list[Any]:
    """One test class per plug-in of a kind and variant of it, attacks by their goal."""
    made = []
    for name in registry.entries(kind):
        known = registry.variants(kind, name)
        for variant in known:
            plugin = registry.load(kind, name, variant)
            if kind == "attack" and contract is not _of_attack(plugin):
                continue
            members: dict[str, Any] = {"plugin": plugin, "variant": variant}
            members |= {"uses_randomness": False} if name in NOT_RANDOM else {}
            members |= {"teacher_arch": "evaluator-cnn"} if name in READS_BATCH_NORM else {}
            label = name if len(known) == 1 else f"{name}-{variant}"
            made.append(pytest.param(type(f"Test_{label}", (contract,), members)(), id=label))
    return made


def _of_attack(plugin: type[Any]) -> type[Any]:
    if plugin.goal == "inversion":
        return testing.AttackContract
    return testing.ReleaseContract if hasattr(plugin, "compare") else testing.MembershipContract


def checks(contract: type[Any]) -> list[Any]:
    """Its tests; those that run a plug-in once more are thorough ones."""
    names = [name for name in dir(contract) if name.startswith("test_")]
    return [pytest.param(name, marks=pytest.mark.thorough if name in ONCE_MORE else ()) for name in names]


OF_ATTACKS = (testing.AttackContract, testing.MembershipContract, testing.ReleaseContract)


def pairs(kind: str, *named: type[Any]) -> list[Any]:
    """Each plug-in of a kind with each test of its contract."""
    every = [(plugin, check) for one in named for plugin in contracts(kind, one) for check in checks(one)]
    return [pytest.param(*plugin.values, *check.values, id=f"{plugin.id}-{check.values[0]}", marks=check.marks)
            for plugin, check in every]  # fmt: skip


@pytest.mark.parametrize(("plugin", "check"), pairs("method", testing.MethodContract))
def test_methods(plugin: Any, check: str) -> None:
    getattr(plugin, check)()


@pytest.mark.parametrize(("plugin", "check"), pairs("attack", *OF_ATTACKS))
def test_attacks(plugin: Any, check: str) -> None:
    getattr(plugin, check)()


OF_KIND: dict[str, dict[str, Any]] = {
    "grey": {"train": 160},
    "colour of two classes": {"train": 160, "shape": (3, 32, 32), "classes": 2},
    "many classes": {"train": 600, "shape": (1, 28, 28), "classes": 40, "test": 120},
    "colour at 64 pixels": {"train": 200, "shape": (3, 64, 64), "classes": 9, "test": 60},
}
"""Toy data of several kinds: sizes, and training images."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with a toy data set of each kind, and the runs on it, which share steps."""
    return {kind: write_toy(tmp_path_factory.mktemp("toy"), **given) for kind, given in OF_KIND.items()}


EVERY = list(registry.entries("method"))
METHODS = {None: EVERY, "gmi": EVERY, "loss-threshold": ["dp-merf", "fed-dpsd", "no-defence"]}
"""Attack to the methods that it is run on; other attacks run on no-defence and dpsd."""
KINDS = {"class-moments", "dp-merf", "dp-sgd", "dpsd", "fed-dpsd", "no-defence", "pate"}
"""One method of every kind of release, attacked in the fast tests; the others only need a record there."""
PAIRS = [
    (method, attack)
    for attack in [None, *registry.entries("attack")]
    for method in METHODS.get(attack, ["no-defence", "dpsd"])
]
FAST = {"colour of two classes": {"dpsd", "private-features"}, "many classes": {"rr"}}
"""Methods that the fast tests run on other kinds, without an attack."""


def is_slow(kind: str, method: str, attack: str | None) -> bool:
    """Fast tests run all pairs on grey images, except that gmi attacks one method of each kind."""
    if kind == "grey":
        return attack == "gmi" and method not in KINDS
    return attack is not None or method not in FAST.get(kind, ())


CELLS = [
    pytest.param(kind, method, attack, marks=pytest.mark.slow if is_slow(kind, method, attack) else ())
    for kind in OF_KIND
    for method, attack in PAIRS
    if kind == "grey" or attack is None or method in ("no-defence", "dp-merf")
]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "method", "attack"), CELLS)
def test_run_every_method_with_attacks_is_ok(
    folders: dict[str, Path], kind: str, method: str, attack: str | None
) -> None:
    outcome = run.run(toy_job(folders[kind], method, attack), 0)
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
