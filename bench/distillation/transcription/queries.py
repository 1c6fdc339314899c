"""Choice of the query images: new ones from a prior, children of annotated ones, and the student's selection.

A child is a randomly rotated, stretched, bent, thickened or combined copy of an annotated image. It needs its own
query, since far from the private data a teacher's class changes under such transforms. All of this uses only past
responses and the student trained on them: post-processing, which costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.data import to_float
from bench.data.affine import apply_affine, draw_affine

PART = 512
"""Number of images per forward pass without gradients."""
PRIOR_COUNT = 2.0
"""Added to a class's count before dividing by it, so that a class with one image does not get all children."""
LEAST_UNCERTAINTY = 1e-3
"""Added to 1 - margin, so that certain images can be chosen too."""
ROTATION, SHEAR = 0.2, 0.2
"""Standard deviations of a child's rotation angle (radians) and shear."""
STRETCH, SHIFT = 0.2, 0.12
"""Largest relative change of a child's width and height; largest shift, in half widths."""
WARP, KNOTS = 0.1, 4
"""Standard deviation of the displacements, in half widths, on a grid of KNOTS x KNOTS, interpolated bicubically."""
THICKENED, STEEPNESS = 0.4, 14.0
"""Share of children whose strokes or edges become thinner or thicker: a mean over 3 x 3 pixels and a soft threshold
from 0.25 to 0.65."""
CROSSED, CROSS_SHIFT = 0.2, 0.3
"""Share of children with a second parent; largest shift of that parent, in half widths."""


class AnnotatedImages:
    """The images queried so far, in 8 bits, and the readings of their responses.

    Attributes:
        images: (n, c, h, w) uint8.
        readings: (n, classes), such as the log-likelihoods of a response under every class.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, device: torch.device) -> None:
        self.images = torch.empty(0, *shape, dtype=torch.uint8, device=device)
        self.readings = torch.empty(0, classes, device=device)

    def __len__(self) -> int:
        return len(self.images)

    def add(self, images: Tensor, readings: Tensor) -> None:
        """Store annotated (n, c, h, w) uint8 images with their (n, classes) readings."""
        self.images, self.readings = torch.cat([self.images, images]), torch.cat([self.readings, readings])

    def newest(self, count: int) -> AnnotatedImages:
        """Return the `count` images that were added last, with their readings."""
        found = AnnotatedImages(tuple(self.images.shape[1:]), self.readings.shape[1], self.images.device)  # type: ignore[arg-type]
        found.add(self.images[-count:], self.readings[-count:])
        return found


def to_bytes(images: Tensor) -> Tensor:
    """Convert images in [0, 1] to uint8; `bench.data.to_float` is the inverse."""
    return (images * 255).round().to(torch.uint8)


@torch.no_grad()
def compute_logits(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return (n, classes) float32 logits of uint8 images, in parts; a module is called in evaluation mode."""
    if isinstance(network, nn.Module):
        network.eval()
    return torch.cat([network(to_float(part)).float() for part in images.split(PART)])


def choose_rows(logits: Tensor, count: int, uncertainty: float, rng: torch.Generator) -> Tensor:
    """Choose (count,) rows, balanced over the student's predicted classes, uncertain ones more often.

    Drawn without replacement by the largest log(u) / weight (Efraimidis and Spirakis, 2006), with weight (1 -
    margin)^uncertainty over the mean probability of the row's class; the margin is p_1 - p_2 of its two most probable
    classes.

    Args:
        logits: (n, c), the student's, n >= count.
        uncertainty: exponent, >= 0; 0 = class balance only.
    """
    p = logits.softmax(1)
    top = p.topk(2, 1)
    margin = top.values[:, 0] - top.values[:, 1]
    weight = (LEAST_UNCERTAINTY + 1 - margin) ** uncertainty / p.mean(0)[top.indices[:, 0]]
    u = torch.rand(len(logits), generator=rng, device=rng.device).clamp_min(1e-30)
    return (u.log() / weight).topk(count).indices


def augment_slightly(images: Tensor, rng: torch.Generator) -> Tensor:
    """Rotate, scale, shear and shift each of (n, c, h, w) images in [0, 1] by about a pixel, which keeps its class."""
    return apply_affine(images, draw_affine(len(images), rng), turn=0.04, scale=0.04, shear=0.04, move=0.05)


