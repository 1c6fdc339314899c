"""A second device for tests, made of CPU tensors: it refuses mixed arguments and counts what a GPU would wait for.

A tensor on the device is a `DeviceTensor`, a wrapper around a hidden CPU tensor; torch sees its device as `standin:0`.
`SecondDevice` is the dispatch mode that executes operators on the hidden CPU tensors, if all tensors with a shape are
on the device. As on CUDA, a tensor without dimensions may come from the CPU, an index may too, and a generator must
be on the device on which numbers are drawn.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAME = "standin"  # no name of an attribute of any module: torch adds a method of this name to all
aten = torch.ops.aten

READS = {aten._local_scalar_dense, aten.equal, aten.is_nonzero}
"""Operators whose result is a number on the host, for which it waits."""
SIZED_BY_VALUES = {
    aten.nonzero, aten.masked_select, aten.unique_dim, aten._unique2, aten.unique_consecutive, aten.repeat_interleave,
}  # fmt: skip
"""Operators whose result has a shape that the host must wait for."""
COPIES = {aten._to_copy, aten.copy_, aten.copy}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
"""Operators that take indices from the host; a mask among these is read first."""


class _Backend:
    """The interface that torch requires of a device's module."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing is drawn without a generator but on the CPU."""

    def device_count(self) -> int:
        return 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


LOWERED = ("conv1d", "conv2d", "conv_transpose2d.input", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm")
"""Operators that autocast carries out in bfloat16, as on CUDA."""
_KEY = "AutocastPrivateUse1"
_libraries: list[torch.library.Library] = []


def register() -> torch.device:
    """The device, known to torch from now on."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        backend_registration._setup_privateuseone_for_python_backend(NAME, _Backend())
        every, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        every.fallback(torch.library.fallthrough_kernel, _KEY)
        for name in LOWERED:
            some.impl(name, _lowered(_overload(name)), _KEY)
        _libraries.extend((every, some))  # what they registered goes when they go
    return torch.device(NAME, 0)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _lowered(operator: Any) -> Callable[..., Any]:
    def carried_out(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))):
            return operator(*tree_map(_halved, args), **tree_map(_halved, kwargs))

    return carried_out


def _halved(each: Any) -> Any:
    floating = isinstance(each, Tensor) and each.dtype == torch.float32
    return each.to(torch.get_autocast_dtype(NAME)) if floating else each


class Generator(torch.Generator):
    """A generator that says it is on the second device; `torch.Generator` under `SecondDevice`."""

    where: torch.device

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        if torch.device(device).type != NAME:
            return _Generator(device)
        made = super().__new__(cls, "cpu")
        made.where = torch.device(NAME, 0)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.where


_Generator = torch.Generator


class DeviceTensor(Tensor):
    """A tensor on the second device; `hidden` is what it holds, on the CPU."""

    hidden: Tensor

    @staticmethod
    def __new__(cls, hidden: Tensor) -> DeviceTensor:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            hidden.size(),
            strides=hidden.stride(),
            storage_offset=hidden.storage_offset(),
            dtype=hidden.dtype,
            layout=hidden.layout,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.hidden = hidden
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on the second device outside of SecondDevice")

    def tolist(self) -> Any:
        """Copy through the host, as torch does for a private-use device."""
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DeviceTensor({self.hidden!r})"


class _OwnGenerators(TorchFunctionMode):
    """Refuses a generator of another device. Here, since dispatched operators do not see that it is a `Generator`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for rng in (each for each in (*args, *kwargs.values()) if isinstance(each, _Generator)):
            places = [each.device for each in args if isinstance(each, Tensor)]
            place = torch.device(kwargs.get("device") or (places[0] if places else "cpu"))
            if place.type != rng.device.type:
                raise RuntimeError(f"{func.__name__}: Expected a '{place}' device type for generator, got {rng.device}")
        return func(*args, **kwargs)


class SecondDevice(TorchDispatchMode):
    """Executes operations on tensors of the device.

    Attributes:
        inside: the project's folder.
        transfers: copies from the host to the device, by the line of the project that caused them.
        waits: reads of the device by the host, by that line.
    """

    def __init__(self, inside: Path) -> None:
        super().__init__()
        self.inside = str(inside)
        self._generators = _OwnGenerators()
        self.transfers: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __enter__(self) -> SecondDevice:
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device) is to be a copy that is seen here
        self._generators.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._generators.__exit__(*raised)
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat, spec = tree_flatten((args, kwargs))
        mine = [each for each in flat if isinstance(each, DeviceTensor)]
        asked = kwargs.get("device")
        asked = None if asked is None else torch.device(asked)
        there = (asked.type == NAME) if asked is not None else bool(mine)
        packet = func.overloadpacket
        if not mine and not there:
            return func(*args, **kwargs)
        self._count(packet, flat, mine, there)
        self._refuse(func, packet, flat, mine)
        plain, plain_kwargs = tree_unflatten([_bare(each) for each in flat], spec)
        out = func(*plain, **plain_kwargs)
        if packet in READS or not there:
            return out
        if packet is aten.copy_ and not isinstance(args[0], DeviceTensor):
            return args[0]
        return return_and_correct_aliasing(func, args, kwargs, tree_map(_wrapped, out))

    def _refuse(self, func: Any, packet: Any, flat: list[Any], mine: list[Tensor]) -> None:
        """Raises RuntimeError for arguments of both devices."""
        if packet in COPIES:
            return
        others = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, DeviceTensor)]
        if packet in INDEXED:
            others = [each for each in others if each.dtype.is_floating_point]
        if mine and any(each.ndim for each in others):
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device, got standin and cpu")

    def _count(self, packet: Any, flat: list[Any], mine: list[Tensor], there: bool) -> None:
        masks = packet in INDEXED and any(
            isinstance(each, DeviceTensor) and each.dtype in (torch.bool, torch.uint8) for each in flat[1:]
        )
        if packet in READS or packet in SIZED_BY_VALUES or masks or (mine and not there):
            self.waits[self._line()] += 1
        elif packet is aten._to_copy and not mine:
            self.transfers[self._line()] += 1
        elif packet is aten.copy_ and len(mine) == 1:
            (self.transfers if isinstance(flat[0], DeviceTensor) else self.waits)[self._line()] += 1

    def _line(self) -> str:
        """The innermost line of the project, FILE:LINE."""
        for frame in reversed(traceback.extract_stack()):
            path = frame.filename.removeprefix(f"{self.inside}/")
            if not path.startswith(("/", "tests/", ".venv")):
                return f"{path}:{frame.lineno}"
        return "elsewhere"


def _bare(each: Any) -> Any:
    if isinstance(each, DeviceTensor):
        return each.hidden
    if isinstance(each, torch.device) and each.type == NAME:
        return torch.device("cpu")
    return each


def _wrapped(each: Any) -> Any:
    if not isinstance(each, Tensor) or isinstance(each, DeviceTensor):
        return each
    return DeviceTensor(each.resolve_conj().resolve_neg())  # the wrapper does not say that they are pending


if hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    register()  # on import, before anything is trained: torch counts devices when it first goes backward
