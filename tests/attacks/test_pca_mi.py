"""Eigenface inversion: its decoder against linear algebra, its search with a known optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.pca_mi import PcaMi
from bench.api import AttackResult, Target
from bench.gan.code_search import shift_and_mirror
from bench.gan.eigenfaces import Eigenfaces
from bench.testing import context

SHAPE = (1, 6, 6)
AUX = torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(1)) * 0.2 + 0.4


class Wishes(nn.Module):
    """Class c is sure of the image `wanted[c]`: logits are minus the squared distances to them."""

    def __init__(self, wanted: Tensor, slope: float = 200.0) -> None:
        super().__init__()
        self.wanted, self.slope = wanted, slope
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return -self.slope * (x[:, None] - self.wanted).square().flatten(2).sum(2)


STILL: dict[str, float] = {"turn": 0.0, "scale": 0.0, "move": 0.0}


def attack(model: nn.Module, classes: int, seed: int = 0, **changes: Any) -> tuple[AttackResult, Target]:
    target = Target(model, "weights", SHAPE, classes)
    return PcaMi(**{"shift": 0, **STILL, "draws": 1, **changes}).run(target, AUX, context(seed)), target


def test_eigenfaces_are_the_principal_components() -> None:
    found = Eigenfaces.of(AUX, 5, 0)
    rows = AUX.flatten(1).double()
    values, vectors = torch.linalg.eigh(torch.cov(rows.T))
    assert torch.allclose(found.mean, rows.mean(0).float(), atol=1e-6)
    assert torch.allclose(found.deviations, values[-5:].flip(0).sqrt().float(), rtol=2e-2)
    leading = vectors[:, -1].float()
    assert abs(float(found.directions[0] @ leading)) > 0.99
    assert torch.allclose(found.directions @ found.directions.T, torch.eye(5), atol=1e-5)


def test_eigenfaces_redraw_images_within_range() -> None:
    decoder = Eigenfaces.of(AUX, 59, 0)
    assert torch.allclose(decoder(decoder.code(AUX)), AUX, atol=1e-4)
    far = decoder(torch.full((1, len(decoder.deviations)), 100.0))
    assert float(far.min()) >= 0 and float(far.max()) <= 1


def test_eigenfaces_have_fewer_components_than_images() -> None:
    assert len(Eigenfaces.of(AUX[:4], 200, 0).deviations) == 3


def test_search_finds_the_targets_images() -> None:
    wanted = PcaMi().nearest(AUX[:3], AUX, context())
    found, _ = attack(Wishes(wanted), 3, weight=0.0, steps=200)
    before = (AUX.mean(0) - wanted).square().flatten(1).sum(1)
    after = (found.images - wanted).square().flatten(1).sum(1)
    others = (found.images - wanted.roll(1, 0)).square().flatten(1).sum(1)
    assert torch.all(after < before) and torch.all(after < others)


def test_weight_keeps_codes_near_the_mean() -> None:
    wanted = AUX[:3]
    free, _ = attack(Wishes(wanted), 3, weight=0.0)
    held, _ = attack(Wishes(wanted), 3, weight=100.0)
    distance = [float((found.images - AUX.mean(0)).abs().mean()) for found in (free, held)]
    assert distance[1] < 0.1 * distance[0]


def test_moved_shifts_and_mirrors_by_hand() -> None:
    image = torch.arange(9.0).view(1, 1, 3, 3)
    down, right, mirror = (
        shift_and_mirror(image, torch.tensor([move]), 2)[0, 0] for move in ([1, 0, 0], [0, 2, 0], [0, 0, 1])
    )
    assert down.tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    assert right.tolist() == [[0, 0, 0], [3, 3, 3], [6, 6, 6]]
    assert mirror.tolist() == [[2, 1, 0], [5, 4, 3], [8, 7, 6]]
    assert shift_and_mirror(image, torch.tensor([[-1, 0, 0]]), 2)[0, 0].tolist() == [[3, 4, 5], [6, 7, 8], [6, 7, 8]]


def test_transforms_stay_within_their_bounds() -> None:
    """A bright pixel off the middle of 33: 10 degrees and 0.1 of its size and of the side, and its place says so."""
    image = torch.zeros(1, 1, 33, 33)
    image[0, 0, 15:18, 27:30] = 1.0
    n, at = 200, torch.arange(33.0) - 16

    def middle(**given: float) -> Tensor:
        attack = PcaMi(shift=0, mirror="no", steps=1, **{**STILL, **given})
        move, turn = (each[0] for each in attack._draw_augmentations(n, (1, 33, 33), context()))
        seen = attack._augment(image.expand(n, -1, -1, -1), move, turn)[:, 0]
        return torch.stack([(seen.sum(2) * at).sum(1), (seen.sum(1) * at).sum(1)], 1) / seen.sum((1, 2))[:, None]

    assert torch.allclose(middle(), torch.tensor([0.0, 12.0]), atol=1e-4)
    angles = torch.atan2(*middle(turn=10.0).T).rad2deg()
    assert 8 < angles.abs().max() < 10.3 and angles.min() < -5 < 5 < angles.max()
    sizes = middle(scale=0.1)[:, 1] / 12
    assert 0.9 < sizes.min() < 0.95 and 1.05 < sizes.max() < 1.12
    shifts = (middle(move=0.1) - torch.tensor([0.0, 12.0])).abs().amax(0)
    assert torch.all(shifts > 2.8) and torch.all(shifts < 3.4)


@pytest.mark.parametrize(("mirror", "often"), [("auto", False), ("yes", True), ("no", False)])
def test_grey_images_are_mirrored_only_on_request(mirror: str, often: bool) -> None:
    slope = torch.linspace(0.1, 0.9, 6).expand(1, 6, 6)
    aux = (slope + 0.01 * torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    model = Wishes(aux[:2])
    PcaMi(shift=0, draws=4, steps=3, mirror=mirror, **STILL).run(Target(model, "weights", SHAPE, 2), aux, context())
    seen = torch.cat(model.seen)
    share = float((seen[..., 0].mean((1, 2)) > seen[..., -1].mean((1, 2))).float().mean())
    assert (0.1 < share < 0.9) if often else share == 0


def test_prior_has_the_spread_of_the_images() -> None:
    drawn = PcaMi().prior(4000, AUX, context())
    assert np.isclose(float(drawn.var(0).mean()), float(AUX.var(0).mean()), rtol=0.15)
    assert torch.allclose(drawn.mean(0), AUX.mean(0), atol=0.02)
