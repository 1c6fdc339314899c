"""DPDFD, section 4.4, many teachers: for every image the noisy mean of the n teachers' normalised gradients.

A private record lies in one shard, by the hash of its own pixels, and so stands behind one teacher: leaving it out
moves one of n rows of an image's sum by at most 2 C (replacing it by another record may move two, which the ledger does
not count).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.distillation.noisy_labels import AnnotationParameters
from bench.privacy.mechanisms import gaussian_rows
from bench.privacy.noise import Source

BoundedGradient = Callable[[Tensor, Tensor], Tensor]


def noisy_mean(
    ours: Tensor, theirs: Tensor, bounded: BoundedGradient, parameters: AnnotationParameters, noise: Source
) -> Tensor:
    """(B, c): (sum_j C g_ij / (||g_ij|| + e) + N(0, sigma^2 C^2 I)) / n for every image i.

    Args:
        ours: (B, c) the student's logits.
        theirs: (n, B, c) the teachers'.
        bounded: (B, c) student's and (B, c) one teacher's logits to (B, c) gradients of norm at most C.
    """
    total = torch.stack([bounded(ours, of_teacher) for of_teacher in theirs]).double().sum(0)
    return (gaussian_rows(total, parameters.sigma * parameters.beta, noise) / len(theirs)).float()
