"""Conversion between the dataclass fields of a plug-in, command-line options and plain data.

Each plug-in has a `Description`. `bench.manifest` stores those of this project, so that commands need not import the
plug-ins.

Fields are flat: int, float, bool, str, or a Literal of strings. The string literal under a field is its help line. A
field that sets the amount of work (steps, batches, widths, images, teachers, the network that fits them) is
marked as a size, `steps: Size[int] = 200`: a tier may change only these. A noise that the budget decides is marked
`sigma: Solved[float] = 1.0`: a user cannot give both. Other changes that make a printed algorithm learn are
`Departure`s: the variant `working` applies them and the variant `printed` does not.

An option that is ignored under some settings is listed in the class variable `only_with`, option to condition, as in
`{"tail": "mode=offline", "auxiliary_weight": "auxiliary=blur|mask", "hidden": "layers>0 tune=false"}`: all words of a
condition must hold. If it is given but would be ignored, it is refused.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bench.errors import BadOption, unknown
from bench.renamed import rename, with_present_names
from bench.validate import instance

TIERS = ("smoke", "quick", "standard", "paper")
"""Tiers of sizes: for a test, for minutes on two cores, for about an hour there, and the papers' sizes."""
DATASET = "digits"
"""The default data set of a run."""
STUDENT = "datalens"
"""The default network of a student."""
EVALUATOR = "evaluator-cnn"
"""The default network of the evaluator, which scores reconstructions."""
Variant = Literal["printed", "working", "own"]
"""A paper's algorithm as published; the same with changes that make it learn; an algorithm of this project."""
SIZE = "size"
LARGEST = 2**31
"""Limit of whole numbers: no size is larger, and torch accepts few larger ones."""
Value = TypeVar("Value")
Values = dict[str, Any]
"""Value of each option of a plug-in, by name: an int, float, bool or str."""
Size = Annotated[Value, SIZE]
SOLVED = "solved"
Solved = Annotated[Value, SOLVED]
_TRUE, _FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}


@dataclass(frozen=True)
class Departure:
    """One change to a published algorithm.

    Attributes:
        what: the change, in one line.
        why: what goes wrong without it.
        sets: the options that make the change, name to value; empty if the variant `working` has separate code.
        worth: measured effect in an ablation, with its settings; "" = use leaderboards/papers/ablations, if available.
        without: the options that revert it, name to value, if `sets` does not show this; empty = nothing reverts it.
    """

    what: str
    why: str
    sets: Mapping[str, Any] = field(default_factory=dict)
    worth: str = ""
    without: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Option:
    """One public hyper-parameter of a plug-in.

    Attributes:
        name: the field's name.
        kind: int, float, bool or str.
        default: the field's default, which is the paper's setting.
        choices: the allowed strings; empty if every value of `kind` is allowed.
        help: the string under the field.
        size: whether a tier may change it.
        solved: whether the budget decides it, unless --solve steps or --epsilon none.
        only_with: the condition on the other options under which it is read; "" = always.
    """

    name: str
    kind: type
    default: Any
    choices: tuple[str, ...]
    help: str
    size: bool = False
    solved: bool = False
    only_with: str = ""


@dataclass(frozen=True)
class Description:
    """The description of a plug-in that `bench show` and `--help` need.

    Attributes:
        doc: its module's docstring.
        options: its options, in the order of its fields.
        tiers: tier to the sizes that it changes.
        departures: the changes of the variant `working`; () without such a variant.
        default_variant: the variant that runs by default.
        facts: its values of `FACTS`, and its `needs` where every option has its default.
        needs: its needs at other values of some options, such as {"teachers": 40}; None for a kind without needs.
        recorded_as: present names of renamed options (or NAME=VALUE) to the names in specs and records.
    """

    doc: str
    options: tuple[Option, ...]
    tiers: Mapping[str, Mapping[str, Any]]
    departures: tuple[Departure, ...]
    default_variant: Variant
    facts: Mapping[str, Any]
    needs: Callable[[Mapping[str, Any]], frozenset[str]] | None = field(default=None, compare=False)
    recorded_as: Mapping[str, str] = field(default_factory=dict)

    def values(self, tier: str, variant: Variant | None = None) -> Values:
        """Return the default values of options: the class's defaults, the variant's departures, the tier's sizes."""
        usual = {option.name: option.default for option in self.options}
        return usual | _changes(self.departures, self.tiers, tier, variant or self.default_variant)


