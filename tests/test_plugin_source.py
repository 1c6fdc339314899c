"""What is read from a plug-in's source is what importing the plug-in gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bench import plugins, registry
from bench.config import Departure, Option, describe, describe_source
from bench.plugins import Unreadable
from bench.plugins.light import is_light

EVERY = [(kind, name) for kind in ("method", "attack") for name in registry.entries(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda given: given)
def test_the_source_of_every_plugin_tells_what_its_class_does(kind: str, name: str) -> None:
    for variant in registry.variants(kind, name):
        entry = registry._of_variant(registry.find(kind, name), variant)
        assert entry.file is not None
        told = describe_source(plugins.read(entry.file, entry.module, "version", "tiers"))
        imported = describe(registry.load(kind, name, variant))
        assert told.options == imported.options
        assert told == imported
        assert registry.describe(kind, name, variant) == told


def other_values(option: Option) -> list[Any]:
    """Values of an option that may change what a method needs: its other choices, a number that is not 0, a prior."""
    if option.choices:
        return [value for value in option.choices if value != option.default]
    other: dict[type, list[Any]] = {bool: [not option.default], int: [4], str: ["baseline"]}
    return other.get(option.kind, [])


def test_what_a_method_needs_at_its_options_is_read_as_it_is_run() -> None:
    varied = set()
    for name in registry.entries("method"):
        for variant in registry.variants("method", name):
            told, cls = registry.describe("method", name, variant), registry.load("method", name, variant)
            for option, value in ((each.name, value) for each in told.options for value in other_values(each)):
                try:
                    made = cls(**{option: value})
                except ValueError:
                    continue
                assert told.needs is not None and told.needs({option: value}) == frozenset(made.needs)
                if frozenset(made.needs) != told.facts["needs"]:
                    varied.add((name, option))
    known = {("dpdfd", "data"), ("dpdfd", "teachers"), ("dgd", "images"), ("dgd", "prior")}
    assert known | {("class-moments", "teachers"), ("label-smoothing", "network")} <= varied


PLUGIN = '''
"""A plug-in.

Differs from the paper.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from bench.config import Departure, Size
from bench.privacy import Unit

SMOKE, QUICK = {"steps": 1}, {"steps": 2}
Norm = Literal["l1", "l2"]


@dataclass(frozen=True)
class Base(ABC):
    steps: Size[int] = 10
    """How
    many."""
    norm: Norm = "l2"
    """Of rows."""
    device: ClassVar[Any] = torch.device("cpu")


class Helper(torch.nn.Module):
    pass


def with_batch(batch: int, **sizes: int) -> dict[str, int]:
    """Sizes."""
    return {**sizes, "batch": batch}


@dataclass(frozen=True)
class Mine(Base):
    version: ClassVar[int] = 1 + 1
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": {**SMOKE, "batch": 1}, "quick": with_batch(4, **QUICK)}
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure("A change of the norm.", why=f"Else nothing of it is learnt in {QUICK['steps']} steps.",
                  sets={"norm": "l1"}),
    )
    batch: Size[int] = 64 if math.inf > 1 else 0
    """Images."""
    steps: Size[int] = 20
    mode: Size[Literal["a", "b"]] = "a"
    """Which."""

    @property
    def needs(self) -> frozenset[str]:
        if self.mode == "b":
            return frozenset()
        return frozenset({"teacher"} | ({"private_data"} if self.doubled() > 100 else set()))

    def doubled(self) -> int:
        return 2 * self.batch
'''


def told(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    return describe_source(plugins.read(path, "mine", "version", "tiers"))


def test_constants_bases_annotations_and_properties_are_read(tmp_path: Path) -> None:
    found = told(tmp_path, PLUGIN)
    assert [(o.name, o.kind, o.default, o.choices, o.help, o.size) for o in found.options] == [
        ("steps", int, 20, (), "How many.", True),
        ("norm", str, "l2", ("l1", "l2"), "Of rows.", False),
        ("batch", int, 64, (), "Images.", True),
        ("mode", str, "a", ("a", "b"), "Which.", True),
    ]
    assert found.tiers == {"smoke": {"steps": 1, "batch": 1}, "quick": {"steps": 2, "batch": 4}}
    assert found.departures == (
        Departure("A change of the norm.", "Else nothing of it is learnt in 2 steps.", {"norm": "l1"}),
    )
    assert found.facts == {"version": 2, "unit": "query", "needs": frozenset({"teacher", "private_data"})}
    assert found.doc == "A plug-in.\n\nDiffers from the paper." and found.default_variant == "working"
    assert found.values("quick") == {"steps": 2, "norm": "l1", "batch": 4, "mode": "a"}
    assert found.values("quick", "printed")["norm"] == "l2" and found.values("paper")["steps"] == 20


@pytest.mark.parametrize(
    "change",
    [
        ("1 + 1", "int(torch.ones(1))"),
        ("class Mine(Base)", "class Mine(Base, Helper)"),
        ("class Mine(Base)", "class Mine(torch.nn.Module)"),
        ("class Mine(Base)", "class Mine(Missing)"),
        ("version: ClassVar[int] = 1 + 1", "other: ClassVar[int] = 1"),
        ("import math", "import math\nQUICK |= {'steps': 3}"),
        ("import math", "import math\nif math.pi > 3:\n    SMOKE = {'steps': 3}"),
        ("math.inf > 1", "torch.cuda.is_available()"),
        ("Images.", 'Images."""\n    device_name: torch.device = \'cpu\'\n    """X.'),
        ("self.mode == ", "super().mode == "),
        ("math.inf > 1", "1 / 0"),
    ],
    ids=lambda change: change[1].splitlines()[-1],
)
def test_what_takes_an_import_to_know_is_not_guessed(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in PLUGIN
    with pytest.raises(Unreadable):
        told(tmp_path, PLUGIN.replace(*change))


def test_light_modules_import_the_standard_library_alone() -> None:
    assert is_light("bench.config") and is_light("bench.errors") and math.inf > 1
    assert not is_light("bench.api") and not is_light("bench.gan.gan_prior")
