"""What every method and every attack must be, whatever it does."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar

from bench.config import TIERS, Variant, condition, configure, departures, options, parse


class PluginContract:
    """What holds for methods and for attacks."""

    plugin: ClassVar[type[Any]]
    variant: ClassVar[Variant | None] = None
    """Of the plug-in; None = its default one."""

    def smoke(self) -> Any:
        """The plug-in at tier smoke."""
        return configure(self.plugin, "smoke", {}, "plugin", self.variant)

    def test_is_frozen_with_documented_flat_fields(self) -> None:
        assert dataclasses.is_dataclass(self.plugin) and self.plugin.__dataclass_params__.frozen  # type: ignore[attr-defined]
        undocumented = [option.name for option in options(self.plugin) if not option.help]
        assert not undocumented, f"put a string literal under each field: {undocumented}"

    def test_module_names_reference_and_differences(self) -> None:
        doc = inspect.getdoc(inspect.getmodule(self.plugin)) or ""
        assert "Differs from the paper" in doc and self.plugin.reference

    def test_tiers_are_known_and_valid(self) -> None:
        assert set(self.plugin.tiers) <= set(TIERS)
        for tier in TIERS:
            for variant in ("printed", "working"):
                configure(self.plugin, tier, {}, "plugin", variant)

    def test_a_tier_changes_sizes_alone(self) -> None:
        sizes = {option.name for option in options(self.plugin) if option.size}
        for tier, changed in self.plugin.tiers.items():
            assert set(changed) <= sizes, f"{tier}: mark as Size, or make a departure of {set(changed) - sizes}"

    def test_conditions_of_options_name_options_and_their_values(self) -> None:
        known = {option.name: option for option in options(self.plugin)}
        conditions = getattr(self.plugin, "only_with", {})
        assert set(conditions) <= set(known)
        for word in (word for each in conditions.values() for word in each.split()):
            name, sign, wanted = condition(word)
            values = [wanted] if sign == ">" else wanted.split("|")
            for value in values:
                parse(known[name], value, word)

    def test_departures_say_why_and_set_what_no_tier_sets(self) -> None:
        known = {option.name: option for option in options(self.plugin)}
        for departure in departures(self.plugin):
            assert len(departure.what) > 10 and len(departure.why) > 10
            for name, value in departure.sets.items():
                assert value != known[name].default, f"{name} = {value} is the default: no departure"
                assert not any(name in changed for changed in self.plugin.tiers.values()), f"a tier sets {name} too"
