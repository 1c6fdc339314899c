"""GMI: search the latent space of a GAN for images that the target assigns to a class.

Zhang, Jia, Pei, Wang, Li, Song, "The Secret Revealer: Generative Model-Inversion Attacks Against Deep Neural Networks",
CVPR 2020 (arXiv 1911.07135). G generator, D critic, T target, y the class aimed at.

1. Train G and D on the attacker's images as a Wasserstein GAN with gradient penalty:
   L_D = mean D(G(z)) - mean D(x) + 10 mean (||grad D(x~)||_2 - 1)^2 and L_G = -mean D(G(z)), z ~ N(0, I).
2. Draw z ~ N(0, I) and set v = 0. Repeat: L(z) = -D(G(z)) + lambda CE(T(G(z)), y), and with g its gradient
   v' = mu v - lr g;  z <- z - mu v + (1 + mu) v'  (Nesterov);  clamp z to [-1, 1];  v <- v'.
3. Do so for several random seeds and keep, for each target, the seed with the largest score T(G(z))_y.

Differs from the paper:
- No diversity term in stage 1 (the paper's pulls images of different z apart in the target's features). The GAN is
  trained without the target and so serves every target; the authors' released training without masks has none either.
- No auxiliary blurred or masked picture of the victim: unlabelled images are all the attacker has.
- The losses of stage 2 are means over the batch in the authors' code, so the step of one image shrinks as the batch
  grows. Here they are sums divided by `ref_batch`, their batch on MNIST: the result does not depend on `batch`.
- The starting z is clamped too, so G is never evaluated outside the clamp.
- G and D are in evaluation mode in stage 2 (G normalises with its running statistics), so images do not affect
  each other.
- Several images per class and seed, all of them kept unless `keep_best`; the paper's own is one, and the best seed.
- `keep_best` compares real scores from the start; the authors' code starts at 0 and loses targets whose scores are all
  negative.
- Image sizes other than 32 and 64: see `bench.nets.generators.DeconvGenerator`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks._prior import QUICK, SMOKE, GanPrior
from bench.api import Access, Advance, AttackResult, Context, Target


@dataclass(frozen=True)
class Gmi(GanPrior):
    """Generative model inversion; the defaults are the paper's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Zhang et al., CVPR 2020, arXiv 1911.07135"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "iterations": 3, "draws": 2, "images_per_class": 1},
        "quick": {**QUICK, "iterations": 50, "lr": 0.05, "images_per_class": 4},
    }

    iterations: int = 1500
    """Steps of the latent search."""
    lr: float = 0.01
    """Step size lr of the latent search."""
    momentum: float = 0.9
    """Nesterov momentum mu of the latent search."""
    identity_weight: float = 100.0
    """lambda, the weight of the cross-entropy (identity loss) against the critic (prior loss)."""
    latent_clip: float = 1.0
    """Bound on every coordinate of z, at the start and after every step."""
    draws: int = 5
    """Random seeds per target."""
    images_per_class: int = 20
    """Images aimed at each class in each draw (the paper's own: 1)."""
    ref_batch: int = 5
    """Divisor of the summed losses: the batch over which the authors' code averages."""
    batch: int = 200
    """Images searched at once; changes rounding only."""
    keep_best: bool = False
    """Keep, per target, only the draw with the largest target score (the paper's step 5); false keeps all images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("iterations", "draws", "images_per_class", "ref_batch", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more")
        for name in ("lr", "latent_clip"):
            if not (0 < getattr(self, name) < math.inf):
                raise ValueError(f"{name} is {getattr(self, name)}, expected a number above 0")
        if not 0 <= self.identity_weight < math.inf:
            raise ValueError(f"identity_weight is {self.identity_weight}, expected 0 or more")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}, expected 0 or more and less than 1")

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class (draws = 1 in effect if `keep_best`).

        The GAN depends on `aux` and on its own fields only; it is trained once for all targets and seeds.
        """
        generator, critic = self.gan(aux, ctx)
        starts = torch.randn(
            self.draws * target.classes * self.images_per_class,
            self.latent,
            generator=ctx.generator("gmi/latents"),
            device=ctx.device,
        )
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        targets = per_draw.repeat(self.draws)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))

        found: list[tuple[Tensor, Tensor]] = []
        chunks = list(zip(starts.split(self.batch), targets.split(self.batch), strict=True))
        with ctx.track("GMI: searching", self.iterations * len(chunks)) as advance:
            for z, labels in chunks:
                z = self._search(z, labels, generator, critic, target, ctx, advance)
                found.append(_look(z, labels, generator, target))
        images, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        if self.keep_best:
            best = best_draws(scores.view(self.draws, -1))
            images, targets, draws = images[best], targets[best], draws[best]
        return AttackResult(images, targets, draws)

    def _search(
        self,
        z: Tensor,
        labels: Tensor,
        generator: nn.Module,
        critic: nn.Module,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> Tensor:
        """(n, latent) latents after `iterations` steps from `z`, each row on its own."""
        z = z.clamp(-self.latent_clip, self.latent_clip)
        velocity = torch.zeros_like(z)
        for _ in range(self.iterations):
            z.requires_grad_()
            with ctx.precision():
                images = generator(z)
                realism, logits = critic(images), target.logits(images)
            loss = search_loss(realism.float(), logits.float(), labels, self.identity_weight) / self.ref_batch
            (gradient,) = torch.autograd.grad(loss, z)
            z, velocity = nesterov(z.detach(), velocity, gradient, self.lr, self.momentum)
            z = z.clamp(-self.latent_clip, self.latent_clip)
            advance(1)
        return z


def search_loss(realism: Tensor, logits: Tensor, labels: Tensor, identity_weight: float) -> Tensor:
    """Sum over images of -D(G(z)) + lambda CE(T(G(z)), y).

    Args:
        realism: (n,) critic scores. logits: (n, classes) of the target. labels: (n,) classes aimed at.
    """
    return -realism.sum() + identity_weight * cross_entropy(logits, labels, reduction="sum")


def nesterov(z: Tensor, velocity: Tensor, gradient: Tensor, lr: float, momentum: float) -> tuple[Tensor, Tensor]:
    """One step of stage 2: v' = mu v - lr g, z' = z - mu v + (1 + mu) v'. Returns (z', v')."""
    faster = momentum * velocity - lr * gradient
    return z - momentum * velocity + (1 + momentum) * faster, faster


def best_draws(scores: Tensor) -> Tensor:
    """Rows to keep of draw-major results: for each target the draw with the largest score.

    Args:
        scores: (draws, n) target scores, of any sign.

    Returns:
        (n,) int64 indices into the flattened (draws * n).
    """
    n = scores.shape[1]
    return scores.argmax(0) * n + torch.arange(n, device=scores.device)


@torch.no_grad()
def _look(z: Tensor, labels: Tensor, generator: nn.Module, target: Target) -> tuple[Tensor, Tensor]:
    """The images of latents, in float32, and the target's logit of each image's own class."""
    images = generator(z)
    return images, target.logits(images).gather(1, labels.unsqueeze(1)).squeeze(1)
