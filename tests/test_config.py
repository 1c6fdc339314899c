"""Options of plug-ins: their values, their conditions, and their old names."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
from conftest import refuses

from bench import registry, renamed
from bench.boards.tables import read_options
from bench.config import Option, configure, field_docs, options, parse, plain
from bench.errors import BadOption, BenchError, UnknownName


@dataclass(frozen=True)
class Plugin:
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"steps": 7}}

    steps: int = 200
    """Iteration
    number T."""
    rate: float = 0.1
    """Learning rate gamma."""
    bound: Literal["normalise", "clip"] = "normalise"
    """How rows are bounded."""
    fresh: bool = False
    """Whether noise is fresh."""
    name: str = "x"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; expected at least 1")


@dataclass(frozen=True)
class Nested:
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Base:
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"width": 8}}
    only_with: ClassVar[dict[str, str]] = {"width": "layers>0"}

    layers: int = 1
    """Layers."""
    width: int = 64
    """Units of each."""


@dataclass(frozen=True)
class Conditional(Base):
    only_with: ClassVar[dict[str, str]] = {"a": "mode=offline|both tune=false"}

    mode: Literal["online", "offline", "both"] = "offline"
    """Which models."""
    tune: bool = True
    """Whether a is chosen."""
    a: float = 0.3
    """Weight."""


def test_options_have_help_type_default_and_choices() -> None:
    assert field_docs(Plugin)["steps"] == "Iteration number T." and "name" not in field_docs(Plugin)
    by_name = {option.name: option for option in options(Plugin)}
    assert by_name["bound"].choices == ("normalise", "clip")
    assert (by_name["steps"].kind, by_name["steps"].default) == (int, 200)


def test_nested_field_types_are_refused() -> None:
    with pytest.raises(TypeError, match="sizes"):
        options(Nested)


def test_configure_applies_defaults_tier_and_user_values() -> None:
    assert configure(Plugin, "paper", {}, "method").steps == 200
    assert configure(Plugin, "quick", {}, "method").steps == 7
    assert configure(Plugin, "quick", {"steps": "9", "fresh": "true"}, "method") == Plugin(steps=9, fresh=True)
    assert plain(Plugin())["rate"] == 0.1


@pytest.mark.parametrize(
    ("name", "text", "kind", "words"),
    [
        ("steps", "many", BadOption, ["--method.steps many"]),
        ("steps", "2.5", BadOption, ["--method.steps 2.5"]),
        ("steps", "9999999999", BadOption, ["2147483648"]),
        ("rate", "nan", BadOption, ["--method.rate nan"]),
        ("rate", "inf", BadOption, ["--method.rate inf"]),
        ("fresh", "maybe", BadOption, ["--method.fresh maybe"]),
        ("bound", "normalize", UnknownName, ["'normalise'", "clip"]),
        ("stepz", "1", UnknownName, ["'stepz'", "'steps'"]),
        ("steps", "0", BadOption, ["steps is 0", "1"]),
    ],
)
def test_configure_refuses_bad_values(name: str, text: str, kind: type[BenchError], words: list[str]) -> None:
    with refuses(kind, *words):
        configure(Plugin, "quick", {name: text}, "method")


@pytest.mark.parametrize(("texts", "value"), [("yes 1 TRUE on", True), ("no 0 Off false", False)])
def test_parse_accepts_spellings_of_a_boolean(texts: str, value: bool) -> None:
    option = Option("fresh", bool, False, (), "")
    assert [parse(option, text, "--x") for text in texts.split()] == [value] * 4


def test_options_solved_from_the_budget_are_marked() -> None:
    """Without the mark, a record would show a noise that was not added."""
    decided = 0
    for name in registry.entries("method"):
        for variant in registry.variants("method", name):
            for option in registry.describe("method", name, variant).options:
                says = any(f"solved from the budget {when}" in option.help for when in ("unless", "with --solve sigma"))
                assert option.solved == says, f"{name} {variant}: {option.name}"
                decided += option.solved
    assert decided > 50


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": "0.5"}, ["--attack.a 0.5", "tune true", "--attack.tune false"]),
        ({"a": "0.5", "tune": "false", "mode": "online"}, ["mode online", "--attack.mode offline|both"]),
        ({"width": "3", "layers": "0"}, ["--attack.width 3", "layers 0", "--attack.layers above 0"]),
    ],
)
def test_unused_option_is_refused(given: dict[str, str], words: list[str]) -> None:
    with refuses(BadOption, *words):
        configure(Conditional, "quick", given, "attack")


@pytest.mark.parametrize(
    "given",
    [
        {"a": "0.5", "tune": "false"},
        {"a": "0.5", "tune": "no", "mode": "both"},
        {"width": "3", "layers": "2"},
        {"a": "0.3", "layers": "0"},  # the default value needs no other option
    ],
)
def test_used_option_is_accepted(given: dict[str, str]) -> None:
    made = configure(Conditional, "quick", given, "attack")
    assert made.width == int(given.get("width", 8)) and made.a == float(given.get("a", 0.3))


RENAMED = [
    (name, variant, now, before)
    for name in registry.entries("method")
    for variant in registry.variants("method", name)
    for now, before in registry.describe("method", name, variant).recorded_as.items()
]


@pytest.mark.parametrize(("name", "variant", "now", "before"), RENAMED)
def test_renamed_option_exists(name: str, variant: str, now: str, before: str) -> None:
    assert renamed.RENAMED[before] == now
    known = {option.name: option for option in registry.describe("method", name, variant).options}
    option, _, value = now.partition("=")
    assert option in known and (before not in known) and (not value or value in known[option].choices)


def test_every_old_name_belongs_to_a_plugin() -> None:
    assert {before for *_, before in RENAMED} == set(renamed.RENAMED)


@pytest.mark.parametrize(
    ("name", "old", "new", "recorded"),
    [
        ("dpsd", {"questions": "96"}, {"queries": "96"}, {"questions": 96}),
        ("p3gm", {"mean": "paid"}, {"mean": "noisy"}, {"mean": "paid"}),
    ],
)
def test_old_name_is_read_with_a_notice(
    name: str, old: dict[str, str], new: dict[str, str], recorded: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    renamed._notify.cache_clear()
    cls = registry.load("method", name, "working")
    by_old = configure(cls, "smoke", old, "method")
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert by_old == configure(cls, "smoke", new, "method") and recorded.items() <= plain(by_old).items()
    assert not capsys.readouterr().err


def test_both_names_of_an_option_are_refused() -> None:
    with pytest.raises(BadOption):
        configure(registry.load("method", "dpsd", "working"), "smoke", {"questions": "9", "queries": "9"}, "method")


def test_boards_show_the_present_names() -> None:
    shown = read_options('{"method": {"questions": 3, "mean": "paid"}}')["method"]
    assert shown == {"queries": 3, "mean": "noisy"}
