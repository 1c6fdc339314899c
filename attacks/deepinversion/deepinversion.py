"""DeepInversion: optimise pixels until the target sees a class and its BatchNorm layers see what they saw in training.

Yin, Molchanov, Li, Alvarez, Mallya, Hoiem, Jha, Kautz, "Dreaming to Distill: Data-free Knowledge Transfer via
DeepInversion", CVPR 2020 (arXiv 1912.08795). T target, y the class aimed at, x a batch of images in the paper's
normalised pixels; for BatchNorm layer l, mu_l(x) and var_l(x) are mean and biased variance of each channel of its input
over the batch, mu^_l and var^_l the statistics the layer has stored.

1. Draw x ~ N(0, I), the classes evenly spread over the batch.
2. Repeat: shift x by up to `jitter` pixels at random, and move x by Adam to lower
   L = CE(T(shifted x), y) + a_bn sum_l (||mu_l - mu^_l||_2 + ||var_l - var^_l||_2) + a_tv R_TV(x) + a_l2 ||x||_2,
   where R_TV adds the norms of four differences of x: with the pixel to the right, below, and on both diagonals.
3. Keep the x of smallest L.

A target without BatchNorm layers, such as LeNet, a network with GroupNorm, or the student `datalens`, stores no
statistics: the sum over l is empty, and what is left is an inversion by CE and the priors R_TV and ||x||_2. The attack
then runs so, and its progress line says "no BatchNorm, priors only". Which of the two happens is decided by the
target's module at run time; do not read the result on such a target as DeepInversion's.

Differs from the paper:
- Settings are those of the authors' command for CIFAR-10; the defaults of their program are lr 0.1 and a_bn 100.
  No norm is squared, as in their code.
- The adaptive term of Adaptive DeepInversion is left out: it needs a student trained beside the search, which the
  authors' released code never trains either; their default weight is 0.
- The pixels of the target's own normalisation are unknown to an attacker of any classifier. One unit of x is
  `pixel_std` of the image's range [0, 1], around 0.5, and x is clipped to that range at the start and after every step;
  the authors' script for CIFAR-10 does not clip, their script for ImageNet does.
- Images are shifted cyclically, all of a batch by the same amount, as in the authors' code; R_TV and ||x||_2 are taken
  of the images as they lie, not of the shifted ones, so no border runs through them. No mirroring: it is wrong for
  digits.
- The kept x is a copy of the one L was measured at. The authors' CIFAR-10 script keeps a reference, which is always the
  last x, and their ImageNet script keeps the x after the step with the loss before it.
- Hooks are removed after use (they stay in the authors' CIFAR-10 script, so every further call costs more).
- `bn_batch` images are optimised together, because L is a statement about a batch (256 in the paper). Each draw is
  dealt into as few such batches as are needed, the classes spread evenly, of sizes that differ by 1 at most.
- Variant `working` makes larger steps, with a_bn 0.03 and a_tv 0.01. (The authors' script for ImageNet has a_bn 0.01.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attacks.deepinversion.statistics_gap import Gaps, recorded_gaps
from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.distillation.losses import total_variation
from bench.validate import at_least, positive

CENTRE = 0.5
"""The pixel value in [0, 1] that x = 0 stands for."""


@dataclass(frozen=True)
class DeepInversion:
    """Inversion through BatchNorm statistics; the defaults are the authors' for CIFAR-10."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Yin et al., CVPR 2020, arXiv 1912.08795"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"iterations": 3, "draws": 2, "images_per_class": 2, "bn_batch": 8},
        "quick": {"iterations": 150, "draws": 2, "images_per_class": 4},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="the statistics weigh less, a_bn 0.03 for 10, and the total variation more, a_tv 0.01 for 2.5e-5",
            why="in tier quick's 150 steps with a_bn 10 images meet the statistics before the target sees their class",
            sets={"bn_weight": 0.03, "tv_weight": 0.01},
        ),
        Departure(
            what="Adam's step size is 0.1 for 0.05",
            why="tier quick makes 150 steps for the paper's 2,000",
            sets={"lr": 0.1},
        ),
    )

    iterations: Size[int] = 2000
    """Steps of the search."""
    lr: float = 0.05
    """Adam's step size, in units of x."""
    bn_weight: float = 10.0
    """a_bn, the weight of the BatchNorm statistics; without effect on a target without BatchNorm layers."""
    first_bn: float = 1.0
    """Factor of the first BatchNorm layer's two norms (the authors' code for ImageNet: 10)."""
    tv_weight: float = 2.5e-5
    """a_tv, the weight of the total variation R_TV."""
    l2_weight: float = 0.0
    """a_l2, the weight of the norm of x."""
    jitter: int = 2
    """The most pixels by which images are shifted in each direction before the target sees them."""
    pixel_std: float = 0.25
    """One unit of x on the scale [0, 1]."""
    bn_batch: Size[int] = 256
    """Images optimised together, whose statistics are matched as one batch; results depend on it."""
    draws: Size[int] = 5
    """Independent draws of the starting x (the paper's own: 1)."""
    images_per_class: Size[int] = 20
    """Images aimed at each class in each draw."""

    def __post_init__(self) -> None:
        at_least(self, 1, "iterations", "bn_batch", "draws", "images_per_class")
        positive(self, "lr", "pixel_std")
        at_least(self, 0, "bn_weight", "first_bn", "tv_weight", "l2_weight", "jitter")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """None: no auxiliary images are needed, and any size will do."""
        return None

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Bring back `draws` x `images_per_class` images of every class; `aux` is not used."""
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        n = len(per_draw)
        groups = math.ceil(n / self.bn_batch)
        found = torch.empty(self.draws, n, *target.shape, device=ctx.device)
        with recorded_gaps(target.module(), self.first_bn) as gaps:
            stage = "DeepInversion: searching" + ("" if gaps.layers else " (no BatchNorm, priors only)")
            with ctx.track(stage, self.iterations * groups * self.draws) as advance:
                for draw in range(self.draws):
                    rng = ctx.generator(f"deepinversion/{draw}")
                    starts = torch.randn(n, *target.shape, generator=rng, device=ctx.device)
                    for rows in (slice(first, None, groups) for first in range(groups)):
                        x = self._search(starts[rows], per_draw[rows], gaps, target, rng, ctx, advance)
                        found[draw, rows] = self._pixels(x)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(n)
        return AttackResult(found.flatten(0, 1), per_draw.repeat(self.draws), draws)

    def _search(
        self,
        x: Tensor,
        labels: Tensor,
        gaps: Gaps,
        target: Target,
        rng: torch.Generator,
        ctx: Context,
        advance: Advance,
    ) -> Tensor:
        """(n, c, h, w) the x of smallest L among the `iterations` that L was measured at, as one batch from `x`."""
        bound = CENTRE / self.pixel_std
        x = x.clamp(-bound, bound).requires_grad_()
        best, lowest = x.detach().clone(), torch.full((), math.inf, device=ctx.device)
        adam = torch.optim.Adam([x], lr=self.lr)
        reach = (-self.jitter, self.jitter + 1)
        shifts = torch.randint(*reach, (self.iterations, 2), generator=rng, device=ctx.device).tolist()
        for shift in shifts:
            gaps.clear()
            with ctx.precision():
                logits = target.logits(self._pixels(x).roll(shift, (2, 3)))
            loss = (
                cross_entropy(logits.float(), labels)
                + self.bn_weight * gaps.total(x)
                + self.tv_weight * total_variation(x)
                + self.l2_weight * x.norm()
            )
            (x.grad,) = torch.autograd.grad(loss, x)
            better = loss.detach() < lowest
            best, lowest = torch.where(better, x.detach(), best), torch.where(better, loss.detach(), lowest)
            adam.step()
            with torch.no_grad():
                x.clamp_(-bound, bound)
            advance(1)
        return best

    def _pixels(self, x: Tensor) -> Tensor:
        """Images in [0, 1] of normalised ones."""
        return (CENTRE + self.pixel_std * x).clamp(0, 1)
