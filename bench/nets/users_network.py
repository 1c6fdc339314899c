"""A user's own network, named `PACKAGE.MODULE:FUNCTION`: import it, identify it by its source hash, and call it.

The contract (docs/own-teachers.md): the function returns a new `nn.Module` at each call, whose weights are drawn from
torch's global generator. It receives, by keyword, those of `PARAMETERS` that it has parameters for. Its network maps
(n, c, h, w) images to (n, classes) logits.

Specs and records store a name with a hash of the source, as `PACKAGE.MODULE:FUNCTION#0123456789abcdef`. Only a network
that the user of this process has named is imported: a name in another user's record or bundle runs no code.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.errors import BadPlugin, NotFound, UnknownName, did_you_mean, plugin_errors
from bench.fingerprint import fingerprint

Shape = tuple[int, int, int]

PARAMETERS = {
    "classes": ("classes", "num_classes"),
    "channels": ("channels", "in_channels", "in_chans"),
    "height": ("height",),
    "width": ("width",),
}
"""Values that can be passed to a function, and the parameter names accepted for each."""
ADVICE = "correct the function (docs/own-teachers.md)"
_NAME = re.compile(
    r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)(?:#(?P<hash>[0-9a-f]{16}))?"
)
_RESERVED = ("small:", "tv:")
_INSTALLED = ("site-packages", "dist-packages")
_OWN_PACKAGE = "bench"

_registered: dict[str, Callable[..., Any]] = {}
"""Complete name (with the hash) -> function, for the networks that the user has named in this process."""
_objects: set[str] = set()
"""Complete names of networks that were passed from Python as objects, not as functions of a module."""
_checked: set[tuple[str, Shape, int]] = set()
"""Names, image shapes and numbers of classes for which a function is known to draw new weights at each call."""


def is_users_network(name: str) -> bool:
    """Return whether a name has the form PACKAGE.MODULE:FUNCTION."""
    return _NAME.fullmatch(name) is not None and not name.startswith(_RESERVED)


def identify(name: str) -> str:
    """Import the network that the user has named, hash its source, and return its name with the hash.

    Any name of another form is returned unchanged.

    Raises:
        BenchError: an unknown module or function, a module that cannot be imported or has no source, or a source that
            does not match the hash in the name.
    """
    match = _NAME.fullmatch(name)
    if match is None or name in _objects or not is_users_network(name):
        return name
    module, function = match["module"], match["function"]
    source = _import(name, module)
    found = getattr(source, function, None)
    if not callable(found):
        known = [key for key, value in vars(source).items() if callable(value) and not key.startswith("_")]
        fault = f"'{function}' is not a function" if found is not None else f"no function called '{function}'"
        place = getattr(source, "__file__", None) or "a built-in module"
        raise UnknownName(f"--teacher {name}: {fault} in {place}{did_you_mean(function, known)}; correct the name")
    top = sys.modules[module.partition(".")[0]]
    path = next(iter(getattr(top, "__path__", [])), None) or getattr(top, "__file__", None)
    sources = dict(_sources(module, Path(path).parent)) if path else {}
    if module not in sources:
        raise BadPlugin(f"--teacher {name}: {module} has no source file; a network is identified by its source")
    total = hashlib.sha256()
    for part, code in sorted(sources.items()):
        total.update(f"{part} {len(code)}\n".encode() + code)
    complete = f"{module}:{function}#{total.hexdigest()[:16]}"
    if match["hash"] and complete != name:
        raise BadPlugin(
            f"--teacher {name}: the source of the network has changed and has now the hash "
            f"{complete.partition('#')[2]}; give --teacher {module}:{function} for a separate run"
        )
    _registered[complete] = found
    return complete


def add_value(network: nn.Module) -> str:
    """Register a network that a user passes from Python in this process; return its name with a hash.

    The hash in the name covers its class, its attributes and its weights, so that another network has another name.
    """
    cls = type(network)
    name = f"{cls.__module__}:{cls.__name__}#{fingerprint(network)}"
    template = copy.deepcopy(network).cpu().float().requires_grad_(True)
    _registered[name] = lambda: reinitialised(template)
    _objects.add(name)
    return name


def reinitialised(template: nn.Module) -> nn.Module:
    """Return a copy with new random weights, by each layer's `reset_parameters` where it has one.

    Otherwise matrices are drawn from N(0, 0.02^2), biases are 0, and other vectors 1.
    """
    network = copy.deepcopy(template)
    for layer in network.modules():
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset):
            reset()
            continue
        for name, parameter in layer.named_parameters(recurse=False):
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.constant_(parameter, 0.0 if "bias" in name else 1.0)
    return network


def check_named(name: str) -> None:
    """Raise BenchError for a network that the user of this process has not named with --teacher."""
    if name not in _registered:
        raise UnknownName(
            f"'{name}' is a network in someone's own code, which runs only where --teacher names it; "
            "give one of `bench list networks`, of timm, or tv:NAME"
        )


def make(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a new network with the user's function.

    Raises:
        BenchError: the user has not named it; the function fails, does not return a network, or returns the same
            network or the same weights at each call.
    """
    check_named(name)
    if (name, shape, classes) not in _checked:
        with torch.random.fork_rng(devices=()):
            first, second = (_call(name, shape, classes) for _ in range(2))
        pairs = list(zip(first.parameters(), second.parameters(), strict=False))
        if first is second or any(one is other for one, other in pairs):
            raise BadPlugin(
                f"--teacher {name}: returned the same network twice; expected a new one at each call; {ADVICE}"
            )
        if all(torch.equal(one, other) for one, other in pairs):
            raise BadPlugin(
                f"--teacher {name}: returned a network with the same weights twice; expected weights drawn at random, "
                "since attacks also run on an untrained network; give trained weights by --teacher-weights"
            )
        _checked.add((name, shape, classes))
    return _call(name, shape, classes)


