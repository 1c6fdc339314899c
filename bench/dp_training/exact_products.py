"""Float32 products and convolutions as such: what the room for rounding in a sensitivity is computed for.

Under autocast, or where a GPU multiplies in TF32, factors are rounded to 8 or 11 bits first, and one record moves a sum
of clipped gradients by more than the clipping norm. That goes for the kernels that a gradient comes from, too: which of
them runs may depend on the size of a chunk, and so a record that leaves would move the gradients of all others in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.errors import BenchError

EXACT = ("ieee", "none")
"""Values of `fp32_precision` that leave float32 as it is."""
BACKENDS = (("mkldnn", "conv"), ("mkldnn", "matmul"), ("cuda", "matmul"))
"""Whose `fp32_precision` may be lowered since torch 2.9."""
CUDNN = ("conv", "rnn")
"""What cuDNN does in TF32 unless it is told not to; that is done here, as it is torch's default."""
ENVIRONMENT = {
    "ONEDNN_DEFAULT_FPMATH_MODE": "strict",
    "DNNL_DEFAULT_FPMATH_MODE": "strict",
    "NVIDIA_TF32_OVERRIDE": "0",
}
"""What oneDNN and NVIDIA's libraries are told behind torch's back, by which CPUs round to bfloat16, and the value that
leaves float32 as it is."""


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Without autocast on the device, and without cuDNN's convolutions in TF32, which are torch's default.

    Raises:
        BenchError: float32 products or convolutions are set to be less exact, as by
            `torch.set_float32_matmul_precision`, `torch.backends.mkldnn.conv.fp32_precision` or the environment.
    """
    _check_products()
    with torch.autocast(device.type, enabled=False), _cudnn_without_tf32():
        yield


@contextmanager
def _cudnn_without_tf32() -> Iterator[None]:
    """By torch's older switch and kind by kind, which the switch alone leaves to what `torch.backends` has for all."""
    cudnn: Any = torch.backends.cudnn
    kinds: list[Any] = [getattr(cudnn, name) for name in CUDNN if hasattr(getattr(cudnn, name, None), "fp32_precision")]
    precisions = [kind.fp32_precision for kind in kinds]
    try:
        switch = cudnn.allow_tf32
    except RuntimeError:  # torch names none where the kinds were set unlike each other; nothing reads it then
        switch = None
    try:
        if switch is not None:
            cudnn.allow_tf32 = False
        for kind in kinds:
            kind.fp32_precision = "ieee"
        yield
    finally:
        if switch is not None:
            cudnn.allow_tf32 = switch
        for kind, precision in zip(kinds, precisions, strict=True):
            kind.fp32_precision = precision


def _check_products() -> None:
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch names no common one where they were set backend by backend
        setting = "highest"
    if setting != "highest":
        raise BenchError(
            f"torch.get_float32_matmul_precision() is '{setting}'; private training expects 'highest': with less, a "
            "record moves a sum by more than its clipping norm; call torch.set_float32_matmul_precision('highest')"
        )
    for backend, name in BACKENDS:
        found = getattr(getattr(getattr(torch.backends, backend), name, None), "fp32_precision", "none")
        if found not in EXACT:
            raise BenchError(
                f"torch.backends.{backend}.{name}.fp32_precision is '{found}'; private training expects 'ieee': with "
                "less, a record moves a sum by more than its clipping norm"
            )
    for name, exact in ENVIRONMENT.items():
        if os.environ.get(name, exact).lower() != exact:
            raise BenchError(
                f"the environment has {name}={os.environ[name]}; private training expects '{exact}', or none: with "
                "less, a record moves a sum by more than its clipping norm"
            )
