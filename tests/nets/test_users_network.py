"""A user's own network, named PACKAGE.MODULE:FUNCTION: found, identified by its source, called and checked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bench.errors import BenchError
from bench.nets import build, check, identify
from bench.nets.users_network import is_users_network

SHAPE, CLASSES = (3, 8, 8), 4
Write = Callable[[str, str], str]

NETWORK = """
import torch
from torch import nn

def network(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, 16), nn.ReLU(), nn.Linear(16, classes))

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))

def library_names(num_classes=1000, in_chans=1, depth=2):
    return network(num_classes, in_chans)

class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(192, classes)

    def forward(self, x):
        return self.layer(x.flatten(1))

one = plain()
number = 3

def same(): return one
def fixed():
    torch.manual_seed(0)
    return plain()
def text(): return "resnet"
def broken(): return 1 / 0
def wrong_classes(classes): return network(classes + 1, 3)
def pairs(classes):
    class Pair(Network):
        def forward(self, x):
            return super().forward(x), x
    return Pair(classes)
def grey(classes): return network(classes, 1)
def layerless():
    class Layerless(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(192, 4))

        def forward(self, x):
            return x.flatten(1) @ self.weight
    return Layerless()
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Write]:
    """Return a function that writes a module below the current folder and returns its unique import name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    package = f"mine_{abs(hash(request.node.nodeid))}"

    def written(name: str, source: str) -> str:
        path = tmp_path / package / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return f"{package}.{name}"

    yield written
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_is_users_network_excludes_library_names() -> None:
    assert is_users_network("package.module:function") and is_users_network("module:function#0123456789abcdef")
    assert not any(map(is_users_network, ("resnet18", "tv:resnet18", "small:resnet18", "small:tv:alexnet", "a:b:c")))
    assert identify("resnet18") == "resnet18"


@pytest.mark.parametrize("function", ["network", "plain", "library_names", "Network"])
def test_build_calls_the_users_function(write: Write, function: str) -> None:
    name = identify(f"{write('nets', NETWORK)}:{function}")
    torch.manual_seed(3)
    model = build(name, SHAPE, CLASSES)
    torch.manual_seed(3)
    again, other = build(name, SHAPE, CLASSES), build(name, SHAPE, CLASSES)
    first, second, third = (next(made.parameters()) for made in (model, again, other))
    assert torch.equal(first, second) and not torch.equal(first, third)
    assert model(torch.rand(5, *SHAPE)).shape == (5, CLASSES)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("same", "same"),
        ("fixed", "fixed"),
        ("text", "str"),
        ("broken", "ZeroDivisionError"),
        ("wrong_classes", "(2, 5)"),
        ("pairs", "tuple"),
        ("grey", "RuntimeError"),
        ("layerless", "layerless"),
    ],
)
def test_build_refuses_broken_functions(write: Write, function: str, value: str) -> None:
    name = identify(f"{write('nets', NETWORK)}:{function}")
    with pytest.raises(BenchError) as caught:
        build(name, SHAPE, CLASSES)
    message = str(caught.value)
    assert caught.value.code == "bad-plugin" and "\n" not in message and function in message and value in message


def test_identify_refuses_modules_without_the_function(write: Write) -> None:
    good, raising, partial = write("nets", NETWORK), write("raising", "1 / 0"), write("partial", "import no_such_thing")
    for name, code, value in (
        (f"{good}:netwrok", "unknown-name", "'network'"),
        (f"{good}:number", "unknown-name", "'number'"),
        ("no_such_package.nets:network", "not-found", "'no_such_package'"),
        (f"{good}_too:network", "not-found", f"'{good}_too'"),
        (f"{raising}:network", "bad-plugin", "ZeroDivisionError"),
        (f"{partial}:network", "bad-plugin", "no_such_thing"),
        ("math:sqrt", "bad-plugin", "math"),
    ):
        with pytest.raises(BenchError) as caught:
            identify(name)
        assert caught.value.code == code and value in str(caught.value) and "\n" not in str(caught.value)


def test_hash_covers_imported_local_modules(write: Write) -> None:
    write("parts", "WIDTH = 16")
    name = write("nets", f"from .parts import WIDTH\n{NETWORK}")
    before = identify(f"{name}:network")
    assert identify(f"{name}:network") == before == identify(before)
    write("unused", "WIDTH = 16")
    assert identify(f"{name}:network") == before
    write("parts", "WIDTH = 17")
    after = identify(f"{name}:network")
    assert after != before
    with pytest.raises(BenchError) as caught:
        identify(before)
    assert caught.value.code == "bad-plugin" and after.partition("#")[2] in str(caught.value)


def test_names_of_other_users_records_run_no_code(write: Write, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    module = write("trap", f"open({str(trace)!r}, 'w')\n{NETWORK}")
    for use in (check, lambda name: build(name, SHAPE, CLASSES)):
        with pytest.raises(BenchError) as caught:
            use(f"{module}:network#0123456789abcdef")
        assert caught.value.code == "unknown-name"
    assert not trace.exists() and module not in sys.modules
    identify(f"{module}:network")
    assert trace.exists(), "the trap works"
