"""BASE: by hand, and its equality with the loss attack, with RMIA and with the softmax of logits."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from membership_made import binary, cards, draw, infer, split_in_half, table, world
from torch import Tensor

from attacks.base import Base
from attacks.loss_threshold import LossThreshold
from attacks.rmia import Rmia
from bench.api import AttackerKnowledge, Reference
from bench.membership.likelihood_ratios import log_mean, tempered_log_probability
from bench.testing import context


def many_classes(own: Tensor, known: Tensor, members: Tensor, labels: Tensor) -> AttackerKnowledge:
    """Suspects with logits `known`, (references, n, classes), under the references."""
    references = [Reference(table(logits), inside) for logits, inside in zip(known, members, strict=True)]
    images = cards(len(labels))
    return AttackerKnowledge(images, labels, lambda: (images[:0], labels[:0]), lambda count, _: references[:count])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tempered_probability_is_that_of_divided_logits(temperature: float) -> None:
    logits, labels = 6 * draw(50, 7), torch.arange(50) % 7
    exact = (logits / temperature).log_softmax(1).gather(1, labels[:, None]).squeeze(1)
    found = tempered_log_probability(logits.softmax(1), labels, temperature)
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)


def test_tempered_probability_near_one_is_not_zero() -> None:
    """In float32 the probability of the true class rounds to 1, but the others' do not round to 0."""
    p = torch.tensor([[20.0, 0.0], [60.0, 0.0], [-100.0, 100.0]]).softmax(1).double()
    found = tempered_log_probability(p, torch.tensor([0, 0, 0]), 1.0)
    assert p[0, 0] == 1.0
    assert found[0].item() == pytest.approx(-math.exp(-20), rel=1e-3) and found[1].item() < 0
    assert found[2].item() == pytest.approx(math.log(torch.finfo(torch.float32).tiny), abs=0.01)


def test_log_mean_of_small_probabilities_is_finite() -> None:
    """Card B2: logsumexp in float64; exp(-800) is 0."""
    logs = torch.tensor([[-800.0, 0.0], [-801.0, -50.0]], dtype=torch.float64)
    wanted = [-800 + math.log((1 + math.exp(-1)) / 2), -math.log(2)]
    assert log_mean(logs).tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_base_by_hand(mode: str) -> None:
    n, classes = 24, 5
    labels, members = torch.arange(n) % classes, split_in_half(4, n)
    own, known = 2 * draw(n, classes), 2 * draw(4, n, classes, seed=1)
    attack = Base(mode=mode)  # type: ignore[arg-type]
    found = attack.infer(table(own), many_classes(own, known, members, labels), context()).scores
    p = (own / 2).softmax(1)[torch.arange(n), labels]
    q = (known / 2).softmax(2)[:, torch.arange(n), labels]
    if mode == "online":
        wanted = p.log() - q.mean(0).log()
    else:
        outside = torch.stack([q[~members[:, i], i].mean() for i in range(n)])
        wanted = p.log() - 0.33 * outside.log()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_equal_references_give_the_loss_attack(mode: str) -> None:
    n = 40
    own, known = 3 * draw(n), torch.full((4, n), 0.7, dtype=torch.float64)
    members = split_in_half(4, n)
    found = infer(Base(mode=mode, temperature=1.0), own, known, members)  # type: ignore[arg-type]
    knowledge = world(known, members)
    loss = LossThreshold().infer(table(binary(own)), knowledge, context()).scores
    assert torch.equal(found.argsort(), loss.argsort())
    weight = 1.0 if mode == "online" else 0.33
    constant = weight * math.log(torch.tensor(0.7).double().sigmoid())
    torch.testing.assert_close(found, loss - constant, rtol=1e-5, atol=1e-6)


def test_online_base_at_temperature_1_ranks_as_rmia() -> None:
    n = 200
    own, known, members = 3 * draw(n), 3 * draw(4, n, seed=1), split_in_half(4, n)
    ours = infer(Base(mode="online", temperature=1.0), own, known, members)
    rmia = infer(Rmia(mode="online", score="ratio"), own, known, members)
    torch.testing.assert_close(ours, rmia, rtol=1e-5, atol=1e-6)
    offline = infer(Rmia(score="ratio", tune=False, a=1.0), own, known, members)
    weighted = infer(Base(temperature=1.0, weight=1.0), own, known, members)
    torch.testing.assert_close(weighted, offline, rtol=1e-5, atol=1e-6)


def test_base_ignores_models_trained_on_the_record_offline() -> None:
    own, known, members = draw(30), draw(4, 30, seed=1), split_in_half(4, 30)
    before = infer(Base(), own, known, members)
    changed = torch.where(members, known + 5, known)
    assert torch.equal(infer(Base(), own, changed, members), before)
    assert not torch.equal(infer(dataclasses.replace(Base(), mode="online"), own, changed, members), before)
