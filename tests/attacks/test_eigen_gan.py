"""The GAN compared with principal components: its generator by hand, its losses, and its search against `pca-mi`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks import eigen_gan
from attacks.eigen_gan import EigenGan, EigenGenerator
from attacks.pca_mi import PcaMi
from bench.api import Context, Target
from bench.gan.eigenfaces import Eigenfaces
from bench.testing import MemoryArtifacts, context

SHAPE = (1, 8, 8)
STILL: dict[str, Any] = {"shift": 0, "turn": 0.0, "scale": 0.0, "move": 0.0}
TINY: dict[str, Any] = {"gan_steps": 3, "gan_batch": 8, "width": 4, "components": 5, "steps": 4, "draws": 2}


def blobs(count: int, seed: int) -> Tensor:
    """(count, 1, 8, 8): a bright disc of any place and size, which no few directions draw."""
    rng = torch.Generator().manual_seed(seed)
    middle, size = 2 + 3 * torch.rand(count, 2, generator=rng), 1 + torch.rand(count, 1, 1, generator=rng)
    at = torch.arange(8.0)
    far = (at[:, None] - middle[:, :1, None]).square() + (at[None, :] - middle[:, 1:, None]).square()
    return torch.exp(-far / size.square())[:, None]


AUX = blobs(400, 0)


class Halves(nn.Module):
    """Two classes: whether the left or the right half is bright."""

    def __init__(self, slope: float = 4.0) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * nn.functional.avg_pool2d(x, (8, 4)).flatten(1)


def on_shelf(shelf: MemoryArtifacts, seed: int = 0) -> Context:
    return replace(context(seed), artifacts=shelf)


def target(slope: float = 4.0) -> Target:
    return Target(Halves(slope), "weights", SHAPE, 2)


def test_generator_adds_network_to_components_by_hand() -> None:
    linear = Eigenfaces.of(AUX, 5, 0)
    generator = EigenGenerator(linear, 4, 0.0).eval()
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    by_hand = linear.mean + (z * linear.deviations) @ linear.directions + generator.body(z).flatten(1) - 0.5
    assert torch.allclose(generator(z).flatten(1), by_hand.clamp(0, 1), atol=1e-6)
    assert by_hand.min() < 0  # so that the clip is seen to be done


def test_grey_network_gives_the_search_of_pca_mi(monkeypatch: pytest.MonkeyPatch) -> None:
    def grey(self: EigenGan, generator: EigenGenerator, *_: Any) -> None:
        nn.init.zeros_(generator.body.grow[-2].weight)
        nn.init.zeros_(generator.body.grow[-2].bias)

    monkeypatch.setattr(EigenGan, "_train", grey)
    linear = Eigenfaces.of(AUX, 5, 0)
    monkeypatch.setattr(Eigenfaces, "of", classmethod(lambda *_: linear))
    ours = EigenGan(**TINY, **STILL).run(target(), AUX, context())
    theirs = PcaMi(components=5, steps=4, draws=2, **STILL).run(target(), AUX, context())
    assert torch.allclose(ours.images, theirs.images, atol=1e-6)
    assert torch.equal(ours.targets, theirs.targets) and torch.equal(ours.draws, theirs.draws)


def test_training_updates_critic_n_times_per_network(monkeypatch: pytest.MonkeyPatch) -> None:
    updated: list[int] = []
    original = eigen_gan.descend

    def spy(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        updated.append(optimiser.param_groups[0]["params"][0].numel())
        original(optimiser, loss)

    monkeypatch.setattr(eigen_gan, "descend", spy)
    EigenGan(**{**TINY, "gan_steps": 7, "n_critic": 3}).decoder(AUX, context())
    generator = EigenGenerator(Eigenfaces.of(AUX, 5, 0), 4, 0.0)
    b, d = (next(part.parameters()).numel() for part in (generator.body, generator.critic))
    assert b != d and updated == [d, d, d, b, d, d, d, b, d]


def test_network_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """L_B by hand, at the start: one update, of which the loss is caught before the step."""
    losses: list[float] = []
    monkeypatch.setattr(eigen_gan, "descend", lambda _, loss: losses.append(float(loss.detach())))
    attack = EigenGan(**{**TINY, "gan_steps": 1, "n_critic": 1, "redraw": 0.3})
    generator = EigenGenerator(Eigenfaces.of(AUX, 5, 0), 4, 0.0)
    seen: list[Tensor] = []
    generator.critic.register_forward_hook(lambda _, given, made: seen.append(made.detach()))
    redrawn: list[Tensor] = []
    generator.register_forward_hook(lambda _, given, made: redrawn.append(made.detach()))
    rows = torch.arange(8)
    monkeypatch.setattr(eigen_gan, "shuffled_batches", lambda *_: iter([rows]))
    attack._train(generator, AUX, torch.Generator().manual_seed(0), lambda _: None)
    by_hand = 0.3 * (redrawn[1] - AUX[rows]).square().flatten(1).sum(1).mean() - seen[-1].mean()
    assert losses[1] == pytest.approx(float(by_hand), rel=1e-5)


@pytest.mark.thorough
def test_network_redraws_better_than_components() -> None:
    unseen = blobs(100, 1)
    settings = {**TINY, "gan_steps": 300, "gan_batch": 32, "width": 8, "components": 6, "gan_lr": 3e-3}
    with_network = EigenGan(**settings, redraw=10.0).nearest(unseen, AUX, context())
    components = PcaMi(components=6).nearest(unseen, AUX, context())
    errors = [(images - unseen).square().mean() for images in (with_network, components)]
    assert errors[0] < 0.8 * errors[1]


def test_gan_is_cached_for_all_targets_and_seeds() -> None:
    shelf = MemoryArtifacts()
    for seed, slope in ((0, 4.0), (1, -4.0)):
        torch.manual_seed(seed)
        EigenGan(**TINY, realism=float(seed), lr=0.1 + seed).run(target(slope), AUX, on_shelf(shelf, seed))
    assert len(shelf.made) == 1
    EigenGan(**{**TINY, "redraw": 2.0}).run(target(), AUX, on_shelf(shelf))
    assert len(shelf.made) == 2


def test_search_with_realism_raises_the_critics_score() -> None:
    """With a constant target only D moves the code, uphill."""
    attack = EigenGan(**{**TINY, "steps": 30}, **STILL, weight=0.0, realism=1.0)
    shelf = MemoryArtifacts()
    decoder = attack.decoder(AUX, on_shelf(shelf))
    found = attack.run(target(0.0), AUX, on_shelf(shelf)).images
    start = decoder(torch.zeros(1, decoder.size))
    assert decoder.critic(found).min() > decoder.critic(start).max()
    without = EigenGan(**{**TINY, "steps": 30}, **STILL, weight=0.0).run(target(0.0), AUX, on_shelf(shelf)).images
    assert torch.allclose(without, start.expand_as(without), atol=1e-5)
