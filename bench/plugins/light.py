"""Which modules of this repository are imported at once: those that import no library."""

from __future__ import annotations

import ast
import sys
from functools import cache

from bench.plugins.syntax import absolute, module_file, package_of, parsed


@cache
def is_light(module: str) -> bool:
    """Whether importing a module of this repository imports nothing but this repository and the standard library."""
    return _all_light(module, set())


def _all_light(module: str, seen: set[str]) -> bool:
    if module in seen or module.partition(".")[0] in sys.stdlib_module_names:
        return True
    seen.add(module)
    path, parent = module_file(module), module.rpartition(".")[0]
    if path is None or (parent and not _all_light(parent, seen)):
        return False
    package = package_of(module, path)
    return all(_all_light(name, seen) for node in parsed(path).body for name in _imports(node, package))


def _imports(node: ast.AST, package: str) -> list[str]:
    """The modules that a statement imports when its file is; those for functions and type checkers are left out."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return []
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return [name for child in node.orelse for name in _imports(child, package)]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = absolute(node, package)
        inside = [f"{base}.{alias.name}" for alias in node.names]
        return [base, *(name for name in inside if module_file(name) is not None)]
    return [name for child in ast.iter_child_nodes(node) for name in _imports(child, package)]
