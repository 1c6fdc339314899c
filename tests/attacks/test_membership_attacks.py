from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from attacks import rmia
from attacks.lira import Lira, log_density, median
from attacks.loss_threshold import LossThreshold
from attacks.rmia import Rmia, area, dominated, marginal, tuned
from attacks.shadow import Shadow, statistics
from bench.api import AttackerKnowledge, MembershipResult, Reference, Target
from bench.config import TIERS, Variant, configure
from bench.errors import BenchError, RunFailed
from bench.membership.confidences import (
    TINY,
    ReferenceAttack,
    ask,
    scaled_confidence,
    split_by_membership,
    true_class_probability,
    views,
)
from bench.testing import context, toy_private

ATTACKS: list[type[Any]] = [LossThreshold, Lira, Rmia, Shadow]


class Table(nn.Module):
    """Answers the logits of the row that the image's brightness names; (rows, classes)."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits.float()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[(x.flatten(1).mean(1) * 1000).round().long()]


def cards(n: int, first: int = 0) -> Tensor:
    """(n, 1, 2, 2) images, the i-th of brightness (first + i) / 1000."""
    return (torch.arange(first, first + n) / 1000).view(n, 1, 1, 1).expand(n, 1, 2, 2).contiguous()


def table(logits: Tensor) -> Target:
    return Target(Table(logits), "scores", (1, 2, 2), logits.shape[1])


def binary(phi: Tensor) -> Tensor:
    """(n, 2) logits with true class 0 and logit-scaled confidence phi."""
    return torch.stack([phi, torch.zeros_like(phi)], 1)


def split_in_half(count: int, n: int, seed: int = 0) -> Tensor:
    return torch.rand(count, n, generator=torch.Generator().manual_seed(seed)).argsort(0) < count // 2


def world(known: Tensor, members: Tensor, population: int = 0) -> AttackerKnowledge:
    """Suspects of two classes, all of class 0, in which reference i is confident by `known[i]`, population last."""
    n = members.shape[1]

    def references(count: int, kind: Literal["teacher", "student"]) -> list[Reference]:
        return [Reference(table(binary(phi)), inside) for phi, inside in zip(known, members, strict=True)][:count]

    labels = torch.zeros(n, dtype=torch.int64)
    others = (cards(population, n), torch.zeros(population, dtype=torch.int64))
    return AttackerKnowledge(cards(n), labels, lambda: others, references)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# What they share


def test_confidence_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]], dtype=torch.float64)
    labels = torch.tensor([1, 1])
    assert true_class_probability(p, labels).tolist() == [0.3, 0.8]
    assert scaled_confidence(p, labels).tolist() == pytest.approx([math.log(3 / 7), math.log(4)])


@pytest.mark.parametrize("margin", [-80.0, -30.0, -1.0, 0.0, 1.0, 17.0, 30.0, 80.0])
def test_confidence_of_float32_answers_is_that_of_the_logits(margin: float) -> None:
    """1 - p_y of float32 is 0 from a margin of 17 on."""
    logits = torch.tensor([[1.0, 1.0 + margin, 0.5, -2.0]])
    exact = logits.double()
    wanted = exact[0, 1] - torch.logsumexp(exact[0, [0, 2, 3]], 0)
    found = scaled_confidence(logits.softmax(1).double(), torch.tensor([1]))
    assert found.item() == pytest.approx(wanted.item(), abs=1e-4)


def test_confidence_is_finite_where_probabilities_vanish() -> None:
    p = torch.tensor([[200.0, -200.0], [-200.0, 200.0]]).softmax(1).double()
    assert p.min() == 0
    assert scaled_confidence(p, torch.tensor([0, 0])).tolist() == pytest.approx([-math.log(TINY), math.log(TINY)])


def test_answers_in_batches_are_the_same_and_are_counted() -> None:
    target = table(draw(7, 3))
    whole, parts = ask(target, cards(7), 100), ask(target, cards(7), 2)
    assert whole.dtype == torch.float64 and torch.equal(whole, parts)
    assert target.queries == 14


def test_a_model_that_diverged_is_named() -> None:
    with pytest.raises(RunFailed, match="not numbers"):
        ask(table(torch.full((3, 2), math.nan)), cards(3), 8)


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


@pytest.mark.parametrize("attack", [Lira, Rmia, Shadow])
def test_a_suspect_that_is_not_in_half_of_the_references_is_refused(attack: type[ReferenceAttack]) -> None:
    members = split_in_half(4, 6)
    members[0, 2] = ~members[0, 2]
    smoke = configure(attack, "smoke", {}, "attack")
    with pytest.raises(RunFailed, match="half"):
        smoke.infer(table(binary(draw(9))), world(draw(4, 9), members, 3), context())


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("variant", "kind"), [("printed", "student"), ("working", "teacher")])
def test_every_tier_asks_for_the_references_it_names(attack: type[Any], tier: str, variant: Variant, kind: str) -> None:
    made = configure(attack, tier, {}, "attack", variant)
    if not isinstance(made, ReferenceAttack):
        return
    assert made.reference_kind == kind
    assert made.references == {"paper": {Lira: 256, Shadow: 50, Rmia: 4}[attack]}.get(tier, 4)
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


@pytest.mark.parametrize(
    ("attack", "name", "text"),
    [
        (LossThreshold, "batch", "0"),
        (Lira, "references", "3"),
        (Lira, "references", "0"),
        (Lira, "references", "2"),
        (Lira, "batch", "0"),
        (Rmia, "gamma", "0"),
        (Rmia, "a", "1.1"),
        (Rmia, "references", "2"),
        (Shadow, "hidden", "-1"),
        (Shadow, "steps", "0"),
        (Shadow, "lr", "0"),
        (Shadow, "weight_decay", "-1"),
    ],
)
def test_refuses_impossible_options(attack: type[Any], name: str, text: str) -> None:
    with pytest.raises(BenchError, match=name):
        configure(attack, "paper", {name: text}, "attack", "printed")


# Loss threshold


def test_the_score_is_minus_the_cross_entropy() -> None:
    logits, labels = 3 * draw(20, 5), torch.arange(20) % 5
    knowledge = dataclasses.replace(world(draw(2, 20), split_in_half(2, 20)), labels=labels)
    found = LossThreshold().infer(table(logits), knowledge, context()).scores
    wanted = -nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_well_fitted_records_are_not_tied() -> None:
    phi = torch.linspace(17, 80, 40, dtype=torch.float64)
    assert binary(phi).float().softmax(1)[:, 0].unique().numel() <= 2
    knowledge = world(draw(2, 40), split_in_half(2, 40))
    found = LossThreshold().infer(table(binary(phi)), knowledge, context()).scores
    assert bool((found.diff() > 0).all())


# LiRA


def gaussian_world(count: int, n: int = 30) -> tuple[Target, AttackerKnowledge, Tensor, dict[str, Tensor]]:
    """Confidences of known normals: (target, knowledge, target's phi, the parameters)."""
    truth = {
        "mu_out": draw(n, seed=1),
        "s_out": draw(n, seed=2).abs() + 0.5,
        "mu_in": 2 + draw(n, seed=3),
        "s_in": draw(n, seed=4).abs() + 0.5,
    }
    members = split_in_half(count, n, seed=5)
    z = draw(count, n, seed=6)
    known = torch.where(members, truth["mu_in"] + truth["s_in"] * z, truth["mu_out"] + truth["s_out"] * z)
    phi = draw(n, seed=7) + 1
    return table(binary(phi)), world(known, members), phi, truth


def slow_lira(phi: Tensor, known: Tensor, members: Tensor, variance: str, centre: str, mode: str) -> list[float]:
    """LiRA suspect by suspect, the densities by scipy."""
    middle: Callable[..., Any] = np.mean if centre == "mean" else np.median
    n = members.shape[1]
    ins = [known[members[:, i], i].numpy() for i in range(n)]
    outs = [known[~members[:, i], i].numpy() for i in range(n)]
    found = []
    for i in range(n):
        normals = []
        for side in (ins, outs):
            if variance == "per-example":
                s = np.std(side[i])
            else:
                s = np.std(np.concatenate(side))
            normals.append(stats.norm(middle(side[i]), s))
        x = float(phi[i])
        if mode == "online":
            found.append(normals[0].logpdf(x) - normals[1].logpdf(x))
        else:
            found.append(normals[1].cdf(x) if mode == "cdf" else -normals[1].logpdf(x))
    return found


def known_of(knowledge: AttackerKnowledge, count: int) -> tuple[Tensor, Tensor]:
    references = knowledge.references(count, "teacher")
    phi = [scaled_confidence(ask(r.target, knowledge.images, 512), knowledge.labels) for r in references]
    return torch.stack(phi), torch.stack([r.members for r in references])


@pytest.mark.parametrize("centre", ["mean", "median"])
@pytest.mark.parametrize("variance", ["per-example", "fixed"])
def test_lira_is_the_slow_one(variance: Any, centre: Any) -> None:
    target, knowledge, phi, _ = gaussian_world(8, 12)
    known, members = known_of(knowledge, 8)
    plain = Lira(references=8, variance=variance, centre=centre)
    online = plain.infer(target, knowledge, context()).scores
    assert online.tolist() == pytest.approx(slow_lira(phi, known, members, variance, centre, "online"), rel=1e-4)
    cdf = dataclasses.replace(plain, mode="offline").infer(target, knowledge, context()).scores
    wanted = slow_lira(phi, known, members, variance, centre, "cdf")
    assert stats.norm.cdf(cdf.numpy()).tolist() == pytest.approx(wanted, rel=1e-4)
    pdf = dataclasses.replace(plain, mode="offline", tail="pdf").infer(target, knowledge, context()).scores
    assert pdf.tolist() == pytest.approx(slow_lira(phi, known, members, variance, centre, "pdf"), rel=1e-4)


def test_online_score_is_the_log_likelihood_ratio_of_the_world() -> None:
    """With 4000 models the fitted normals are the true ones up to some 2 %."""
    target, knowledge, phi, t = gaussian_world(4000)
    found = Lira(references=4000, views="none").infer(target, knowledge, context()).scores
    wanted = log_density(phi, t["mu_in"], t["s_in"]) - log_density(phi, t["mu_out"], t["s_out"])
    assert wanted.abs().max() > 3
    assert float(((found - wanted).abs() / (1 + wanted.abs())).max()) < 0.15
    assert float(((found - wanted).abs() / (1 + wanted.abs())).mean()) < 0.04


def test_online_lira_beats_offline_and_the_loss_in_a_known_world() -> None:
    """Targets drawn from the world: hard and easy suspects mislead the loss, not the ratio."""
    n, count = 900, 64
    members, member = split_in_half(count, n, 1), torch.arange(n) % 2 == 0
    easy, gain = 3 * draw(n, seed=2), 1.5
    known = easy + 0.7 * draw(count, n, seed=3) + gain * members
    target = table(binary(easy + 0.7 * draw(n, seed=4) + gain * member))
    areas = {
        name: roc_auc_score(member, attack.infer(target, world(known, members), context()).scores)
        for name, attack in {
            "loss": LossThreshold(),
            "offline": Lira(references=count, views="none", mode="offline"),
            "online": Lira(references=count, views="none"),
        }.items()
    }
    best = stats.norm.cdf(gain / (0.7 * math.sqrt(2)))
    assert areas["loss"] < 0.7
    assert areas["online"] == pytest.approx(best, abs=0.03)
    assert areas["offline"] == pytest.approx(best, abs=0.03)


def test_fixed_variance_takes_out_from_out() -> None:
    """Card 4.12. IN scatters 10 times as much as OUT; the authors' code would use its deviation for both."""
    members = split_in_half(6, 5)
    known = torch.where(members, 10 * draw(6, 5), draw(6, 5, seed=1))
    phi = draw(5, seed=2)
    found = Lira(references=6, variance="fixed", mode="offline").infer(
        table(binary(phi)), world(known, members), context()
    )
    outside = split_by_membership(known, members)[1]
    wanted = (phi - outside.mean(0)) / outside.std(correction=0)
    torch.testing.assert_close(found.scores, wanted, rtol=1e-4, atol=1e-5)
    assert (found.scores - wanted * 0.1).abs().max() > 0.3


def test_offline_cdf_and_pdf_differ_below_the_mean() -> None:
    """Card 4.12. A confidence far below OUT's mean is no sign of membership, but the density takes it for one."""
    members = split_in_half(6, 3)
    known = draw(6, 3).clamp(-1, 1)
    target, knowledge = table(binary(torch.tensor([-9.0, 0.0, 9.0]))), world(known, members)
    offline = Lira(references=6, variance="fixed", mode="offline")
    cdf = offline.infer(target, knowledge, context()).scores
    pdf = dataclasses.replace(offline, tail="pdf").infer(target, knowledge, context()).scores
    assert cdf.argsort().tolist() == [0, 1, 2]
    assert pdf.argmin() == 1


def test_lira_is_finite_where_all_models_agree() -> None:
    members = split_in_half(4, 6)
    for mode in ("online", "offline"):
        lira = Lira(references=4, mode=mode)  # type: ignore[arg-type]
        found = lira.infer(table(binary(draw(6))), world(torch.full((4, 6), 200.0), members), context())
        assert bool(found.scores.isfinite().all())


def test_medians_of_even_numbers_are_in_the_middle() -> None:
    assert median(torch.tensor([[4.0], [1.0], [2.0], [10.0]])).tolist() == [3.0]
    assert median(torch.tensor([[4.0], [1.0], [2.0]])).tolist() == [2.0]


def test_scores_of_views_are_averaged() -> None:
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
    both = {}
    for name, seen, kind in (
        ("plain", images, "none"),
        ("turned", images.flip(-1), "none"),
        ("mean", images, "mirror"),
    ):
        knowledge = AttackerKnowledge(
            seen,
            labels,
            lambda: (images[:0], labels[:0]),
            lambda count, _: [Reference(net, one) for net, one in zip(nets[1:], members, strict=True)],
        )
        lira = Lira(references=4, views=kind)  # type: ignore[arg-type]
        both[name] = lira.infer(nets[0], knowledge, context()).scores
    assert (both["plain"] - both["turned"]).abs().max() > 0.01
    torch.testing.assert_close(both["mean"], (both["plain"] + both["turned"]) / 2)


# RMIA


def test_rmia_by_hand() -> None:
    """a = 0.5: p(x) = 0.75 pbar + 0.25."""
    assert marginal(torch.tensor([0.2, 1.0]), 0.5).tolist() == pytest.approx([0.4, 1.0])
    ratio_x, ratio_z = torch.tensor([0.5, 1.0, 2.0, 4.1]), torch.tensor([1.0, 0.25, 2.0, 0.5])
    assert dominated(ratio_x, ratio_z, 1.0).tolist() == [0.5, 0.75, 1.0, 1.0]
    assert dominated(ratio_x, ratio_z, 2.0).tolist() == [0.25, 0.5, 0.75, 1.0]


def slow_rmia(px: Tensor, known_x: Tensor, members: Tensor, pz: Tensor, known_z: Tensor, gamma: float, a: float) -> Any:
    found = []
    for i in range(len(px)):
        outs = [float(known_x[j, i]) for j in range(len(members)) if not members[j, i]]
        ratio = float(px[i]) / (((1 + a) * sum(outs) / len(outs) + 1 - a) / 2)
        wins = 0
        for k in range(len(pz)):
            mean = float(known_z[:, k].sum()) / len(members)
            wins += ratio / (float(pz[k]) / (((1 + a) * mean + 1 - a) / 2)) >= gamma
        found.append(wins / len(pz))
    return found


@pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.3), (1.2, 0.0), (1.3, 1.0)])
def test_rmia_is_the_slow_one(gamma: float, a: float) -> None:
    n, m = 15, 11
    members, known, own = split_in_half(6, n), 2 * draw(6, n + m), 2 * draw(n + m, seed=1)
    attack = Rmia(references=6, gamma=gamma, a=a, tune=False)
    found = attack.infer(table(binary(own)), world(known, members, m), context()).scores
    p, q = own.sigmoid(), known.sigmoid()
    assert found.tolist() == pytest.approx(slow_rmia(p[:n], q[:, :n], members, p[n:], q[:, n:], gamma, a))
    assert len(found.unique()) > 4


