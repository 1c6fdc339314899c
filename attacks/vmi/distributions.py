"""Families of q in VMI: many normal distributions or flows of latents in parallel, and their KL to N(0, I)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import elu

from bench.api import Tensors


def gaussian(q: Tensors, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Return z = m + L eps and KL(N(m, L L^T) || N(0, I)) = (||L||_F^2 + ||m||^2 - d) / 2 - log det L.

    Args:
        q: "mean" m (n, d), "log_scale" (n, d) the logarithms of L's diagonal, and for a full covariance "below"
            (n, d, d), whose entries below the diagonal are those of L.
        eps: (n, samples, d).

    Returns:
        (n, samples, d) and (n,).
    """
    mean, log_scale = q["mean"], q["log_scale"]
    scale = log_scale.exp()
    z = mean.unsqueeze(1) + scale.unsqueeze(1) * eps
    squares = scale.square().sum(1) + mean.square().sum(1)
    if "below" in q:
        below = q["below"].tril(-1)
        z = z + eps @ below.mT
        squares = squares + below.square().sum((1, 2))
    return z, (squares - mean.shape[1]) / 2 - log_scale.sum(1)


def start_flow(count: int, latent: int, steps: int, hidden: int, rng: torch.Generator) -> Tensors:
    """Return parameters of `count` flows that only reverse the coordinates; the first axis of all is `count`.

    "log_scale" and "shift" (steps, latent); couplings "w1" (steps, first, hidden), "c1" (steps, 1, hidden),
    "w2" (steps, hidden, second), "c2" (steps, 1, second), where second = latent // 2 and first = latent - second.
    """
    second = latent // 2
    first = latent - second
    sizes = {
        "log_scale": (latent,),
        "shift": (latent,),
        "c1": (1, hidden),
        "w2": (hidden, second),
        "c2": (1, second),
    }
    q = {name: torch.zeros(count, steps, *size, device=rng.device) for name, size in sizes.items()}
    q["w1"] = torch.randn(count, steps, first, hidden, generator=rng, device=rng.device) / math.sqrt(first)
    return q


def flow(q: Tensors, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Return z = f_K(.. f_1(eps)), and the mean over samples of log q(z) - log N(z; 0, I), an estimate of KL.

    Args:
        q: parameters as in `start_flow`. eps: (n, samples, d).

    Returns:
        (n, samples, d) and (n,).
    """
    z = eps
    first = q["w1"].shape[2]
    for k in range(q["shift"].shape[1]):
        z = (q["log_scale"][:, k].exp().unsqueeze(1) * z + q["shift"][:, k].unsqueeze(1)).flip(-1)
        a, b = z[..., :first], z[..., first:]
        hidden = elu(torch.baddbmm(q["c1"][:, k], a, q["w1"][:, k]))
        z = torch.cat([a, b + torch.baddbmm(q["c2"][:, k], hidden, q["w2"][:, k])], -1)
    gap = (z.square().sum(-1) - eps.square().sum(-1)) / 2
    return z, gap.mean(1) - q["log_scale"].sum((1, 2))
