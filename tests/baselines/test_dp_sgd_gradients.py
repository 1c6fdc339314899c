"""DP-SGD: gradients of single records, their clipping, and the influence of one of them on their sum."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_sgd_made import PLAIN, ROOM, SHAPE, network, records
from torch import Tensor

from bench import data, nets
from bench.data.affine import draw_affine
from bench.dp_training.augmentation import AUGMENTATIONS, views
from bench.dp_training.clipping import MOST_CHUNK, add_clipped, clipping_groups
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.nets import Classifier

WAYS = pytest.mark.parametrize("way", GRADIENTS)


def one_by_one(model: Classifier, images: Tensor, labels: Tensor) -> list[dict[str, Tensor]]:
    """Each record's gradient, by a loop."""
    found = []
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None]).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    model.zero_grad(set_to_none=True)
    return found


@WAYS
@pytest.mark.parametrize("arch", ["tanh-cnn", "relu-cnn", "tanh-vgg"])
def test_gradients_equal_per_record_backward_passes(way: str, arch: str) -> None:
    model, (images, labels) = network(arch), records(5)
    inputs = images.float() / 255
    expected = one_by_one(model, inputs, labels)
    gradients = GRADIENTS[way](model, 1)
    found = gradients(inputs, labels)
    gradients.close()
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, rows in found.items():
        torch.testing.assert_close(rows, torch.stack([e[name] for e in expected]), rtol=1e-4, atol=1e-6)


@WAYS
def test_gradients_of_views_are_averaged_per_record(way: str) -> None:
    model, (images, labels) = network(), records(3)
    seen = torch.stack([images.float() / 255, images.flip(3).float() / 255], 1).flatten(0, 1)
    by_loop = one_by_one(model, seen, labels.repeat_interleave(2))
    found = GRADIENTS[way](model, 2)(seen, labels)
    for name, rows in found.items():
        mean = torch.stack([(by_loop[2 * i][name] + by_loop[2 * i + 1][name]) / 2 for i in range(3)])
        torch.testing.assert_close(rows, mean, rtol=1e-4, atol=1e-6)


@WAYS
@pytest.mark.parametrize("count", [1, 3])
def test_empty_batch_has_empty_gradients(way: str, count: int) -> None:
    model, empty = network(), torch.zeros(0, dtype=torch.long)
    drawn = draw_affine(6, torch.Generator()) if count > 1 else None
    seen = views(torch.zeros(0, *SHAPE), count, empty, drawn, AUGMENTATIONS["affine"])
    found = GRADIENTS[way](model, count)(seen, empty)
    assert {name: tuple(rows.shape) for name, rows in found.items()} == {
        name: (0, *p.shape) for name, p in model.named_parameters()
    }


def flat_zeros(model: Classifier) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}


