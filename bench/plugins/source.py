"""What a class says of itself, read from its source: no module that imports a library is imported.

`import torch` takes seconds, and a plug-in's options, tiers and departures are constants. So its file is parsed, and of
its names those that are asked for are evaluated: a constant of the file, one that is imported from another file of this
repository, or something of a module that imports nothing but the standard library, which is imported as usual
(`bench.config.Size`, `math.inf`). Where an expression needs anything else, such as `torch.float32`, it is `Unreadable`,
and the caller imports the plug-in after all. tests/test_plugin_source.py holds every plug-in of ours against its
imported class, so that what is read here is what runs.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache, cached_property, partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from bench.plugins.light import is_light
from bench.plugins.syntax import absolute, bindings_of, docstring, free, module_file, package_of, parsed
from bench.validate import instance

ABSTRACT = {"ABC", "Generic", "Protocol", "object"}
"""Base classes that bring no field and no constant."""


class Unreadable(Exception):
    """Something that only importing can tell."""


class Field(NamedTuple):
    """A field of a dataclass; `default` is `dataclasses.MISSING` where there is none."""

    name: str
    hint: Any
    default: Any
    doc: str


def read(path: Path, module: str, *needed: str) -> SourceClass:
    """The one dataclass of a file that has all the attributes `needed`, inherited ones included.

    Args:
        module: the dotted name it would be imported by.

    Raises:
        Unreadable: there is none, or there are several.
    """
    source = _module(module, path)
    found = [c for c in source.classes() if c.is_dataclass and all(c.has(name) for name in needed)]
    if len(found) != 1:
        raise Unreadable(f"{module}: {len(found)} dataclasses with {', '.join(needed)}")
    return found[0]


class SourceModule:
    """A parsed file of this repository."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.package = package_of(name, path)
        self.tree = parsed(path)
        self.doc = ast.get_docstring(self.tree) or ""
        self._values: dict[str, Any] = {}

    @cached_property
    def bindings(self) -> dict[str, ast.AST | None]:
        """Name to the statement that binds it at the top of the file; None if there are several."""
        return bindings_of(self.tree.body)

    def classes(self) -> list[SourceClass]:
        """The classes defined at the top of the file."""
        return [SourceClass(self, node) for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def class_named(self, name: str) -> SourceClass:
        """The class of that name, `NAME` or `MODULE.NAME`, defined here or imported. Raises Unreadable."""
        first, _, rest = name.partition(".")
        node = self.bindings.get(first)
        if isinstance(node, ast.ClassDef) and not rest:
            return SourceClass(self, node)
        if isinstance(node, ast.ImportFrom):
            (alias,) = (a for a in node.names if first == (a.asname or a.name))
            module = absolute(node, self.package)
            within = f"{module}.{alias.name}" if rest else module
            path = module_file(within)
            if path is not None:
                return _module(within, path).class_named(rest or alias.name)
        raise Unreadable(f"{self.name}: {name} is no class of this repository")

    def value(self, name: str) -> Any:
        """What a name means at the end of the file. Raises Unreadable."""
        if name not in self._values:
            self._values[name] = self._find(name)
        return self._values[name]

    def _find(self, name: str) -> Any:
        if name not in self.bindings:
            if hasattr(builtins, name):
                return getattr(builtins, name)
            raise Unreadable(f"{self.name} has no {name}")
        node = self.bindings[name]
        if isinstance(node, ast.ClassDef):
            return _Attributes(SourceClass(self, node))
        if isinstance(node, ast.FunctionDef):
            return function(node, self)
        if isinstance(node, ast.Import):
            (alias,) = (a for a in node.names if name == (a.asname or a.name.partition(".")[0]))
            return _imported(alias.name if alias.asname else name)
        if isinstance(node, ast.ImportFrom):
            (alias,) = (a for a in node.names if name == (a.asname or a.name))
            return _imported(absolute(node, self.package), alias.name)
        return assigned(node, name, self)


class SourceClass:
    """A class of a parsed file."""

    def __init__(self, module: SourceModule, node: ast.ClassDef) -> None:
        self.module, self.node = module, node
        self.name = node.name
        self._values: dict[str, Any] = {}

    @cached_property
    def bindings(self) -> dict[str, ast.AST | None]:
        """Name to the statement that binds it in the class's body; None if there are several."""
        return bindings_of(self.node.body)

    @property
    def is_dataclass(self) -> bool:
        """Whether it is decorated so, itself."""
        names = [d.func if isinstance(d, ast.Call) else d for d in self.node.decorator_list]
        return any(ast.unparse(name).rpartition(".")[2] == "dataclass" for name in names)

    @cached_property
    def mro(self) -> tuple[SourceClass, ...]:
        """The class and those it extends, nearest first. Raises Unreadable for a base of a library."""
        found: list[SourceClass] = [self]
        for base in self.node.bases:
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            if name.rpartition(".")[2] in ABSTRACT:
                continue
            inherited = self.module.class_named(name).mro
            found = [c for c in found if c.node not in [i.node for i in inherited]] + list(inherited)
        return tuple(found)

    def has(self, name: str) -> bool:
        """Whether it has an attribute, as far as its bases can be read."""
        try:
            return any(name in c.bindings for c in self.mro)
        except Unreadable:
            return name in self.bindings

    def value(self, name: str, fields: Mapping[str, Any] | None = None) -> Any:
        """A class variable's value; of a property, what it returns at these values of fields, others at their defaults.

        Raises:
            Unreadable: there is no such attribute, or it takes an import to know.
        """
        if fields:
            return self._find(name, fields)
        if name not in self._values:
            self._values[name] = self._find(name, {})
        return self._values[name]

    def _find(self, name: str, fields: Mapping[str, Any]) -> Any:
        owner = next((c for c in self.mro if name in c.bindings), None)
        if owner is None:
            raise Unreadable(f"{self.module.name}.{self.name} has no {name}")
        node = owner.bindings[name]
        if isinstance(node, ast.FunctionDef):
            made = function(node, owner.module)
            if any(ast.unparse(d).rpartition(".")[2] in ("property", "cached_property") for d in node.decorator_list):
                return run(made, _Instance(self, fields))
            return made
        return assigned(node, name, owner)

    def fields(self) -> list[Field]:
        """The fields of the dataclass in the order of `dataclasses.fields`. Raises Unreadable."""
        found: dict[str, Field] = {}
        for owner in reversed(self.mro):
            for field in owner._own_fields() if owner.is_dataclass else ():
                inherited = found.get(field.name, field).doc
                found[field.name] = field._replace(doc=field.doc or inherited)
        return list(found.values())

    def _own_fields(self) -> list[Field]:
        found: list[Field] = []
        for statement, follower in zip(self.node.body, [*self.node.body[1:], ast.Pass()], strict=True):
            if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
                continue
            if "ClassVar" in ast.unparse(statement.annotation).partition("[")[0]:
                continue
            hint = evaluate(statement.annotation, self)
            default = MISSING if statement.value is None else evaluate(statement.value, self)
            found.append(Field(statement.target.id, hint, getattr(default, "default", default), docstring(follower)))
        return found


class _Attributes:
    """A class as expressions see it: `Unit.QUERY`."""

    def __init__(self, of: SourceClass) -> None:
        object.__setattr__(self, "_of", of)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "_of").value(name)