def test_online_rmia_uses_all_references() -> None:
    n, m = 15, 11
    members, known, own = split_in_half(4, n), 2 * draw(4, n + m), 2 * draw(n + m, seed=1)
    found = Rmia(mode="online", gamma=1.0).infer(table(binary(own)), world(known, members, m), context()).scores
    ratio = own.sigmoid() / known.sigmoid().mean(0)
    wanted = [sum(float(ratio[i]) >= float(r) for r in ratio[n:]) / m for i in range(n)]
    assert found.tolist() == pytest.approx(wanted)


def test_a_of_zero_is_zero() -> None:
    """At a = 0, p(x) = (pbar + 1) / 2; the authors' tool quietly takes 0.3 with one reference."""
    n, m = 40, 30
    members, known, own = split_in_half(2, n), 2 * draw(2, n + m), 2 * draw(n + m, seed=1)
    scores = {
        a: Rmia(references=2, tune=False, gamma=1.0, a=a).infer(table(binary(own)), world(known, members, m), context())
        for a in (0.0, 0.3, 0.7)
    }
    assert not torch.equal(scores[0.0].scores, scores[0.3].scores)
    assert not torch.equal(scores[0.0].scores, scores[0.7].scores)


def test_suspects_are_not_their_own_population() -> None:
    """Card 4.13. Population records that are suspects do not count, whatever the models say of them."""
    n, m = 8, 20
    members, known, own = split_in_half(4, n), 2 * draw(4, n + m), 2 * draw(n + m, seed=1)
    knowledge = world(known, members, m)
    images, labels = knowledge.population
    mixed = (torch.cat([images[:7], knowledge.images, images[7:]]), torch.cat([labels, knowledge.labels]))
    attack = Rmia(gamma=1.0)
    clean = attack.infer(table(binary(own)), knowledge, context()).scores
    assert torch.equal(
        attack.infer(
            table(binary(own)), dataclasses.replace(knowledge, load_population=lambda: mixed), context()
        ).scores,
        clean,
    )
    only = dataclasses.replace(knowledge, load_population=lambda: (knowledge.images, knowledge.labels))
    with pytest.raises(RunFailed, match="population"):
        attack.infer(table(binary(own)), only, context())


