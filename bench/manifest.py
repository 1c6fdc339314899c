"""Descriptions of this repository's plug-ins in a file, so that `list`, `show` and `--help` import none of them.

    python -m bench.manifest        # writes bench/manifest.json; tests/test_manifest.py fails if it is outdated

Importing a plug-in imports torch, which takes seconds. Plug-ins that changed since the manifest was written, that are
missing in it, or that belong to another distribution are imported instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, cast

from bench.config import Departure, Description, Option, describe
from bench.core import JsonObject
from bench.plugins import KINDS, Entry, class_of, entries

PATH = Path(__file__).with_name("manifest.json")
DESCRIBED = ("method", "attack", "teacher recipe")
"""Kinds of plug-ins with options."""
KIND_OF = {kind.__name__: kind for kind in (int, float, bool, str)}
ZERO, POSITIVE, OTHER, PREFIX = "0", ">0", "*", ":"
"""Notation in a table of needs: a number that is 0, a number above 0, a text that the table does not list, and the end
of a text that means all texts that begin with it."""
Table = list[tuple[list[str], list[str]]]
"""Rows of a table of needs: values of the options that `needs` reads, and the resulting needs."""


def read(entry: Entry, load: Callable[[], type]) -> Description | None:
    """Return the description of a plug-in; None if the manifest does not have it or its file has changed.

    Args:
        load: imports the class, for needs that the manifest does not list.
    """
    found = _contents().get(entry.module)
    if entry.file is None or found is None or found["sha256"] != _sha256(entry.file):
        return None
    options = tuple(
        Option(**{**each, "kind": KIND_OF[each["kind"]], "choices": tuple(each.get("choices", ()))})
        for each in found["options"]
    )
    return Description(
        doc=found["doc"],
        options=options,
        tiers=found["tiers"],
        departures=tuple(Departure(**each) for each in found["departures"]),
        default_variant=found["default_variant"],
        facts={name: frozenset(fact) if name == "needs" else fact for name, fact in found["facts"].items()},
        recorded_as=found["recorded_as"],
        needs=None if found["needs"] is None else partial(_look_up_needs, found["needs"], options, load),
    )


def summary(entry: Entry) -> str:
    """Return the first line of a plug-in's docstring, if known without importing it."""
    if entry.file is None:
        return f"from {entry.module}"
    found = _contents().get(entry.module)
    if found is not None and found["sha256"] == _sha256(entry.file):
        return str(found["doc"]).partition("\n")[0]
    return entry.summary


def build() -> dict[str, JsonObject]:
    """Build the manifest's content from the imported plug-ins: module to description."""
    found = {}
    for kind in KINDS:
        for entry in entries(kind).values():
            variants = (entry, entry.at("working")) if entry.working else (entry,)
            for each in variants if entry.file is not None else ():
                found[each.module] = _encode(each, kind in DESCRIBED)
    return found