def draw_children(annotated: AnnotatedImages, classes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw (count, c, h, w) uint8 children of annotated images, with parents balanced over their assumed classes.

    Args:
        classes: (n,) int64, the assumed class of each annotated image.
    """
    weight = 1 / (torch.bincount(classes, minlength=annotated.readings.shape[1]).float() + PRIOR_COUNT)
    parents = torch.multinomial(weight[classes], count, replacement=True, generator=rng)
    return torch.cat([to_bytes(mutate(to_float(annotated.images[part]), rng)) for part in parents.split(PART)])


def mutate(parents: Tensor, rng: torch.Generator) -> Tensor:
    """Return one child of each image, (n, c, h, w) in [0, 1]; `rng` must be on their device."""
    crossed = _uniform(len(parents), rng) < CROSSED
    images = torch.where(crossed[:, None, None, None], cross(parents, rng), parents)
    return change_thickness(warp(images, rng), rng).clamp(0, 1)


def warp(images: Tensor, rng: torch.Generator) -> Tensor:
    """Apply a random affine map and a smooth random displacement field to each image; black beyond the border."""
    n, (height, width) = len(images), images.shape[2:]
    angle, shear = ROTATION * _normal(n, rng), SHEAR * _normal(n, rng)
    sx, sy = (1 + STRETCH * (2 * _uniform(n, rng) - 1) for _ in range(2))
    dx, dy = (SHIFT * (2 * _uniform(n, rng) - 1) for _ in range(2))
    top = torch.stack([sx * angle.cos(), -sx * angle.sin() + shear, dx], 1)
    bottom = torch.stack([sy * angle.sin(), sy * angle.cos(), dy], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    knots = WARP * torch.randn(n, 2, KNOTS, KNOTS, generator=rng, device=images.device)
    field = F.interpolate(knots, size=(height, width), mode="bicubic", align_corners=False)
    return F.grid_sample(images, grid + field.permute(0, 2, 3, 1), align_corners=False)


def change_thickness(images: Tensor, rng: torch.Generator) -> Tensor:
    """Make the strokes of a share of the images thinner or thicker; black stays black."""
    n = len(images)
    some, threshold = (
        (_uniform(n, rng) < THICKENED).view(-1, 1, 1, 1),
        (0.25 + 0.4 * _uniform(n, rng)).view(-1, 1, 1, 1),
    )
    blurred = F.avg_pool2d(images, 3, 1, 1)
    changed = ((blurred - threshold) * STEEPNESS).sigmoid() - (-threshold * STEEPNESS).sigmoid()
    return torch.where(some, changed, images)


def cross(images: Tensor, rng: torch.Generator) -> Tensor:
    """Combine each image with another: overlay (30 %), upper and lower half (50 %), or mean (20 %)."""
    n = len(images)
    partner = images[torch.randperm(n, generator=rng, device=images.device)]
    kind = _uniform(n, rng).view(-1, 1, 1, 1)
    shift = CROSS_SHIFT * (2 * torch.rand(n, 2, 1, generator=rng, device=images.device) - 1)
    still = torch.eye(2, device=images.device).expand(n, 2, 2)
    grid = F.affine_grid(torch.cat([still, shift], 2), list(images.shape), align_corners=False)
    over = torch.maximum(images, F.grid_sample(partner, grid, align_corners=False))
    rows = torch.linspace(-1, 1, images.shape[2], device=images.device).view(1, 1, -1, 1)
    height = (0.6 * (_uniform(n, rng) - 0.5)).view(-1, 1, 1, 1)
    below = ((rows - height) * 20).sigmoid()
    halves = images * below + partner * (1 - below)
    return torch.where(kind < 0.3, over, torch.where(kind < 0.8, halves, (images + partner) / 2))


def _uniform(n: int, rng: torch.Generator) -> Tensor:
    return torch.rand(n, generator=rng, device=rng.device)


def _normal(n: int, rng: torch.Generator) -> Tensor:
    return torch.randn(n, generator=rng, device=rng.device)
