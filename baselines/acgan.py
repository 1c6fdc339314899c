"""AC-GAN: a student trained on images of a class-conditional GAN of the private images (DGD's Fig. 4).

Reference: Odena, Olah, Shlens, "Conditional Image Synthesis With Auxiliary Classifier GANs", ICML 2017, section 3, with
its equations (2) and (3); the student is that of Ge et al., DGD, IEEE TIP 2023, section IV-B. The discriminator gives
P(S | X), whether an image is real, and P(C | X), its class; the generator makes X_fake = G(c, z), z ~ N(0, I).

1. L_S = E log P(S = real | X_real) + E log P(S = fake | X_fake) (2);
   L_C = E log P(C = c | X_real) + E log P(C = c | X_fake) (3).
2. `gan_steps` times: D takes a step of Adam up L_S + L_C, then G one up L_C - L_S.
3. The student learns the teachers' noisy votes on images of G, made for one class after the other, and learns from
   further images without votes. The classes that G was conditioned on are not used as labels.

Privacy. None: D and G are trained on the private images and labels without noise, and the ledger says so.

Differs from the paper:
- Settings are the paper's for CIFAR-10 (batches of 100, 50,000 steps, Adam with beta_1 0.5, and 2e-4, one of the
  learning rates that it tried); the paper has no results on MNIST.
- Networks are those of `bench/nets`: transposed convolutions of 5x5 with batch normalisation, and a discriminator of
  strided convolutions with instance normalisation and leaky ReLU 0.2, whose last layer returns S and C. The paper's has
  six layers with batch normalisation, dropout and noise on activations. Images are in [0, 1]; weights are initialised
  by torch.
- The student is as in `bench/distillation/unprotected_images.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context, Sampler, gaussian_latents
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.data import to_float
from bench.distillation.unprotected_images import DEPARTURES, QUICK, SMOKE, UnprotectedGenerator
from bench.gan.training import descend, minimax_loss, non_saturating_loss, shuffled_batches, source_loss
from bench.nets.generators import Critic, DeconvGenerator, Shape
from bench.validate import at_least, one_of, positive

BETAS = (0.5, 0.999)


@dataclass(frozen=True)
class AcGan(UnprotectedGenerator):
    """Train a student on images of a GAN with an auxiliary classifier; without a privacy guarantee."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Odena et al., AC-GAN, ICML 2017, section 3; Ge et al., DGD, Fig. 4"
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE | {"gan_steps": 3, "gan_batch": 8, "latent": 8, "width": 4},
        "quick": QUICK | {"gan_steps": 2000, "width": 16},
    }
    departures: ClassVar[tuple[Departure, ...]] = DEPARTURES

    gan_steps: Size[int] = 50_000
    """Steps of the discriminator, and of the generator."""
    gan_batch: Size[int] = 100
    """Number of real images, and of generated images, per step."""
    rate: float = 2e-4
    """Learning rate of both Adam optimisers, whose beta_1 is 0.5."""
    fooling: Literal["minimax", "non-saturating"] = "minimax"
    """Loss of the generator against the discriminator: the minimax game (the paper), or non-saturating."""
    latent: Size[int] = 100
    """Length of the latent vector z; with the one-hot class it has 110 numbers, as in the paper."""
    width: Size[int] = 64
    """Channels of the narrowest hidden layers of generator and discriminator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "gan_steps", "latent", "width")
        at_least(self, 2, "gan_batch")  # BatchNorm has no variance of a single image
        positive(self, "rate")
        one_of(self, "fooling", "minimax", "non-saturating")

    def sampler(self, shape: Shape, classes: int, dataset: str) -> Sampler:
        """Build G with its Gaussian latents and labels."""
        return Sampler(
            LabelledGenerator(shape, classes, self.latent, self.width), gaussian_latents(self.latent), classes
        )

    def train(self, sampler: Sampler, shape: Shape, images: Tensor, labels: Tensor, ctx: Context) -> None:
        """Run steps 1 and 2."""
        rng, g = ctx.generator("AC-GAN"), sampler.generator.train()
        d = ctx.prepared(Critic(shape, self.width, 1 + sampler.classes)).train()
        of_d, of_g = (torch.optim.Adam(network.parameters(), lr=self.rate, betas=BETAS) for network in (d, g))
        size = min(self.gan_batch, len(images))
        fooling = minimax_loss if self.fooling == "minimax" else non_saturating_loss

        def made() -> tuple[Tensor, Tensor]:
            c = torch.randint(sampler.classes, (size,), generator=rng, device=rng.device)
            return sampler.decode(sampler.latents(size, rng), c), c

        batches = shuffled_batches(len(images), size, rng)
        with ctx.track("AC-GAN", self.gan_steps) as advance:
            for _ in range(self.gan_steps):
                chosen = next(batches)
                with torch.no_grad():
                    fake, c = made()
                real, seen = d(to_float(images[chosen])), d(fake)
                loss = source_loss(real[:, 0], seen[:, 0])  # -(2)
                loss = loss + class_loss(real, labels[chosen]) + class_loss(seen, c)  # -(3)
                descend(of_d, loss)
                fake, c = made()
                seen = d(fake)
                descend(of_g, fooling(seen[:, 0]) + class_loss(seen, c))
                advance(1)


def class_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Compute -mean log P(C = c | X), which generator and discriminator both minimise.

    Args:
        outputs: (n, 1 + classes) of the discriminator; the first is the logit of being real.
        labels: (n,) int64.
    """
    return F.cross_entropy(outputs[:, 1:], labels)


class LabelledGenerator(nn.Module):
    """G(c, z): a `DeconvGenerator` whose input is z and the one-hot class."""

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.body = DeconvGenerator(shape, latent + classes, width)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Map (n, latent) latents and (n,) int64 labels to (n, c, h, w) images in [0, 1]."""
        images: Tensor = self.body(torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], 1))
        return images
