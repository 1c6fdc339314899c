"""A record's gradient does not depend on other records, and neither does its augmentation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench.config import configure
from bench.data.affine import draw_affine
from bench.dp_training.augmentation import AUGMENTATIONS
from bench.dp_training.clipping import add_clipped, clipping_groups
from bench.dp_training.dp_sgd import train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.per_sample_gradients import GRADIENTS, refuse_shared_rows
from bench.errors import BenchError
from bench.nets import Classifier
from bench.privacy import Budget
from bench.privacy.noise import Noise
from bench.registry import load
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher, weights

ROUTES = pytest.mark.parametrize("route", GRADIENTS)
VIEWS = pytest.mark.parametrize("views", [1, 2])


class Windows(nn.Module):
    """Folds the four quarters of an image into the batch, as networks with windows of attention do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 5), nn.Linear(20, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        quarters = images.unflatten(3, (2, 8)).unflatten(2, (2, 8)).transpose(3, 4).reshape(-1, 64)
        return self.outer(self.inner(quarters).tanh().view(len(images), 20))


class Centred(nn.Module):
    """Subtracts the mean of the batch, without a layer that is known to mix records."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(256, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return self.outer(flat - flat.mean(0))


class Plain(nn.Module):
    """Treats every record separately."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(1, 4, 3), nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.outer(self.inner(images).tanh().mean((2, 3)))


def check(body: nn.Module, route: str, views: int) -> None:
    model = Classifier(body, 0.5, 0.5)
    refuse_shared_rows(GRADIENTS[route](model, views), model, "made-up", SHAPE, views)


@ROUTES
@VIEWS
def test_network_of_independent_records_is_accepted(route: str, views: int) -> None:
    check(Plain(), route, views)


@VIEWS
def test_opacus_gradients_of_other_rows_are_refused(views: int) -> None:
    with pytest.raises(BenchError, match=r"inner\.weight has 16 gradients of 4 images|has 8 gradients of 2 images"):
        check(Windows(), "opacus", views)
    check(Windows(), "func", views)


@VIEWS
def test_network_that_mixes_a_batch_is_refused(views: int) -> None:
    with pytest.raises(BenchError, match=r"'made-up'.*outer\.weight"):
        check(Centred(), "opacus", views)
    settings = DpSgdSettings(
        batch=8, steps=2, multiplier=1.0, clip=1.0, clipping="flat", rate=0.1, momentum=0.0, views=views
    )
    model, private = Classifier(Centred(), 0.5, 0.5), toy_private(n=16)
    before = [weight.clone() for weight in weights(model)]
    with pytest.raises(BenchError, match=r"'made-up'.*outer\.weight"):
        train(model, "made-up", private, settings, settings.parameters(16), context(), "test")
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_affine_draws_have_the_public_distribution() -> None:
    ours = AUGMENTATIONS["affine"].draw(50_000, Noise(seed=0))
    theirs = draw_affine(50_000, torch.Generator().manual_seed(0))
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    torch.testing.assert_close(ours.mean(1), theirs.mean(1), atol=0.03, rtol=0)
    torch.testing.assert_close(ours.std(1), theirs.std(1), atol=0.03, rtol=0)
    assert float(ours[2:].abs().max()) <= 1


@pytest.mark.parametrize(
    ("name", "given", "secret"),
    [
        ("dp-sgd", {"views": "2", "batch": "64"}, True),
        ("dp-sgd", {"views": "1", "batch": "64"}, False),
        ("dp-wrn", {"views": "2", "batch": "64"}, True),
        ("p3gm", {"batch": "64"}, True),
        ("dpdm", {"batch": "64"}, True),
    ],
)
def test_views_of_a_record_do_not_depend_on_the_public_seed(name: str, given: dict[str, str], secret: bool) -> None:
    """Without noise, and with every record in every batch, only augmentation and codes distinguish two runs."""
    method = configure(load("method", name, "printed"), "smoke", given, "method", "printed")
    teacher = replace(toy_teacher(), private=toy_private(n=64))

    def student(noise: str) -> Tensor:
        torch.manual_seed(0)
        made = method.convert(teacher, "datalens", Budget(float("inf")), replace(context(0), noise=noise))  # type: ignore[arg-type]
        found = made.student if made.generator is None else made.generator
        return torch.cat([weight.flatten() for weight in found.state_dict().values()])

    assert torch.equal(student("seeded"), student("seeded"))
    assert torch.equal(student("os"), student("os")) is not secret


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 12])
def test_add_clipped_ignores_a_broken_record(value: float, place: int) -> None:
    torch.manual_seed(0)
    rows = {"w": torch.randn(13, 4, 3), "b": torch.randn(13, 4)}
    groups = clipping_groups(list(rows), 1.0)
    silent = {name: row.clone() for name, row in rows.items()}
    silent["w"][place], silent["b"][place] = 0.0, 0.0
    broken = {name: row.clone() for name, row in rows.items()}
    broken["w"][place, 1, 2] = value
    sums = []
    for given in (silent, broken):
        before = {name: row.clone() for name, row in given.items()}
        total = {name: torch.zeros(row.shape[1:], dtype=torch.float64) for name, row in rows.items()}
        add_clipped(total, given, groups, 13)
        sums.append(total)
        assert all(torch.equal(given[name], row) or row.isnan().any() for name, row in before.items())
    assert all(torch.equal(sums[0][name], sums[1][name]) and sums[0][name].abs().sum() > 0 for name in rows)
