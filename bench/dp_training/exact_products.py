"""Force full-precision float32 products and convolutions, which the sensitivity's rounding allowance assumes.

Under autocast, or where a GPU multiplies in TF32, factors are rounded to 8 or 11 bits first, and one record changes a
sum of clipped gradients by more than the clipping norm. The same applies to the kernels that compute gradients: the
choice of kernel may depend on the size of a chunk, so that removing a record would change the gradients of all others
in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.errors import BenchError

EXACT = ("ieee", "none")
"""Values of `fp32_precision` that keep float32 products exact."""
BACKENDS = (("mkldnn", "conv"), ("mkldnn", "matmul"), ("cuda", "matmul"))
"""Backends and operators whose `fp32_precision` may be lowered since torch 2.9."""
CUDNN = ("conv", "rnn")
"""Operators that cuDNN computes in TF32 by torch's default; `exact_products` switches this off."""
ENVIRONMENT = {
    "ONEDNN_DEFAULT_FPMATH_MODE": "strict",
    "DNNL_DEFAULT_FPMATH_MODE": "strict",
    "NVIDIA_TF32_OVERRIDE": "0",
}
"""Environment variables of oneDNN and NVIDIA's libraries that lower the precision without torch's knowledge, and the
value of each that keeps float32 exact."""


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Context manager: no autocast on the device, and no TF32 in cuDNN's convolutions, which torch uses by default.

    Raises:
        BenchError: float32 products or convolutions are set to a lower precision, as by
            `torch.set_float32_matmul_precision`, `torch.backends.mkldnn.conv.fp32_precision` or the environment.
    """
    _check_precision()
    with torch.autocast(device.type, enabled=False), _cudnn_without_tf32():
        yield


@contextmanager
def _cudnn_without_tf32() -> Iterator[None]:
    """Switch TF32 off globally and per operator, as operators otherwise keep the setting of `torch.backends`."""
    cudnn: Any = torch.backends.cudnn
    kinds: list[Any] = [getattr(cudnn, name) for name in CUDNN if hasattr(getattr(cudnn, name, None), "fp32_precision")]
    precisions = [kind.fp32_precision for kind in kinds]
    try:
        switch = cudnn.allow_tf32
    except RuntimeError:  # torch raises if the operators' settings differ; nothing reads the switch then
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


def _check_precision() -> None:
    """Raise BenchError if torch or the environment lowers the precision of float32 products or convolutions."""
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch raises if the backends' settings differ
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
