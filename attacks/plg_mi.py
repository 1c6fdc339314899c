"""PLG-MI: train a class-conditional GAN on the target's pseudo-labels, then search it class by class.

Yuan, Chen, Zhang, Zhang, Yu, Zhang, "Pseudo Label-Guided Model Inversion Attack via Conditional Generative
Adversarial Network", AAAI 2023 (arXiv 2302.09814). G generator, D discriminator, T target with logits t, y a class, A a
random augmentation.

1. Top-n selection: for each class y, the n of the attacker's images with the largest T(x)_y become its images. One
   image may serve several classes.
2. Train G(z, y) and D(x, y) with the hinge losses, z ~ N(0, I), y uniform:
   L_D = E max(0, 1 - D(x, y)) + E max(0, 1 + D(G(z, y), y)) and
   L_G = -E D(G(z, y), y) + alpha E L_MM(T(A(G(z, y))), y), with the max-margin loss L_MM = -t_y + max_{j != y} t_j.
3. For each class draw z ~ N(0, I) and update it by Adam to lower L_MM(T(A_1(G(z, y))), y) + L_MM(T(A_2(G(z, y))), y),
   with new augmentations A_1, A_2 at every step.

Differs from the paper:
- No mirroring in A: it is wrong for digits. `mirror` enables it, as the authors do for faces.
- A crops a square of 0.8 to 1 of the area, rotates it by up to 5 degrees and changes brightness, contrast and, in
  colour images, saturation by up to 0.2, with one resampling and one clamp. The hue does not change.
- G ends in a sigmoid. The authors' ends in tanh with real images in [0, 1], so half of its range is never used.
- Images are ranked by log-probabilities in double precision: many probabilities of a confident target round to 1.
- Batches of (image, pseudo-label) are drawn with replacement.
- The losses of step 3 are sums over the images, not means: Adam makes the same steps for both.
- G is in evaluation mode in step 3, so images do not affect each other. z is not clamped, as in the authors' code.
- `draws` x `images_per_class` starts for each class; the authors have 5 random seeds of one.
- Image sizes other than 64, and narrower networks: see `bench/gan/conditional_gan.py`.
- The GAN depends on the target, so it is trained in every run of the attack and not cached.
- Variant `working` trains the GAN with a larger learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.errors import BenchError
from bench.gan.class_inversion import CHANCES, augment, max_margin
from bench.gan.conditional_gan import ConditionalGenerator, ProjectionDiscriminator
from bench.gan.training import descend
from bench.nets.generators import check_square
from bench.seeds import derive
from bench.validate import at_least, at_most, between, positive

BETAS = (0.0, 0.9)
"""Adam's betas for G and D."""


