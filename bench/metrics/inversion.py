"""Metrics of class inversion: attack accuracy, and distances of reconstructions to the class's private images."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.metrics.proportions import accuracy

_CHUNK = 256


def attack_accuracy(evaluator_logits: Tensor, targets: Tensor) -> float:
    """Return the share of reconstructions that the evaluator assigns to their target class, in [0, 1].

    mean_i [argmax_j logits_ij = target_i], as in GMI (Zhang et al., CVPR 2020).

    Args:
        evaluator_logits: (n, classes) of a classifier that the attack had no access to.
        targets: (n,) int64.

    Raises:
        ValueError: mismatched shapes, or a logit that is NaN or infinite.
    """
    return accuracy(evaluator_logits, targets)


def confusion(evaluator_logits: Tensor, targets: Tensor, classes: int | None = None) -> Tensor:
    """Return (classes, outputs) int64 counts: row the target class, column the evaluator's class.

    Args:
        evaluator_logits: (n, outputs), those of the targets first.
        targets: (n,) int64, each in [0, classes).
        classes: number of classes; None = all outputs.

    Raises:
        ValueError: mismatched shapes, a target out of range, or a logit that is NaN or infinite.
    """
    accuracy(evaluator_logits, targets)
    outputs = evaluator_logits.shape[1]
    rows = outputs if classes is None else classes
    if targets.min() < 0 or targets.max() >= rows:
        raise ValueError(f"a target is outside 0 to {rows - 1}")
    return (targets * outputs + evaluator_logits.argmax(1)).bincount(minlength=rows * outputs).view(rows, outputs)


def knn_distance(features: Tensor, targets: Tensor, private_features: Tensor, private_labels: Tensor) -> float:
    """Return the mean *squared* L2 distance of reconstructions to the nearest private image of the target class.

    mean_i min_j ||f(x_i) - f(p_j)||^2 over the private images p_j of class t_i: the KNN distance of GMI (Zhang et al.,
    CVPR 2020).

    Args:
        features: (n, f) penultimate features of the evaluator for the reconstructions.
        targets: (n,) int64.
        private_features: (m, f) of the private images.
        private_labels: (m,) int64.

    Raises:
        ValueError: a target class without private images, mismatched shapes, or a value that is not finite.
    """
    check_classes(features, targets, private_features, private_labels)
    nearest = torch.empty(len(features), dtype=torch.float64, device=features.device)
    for c in targets.unique():
        members = private_features[private_labels == c].double()
        for rows in (targets == c).nonzero().squeeze(1).split(_CHUNK):
            nearest[rows] = torch.cdist(features[rows].double(), members).amin(1).square()
    return float(nearest.mean())


def nearest_private(images: Tensor, targets: Tensor, private_images: Tensor, private_labels: Tensor) -> Tensor:
    """Find for each reconstruction the private image of its target class that is nearest in pixels (L2), for display.

    Args:
        images: (n, c, h, w) float in [0, 1]. targets: (n,) int64.
        private_images: (m, c, h, w), uint8 or float in [0, 1]. private_labels: (m,) int64.

    Returns:
        (n,) int64 indices into the private images.

    Raises:
        ValueError: as `knn_distance`.
    """
    check_classes(images, targets, private_images, private_labels)
    nearest = torch.empty(len(images), dtype=torch.int64, device=images.device)
    for c in targets.unique():
        members = (private_labels == c).nonzero().squeeze(1)
        pixels = _pixels(private_images[members])
        for rows in (targets == c).nonzero().squeeze(1).split(_CHUNK):
            nearest[rows] = members[torch.cdist(_pixels(images[rows]), pixels).argmin(1)]
    return nearest


def _pixels(images: Tensor) -> Tensor:
    flat = images.flatten(1)
    return flat.float() / 255 if flat.dtype == torch.uint8 else flat.float()


def check_classes(rows: Tensor, targets: Tensor, private_rows: Tensor, private_labels: Tensor) -> None:
    """Check that reconstructions (n, ...) with targets (n,) can be compared with private rows (m, ...) and labels (m,).

    Raises:
        ValueError: as `knn_distance`.
    """
    if not len(rows) or targets.shape != rows.shape[:1] or private_labels.shape != private_rows.shape[:1]:
        raise ValueError(
            f"{tuple(rows.shape)} reconstructions with targets {tuple(targets.shape)}, "
            f"{tuple(private_rows.shape)} private with labels {tuple(private_labels.shape)}: "
            "expected one target or label per row, and at least one row"
        )
    if rows.shape[1:] != private_rows.shape[1:]:
        raise ValueError(
            f"reconstructions {tuple(rows.shape[1:])} and private {tuple(private_rows.shape[1:])} differ in shape"
        )
    absent = sorted(set(targets.tolist()) - set(private_labels.tolist()))
    if absent:
        raise ValueError(f"no private image of target class {absent[0]}")
    if not (all_finite(rows) and all_finite(private_rows)):
        raise ValueError("a feature or pixel is NaN or infinite")


def all_finite(rows: Tensor) -> bool:
    """Return whether every value is finite, by a float64 sum, which float32 values cannot overflow."""
    if rows.dtype == torch.float64:
        return bool(rows.isfinite().all())
    return not rows.is_floating_point() or bool(rows.sum(dtype=torch.float64).isfinite())