def test_rmia_needs_a_population() -> None:
    assert "training records" in (Rmia().applicable((1, 28, 28), 10, 0) or "")


def test_area_is_that_under_the_curve() -> None:
    scores, members = (4 * draw(200)).round(), draw(200, seed=1) > 0.3
    assert float(area(scores, members)) == pytest.approx(roc_auc_score(members, scores))


def test_a_is_tuned_as_by_trying_all(monkeypatch: pytest.MonkeyPatch) -> None:
    n, m, count = 60, 40, 6
    members = split_in_half(count, n)
    known = draw(n + m) + 0.7 * draw(count, n + m, seed=1)
    known[:, :n] += 1.5 * members
    p = known.sigmoid()
    areas = []
    for a in rmia.GRID:
        found = []
        for i in range(count):
            others = [j for j in range(count) if j != i]
            scores = []
            for x in range(n):
                outs = [float(p[j, x]) for j in others if not members[j, x]][: count // 2 - 1]
                ratio = float(p[i, x]) / (((1 + a) * sum(outs) / len(outs) + 1 - a) / 2)
                ratios = p[i, n:] / (((1 + a) * p[others][:, n:].mean(0) + 1 - a) / 2)
                scores.append(float((ratio >= ratios).double().mean()))
            found.append(roc_auc_score(members[i], scores))
        areas.append(sum(found) / count)
    best = rmia.GRID[int(np.argmax(areas))]
    assert max(areas) - min(areas) > 0.01
    assert tuned(p[:, :n], p[:, n:], members, 1.0) == best
    kept = Rmia(references=count, gamma=1.0, tune=False, a=best)
    own = table(binary(draw(n + m, seed=9)))
    knowledge = world(known, members, m)
    assert torch.equal(
        dataclasses.replace(kept, tune=True, a=0.0).infer(own, knowledge, context()).scores,
        kept.infer(own, knowledge, context()).scores,
    )


# Shadow models


def test_statistics_by_hand() -> None:
    found = statistics(torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64), torch.tensor([0]))
    entropy = -(0.2 * math.log(0.2) + 0.7 * math.log(0.7) + 0.1 * math.log(0.1))
    wanted = [0.7, 0.2, 0.1, -math.log(0.2), entropy, math.log(0.25), 1, 0, 0]
    assert found[0].tolist() == pytest.approx(wanted)