@dataclass(frozen=True)
class PlgMi:
    """Pseudo-label-guided inversion; the defaults are the authors' for CelebA, without mirroring."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Yuan et al., AAAI 2023, arXiv 2302.09814"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            "top_n": 4,
            "gan_steps": 5,
            "gan_batch": 8,
            "latent": 8,
            "width": 4,
            "iterations": 3,
            "draws": 2,
            "images_per_class": 1,
        },
        "quick": {
            "top_n": 20,
            "gan_steps": 200,
            "gan_batch": 32,
            "latent": 64,
            "width": 8,
            "iterations": 30,
            "images_per_class": 2,
        },
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="the GAN's learning rate is 1e-3, not 2e-4, and G is updated after 2 updates of D, not 5",
            why="tier quick has 200 updates of D, the paper 150,000; with n_critic 5, G would have only 40 updates",
            sets={"gan_lr": 1e-3, "n_critic": 2},
        ),
    )

    top_n: Size[int] = 30
    """n, number of auxiliary images selected for each class, those with its largest probability."""
    gan_steps: Size[int] = 150_000
    """Updates of the discriminator D (30,000 iterations of `n_critic` updates of D and one of G)."""
    gan_batch: Size[int] = 64
    """Images per update of the GAN."""
    gan_lr: float = 2e-4
    """Adam's learning rate for G and D; betas 0 and 0.9."""
    n_critic: int = 5
    """Updates of the discriminator D per update of the generator G."""
    margin_weight: float = 0.2
    """alpha, weight of the target's max-margin loss in the generator's loss."""
    latent: Size[int] = 128
    """Length of the latent vector z."""
    width: Size[int] = 64
    """Channels of the narrowest hidden layers of G and D."""
    iterations: Size[int] = 600
    """Steps of the latent search."""
    lr: float = 0.1
    """Adam's learning rate in the latent search."""
    crop: float = 0.8
    """Smallest share of an image's area that the random augmentation keeps."""
    rotation: float = 5.0
    """Largest rotation by the random augmentation, in degrees."""
    jitter: float = 0.2
    """Largest relative change of brightness, contrast and saturation by the random augmentation."""
    mirror: bool = False
    """Whether the random augmentation mirrors half of the images; wrong for digits."""
    draws: Size[int] = 5
    """Independent searches per class, from different random seeds."""
    images_per_class: Size[int] = 20
    """Images per class in each draw (the paper: 1)."""
    batch: Size[int] = 200
    """Images searched in one batch; affects rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "top_n", "gan_steps", "gan_batch", "n_critic", "latent", "width", "iterations")
        at_least(self, 1, "draws", "images_per_class", "batch")
        positive(self, "gan_lr", "lr", "crop")
        at_least(self, 0, "margin_weight")
        between(self, 0, 180, "rotation")
        between(self, 0, 1, "jitter")
        at_most(self, 1, "crop")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: unsupported image size, or fewer auxiliary images than `top_n`."""
        try:
            check_square(shape)
        except BenchError as error:
            return str(error)
        if aux < self.top_n:
            return f"{aux} auxiliary images: the selection needs at least {self.top_n} (top_n)"
        return None

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class."""
        generator = self._gan(target, aux, ctx)
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        labels = per_draw.repeat(self.draws)
        starts = torch.randn(len(labels), self.latent, generator=ctx.generator("plg-mi/latents"), device=ctx.device)
        found = []
        parts = torch.arange(len(labels), device=ctx.device).split(self.batch)
        with ctx.track("PLG-MI: searching", self.iterations * len(parts)) as advance:
            for rows in parts:
                z = self._search(rows, starts, labels, generator, target, ctx, advance)
                with torch.no_grad():
                    found.append(generator(z, labels[rows]))
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(torch.cat(found), labels, draws)

    def _gan(self, target: Target, aux: Tensor, ctx: Context) -> ConditionalGenerator:
        """Steps 1 and 2: return G, frozen, in eval mode."""
        with torch.no_grad():
            logits = torch.cat([target.logits(part) for part in aux.split(500)])
        selected = top_n(logits, min(self.top_n, len(aux)))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(ctx.seed, "plg-mi/networks"))
            generator = ConditionalGenerator(target.shape, target.classes, self.latent, self.width)
            discriminator = ProjectionDiscriminator(target.shape, target.classes, self.width)
        generator, discriminator = ctx.prepared(generator).train(), ctx.prepared(discriminator).train()
        with ctx.track("PLG-MI: training the GAN", self.gan_steps) as advance:
            self._train(generator, discriminator, aux, selected, target, ctx.generator("plg-mi/training"), advance)
        return generator.eval().requires_grad_(False)

    def _train(
        self,
        generator: ConditionalGenerator,
        discriminator: ProjectionDiscriminator,
        aux: Tensor,
        selected: Tensor,
        target: Target,
        rng: torch.Generator,
        advance: Advance,
    ) -> None:
        """Train both networks in place; `selected` has the (classes, n) rows of `aux` of each class."""
        optimise_g = torch.optim.Adam(generator.parameters(), lr=self.gan_lr, betas=BETAS)
        optimise_d = torch.optim.Adam(discriminator.parameters(), lr=self.gan_lr, betas=BETAS)
        n, classes = self.gan_batch, len(selected)

        def integers(below: int) -> Tensor:
            return torch.randint(below, (n,), generator=rng, device=aux.device)

        def make() -> tuple[Tensor, Tensor]:
            y = integers(classes)
            return generator(torch.randn(n, self.latent, generator=rng, device=aux.device), y), y

        for step in range(1, self.gan_steps + 1):
            y_real = integers(classes)
            real = aux[selected[y_real, integers(selected.shape[1])]]
            with torch.no_grad():
                fake, y = make()
            d = discriminator(torch.cat([real, fake]), torch.cat([y_real, y]))
            descend(optimise_d, hinge(d[:n], d[n:]))
            if step % self.n_critic == 0:
                images, y = make()
                chances = torch.rand(n, CHANCES, generator=rng, device=aux.device)
                margins = max_margin(target.logits(self._augmented(images, chances)), y)
                descend(optimise_g, self.margin_weight * margins.mean() - discriminator(images, y).mean())
            advance(1)

    def _search(
        self,
        rows: Tensor,
        starts: Tensor,
        labels: Tensor,
        generator: nn.Module,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> Tensor:
        """Step 3 for some `rows` of all (m, latent) `starts`: return their latents; rows are independent."""
        rng = ctx.generator("plg-mi/views")
        z, y = starts[rows].clone().requires_grad_(), labels[rows]
        adam = torch.optim.Adam([z], lr=self.lr)
        for _ in range(self.iterations):
            chances = torch.rand(2, len(labels), CHANCES, generator=rng, device=ctx.device)[:, rows].flatten(0, 1)
            with ctx.precision():
                images = generator(z, y)
                logits = target.logits(self._augmented(images.float().repeat(2, 1, 1, 1), chances))
            descend(adam, max_margin(logits.float(), y.repeat(2)).sum())
            advance(1)
        return z.detach()

    def _augmented(self, images: Tensor, chances: Tensor) -> Tensor:
        return augment(images, chances, self.crop, self.rotation, self.jitter, self.mirror)


def top_n(logits: Tensor, n: int) -> Tensor:
    """Return the n rows of (m, classes) logits with the largest probability of each class, descending; (classes, n)."""
    return logits.double().log_softmax(1).topk(n, dim=0).indices.T


def hinge(real: Tensor, fake: Tensor) -> Tensor:
    """Return L_D of D's scores (n,) for real and (m,) for generated images."""
    return relu(1 - real).mean() + relu(1 + fake).mean()
