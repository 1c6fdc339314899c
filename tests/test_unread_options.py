"""Options that are unused under some settings (`only_with`) then change neither release nor account nor claim.

The test is thorough: it makes two releases of the toy teacher for every way in which a condition can be violated.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bench import registry
from bench.api import Release, Teacher
from bench.config import Option, condition, options, parse, sizes, unmet
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.testing import MethodContract, context
from bench.testing.toys import weights

Values = dict[str, Any]
BUDGETS = (Budget(10.0), Budget(10.0, unit=Unit.LABEL), Budget(None, solve="none"))
"""Budgets; the first that a method accepts is used."""
WORDS = {
    "prior": "noise",
    "characters": "abc",
    "folder": "elsewhere",
    "teacher_nets": "datalens",
    "network": "relu-cnn",
}
"""Another value of options of type str without choices."""


def conditional() -> list[tuple[str, str, str]]:
    """Return method, variant, and a violated condition of its options, as words "option=value"."""
    found: dict[type, tuple[str, str]] = {}
    for name in registry.entries("method"):
        for variant in registry.variants("method", name):
            found.setdefault(registry.load("method", name, variant), (name, variant))
    hows = [(cls, named, how) for cls, named in found.items() for how in sorted({h for h, _ in violated(cls)})]
    return [(*named, how) for cls, named, how in hows if is_valid(cls, how)]


def is_valid(cls: Any, how: str) -> bool:
    """Whether the options can have these values together; the class refuses some at once."""
    known = {option.name: option for option in options(cls)}
    try:
        cls(**usual(cls) | {key: parse(known[key], value, key) for key, value in (w.split("=") for w in how.split())})
    except ValueError:
        return False
    return True


def usual(cls: Any) -> Values:
    return {option.name: option.default for option in options(cls)} | dict(sizes(cls.tiers, "smoke"))


def violated(cls: Any) -> Iterator[tuple[str, str]]:
    """Yield every way to violate one word of a condition, and an option that is unused then."""
    known, values = {option.name: option for option in options(cls)}, usual(cls)
    for option in known.values():
        words = option.only_with.split()
        for word in words:
            others = [w for each in words if each != word for w in holding(known, each, values)]
            for breaking in violations(known, word):
                yield " ".join(sorted({*others, breaking})), option.name


def violations(known: dict[str, Option], word: str) -> list[str]:
    name, sign, wanted = condition(word)
    if sign == ">":
        return [f"{name}={wanted}"]
    if name == "tune":  # other values have an effect on a pretrained network only, which needs its weights
        return [] if "head" in wanted.split("|") else ["tune=head"]
    if known[name].choices:
        return [f"{name}={choice}" for choice in known[name].choices if choice not in wanted.split("|")]
    if name == "features":  # a pretrained network needs its weights
        return ["features=auto"] if "auto" not in wanted.split("|") else []
    return [f"{name}={'false' if wanted == 'true' else 'true' if wanted == 'false' else 0.5}"]


def holding(known: dict[str, Option], word: str, values: Values) -> list[str]:
    if not unmet(word, values):
        return []
    name, sign, wanted = condition(word)
    return [f"{name}={known[name].kind(wanted) + 2}" if sign == ">" else f"{name}={wanted.partition('|')[0]}"]


def another(option: Option, value: Any) -> Any:
    if option.choices:
        return next(choice for choice in option.choices if choice != value)
    if option.kind is str:
        return WORDS[option.name]
    return not value if option.kind is bool else value + 2 if option.kind is int else value * 0.5 or 0.25


def released(cls: Any, values: Values, budget: Budget) -> tuple[list[torch.Tensor], str]:
    class Contract(MethodContract):
        plugin = cls

        def smoke(self) -> Any:
            return cls(**values)

    teacher: Teacher = Contract().teacher()
    torch.manual_seed(0)
    made: Release = cls(**values).convert(teacher, "datalens", budget, context(0))
    parts = [
        tensor for net in (made.student, made.generator, made.control) if net is not None for tensor in weights(net)
    ]
    return parts + [image for image in [made.synthetic] if image is not None], f"{made.ledger.entries()} {made.claim}"


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "variant", "how"), conditional())
def test_unused_option_changes_nothing(name: str, variant: str, how: str) -> None:
    cls = registry.load("method", name, variant)
    known = {option.name: option for option in options(cls)}
    given = dict(word.split("=") for word in how.split())
    values = usual(cls) | {key: parse(known[key], value, key) for key, value in given.items()}
    unread = {option for each, option in violated(cls) if each == how} - set(given)
    unread -= {"reading"} if "copies" in unread else set()  # other readings need one copy
    changed = values | {option: another(known[option], values[option]) for option in unread}
    budget = next(each for each in BUDGETS if takes(cls, values, each))
    (before, account), (after, account_again) = released(cls, values, budget), released(cls, changed, budget)
    assert account == account_again
    assert len(before) == len(after)
    assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(before, after, strict=True))


def takes(cls: Any, values: Values, budget: Budget) -> bool:
    try:
        cls(**values).check(budget, "digits", 10)
    except BenchError:
        return False
    return True
