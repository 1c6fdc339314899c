"""The attacker's image prior: a GAN trained on the auxiliary images, once for all targets, seeds and attacks.

Attacks that search a generator's latent space derive from `GanPrior`; those with equal settings share one GAN in the
artifact store. It is trained like GMI's (Zhang et al., CVPR 2020), without the target; see `bench/gan/wasserstein.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.api import Context, Tensors
from bench.config import Departure, Size
from bench.errors import BenchError
from bench.gan.latent_search import nearest_images
from bench.gan.wasserstein import Diversity, build_gan, fingerprint, pack, train_wgan_gp, unpack
from bench.nets.generators import Critic, DeconvGenerator, check_square
from bench.seeds import derive
from bench.validate import at_least, positive

VERSION = 1
NEAREST: dict[str, Any] = {"steps": 150, "lr": 0.1, "penalty": 1e-3}
"""Settings of the search for the latent whose image is nearest to a given one."""
BETAS = (0.5, 0.999)
SMOKE: dict[str, Any] = {"gan_steps": 5, "gan_batch": 8, "latent": 8, "width": 4}
QUICK: dict[str, Any] = {"gan_steps": 400, "width": 16}
"""Settings of tier quick: half a minute on two CPU cores at 28 pixels; minutes at 64."""
SHORT_TRAINING = Departure(
    what="the GAN's learning rate is 1e-3, not 2e-4, and G is updated after 2 updates of D, not 5",
    why="tier quick has 400 updates of D, the paper 53,000; with n_critic 5, G would have only 80 updates",
    sets={"gan_lr": 1e-3, "n_critic": 2},
)
"""Changes of the `working` attacks in the training of this GAN."""
_KEY = ("gan_steps", "gan_batch", "gan_lr", "n_critic", "penalty", "latent", "width")


def gan_skip_reason(shape: tuple[int, int, int], aux: int, batch: int) -> str | None:
    """Return why no GAN can be trained on these images: an unsupported size, or fewer than two batches; else None."""
    try:
        check_square(shape)
    except BenchError as error:
        return str(error)
    if aux < 2 * batch:
        return f"{aux} auxiliary images: the GAN needs at least {2 * batch} (two batches of gan_batch)"
    return None


@dataclass(frozen=True)
class GanPrior:
    """Options of the attacker's GAN, with GMI's defaults for MNIST."""

    gan_steps: Size[int] = 53_000
    """Critic updates of the GAN (100 epochs over half of MNIST, about 34,000 images, in batches of 64)."""
    gan_batch: Size[int] = 64
    """Images per update of the GAN."""
    gan_lr: float = 2e-4
    """Adam's learning rate for generator G and critic D; betas 0.5 and 0.999."""
    n_critic: int = 5
    """Critic updates per generator update."""
    penalty: float = 10.0
    """Weight of the gradient penalty in L_D."""
    latent: Size[int] = 100
    """Length of the latent vector z."""
    width: Size[int] = 64
    """Channels d of the narrowest hidden maps of G and D."""

    def __post_init__(self) -> None:
        at_least(self, 1, "gan_steps", "n_critic", "latent", "width")
        at_least(self, 2, "gan_batch")  # BatchNorm needs at least two images for a variance
        positive(self, "gan_lr")
        at_least(self, 0, "penalty")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: unsupported image size, or fewer than two batches of auxiliary images."""
        return gan_skip_reason(shape, aux, self.gan_batch)

    def gan(
        self, aux: Tensor, ctx: Context, diversity: Diversity | None = None, trained_with: dict[str, Any] | None = None
    ) -> tuple[DeconvGenerator, Critic]:
        """Train generator and critic, or load them from the store; return them frozen, in eval mode.

        The store has them if they were trained before on these images with these settings.

        Args:
            aux: (n, c, h, w) in [0, 1] on the context's device.
            diversity: as in `train_wgan_gp`.
            trained_with: other inputs of the training, such as a target's fingerprint; only together with `diversity`.
        """
        key = {"version": VERSION, "aux": fingerprint(aux), **{name: getattr(self, name) for name in _KEY}}
        key |= trained_with or {}
        seed = derive("gmi-gan", *key.values())
        c, h, w = aux.shape[1:]
        generator, critic = build_gan((c, h, w), self.latent, self.width, seed, ctx.device)

        def make() -> Tensors:
            with ctx.track("training the attacker's GAN", self.gan_steps) as advance:
                train_wgan_gp(
                    aux,
                    generator,
                    critic,
                    steps=self.gan_steps,
                    batch=self.gan_batch,
                    n_critic=self.n_critic,
                    lr=self.gan_lr,
                    betas=BETAS,
                    penalty=self.penalty,
                    rng=torch.Generator(ctx.device).manual_seed(derive(seed, "training")),
                    advance=advance,
                    diversity=diversity,
                )
            return pack(generator=generator, critic=critic)

        unpack(ctx.artifacts.get("gmi-gan", key, make), generator=generator, critic=critic)
        return generator, critic

    def prior(self, count: int, aux: Tensor, ctx: Context) -> Tensor:
        """Return (count, c, h, w) images of random latent vectors: the attacker's prior without any target."""
        generator, _ = self.gan(aux, ctx)
        rng = ctx.generator("prior")
        with torch.no_grad():
            parts = [
                generator(torch.randn(min(500, count - start), self.latent, generator=rng, device=ctx.device))
                for start in range(0, count, 500)
            ]
        return torch.cat(parts)

    def nearest(self, images: Tensor, aux: Tensor, ctx: Context) -> Tensor:
        """Return (n, c, h, w): the generator's nearest image to each of `images`; cached in the store."""
        generator, _ = self.gan(aux, ctx)
        key = {name: getattr(self, name) for name in _KEY} | NEAREST
        key |= {"version": VERSION, "aux": fingerprint(aux), "images": fingerprint(images)}

        def make() -> Tensors:
            z = torch.zeros(len(images), self.latent, device=ctx.device)
            with ctx.track("redrawing unseen images", NEAREST["steps"]) as advance:
                return {"images": nearest_images(generator, z, images, **NEAREST, advance=advance)[0]}

        return ctx.artifacts.get("redrawn", key, make)["images"].to(ctx.device)
