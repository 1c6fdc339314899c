"""G-PATE: which record reaches which teacher, and which weights a teacher trains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import record_calls
from g_pate_made import smoke, synthesise, training
from torch import Tensor, nn

from baselines.g_pate.discriminators import Discriminators
from baselines.g_pate.g_pate import GPate
from bench.gan.training import TeacherBatches
from bench.nets.conditional_gan import MlpCritic
from bench.testing import CLASSES, SHAPE, toy_private


def of_each(teachers: Discriminators) -> list[Tensor]:
    """One vector of weights per teacher."""
    blocks = [torch.cat([w.detach().flatten(1) for w in block.values()], 1) for block in teachers.blocks]
    return list(torch.cat(blocks))


# Who sees what


def ask_alone(critics: list[nn.Module], x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for critic in critics:
        u = x.clone().requires_grad_()
        logits = critic(u, y)
        yield logits, -torch.autograd.grad(F.softplus(-logits).mean(), u)[0]


@pytest.mark.parametrize("network", ["mlp", "dcgan"])
def test_directions_are_independent_by_teacher(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, in blocks, as one after another: minus the gradient of the mean binary cross-entropy."""
    monkeypatch.setattr("baselines.g_pate.discriminators.BLOCK", 2)
    torch.manual_seed(0)
    by = smoke(network=network)
    critics: list[nn.Module] = [by.critic(SHAPE, CLASSES) for _ in range(5)]
    made = Discriminators(critics, 1e-3, 0.5)
    x, y = torch.rand(3, *SHAPE), torch.eye(CLASSES)[:3]
    found = torch.cat(list(made.directions(x, y)))
    assert [len(next(iter(block.values()))) for block in made.blocks] == [2, 2, 1]
    for mine, (_, alone) in zip(found, ask_alone(critics, x, y), strict=True):
        assert alone.abs().max() > 0 and torch.allclose(mine, alone, rtol=1e-4, atol=1e-8)


def test_teacher_step_by_hand() -> None:
    """Adam's first step is the full rate against the sign of the gradient of both binary cross-entropies."""
    images, labels = toy_private()
    torch.manual_seed(0)
    critic = MlpCritic(SHAPE, CLASSES, 4)
    made = Discriminators([critic, MlpCritic(SHAPE, CLASSES, 4)], 0.01, 0.5)
    batches = TeacherBatches(images, labels, CLASSES, [np.arange(40), np.arange(40, 80)])
    u, y, chosen = torch.rand(4, *SHAPE), torch.eye(CLASSES), torch.tensor([[3, 9], [50, 51]])
    real = critic(images[[3, 9]].float() / 255, F.one_hot(labels[[3, 9]], CLASSES).float())
    loss = F.binary_cross_entropy_with_logits(real, torch.ones(2))
    loss = loss + F.binary_cross_entropy_with_logits(critic(u, y), torch.zeros(4))
    names, weights = zip(*critic.named_parameters(), strict=True)
    slopes = dict(zip(names, torch.autograd.grad(loss, weights), strict=True))
    made.learn(batches, chosen, u, y)
    for name, weight in critic.named_parameters():
        clear = slopes[name].abs() > 1e-5
        moved = made.blocks[0][name][0] - weight
        assert torch.allclose(moved[clear], -0.01 * slopes[name][clear].sign(), rtol=0.02)


def test_teachers_get_labels_of_generated_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = toy_private()
    played = training(smoke(batch="12"), [np.arange(80)], images, labels)
    drawn, shown = played._inputs(), []
    monkeypatch.setattr(played, "_inputs", lambda: drawn)
    monkeypatch.setattr(played.teachers, "learn", lambda batches, chosen, u, y: shown.append((u, y)))
    played.teach()
    ((u, y),) = shown
    assert len(drawn[1].unique()) == CLASSES and torch.equal(y, F.one_hot(drawn[1], CLASSES).float())
    assert torch.equal(u, played.generator(*drawn))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_infinite_record_does_not_reach_an_empty_part(value: float) -> None:
    """The records drawn for an empty part belong to another teacher, and infinity times 0 is NaN."""

    class Infinite(TeacherBatches):
        def records(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
            pixels, labels = super().records(chosen)
            return torch.full_like(pixels, value), torch.full_like(labels, value)

    images, labels = toy_private()
    ends, parts = [], [np.arange(80), np.arange(0)]
    for batches in (TeacherBatches(images, labels, CLASSES, parts), Infinite(images, labels, CLASSES, parts)):
        played = training(smoke(), parts, images, labels)
        played.batches = batches
        played.teach()
        ends.append(of_each(played.teachers))
    assert not ends[1][0].isfinite().all() and torch.equal(ends[0][1], ends[1][1])


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> list[list[list[bytes]]]:
    """Return the pixels of every teacher's records, for each run."""
    seen: list[list[list[bytes]]] = []

    class Spy(TeacherBatches):
        def __init__(self, images: Tensor, labels: Tensor, classes: int, parts: list[Any]) -> None:
            seen.append([[images[row].numpy().tobytes() for row in part] for part in parts])
            super().__init__(images, labels, classes, parts)

    monkeypatch.setattr("baselines.g_pate.g_pate.TeacherBatches", Spy)
    return seen


def test_every_record_has_one_teacher(divided: list[list[list[bytes]]]) -> None:
    """DataLens' code deals records out by class and begins again where a class runs out."""
    images, labels = toy_private()
    keep = (labels != 0) | (torch.arange(80) < 8)
    synthesise(smoke(teachers="7"), data=(images[keep], labels[keep]))
    (parts,) = divided
    assert len(parts) == 7
    held = sorted(record for part in parts for record in part)
    assert held == sorted(image.numpy().tobytes() for image in images[keep])


def test_removed_record_does_not_move_others(divided: list[list[list[bytes]]]) -> None:
    """The number of teachers is public: neither it nor a part is a function of other records."""
    images, labels = toy_private()
    by = smoke(teachers="30")
    synthesise(by, data=(images, labels))
    synthesise(by, data=(images[:79], labels[:79]))
    whole, lacking = divided
    last = images[79].numpy().tobytes()
    assert [[record for record in part if record != last] for part in whole] == lacking


@pytest.mark.parametrize("network", ["mlp", "dcgan"])
def test_teacher_step_does_not_change_the_generator(network: str) -> None:
    """The released code's generator was run on private labels in training mode, which its normalisation remembers."""
    images, labels = toy_private()
    by = smoke(network=network)
    generator = by.sampler(SHAPE, CLASSES, "toy").generator
    assert not list(generator.buffers()) and not list(by.critic(SHAPE, CLASSES).buffers())
    played = training(by, [np.arange(80)], images, labels)
    critics = of_each(played.teachers)
    before = [weight.clone() for weight in played.generator.parameters()]
    played.teach()
    assert all(torch.equal(a, b) for a, b in zip(before, played.generator.parameters(), strict=True))
    assert not torch.equal(critics[0], of_each(played.teachers)[0])


def test_start_option_shares_initial_weights() -> None:
    images, labels = toy_private()
    for start, same in (("shared", True), ("own", False)):
        first, second = of_each(
            training(smoke(start=start), [np.arange(40), np.arange(40, 80)], images, labels).teachers
        )
        assert torch.equal(first, second) == same


def test_shared_start_builds_one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    built = record_calls(monkeypatch, GPate, "critic")
    for start, count in (("shared", 1), ("own", 5)):
        built.clear()
        synthesise(smoke(start=start, teachers="5"))
        assert len(built) == count
