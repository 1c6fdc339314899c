"""GMI's search of a generator's latent space, compared with a plain loop of torch.optim's Nesterov SGD."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench import nets, registry
from bench.api import Context, Target
from bench.config import configure
from bench.gan.gan_prior import build_gan
from bench.gan.latent_search import search_latents
from bench.testing import MemoryArtifacts
from peer_pairs._pair import Different, Pair, untracked

SHAPE, CLASSES, LATENT, WIDTH = (1, 32, 32), 10, 100, 16
IMAGES, ITERATIONS = 200, 10
CPU = torch.device("cpu")


def pairs() -> Iterator[Pair]:
    """Yield one batch of the attack at tier quick."""
    torch.manual_seed(0)
    target = nets.build("datalens", SHAPE, CLASSES).eval().requires_grad_(False)
    generator, critic = (net.eval().requires_grad_(False) for net in build_gan(SHAPE, LATENT, WIDTH, 0, CPU))
    gmi: Any = configure(registry.load("attack", "gmi"), "quick", {}, "attack")
    labels = torch.arange(IMAGES) % CLASSES
    start = torch.randn(IMAGES, LATENT, generator=torch.Generator().manual_seed(0))
    ctx = Context(CPU, 0, untracked, MemoryArtifacts())

    def ours() -> Tensor:
        seen = Target(target, "weights", SHAPE, CLASSES)
        loss = gmi._loss(labels, None, generator, critic, seen, ctx)
        settings = {"lr": gmi.lr, "momentum": gmi.momentum, "clip": gmi.latent_clip}
        return search_latents(start, loss, iterations=ITERATIONS, advance=lambda steps: None, **settings)

    def theirs() -> Tensor:
        z = start.clamp(-gmi.latent_clip, gmi.latent_clip).requires_grad_()
        optimizer = torch.optim.SGD([z], lr=gmi.lr, momentum=gmi.momentum, nesterov=True)
        for _ in range(ITERATIONS):
            images = generator(z)
            identity = functional.cross_entropy(target(images), labels, reduction="sum")
            loss = (gmi.identity_weight * identity - critic(images).sum()) / gmi.ref_batch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                z.clamp_(-gmi.latent_clip, gmi.latent_clip)
        return z.detach()

    def check(mine: Tensor, other: Tensor) -> None:
        moved, apart = float((mine - start).abs().mean()), float((mine - other).abs().mean())
        if not (moved > 0.01 and apart < 0.01 * moved):
            raise Different(f"latents moved by {moved:.3g} on average and end {apart:.3g} apart; expected 1 % at most")

    yield Pair("GMI's latent search", "torch.optim, plain loop", ours, theirs, check, bar=1.5)
