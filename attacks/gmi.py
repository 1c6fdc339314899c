"""GMI: search the latent space of a GAN for images that the target assigns to a class.

Zhang, Jia, Pei, Wang, Li, Song, "The Secret Revealer: Generative Model-Inversion Attacks Against Deep Neural Networks",
CVPR 2020 (arXiv 1911.07135). G generator, D critic, T target, y the attacked class.

1. Train G and D on the attacker's images as a Wasserstein GAN with gradient penalty:
   L_D = mean D(G(z)) - mean D(x) + 10 mean (||grad D(x~)||_2 - 1)^2 and L_G = -mean D(G(z)), z ~ N(0, I).
2. Draw z ~ N(0, I) and set v = 0. Repeat: L(z) = -D(G(z)) + lambda CE(T(G(z)), y), and with g its gradient
   v' = mu v - lr g;  z <- z - mu v + (1 + mu) v'  (Nesterov);  clamp z to [-1, 1];  v <- v'.
3. Do so for several random seeds and keep, for each target, the seed with the largest score T(G(z))_y.

With `auxiliary` the attacker also has a corrupted auxiliary image of each victim, x~ = A(x), blurred or with a black
middle, and reconstructs victims. The attacked class is the target's prediction for the victim, and
L(z) = -D(G(z)) + lambda CE(T(G(z)), y) + `auxiliary_weight` ||A(G(z)) - x~||^2. With `diversity` step 1 rewards G for
||F(G(z_1)) - F(G(z_2))|| / ||z_1 - z_2||, F the target's features, so that images differ in these features. The paper
calls step 1 stage 1, and steps 2 and 3 stage 2.

Differs from the paper:
- `diversity` is 0 by default: the GAN is then trained without the target and can be reused for every target. The
  authors' released training without masks has none either. The paper's weight is 0.5.
- `auxiliary` enters stage 2 as a squared error. The paper trains a generator that has the corrupted image as an input.
- The losses of stage 2 are means over the batch in the authors' code, so the step of one image shrinks as the batch
  grows. Here they are sums divided by `ref_batch`, their batch on MNIST: the result does not depend on `batch`.
- The initial z is clamped too, so G is never evaluated outside the clamp.
- G and D are in evaluation mode in stage 2 (G normalises with its running statistics), so images do not affect
  each other.
- The corrupted image itself shows the class, so an attack on a network with random weights can succeed too: a run with
  `auxiliary` is inconclusive if the attack accuracy on that network is above chance.
- Several images per class and seed, all kept unless `keep_best`; the paper keeps one image, of the best seed.
- `keep_best` compares real scores from the start; the authors' code starts at 0 and loses targets whose scores are all
  negative.
- Image sizes other than 32 and 64: see `bench.nets.generators.DeconvGenerator`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.api import Access, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.data import corrupted
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
from bench.gan.latent_search import search_latents
from bench.gan.wasserstein import weights_fingerprint
from bench.nets import recorded_features
from bench.validate import at_least, below, positive


@dataclass(frozen=True)
class Gmi(GanPrior):
    """Generative model inversion; the defaults are the paper's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Zhang et al., CVPR 2020, arXiv 1911.07135"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {**SMOKE, "iterations": 3, "draws": 2, "images_per_class": 1},
        "quick": {**QUICK, "iterations": 50, "images_per_class": 4},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        SHORT_TRAINING,
        Departure(
            what="the latent search's learning rate is 0.05, not 0.01",
            why="tier quick has 50 steps, the paper 1,500; 50 small steps hardly move z from its random start",
            sets={"lr": 0.05},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {
        "images_per_class": "auxiliary=none",
        "auxiliary_weight": "auxiliary=blur|mask",
    }

    iterations: Size[int] = 1500
    """Steps of the latent search."""
    lr: float = 0.01
    """Learning rate of the latent search."""
    momentum: float = 0.9
    """Nesterov momentum mu of the latent search."""
    identity_weight: float = 100.0
    """lambda, weight of the cross-entropy (identity loss) relative to the critic (prior loss)."""
    latent_clip: float = 1.0
    """Bound on every coordinate of the latent z, at the start and after every step."""
    draws: Size[int] = 5
    """Independent searches per class, from different random seeds."""
    images_per_class: Size[int] = 20
    """Images per class in each draw (the paper: 1)."""
    ref_batch: int = 5
    """Divisor of the summed losses: the batch over which the authors' code averages."""
    batch: Size[int] = 200
    """Images searched in one batch; affects rounding only."""
    diversity: float = 0.0
    """lambda_d, reward for images that differ in the target's features; above 0, every target needs a separate GAN."""
    auxiliary: Literal["none", "blur", "mask"] = "none"
    """Corrupted image of each victim that the attacker has: none (attacks classes), blur, or mask (black middle)."""
    auxiliary_weight: float = 100.0
    """Weight of the squared distance to the corrupted auxiliary image in the search."""
    keep_best: bool = False
    """Keep, per class or victim, only the draw with the largest target score (step 3); false = keep all images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "iterations", "draws", "images_per_class", "ref_batch", "batch")
        positive(self, "lr", "latent_clip")
        at_least(self, 0, "identity_weight", "diversity", "auxiliary_weight", "momentum")
        below(self, 1, "momentum")

    @property
    def observes(self) -> bool:
        """Whether the attack reconstructs victims, not classes."""
        return self.auxiliary != "none"

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class, or one of every victim in each draw.

        With `keep_best` only one draw remains. Without `diversity` the GAN depends only on `aux` and its own options.
        """
        generator, critic = self._stage_1(target, aux, ctx)
        auxiliary_images, victims = None, None
        if self.auxiliary == "none":
            once = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        else:
            once = target.victim_scores().argmax(1)
            victims = torch.arange(len(once), device=ctx.device).repeat(self.draws)
            auxiliary_images = target.corrupted_victims(self.auxiliary).repeat(self.draws, 1, 1, 1)
        targets = once.repeat(self.draws)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(once))
        rng = ctx.generator("gmi/latents")
        starts = torch.randn(len(targets), self.latent, generator=rng, device=ctx.device)

        found: list[tuple[Tensor, Tensor]] = []
        rows = torch.arange(len(targets), device=ctx.device).split(self.batch)
        with ctx.track("GMI: searching", self.iterations * len(rows)) as advance:
            for part in rows:
                known = None if auxiliary_images is None else auxiliary_images[part]
                loss = self._loss(targets[part], known, generator, critic, target, ctx)
                z = search_latents(
                    starts[part],
                    loss,
                    iterations=self.iterations,
                    lr=self.lr,
                    momentum=self.momentum,
                    clip=self.latent_clip,
                    advance=advance,
                )
                found.append(_images_and_scores(z, targets[part], generator, target))
        images, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        if self.keep_best:
            best = best_draws(scores.view(self.draws, -1))
            images, targets, draws = images[best], targets[best], draws[best]
            victims = None if victims is None else victims[best]
        return AttackResult(images, targets, draws, victims)

    def _stage_1(self, target: Target, aux: Tensor, ctx: Context) -> tuple[nn.Module, nn.Module]:
        """Step 1: return the trained generator G and critic D."""
        if self.diversity == 0:
            return self.gan(aux, ctx)
        trained_with = {"diversity": self.diversity, "target": weights_fingerprint(target.module())}

        def reward(z: Tensor, other: Tensor, images: Tensor, others: Tensor) -> Tensor:
            with recorded_features(target.module()) as features:
                target.logits(images)
                target.logits(others)
            return self.diversity * diversity(z, other, *features)

        queries = target.queries
        trained = self.gan(aux, ctx, reward, trained_with)
        # Every update of G queries two batches; they count even if the GAN comes from the cache
        target.queries = queries + 2 * min(self.gan_batch, len(aux)) * (self.gan_steps // self.n_critic)
        return trained

    def _loss(
        self,
        labels: Tensor,
        auxiliary_images: Tensor | None,
        generator: nn.Module,
        critic: nn.Module,
        target: Target,
        ctx: Context,
    ) -> Callable[[Tensor], Tensor]:
        """Return the loss of latents for (n,) attacked classes `labels` and the victims' corrupted images, if any."""

        def loss(z: Tensor) -> Tensor:
            with ctx.precision():
                images = generator(z)
                realism, logits = critic(images), target.logits(images)
            total = search_loss(realism.float(), logits.float(), labels, self.identity_weight)
            if auxiliary_images is not None:
                total = total + self.auxiliary_weight * mismatch(images.float(), auxiliary_images, self.auxiliary)
            return total / self.ref_batch

        return loss


def mismatch(images: Tensor, auxiliary_images: Tensor, how: str) -> Tensor:
    """Return the sum over images of ||A(G(z)) - x~||^2.

    Args:
        images, auxiliary_images: (n, c, h, w) in [0, 1], G(z) and x~. how: A, "blur" or "mask".
    """
    return (corrupted(images, how) - auxiliary_images).square().sum()


def diversity(z: Tensor, other: Tensor, features: Tensor, others: Tensor) -> Tensor:
    """Return the mean of ||F(G(z_1)) - F(G(z_2))|| / ||z_1 - z_2|| over n pairs of latents and features."""
    return ((features - others).norm(dim=1) / (z - other).norm(dim=1)).mean()


def search_loss(realism: Tensor, logits: Tensor, labels: Tensor, identity_weight: float) -> Tensor:
    """Return the sum over images of -D(G(z)) + lambda CE(T(G(z)), y).

    Args:
        realism: (n,) critic scores. logits: (n, classes) of the target. labels: (n,) attacked classes.
    """
    return -realism.sum() + identity_weight * cross_entropy(logits, labels, reduction="sum")


def best_draws(scores: Tensor) -> Tensor:
    """Return the rows to keep, for each of n classes or victims the draw with the largest score.

    Args:
        scores: (draws, n) target scores, of any sign.

    Returns:
        (n,) int64 indices into the flattened (draws * n) results.
    """
    n = scores.shape[1]
    return scores.argmax(0) * n + torch.arange(n, device=scores.device)


@torch.no_grad()
def _images_and_scores(z: Tensor, labels: Tensor, generator: nn.Module, target: Target) -> tuple[Tensor, Tensor]:
    """Return the images of latents, in float32, and the target's logit of each image's attacked class."""
    images = generator(z)
    return images, target.logits(images).gather(1, labels.unsqueeze(1)).squeeze(1)
