"""Membership attacks: confidence, views, references, options, the loss, and that memorised records are found."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import pytest
import torch
from membership_made import binary, cards, draw, split_in_half, table, world
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from attacks.base import Base
from attacks.duci import Duci
from attacks.lira import Lira
from attacks.loss_threshold import LossThreshold
from attacks.ramia import Ramia
from attacks.rmia import Rmia
from attacks.shadow import Shadow
from bench.api import AttackerKnowledge, MembershipResult, Reference, Target
from bench.config import TIERS, Variant, configure
from bench.errors import BenchError, RunFailed
from bench.membership.confidences import (
    TINY,
    ReferenceAttack,
    query_probabilities,
    scaled_confidence,
    split_by_membership,
    true_class_probability,
    views,
)
from bench.testing import context, toy_private

ATTACKS: list[type[Any]] = [LossThreshold, Lira, Rmia, Base, Ramia, Duci, Shadow]


# What they share


def test_scaled_confidence_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]], dtype=torch.float64)
    labels = torch.tensor([1, 1])
    assert true_class_probability(p, labels).tolist() == [0.3, 0.8]
    assert scaled_confidence(p, labels).tolist() == pytest.approx([math.log(3 / 7), math.log(4)])


@pytest.mark.parametrize("margin", [-80.0, -30.0, -1.0, 0.0, 1.0, 17.0, 30.0, 80.0])
def test_scaled_confidence_of_float32_is_that_of_logits(margin: float) -> None:
    """1 - p_y of float32 is 0 from a margin of 17 on."""
    logits = torch.tensor([[1.0, 1.0 + margin, 0.5, -2.0]])
    exact = logits.double()
    wanted = exact[0, 1] - torch.logsumexp(exact[0, [0, 2, 3]], 0)
    found = scaled_confidence(logits.softmax(1).double(), torch.tensor([1]))
    assert found.item() == pytest.approx(wanted.item(), abs=1e-4)


def test_scaled_confidence_is_finite_at_zero_probability() -> None:
    p = torch.tensor([[200.0, -200.0], [-200.0, 200.0]]).softmax(1).double()
    assert p.min() == 0
    assert scaled_confidence(p, torch.tensor([0, 0])).tolist() == pytest.approx([-math.log(TINY), math.log(TINY)])


def test_ask_in_batches_is_equal_and_counted() -> None:
    target = table(draw(7, 3))
    whole, parts = query_probabilities(target, cards(7), 100), query_probabilities(target, cards(7), 2)
    assert whole.dtype == torch.float64 and torch.equal(whole, parts)
    assert target.queries == 14


def test_ask_with_nan_outputs_fails_the_run() -> None:
    with pytest.raises(RunFailed):
        query_probabilities(table(torch.full((3, 2), math.nan)), cards(3), 8)


def test_views_by_hand() -> None:
    image = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]).view(1, 1, 3, 3)
    assert [v.reshape(9).tolist() for v in views(image, "none")] == [list(range(1, 10))]
    assert [v.reshape(9).tolist() for v in views(image, "mirror")] == [list(range(1, 10)), [3, 2, 1, 6, 5, 4, 9, 8, 7]]
    same, up, down, left, right = (v.reshape(9).tolist() for v in views(image, "shifts"))
    assert same == list(range(1, 10))
    assert up == [4, 5, 6, 7, 8, 9, 4, 5, 6]
    assert down == [4, 5, 6, 1, 2, 3, 4, 5, 6]
    assert left == [2, 3, 2, 5, 6, 5, 8, 9, 8]
    assert right == [2, 1, 2, 5, 4, 5, 8, 7, 8]


def test_split_by_membership_by_hand() -> None:
    values = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]])
    members = torch.tensor([[True, False, False], [False, True, False], [True, True, True], [False, False, True]])
    inside, outside = split_by_membership(values, members)
    assert inside.tolist() == [[1, 5, 9], [7, 8, 12]]
    assert outside.tolist() == [[4, 2, 3], [10, 11, 6]]


@pytest.mark.parametrize("attack", [Lira, Rmia, Base, Ramia, Duci, Shadow])
def test_unbalanced_references_fail_the_run(attack: type[ReferenceAttack]) -> None:
    members = split_in_half(4, 6)
    members[0, 2] = ~members[0, 2]
    smoke = configure(attack, "smoke", {}, "attack")
    with pytest.raises(RunFailed):
        smoke.infer(table(binary(draw(9))), world(draw(4, 9), members, 3), context())


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("variant", "kind"), [("printed", "student"), ("working", "teacher")])
def test_every_tier_requests_its_references(attack: type[Any], tier: str, variant: Variant, kind: str) -> None:
    made = configure(attack, tier, {}, "attack", variant)
    if not isinstance(made, ReferenceAttack):
        return
    assert made.reference_kind == kind
    assert made.references == {"paper": {Lira: 256, Shadow: 50}.get(attack, 4)}.get(tier, 4)
    asked: list[tuple[int, str]] = []
    members = split_in_half(4, 5)

    def references(count: int, kind: Literal["teacher", "student"]) -> list[Reference]:
        asked.append((count, kind))
        return []

    with pytest.raises(RunFailed):
        made.infer(
            table(binary(draw(5))), dataclasses.replace(world(draw(4, 5), members), references=references), context()
        )
    assert asked == [(made.references, kind)]


REFUSED = {
    LossThreshold: "batch=0",
    Lira: "references=3 references=0 references=2 batch=0",
    Rmia: "gamma=0 a=1.1 references=2",
    Base: "temperature=0 weight=1.1 weight=-0.1 references=3",
    Shadow: "hidden=-1 steps=0 lr=0 weight_decay=-1",
}


@pytest.mark.parametrize(("attack", "option"), [(cls, option) for cls in REFUSED for option in REFUSED[cls].split()])
def test_option_out_of_range_is_refused(attack: type[Any], option: str) -> None:
    name, text = option.split("=")
    with pytest.raises(BenchError, match=name):
        configure(attack, "paper", {name: text}, "attack", "printed")


# Loss threshold


def test_loss_threshold_is_minus_the_cross_entropy() -> None:
    logits, labels = 3 * draw(20, 5), torch.arange(20) % 5
    knowledge = dataclasses.replace(world(draw(2, 20), split_in_half(2, 20)), labels=labels)
    found = LossThreshold().infer(table(logits), knowledge, context()).scores
    wanted = -nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_loss_threshold_has_no_ties_at_small_losses() -> None:
    phi = torch.linspace(17, 80, 40, dtype=torch.float64)
    assert binary(phi).float().softmax(1)[:, 0].unique().numel() <= 2
    knowledge = world(draw(2, 40), split_in_half(2, 40))
    found = LossThreshold().infer(table(binary(phi)), knowledge, context()).scores
    assert bool((found.diff() > 0).all())


def test_lira_averages_over_views() -> None:
    """A model that reads the left column sees two worlds in an image and its mirror image."""

    class Left(nn.Module):
        def __init__(self, weight: float, bias: float) -> None:
            super().__init__()
            self.weight, self.bias = weight, bias

        def forward(self, x: Tensor) -> Tensor:
            return binary(self.weight * x[:, 0, :, 0].mean(1) + self.bias)

    nets = [Target(Left(*pair), "scores", (1, 2, 2), 2) for pair in ((1, 0), (2, 1), (-1, 0), (0.5, 2), (3, -1))]
    members = torch.tensor([[True, False], [True, True], [False, True], [False, False]])
    images = torch.rand(2, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(2, dtype=torch.int64)
    references = [Reference(net, one) for net, one in zip(nets[1:], members, strict=True)]

    def scores(seen: Tensor, kind: Any) -> Tensor:
        knowledge = AttackerKnowledge(seen, labels, lambda: (images[:0], labels[:0]), lambda *_: references)
        return Lira(references=4, views=kind).infer(nets[0], knowledge, context()).scores

    plain, turned = scores(images, "none"), scores(images.flip(-1), "none")
    assert (plain - turned).abs().max() > 0.01
    torch.testing.assert_close(scores(images, "mirror"), (plain + turned) / 2)


# A network that memorises


def memorise(images: Tensor, labels: Tensor, seed: int, steps: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def memory() -> tuple[dict[str, Target], AttackerKnowledge, Tensor]:
    """80 suspects with some wrong labels, 40 of them in the target, never shifted; (targets, knowledge, members)."""
    images, labels = toy_private(3, 80)
    x = images.float() / 255
    rng = torch.Generator().manual_seed(0)
    labels = torch.where(torch.rand(80, generator=rng) < 0.3, torch.randint(0, 4, (80,), generator=rng), labels)
    member = torch.rand(80, generator=rng).argsort() < 40
    inside = split_in_half(4, 80, 8)
    others, classes = toy_private(4, 60)

    def target(net: nn.Module) -> Target:
        return Target(net, "scores", (1, 16, 16), 4)

    targets = {
        "memorised": target(memorise(x[member], labels[member], 0, 80)),
        "random": target(memorise(x[member], labels[member], 0, 0)),
    }
    references = [Reference(target(memorise(x[one], labels[one], 10 + i, 80)), one) for i, one in enumerate(inside)]
    population = (others.float() / 255, classes)
    return targets, AttackerKnowledge(x, labels, lambda: population, lambda count, _: references[:count]), member


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_finds_memorised_records_only(
    attack: type[Any], memory: tuple[dict[str, Target], AttackerKnowledge, Tensor]
) -> None:
    targets, knowledge, member = memory
    given = {Lira: {"views": "none"}, Ramia: {"shift": "0", "rotation": "5"}}.get(attack, {})
    quick = configure(attack, "quick", given, "attack")
    found: dict[str, MembershipResult] = {name: quick.infer(t, knowledge, context()) for name, t in targets.items()}
    assert all(result.scores.shape == (80,) and result.scores.isfinite().all() for result in found.values())
    area = {name: roc_auc_score(member, result.scores) for name, result in found.items()}
    assert area["memorised"] > 0.65
    assert 0.3 < area["random"] < 0.7


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_scores_do_not_depend_on_the_batch(
    attack: type[Any], memory: tuple[dict[str, Target], AttackerKnowledge, Tensor]
) -> None:
    targets, knowledge, _ = memory
    scores = [
        configure(attack, "quick", {"batch": str(batch)}, "attack").infer(targets["memorised"], knowledge, context())
        for batch in (512, 7)
    ]
    torch.testing.assert_close(scores[0].scores, scores[1].scores, rtol=1e-3, atol=1e-3)
