"""InfoGAN: a student trained on images of a GAN of the private images with recoverable codes (DGD's Fig. 4).

Reference: Chen, Duan, Houthooft, Schulman, Sutskever, Abbeel, "InfoGAN: Interpretable Representation Learning by
Information Maximizing Generative Adversarial Nets", NeurIPS 2016, equations (5) and (6); the student is that of Ge et
al., DGD, IEEE TIP 2023, section IV-B. z is noise, c a code of one category and some numbers, Q(c | x) predicts it from
an image and shares all layers with D except the last.

1. L_I = E log Q(c | G(z, c)) + H(c), a lower bound of the mutual information of c and G(z, c) (5).
2. `gan_steps` times: D and Q take a step of Adam up V(D, G) + lambda L_I, then G takes one down V(D, G) - lambda L_I
   (6). V(D, G) = E log D(x) + E log(1 - D(G(z, c))).
3. The student learns the teachers' noisy votes on images of G, and further images without votes.

z is uniform in [-1, 1], the category uniform over 10, numbers uniform in [-1, 1]; Q returns the category's
probabilities and the means of Gaussians of deviation 1 for the numbers.

Privacy. None: D, Q and G are trained on the private images without noise, and the ledger says so.

Differs from the paper:
- Constants, and that G descends -E log D(G(z, c)), are those of the released code for MNIST: 5,000 steps of 128 images,
  Adam with beta_1 0.5, 2e-4 for D and Q, 1e-3 for G, 62 noise variables, one category of 10, two numbers, lambda 1;
  for other data sets too.
- Networks are `bench/nets`': transposed convolutions of 5x5 and a discriminator of strided convolutions with instance
  normalisation; the paper's have fully connected layers of 1024 and batch normalisation, and the code's Q one more
  hidden layer.
- The student is as in `bench/distillation/unprotected_images.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.api import Context, Sampler, uniform_latents
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.data import to_float
from bench.distillation.unprotected_images import DEPARTURES, QUICK, SMOKE, UnprotectedGenerator
from bench.gan.training import descend, non_saturating_loss, shuffled_batches, source_loss
from bench.nets.generators import Critic, DeconvGenerator, Shape
from bench.validate import at_least, positive

BETAS = (0.5, 0.999)


@dataclass(frozen=True)
class InfoGan(UnprotectedGenerator):
    """Train a student on images of a GAN with recoverable codes; without a privacy guarantee."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen et al., InfoGAN, NeurIPS 2016, Eq. 6; Ge et al., DGD, Fig. 4"
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE | {"gan_steps": 3, "gan_batch": 8, "latent": 6, "width": 4},
        "quick": QUICK | {"gan_steps": 1500, "width": 16},
    }
    departures: ClassVar[tuple[Departure, ...]] = DEPARTURES

    gan_steps: Size[int] = 5000
    """Steps of the discriminator D with Q, and of the generator G."""
    gan_batch: Size[int] = 128
    """Number of real images, and of generated images, per step."""
    rate: float = 2e-4
    """Learning rate of D and Q (Adam, beta_1 0.5)."""
    rate_generator: float = 1e-3
    """Learning rate of G (Adam, beta_1 0.5)."""
    information: float = 1.0
    """lambda, weight of the mutual information."""
    latent: Size[int] = 62
    """Length of the latent vector z of the generator."""
    categories: int = 10
    """Number of values of the categorical variable in the code."""
    numbers: int = 2
    """Number of continuous variables in the code."""
    width: Size[int] = 64
    """Channels of the narrowest hidden layers of generator and discriminator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "gan_steps", "latent", "width")
        at_least(self, 2, "gan_batch")  # BatchNorm has no variance of a single image
        at_least(self, 2, "categories")
        at_least(self, 0, "information", "numbers")
        positive(self, "rate", "rate_generator")

    def sampler(self, shape: Shape, classes: int, dataset: str) -> Sampler:
        """Build G with its inputs (z, c)."""
        length = self.latent + self.categories + self.numbers
        return Sampler(DeconvGenerator(shape, length, self.width), self._latents)

    def _latents(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw (count, latent + categories + numbers): z, the one-hot category, the numbers."""
        z = uniform_latents(self.latent)(count, rng)
        category = torch.randint(self.categories, (count,), generator=rng, device=rng.device)
        numbers = uniform_latents(self.numbers)(count, rng)
        return torch.cat([z, F.one_hot(category, self.categories).to(z.dtype), numbers], 1)

    def train(self, sampler: Sampler, shape: Shape, images: Tensor, labels: Tensor, ctx: Context) -> None:
        """Run steps 1 and 2; labels are not used."""
        rng, g = ctx.generator("InfoGAN"), sampler.generator.train()
        d = ctx.prepared(Critic(shape, self.width, 1 + self.categories + self.numbers)).train()
        of_d = torch.optim.Adam(d.parameters(), lr=self.rate, betas=BETAS)
        of_g = torch.optim.Adam(g.parameters(), lr=self.rate_generator, betas=BETAS)
        size = min(self.gan_batch, len(images))
        batches = shuffled_batches(len(images), size, rng)
        with ctx.track("InfoGAN", self.gan_steps) as advance:
            for _ in range(self.gan_steps):
                zc = sampler.latents(size, rng)
                with torch.no_grad():
                    made = g(zc)
                real, fake = d(to_float(images[next(batches)])), d(made)
                bound = self.information_bound(fake[:, 1:], zc[:, self.latent :])  # (5)
                descend(of_d, source_loss(real[:, 0], fake[:, 0]) - self.information * bound)  # (6)
                zc = sampler.latents(size, rng)
                fake = d(g(zc))
                bound = self.information_bound(fake[:, 1:], zc[:, self.latent :])
                descend(of_g, non_saturating_loss(fake[:, 0]) - self.information * bound)
                advance(1)

    def information_bound(self, q: Tensor, code: Tensor) -> Tensor:
        """Compute L_I of (5), in nats, batch mean.

        Args:
            q: (n, categories + numbers) outputs of Q: the category's logits, the numbers' means.
            code: (n, categories + numbers) code of the generated images: one-hot category, then the numbers.
        """
        split = [self.categories, self.numbers]
        (logits, means), (category, numbers) = q.split(split, 1), code.split(split, 1)
        log_q = (logits.log_softmax(1) * category).sum(1)
        log_q = log_q - 0.5 * ((numbers - means).square() + math.log(2 * math.pi)).sum(1)
        return log_q.mean() + math.log(self.categories) + self.numbers * math.log(2)
