"""Contract tests that apply to every method and every attack."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection
from typing import Any, ClassVar

from bench.config import TIERS, Variant, condition, configure, departures, options, parse


def expect(condition: object, message: str) -> None:
    """Fail the test unless a condition holds; unlike `assert`, also under `python -O`.

    Args:
        condition: true if the plug-in meets the contract.
        message: the fault and the expected behaviour, for the plug-in's author.

    Raises:
        AssertionError: the condition does not hold.
    """
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(message)


def expect_frozen_with_documented_fields(plugin: type[Any]) -> None:
    """Fail the test unless `plugin` is a frozen dataclass with a line of help under every field."""
    frozen = dataclasses.is_dataclass(plugin) and plugin.__dataclass_params__.frozen  # type: ignore[attr-defined]
    expect(frozen, f"{plugin.__name__} is not a frozen dataclass; write @dataclass(frozen=True)")
    undocumented = [option.name for option in options(plugin) if not option.help]
    expect(not undocumented, f"put a string literal under each field: {undocumented}")


def expect_known_tiers(tiers: Collection[str]) -> None:
    """Fail the test unless all tiers are those of the bench."""
    expect(set(tiers) <= set(TIERS), f"`tiers` are {sorted(tiers)}; expected some of {', '.join(TIERS)}")


class PluginContract:
    """Contract tests of a class that is a method or an attack: its options, tiers, departures and docstring."""

    plugin: ClassVar[type[Any]]
    """The class under test."""
    variant: ClassVar[Variant | None] = None
    """The variant of the plug-in; None = its default one."""

    def smoke(self) -> Any:
        """Build the plug-in with the options of tier smoke."""
        return configure(self.plugin, "smoke", {}, "plugin", self.variant)

    def test_fields_are_frozen_and_documented(self) -> None:
        expect_frozen_with_documented_fields(self.plugin)

    def test_module_names_paper_and_differences(self) -> None:
        doc = inspect.getdoc(inspect.getmodule(self.plugin)) or ""
        expect("Differs from the paper" in doc, "the module's docstring needs an end: 'Differs from the paper:'")
        expect(self.plugin.reference, "`reference` is empty; expected the paper, or 'none' and a reason")

    def test_tiers_are_known_and_valid(self) -> None:
        expect_known_tiers(self.plugin.tiers)
        for tier in TIERS:
            for variant in ("printed", "working"):
                configure(self.plugin, tier, {}, "plugin", variant)

    def test_tiers_change_only_sizes(self) -> None:
        sizes = {option.name for option in options(self.plugin) if option.size}
        for tier, changed in self.plugin.tiers.items():
            expect(set(changed) <= sizes, f"{tier}: mark as Size, or make a departure of {set(changed) - sizes}")

    def test_only_with_names_options_and_values(self) -> None:
        known = {option.name: option for option in options(self.plugin)}
        conditions = getattr(self.plugin, "only_with", {})
        expect(set(conditions) <= set(known), f"`only_with` names no options: {sorted(set(conditions) - set(known))}")
        for word in (word for each in conditions.values() for word in each.split()):
            name, sign, wanted = condition(word)
            values = [wanted] if sign == ">" else wanted.split("|")
            for value in values:
                parse(known[name], value, word)

    def test_departures_have_reasons_and_own_options(self) -> None:
        known = {option.name: option for option in options(self.plugin)}
        for departure in departures(self.plugin):
            for part, text in (("what", departure.what), ("why", departure.why)):
                expect(len(text) > 10, f"`{part}` of a departure is '{text}'; expected a sentence")
            for name, value in departure.sets.items():
                expect(value != known[name].default, f"{name} = {value} is the default: no departure")
                expect(not any(name in changed for changed in self.plugin.tiers.values()), f"a tier sets {name} too")