class _Instance(_Attributes):
    """A class's instance as its properties see it: some fields have values, all others their defaults."""

    def __init__(self, of: SourceClass, fields: Mapping[str, Any]) -> None:
        super().__init__(of)
        object.__setattr__(self, "_fields", fields)

    def __getattribute__(self, name: str) -> Any:
        fields = object.__getattribute__(self, "_fields")
        if name in fields:
            return fields[name]
        found = object.__getattribute__(self, "_of").value(name, fields)
        return partial(found, self) if isinstance(found, FunctionType) else found


class _Names:
    """A file of this repository as an expression sees it: `dp_training.QUICK`."""

    def __init__(self, of: SourceModule) -> None:
        object.__setattr__(self, "_of", of)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "_of").value(name)


Scope = SourceModule | SourceClass


def evaluate(expression: ast.expr, scope: Scope) -> Any:
    """The value of an expression, with the names it has in `scope`. Raises Unreadable."""
    if isinstance(expression, ast.Constant):
        return expression.value
    namespace = {"__builtins__": {}} | {name: _lookup(name, scope) for name in free(expression)}
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), "<source>", "eval")
    return _guarded(lambda: eval(code, namespace))


def assigned(node: ast.AST | None, name: str, scope: Scope) -> Any:
    """What an assignment gives to `name`. Raises Unreadable for any other statement."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return evaluate(node.value, scope)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        value, target = evaluate(node.value, scope), node.targets[0]
        if isinstance(target, ast.Name):
            return value
        if isinstance(target, ast.Tuple) and all(isinstance(e, ast.Name) for e in target.elts):
            names = [e.id for e in target.elts if isinstance(e, ast.Name)]
            return tuple(value)[names.index(name)]
    raise Unreadable(f"{name} is bound by something else than one plain assignment")


def function(node: ast.FunctionDef, module: SourceModule) -> FunctionType:
    """A function of the file, without its decorators and annotations. Raises Unreadable."""
    copy = instance(ast.parse(ast.unparse(node)).body[0], ast.FunctionDef, f"source of {node.name}")
    copy.decorator_list, copy.returns = [], None
    arguments = [*copy.args.posonlyargs, *copy.args.args, *copy.args.kwonlyargs]
    for argument in [*arguments, *filter(None, (copy.args.vararg, copy.args.kwarg))]:
        argument.annotation = None
    bound = {node.name, *(argument.arg for argument in arguments)}
    namespace: dict[str, Any] = {"__builtins__": {}} | {
        name: _lookup(name, module) for name in free(copy) if name not in bound
    }
    exec(compile(ast.Module([copy], []), "<source>", "exec"), namespace)
    return namespace[node.name]


def run(made: FunctionType, *arguments: Any) -> Any:
    """What a function of `function` returns. Raises Unreadable."""
    return _guarded(lambda: made(*arguments))


def _guarded(compute: Any) -> Any:
    """What `compute` returns; whatever goes wrong in there, only importing can tell."""
    try:
        return compute()
    except Unreadable:
        raise
    except Exception as error:  # computing foreign expressions may raise anything; importing then shows the real error
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _lookup(name: str, scope: Scope) -> Any:
    if isinstance(scope, SourceClass):
        return scope.value(name) if name in scope.bindings else _lookup(name, scope.module)
    return scope.value(name)


def _imported(module: str, name: str | None = None) -> Any:
    """What `import module` or `from module import name` gives. Raises Unreadable for a library."""
    path = module_file(module)
    if module.partition(".")[0] in sys.stdlib_module_names or (path is not None and is_light(module)):
        imported = importlib.import_module(module)
        if name is None or hasattr(imported, name):
            return imported if name is None else getattr(imported, name)
    elif path is None:
        raise Unreadable(f"{module} is a library")
    elif name is None:
        return _Names(_module(module, path))
    elif name in _module(module, path).bindings:
        return _module(module, path).value(name)
    return _imported(f"{module}.{name}")


@cache
def _module(name: str, path: Path) -> SourceModule:
    return SourceModule(name, path)
