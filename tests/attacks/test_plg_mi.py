from __future__ import annotations

from typing import Any

import pytest
import torch
from inversion_made import SHAPE, TINY_GAN, quadrant_images, target
from torch import Tensor, nn

from attacks.plg_mi import PlgMi, hinge, top_n
from bench.gan.class_inversion import CHANCES, augment, max_margin
from bench.gan.conditional_gan import ClassBatchNorm, ConditionalGenerator, ProjectionDiscriminator
from bench.testing import context

AUX = quadrant_images(64)
TINY: dict[str, Any] = PlgMi.tiers["smoke"] | TINY_GAN | {"gan_batch": 8, "n_critic": 2, "iterations": 4}
MIDDLE = 0.5 * torch.ones(1, CHANCES)
"""Chances that change nothing where `crop` is 1."""


def chances(**changes: float) -> Tensor:
    names = ("area", "across", "down", "turn", "brightness", "contrast", "saturation", "mirror")
    return torch.tensor([[changes.get(name, 0.5) for name in names]])


def test_top_n_by_hand() -> None:
    p = torch.tensor([[0.7, 0.3], [0.1, 0.9], [0.6, 0.4], [0.2, 0.8]])
    assert top_n(p.log(), 2).tolist() == [[0, 2], [1, 3]]
    assert top_n(p.log(), 3).tolist() == [[0, 2, 3], [1, 3, 2]], "an image may serve several classes"


def test_top_n_ranks_probabilities_not_logits() -> None:
    assert top_n(torch.tensor([[5.0, 9.0], [1.0, 0.0]]), 1).tolist() == [[1], [0]]
    logits = torch.tensor([[30.0, 0.0], [40.0, 0.0], [35.0, 0.0]])
    assert (logits.softmax(1)[:, 0] == 1).all(), "rounded"
    assert top_n(logits, 3)[0].tolist() == [1, 2, 0]


def test_hinge_by_hand() -> None:
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([-3.0, 0.0, 1.0])
    assert hinge(real, fake).item() == pytest.approx(0.5 / 2 + (0 + 1 + 2) / 3)


def test_max_margin_by_hand() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0], [-5.0, -6.0, -7.0]])
    assert max_margin(logits, torch.tensor([1, 2, 0])).tolist() == [-2, 2, -1]


def test_augment_with_neutral_chances_is_the_identity() -> None:
    image = torch.rand(1, 3, 8, 8)
    torch.testing.assert_close(augment(image, MIDDLE, 1.0, 5.0, 0.2, False), image)


def test_augment_mirrors_only_if_enabled() -> None:
    image = torch.rand(1, 1, 8, 8)
    for side in (0.0, 0.99):
        torch.testing.assert_close(augment(image, chances(mirror=side), 1.0, 0.0, 0.0, False), image)
    torch.testing.assert_close(augment(image, chances(mirror=0.0), 1.0, 0.0, 0.0, True), image.flip(3))
    torch.testing.assert_close(augment(image, chances(mirror=0.6), 1.0, 0.0, 0.0, True), image)


@pytest.mark.parametrize(
    ("across", "down", "rows", "columns"),
    [(0.0, 0.0, slice(0, 4), slice(0, 4)), (1.0, 0.0, slice(0, 4), slice(4, 8)), (0.0, 1.0, slice(4, 8), slice(0, 4))],
)
def test_augment_crops_position_and_area(across: float, down: float, rows: slice, columns: slice) -> None:
    """A quarter of the area, the smallest allowed by `crop`, is a square of half the side."""
    image = torch.zeros(1, 1, 8, 8)
    image[..., rows, columns] = 0.7
    cut = augment(image, chances(area=0.0, across=across, down=down), 0.25, 0.0, 0.0, False)
    assert cut[..., 1:-1, 1:-1].min() == pytest.approx(0.7) and cut.mean() > 0.6
    whole = augment(image, chances(area=1.0, across=across, down=down), 0.25, 0.0, 0.0, False)
    torch.testing.assert_close(whole, image)


def test_augment_rotates_up_to_the_angle() -> None:
    image = torch.rand(1, 1, 8, 8)
    quarter = augment(image, chances(turn=1.0), 1.0, 90.0, 0.0, False)
    torch.testing.assert_close(quarter, image.rot90(1, (2, 3)), atol=1e-5, rtol=0)
    back = augment(image, chances(turn=0.0), 1.0, 90.0, 0.0, False)
    torch.testing.assert_close(back, image.rot90(-1, (2, 3)), atol=1e-5, rtol=0)


