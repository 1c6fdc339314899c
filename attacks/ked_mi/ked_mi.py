"""KED-MI: train a GAN with the target's soft labels, then recover a latent distribution for each class.

Chen, Kahla, Jia, Qi, "Knowledge-Enriched Distributional Model Inversion Attacks", ICCV 2021 (arXiv 2010.04092).
G generator, T target, y the attacked class; the discriminator has one logit l_k per class, and logit 0 for the
additional class "fake": s(x) = log sum_k exp l_k(x), and D(x) = e^s / (e^s + 1) is the probability of "real".

1. Label the attacker's images x by T. Train G and D:
   L_D = -E sum_k T_k(x) log softmax_k l(x) - 1/2 [E log D(x) + E log(1 - D(G(z)))], z ~ N(0, I), and
   L_G = mean |E h(x) - E h(G(z))| + lambda_h sum over the batch of the entropy of softmax l(G(z)),
   where h are D's features before its minibatch discrimination.
2. For each class set mu = 0 and log sigma^2 = 1, and repeat: z = mu + sigma eps, eps ~ N(0, I), and update mu
   and log sigma^2 by Adam to lower -log D(G(z)) + lambda CE(T(G(z)), y).
3. Return G(z) for z drawn from each recovered distribution.

Differs from the paper:
- lambda_h, the halves in L_D, the absolute (not squared) gap and the *sum* of the entropies are those of the authors'
  code, which the paper does not print. Both expectations over real images are taken over one batch; the authors' code
  draws one for each. Batches are drawn with replacement.
- D compares an image with the others of its batch (minibatch discrimination). In step 2 the authors' code
  compares the images of all attacked classes with each other. Here each is compared with a fixed batch of real images,
  as large as in training, so the result does not depend on `batch`.
- The kernels of the minibatch discrimination are initialised so that distances are of order 1; see
  `MinibatchDiscrimination`. With N(0, 1) all its outputs and their gradients are 0.
- The authors' code clamps z to [-1, 1] after G has been evaluated, and not at all before step 3, so the clamp has no
  effect. `latent_clip` clamps before G is evaluated, in steps 2 and 3 (as the code of LOMMA, Nguyen et al., CVPR 2023);
  its default is none.
- Each of the `draws` recovers separate distributions, from which `images_per_class` images are drawn. The paper
  recovers one distribution per class and draws five images.
- The losses of step 2 are sums over the images, not means: Adam makes the same steps for both.
- No term of step 2 keeps sigma near 1, as in the paper.
- G is in evaluation mode in steps 2 and 3. Image sizes other than 32 and 64: see `ClassDiscriminator` and
  `bench.nets.generators.DeconvGenerator`.
- The GAN depends on the target, so it is trained in every run of the attack and not cached.
- Variant `working` has larger learning rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from attacks.ked_mi.class_discriminator import ClassDiscriminator
from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import gan_skip_reason
from bench.gan.training import descend
from bench.nets.generators import DeconvGenerator
from bench.seeds import derive
from bench.validate import at_least, positive

BETAS = (0.5, 0.999)
"""Adam's betas for G and D."""


