"""Shared machinery of data-free distillation: distillation losses and generator losses, per row, on logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RowLoss = Callable[[Tensor, Tensor], Tensor]
Network = TypeVar("Network", bound=nn.Module)


def kd_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Knowledge distillation (Hinton et al., 2015) at temperature 1: KL(p_t || p_s) per row.

    Args:
        student: (n, c) logits.
        teacher: (n, c) logits.

    Returns:
        (n,) non-negative losses in nats.
    """
    return F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True).sum(1)


def dkd_loss(student: Tensor, teacher: Tensor, weight: float) -> Tensor:
    """Decoupled knowledge distillation (Zhao et al., CVPR 2022; DPSD Eq. 2): l_tc + weight * l_nc per row.

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
    """(n, 2): log p_r and log(1 - p_r), without cancellation."""
    log_all = logits.logsumexp(1)
    log_target = logits.gather(1, r)[:, 0] - log_all
    log_rest = _without(logits, r).logsumexp(1) - log_all
    return torch.stack([log_target, log_rest], 1)


def _without(logits: Tensor, r: Tensor) -> Tensor:
    """(n, c - 1): the logits of the classes other than r (n, 1); their softmax is p_j / (1 - p_r)."""
    others = torch.arange(logits.shape[1] - 1, device=logits.device).expand(len(logits), -1)
    return logits.gather(1, others + (others >= r).long())


def gradient_at_output(loss: RowLoss, student: Tensor, teacher: Tensor) -> Tensor:
    """(n, c): the gradient of each row's loss with respect to the student's logits of that row."""
    student = student.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(student, teacher).sum(), student)
    return gradient


def confidence_loss(logits: Tensor) -> Tensor:
    """First generator term (DPSD Eq. 8, CE): cross-entropy of each output to its own argmax, batch mean."""
    return F.cross_entropy(logits, logits.argmax(1))


def balance_loss(logits: Tensor, per_sample: bool) -> Tensor:
    """Second generator term (DPSD Eq. 8, IE): sum_j p_j log p_j, of the batch mean p or of every sample.

    Of the batch mean it is least when all classes are equally frequent, which is what the papers' text asks for; per
    sample, as printed, it is least when every single output is flat.
    """
    log_p = logits.log_softmax(1)
    if per_sample:
        return (log_p.exp() * log_p).sum(1).mean()
    mean = log_p.exp().mean(0)
    return (mean * mean.clamp_min(1e-12).log()).sum()


def activation_loss(features: Tensor, up: bool) -> Tensor:
    """Third generator term (DPSD Eq. 8, NORM): plus or minus the L2 norm of each image's features, batch mean.

    `up` rewards large activations, as real images have (the papers' text); down is the printed sign.
    """
    norm = features.flatten(1).norm(dim=1).mean()
    return -norm if up else norm


class Answers:
    """Answered batches, kept to be used again: post-processing, which costs no privacy.

    Args:
        keep: whether anything will be used again; otherwise batches are only counted.
    """

    def __init__(self, keep: bool = True) -> None:
        self.keep = keep
        self.images: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.batches = 0
        """How often something was added."""

    def add(self, images: Tensor, targets: Tensor) -> None:
        """Keep one answered batch: (n, c, h, w) images, (n, classes) targets."""
        self.batches += 1
        if not self.keep:
            return
        self.images.append(images.detach())
        self.targets.append(targets.detach())

    def sample(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` images with their targets, drawn with replacement from all that were kept."""
        images, targets = self._joined()
        flat = torch.randint(len(images), (count,), generator=rng, device=images.device)
        return images[flat], targets[flat]

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Everything in one tensor each, joined when it is first asked for after an addition."""
        if len(self.images) > 1:
            self.images, self.targets = [torch.cat(self.images)], [torch.cat(self.targets)]
        return self.images[0], self.targets[0]


def jitter(images: Tensor, rng: torch.Generator) -> Tensor:
    """Each image turned, scaled, sheared and moved a little; black comes in at the border.

    Args:
        images: (n, c, h, w) in [0, 1].
        rng: on the images' device.
    """
    return moved(images, moves(len(images), rng))


def moves(count: int, rng: torch.Generator) -> Tensor:
    """(5, count) draws for `moved`: angle and shear normal, size and two shifts uniform in [-1, 1]."""
    normal = torch.randn(2, count, generator=rng, device=rng.device)
    return torch.cat([normal, torch.rand(3, count, generator=rng, device=rng.device) * 2 - 1])


def moved(
    images: Tensor, drawn: Tensor, turn: float = 0.12, scale: float = 0.15, shear: float = 0.15, move: float = 0.1
) -> Tensor:
    """Each image moved as `moves` drew for it; black comes in at the border.

    Args:
        images: (n, c, h, w) in [0, 1].
        drawn: (5, n).
        turn: standard deviation of the angle, radians.
        scale: largest relative change of size.
        shear: standard deviation of the shear.
        move: largest shift, in half widths.
    """
    a, k = turn * drawn[0], shear * drawn[1]
    s, dx, dy = scale * drawn[2], move * drawn[3], move * drawn[4]
    top = torch.stack([(1 + s) * a.cos(), -(1 + s) * a.sin() + k, dx], 1)
    bottom = torch.stack([(1 + s) * a.sin(), (1 + s) * a.cos(), dy], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def xavier(module: Network) -> Network:
    """Xavier's uniform weights and zero biases in every linear and convolutional layer; returns the module."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def balanced(images: Tensor, student: nn.Module, count: int, rng: torch.Generator) -> Tensor:
    """`count` of the images, drawn so that the classes the student sees in them are about equally frequent.

    Weighted drawing without replacement by the largest log(u) / weight (Efraimidis and Spirakis, 2006).

    Args:
        images: (n, c, h, w), n >= count.
        student: asked in evaluation mode, `count` images at a time, without gradients.
        rng: on the images' device.
    """
    student.eval()
    with torch.no_grad():
        probability = torch.cat([student(part).softmax(1) for part in images.split(count)])
    weight = 1 / probability.mean(0)[probability.argmax(1)]
    uniform = torch.rand(len(images), generator=rng, device=images.device).clamp_min(1e-30)
    return images[(uniform.log() / weight).topk(count).indices]