def test_augment_colours_by_hand() -> None:
    image = torch.full((1, 3, 8, 8), 0.5)
    image[..., 4:] = 0.3
    brighter = augment(image, chances(brightness=1.0), 1.0, 0.0, 0.2, False)
    torch.testing.assert_close(brighter, image * 1.2)
    flatter = augment(image, chances(contrast=0.0), 1.0, 0.0, 0.5, False)
    torch.testing.assert_close(flatter, 0.4 + 0.5 * (image - 0.4))
    torch.testing.assert_close(augment(image, chances(saturation=0.0), 1.0, 0.0, 1.0, False), image)
    red = torch.zeros(1, 3, 8, 8)
    red[:, 0] = 0.6
    torch.testing.assert_close(
        augment(red, chances(saturation=0.0), 1.0, 0.0, 1.0, False), torch.full((1, 3, 8, 8), 0.2)
    )


def test_augment_is_independent_per_image() -> None:
    images, draws = torch.rand(5, 3, 16, 16), torch.rand(5, CHANCES)
    together = augment(images, draws, 0.8, 5.0, 0.2, True)
    apart = torch.cat([augment(images[i : i + 1], draws[i : i + 1], 0.8, 5.0, 0.2, True) for i in range(5)])
    torch.testing.assert_close(together, apart)
    assert 0 <= together.min() <= together.max() <= 1
    assert (augment(images[:1].expand(5, -1, -1, -1), draws, 0.8, 5.0, 0.2, False)[0] != together[1]).any()


def test_class_batch_norm_by_hand() -> None:
    layer = ClassBatchNorm(2, 3)
    layer.scale.weight.data = torch.tensor([[1.0, 1.0], [2.0, 3.0], [0.0, 0.0]])
    layer.shift.weight.data = torch.tensor([[0.0, 0.0], [1.0, -1.0], [5.0, 6.0]])
    x = torch.randn(6, 2, 4, 4)
    out = layer(x, torch.tensor([0, 1, 2, 0, 1, 2]))
    plain = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(out[0], plain[0])
    torch.testing.assert_close(out[1, 1], 3 * plain[1, 1] - 1)
    torch.testing.assert_close(out[2], torch.tensor([5.0, 6.0])[:, None, None].expand(2, 4, 4))


@pytest.mark.thorough
def test_discriminator_is_spectrally_normalised() -> None:
    torch.manual_seed(0)
    discriminator = ProjectionDiscriminator((1, 16, 16), 5, 4)
    for _ in range(200):
        discriminator(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]))
    layers = [m for m in discriminator.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.Embedding)]
    assert len(layers) == 3 * 3 + 2
    for layer in layers:
        largest = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
        assert largest.item() == pytest.approx(1, abs=0.02)


def test_discriminator_adds_the_class_projection() -> None:
    torch.manual_seed(0)
    discriminator, images = ProjectionDiscriminator(SHAPE, 5, 4).eval(), torch.rand(3, *SHAPE)
    h = discriminator.body(images).sum((2, 3))
    zero, two = (discriminator(images, torch.full((3,), y)) for y in (0, 2))
    torch.testing.assert_close(two - zero, h @ (discriminator.embed.weight[2] - discriminator.embed.weight[0]))
    torch.testing.assert_close(zero, discriminator.score(h).squeeze(1) + h @ discriminator.embed.weight[0])
    torch.testing.assert_close(discriminator(images[:1], torch.tensor([0])), zero[:1])


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_networks_support_all_sizes(shape: tuple[int, int, int]) -> None:
    y = torch.tensor([0, 6])
    images = ConditionalGenerator(shape, 7, 5, 2)(torch.randn(2, 5), y)
    assert images.shape == (2, *shape) and 0 <= images.min() <= images.max() <= 1
    assert ProjectionDiscriminator(shape, 7, 2)(images, y).shape == (2,)


