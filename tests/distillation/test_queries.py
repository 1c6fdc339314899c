"""Choice of the images with which a teacher is queried, and their children."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.data import to_float
from bench.distillation.transcription import queries

SHAPE, CLASSES = (1, 8, 8), 4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_annotated_images_keep_their_order() -> None:
    store = queries.AnnotatedImages(SHAPE, CLASSES, torch.device("cpu"))
    numbers = torch.arange(3, dtype=torch.uint8).view(-1, 1, 1, 1)
    store.add(numbers.expand(-1, *SHAPE), torch.ones(3, CLASSES))
    store.add(torch.full((2, *SHAPE), 9, dtype=torch.uint8), torch.zeros(2, CLASSES))
    assert len(store) == 5 and store.images[:, 0, 0, 0].tolist() == [0, 1, 2, 9, 9]
    newest = store.newest(2)
    assert len(newest) == 2 and newest.images.unique().tolist() == [9] and not newest.readings.any()


def test_to_bytes_rounds_to_the_nearest() -> None:
    values = torch.tensor([0.0, 0.49 / 255, 0.51 / 255, 1.0])
    assert queries.to_bytes(values).tolist() == [0, 0, 1, 255]
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(queries.to_bytes(to_float(every)), every)


def test_compute_logits_runs_parts_in_evaluation_mode() -> None:
    network, sizes = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5)), []
    network.register_forward_hook(lambda module, inputs, out: sizes.append((len(inputs[0]), module.training)))
    images = torch.randint(0, 256, (1030, *SHAPE), dtype=torch.uint8)
    logits = queries.compute_logits(network.train(), images)
    assert sizes == [(512, False), (512, False), (6, False)]
    assert torch.equal(logits, to_float(images).flatten(1)) and not logits.requires_grad


def logits_of_classes(counts: list[int], confidence: float) -> Tensor:
    """Return rows of logits with the given number of rows per class, each with this logit for its class."""
    return torch.cat([confidence * torch.eye(CLASSES)[c].expand(count, -1) for c, count in enumerate(counts)])


def test_choose_rows_balances_predicted_classes() -> None:
    logits = logits_of_classes([1000, 100, 100, 100], 6.0)
    rows = queries.choose_rows(logits, 100, 0.0, seeded(1))
    assert len(rows) == len(set(rows.tolist())) == 100
    share = torch.bincount(logits[rows].argmax(1), minlength=CLASSES) / 100
    assert (share - 0.25).abs().max() < 0.12


@pytest.mark.parametrize(("uncertainty", "least", "most"), [(0.0, 0.35, 0.65), (2.0, 0.85, 1.0)])
def test_choose_rows_prefers_uncertain_images(uncertainty: float, least: float, most: float) -> None:
    logits = torch.cat([logits_of_classes([250] * 4, 8.0), logits_of_classes([250] * 4, 1.0)])
    rows = queries.choose_rows(logits, 200, uncertainty, seeded(2))
    assert least <= float((rows >= 1000).float().mean()) <= most


def test_augment_slightly_shifts_by_about_a_pixel() -> None:
    dot = torch.zeros(200, 1, 28, 28)
    dot[:, :, 13:15, 13:15] = 1
    shifted = queries.augment_slightly(dot, seeded(0))
    along = (shifted.sum((1, 2)) * (torch.arange(28.0) - 13.5)).sum(1) / shifted.sum((1, 2, 3))
    assert 0.2 < float(along.abs().mean()) < 1 and float(along.abs().max()) < 1.5


def test_parents_of_children_are_balanced_over_classes() -> None:
    """3,000 images of class 0 in black, 500 of class 1 in white: with the constant 2, about as many children each."""
    store = queries.AnnotatedImages(SHAPE, CLASSES, torch.device("cpu"))
    store.add(torch.zeros(3000, *SHAPE, dtype=torch.uint8), torch.zeros(3000, CLASSES))
    store.add(torch.full((500, *SHAPE), 255, dtype=torch.uint8), torch.zeros(500, CLASSES))
    classes = torch.cat([torch.zeros(3000), torch.ones(500)]).long()
    children = queries.draw_children(store, classes, 1000, seeded(0))
    assert children.shape == (1000, *SHAPE) and children.dtype == torch.uint8
    weights = torch.tensor([3000 / 3002, 500 / 502])
    white = (to_float(children).flatten(1).amax(1) > 0.2).float().mean()
    # A tenth more is white by a second parent
    assert float(weights[1] / weights.sum()) - 0.05 < float(white) < float(weights[1] / weights.sum()) + 0.15


def disc(n: int, shape: tuple[int, int, int]) -> Tensor:
    """Return images of a white disc in the middle."""
    rows, columns = torch.linspace(-1, 1, shape[1]), torch.linspace(-1, 1, shape[2])
    inside = rows[:, None].square() + columns[None].square() < 0.25
    return inside.float().expand(n, *shape).clone()


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32), (1, 20, 28)])
def test_children_resemble_parents_and_differ(shape: tuple[int, int, int]) -> None:
    children = queries.mutate(disc(40, shape), seeded(0))
    assert children.shape == (40, *shape) and children.min() >= 0 and children.max() <= 1
    ink = children.flatten(1).mean(1) / disc(1, shape).mean()
    assert (ink > 0.2).all() and (ink < 3).all()
    assert len({tuple(image.flatten().tolist()) for image in children}) == 40


def test_mutate_depends_only_on_the_generator() -> None:
    parents = torch.rand(5, 1, 16, 16)
    one, two, other = (queries.mutate(parents, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_warp_moves_the_middle_little() -> None:
    """The centre of mass of a disc moves by the shift, at most 0.12 half widths on an axis, and by the knots' field."""
    warped = queries.warp(disc(400, (1, 32, 32)), seeded(1))[:, 0]
    x = (warped.sum(1) * torch.linspace(-1, 1, 32)).sum(1) / warped.sum((1, 2))
    assert 0.05 < float(x.std()) < 0.15 and abs(float(x.mean())) < 0.02


