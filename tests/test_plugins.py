"""The contract over the registry: every plug-in there is."""

from __future__ import annotations

from typing import Any

import pytest

from bench import registry, testing

NOT_RANDOM = {"no-defence"}


def contracts(kind: str, contract: type[Any]) -> list[Any]:
    """One test class per variant of each plug-in of a kind, attacks by their goal."""
    made = []
    both = [(each, variant) for each in registry.entries(kind) for variant in registry.variants(kind, each)]
    for name, variant in both:
        plugin = registry.load(kind, name, variant)
        if kind == "attack" and (plugin.goal == "membership") != (contract is testing.MembershipContract):
            continue
        members = {"plugin": plugin, "variant": variant} | ({"uses_randomness": False} if name in NOT_RANDOM else {})
        made.append(pytest.param(type(f"Test_{name}", (contract,), members)(), id=f"{name} {variant}"))
    return made


def checks(contract: type[Any]) -> list[str]:
    return [name for name in dir(contract) if name.startswith("test_")]


@pytest.mark.parametrize("check", checks(testing.MethodContract))
@pytest.mark.parametrize("plugin", contracts("method", testing.MethodContract))
def test_methods(plugin: testing.MethodContract, check: str) -> None:
    getattr(plugin, check)()


@pytest.mark.parametrize("check", checks(testing.AttackContract))
@pytest.mark.parametrize("plugin", contracts("attack", testing.AttackContract))
def test_attacks(plugin: testing.AttackContract, check: str) -> None:
    getattr(plugin, check)()


@pytest.mark.parametrize("check", checks(testing.MembershipContract))
@pytest.mark.parametrize("plugin", contracts("attack", testing.MembershipContract))
def test_membership_attacks(plugin: testing.MembershipContract, check: str) -> None:
    getattr(plugin, check)()
