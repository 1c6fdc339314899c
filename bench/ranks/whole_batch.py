"""Batch normalisation of a batch that is shared out over ranks: statistics of all of it, as in one process.

torch's SyncBatchNorm does the same on accelerators alone, and by other layers in the network's place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WholeBatchStatistics(TorchFunctionMode):
    """Within it, `F.batch_norm` in training normalises by the mean and the variance over all ranks' images.

    Every rank must carry out the same network, forwards and backwards, at the same time. Running statistics become
    those of the whole batch on every rank.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _SumOverRanks(torch.autograd.Function):
    """The sum over all ranks, on all; what is minimised is the sum over all of them too."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor) -> Tensor:
        total = numbers.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As `F.batch_norm`: (n, c, ...), each rank its own n."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    seen, channels = x.float() if x.dtype == torch.bfloat16 else x, x.shape[1]
    others = [0, *range(2, x.dim())]
    counted = torch.full((1,), x.numel() // channels, dtype=torch.float64, device=x.device)
    # float64: the variance is a difference of two sums
    sums = [seen.sum(others, dtype=torch.float64), seen.square().sum(others, dtype=torch.float64), counted]
    total = _SumOverRanks.apply(torch.cat(sums))
    n = total[-1]
    mean = total[:channels] / n
    variance = (total[channels:-1] / n - mean.square()).clamp_min(0)
    with torch.no_grad():
        for kept, found in ((running_mean, mean), (running_var, variance * (n / (n - 1)))):
            if kept is not None:
                kept.lerp_(found.to(kept.dtype), momentum)
    scale = (variance + eps).rsqrt()
    shape = (1, channels, *(1 for _ in others[1:]))
    found = (seen - mean.to(seen.dtype).view(shape)) * scale.to(seen.dtype).view(shape)
    if weight is not None:
        found = found * weight.view(shape)
    return (found if bias is None else found + bias.view(shape)).to(x.dtype)
