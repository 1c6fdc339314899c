"""Data-parallel training: each rank computes its share of every batch, with whole-batch BatchNorm statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bench.errors import BenchError
from bench.ranks import Rank
from bench.validate import present


class SharedBatches:
    """Computes the logits of whole batches, of which each rank evaluates a share; all must pass the same images.

    The gradient of a loss of these logits equals that of one process, except for rounding and for random draws inside
    the network: batch normalisation uses the whole batch, and a weight's gradient is summed over the ranks as soon as a
    rank has it.
    """

    def __init__(self, model: nn.Module, rank: Rank) -> None:
        self._network, self._rank = model, rank
        for weight in model.parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(_sum_gradient)

    def __call__(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n, classes).

        Raises BenchError for images with gradients, which would omit other ranks' parts.
        """
        count = self._rank.count
        if images.requires_grad:
            raise BenchError(f"--devices {count}: the teacher's recipe needs gradients of images; use one")
        if len(images) < count:
            logits: Tensor = self._network(images)  # on every rank
            return logits / count + (logits * (1 - 1 / count)).detach()
        own = share(len(images), self._rank.index, count)
        with WholeBatchStatistics():
            mine: Tensor = self._network(images[own.start : own.stop])
        every = mine.new_zeros(len(images), *mine.shape[1:])
        every[own.start : own.stop] = mine.detach()
        dist.all_reduce(every)
        return torch.cat([every[: own.start], mine, every[own.stop :]])


def _sum_gradient(weight: Tensor) -> None:
    """Replace a gradient by its sum over the ranks, which may use different memory layouts."""
    total = present(weight.grad, "gradient").clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    weight.grad = total


class _SumOverRanks(torch.autograd.Function):
    """Autograd function: the sum over all ranks, on every rank; its gradient is also summed."""

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


class WholeBatchStatistics(TorchFunctionMode):
    """Context manager in which `F.batch_norm` in training normalises by mean and variance over all ranks' images.

    Every rank must call the same network, forward and backward, at the same time. Running statistics become those of
    the whole batch on every rank. (torch's SyncBatchNorm supports accelerators only.)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and (kwargs or {}).get("training", len(args) > 5 and args[5]):
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As `F.batch_norm` in training mode; x is (n, c, ...), with a separate n per rank."""
    seen, channels = x.float() if x.dtype == torch.bfloat16 else x, x.shape[1]
    others = [0, *range(2, x.dim())]
    counted = torch.full((1,), x.numel() // channels, dtype=torch.float64, device=x.device)
    # float64, as the variance is a difference of two sums
    sums = [seen.sum(others, dtype=torch.float64), seen.square().sum(others, dtype=torch.float64), counted]
    total = _SumOverRanks.apply(torch.cat(sums))
    n = total[-1]
    mean = total[:channels] / n
    variance = (total[channels:-1] / n - mean.square()).clamp_min(0)
    with torch.no_grad():
        for kept, found in ((running_mean, mean), (running_var, variance * (n / (n - 1)))):
            if kept is not None:
                kept.lerp_(found.to(kept.dtype), momentum)
    shape = (1, channels, *(1 for _ in others[1:]))
    scale = (variance + eps).rsqrt() if weight is None else (variance + eps).rsqrt() * weight
    found = (seen - mean.to(seen.dtype).view(shape)) * scale.to(seen.dtype).view(shape)
    return (found if bias is None else found + bias.view(shape)).to(x.dtype)


def share(things: int, rank: int, count: int) -> range:
    """Return the indices, in 0 to `things` - 1, of share number `rank` of `count`.

    The first shares may be longer by one.

    >>> [share(7, rank, 3) for rank in range(3)]
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    least, longer = divmod(things, count)
    start = rank * least + min(rank, longer)
    return range(start, start + least + (rank < longer))