def write() -> None:
    """Write the manifest."""
    PATH.write_text(json.dumps(build(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def is_plugin(cls: type) -> bool:
    """Whether a class has options: a dataclass with `version` and `tiers`."""
    return dataclasses.is_dataclass(cls) and hasattr(cls, "version") and hasattr(cls, "tiers")


@cache
def _contents() -> dict[str, JsonObject]:
    try:
        found: dict[str, JsonObject] = json.loads(PATH.read_text(encoding="utf-8"))
    except FileNotFoundError:  # the manifest is being written for the first time
        return {}
    return found


@cache
def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _encode(entry: Entry, has_options: bool) -> JsonObject:
    """Return the description of a plug-in as plain data."""
    file = cast(Path, entry.file)
    if not has_options:
        return {"sha256": _sha256(file), "doc": entry.summary}
    cls = class_of(entry, is_plugin, "one dataclass with `version` and `tiers`")
    described = describe(cls)
    found = {field.name: getattr(described, field.name) for field in dataclasses.fields(Description)}
    found["options"] = [{**_non_empty(option), "kind": option.kind.__name__} for option in described.options]
    found["departures"] = [_non_empty(departure) for departure in described.departures]
    found["facts"] = {name: sorted(v) if isinstance(v, frozenset) else v for name, v in described.facts.items()}
    found["needs"] = None if described.needs is None else _tabulate_needs(cls, described)
    return {"sha256": _sha256(file), **found}


def _non_empty(value: Option | Departure) -> JsonObject:
    """Return the fields that are not empty."""
    plain = dataclasses.asdict(value)
    kept = ("name", "kind", "default", "help", "what", "why")
    return {name: each for name, each in plain.items() if each or name in kept}


def _tabulate_needs(cls: type, described: Description) -> JsonObject:
    """Return the needs for every choice of the options that `needs` reads: numbers that are 0 and that are not,
    texts."""
    constants: set[str] = set()  # the texts with which the property `needs` may compare an option
    found = getattr(cls, "needs", None)
    if isinstance(found, property) and found.fget is not None:
        code, names = found.fget.__code__, found.fget.__globals__
        constants |= {each for each in code.co_consts if isinstance(each, str)} - {found.fget.__doc__}
        constants |= {names[name] for name in code.co_names if isinstance(names.get(name), str)} - {found.fget.__doc__}
    values: dict[str, list[Any]] = {}
    options = {option.name: option for option in described.options}
    while unread := _options_read_by_needs(cls, values) - values.keys():
        for name in sorted(unread):
            values[name] = _examples(options[name], constants)
    rows: Table = []
    for combination in product(*values.values()):
        given = dict(zip(values, combination, strict=True))
        try:
            needs = sorted(cls(**given).needs)
        except ValueError:  # an invalid combination of options
            continue
        rows.append(([_notation(options[name], value, constants) for name, value in given.items()], needs))
    return {"reads": list(values), "texts": sorted(constants), "rows": rows}


def _look_up_needs(
    table: Mapping[str, Any], options: Iterable[Option], load: Callable[[], type], values: Mapping[str, Any]
) -> frozenset[str]:
    """Return the needs at given values of options and defaults of the others, from a table or else from the class."""
    known = {option.name: option for option in options}
    wanted = [_notation(known[n], values.get(n, known[n].default), set(table["texts"])) for n in table["reads"]]
    for row, needs in table["rows"]:
        if row == wanted:
            return frozenset(needs)
    return frozenset(load()(**values).needs)


def _options_read_by_needs(cls: type, values: Mapping[str, list[Any]]) -> set[str]:
    """Return the options that the property `needs` reads at any combination of these values."""
    names, read = {field.name for field in dataclasses.fields(cls)}, set[str]()

    def watched(self: Any, name: str) -> Any:
        if name in names:
            read.add(name)
        return object.__getattribute__(self, name)

    for combination in product(*values.values()):
        try:
            instance = cls(**dict(zip(values, combination, strict=True)))
        except ValueError:
            continue
        object.__setattr__(instance, "__class__", type(cls.__name__, (cls,), {"__getattribute__": watched}))
        _ = instance.needs
    return read


def _examples(option: Option, texts: Iterable[str]) -> list[Any]:
    """Return values of an option that cover all rows of a table of needs."""
    if option.choices:
        return list(option.choices)
    if option.kind is bool:
        return [False, True]
    if option.kind is str:
        listed = [text + OTHER if text.endswith(PREFIX) else text for text in sorted(texts)]
        return list(dict.fromkeys([*listed, OTHER]))
    return [option.kind(0), option.default or option.kind(1)]


def _notation(option: Option, value: Any, texts: Iterable[str]) -> str:
    """Return a value in the notation of a table of needs; a text that begins with one such as "timm:" is that one."""
    if option.choices or option.kind is bool:
        return str(value)
    if option.kind is str:
        prefix = next((text for text in texts if text.endswith(PREFIX) and value.startswith(text)), OTHER)
        return value if value in texts else prefix
    return ZERO if value == 0 else POSITIVE if value > 0 and math.isfinite(value) else repr(value)


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{PATH}: {len(build())} modules\n")
