"""LOKT: the losses of its GAN, the count of queries, and that only labels leave the target."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from inversion_made import Quadrants, quadrant_images, target, tracked
from torch import Tensor, nn

from attacks.lokt import Lokt, discriminator_loss, generator_loss
from bench.testing import context

TINY: dict[str, Any] = {
    "warm_up": 1, "iterations": 2, "n_critic": 2, "gan_batch": 4, "latent": 6, "width": 2, "surrogates": "shard-cnn",
    "surrogate_images": 3, "surrogate_steps": 2, "surrogate_batch": 4, "steps": 3, "draws": 2, "images_per_class": 3,
}  # fmt: skip


class ByLabel(nn.Module):
    """A generator whose image of class y has the y-th quadrant bright, from a logistic of the latents' mean."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        corners = nn.functional.one_hot(y, 4).float().view(-1, 1, 2, 2)
        brightness = z.mean(1).sigmoid().view(-1, 1, 1, 1)
        return nn.functional.interpolate(corners, scale_factor=4) * brightness


def test_losses_equal_values_by_hand() -> None:
    """Logits (0; 0, log 3) mean: real with probability 1/2, class 1 with probability 3/4."""
    fake, real = torch.tensor([[0.0, 0.0, log(3)]]), torch.tensor([[log(3), 9.0, -9.0]])
    plain = log(2) + log(4 / 3)  # of the generated and of the real image
    assert float(discriminator_loss(real, fake, None, 0.0)) == pytest.approx(plain, abs=1e-6)
    by_label = [float(discriminator_loss(real, fake, torch.tensor([y]), 1.5)) - plain for y in (0, 1)]
    assert by_label == pytest.approx([1.5 * log(4), 1.5 * log(4 / 3)], abs=1e-6)
    assert float(generator_loss(fake, torch.tensor([0]), 1.5)) == pytest.approx(log(2) + 1.5 * log(4), abs=1e-6)
    assert float(generator_loss(fake, torch.tensor([0]), 0.0)) == pytest.approx(log(2), abs=1e-6)


@pytest.mark.parametrize("warm_up", [0, 5])
def test_queries_are_those_of_the_formula(warm_up: int) -> None:
    attacked, aux = target(access="label"), quadrant_images(8)
    stages: list[str] = []
    Lokt(**TINY | {"warm_up": warm_up}).run(attacked, aux, tracked(context(), stages))
    assert attacked.queries == 2 * 2 * 4 + 4 * 3
    assert len(stages) == 3


def test_real_images_are_never_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked, aux, queried = target(access="label"), quadrant_images(8), list[Tensor]()
    labels = attacked.labels
    monkeypatch.setattr(attacked, "labels", lambda images: (queried.append(images), labels(images))[1])
    Lokt(**TINY).run(attacked, aux, context())
    distances = torch.cdist(torch.cat(queried).flatten(1), aux.flatten(1))
    assert float(distances.min()) > 0.1


def test_images_follow_the_targets_labels_only() -> None:
    """Two targets of equal labels and other probabilities give equal images; other labels give others."""
    aux = quadrant_images(8)
    sharp, soft, other = (
        Lokt(**TINY).run(target(model, "label"), aux, context()).images
        for model in (Quadrants(8.0), Quadrants(0.5), Quadrants(-8.0))
    )
    assert torch.equal(sharp, soft) and not torch.equal(sharp, other)


class Next(Quadrants):
    """The class after the bright quadrant: never the class that G was given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).roll(1, 1)


def test_surrogates_learn_the_targets_labels() -> None:
    attack = Lokt(
        **TINY | {"surrogate_images": 40, "surrogate_steps": 150, "surrogate_batch": 32, "surrogate_lr": 0.05}
    )
    (surrogate,) = attack._surrogates(ByLabel(), target(Next(), "label"), context())
    z, y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4
    agree = (surrogate(ByLabel()(z, y)).argmax(1) == (y + 1) % 4).float().mean()
    assert float(agree) > 0.9
    assert not surrogate.training and not any(weight.requires_grad for weight in surrogate.parameters())


def test_search_lowers_the_surrogates_margin() -> None:
    attack, y = Lokt(**TINY | {"steps": 30}), torch.arange(4)
    starts = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    surrogates: list[nn.Module] = [Quadrants(), Quadrants(4.0)]
    z = attack._search(y, starts, y, ByLabel(), surrogates, context(), lambda _: None)
    before, after = (Quadrants()(ByLabel()(x, y)).softmax(1).diagonal() for x in (starts, z))
    assert (after > before + 0.005).all()


def test_result_does_not_depend_on_the_batch_size() -> None:
    aux = quadrant_images(8)
    by_batch = [Lokt(**TINY, batch=n).run(target(access="label"), aux, context()).images for n in (200, 3)]
    assert torch.allclose(*by_batch, atol=1e-3)


@pytest.mark.parametrize("names", ["none", "no-such-network", "shard-cnn,no-such-network"])
def test_surrogates_are_networks_that_exist(names: str) -> None:
    with pytest.raises(ValueError):
        Lokt(surrogates=names)
