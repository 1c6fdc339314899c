"""The shadow attack: its statistics, its classifier, and one classifier per class."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from membership_made import draw, infer, split_in_half, table, world
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attacks.shadow import Shadow, statistics
from bench.api import Reference, Target
from bench.testing import context

# Shadow models


def test_statistics_by_hand() -> None:
    found = statistics(torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64), torch.tensor([0]))
    entropy = -(0.2 * math.log(0.2) + 0.7 * math.log(0.7) + 0.1 * math.log(0.1))
    wanted = [0.7, 0.2, 0.1, -math.log(0.2), entropy, math.log(0.25), 1, 0, 0]
    assert found[0].tolist() == pytest.approx(wanted)


def test_shadow_without_hidden_units_is_logistic_regression() -> None:
    members, known, own = split_in_half(6, 80), draw(6, 80), draw(80, seed=1)
    known += 0.8 * members
    linear = Shadow(references=6, hidden=0, steps=300, lr=0.1, weight_decay=0.0, features="probabilities")
    found = infer(linear, own, known, members)
    reference = LogisticRegression(C=1e9).fit(known.sigmoid().view(-1, 1), members.view(-1))
    wanted = reference.decision_function(own.sigmoid().view(-1, 1))
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=0.01)


def test_shadow_weight_decay_shrinks_scores() -> None:
    """Each step of 0.1 takes 0.9 of the weights, which then hardly grow beyond a step."""
    members, known, own = split_in_half(6, 80), draw(6, 80), draw(80, seed=1)
    known += 0.8 * members
    free = Shadow(references=6, hidden=0, steps=100, lr=0.1, weight_decay=0.0)
    scores = [infer(dataclasses.replace(free, weight_decay=decay), own, known, members).std() for decay in (0.0, 9.0)]
    assert float(scores[1]) < 0.4 * float(scores[0])


def test_shadow_per_class_learns_opposite_rules() -> None:
    """Members are confident, which is a large p_0 in class 0 and a small one in class 1."""
    n, count = 120, 6
    labels, members = torch.arange(n) % 2, split_in_half(count, n)
    sign = 1 - 2 * labels
    known = draw(count, n) + 3 * members
    member = draw(n, seed=3) > 0
    own = draw(n, seed=4) + 3 * member

    def target(phi: Tensor) -> Target:
        return table(torch.stack([phi * sign, torch.zeros(n, dtype=phi.dtype)], 1))

    plain = world(known, members)
    references = [Reference(target(phi), inside) for phi, inside in zip(known, members, strict=True)]
    knowledge = dataclasses.replace(plain, labels=labels, references=lambda *_: references)
    attack = Shadow(references=count, features="probabilities", steps=150)
    areas = {}
    for per_class in (True, False):
        made = dataclasses.replace(attack, per_class=per_class, hidden=0)
        areas[per_class] = roc_auc_score(member, made.infer(target(own), knowledge, context()).scores)
    apart = dataclasses.replace(attack, hidden=64).infer(target(own), knowledge, context()).scores
    assert areas[True] > 0.95 and roc_auc_score(member, apart) > 0.95
    assert areas[False] < areas[True] - 0.1