@pytest.mark.parametrize("clipping", ["flat", "layer"])
def test_clipping_matches_a_loop_over_records(clipping: Any) -> None:
    model, (images, labels) = network(), records(6)
    each = one_by_one(model, images.float() / 255, labels)
    norms = [math.sqrt(sum(float(g.square().sum()) for g in e.values())) for e in each]
    settings = replace(PLAIN, clip=sorted(norms)[3], clipping=clipping)
    layers = [["body.trunk.0"], ["body.trunk.3"], ["body.trunk.7"], ["body.head"]]
    if clipping == "flat":
        layers = [[name for layer in layers for name in layer]]
    expected, total = flat_zeros(model), flat_zeros(model)
    for e in each:
        for layer in layers:
            mine = [name for name in e if name.rpartition(".")[0] in layer]
            norm = math.sqrt(sum(float(e[name].square().sum()) for name in mine))
            for name in mine:
                expected[name] += e[name] * min(1.0, ROOM * settings.clip / math.sqrt(len(layers)) / norm)
    groups = clipping_groups(list(total), settings.clip, settings.clipping)
    add_clipped(total, {name: torch.stack([e[name] for e in each]) for name in total}, groups, len(each))
    assert sum(norm > ROOM * settings.clip for norm in norms) == 3, "some are clipped and some are not"
    for name in total:
        torch.testing.assert_close(total[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clipping", ["flat", "layer"])
def test_one_record_moves_sum_by_at_most_clipping_norm(clipping: Any) -> None:
    groups = clipping_groups(["a.weight", "a.bias", "b.weight"], 0.5, clipping)
    for scale in (1e-20, 1.0, 1e15, math.inf, math.nan):
        rows = {"a.weight": torch.full((1, 3, 2), scale), "a.bias": torch.ones(1, 3), "b.weight": torch.ones(1, 4)}
        total = {name: torch.zeros(row.shape[1:]) for name, row in rows.items()}
        add_clipped(total, rows, groups, 1)
        moved = math.sqrt(sum(float(t.square().sum()) for t in total.values()))
        assert moved <= ROOM * 0.5 * (1 + 1e-6)


@WAYS
def test_removed_record_moves_others_within_the_margin(way: str) -> None:
    moved, own = without_the_first(network(), *records(700), way)
    assert own.norm() == pytest.approx(ROOM * 0.1, rel=1e-5), "the record is clipped"
    assert (moved - own).norm() <= 0.1 * 2.0**-9
    assert moved.norm() <= 0.1


@pytest.mark.data
@pytest.mark.thorough
def test_rounding_of_trained_units_stays_in_the_margin(data_root: Path) -> None:
    """Values within rounding of 0 before a ReLU are sometimes on and sometimes off: an effect of at most 7e-5 C in 20
    such batches, within the tolerance of 2e-3 C."""
    torch.manual_seed(0)
    found, model = data.load("mnist", data_root), nets.build("relu-cnn", (1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(150):
        part = torch.randint(0, 60_000, (64,))
        loss = F.cross_entropy(model(found.train_images[part].float() / 255), found.train_labels[part].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for _ in range(4):
        part = torch.randperm(60_000)[:1024]
        moved, own = without_the_first(model, found.train_images[part], found.train_labels[part].long(), "opacus")
        assert (moved - own).norm() <= 0.1 * 2.0**-9


def without_the_first(model: Classifier, images: Tensor, labels: Tensor, way: str) -> tuple[Tensor, Tensor]:
    """By how much the sum of all records' gradients, clipped to 0.1, moves without the first one; and its own."""
    groups = clipping_groups([name for name, _ in model.named_parameters()], 0.1)
    gradients = GRADIENTS[way](model, 1)

    def clipped_sum(chosen: Tensor) -> Tensor:
        total = flat_zeros(model)
        for part in chosen.split(MOST_CHUNK):
            add_clipped(total, gradients(images[part].float() / 255, labels[part]), groups, len(chosen))
        return torch.cat([value.flatten() for value in total.values()])

    every = torch.arange(len(images))
    found = clipped_sum(every) - clipped_sum(every[1:]), clipped_sum(every[:1])
    gradients.close()
    return found


def test_rows_are_added_in_small_float32_groups() -> None:
    """float32 cannot represent 2^24 + 1: of 32,768 records, which are added in float64, none is lost."""
    rows = torch.ones(256, 1)
    rows[0] = 2.0**24
    for batch, lost in ((32_768, 0), (256, 7)):
        total = {"a.weight": torch.zeros(1, dtype=torch.float64)}
        add_clipped(total, {"a.weight": rows}, clipping_groups(["a.weight"], 2.0**25), batch)
        assert abs(total["a.weight"].item() - (2.0**24 + 255)) <= lost


@pytest.mark.parametrize("n", [1, 7, 256, 253])
def test_clipped_sum_adds_all_rows(n: int) -> None:
    rows = torch.randn(n, 5, 3, generator=torch.Generator().manual_seed(n))
    total = {"a.weight": torch.zeros(5, 3, dtype=torch.float64)}
    add_clipped(total, {"a.weight": rows}, clipping_groups(["a.weight"], 100.0), n)
    torch.testing.assert_close(total["a.weight"], rows.double().sum(0), rtol=0, atol=1e-5)