@dataclass(frozen=True)
class KedMi:
    """Knowledge-enriched distributional inversion; the defaults are the authors' for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen et al., ICCV 2021, arXiv 2010.04092"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            "gan_steps": 5,
            "gan_batch": 8,
            "latent": 8,
            "width": 4,
            "kernels": 4,
            "kernel_length": 3,
            "iterations": 3,
            "draws": 2,
            "images_per_class": 1,
        },
        "quick": {
            "gan_steps": 400,
            "width": 16,
            "kernels": 16,
            "kernel_length": 8,
            "iterations": 100,
            "images_per_class": 4,
        },
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="the GAN's learning rate is 1e-3, not 2e-4, and G is updated after 2 updates of D, not 5",
            why="tier quick has 400 updates of D, the paper 53,000; with n_critic 5, G would have only 80 updates",
            sets={"gan_lr": 1e-3, "n_critic": 2},
        ),
        Departure(
            what="the learning rate of mu and log sigma^2 is 0.1, not 0.02",
            why="tier quick has 100 steps, the paper 2,400",
            sets={"lr": 0.1},
        ),
    )

    gan_steps: Size[int] = 53_000
    """Updates of the discriminator D (100 epochs over half of MNIST, about 34,000 images, in batches of 64)."""
    gan_batch: Size[int] = 64
    """Images per update of the GAN."""
    gan_lr: float = 2e-4
    """Adam's learning rate for G and D; betas 0.5 and 0.999."""
    n_critic: int = 5
    """Updates of the discriminator D per update of the generator G."""
    entropy_weight: float = 1e-4
    """lambda_h, weight of the summed entropies of generated images in the generator's loss."""
    latent: Size[int] = 100
    """Length of the latent vector z."""
    width: Size[int] = 64
    """Channels of the narrowest hidden layers of G and D."""
    kernels: Size[int] = 64
    """Number of outputs of the discriminator's minibatch discrimination."""
    kernel_length: Size[int] = 50
    """Length of the linear code from which each of these outputs is computed."""
    iterations: Size[int] = 2400
    """Steps of Adam that recover each class's latent distribution, mu and log sigma^2."""
    lr: float = 0.02
    """Adam's learning rate in the recovery."""
    identity_weight: float = 100.0
    """lambda, weight of the cross-entropy (identity loss) relative to -log D (prior loss)."""
    initial_logvar: float = 1.0
    """Initial log sigma^2 of the recovery."""
    latent_clip: float = 0.0
    """Bound on every coordinate of the latent z in steps 2 and 3; 0 = no bound."""
    draws: Size[int] = 5
    """Recoveries per class (the paper: 1)."""
    images_per_class: Size[int] = 20
    """Images drawn from each recovered distribution (the paper: 5)."""
    batch: Size[int] = 200
    """Images searched in one batch; affects rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "gan_steps", "n_critic", "latent", "width", "kernels", "kernel_length", "iterations")
        at_least(self, 1, "draws", "images_per_class", "batch")
        at_least(self, 2, "gan_batch")  # D compares the images of a batch
        positive(self, "gan_lr", "lr")
        at_least(self, 0, "entropy_weight", "identity_weight", "latent_clip")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: unsupported image size, or fewer than two batches of auxiliary images."""
        return gan_skip_reason(shape, aux, self.gan_batch)

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class."""
        generator, discriminator = self._gan(target, aux, ctx)
        with torch.no_grad():
            pick = torch.randperm(len(aux), generator=ctx.generator("ked-mi/reference"), device=ctx.device)
            real_codes = discriminator.codes(aux[pick[: self.gan_batch - 1]])

        classes = torch.arange(target.classes, device=ctx.device)
        labels = classes.repeat(self.draws)
        found: list[tuple[Tensor, Tensor]] = []
        parts = torch.arange(len(labels), device=ctx.device).split(self.batch)
        with ctx.track("KED-MI: recovering", self.iterations * len(parts)) as advance:
            for rows in parts:
                found.append(self._recover(rows, labels, generator, discriminator, real_codes, target, ctx, advance))
        mu, logvar = (torch.cat(pieces) for pieces in zip(*found, strict=True))
        per_draw = classes.repeat_interleave(self.images_per_class)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(self._sample(mu, logvar, generator, ctx), per_draw.repeat(self.draws), draws)

    def _gan(self, target: Target, aux: Tensor, ctx: Context) -> tuple[DeconvGenerator, ClassDiscriminator]:
        """Step 1: return G and D, trained with the target's labels of `aux`, frozen, in eval mode."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(ctx.seed, "ked-mi/networks"))
            generator = ctx.prepared(DeconvGenerator(target.shape, self.latent, self.width)).train()
            sizes = (target.shape, target.classes, self.width, self.kernels, self.kernel_length)
            discriminator = ctx.prepared(ClassDiscriminator(*sizes)).train()
        soft = torch.cat([target.scores(part) for part in aux.split(500)])
        with ctx.track("KED-MI: training the GAN", self.gan_steps) as advance:
            self._train(generator, discriminator, aux, soft, ctx.generator("ked-mi/training"), advance)
        return generator.eval().requires_grad_(False), discriminator.eval().requires_grad_(False)

    def _train(
        self,
        generator: DeconvGenerator,
        discriminator: ClassDiscriminator,
        aux: Tensor,
        soft: Tensor,
        rng: torch.Generator,
        advance: Advance,
    ) -> None:
        """Train both networks in place; `soft` holds the target's (n, classes) probabilities of `aux`."""
        optimise_g = torch.optim.Adam(generator.parameters(), lr=self.gan_lr, betas=BETAS)
        optimise_d = torch.optim.Adam(discriminator.parameters(), lr=self.gan_lr, betas=BETAS)
        n = self.gan_batch

        def real() -> Tensor:
            return torch.randint(len(aux), (n,), generator=rng, device=aux.device)

        def make() -> Tensor:
            return generator(torch.randn(n, self.latent, generator=rng, device=aux.device))

        for step in range(1, self.gan_steps + 1):
            chosen = real()
            with torch.no_grad():
                fake = make()
            h = discriminator.features(torch.cat([aux[chosen], fake]))
            descend(optimise_d, discriminator_loss(discriminator.head(h[:n]), soft[chosen], discriminator.head(h[n:])))
            if step % self.n_critic == 0:
                with torch.no_grad():
                    h_real = discriminator.features(aux[real()])
                h_fake = discriminator.features(make())
                descend(optimise_g, generator_loss(h_real, h_fake, discriminator.head(h_fake), self.entropy_weight))
            advance(1)

    def _recover(
        self,
        rows: Tensor,
        labels: Tensor,
        generator: nn.Module,
        discriminator: ClassDiscriminator,
        real_codes: Tensor,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> tuple[Tensor, Tensor]:
        """Step 2 for some `rows` of all (m,) `labels`: return their mu and log sigma^2; rows are independent."""
        rng = ctx.generator("ked-mi/noise")
        mu = torch.zeros(len(rows), self.latent, device=ctx.device, requires_grad=True)
        logvar = torch.full_like(mu, self.initial_logvar, requires_grad=True)
        adam = torch.optim.Adam([mu, logvar], lr=self.lr)
        for _ in range(self.iterations):
            eps = torch.randn(len(labels), self.latent, generator=rng, device=ctx.device)[rows]
            with ctx.precision():
                images = generator(self._latents(mu, logvar, eps))
                realism, logits = discriminator(images, real_codes), target.logits(images)
            descend(adam, recovery_loss(realism.float(), logits.float(), labels[rows], self.identity_weight))
            advance(1)
        return mu.detach(), logvar.detach()

    def _latents(self, mu: Tensor, logvar: Tensor, eps: Tensor) -> Tensor:
        """Return z = mu + sigma eps, clamped if there is a bound."""
        z = mu + (logvar / 2).exp() * eps
        return z.clamp(-self.latent_clip, self.latent_clip) if self.latent_clip else z

    @torch.no_grad()
    def _sample(self, mu: Tensor, logvar: Tensor, generator: nn.Module, ctx: Context) -> Tensor:
        """Step 3: return (m x images_per_class, c, h, w) float32 images of (m, latent) distributions."""
        shape = (len(mu), self.images_per_class, self.latent)
        eps = torch.randn(shape, generator=ctx.generator("ked-mi/samples"), device=ctx.device)
        z = self._latents(mu.unsqueeze(1), logvar.unsqueeze(1), eps).flatten(0, 1)
        return torch.cat([generator(part) for part in z.split(self.batch)])


def discriminator_loss(real: Tensor, soft: Tensor, fake: Tensor) -> Tensor:
    """Return L_D of D's logits for real (n, classes) and generated (m, classes) images; `soft` is T of real images."""
    unsupervised = softplus(-real.logsumexp(1)).mean() + softplus(fake.logsumexp(1)).mean()
    return cross_entropy(real, soft) + 0.5 * unsupervised


def generator_loss(h_real: Tensor, h_fake: Tensor, fake: Tensor, entropy_weight: float) -> Tensor:
    """Return L_G of D's features (n, d) of real and generated images and its logits (n, classes) of generated ones."""
    log_p = fake.log_softmax(1)
    entropies = -(log_p.exp() * log_p).sum()
    return (h_real.mean(0) - h_fake.mean(0)).abs().mean() + entropy_weight * entropies


def recovery_loss(realism: Tensor, logits: Tensor, labels: Tensor, identity_weight: float) -> Tensor:
    """Return the sum over images of -log D(G(z)) + lambda CE(T(G(z)), y).

    Args:
        realism: (n, classes) logits of D. logits: (n, classes) of the target. labels: (n,) attacked classes.
    """
    prior = softplus(-realism.logsumexp(1)).sum()
    return prior + identity_weight * cross_entropy(logits, labels, reduction="sum")
