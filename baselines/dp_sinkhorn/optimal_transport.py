"""Entropic optimal transport between two small sets of points, in the logarithmic domain.

W_lambda(X, Y) = min over plans pi of sum_ij pi_ij c(x_i, y_j) + lambda KL(pi | a b), where pi has row sums a_i = 1 / n
and column sums b_j = 1 / m. With potentials f and g the optimum is pi_ij = a_i b_j exp((f_i + g_j - c_ij) / lambda);
Sinkhorn's iterations set f so that the rows are right, then g so that the columns are, in turn.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def ground_cost(x: Tensor, y: Tensor, linear: float) -> Tensor:
    """(n, m) costs ||x_i - y_j||_2^2 + linear ||x_i - y_j||_1 of (n, d) and (m, d) points, differentiable in both."""
    squares = x.square().sum(1)[:, None] + y.square().sum(1)[None] - 2 * x @ y.T
    return squares + linear * torch.cdist(x, y, p=1) if linear else squares


def annealing(start: float, regularisation: float, iterations: int) -> list[float]:
    """Regularisations to iterate at: `start`, its halves, quarters and so on, then `iterations` times the last one.

    >>> annealing(4.0, 1.0, 3)
    [4.0, 2.0, 1.0, 1.0, 1.0]
    """
    halvings = max(0, math.ceil(math.log2(start / regularisation)))
    return [start / 2**k for k in range(halvings)] + [regularisation] * iterations


@torch.no_grad()
def plan(cost: Tensor, scales: list[float]) -> Tensor:
    """(n, m) transport plan of uniform weights; rows sum to 1 / n exactly, columns to 1 / m as far as it converged.

    Args:
        cost: (n, m), n and m at least 1.
        scales: regularisations, one iteration each; the last one is lambda. Not empty.
    """
    n, m = cost.shape
    g = cost.new_zeros(m)
    for scale in scales:
        f = scale * (math.log(m) - ((g - cost) / scale).logsumexp(1))
        g = scale * (math.log(n) - ((f[:, None] - cost) / scale).logsumexp(0))
    return ((g - cost) / scales[-1]).softmax(1) / n


def transport(cost: Tensor, scales: list[float]) -> Tensor:
    """Cost of the plan, a scalar. Its gradient is that of W_lambda, since by the envelope theorem the optimal plan may
    be held constant."""
    return (plan(cost, scales) * cost).sum()
