"""The private gradient of a fully connected critic without any record's gradient ever being stored.

For a linear layer with input a_i and gradient d_i in its output, record i's gradients are d_i a_i^T and d_i, of squared
norm |d_i|^2 (|a_i|^2 + 1) together. So the norms of all records' gradients follow from one backward pass, and the
clipped sum is one product of matrices for each layer (Goodfellow, "Efficient Per-Example Gradient Computations", 2015).
The mechanism is that of `bench/dp_training/private_gradient.py`: sum of clip(g_i, C), plus N(0, z^2 C^2), over q n.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.dp_training.clipping import ROOM
from bench.dp_training.exact_products import exact_products
from bench.dp_training.private_gradient import Parameters, PrivateGradient
from bench.nets.conditional_gan import MlpCritic
from bench.privacy.noise import Source


def ghost_gradient(
    mechanism: PrivateGradient,
    critic: MlpCritic,
    loss: Callable[[Tensor], Tensor],
    rows: tuple[Tensor, Tensor],
    records: int,
    source: Source,
) -> Parameters:
    """Parameter name to the noisy mean gradient, as `mechanism` would give it.

    Args:
        loss: (m,) logits to (m,) losses, one of each record by itself.
        rows: (m, c, h, w) images and (m, classes) one-hot labels of the sampled records; m = 0 gives noise alone.
        records: n.
        source: of the noise.
    """
    with exact_products(rows[0].device):
        inputs, outputs = critic.traced(rows[0])
        logits = (outputs[-1] * rows[1]).sum(1)
        deltas = torch.autograd.grad(loss(logits).sum(), outputs)
    inputs = [a.detach() for a in inputs]
    squares = [d.square().sum(1) * (a.square().sum(1) + 1) for a, d in zip(inputs, deltas, strict=True)]
    norms = torch.stack(squares).sum(0).sqrt()
    broken = ~norms.isfinite()
    factor = (ROOM * mechanism.clip / norms.clamp_min(1e-30)).clamp(max=1.0).masked_fill(broken, 0.0)[:, None]
    total: Parameters = {}
    for name, a, d in zip(critic.linear_names(), inputs, deltas, strict=True):
        scaled = (factor * d.masked_fill(broken[:, None], 0.0)).double()
        total[f"{name}.weight"] = scaled.T @ a.masked_fill(broken[:, None], 0.0).double()
        total[f"{name}.bias"] = scaled.sum(0)
    return mechanism.released(total, dict(critic.named_parameters()), records, source)
