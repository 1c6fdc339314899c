"""Content hashes of classes, functions and objects that a user defines, for example in a notebook.

A cached step may be reused only if the same code ran on the same values. So a class is hashed by the byte code of its
functions, and by all of the user's objects that they read: constants, other functions and classes, local modules.
Code of installed packages, of the standard library and of this project is identified only by its name, as for plug-ins
in files (`version` marks their changes). An object that cannot be hashed gets a unique hash: then no step is reused,
and no stale result can appear.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pickle
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

LENGTH = 16
"""Number of hex digits of a hash."""
_LIBRARIES = ("site-packages", "dist-packages")
_PROJECT = Path(__file__).resolve().parent.parent
_PROJECT_FOLDERS = ("bench", "methods", "baselines", "attacks")
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice)
_IGNORED = {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"}
_IGNORED |= {"training", "_is_torch_compile", "_compiled_call_impl"}
"""Attributes without effect on results: a run sets the training mode and compilation itself."""


def fingerprint(value: Any) -> str:
    """Return 16 hex digits that are the same for equal content, in every process of one Python version.

    Args:
        value: a class, a function, a torch module with its weights, a tensor, an array or a plain value.
    """
    return _Hasher().digest(value).hex()[:LENGTH]


class _Hasher:
    """Hashes one value; an object that occurred before is identified by its position in the reading order."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}

    def digest(self, value: Any) -> bytes:
        """Return the SHA-256 of the parts of a value."""
        parts: Iterable[bytes]
        if isinstance(value, _PLAIN):
            parts = [f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass")]
        elif id(value) in self._seen:
            parts = [f"seen {self._seen[id(value)][0]}".encode()]
        else:
            self._seen[id(value)] = len(self._seen), value  # keeps a reference, so that no other object gets its id
            parts = itertools.chain([type(value).__qualname__.encode()], self._content(value))
        total = hashlib.sha256()
        for part in parts:
            total.update(len(part).to_bytes(8, "big") + part)
        return total.digest()

    def _content(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield self.digest(key)
                yield self.digest(item)
        elif isinstance(value, set | frozenset):
            yield from sorted(_Hasher().digest(item) for item in value)
        elif isinstance(value, list | tuple):
            yield from map(self.digest, value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, MethodType):
            yield self.digest(value.__func__)
            yield self.digest(value.__self__)
        elif isinstance(value, CodeType):
            yield value.co_code
            yield repr((value.co_names, value.co_varnames, value.co_freevars, value.co_flags)).encode()
            yield from map(self.digest, value.co_consts)
        elif isinstance(value, ModuleType):
            yield value.__name__.encode()
            file = getattr(value, "__file__", None)
            if file is not None and not _is_installed(value.__name__):
                yield Path(file).read_bytes()
        elif isinstance(value, property):
            yield from map(self.digest, (value.fget, value.fset))
        elif isinstance(value, staticmethod | classmethod):
            yield self.digest(value.__func__)
        elif isinstance(value, BuiltinFunctionType):
            yield f"{value.__module__}.{value.__qualname__}".encode()
        elif (array := _as_array(value)) is not None:
            yield f"{value.dtype} {tuple(value.shape)}".encode()
            yield array.tobytes()
        else:
            yield from self._object(value)

    def _class(self, cls: type) -> Iterator[bytes]:
        yield f"{cls.__module__}.{cls.__qualname__}".encode()
        if _is_installed(cls.__module__):
            return
        yield from map(self.digest, cls.__bases__)
        for name, member in sorted(vars(cls).items()):
            # `dataclass` compiles methods from a string; they follow from the fields
            is_generated = isinstance(member, FunctionType) and member.__code__.co_filename == "<string>"
            if name not in _IGNORED and not name.startswith(("_abc_", "__dataclass_")) and not is_generated:
                yield name.encode()
                yield self.digest(member)
        for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
            yield f"{field.name} {field.type}".encode()
            yield from (self.digest(each) for each in (field.default, field.default_factory))

    def _function(self, function: FunctionType) -> Iterator[bytes]:
        yield f"{function.__module__}.{function.__qualname__}".encode()
        if _is_installed(function.__module__):
            return
        yield self.digest(function.__code__)
        yield self.digest(function.__defaults__)
        yield self.digest(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:  # bound later, such as a class in its own body
                contents = None
            yield self.digest(contents)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield name.encode()
                yield self.digest(function.__globals__[name])

    def _object(self, value: Any) -> Iterator[bytes]:
        yield self.digest(type(value))
        fields = getattr(value, "__dict__", None)
        if isinstance(fields, dict) and ("_modules" in fields or hasattr(type(value), "__dataclass_fields__")):
            for name, item in sorted(fields.items()):
                if name not in _IGNORED:
                    yield name.encode()
                    # torch numbers the hooks of all modules in a process: their order matters, the numbers do not
                    yield self.digest(list(item.values()) if "_hooks" in name and isinstance(item, dict) else item)
            return
        try:
            yield pickle.dumps(value, protocol=4)
        except Exception:  # pickling runs the object's code and may fail; the hash is then unique
            yield uuid.uuid4().bytes


def _as_array(value: Any) -> Any:
    """Return a torch tensor or a NumPy array as an array on the CPU; None for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return None
        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return None if value.dtype.hasobject else numpy.ascontiguousarray(value)
    return None


def _names(code: CodeType) -> set[str]:
    """Return the global names and attributes that a function and its inner functions read."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names}.union(*inner)


def _is_installed(module: str | None) -> bool:
    """Whether code belongs to this project, the standard library or an installed package."""
    top = (module or "").partition(".")[0]
    if not top or top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return top != "__main__"
    file = getattr(sys.modules.get(module or ""), "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    ours = path.is_relative_to(_PROJECT) and path.relative_to(_PROJECT).parts[0] in _PROJECT_FOLDERS
    return ours or any(part in _LIBRARIES for part in path.parts)
