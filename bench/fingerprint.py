"""Content hashes of classes, functions and objects that a user defines, as in a notebook.

A cached step may be used again only where the same code ran on the same values. So a class is hashed by the byte code
of its functions, and by everything of the user's that they read: constants, other functions and classes, local modules.
Code of installed packages, of the standard library and of this project counts only by its name, as it does for
plug-ins in files (`version` says when these change). An object that cannot be read gets a hash that no other object
ever has: then nothing is used again, and nothing stale either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

LENGTH = 16
"""Hex digits of a hash."""
_INSTALLED = ("site-packages", "dist-packages")
_PROJECT = Path(__file__).resolve().parent.parent
_PROJECT_FOLDERS = ("bench", "methods", "baselines", "attacks")
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice)
_UNREAD = {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"}
_UNREAD |= {"training", "_is_torch_compile", "_compiled_call_impl"}
"""Attributes that change no result: a run sets the training mode itself, and compiles what it compiles."""


def fingerprint(value: Any) -> str:
    """16 hex digits that are the same for equal content, in every process of one Python version.

    Args:
        value: a class, a function, a module of torch with its weights, a tensor, an array or a plain value.
    """
    return _Reader().digest(value).hex()[:LENGTH]


class _Reader:
    """Reads one value; an object that was met before is named by its place in the order of reading."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}

    def digest(self, value: Any) -> bytes:
        """SHA-256 of the parts of a value."""
        total = hashlib.sha256()
        for part in self._parts(value):
            total.update(len(part).to_bytes(8, "big") + part)
        return total.digest()

    def _parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass")
            return
        if id(value) in self._seen:
            yield f"seen {self._seen[id(value)][0]}".encode()
            return
        self._seen[id(value)] = len(self._seen), value  # kept with it, so that no other object comes to have its id
        yield type(value).__qualname__.encode()
        yield from self._content(value)

    def _content(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield self.digest(key)
                yield self.digest(item)
        elif isinstance(value, set | frozenset):
            yield from sorted(_Reader().digest(item) for item in value)
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
            yield from self._code(value)
        elif isinstance(value, ModuleType):
            yield from _module(value)
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
        if _is_others(cls.__module__):
            return
        yield from map(self.digest, cls.__bases__)
        for name, member in sorted(vars(cls).items()):
            if name not in _UNREAD and not name.startswith(("_abc_", "__dataclass_")) and not _is_generated(member):
                yield name.encode()
                yield self.digest(member)
        for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
            yield f"{field.name} {field.type}".encode()
            yield from (self.digest(each) for each in (field.default, field.default_factory))

    def _function(self, function: FunctionType) -> Iterator[bytes]:
        yield f"{function.__module__}.{function.__qualname__}".encode()
        if _is_others(function.__module__):
            return
        yield self.digest(function.__code__)
        yield self.digest(function.__defaults__)
        yield self.digest(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            yield self.digest(_held(cell))
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield name.encode()
                yield self.digest(function.__globals__[name])

    def _code(self, code: CodeType) -> Iterator[bytes]:
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode()
        yield from map(self.digest, code.co_consts)

    def _object(self, value: Any) -> Iterator[bytes]:
        yield self.digest(type(value))
        fields = getattr(value, "__dict__", None)
        if isinstance(fields, dict) and ("_modules" in fields or hasattr(type(value), "__dataclass_fields__")):
            for name, item in sorted(fields.items()):
                if name not in _UNREAD:
                    yield name.encode()
                    # torch numbers the hooks of all modules of a process: their order counts, the numbers do not
                    yield self.digest(list(item.values()) if "_hooks" in name and isinstance(item, dict) else item)
            return
        try:
            yield pickle.dumps(value, protocol=4)
        except Exception:  # pickling runs the object's own code; without its content the object is like no other
            yield uuid.uuid4().bytes


def _as_array(value: Any) -> Any:
    """A tensor of torch or an array of NumPy as an array on the CPU; None of anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return None
        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return None if value.dtype.hasobject else numpy.ascontiguousarray(value)
    return None


def _is_generated(member: Any) -> bool:
    """Whether a function was written by `dataclass`; it follows from the fields."""
    return isinstance(member, FunctionType) and member.__code__.co_filename == "<string>"


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later, such as that of a class in its own body
        return None


def _names(code: CodeType) -> set[str]:
    """The global names and attributes that a function reads, those of functions inside it too."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names}.union(*inner)


def _is_others(module: str | None) -> bool:
    """Whether code is of this project, the standard library or an installed package."""
    top = (module or "").partition(".")[0]
    if not top or top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return top != "__main__"
    file = getattr(sys.modules.get(module or ""), "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    ours = path.is_relative_to(_PROJECT) and path.relative_to(_PROJECT).parts[0] in _PROJECT_FOLDERS
    return ours or any(part in _INSTALLED for part in path.parts)


def _module(module: ModuleType) -> Iterator[bytes]:
    """The name of a module; of a user's own, also the content of its file."""
    yield module.__name__.encode()
    file = getattr(module, "__file__", None)
    if file is not None and not _is_others(module.__name__):
        yield Path(file).read_bytes()
