"""Wasserstein GAN with gradient penalty, trained on the attacker's own images.

Gulrajani et al., NeurIPS 2017, Algorithm 1, with the settings of GMI (Zhang et al., CVPR 2020). D is the critic, G the
generator, x a real image, z ~ N(0, I), x~ a random point between a real and a generated image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.api import Advance, Tensors
from bench.gan.training import descend, shuffled_batches
from bench.nets.generators import Critic, DeconvGenerator

Diversity = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Diversity reward: two batches of latents and their images -> scalar."""


def critic_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Return the critic's loss mean D(G(z)) - mean D(x), from (n,) critic scores."""
    return fake.mean() - real.mean()


def generator_loss(fake: Tensor) -> Tensor:
    """Return the generator's loss -mean D(G(z)), from (n,) critic scores."""
    return -fake.mean()


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, alpha: Tensor) -> Tensor:
    """Return the gradient penalty: mean of (||grad D(x~)||_2 - 1)^2 at x~ = alpha x + (1 - alpha) G(z).

    Args:
        critic: maps (n, c, h, w) to (n,); must not mix the images of a batch.
        real, fake: (n, c, h, w).
        alpha: (n,) in [0, 1], one per image.
    """
    mix = alpha.view(-1, 1, 1, 1)
    between = (mix * real + (1 - mix) * fake).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (gradient.flatten(1).norm(dim=1) - 1).square().mean()


def train_wgan_gp(
    aux: Tensor,
    generator: DeconvGenerator,
    critic: Critic,
    *,
    steps: int,
    batch: int,
    n_critic: int,
    lr: float,
    betas: tuple[float, float],
    penalty: float,
    rng: torch.Generator,
    advance: Advance,
    diversity: Diversity | None = None,
) -> None:
    """Train generator and critic as a WGAN with gradient penalty, in place, in float32; leave them in eval mode.

    Args:
        aux: (n, c, h, w) in [0, 1], the real images; n >= 1.
        steps: number of *critic* updates; the generator is updated after every `n_critic` of them.
        batch: images per update; all of them if `aux` has fewer.
        lr, betas: of Adam, for both networks.
        penalty: weight of the gradient penalty.
        rng: on aux's device; the only source of randomness.
        advance: called with 1 after every critic update.
        diversity: additional reward of the generator, computed from two batches of latents and their images.
    """
    generator.train()
    critic.train()
    optimise_g = torch.optim.Adam(generator.parameters(), lr=lr, betas=betas)
    optimise_d = torch.optim.Adam(critic.parameters(), lr=lr, betas=betas)
    size = min(batch, len(aux))

    def latents() -> Tensor:
        return torch.randn(size, generator.latent, generator=rng, device=aux.device)

    def loss_of_g() -> Tensor:
        z = latents()
        made = generator(z)
        loss = generator_loss(critic(made))
        if diversity is not None:
            other = latents()
            loss = loss - diversity(z, other, made, generator(other))
        return loss

    for step, chosen in zip(range(1, steps + 1), shuffled_batches(len(aux), size, rng), strict=False):
        real = aux[chosen]
        with torch.no_grad():
            fake = generator(latents())
        alpha = torch.rand(size, generator=rng, device=aux.device)
        loss = critic_loss(critic(real), critic(fake)) + penalty * gradient_penalty(critic, real, fake, alpha)
        descend(optimise_d, loss)
        if step % n_critic == 0:
            descend(optimise_g, loss_of_g())
        advance(1)
    generator.eval()
    critic.eval()


def build_gan(
    shape: tuple[int, int, int], latent: int, width: int, seed: int, device: torch.device
) -> tuple[DeconvGenerator, Critic]:
    """Build a generator and a critic with weights that depend only on `seed`.

    Torch's global random state is unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return DeconvGenerator(shape, latent, width).to(device), Critic(shape, width).to(device)


def pack(**modules: nn.Module) -> Tensors:
    """Merge the states of several networks: `pack(critic=c)` has keys such as "critic.layers.0.weight"."""
    return {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}


def unpack(state: Tensors, **modules: nn.Module) -> None:
    """Load a state made by `pack`; sets eval mode and freezes the weights.

    Raises RuntimeError if a tensor is missing.
    """
    for name, module in modules.items():
        prefix = f"{name}."
        module.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        module.eval().requires_grad_(False)


def fingerprint(images: Tensor) -> str:
    """Return the SHA-256 of images in [0, 1], computed on 8-bit values so that it is equal on every device."""
    pixels = images.detach().mul(255).round().to(torch.uint8).cpu().contiguous()
    return hashlib.sha256(f"{tuple(pixels.shape)}".encode() + pixels.numpy().tobytes()).hexdigest()


def weights_fingerprint(module: nn.Module) -> str:
    """Return the SHA-256 of a network's parameters and buffers, in float32 on the CPU."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode() + value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
