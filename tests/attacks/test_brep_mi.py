from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from inversion_made import SHAPE, TINY_GAN, tracked
from inversion_made import target as target_of
from torch import Tensor, nn

from attacks.brep_mi import BrepMi, on_sphere, repulsion
from bench.api import Context, Target
from bench.testing import context

LATENT = TINY_GAN["latent"]
TINY = TINY_GAN | {"sphere_points": 8, "patience": 5, "query_cap": 200, "start_batch": 16, "start_cap": 64}


class Signs(nn.Module):
    """Four classes: the signs of an image's first two pixels, which the stub generator takes from z."""

    def forward(self, x: Tensor) -> Tensor:
        bits = (x.flatten(1)[:, :2] > 0.5).long()
        return nn.functional.one_hot(2 * bits[:, 0] + bits[:, 1], 4).float()


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([0.0, 0.0, 1.0, 0.0]).expand(len(x), 4)


class Sigmoids(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.pad(z.sigmoid(), (0, 64 - z.shape[1])).view(-1, *SHAPE)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrepMi, "gan", lambda *_: (Sigmoids(), None))


class Asked:
    """A query function that counts and stores its inputs; `answer` returns the labels of (..., latent) points."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        self.answer = answer
        self.calls: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        self.calls.append(z)
        return self.answer(z)

    @property
    def queries(self) -> int:
        return sum(math.prod(z.shape[:-1]) for z in self.calls)


def search(ask: Asked, z: Tensor, active: Tensor | None = None, **changes: Any) -> Tensor:
    """The latents found from z for class 1."""
    labels = torch.ones(len(z), dtype=torch.int64)
    active = torch.ones_like(labels, dtype=torch.bool) if active is None else active
    done: list[int] = []
    found = BrepMi(**{**TINY, **changes})._search(z, labels, active, ask, context(), done.append)
    assert sum(done) == len(z)
    return found


def run(model: nn.Module, ctx: Context | None = None, **changes: Any) -> tuple[Any, Target]:
    target = target_of(model, "label")
    return BrepMi(**{**TINY, **changes}).run(target, torch.rand(16, *SHAPE), ctx or context()), target


def never(z: Tensor) -> Tensor:
    return torch.zeros(z.shape[:-1], dtype=torch.int64)


def always(z: Tensor) -> Tensor:
    return torch.ones(z.shape[:-1], dtype=torch.int64)


def half_space(z: Tensor) -> Tensor:
    return (z[..., 0] > 0).long()


START = torch.tensor([[0.2, 0.0, 0.0, 0.0, 0.0, 0.0]])


def test_repulsion_by_hand() -> None:
    u = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]]])
    agree = torch.tensor([[True, False, False, True]])
    torch.testing.assert_close(repulsion(u, agree), torch.tensor([[-0.15, -0.45]]))
    assert not repulsion(u, torch.ones_like(agree)).any()


def test_on_sphere_is_uniform() -> None:
    u = on_sphere(torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(u.norm(dim=1), torch.ones(20_000))
    assert u.mean(0).abs().max() < 0.02
    torch.testing.assert_close(u.T @ u / 20_000, torch.eye(3) / 3, atol=0.01, rtol=0)


def test_search_counts_rejected_steps() -> None:
    capped = Asked(never)
    assert torch.equal(search(capped, START, query_cap=100, patience=10**6), START)
    assert capped.queries == 99, "11 steps of 8 points and one rejected z' each; another would pass 100"
    patient = Asked(never)
    search(patient, START, query_cap=10**6, patience=7)
    assert patient.queries == 7 * 9


def test_search_radius_grows_up_to_the_diagonal() -> None:
    ask = Asked(always)
    assert torch.equal(search(ask, START, query_cap=10**6), START)
    radii = [float((z - START).norm(dim=-1).mean()) for z in ask.calls]
    assert radii == pytest.approx([2 * 1.3**i for i in range(len(radii))], rel=1e-5)
    assert radii[-1] <= 3 * math.sqrt(LATENT) < radii[-1] * 1.3


@pytest.mark.parametrize(("agreeing", "grows"), [(7, False), (8, True)])
def test_search_radius_grows_above_seven_eighths(agreeing: int, grows: bool) -> None:
    def answer(z: Tensor) -> Tensor:
        return never(z) if z.ndim == 2 else (torch.arange(8) < agreeing).long().expand(len(z), 8)

    ask = Asked(answer)
    search(ask, START, patience=1, query_cap=17)
    assert [z.ndim for z in ask.calls] == ([3] if grows else [3, 2]) + ([3] if grows else [])
    radius = float((ask.calls[-1] - START).norm(dim=-1).mean()) if grows else 2.0
    assert radius == pytest.approx(2.6 if grows else 2.0)


@pytest.mark.parametrize(("radius", "step"), [(30.0, 3.0), (9.0, 3.0), (6.0, 2.0), (1.5, 0.5)])
def test_search_first_step_by_hand(radius: float, step: float) -> None:
    """A third of the radius, but at most 3, against the mean of the directions that leave the class."""
    ask = Asked(half_space)
    search(ask, START, patience=1, radius=radius, latent_clip=10.0)
    points, moved = ask.calls
    u = (points[0] - START) / radius
    expected = START - step * (u * (points[0, :, :1] <= 0)).sum(0) / 8
    torch.testing.assert_close(moved, expected)
    assert float((moved - START).norm()) > 0.1 * step


def test_search_clamps_steps() -> None:
    clamped = Asked(half_space)
    search(clamped, START, radius=8.0, patience=20, query_cap=10**4, latent_clip=0.25)
    assert max(float(z.abs().max()) for z in clamped.calls if z.ndim == 2) == 0.25


def test_search_moves_away_from_the_boundary() -> None:
    ask = Asked(half_space)
    found = search(ask, START.repeat(20, 1), radius=0.5, patience=30, query_cap=10**5)
    assert (found[:, 0] > 0.5).all()
    assert max(z.shape[0] for z in ask.calls) == 20 and min(z.shape[0] for z in ask.calls) < 20


def test_search_returns_the_point_of_the_last_growth() -> None:
    def answer(z: Tensor) -> Tensor:
        first = len(ask.calls) == 1
        return always(z) if first or z.ndim == 2 else never(z)

    ask = Asked(answer)
    found = search(ask, START, patience=4)
    assert not torch.equal(ask.calls[-1][0], START[0])
    assert torch.equal(found, START)


def test_search_without_growth_returns_the_last_point() -> None:
    ask = Asked(lambda z: always(z) if z.ndim == 2 else never(z))
    found = search(ask, START, patience=4)
    assert torch.equal(found, ask.calls[-1]) and not torch.equal(found, START)


def test_search_rows_are_independent() -> None:
    z = START.repeat(4, 1)
    together = search(Asked(half_space), z, radius=0.5)
    only = torch.tensor([False, True, False, True])
    alone = search(Asked(half_space), z, only, radius=0.5)
    assert torch.equal(alone[only], together[only]) and torch.equal(alone[~only], z[~only])


def test_starts_have_their_class_and_repeat_in_order() -> None:
    def answer(z: Tensor) -> Tensor:
        return torch.where(z[..., 0] > 1.45, 3, (z[..., 1] > 0).long())

    z, found = BrepMi(**{**TINY, "images_per_class": 12})._starts(0, 5, Asked(answer), context())
    assert z.shape == (5, 12, LATENT) and z.abs().max() <= 1.5
    assert found.tolist() == [True, True, False, True, False]
    for c in (0, 1, 3):
        assert (answer(z[c]) == c).all()
    distinct = len(z[3].unique(dim=0))
    assert 1 <= distinct < 12 and torch.equal(z[3], z[3, torch.arange(12) % distinct])
    assert len(z[0].unique(dim=0)) == 12
    assert len(z[2].unique(dim=0)) > 6 and not torch.equal(z[2], z[4])


def test_starts_end_when_complete_or_at_the_cap() -> None:
    enough = Asked(half_space)
    BrepMi(**TINY)._starts(0, 2, enough, context())
    assert enough.queries in (16, 32)
    short = Asked(half_space)
    BrepMi(**TINY)._starts(0, 3, short, context())
    assert short.queries == 64


@pytest.mark.usefixtures("stub")
def test_class_without_start_gets_random_images() -> None:
    stages: list[str] = []
    result, target = run(Constant(), tracked(context(), stages))
    assert stages == ["BREP-MI: searching (no start for 6 of 8)"]
    assert result.facts == {"without_start": 0.75}
    assert (result.draws * 4 + result.targets).bincount().tolist() == [3] * 8
    assert len(result.images.flatten(1).unique(dim=0)) > 12
    growths = 1 + math.floor(math.log(3 * math.sqrt(LATENT) / 2) / math.log(1.3))
    assert target.queries == 2 * 64 + 6 * growths * 8


@pytest.mark.usefixtures("stub")
def test_attack_reconstructs_all_cells_within_its_queries() -> None:
    result, target = run(Signs(), radius=0.5)
    assert result.images.shape == (24, *SHAPE) and result.images.dtype == torch.float32
    assert (result.draws * 4 + result.targets).bincount().tolist() == [3] * 8
    assert torch.equal(target.labels(result.images), result.targets)
    assert target.queries <= 2 * TINY["start_cap"] + 24 * TINY["query_cap"] + 24
    first, second = result.images.view(2, -1, 64)
    assert not torch.equal(first, second)


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("batch", [1, 7])
def test_result_does_not_depend_on_the_attack_batch(batch: int) -> None:
    (whole, one), (parts, other) = run(Signs(), radius=0.5), run(Signs(), radius=0.5, batch=batch)
    torch.testing.assert_close(whole.images, parts.images, rtol=0, atol=1e-5)
    assert one.queries == other.queries
    assert not torch.equal(whole.images, run(Signs(), context(1), radius=0.5)[0].images)
