"""LOKT: a conditional GAN learns from the target's labels; its images train surrogates, which are then inverted.

Nguyen, Chandrasegaran, Abdollahzadeh, Cheung, "Label-Only Model Inversion Attacks via Knowledge Transfer", NeurIPS 2023
(arXiv 2310.19342). T the target, which returns only the class; x the attacker's images, without labels; G(z, y) the
generator; D the discriminator, with an output for real or generated and an auxiliary classifier C of the K classes; S
the surrogates; A a random augmentation; y the attacked class.

1. T-ACGAN. `warm_up` iterations of a plain GAN, then `iterations` with the classifier. One iteration has `n_critic`
   updates of D and one of G:
   L_D = -E log D(x) - E log(1 - D(G(z, y))) + alpha E CE(C(G(z, y)), T(G(z, y))) and
   L_G = -E log D(G(z, y)) + alpha E CE(C(G(z, y)), y).
   alpha is 0 in the warm-up, and T is not queried there. Real images get no class loss and are never queried.
2. Surrogates. Draw `surrogate_images` images of each class from G and query their labels from T. Train each S on them
   by 1/2 CE(S(x), T(x)) + 1/2 CE(S(A(x)), T(x)).
3. White-box inversion of the surrogates. For each class draw z ~ N(0, I) and update it by Adam to lower the max-margin
   loss L_MM = -s_y + max_{j != y} s_j, the mean over the surrogates and two augmentations of G(z, y). T is not queried.

Queries: `iterations` x `n_critic` x `gan_batch` + K x `surrogate_images`. No gradient of T is needed.

Differs from the paper:
- G and A are those of PLG-MI (`attacks/plg_mi.py`), D is the critic of GMI with 1 + K outputs. A mirrors nothing.
- The surrogates of the paper are DenseNets of 121, 161 and 169 layers for 64 pixels; here their stems fit small images.
- The paper trains a surrogate for 200 epochs of 30,000 images. Here `surrogate_steps` batches are drawn with
  replacement; the default is as many images in batches of 128, a size that we chose.
- `draws` x `images_per_class` starts for each class; the authors have 5 random seeds of one.
- G and S are in evaluation mode in step 3, and losses are sums over the images, so images do not affect each other.
- Nothing is cached: G and S depend on the target.
- Variant `working` trains the GAN and the surrogates for a shorter time with other learning rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.class_inversion import CHANCES, augment, max_margin
from bench.gan.conditional_gan import ConditionalGenerator
from bench.gan.gan_prior import gan_skip_reason
from bench.gan.surrogates import architectures, check_architectures, train_surrogates, unbuildable
from bench.gan.training import descend, non_saturating_loss, source_loss
from bench.nets.generators import Critic
from bench.seeds import derive
from bench.validate import at_least, positive

BETAS = (0.0, 0.9)
"""Adam's betas for G and D."""
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
"""Of the surrogates' SGD."""
CROP, ROTATION, JITTER = 0.8, 5.0, 0.2
"""Smallest share of the area, largest angle in degrees and largest change of colours of A."""
CHUNK = 500
"""Images that G makes and T labels at once in step 2."""


