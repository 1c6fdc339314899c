"""Similarity of reconstructions and private images as distributions, in the evaluator's feature space.

The Fréchet distance (Heusel et al., 2017) compares two Gaussians fitted to the features. Precision and recall
(Kynkäänniemi et al., 2019) and density and coverage (Naeem et al., 2020) test which features are in balls around the
others. All depend on the number of images: compare numbers from equal counts only, drawn by `matched_subset` and
`equal_parts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.metrics.inversion import all_finite, check_classes, knn_distance
from bench.seeds import derive

_CHUNK = 512
_PER_DIMENSION = 2
_TIE = 1e-13


@dataclass(frozen=True)
class Prdc:
    """Precision, recall, density and coverage, averaged over the target classes.

    The ball of an image reaches to its k-th nearest neighbour on its own side, among private images or reconstructions.

    Attributes:
        precision: share of reconstructions that are in the ball of a private image, in [0, 1].
        recall: share of private images that are in the ball of a reconstruction, in [0, 1].
        density: number of private images' balls that contain a reconstruction, divided by k; >= 0, 1 if both
            distributions are equal, above 1 for reconstructions in dense regions.
        coverage: share of private images whose ball contains a reconstruction, in [0, 1].
    """

    precision: float
    recall: float
    density: float
    coverage: float


def images_needed(dimension: int) -> int:
    """Return the number of images per side for a reliable Fréchet distance: two per feature dimension.

    >>> images_needed(256)
    512
    """
    return _PER_DIMENSION * dimension


def too_few_images(images: int, dimension: int) -> str | None:
    """Return a reason not to report the Fréchet distance for this number of images per side, or None."""
    needed = images_needed(dimension)
    if images >= needed:
        return None
    return f"{images} images are too few for the Fréchet distance of {dimension} features: at least {needed} are needed"


def frechet_distance(features: Tensor, private_features: Tensor) -> float:
    """Return the Fréchet distance ||mu1 - mu2||^2 + Tr(S1 + S2 - 2 (S1 S2)^(1/2)) >= 0, computed in float64.

    mu and S are mean and covariance (over n - 1) of either side. With S = R^T R, as from the QR decomposition of the
    centred rows, the trace of (S1 S2)^(1/2) is the sum of the singular values of R1 R2^T. No covariance is formed, so
    that features without variance cause no error; and singular values need less time than the eigenvalues of S1 S2.
    `too_few_images` checks whether there are enough images for a meaningful number.

    Args:
        features: (n, f), n >= 2, any float type.
        private_features: (m, f), m >= 2; use m = n, see `matched_subset`.

    Raises:
        ValueError: mismatched shapes, or a value that is NaN or infinite.

    Source:
        Heusel et al., NeurIPS 2017.
    """
    for rows in (features, private_features):
        if rows.ndim != 2 or len(rows) < 2 or rows.shape[1] != features.shape[1]:
            raise ValueError(
                f"features {tuple(features.shape)} and private {tuple(private_features.shape)}: "
                "expected (n, f) and (m, f), n and m at least 2"
            )
        if not all_finite(rows):
            raise ValueError("a feature is NaN or infinite")
    means = [rows.double().mean(0) for rows in (features, private_features)]
    ours, private = (
        torch.linalg.qr((rows - mean) / (len(rows) - 1) ** 0.5, mode="r").R
        for rows, mean in zip((features, private_features), means, strict=True)
    )
    common = torch.linalg.svdvals(ours @ private.T).sum()
    traces = ours.square().sum() + private.square().sum()
    return max(0.0, float((means[0] - means[1]).square().sum() + traces - 2 * common))


def prdc(features: Tensor, targets: Tensor, private_features: Tensor, private_labels: Tensor, k: int = 5) -> Prdc:
    """Compute precision, recall, density and coverage per target class, averaged with equal weight of each class.

    With N private images r_i and M reconstructions f_j of a class, and NN_k(x) the distance from x to its k-th
    neighbour on the same side, excluding x:

        precision = mean_j [some i has |r_i - f_j| < NN_k(r_i)]
        recall = mean_i [some j has |r_i - f_j| < NN_k(f_j)]
        density = 1/(k M) sum_ij [|r_i - f_j| < NN_k(r_i)]
        coverage = mean_i [some j has |r_i - f_j| < NN_k(r_i)]

    The time grows with (N + M)^2 per class, the memory with N + M.

    Args:
        features: (n, f) of the reconstructions.
        targets: (n,) int64.
        private_features: (m, f).
        private_labels: (m,) int64.
        k: at least 1.

    Raises:
        ValueError: a target class with k + 1 or fewer images on a side, mismatched shapes, or a value that is not
            finite.

    Source:
        Kynkäänniemi et al., NeurIPS 2019 (precision, recall); Naeem et al., ICML 2020 (density, coverage).
    """
    if k < 1:
        raise ValueError(f"k is {k}; expected at least 1")
    check_classes(features, targets, private_features, private_labels)
    found = []
    for c in targets.unique():
        real, fake = private_features[private_labels == c], features[targets == c]
        if min(len(real), len(fake)) <= k + 1:
            raise ValueError(
                f"class {int(c)} has {len(fake)} reconstructions and {len(real)} private images: "
                f"with k = {k}, more than {k + 1} of each are needed"
            )
        centre = real.double().mean(0)
        found.append(class_prdc(real.double() - centre, fake.double() - centre, k))
    return Prdc(*torch.stack(found).mean(0).tolist())


def class_prdc(real: Tensor, fake: Tensor, k: int) -> Tensor:
    """Return (4,): precision, recall, density and coverage of one class, from (n, f) and (m, f) centred features."""
    n, m = len(real), len(fake)
    tie = _TIE * max(float(real.square().sum(1).max()), float(fake.square().sum(1).max()))
    real_radii, fake_radii = _radii(real, k) - tie, _radii(fake, k) - tie
    balls = torch.zeros(m, dtype=torch.int64, device=fake.device)
    covered = recalled = torch.zeros((), dtype=torch.int64, device=fake.device)
    for start, gaps in _squared(real, fake):
        inside = gaps < real_radii[start : start + len(gaps), None]
        balls += inside.sum(0)
        covered = covered + inside.any(1).sum()
        recalled = recalled + (gaps < fake_radii).any(1).sum()
    return torch.stack([(balls > 0).double().mean(), recalled / n, balls.sum() / (k * m), covered / n])


def _radii(x: Tensor, k: int) -> Tensor:
    """Return the (n,) squared distance of each row to its k-th neighbour among the other rows."""
    radii = []
    for start, gaps in _squared(x, x):
        rows = torch.arange(len(gaps), device=x.device)
        gaps[rows, start + rows] = torch.inf
        radii.append(gaps.topk(k, dim=1, largest=False, sorted=False).values.amax(1))  # kthvalue: 8 times slower
    return torch.cat(radii)


def _squared(x: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield squared distances from a chunk of rows of x to all rows of y, with the index of the chunk's first row."""
    lengths = y.square().sum(1)
    for start in range(0, len(x), _CHUNK):
        rows = x[start : start + _CHUNK]
        yield start, torch.addmm(rows.square().sum(1, keepdim=True) + lengths, rows, y.T, alpha=-2)


