"""Faults planted into the source of a function, and the checks that look for them: the game and the neighbour test."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any

from bench.config import Variant
from bench.errors import BenchError
from bench.privacy.audit import audit

Function = Callable[..., Any]


@dataclass(frozen=True)
class Mutant:
    """A fault in the function that turns private values into what is released.

    Attributes:
        function: the function, or method of a class, whose source gets the fault.
        old, new: a fragment of its source that occurs exactly once, and what replaces it.
        what: the fault in words, for the table.
        plug_in, options, variant: the method whose game and neighbour test look for it.
    """

    function: Function
    old: str
    new: str
    what: str
    plug_in: str
    options: dict[str, Any] = field(default_factory=dict)
    variant: Variant | None = None

    @property
    def name(self) -> str:
        """Plug-in, function and fault, for a test's name and the table."""
        return f"{self.plug_in}: {_plain(self.function).__qualname__}: {self.what}"


@contextmanager
def planted_in_source(function: Function, old: str, new: str) -> Iterator[None]:
    """Run the function with `old` replaced by `new` in its source, in every module that has imported it.

    Raises:
        ValueError: `old` does not occur exactly once in the function's source.
    """
    target = _plain(function)
    source = textwrap.dedent(inspect.getsource(target))
    if source.count(old) != 1:
        raise ValueError(f"{target.__qualname__}: the fragment occurs {source.count(old)} times, expected once: {old}")
    original = target.__code__
    target.__code__ = _compiled(source.replace(old, new), target)
    try:
        yield
    finally:
        target.__code__ = original


def _plain(function: Function) -> FunctionType:
    """The function behind a method, a property or a decorator."""
    found = function.fget if isinstance(function, property) else inspect.unwrap(function)
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{function!r} has no Python source")
    return found


def _compiled(source: str, target: FunctionType) -> CodeType:
    """The code of a changed function, with the closure that the original has."""
    tree = ast.parse(source)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise ValueError(f"{target.__qualname__}: the source is not a function definition")
    definition.decorator_list = []
    free = target.__code__.co_freevars
    if free:  # names of an enclosing scope (such as __class__ of `super()`) stay free only inside of one
        shell = ast.parse(f"def shell({', '.join(free)}):\n    pass").body[0]
        assert isinstance(shell, ast.FunctionDef)
        shell.body = [definition]
        tree.body = [shell]
    tree.body.insert(0, ast.parse("from __future__ import annotations").body[0])
    module = compile(ast.fix_missing_locations(tree), f"<fault in {target.__qualname__}>", "exec")
    code = _find(module, target.__name__)
    if code.co_freevars != free:
        raise ValueError(f"{target.__qualname__}: the fault uses {code.co_freevars} of the enclosing scope, not {free}")
    return code


def _find(code: CodeType, name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_name == name:
                return constant
            if constant.co_name == "shell":
                return _find(constant, name)
    raise ValueError(f"no function {name} in the changed source")


def found_by_game(
    method: Any, budget: Any, dataset: str, classes: int, seed: int = 0, plays: int | None = None
) -> str | None:
    """How the method's own game finds that its step is faulty; None where it does not.

    What a paper claims is left out: some claims are refuted of correct code, as they should be.
    """
    try:
        result = audit(replace(method.game(budget, dataset, classes), claimed=math.inf), plays, seed)
    except (BenchError, RuntimeError, ValueError) as error:  # a check of the step refuses to run
        return f"refused: {type(error).__name__}"
    return None if result.verdict == "not refuted" else result.verdict
