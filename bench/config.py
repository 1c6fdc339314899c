"""Dataclass fields <-> command-line options <-> plain data. The only file that looks at field types.

Fields are flat: int, float, bool, str, or a Literal of strings. The string literal under a field is its help line. A
field that says how much is done, not what (steps, batches, widths, images, teachers, the network that fits them), is
marked as a size, `steps: Size[int] = 200`: these alone may a tier change. What else we change to make a printed
algorithm learn is a `Departure`, which the variant `working` takes and the variant `printed` leaves.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bench.errors import BenchError, unknown

TIERS = ("smoke", "quick", "paper")
Variant = Literal["printed", "working", "own"]
"""A paper's algorithm as printed; what we made of it so that it learns; an algorithm of this project."""
SIZE = "size"
Value = TypeVar("Value")
Size = Annotated[Value, SIZE]
_TRUE, _FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}


@dataclass(frozen=True)
class Departure:
    """One change of ours to a printed algorithm.

    Attributes:
        what: the change, in one line.
        why: what goes wrong without it.
        sets: the options that make the change, name to value; empty where the variant `working` has code of its own.
        worth: what an ablation measured, with its settings; "" = not measured.
    """

    what: str
    why: str
    sets: Mapping[str, Any] = field(default_factory=dict)
    worth: str = ""


@dataclass(frozen=True)
class Option:
    """One public hyper-parameter of a plug-in.

    Attributes:
        name: the field's name.
        kind: int, float, bool or str.
        default: the field's default, which is the paper's setting.
        choices: the allowed strings, empty if any value of `kind` will do.
        help: the string under the field.
        size: whether a tier may change it.
    """

    name: str
    kind: type
    default: Any
    choices: tuple[str, ...]
    help: str
    size: bool = False


def options(cls: type) -> list[Option]:
    """The options of a dataclass, in the order of its fields. Raises TypeError for a field type that is not flat."""
    hints, docs = get_type_hints(cls, include_extras=True), field_docs(cls)
    return [_option(f, hints[f.name], docs.get(f.name, "")) for f in dataclasses.fields(cls)]


def _option(field: dataclasses.Field[Any], hint: Any, doc: str) -> Option:
    if field.default is dataclasses.MISSING:
        raise TypeError(f"field {field.name} needs a default, which is the paper's setting")
    size = get_origin(hint) is Annotated and SIZE in get_args(hint)[1:]
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return Option(field.name, str, field.default, tuple(get_args(hint)), doc, size)
    if hint not in (int, float, bool, str):
        raise TypeError(f"field {field.name} must be int, float, bool, str or a Literal of strings, not {hint}")
    return Option(field.name, hint, field.default, (), doc, size)


def departures(cls: type) -> tuple[Departure, ...]:
    """What the variant `working` of a plug-in changes; () where there is no such variant."""
    return tuple(getattr(cls, "departures", ()))


def default_variant(cls: type) -> Variant:
    """The variant that is run where none is named."""
    return "own" if getattr(cls, "own", False) else "working" if departures(cls) else "printed"


def field_docs(cls: type) -> dict[str, str]:
    """The string literal directly under each field of a class or of the dataclasses it extends, as one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _own_field_docs(base)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, follower in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if (
            isinstance(follower, ast.Expr)
            and isinstance(follower.value, ast.Constant)
            and isinstance(follower.value.value, str)
        ):
            docs[statement.target.id] = " ".join(follower.value.value.split())
    return docs


def parse(option: Option, text: str, flag: str) -> Any:
    """The value of `option` written as `text`. Raises BenchError naming `flag`, what was given and what is expected."""
    if option.choices:
        if text not in option.choices:
            raise unknown(f"choice for {flag}", text, option.choices)
        return text
    if option.kind is bool:
        return _boolean(text, flag)
    if option.kind is str:
        return text
    try:
        value = option.kind(text)
    except ValueError:
        expected = "a whole number" if option.kind is int else "a number"
        raise BenchError(f"{flag} {text}: expected {expected} (default {option.default}); see `--help`") from None
    if not math.isfinite(value):
        raise BenchError(f"{flag} {text}: expected a finite number (default {option.default})")
    return value


def _boolean(text: str, flag: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise BenchError(f"{flag} {text}: expected true or false")


def configure(cls: type, tier: str, given: Mapping[str, str], prefix: str, variant: Variant | None = None) -> Any:
    """An instance of a plug-in: field defaults (the paper's), departures, sizes of `tier`, then what the user gave.

    Args:
        cls: the plug-in's dataclass, with a class variable `tiers`.
        tier: "smoke", "quick" or "paper".
        given: option name to text.
        prefix: "method", "attack" or "teacher", for messages.
        variant: whether departures are made ("working"); None = `default_variant`.

    Raises:
        BenchError: unknown option, wrong type, value outside its range.
    """
    known = {option.name: option for option in options(cls)}
    values: dict[str, Any] = {}
    if (variant or default_variant(cls)) == "working":
        for departure in departures(cls):
            values |= departure.sets
    values |= cls.tiers.get(tier, {})  # type: ignore[attr-defined]
    for name, text in given.items():
        if name not in known:
            raise unknown(f"option of --{prefix}", name, known)
        values[name] = parse(known[name], text, f"--{prefix}.{name}")
    try:
        return cls(**values)
    except ValueError as error:
        raise BenchError(f"--{prefix}: {error}") from None


def plain(instance: Any) -> dict[str, Any]:
    """The fields of a plug-in as plain data, for the record and the hash."""
    return dataclasses.asdict(instance)