FACTS = (
    "version", "reference", "unit", "goal", "access", "seen_test_sets", "releases_images", "is_null", "labelled",
    "min_records",
)  # fmt: skip
"""Facts of methods and attacks where every option has its default."""


def describe(cls: type) -> Description:
    """Describe an imported plug-in. Raises TypeError for a field type that is not flat."""
    facts = {name: getattr(cls(), name) for name in FACTS if hasattr(cls, name)}
    needs = None
    if hasattr(cls, "needs"):
        needs = partial(_needs, cls)
        facts["needs"] = needs({})
    module, tiers = inspect.getmodule(cls), cls.tiers  # type: ignore[attr-defined]
    doc = inspect.getdoc(module) or ""
    renamed = dict(_recorded_as(cls))
    return Description(doc, tuple(options(cls)), tiers, departures(cls), default_variant(cls), facts, needs, renamed)


def _needs(cls: type, values: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(cls(**values).needs)


def options(cls: type) -> list[Option]:
    """Return the options of a dataclass, in the order of its fields. Raises TypeError for a field type that is not
    flat."""
    return list(_options(cls))


@cache
def _options(cls: type) -> tuple[Option, ...]:
    hints, docs = get_type_hints(cls, include_extras=True), field_docs(cls)
    conditions: dict[str, str] = {}
    for base in reversed(cls.__mro__):  # the class itself has precedence over its bases
        conditions |= vars(base).get("only_with", {})
    found = []
    for each in dataclasses.fields(cls):
        if each.default is dataclasses.MISSING:
            raise TypeError(f"field {each.name} needs a default, which is the paper's setting")
        hint, choices = hints[each.name], ()
        marks: list[Any] = []
        if get_origin(hint) is Annotated:
            hint, *marks = get_args(hint)
        if get_origin(hint) is Literal:
            hint, choices = str, get_args(hint)
        if hint not in (int, float, bool, str):
            raise TypeError(f"field {each.name} must be int, float, bool, str or a Literal of strings, not {hint}")
        found.append(
            Option(
                name=each.name,
                kind=hint,
                default=each.default,
                choices=choices,
                help=docs.get(each.name, ""),
                size=SIZE in marks,
                solved=SOLVED in marks,
                only_with=conditions.get(each.name, ""),
            )
        )
    return tuple(found)


def departures(cls: type) -> tuple[Departure, ...]:
    """Return the changes of the variant `working` of a plug-in; () without such a variant."""
    return tuple(getattr(cls, "departures", ()))


def default_variant(cls: type) -> Variant:
    """Return the variant that runs by default."""
    if getattr(cls, "own", False):
        return "own"
    return "working" if departures(cls) else "printed"


def _changes(
    made: tuple[Departure, ...], tiers: Mapping[str, Mapping[str, Any]], tier: str, variant: Variant
) -> Values:
    """Return the option values that a variant and a tier set: the departures first, then the sizes."""
    changes: Values = {}
    if variant == "working":
        for departure in made:
            changes |= departure.sets
    return {**changes, **sizes(tiers, tier)}


def sizes(tiers: Mapping[str, Mapping[str, Any]], tier: str) -> Mapping[str, Any]:
    """Return the sizes of a tier: for `standard`, if a plug-in has no such sizes, those of `quick`; for `paper` none.

    Raises:
        BenchError: another tier.

    >>> sizes({"quick": {"steps": 9}}, "standard"), sizes({"quick": {"steps": 9}}, "paper")
    ({'steps': 9}, {})
    """
    if tier not in TIERS:
        raise unknown("tier", tier, TIERS)
    return tiers.get("quick" if tier == "standard" and tier not in tiers else tier, {})


def field_docs(cls: type) -> dict[str, str]:
    """Return the string literal under each field of a class or of its base dataclasses, as one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _own_field_docs(base)
    return docs


@cache
def _own_field_docs(cls: type) -> dict[str, str]:
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):  # a class from a notebook or a prompt has no file; its options have no help
        return {}
    tree = instance(source, ast.ClassDef, f"source of {cls.__name__}")
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
    """Convert the text of a value to the type of its option.

    Args:
        flag: the option as typed, for messages.

    Raises:
        BenchError: a text that is not such a value.
    """
    if option.choices:
        if text not in option.choices:
            raise unknown(f"choice for {flag}", text, option.choices)
        return text
    if option.kind is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise BadOption(f"{flag} {text}: expected true or false")
        return text.lower() in _TRUE
    if option.kind is str:
        return text
    try:
        value = option.kind(text)
    except ValueError:
        expected = "a whole number" if option.kind is int else "a number"
        raise BadOption(f"{flag} {text}: expected {expected} (default {option.default}); see `--help`") from None
    if option.kind is int and abs(value) > LARGEST:
        raise BadOption(f"{flag} {text}: expected at most {LARGEST} (default {option.default})")
    if not math.isfinite(value):
        raise BadOption(f"{flag} {text}: expected a finite number (default {option.default})")
    return value


def configure(cls: type, tier: str, given: Mapping[str, str], prefix: str, variant: Variant | None = None) -> Any:
    """Build a plug-in: field defaults (the paper's), departures, sizes of `tier`, then the user's values.

    Args:
        cls: the plug-in's dataclass, with a class variable `tiers`.
        tier: one of `TIERS`.
        given: option name to the user's text.
        prefix: "method", "attack", "teacher" or "evaluator", for messages.
        variant: "working" applies departures; None = `default_variant`.

    A renamed option is also read by its old name, with a notice.

    Raises:
        BenchError: unknown option, wrong type, value outside its range, or one that the other options make unused.
    """
    given = with_present_names(given, _recorded_as(cls), prefix)
    known = {option.name: option for option in options(cls)}
    tiers = cls.tiers  # type: ignore[attr-defined]
    usual = {name: option.default for name, option in known.items()}
    usual |= _changes(departures(cls), tiers, tier, variant or default_variant(cls))
    values = dict(usual)
    for name, text in given.items():
        if name not in known:
            raise unknown(f"option of --{prefix}", name, known)
        values[name] = parse(known[name], text, f"--{prefix}.{name}")
    try:
        instance = cls(**values)
    except ValueError as error:
        raise BadOption(f"--{prefix}: {error}") from None
    for name in given:
        if values[name] != usual[name] and (violated := unmet(known[name].only_with, values)):
            other, sign, wanted = condition(violated)
            raise BadOption(
                f"--{prefix}.{name} {given[name]}: not used with {other} {_text(values[other])}; give "
                f"--{prefix}.{other} {'above ' if sign == '>' else ''}{wanted} too, or leave it out"
            )
    return instance


def unmet(only_with: str, values: Mapping[str, Any]) -> str:
    """Return the first word of an option's `only_with` that does not hold for the values of a plug-in's options, or "".

    A required value may be a pattern with "*".

    >>> unmet("mode=offline|both tune=false", {"mode": "both", "tune": True}), unmet("k>0", {"k": 3})
    ('tune=false', '')
    >>> unmet("features=timm:*", {"features": "auto"}), unmet("features=timm:*", {"features": "timm:resnet18"})
    ('features=timm:*', '')
    """
    for word in only_with.split():
        name, sign, wanted = condition(word)
        value = values[name]
        holds = (
            value > float(wanted) if sign == ">" else any(fnmatchcase(_text(value), each) for each in wanted.split("|"))
        )
        if not holds:
            return word
    return ""


def condition(word: str) -> tuple[str, str, str]:
    """Split a word of an `only_with` into the option, "=" or ">", and the required value or lower bound.

    >>> condition("mode=offline|both"), condition("k>0")
    (('mode', '=', 'offline|both'), ('k', '>', '0'))
    """
    name, sign, wanted = re.split("([=>])", word, maxsplit=1)
    return name, sign, wanted


def _text(value: Any) -> str:
    """Format a value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(instance: Any) -> Values:
    """Return the fields of a plug-in as plain data, for the record and the hash; renamed options by their old names.

    Options of the class variable `added_options` are left out at their default values. They were added after results
    had been published, whose hashes stay valid in this way.
    """
    cls = type(instance)
    added = getattr(cls, "added_options", ())
    usual = {field.name: field.default for field in dataclasses.fields(cls) if field.name in added}
    values = {name: value for name, value in dataclasses.asdict(instance).items() if usual.get(name, ...) != value}
    return rename(values, _recorded_as(cls))


def _recorded_as(cls: type) -> Mapping[str, str]:
    return getattr(cls, "recorded_as", {})
