"""Content hashes change with everything that a result depends on, and with nothing else."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from bench.fingerprint import fingerprint

CELL = """
from dataclasses import dataclass
SCALE = {scale}
def helper(x):
    return x {sign} SCALE
@dataclass(frozen=True)
class Mine:
    {field}: int = {default}
    def convert(self, x):
        # {comment}
        return [helper(each) for each in x]
"""
USUAL = {"scale": 2, "sign": "+", "field": "digits", "default": 1, "comment": "a remark"}


def cell(**changed: Any) -> type:
    """The class that a notebook's cell defines."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL.format(**USUAL | changed), "<cell>", "exec"), namespace)
    return namespace["Mine"]


@pytest.mark.parametrize("changed", [{"scale": 3}, {"sign": "-"}, {"default": 5}, {"field": "places"}], ids=str)
def test_class_with_other_content_has_another_hash(changed: dict[str, Any]) -> None:
    assert fingerprint(cell()) != fingerprint(cell(**changed))


def test_class_defined_again_has_the_same_hash() -> None:
    assert fingerprint(cell()) == fingerprint(cell(comment="another remark"))
    code = f"{CELL.format(**USUAL)}\nfrom bench.fingerprint import fingerprint\nprint(fingerprint(Mine))"
    command = [sys.executable, "-c", code]
    made = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(made) == 1, "in two other processes"


def closed_over(value: object) -> Callable[[], object]:
    return lambda: value


def test_values_in_closures_and_defaults_count() -> None:
    assert fingerprint(closed_over(1)) == fingerprint(closed_over(1)) != fingerprint(closed_over(2))


class Net(nn.Module):
    def __init__(self, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer = nn.Linear(4, 3)
        self.register_buffer("offset", torch.zeros(3), persistent=False)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.layer(x.flatten(1)) + self.offset


class Other(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).flip(1)


def changed_by(change: Callable[[Net], object]) -> Net:
    net = Net()
    change(net)
    return net


@pytest.mark.parametrize(
    "changed",
    [
        Net(2.0),
        Net(seed=1),
        Other(),
        changed_by(lambda net: net.offset.add_(1)),
        changed_by(lambda net: net.register_forward_hook(lambda module, inputs, output: output * 2)),
    ],
    ids=range(5),
)
def test_network_with_another_result_has_another_hash(changed: nn.Module) -> None:
    assert fingerprint(Net()) != fingerprint(changed)


def test_equal_networks_have_the_same_hash_in_any_mode() -> None:
    assert fingerprint(Net().train()) == fingerprint(Net().eval())


@pytest.mark.parametrize(
    "pair",
    [
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        ([1, [2]], [[1], 2]),
        (1, 1.0),
        ("1", 1),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
    ],
    ids=repr,
)
def test_values_that_differ_have_other_hashes(pair: tuple[object, object]) -> None:
    assert fingerprint(pair[0]) != fingerprint(pair[1])


def test_unreadable_object_has_a_hash_of_its_own() -> None:
    @dataclass
    class Holder:
        held: object

    unreadable = Holder(each for each in "ab")
    assert fingerprint(unreadable) != fingerprint(unreadable)


def test_object_that_holds_itself_is_read() -> None:
    held: list[object] = []
    held.append(held)
    assert fingerprint(held) == fingerprint(held)
