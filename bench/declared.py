"""Check the declarations of a method or an attack of another package before anything is trained."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

from bench.config import TIERS, departures, options
from bench.errors import BadPlugin
from bench.privacy.budget import Unit

NEEDS = frozenset(
    {"teacher", "private_data", "teacher_ensemble", "public_data", "pretrained_weights", "teacher_network"}
)
VALUES: dict[str, dict[str, frozenset[str]]] = {
    "method": {"unit": frozenset(map(str, Unit))},
    "attack": {
        "goal": frozenset({"inversion", "membership"}),
        "access": frozenset({"label", "scores", "weights", "samples", "generator"}),
    },
}
"""Allowed values of class variables. Properties may depend on the settings and are not checked."""
METHODS = {"method": (("check",), ("convert",)), "attack": (("skip_reason",), ("run", "infer", "compare"))}
"""Methods that a class must have, one of each group."""
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
    """Check the declarations of a class of another package. Raises BadPlugin for the first that is missing or wrong."""
    of_members = _faults_of_members(kind, cls) if kind in VALUES else ()  # a teacher recipe has none to check
    faults = [*of_members, *_faults_of_options(cls)]
    if faults:
        raise BadPlugin(
            f"{kind} '{name}' of another package: {cls.__module__}.{cls.__qualname__} {faults[0]}; fix the plug-in "
            "(CONTRIBUTING.md)"
        )


def _faults_of_members(kind: str, cls: type[Any]) -> Iterator[str]:
    """Yield what is wrong with the class variables and the methods of a method or an attack."""
    if type(cls.version) is not int or cls.version < 1:
        yield f"has version {cls.version!r}; expected a whole number of at least 1"
    if not isinstance(getattr(cls, "reference", None), str):
        yield "has no `reference`; expected its source in words"
    for variable, known in VALUES[kind].items():
        found = inspect.getattr_static(cls, variable, None)
        if not isinstance(found, property) and found not in known:
            yield f"has {variable} {found!r}; expected one of {', '.join(sorted(known))}"
    if kind == "method":
        needs = inspect.getattr_static(cls, "needs", None)
        if not isinstance(needs, property) and not (isinstance(needs, frozenset) and needs <= NEEDS):
            yield f"has needs {needs!r}; expected a frozenset of {', '.join(sorted(NEEDS))}"
    for group in METHODS[kind]:
        if not any(callable(getattr(cls, method, None)) for method in group):
            yield f"has no method `{'` or `'.join(group)}`"


def _faults_of_options(cls: type[Any]) -> Iterator[str]:
    """Yield what is wrong with the fields of a plug-in, and with the fields that tiers and departures set."""
    try:
        known = {option.name: option for option in options(cls)}
    except TypeError as error:
        yield f"cannot be configured: {error}"
        return
    for tier, values in cls.tiers.items():
        if tier not in TIERS:
            yield f"has a tier {tier!r}; expected some of {', '.join(TIERS)}"
        for field in values:
            if field not in known:
                yield f"has no field `{field}`, which its tier {tier} sets"
            elif not known[field].size:
                yield f"sets `{field}` at tier {tier}, but a tier may only set sizes; declare it as `Size[...]`"
    for departure in departures(cls):
        for field, value in {**departure.without, **departure.sets}.items():
            if field not in known:
                yield f"has no field `{field}`, which one of its departures sets"
            elif known[field].choices and value not in known[field].choices:
                yield f"sets `{field}` to {value!r} by a departure; expected one of {', '.join(known[field].choices)}"