def matched_subset(labels: Tensor, targets: Tensor, seed: int) -> Tensor:
    """Draw (n,) int64 ascending indices of private images, with the class counts of the reconstructions' targets.

    The draw for a class depends only on the seed and on the order of that class's images.

    Args:
        labels: (m,) int64 of the private images.
        targets: (n,) int64 of the reconstructions, n >= 1.

    Raises:
        ValueError: a class with fewer private images than reconstructions, or labels or targets of a wrong shape.
    """
    if labels.ndim != 1 or targets.ndim != 1 or not len(targets):
        raise ValueError(
            f"labels {tuple(labels.shape)} and targets {tuple(targets.shape)}: expected (m,), (n,), n >= 1"
        )
    needed, available = _counts(targets), _counts(labels)
    for c, count in needed.items():
        if available.get(c, 0) < count:
            found = available.get(c, 0)
            raise ValueError(f"class {c} has {found} private images for {count} reconstructions; use fewer")
    return _draw(labels, needed, seed, "matched-subset")


def equal_parts(private_labels: Tensor, held_out_labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Draw ascending int64 indices of private and of held-out images, with equal class counts on both sides.

    Per class, the smaller count of both sides is used; a class that is missing on one side is left out.

    Args:
        private_labels: (m,) int64.
        held_out_labels: (h,) int64.

    Raises:
        ValueError: no class is on both sides, or labels of a wrong shape.
    """
    if private_labels.ndim != 1 or held_out_labels.ndim != 1:
        raise ValueError(
            f"labels {tuple(private_labels.shape)} and {tuple(held_out_labels.shape)}: expected (m,) and (h,)"
        )
    private, held_out = _counts(private_labels), _counts(held_out_labels)
    counts = {c: min(private[c], held_out[c]) for c in private.keys() & held_out.keys()}
    if not counts:
        raise ValueError("private and held-out images have no class in common")
    return _draw(private_labels, counts, seed, "private"), _draw(held_out_labels, counts, seed, "held-out")


def knn_gap(
    features: Tensor,
    targets: Tensor,
    private_features: Tensor,
    private_labels: Tensor,
    held_out_features: Tensor,
    held_out_labels: Tensor,
    seed: int,
) -> float:
    """Return `knn_distance` to held-out images minus `knn_distance` to private images, from `equal_parts` of both.

    Above 0: in feature space the reconstructions are nearer to the training data than to unseen images of the same
    classes. The feature network was trained on the private images and not on the others, so images unrelated to both
    need not have 0: the baseline of random-weight networks has -23 on digits, +4 on MNIST (medians). Compare with that
    baseline. Larger sets contain nearer images, which is why the counts are equal.

    Args:
        features: (n, f) of the reconstructions.
        targets: (n,) int64.
        private_features: (m, f).
        private_labels: (m,) int64.
        held_out_features: (h, f), of images that are in no training set.
        held_out_labels: (h,) int64.
        seed: of the draw from the side with more images of a class.

    Raises:
        ValueError: a target class without private or without held-out images, mismatched shapes, or a value that is not
            finite.
    """
    check_classes(features, targets, private_features, private_labels)
    absent = sorted(set(targets.tolist()) - set(held_out_labels.tolist()))
    if absent:
        raise ValueError(f"no held-out image of target class {absent[0]}")
    check_classes(features, targets, held_out_features, held_out_labels)
    private, held_out = equal_parts(private_labels, held_out_labels, seed)
    unseen = knn_distance(features, targets, held_out_features[held_out], held_out_labels[held_out])
    return unseen - knn_distance(features, targets, private_features[private], private_labels[private])


def _counts(labels: Tensor) -> dict[int, int]:
    """Return the number of rows of each class."""
    classes, counts = labels.unique(return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def _draw(labels: Tensor, counts: dict[int, int], seed: int, name: str) -> Tensor:
    """Draw ascending indices of `counts[c]` rows of each class c, with a separate generator per class."""
    drawn = []
    for c, count in counts.items():
        members = (labels == c).nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(derive(seed, name, c))
        drawn.append(members[torch.randperm(len(members), generator=generator)[:count].to(labels.device)])
    return torch.cat(drawn).sort().values