def test_change_thickness_affects_a_share_and_keeps_black() -> None:
    rng, parents = seeded(2), disc(1000, (1, 16, 16))
    thickened = queries.change_thickness(parents, rng)
    changed = (thickened != parents).flatten(1).any(1)
    assert abs(float(changed.float().mean()) - queries.THICKENED) < 0.06
    ink = thickened.flatten(1).mean(1)[changed] - parents[0].mean()
    assert (ink > 0).any() and (ink < 0).any()
    assert torch.allclose(queries.change_thickness(torch.zeros(100, 1, 8, 8), rng), torch.zeros(1), atol=1e-6)


def test_cross_overlays_halves_or_averages() -> None:
    """White and black parents: an overlay stays white or black, a mean is grey, halves are both."""
    parents = torch.cat([torch.ones(500, 1, 16, 16), torch.zeros(500, 1, 16, 16)])
    crossed = queries.cross(parents, seeded(5))
    grey = (crossed == 0.5).flatten(1).all(1)
    half = (crossed[:, 0, 0, 0] - crossed[:, 0, -1, 0]).abs() > 0.9
    assert abs(float(grey.float().mean()) - 0.2 * 0.5) < 0.05 and abs(float(half.float().mean()) - 0.5 * 0.5) < 0.05


def test_mutate_crosses_a_share_of_children() -> None:
    """One white parent among black ones, without other mutations."""
    parents = torch.zeros(2000, 1, 8, 8)
    parents[::2] = 1
    mixed = queries.mutate(parents, seeded(6))[1::2].flatten(1).amax(1) > 0.2
    assert 0.3 * queries.CROSSED < float(mixed.float().mean()) < 0.8 * queries.CROSSED
