"""The contract tests of every registered plug-in."""

from typing import Any

import pytest

from bench import registry, testing

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


CONTRACTS = {
    testing.MethodContract: "method",
    testing.AttackContract: "attack",
    testing.MembershipContract: "attack",
    testing.ReleaseContract: "attack",
}


def pairs(*kinds: type[Any]) -> list[Any]:
    """Each plug-in with each test of its contract."""
    every = [(plugin, check) for kind in kinds for plugin in contracts(CONTRACTS[kind], kind) for check in checks(kind)]
    return [pytest.param(*plugin.values, *check.values, id=f"{plugin.id}-{check.values[0]}", marks=check.marks)
            for plugin, check in every]  # fmt: skip


@pytest.mark.parametrize(("plugin", "check"), pairs(testing.MethodContract))
def test_methods(plugin: Any, check: str) -> None:
    getattr(plugin, check)()


@pytest.mark.parametrize(("plugin", "check"), pairs(*(kind for kind in CONTRACTS if CONTRACTS[kind] == "attack")))
def test_attacks(plugin: Any, check: str) -> None:
    getattr(plugin, check)()
