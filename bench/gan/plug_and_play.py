"""Parts of Plug & Play attacks: choose latents by the target, the Poincare distance, random crops, robust results.

Struppek et al., "Plug & Play Attacks", ICML 2022 (arXiv 2201.12179); `attacks/ppa.py` has the algorithm, and
`attacks/if_gmi.py` one that goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.api import Access, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import SHORT_TRAINING, GanPrior
from bench.validate import at_least, positive

BETAS = (0.1, 0.1)
LEAST = 1e-6
"""Smallest 1 - |u|^2."""
OFFSET = 1e-4
"""Subtracted from the one-hot vector, so that v is inside the unit ball."""
CROPPED, RATIO = (0.9, 1.0), (1.0, 1.0)
"""Areas and ratios of the crops of step 2."""
CROPPED_LAST, RATIO_LAST = (0.5, 0.9), (0.8, 1.2)
"""Areas and ratios of the crops of step 3."""


@dataclass(frozen=True)
class PlugAndPlay(GanPrior):
    """Options and steps that Plug & Play attacks share; the defaults are those of PPA's authors for 224 pixels."""

    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    departures: ClassVar[tuple[Departure, ...]] = (
        SHORT_TRAINING,
        Departure(
            what="the learning rate is 0.05, not 0.005",
            why="tier quick has 40 steps, the paper 70; the coordinates of z are of size 1, and 40 steps of 0.005 move "
            "them by at most 0.2",
            sets={"lr": 0.05},
        ),
        Departure(
            what="the mean of an image's logits is subtracted, and only colour images are mirrored",
            why="the distance depends on a constant that does not change the target's probabilities; a mirrored digit "
            "is another symbol",
            sets={"centred": True, "mirror": "colour"},
        ),
    )

    latents: Size[int] = 5000
    """n, latents of the initial selection in each draw."""
    candidates_per_class: Size[int] = 200
    """Latents that are optimised for each class and draw."""
    steps: Size[int] = 70
    """Steps of Adam."""
    lr: float = 0.005
    """Learning rate of Adam."""
    transformations: Size[int] = 100
    """Random transformations of each result in the final selection."""
    centred: bool = False
    """Subtract the mean of an image's logits before the distance."""
    mirror: Literal["always", "colour"] = "always"
    """Mirror images in both selections: always, or colour images only."""
    draws: Size[int] = 1
    """Independent attacks, each with its own latents."""
    images_per_class: Size[int] = 50
    """Images of each class and draw that the final selection keeps."""
    batch: Size[int] = 200
    """Images in one batch; affects rounding only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "latents", "candidates_per_class", "steps", "transformations", "draws", "batch")
        at_least(self, 1, "images_per_class")
        at_least(self, self.images_per_class, "candidates_per_class")
        at_least(self, self.candidates_per_class, "latents")
        positive(self, "lr")

    @torch.no_grad()
    def initial_selection(self, drawn: Tensor, generator: nn.Module, target: Target, mirrored: bool) -> Tensor:
        """Step 1: return (classes, candidates_per_class) rows of the (n, latent) drawn latents."""
        found = []
        for z in drawn.split(self.batch):
            images = generator(z)
            views = (images, images.flip(3)) if mirrored else (images,)
            found.append(torch.stack([target.logits(view).float().softmax(1) for view in views]).mean(0))
        return torch.cat(found).T.topk(self.candidates_per_class).indices

    def distances(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (n,) Poincare distances of (n, K) logits to their classes."""
        return poincare_distance(logits - logits.mean(1, keepdim=True) if self.centred else logits, labels)

    @torch.no_grad()
    def final_scores(self, images: Tensor, labels: Tensor, target: Target, crops: Tensor, mirrored: bool) -> Tensor:
        """Step 3: return (n,) mean probabilities of the attacked class over the (transformations, 4) crops."""
        total = torch.zeros(len(images), device=images.device)
        for number, crop in enumerate(crops):
            views = resized_crop(images, crop, CROPPED_LAST, RATIO_LAST)
            views = views.flip(3) if mirrored and number % 2 else views
            total += target.logits(views).float().softmax(1).gather(1, labels[:, None]).squeeze(1)
        return total / len(crops)


def poincare_distance(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (n,) distances in the Poincare ball of (n, K) logits, scaled to l1 norm 1, to (n,) classes."""
    u = logits / logits.abs().sum(1, keepdim=True).clamp_min(1e-30)
    v = (F.one_hot(labels, logits.shape[1]).to(logits.dtype) - OFFSET).clamp(0, 1)
    room = (1 - u.square().sum(1)).clamp_min(LEAST) * (1 - v.square().sum(1))
    return torch.acosh(1 + 2 * (u - v).square().sum(1) / room)


def resized_crop(images: Tensor, crop: Tensor, area: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Return (n, c, h, w): one rectangle of all images, resized to h x w; differentiable.

    Args:
        crop: (4,) uniform draws from [0, 1) for the area, the ratio and the place in both directions.
        area: least and largest share of the image's area.
        ratio: least and largest width over height, log-uniform; a side is at most that of the image.
    """
    share = area[0] + (area[1] - area[0]) * crop[0]
    shape = (ratio[1] / ratio[0]) ** crop[1] * ratio[0]
    width, height = (share * shape).sqrt().clamp(max=1), (share / shape).sqrt().clamp(max=1)
    left, top = (1 - width) * (2 * crop[2] - 1), (1 - height) * (2 * crop[3] - 1)  # centre, in [-1, 1]
    theta = torch.zeros(1, 2, 3, device=images.device)
    theta[0, 0, 0], theta[0, 0, 2], theta[0, 1, 1], theta[0, 1, 2] = width, left, height, top
    grid = F.affine_grid(theta, [1, *images.shape[1:]], align_corners=False)
    return F.grid_sample(
        images.float(), grid.expand(len(images), -1, -1, -1), padding_mode="border", align_corners=False
    )


def most_robust(scores: Tensor, count: int) -> Tensor:
    """Return (classes, count) indices into the flattened (classes, m) scores: the largest of each class."""
    best = scores.topk(count).indices
    return best + scores.shape[1] * torch.arange(len(scores), device=scores.device)[:, None]
