"""Products of matrices in float32 as such: what the room for rounding in a sensitivity is computed for.

Under autocast, or where a GPU multiplies in TF32, factors are rounded to 8 or 11 bits first, and one record moves a sum
of clipped gradients by more than the clipping norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bench.errors import BenchError


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Without autocast on the device.

    Raises:
        BenchError: float32 products are set to be less exact (`torch.set_float32_matmul_precision`).
    """
    setting = torch.get_float32_matmul_precision()
    if setting != "highest":
        raise BenchError(
            f"torch.get_float32_matmul_precision() is '{setting}'; private training expects 'highest': with less, a "
            "record moves a sum by more than its clipping norm; call torch.set_float32_matmul_precision('highest')"
        )
    with torch.autocast(device.type, enabled=False):
        yield
