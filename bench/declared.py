"""Check the declarations of a method or an attack of another package before anything is trained."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from bench.config import TIERS, departures, options
from bench.errors import BadPlugin
from bench.privacy.budget import Unit

NEEDS = frozenset({"teacher", "private_data", "teacher_ensemble", "public_data", "teacher_network"})
VALUES: dict[str, dict[str, frozenset[str]]] = {
    "method": {"unit": frozenset(map(str, Unit))},
    "attack": {
        "goal": frozenset({"inversion", "membership"}),
        "access": frozenset({"label", "scores", "weights", "samples", "generator"}),
    },
}
"""Allowed values of class variables; properties may depend on the settings and are not checked."""
CALLED = {"method": (("check",), ("convert",)), "attack": (("skip_reason",), ("run", "infer", "compare"))}
"""A class must have one member of each group."""


OLD_NAMES = {"attack": {"applicable": "skip_reason"}}
"""Renamed methods of plug-ins: old name to new one."""


def read_old_names(kind: str, cls: type[Any]) -> None:
    """Alias each method that a class has under an old name to its new name, with a DeprecationWarning."""
    for old, new in OLD_NAMES.get(kind, {}).items():
        if hasattr(cls, old) and not hasattr(cls, new):
            where = f"{cls.__module__}.{cls.__qualname__}"
            warnings.warn(f"{where}: rename its method `{old}` to `{new}`", DeprecationWarning, stacklevel=2)
            setattr(cls, new, getattr(cls, old))


def expect(kind: str, name: str, cls: type[Any]) -> None:
    """Raise BenchError if a class of another package misses a required member, or declares an unknown value."""
    of_kind = (_variables(kind, cls), _calls(kind, cls)) if kind in VALUES else ()  # a teacher recipe has none
    for fault in (*of_kind, _tiers(cls) or _departures(cls)):
        if fault:
            raise BadPlugin(
                f"{kind} '{name}' of another package: {cls.__module__}.{cls.__qualname__} {fault}; fix the plug-in "
                "(CONTRIBUTING.md)"
            )


def _variables(kind: str, cls: type[Any]) -> str:
    if type(cls.version) is not int or cls.version < 1:
        return f"has version {cls.version!r}; expected a whole number from 1 on"
    if not isinstance(getattr(cls, "reference", None), str):
        return "has no `reference`; expected its source in words"
    for variable, known in VALUES[kind].items():
        found = inspect.getattr_static(cls, variable, None)
        if not isinstance(found, property) and found not in known:
            return f"has {variable} {found!r}; expected one of {', '.join(sorted(known))}"
    if kind == "method":
        needs = inspect.getattr_static(cls, "needs", None)
        if not isinstance(needs, property) and not (isinstance(needs, frozenset) and needs <= NEEDS):
            return f"has needs {needs!r}; expected a frozenset of {', '.join(sorted(NEEDS))}"
    return ""


def _calls(kind: str, cls: type[Any]) -> str:
    for group in CALLED[kind]:
        if not any(callable(getattr(cls, called, None)) for called in group):
            return f"has no method `{'` or `'.join(group)}`"
    return ""


def _tiers(cls: type[Any]) -> str:
    try:
        known = {option.name: option for option in options(cls)}
    except TypeError as error:
        return f"cannot be configured: {error}"
    for tier, values in cls.tiers.items():
        if tier not in TIERS:
            return f"has a tier {tier!r}; expected some of {', '.join(TIERS)}"
        for field in values:
            if field not in known:
                return f"has no field `{field}`, which its tier {tier} sets"
            if not known[field].size:
                return f"sets `{field}` at tier {tier}, which is no size (`Size[...]`): a tier is a size"
    return ""


def _departures(cls: type[Any]) -> str:
    known = {option.name: option for option in options(cls)}
    for departure in departures(cls):
        for field, value in {**departure.without, **departure.sets}.items():
            if field not in known:
                return f"has no field `{field}`, which one of its departures sets"
            if known[field].choices and value not in known[field].choices:
                return f"sets `{field}` to {value!r} by a departure; expected one of {', '.join(known[field].choices)}"
    return ""
