"""Rules for per-sample gradients of single layers, from the layer's input and the gradient of its output.

A linear layer or a convolution is linear in its weights: a record's gradient is a product of the layer's inputs and of
the gradients of its outputs, both of that record. A row per record is formed. Norms from Gram matrices (Goodfellow
2015; Bu et al. 2022), which need no rows, are not used: the norm of a convolution's gradient would then have a rounding
error relative to terms that may cancel, for which the allowance of `clipping` has no bound.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.nets.classifiers.wide_resnets import LEAST_SPREAD, StandardisedConv

Rows = dict[str, Tensor]
"""{name of a layer's own parameter: (n, *shape) gradients, one row per record}."""


def is_supported(layer: nn.Module) -> bool:
    """Return whether `ROWS` has a rule for this layer as it is configured."""
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return False
    return type(layer) in ROWS


def with_channels_last(images: Tensor) -> Tensor:
    """Return (n, c, h, w) in the memory order n, h, w, c; for one channel the strides say so explicitly."""
    _, c, h, w = images.shape
    laid_out = images.contiguous(memory_format=torch.channels_last)
    return laid_out.as_strided(images.shape, (h * w * c, 1, w * c, c))


def linear_rows(layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> Rows:
    """Return rows of weight and bias from (n, ..., inputs) and (n, ..., outputs)."""
    if inputs.ndim == 2:
        weight, bias = gradient.unsqueeze(2) * inputs.unsqueeze(1), gradient
    else:
        left, right = gradient.flatten(1, -2), inputs.flatten(1, -2)
        weight, bias = left.transpose(1, 2) @ right, left.sum(1)
    return {"weight": weight} if layer.bias is None else {"weight": weight, "bias": bias}


def filter_rows(layer: nn.Conv2d, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Return (n, outputs, inputs / groups, k, k): gradients of a convolution's applied filters.

    Args:
        inputs: (n, inputs, h, w).
        gradient: (n, outputs, h', w') of the outputs.
    """
    n, groups = len(inputs), layer.groups
    windows = unfolded(layer, inputs).unflatten(2, (groups, -1)).transpose(1, 2)
    each = gradient.flatten(2).unflatten(1, (groups, -1))
    return (each @ windows).reshape(n, *layer.weight.shape)


def unfolded(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return (n, h' w', inputs k k): the windows that the convolution multiplies with its filters, one a position."""
    if isinstance(layer.padding, str):
        raise ValueError(f"padding '{layer.padding}' has no rule; expected numbers of pixels")
    (pad_h, pad_w), (k_h, k_w), (stride_h, stride_w) = layer.padding, layer.kernel_size, layer.stride
    dilation_h, dilation_w = layer.dilation
    padded = F.pad(inputs, (pad_w, pad_w, pad_h, pad_h)) if pad_h or pad_w else inputs
    n, c, h, w = padded.shape
    made = (h - dilation_h * (k_h - 1) - 1) // stride_h + 1, (w - dilation_w * (k_w - 1) - 1) // stride_w + 1
    next_n, next_c, next_h, next_w = padded.stride()
    steps = next_n, next_h * stride_h, next_w * stride_w, next_c, next_h * dilation_h, next_w * dilation_w
    windows = padded.as_strided((n, *made, c, k_h, k_w), steps, padded.storage_offset())
    return windows.reshape(n, made[0] * made[1], c * k_h * k_w)


def convolution_rows(layer: nn.Conv2d, inputs: Tensor, gradient: Tensor) -> Rows:
    """Return rows of weight and bias."""
    weight = filter_rows(layer, inputs, gradient)
    return {"weight": weight} if layer.bias is None else {"weight": weight, "bias": gradient.sum((2, 3))}


def standardised_rows(layer: StandardisedConv, inputs: Tensor, gradient: Tensor) -> Rows:
    """Return rows of weight, gain and bias: the gradients of the applied filters, through the standardisation.

    With the centred filter v = w - mean(w), its factor s = 1 / |v| and u = s v, the applied filter is gain u. A
    gradient G of it is <G, u> for the gain, and gain s (G - mean(G) - <G, u> u) for w; without the last term where
    |v|^2 is below its limit, and s is constant.
    """
    weight = layer.weight.detach()
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    squared = variance * weight[0].numel()
    factor = squared.clamp_min(LEAST_SPREAD).rsqrt()
    unit = (weight - mean) * factor
    applied = filter_rows(layer, inputs, gradient)
    gain = (applied * unit).sum((2, 3, 4))
    along = gain[:, :, None, None, None] * (unit * (squared > LEAST_SPREAD))
    centred = applied - applied.mean((2, 3, 4), keepdim=True) - along
    rows = {"weight": centred * (factor * layer.gain.detach().view(-1, 1, 1, 1)), "gain": gain}
    return rows if layer.bias is None else {**rows, "bias": gradient.sum((2, 3))}


def group_norm_rows(layer: nn.GroupNorm, inputs: Tensor, gradient: Tensor) -> Rows:
    """Return rows of weight and bias from (n, channels, ...) inputs."""
    normal = F.group_norm(inputs, layer.num_groups, eps=layer.eps)
    dimensions = list(range(2, gradient.ndim))
    if not dimensions:
        return {"weight": gradient * normal, "bias": gradient}
    return {"weight": (gradient * normal).sum(dimensions), "bias": gradient.sum(dimensions)}


def layer_norm_rows(layer: nn.LayerNorm, inputs: Tensor, gradient: Tensor) -> Rows:
    """Return rows of weight and bias from (n, ..., *normalised shape) inputs."""
    normal = F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    shape = (len(inputs), -1, *layer.normalized_shape)
    rows = {"weight": (gradient * normal).reshape(shape).sum(1), "bias": gradient.reshape(shape).sum(1)}
    return rows if layer.bias is not None else {"weight": rows["weight"]}


ROWS: dict[type[nn.Module], Callable[..., Rows]] = {
    nn.Linear: linear_rows,
    nn.Conv2d: convolution_rows,
    StandardisedConv: standardised_rows,
    nn.GroupNorm: group_norm_rows,
    nn.LayerNorm: layer_norm_rows,
}
"""Layer class -> rule of its rows: (layer, input, gradient of the output) -> rows. Subclasses have separate rules."""