def test_without_hidden_units_it_is_logistic_regression() -> None:
    members, known, own = split_in_half(6, 80), draw(6, 80), draw(80, seed=1)
    known += 0.8 * members
    linear = Shadow(references=6, hidden=0, steps=300, lr=0.1, weight_decay=0.0, features="probabilities")
    found = linear.infer(table(binary(own)), world(known, members), context()).scores
    reference = LogisticRegression(C=1e9).fit(known.sigmoid().view(-1, 1), members.view(-1))
    wanted = reference.decision_function(own.sigmoid().view(-1, 1))
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=0.01)


def test_weight_decay_holds_the_classifier_back() -> None:
    """Each step of 0.1 takes 0.9 of the weights, which then hardly grow beyond a step."""
    members, known, own = split_in_half(6, 80), draw(6, 80), draw(80, seed=1)
    known += 0.8 * members
    free = Shadow(references=6, hidden=0, steps=100, lr=0.1, weight_decay=0.0)
    scores = [
        dataclasses.replace(free, weight_decay=decay)
        .infer(table(binary(own)), world(known, members), context())
        .scores.std()
        for decay in (0.0, 9.0)
    ]
    assert float(scores[1]) < 0.4 * float(scores[0])


def test_a_classifier_per_class_learns_opposite_rules() -> None:
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
def test_memorised_records_are_found_and_a_random_network_knows_none(
    attack: type[Any], memory: tuple[dict[str, Target], AttackerKnowledge, Tensor]
) -> None:
    targets, knowledge, member = memory
    given = {"views": "none"} if attack is Lira else {}
    quick = configure(attack, "quick", given, "attack")
    found: dict[str, MembershipResult] = {name: quick.infer(t, knowledge, context()) for name, t in targets.items()}
    assert all(result.scores.shape == (80,) and result.scores.isfinite().all() for result in found.values())
    area = {name: roc_auc_score(member, result.scores) for name, result in found.items()}
    assert area["memorised"] > 0.65
    assert 0.3 < area["random"] < 0.7


@pytest.mark.parametrize("attack", ATTACKS)
def test_scores_do_not_depend_on_the_batch(
    attack: type[Any], memory: tuple[dict[str, Target], AttackerKnowledge, Tensor]
) -> None:
    targets, knowledge, _ = memory
    scores = [
        configure(attack, "quick", {"batch": str(batch)}, "attack").infer(targets["memorised"], knowledge, context())
        for batch in (512, 7)
    ]
    torch.testing.assert_close(scores[0].scores, scores[1].scores, rtol=1e-3, atol=1e-3)
