"""The contract tests of this project's own networks."""

from __future__ import annotations

import pytest

from bench import nets, testing


@pytest.mark.thorough
@pytest.mark.parametrize("check", [name for name in dir(testing.NetworkContract) if name.startswith("test_")])
@pytest.mark.parametrize("name", nets.own_names())
def test_contract(name: str, check: str) -> None:
    getattr(type(f"Test_{name}", (testing.NetworkContract,), {"name": name})(), check)()


def test_names_are_those_that_releases_were_made_of() -> None:
    known = {"datalens", "evaluator-cnn", "dgd-cnn", "shard-cnn", "scatter-linear", "convnet"}
    assert known | {"tanh-cnn", "relu-cnn", "tanh-vgg", "relu-vgg"} <= set(nets.own_names())