@dataclass(frozen=True)
class Lokt:
    """Label-only inversion via knowledge transfer; the defaults are the authors' for CelebA."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Nguyen et al., NeurIPS 2023, arXiv 2310.19342"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "label"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            "warm_up": 2, "iterations": 3, "gan_batch": 8, "latent": 8, "width": 4, "surrogates": "shard-cnn,shard-cnn",
            "surrogate_images": 6, "surrogate_steps": 3, "surrogate_batch": 8, "steps": 3, "draws": 2,
            "images_per_class": 1,
        },
        "quick": {
            "warm_up": 100, "iterations": 400, "gan_batch": 64, "latent": 64, "width": 8,
            "surrogates": "datalens,shard-cnn,dgd-cnn", "surrogate_images": 200, "surrogate_steps": 300,
            "surrogate_batch": 64, "steps": 60, "images_per_class": 4,
        },
    }  # fmt: skip
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="the GAN's learning rate is 1e-3, not 2e-4, and G is updated after 2 updates of D, not 5",
            why="tier quick has 500 updates of G, the paper 20,000",
            sets={"gan_lr": 1e-3, "n_critic": 2},
        ),
        Departure(
            what="the surrogates' learning rate is 0.02, not 0.1",
            why="the surrogates of tier quick have no batch normalisation and diverge at 0.1",
            sets={"surrogate_lr": 0.02},
        ),
    )

    warm_up: Size[int] = 1000
    """Iterations of the plain GAN, without queries."""
    iterations: Size[int] = 19_000
    """Iterations of the GAN with the auxiliary classifier."""
    gan_batch: Size[int] = 128
    """Images per update of the GAN."""
    gan_lr: float = 2e-4
    """Adam's learning rate for G and D; betas 0 and 0.9."""
    n_critic: int = 5
    """Updates of D per update of G."""
    class_weight: float = 1.5
    """alpha, the weight of the classifier's cross-entropy in the losses of G and D."""
    latent: Size[int] = 128
    """Length of the latent vector z."""
    width: Size[int] = 64
    """Channels of the narrowest hidden layers of G and D."""
    surrogates: Size[str] = "small:tv:densenet121,small:tv:densenet161,small:tv:densenet169"
    """Networks (see `bench list`) of the surrogates, separated by commas."""
    surrogate_images: Size[int] = 500
    """Generated images of each class that the target labels for the surrogates."""
    surrogate_steps: Size[int] = 47_000
    """Steps of each surrogate's training (SGD, momentum 0.9, weight decay 5e-4, cosine schedule)."""
    surrogate_batch: Size[int] = 128
    """Images per step of a surrogate's training."""
    surrogate_lr: float = 0.1
    """Largest learning rate of a surrogate's training."""
    steps: Size[int] = 600
    """Steps of the latent search."""
    lr: float = 0.1
    """Adam's learning rate in the latent search."""
    draws: Size[int] = 5
    """Independent searches per class, from different random latents."""
    images_per_class: Size[int] = 20
    """Images per class in each draw (the paper: 1)."""
    batch: Size[int] = 200
    """Images searched in one batch; affects rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 0, "warm_up", "class_weight")
        at_least(self, 1, "iterations", "n_critic", "latent", "width", "surrogate_images", "surrogate_steps", "steps")
        at_least(self, 1, "draws", "images_per_class", "batch")
        at_least(self, 2, "gan_batch", "surrogate_batch")  # batch normalisation needs at least two images
        positive(self, "gan_lr", "surrogate_lr", "lr")
        check_architectures("surrogates", self.surrogates)
        if not architectures(self.surrogates):
            raise ValueError("surrogates is none; expected at least one network")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: unsupported image size, or too few auxiliary images."""
        reason = gan_skip_reason(shape, aux, self.gan_batch)
        return unbuildable("surrogates", self.surrogates, shape, classes) if reason is None else reason

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class."""
        generator = self._t_acgan(target, aux, ctx)
        surrogates = self._surrogates(generator, target, ctx)
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        labels = per_draw.repeat(self.draws)
        starts = torch.randn(len(labels), self.latent, generator=ctx.generator("lokt/latents"), device=ctx.device)
        parts = torch.arange(len(labels), device=ctx.device).split(self.batch)
        found = []
        with ctx.track("LOKT: searching", self.steps * len(parts)) as advance:
            for rows in parts:
                z = self._search(rows, starts, labels, generator, surrogates, ctx, advance)
                with torch.no_grad():
                    found.append(generator(z, labels[rows]))
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(torch.cat(found), labels, draws)

    def _t_acgan(self, target: Target, aux: Tensor, ctx: Context) -> nn.Module:
        """Step 1: return G, frozen, in eval mode."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(ctx.seed, "lokt/networks"))
            generator = ConditionalGenerator(target.shape, target.classes, self.latent, self.width)
            discriminator = Critic(target.shape, self.width, 1 + target.classes)
        generator, discriminator = ctx.prepared(generator).train(), ctx.prepared(discriminator).train()
        adam_g = torch.optim.Adam(generator.parameters(), self.gan_lr, BETAS)
        adam_d = torch.optim.Adam(discriminator.parameters(), self.gan_lr, BETAS)
        rng, n = ctx.generator("lokt/gan"), self.gan_batch

        def make() -> tuple[Tensor, Tensor]:
            y = torch.randint(target.classes, (n,), generator=rng, device=ctx.device)
            return generator(torch.randn(n, self.latent, generator=rng, device=ctx.device), y), y

        with ctx.track("LOKT: training the GAN", self.warm_up + self.iterations) as advance:
            for iteration in range(self.warm_up + self.iterations):
                alpha = self.class_weight if iteration >= self.warm_up else 0.0
                for _ in range(self.n_critic):
                    real = aux[torch.randint(len(aux), (n,), generator=rng, device=ctx.device)]
                    with torch.no_grad():
                        fake, _ = make()
                    labels = target.labels(fake) if iteration >= self.warm_up else None
                    descend(adam_d, discriminator_loss(discriminator(real), discriminator(fake), labels, alpha))
                fake, y = make()
                descend(adam_g, generator_loss(discriminator(fake), y, alpha))
                advance(1)
        return generator.eval().requires_grad_(False)

    def _surrogates(self, generator: nn.Module, target: Target, ctx: Context) -> list[nn.Module]:
        """Step 2: return the surrogates, frozen, in eval mode."""
        rng = ctx.generator("lokt/images")
        y = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.surrogate_images)
        z = torch.randn(len(y), self.latent, generator=rng, device=ctx.device)
        with torch.no_grad():
            images = torch.cat([generator(a, b) for a, b in zip(z.split(CHUNK), y.split(CHUNK), strict=True)])
            labels = torch.cat([target.labels(part) for part in images.split(CHUNK)])
        total = self.surrogate_steps * len(architectures(self.surrogates))
        with ctx.track("LOKT: training the surrogates", total) as advance:

            def fit(surrogate: nn.Module, k: int) -> None:
                self._fit(surrogate, images, labels, ctx.generator(f"lokt/order/{k}"), ctx, advance)

            return train_surrogates(self.surrogates, target, ctx, "lokt/surrogate", fit)

    def _fit(
        self, surrogate: nn.Module, images: Tensor, labels: Tensor, rng: torch.Generator, ctx: Context, advance: Advance
    ) -> None:
        """Train one surrogate in place on the images and the target's labels."""
        sgd = torch.optim.SGD(surrogate.parameters(), self.surrogate_lr, MOMENTUM, weight_decay=WEIGHT_DECAY)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, self.surrogate_steps)
        size = self.surrogate_batch
        for _ in range(self.surrogate_steps):
            chosen = torch.randint(len(images), (size,), generator=rng, device=images.device)
            views = augmented(images[chosen], torch.rand(size, CHANCES, generator=rng, device=images.device))
            with ctx.precision():
                logits = surrogate(torch.cat([images[chosen], views]))
            descend(sgd, cross_entropy(logits.float(), labels[chosen].repeat(2)))
            cosine.step()
            advance(1)

    def _search(
        self,
        rows: Tensor,
        starts: Tensor,
        labels: Tensor,
        generator: nn.Module,
        surrogates: list[nn.Module],
        ctx: Context,
        advance: Advance,
    ) -> Tensor:
        """Step 3 for some `rows` of all (m, latent) `starts`: return their latents; rows are independent."""
        rng = ctx.generator("lokt/views")
        z, y = starts[rows].clone().requires_grad_(), labels[rows]
        adam = torch.optim.Adam([z], self.lr)
        for _ in range(self.steps):
            chances = torch.rand(2, len(labels), CHANCES, generator=rng, device=ctx.device)[:, rows].flatten(0, 1)
            with ctx.precision():
                views = augmented(generator(z, y).float().repeat(2, 1, 1, 1), chances)
                logits = torch.stack([surrogate(views) for surrogate in surrogates])
            margins = max_margin(logits.float().flatten(0, 1), y.repeat(2 * len(surrogates)))
            descend(adam, margins.sum() / (2 * len(surrogates)))
            advance(1)
        return z.detach()


def discriminator_loss(real: Tensor, fake: Tensor, labels: Tensor | None, alpha: float) -> Tensor:
    """Return L_D of D's (n, 1 + K) outputs for real and generated images; no class loss without the target's labels."""
    loss = source_loss(real[:, 0], fake[:, 0])
    return loss if labels is None else loss + alpha * cross_entropy(fake[:, 1:], labels)


def generator_loss(fake: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Return L_G of D's (n, 1 + K) outputs for generated images and the classes that G was given."""
    return non_saturating_loss(fake[:, 0]) + alpha * cross_entropy(fake[:, 1:], labels)


def augmented(images: Tensor, chances: Tensor) -> Tensor:
    """Apply A to (n, c, h, w) images by (n, CHANCES) random numbers; differentiable."""
    return augment(images, chances, CROP, ROTATION, JITTER, mirror=False)
