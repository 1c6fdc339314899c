"""PPA: optimise latents of an image prior by the Poincare distance, then keep the images that survive transformations.

Struppek, Hintersdorf, De Almeida Correia, Adler, Kersting, "Plug & Play Attacks: Towards Robust and Flexible Model
Inversion Attacks", ICML 2022 (arXiv 2201.12179). G generator, trained without the target; T the target's logits, K
classes, y the attacked class.

1. Initial selection. Draw n latents z. The score of z for class y is the mean probability of y over G(z)
   and its mirror image. Keep the `candidates_per_class` latents of largest score for each class.
2. Optimisation. Adam with betas (0.1, 0.1) on each kept z; the loss of one image is the Poincare distance of
   u = o / |o|_1, o = T(crop(G(z))), to v = max(onehot(y) - 1e-4, 0):
   d(u, v) = arcosh(1 + 2 |u - v|^2 / ((1 - |u|^2)(1 - |v|^2))).
   Each step crops a random square of 90 to 100 % of the area, resized to the image's size.
3. Final selection. The score of a result is the mean probability of y over `transformations` random
   crops of 50 to 90 % of the area with a ratio of 0.8 to 1.2, half of them mirrored. Keep the `images_per_class` of
   largest score.

Differs from the paper:
- The paper's G is StyleGAN2, and z its intermediate latent w, truncated in step 1. Here G is the GAN that several
  attacks share, trained on the attacker's images, and z its input, drawn from N(0, I).
- The crops of a draw are the same for every batch, so that the images do not depend on the batch size. The loss is the
  sum over the batch, which changes a step of Adam by its epsilon only.
- |u| is 1 if one logit has all the weight: 1 - |u|^2 is at least 1e-6.
- d is invariant to the scale of the logits but not to a constant added to all of them. The variant `working` subtracts
  their mean, so that targets of equal probabilities give equal losses.
- The variant `working` mirrors colour images only: a mirrored digit is another symbol.
- Several independent draws, each with its own latents; the paper has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.api import Access, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
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
class Ppa(GanPrior):
    """Plug & Play inversion; the defaults are the authors' for 224 pixels."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Struppek et al., ICML 2022, arXiv 2201.12179"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            **SMOKE, "latents": 16, "candidates_per_class": 2, "steps": 2, "transformations": 2, "draws": 2,
            "images_per_class": 1,
        },
        "quick": {
            **QUICK, "latents": 1000, "candidates_per_class": 8, "steps": 40, "transformations": 20, "draws": 5,
            "images_per_class": 4,
        },
    }  # fmt: skip
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

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `images_per_class` images of every class in each draw."""
        generator, _ = self.gan(aux, ctx)
        rng = ctx.generator("ppa")
        mirrored = self.mirror == "always" or aux.shape[1] == 3
        labels = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.candidates_per_class)
        parts = -(-len(labels) // self.batch)
        kept: list[Tensor] = []
        with ctx.track("PPA: optimising latents", self.draws * parts * self.steps) as advance:
            for _ in range(self.draws):
                drawn = torch.randn(self.latents, self.latent, generator=rng, device=ctx.device)
                starts = drawn[self._initial_selection(drawn, generator, target, mirrored).flatten()]
                crops = torch.rand(self.steps, 4, generator=rng, device=ctx.device)
                last_crops = torch.rand(self.transformations, 4, generator=rng, device=ctx.device)
                found, scores = [], []
                for z, y in zip(starts.split(self.batch), labels.split(self.batch), strict=True):
                    z = z.clone().requires_grad_()
                    optimizer = torch.optim.Adam([z], self.lr, BETAS)
                    for crop in crops:
                        with ctx.precision():
                            logits = target.logits(resized_crop(generator(z), crop, CROPPED, RATIO))
                        loss = self._distances(logits.float(), y).sum()
                        (z.grad,) = torch.autograd.grad(loss, z)
                        optimizer.step()
                        advance(1)
                    with torch.no_grad():
                        images = generator(z)
                    found.append(images)
                    scores.append(self._final_scores(images, y, target, last_crops, mirrored))
                best = most_robust(torch.cat(scores).view(target.classes, -1), self.images_per_class)
                kept.append(torch.cat(found)[best.flatten()])
        per_draw = target.classes * self.images_per_class
        classes = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(per_draw)
        return AttackResult(torch.cat(kept), classes.repeat(self.draws), draws)

    @torch.no_grad()
    def _initial_selection(self, drawn: Tensor, generator: nn.Module, target: Target, mirrored: bool) -> Tensor:
        """Step 1: return (classes, candidates_per_class) rows of the (n, latent) drawn latents."""
        found = []
        for z in drawn.split(self.batch):
            images = generator(z)
            views = (images, images.flip(3)) if mirrored else (images,)
            found.append(torch.stack([target.logits(view).float().softmax(1) for view in views]).mean(0))
        return torch.cat(found).T.topk(self.candidates_per_class).indices

    def _distances(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (n,) Poincare distances of (n, K) logits to their classes."""
        return poincare_distance(logits - logits.mean(1, keepdim=True) if self.centred else logits, labels)

    @torch.no_grad()
    def _final_scores(self, images: Tensor, labels: Tensor, target: Target, crops: Tensor, mirrored: bool) -> Tensor:
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
