"""Python's syntax trees of this repository's files: what a file binds, reads and imports. No module is imported."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from bench.plugins.discovery import ROOT


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file. Raises SyntaxError."""
    return ast.parse(path.read_text(encoding="utf-8"))


def docstring(follower: ast.stmt) -> str:
    """The string under a field, as one line; "" if the statement is none."""
    if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
        return " ".join(follower.value.value.split()) if isinstance(follower.value.value, str) else ""
    return ""


def free(node: ast.AST) -> set[str]:
    """The names that are read in `node` and not bound in it."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    return {n.id for n in names if isinstance(n.ctx, ast.Load)} - bound


def bindings_of(body: list[ast.stmt]) -> dict[str, ast.AST | None]:
    """Name to the statement that binds it; None if there are several."""
    found: dict[str, ast.AST | None] = {}
    for node in body:
        for name in _bound(node):
            found[name] = None if name in found else node
    return found


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        whole = isinstance(node, ast.Import)
        return [a.asname or (a.name.partition(".")[0] if whole else a.name) for a in node.names]
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return []
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that a statement of a file in `package` imports from."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) + 1 - node.level], *([node.module] if node.module else [])])


@cache
def module_file(name: str) -> Path | None:
    """The file of a module of this repository, or None."""
    place = ROOT.joinpath(*name.split("."))
    for path in (place / "__init__.py", place.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def package_of(module: str, path: Path) -> str:
    """The package that relative imports of a module start from."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]
