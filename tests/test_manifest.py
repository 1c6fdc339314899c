"""The manifest equals the imported descriptions, and a plug-in that has changed since is imported."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import manifest, plugins, registry
from bench.config import Option, describe

EVERY = [(kind, name) for kind in manifest.DESCRIBED for name in registry.entries(kind)]


def test_manifest_is_current() -> None:
    """As `python -m bench.manifest` writes it."""
    written = json.loads(manifest.PATH.read_text(encoding="utf-8"))
    made = json.loads(json.dumps(manifest.build()))
    assert written.keys() == made.keys(), "run `python -m bench.manifest`"
    stale = [module for module in made if written[module] != made[module]]
    assert not stale, "run `python -m bench.manifest`"


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda given: given)
def test_description_of_the_manifest_is_that_of_the_class(kind: str, name: str) -> None:
    """`--help` and `bench show` read a plug-in, with the conditions of its options, before it is imported."""
    for variant in registry.variants(kind, name):
        imported = describe(registry.load(kind, name, variant))
        described = manifest.read(registry.find(kind, name).at(variant), pytest.fail)  # type: ignore[arg-type]
        assert described is not None and described == imported and described.options == imported.options
        assert registry.describe(kind, name, variant) == described


def other_values(option: Option) -> list[Any]:
    """Return values of an option that may change the needs of a method, some of them without a row in the manifest."""
    if option.choices:
        return [value for value in option.choices if value != option.default]
    other: dict[type, list[Any]] = {bool: [not option.default], int: [1, 4, 40], str: ["baseline", "no-such"]}
    return other.get(option.kind, [])


def test_needs_at_other_options_are_those_of_the_class() -> None:
    varied = set()
    for name in registry.entries("method"):
        for variant in registry.variants("method", name):
            described, cls = registry.describe("method", name, variant), registry.load("method", name, variant)
            for option, value in ((each.name, value) for each in described.options for value in other_values(each)):
                try:
                    made = cls(**{option: value})
                except ValueError:
                    continue
                assert described.needs is not None and described.needs({option: value}) == frozenset(made.needs)
                if frozenset(made.needs) != described.facts["needs"]:
                    varied.add((name, option))
    known = {("dpdfd", "data"), ("dpdfd", "teachers"), ("dgd", "images"), ("dgd", "prior")}
    assert known | {("class-moments", "teachers"), ("label-smoothing", "network")} <= varied


def test_needs_without_a_row_are_those_of_the_class() -> None:
    entry = registry.find("method", "dpdfd")
    described = manifest.read(entry, lambda: registry.load("method", "dpdfd"))
    assert described is not None and described.needs is not None
    with pytest.raises(ValueError):
        described.needs({"teachers": -1})


def test_changed_or_new_plugin_is_not_in_the_manifest(tmp_path: Path) -> None:
    entry = registry.find("method", "dpsd")
    text = plugins.ROOT.joinpath("methods/dpsd/dpsd.py").read_text(encoding="utf-8")
    changed = tmp_path / "dpsd.py"
    changed.write_text(f'"""Another first line.\n\n{text[3:]}', encoding="utf-8")
    assert manifest.read(replace(entry, file=changed), object) is None
    assert manifest.summary(replace(entry, file=changed)) == "Another first line."
    assert manifest.read(replace(entry, module="methods.new"), object) is None
    assert manifest.summary(entry) == entry.summary


def test_plugin_of_another_distribution_is_imported() -> None:
    foreign = plugins.Entry("foreign", "attack", "attacks", "foreign_attack:Foreign", None)
    assert manifest.read(foreign, object) is None and manifest.summary(foreign) == "from foreign_attack:Foreign"


@pytest.mark.parametrize("kind", sorted(plugins.KINDS))
def test_summaries_are_first_lines_of_docstrings(kind: str) -> None:
    for entry in plugins.entries(kind).values():
        assert manifest.summary(entry) == entry.summary and entry.summary and "\n" not in entry.summary
