"""Losses of data-free distillation: student and generator losses on logits, and a loss on images."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Loss per row: (n, c) student logits, (n, c) teacher logits -> (n,) losses."""


def kd_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the loss of knowledge distillation (Hinton et al., 2015) at temperature 1: KL(p_t || p_s) per row.

    Args:
        student: (n, c) logits.
        teacher: (n, c) logits.

    Returns:
        (n,) non-negative losses in nats.
    """
    return F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True).sum(1)


def dkd_loss(student: Tensor, teacher: Tensor, weight: float) -> Tensor:
    """Return the loss of decoupled distillation (Zhao et al., CVPR 2022; DPSD Eq. 2): l_tc + weight * l_nc per row.

    With r = argmax p_t: l_tc is the KL divergence between (p_t,r, 1 - p_t,r) and (p_s,r, 1 - p_s,r); l_nc the KL
    divergence between the distributions over the other classes, p_j / (1 - p_r).

    Args:
        student: (n, c) logits.
        teacher: (n, c) logits.
        weight: lambda of Eq. 2, >= 0.

    Returns:
        (n,) non-negative losses in nats.
    """
    r = teacher.argmax(1, keepdim=True)
    target_part = F.kl_div(_binary(student, r), _binary(teacher, r), reduction="none", log_target=True).sum(1)
    return target_part + weight * kd_loss(_without(student, r), _without(teacher, r))


def _binary(logits: Tensor, r: Tensor) -> Tensor:
    """Return (n, 2): log p_r and log(1 - p_r), computed without cancellation."""
    log_all = logits.logsumexp(1)
    log_target = logits.gather(1, r)[:, 0] - log_all
    log_rest = _without(logits, r).logsumexp(1) - log_all
    return torch.stack([log_target, log_rest], 1)


def _without(logits: Tensor, r: Tensor) -> Tensor:
    """Return (n, c - 1) logits of the classes other than r (n, 1); their softmax is p_j / (1 - p_r)."""
    others = torch.arange(logits.shape[1] - 1, device=logits.device).expand(len(logits), -1)
    return logits.gather(1, others + (others >= r).long())


def gradient_at_output(loss: RowLoss, student: Tensor, teacher: Tensor) -> Tensor:
    """Return (n, c): the gradient of each row's loss with respect to the student's logits of that row."""
    student = student.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(student, teacher).sum(), student)
    return gradient


def confidence_loss(logits: Tensor) -> Tensor:
    """Return the first generator term (DPSD Eq. 8, CE): cross-entropy of each output to its own argmax, batch mean."""
    return F.cross_entropy(logits, logits.argmax(1))


def balance_loss(logits: Tensor, per_sample: bool) -> Tensor:
    """Return the second generator term (DPSD Eq. 8, IE): sum_j p_j log p_j, of the batch mean p or of every sample.

    For the batch mean it is smallest when all classes are equally frequent, which is the aim in the papers' text; per
    sample, as in the published formula, it is smallest when every single output is flat.
    """
    log_p = logits.log_softmax(1)
    if per_sample:
        return (log_p.exp() * log_p).sum(1).mean()
    mean = log_p.exp().mean(0)
    return (mean * mean.clamp_min(1e-12).log()).sum()


def activation_loss(features: Tensor, up: bool) -> Tensor:
    """Return the third generator term (DPSD Eq. 8, NORM): plus or minus the features' L2 norm, batch mean.

    `up` rewards large activations, as real images have (the papers' text); False uses the sign of the published
    formula.
    """
    norm = features.flatten(1).norm(dim=1).mean()
    return -norm if up else norm


def total_variation(x: Tensor) -> Tensor:
    """Return R_TV of DeepInversion (Yin et al., CVPR 2020) for (n, c, h, w) images.

    The sum of the L2 norms of the differences to the right, lower and two diagonal neighbours.
    """
    right, down = x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]
    falling, rising = x[..., 1:, 1:] - x[..., :-1, :-1], x[..., 1:, :-1] - x[..., :-1, 1:]
    return right.norm() + down.norm() + falling.norm() + rising.norm()