def _call(name: str, shape: Shape, classes: int) -> nn.Module:
    """Call the user's function with those of `PARAMETERS` that it has parameters for."""
    function, values = _registered[name], dict(zip(PARAMETERS, (classes, *shape), strict=True))
    with plugin_errors(f"--teacher {name}", ADVICE):
        parameters = inspect.signature(function).parameters
        arguments = {
            parameter: values[value]
            for value, names in PARAMETERS.items()
            for parameter in names
            if parameter in parameters
        }
        network = function(**arguments)
    if not isinstance(network, nn.Module):
        raise BadPlugin(f"--teacher {name}: returned a {type(network).__name__}; expected an nn.Module; {ADVICE}")
    return network


def _import(name: str, module: str) -> Any:
    """Import the module; the current folder is searched after the installed packages. Raises BenchError."""
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise BadPlugin(f"--teacher {name}: importing {module} failed, as {error.name} is not installed") from None
        raise NotFound(
            f"--teacher {name}: no module called '{error.name}'; expected PACKAGE.MODULE:FUNCTION of a module below "
            "the current folder, on PYTHONPATH or installed"
        ) from None
    except (Exception, SystemExit) as error:
        # A user's module may raise anything; SystemExit would otherwise end the command
        reason = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
        raise BadPlugin(f"--teacher {name}: importing {module} failed ({reason}); correct the module") from error


def _sources(module: str, root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and source of a module, its packages, and their imports below `root` or within an installed package.

    Hashes never cover this project's own code.
    """
    package = module.partition(".")[0]
    is_installed = any(part in _INSTALLED for part in root.parts)
    waiting, known = [module], set[str]()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if not name or name in known or top == _OWN_PACKAGE or (is_installed and top != package):
            continue
        known.add(name)
        waiting.append(name.rpartition(".")[0])
        base = root.joinpath(*name.split("."))
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.is_file():
                yield name, (source := file.read_bytes())
                waiting += _imports(source, name if file.name == "__init__.py" else name.rpartition(".")[0])
                break


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yield all names that a source may import as modules; relative imports are resolved in `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            parents = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