def test_only_the_target_gets_augmented_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that A returns is 2 here: the target must see nothing else, the discriminator never."""
    monkeypatch.setattr("attacks.plg_mi.augment", lambda images, *_: images * 0 + 2)
    seen: list[Tensor] = []
    forward = ProjectionDiscriminator.forward

    def watch(self: ProjectionDiscriminator, x: Tensor, y: Tensor) -> Tensor:
        seen.append(x.detach())
        return forward(self, x, y)

    monkeypatch.setattr(ProjectionDiscriminator, "forward", watch)
    attacked, asked = target(), []
    logits = attacked.logits
    attacked.logits = lambda x: (asked.append(x.detach()), logits(x))[1]  # type: ignore[method-assign]
    PlgMi(**TINY).run(attacked, AUX, context())
    assert len(seen) == 3 and all(x.max() <= 1 for x in seen)
    real = {tuple(x.flatten().tolist()) for x in AUX}
    for x in seen[:2]:
        assert all(tuple(one.flatten().tolist()) in real for one in x[: TINY["gan_batch"]])
    assert len(asked) == 1 + 1 + TINY["iterations"]
    assert torch.equal(asked[0], AUX) and all((x == 2).all() for x in asked[1:])


def test_search_uses_two_views_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Tensor] = []

    def watch(images: Tensor, draws: Tensor, *rest: Any) -> Tensor:
        used.append(draws)
        return augment(images, draws, *rest)

    monkeypatch.setattr("attacks.plg_mi.augment", watch)
    attacked = target()
    PlgMi(**TINY).run(attacked, AUX, context())
    n = 2 * 4 * 3
    assert [len(draws) for draws in used] == [8] + [2 * n] * TINY["iterations"]
    assert len(torch.cat(used[1:]).unique(dim=0)) == 2 * n * TINY["iterations"]
    assert attacked.queries == 64 + 8 + 2 * n * TINY["iterations"]


class Palette(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pixels = nn.Parameter(torch.zeros(4, *SHAPE))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.pixels.sigmoid()[y]


class Liking(nn.Module):
    """A discriminator that likes bright images, or with 0 all the same."""

    def __init__(self, liking: float) -> None:
        super().__init__()
        self.liking, self.base = liking, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.base + self.liking * x.flatten(1).mean(1)


def trained_pixels(liking: float, margin_weight: float) -> Tensor:
    """(classes, 64) by how much the pixels of a `Palette` moved in one update of the generator."""
    settings = {**TINY, "gan_steps": 1, "n_critic": 1, "gan_batch": 64, "gan_lr": 0.1, "crop": 1.0, "rotation": 0.0}
    attack, palette = PlgMi(**settings, jitter=0.0, margin_weight=margin_weight), Palette()
    selected, rng = torch.zeros(4, 1, dtype=torch.int64), torch.Generator().manual_seed(0)
    attack._train(palette, Liking(liking), AUX, selected, target(), rng, lambda _: None)  # type: ignore[arg-type]
    return palette.pixels.detach().flatten(1)


def test_generator_step_lowers_the_margin() -> None:
    """With only L_MM, it makes the class's quadrant brighter and the brightest other quadrant darker."""
    moved = trained_pixels(0.0, 0.2).view(4, 2, 4, 2, 4).mean((2, 4)).flatten(1)
    assert moved.diagonal().tolist() == pytest.approx([0.1] * 4, rel=1e-3)
    assert (moved - moved.diagonal().diag()).max() < 1e-4 and (moved.amin(1) < -0.05).all()
    assert not trained_pixels(0.0, 0.0).any()


def test_generator_step_raises_the_discriminators_score() -> None:
    torch.testing.assert_close(trained_pixels(1.0, 0.0), torch.full((4, 64), 0.1), rtol=1e-3, atol=0)


@pytest.mark.thorough
def test_generator_learns_the_pseudo_labels() -> None:
    """Without the max-margin loss and before any search, images of a class look like those selected for it."""
    settings = {**TINY, "top_n": 8, "gan_steps": 160, "gan_batch": 16, "gan_lr": 1e-2, "width": 8, "margin_weight": 0.0}
    attack = PlgMi(**settings)
    generator = attack._gan(target(), AUX, context())
    y = torch.arange(4).repeat(20)
    z = torch.randn(80, attack.latent, generator=torch.Generator().manual_seed(0))
    assert (target().labels(generator(z, y)) == y).float().mean() > 0.6
    assert not generator.training and all(not w.requires_grad for w in generator.parameters())


@pytest.mark.thorough
def test_search_lowers_the_margin_of_the_class() -> None:
    settings = {**TINY, "gan_steps": 20, "gan_batch": 16, "gan_lr": 2e-3, "width": 4}
    before = PlgMi(**{**settings, "iterations": 1, "lr": 1e-9}).run(target(), AUX, context())
    after = PlgMi(**{**settings, "iterations": 60}).run(target(), AUX, context())
    start, end = (max_margin(target().logits(r.images), r.targets).mean() for r in (before, after))
    assert end < start - 0.3, (start, end)
