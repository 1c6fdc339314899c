"""Choice of the images with which a teacher is queried."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.distillation.transcription.questions import Answered, as_bytes, as_floats, chosen, drawn_children, logits_of

SHAPE, CLASSES = (1, 8, 8), 4


def answered(count: int) -> Answered:
    store = Answered(SHAPE, CLASSES, torch.device("cpu"))
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *SHAPE)
    store.add(images, torch.arange(count * CLASSES).float().view(count, CLASSES))
    return store


def test_what_was_answered_is_kept_in_order() -> None:
    store = answered(3)
    store.add(torch.full((2, *SHAPE), 9, dtype=torch.uint8), torch.zeros(2, CLASSES))
    assert len(store) == 5 and store.images[:, 0, 0, 0].tolist() == [0, 1, 2, 9, 9]
    newest = store.newest(2)
    assert len(newest) == 2 and newest.images.unique().tolist() == [9] and not newest.readings.any()


def test_bytes_are_the_nearest() -> None:
    values = torch.tensor([0.0, 0.49 / 255, 0.51 / 255, 1.0])
    assert as_bytes(values).tolist() == [0, 0, 1, 255]
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(as_bytes(as_floats(every)), every)


def test_parents_are_balanced_over_what_they_are_taken_to_show() -> None:
    """3,000 images of class 0 in black, 500 of class 1 in white: with the constant 2, about as many children each."""
    store = Answered(SHAPE, CLASSES, torch.device("cpu"))
    store.add(torch.zeros(3000, *SHAPE, dtype=torch.uint8), torch.zeros(3000, CLASSES))
    store.add(torch.full((500, *SHAPE), 255, dtype=torch.uint8), torch.zeros(500, CLASSES))
    classes = torch.cat([torch.zeros(3000), torch.ones(500)]).long()
    born = drawn_children(store, classes, 1000, torch.Generator().manual_seed(0))
    assert born.shape == (1000, *SHAPE) and born.dtype == torch.uint8
    weights = torch.tensor([3000 / 3002, 500 / 502])
    white = (as_floats(born).flatten(1).amax(1) > 0.2).float().mean()
    # A tenth more is white by a second parent
    assert float(weights[1] / weights.sum()) - 0.05 < float(white) < float(weights[1] / weights.sum()) + 0.15


def logits(shares: list[int], sure: float) -> Tensor:
    """Return rows of logits with the given number of rows per class, each with this logit for its class."""
    return torch.cat([sure * torch.eye(CLASSES)[c].expand(count, -1) for c, count in enumerate(shares)])


def test_the_choice_balances_the_classes_that_the_student_sees() -> None:
    shown, rng = logits([1000, 100, 100, 100], 6.0), torch.Generator().manual_seed(1)
    rows = chosen(shown, shown, 100, 0.0, rng)
    assert len(rows) == len(set(rows.tolist())) == 100
    share = torch.bincount(shown[rows].argmax(1), minlength=CLASSES) / 100
    assert (share - 0.25).abs().max() < 0.12


@pytest.mark.parametrize(("unsure", "least", "most"), [(0.0, 0.35, 0.65), (2.0, 0.85, 1.0)])
def test_the_choice_prefers_what_the_student_is_unsure_of(unsure: float, least: float, most: float) -> None:
    shown = torch.cat([logits([250] * 4, 8.0), logits([250] * 4, 1.0)])
    rows = chosen(shown, shown, 200, unsure, torch.Generator().manual_seed(2))
    assert least <= float((rows >= 1000).float().mean()) <= most


def test_a_network_is_asked_in_evaluation_mode_a_part_at_a_time() -> None:
    network, sizes = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5)), []
    network.register_forward_hook(lambda module, given, out: sizes.append((len(given[0]), module.training)))
    images = torch.randint(0, 256, (1030, *SHAPE), dtype=torch.uint8)
    found = logits_of(network.train(), images)
    assert sizes == [(512, False), (512, False), (6, False)]
    assert torch.equal(found, as_floats(images).flatten(1)) and not found.requires_grad
