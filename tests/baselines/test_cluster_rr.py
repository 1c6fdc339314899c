"""ClusterRR: the distribution of a response, exact and sampled; the lower limit of the histograms; a label's cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs as runs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import accuracy, epsilon_of, record_calls, refused, rng
from dp_accounting import LaplaceDpEvent
from scipy import stats
from torch import Tensor

from baselines import cluster_rr
from baselines.cluster_rr import ClusterRr, debiased_loss, draw_again, floored_shares, posterior_loss, resampled_share
from bench.api import Release
from bench.dp_training.label_privacy import response_probabilities
from bench.privacy import Budget, Unit
from bench.privacy.audit import audit
from bench.testing import CLASSES, context, toy_private

LOSSES = pytest.mark.parametrize("loss", ["debiased", "posterior"])


def convert(budget: Budget, private: tuple[Tensor, Tensor] | None = None, seed: int = 0, **given: str) -> Release:
    teacher = runs.forbidden_teacher(private=private or toy_private())
    return runs.convert(ClusterRr, budget, teacher, seed=seed, variant=None, **given)


def law(q: Tensor, resampling: float) -> np.ndarray:
    """(K, K): P[y~ | y], written out."""
    k = len(q)
    return np.array([[(1 - resampling) * (a == y) + resampling * float(q[a]) for a in range(k)] for y in range(k)])


@pytest.mark.parametrize("epsilon", [0.1, 0.9, 3.0, 8.0])
@pytest.mark.parametrize("tau", [0.001, 0.01, 0.25])
def test_resampled_share_is_the_smallest_allowed(epsilon: float, tau: float) -> None:
    """The worst ratio of two labels is e^epsilon2, attained at q = tau; a smaller lambda is over it."""
    q = torch.tensor([tau, tau, 1 - 2 * tau], dtype=torch.float64)
    p = law(q, resampled_share(epsilon, tau))
    assert np.log((p[:, None] / p[None]).max()) == pytest.approx(epsilon, rel=1e-9)
    less = law(q, 0.99 * resampled_share(epsilon, tau))
    assert np.log((less[:, None] / less[None]).max()) > epsilon


def test_uniform_shares_are_randomised_response() -> None:
    p = law(torch.full((4,), 0.25), resampled_share(1.3, 0.25))
    kept, other = response_probabilities(4, 1.3)
    np.testing.assert_allclose(p, np.where(np.eye(4) > 0, kept, other))


def test_shares_sum_to_one_and_are_at_least_tau() -> None:
    """Raised to tau and then divided by the sum, the second row's least shares would be 0.01 / 1.03."""
    noisy = torch.tensor([[3.0, 1.0, 0, -2], [100, 0, 0, 0], [-1, -2, -3, -4], [1, 1, 1, 1]])
    q = floored_shares(noisy, 0.01)
    assert q.dtype == torch.float64 and float(q.min()) >= 0.01 * (1 - 1e-12)
    torch.testing.assert_close(q.sum(1), torch.ones(4, dtype=torch.float64))
    room, shares = 1 - 4 * 0.01, torch.tensor([0.75 - 0.01, 0.25 - 0.01]) / 0.98
    torch.testing.assert_close(q[0].float(), torch.cat([0.01 + room * shares, torch.tensor([0.01, 0.01])]))
    torch.testing.assert_close(q[1].float(), torch.tensor([0.97, 0.01, 0.01, 0.01]))
    assert torch.equal(q[2], torch.full((4,), 0.25).double()) and torch.allclose(q[3], q[2])
    many = floored_shares(20 * torch.randn(500, 10, generator=rng()), 0.05)
    assert float(many.min()) >= 0.05 * (1 - 1e-12) and torch.allclose(many.sum(1), torch.ones(500).double())


@pytest.mark.parametrize("factor", [1.0, 1.1, 1 / 1.1])
@pytest.mark.parametrize("resampling", [0.05, 0.6, 0.97])
def test_labels_are_resampled_with_probability_lambda(resampling: float, factor: float) -> None:
    """Chi-square of all answers; a lambda, or a share of the rarer class, that is 10 % off is refused."""
    q, n = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64), 400_000
    labels = torch.zeros(n, dtype=torch.long)
    answers = draw_again(labels, q.expand(n, -1), resampling, 1.0, rng(1))
    other = factor * resampling * q[1:].numpy()
    expected = n * np.array([1 - other.sum(), *other])
    p = stats.chisquare(np.bincount(answers, minlength=3), expected).pvalue
    assert p > 0.01 if factor == 1 else p < 1e-6


@pytest.mark.parametrize("factor", [1.0, 1.1, 1 / 1.1])
def test_counts_have_the_accounted_noise(factor: float) -> None:
    """Counts of 7 in each of 4,000 clusters and 10 classes."""
    cluster, labels = torch.arange(4000).repeat_interleave(70), torch.arange(10).repeat(28_000)
    noisy, _, _ = ClusterRr(share=0.25).randomise(labels, cluster, 10, 2.0, rng())
    p = stats.kstest((noisy - 7).flatten().numpy(), stats.laplace(scale=factor * 2 / 0.5).cdf).pvalue
    assert p > 0.01 if factor == 1 else p < 1e-4


def test_debiased_loss_is_unbiased_for_every_label() -> None:
    torch.manual_seed(0)
    logits, q = 3 * torch.randn(1, 4, dtype=torch.float64), torch.tensor([[0.05, 0.05, 0.3, 0.6]], dtype=torch.float64)
    chosen, each = torch.tensor([0]), -logits.log_softmax(1)[0]
    for resampling in (0.1, 0.9):
        found = [float(debiased_loss(torch.tensor([a]), q, resampling)(logits, chosen, 0.0)) for a in range(4)]
        p = law(q[0], resampling)
        np.testing.assert_allclose(p @ np.array(found), each.numpy(), rtol=1e-9)
        by_hand = (each[2] - resampling * (q[0] * each).sum()) / (1 - resampling)
        assert found[2] == pytest.approx(float(by_hand))


def test_posterior_loss_follows_bayes_rule() -> None:
    logits, q = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64), torch.tensor([[0.2, 0.1, 0.7]]).double()
    joint = q[0].numpy()[:, None] * law(q[0], 0.4)
    posterior = joint / joint.sum(0)
    for answer in range(3):
        loss = posterior_loss(torch.tensor([answer]), q, 0.4)(logits, torch.tensor([0]), 0.0)
        assert float(loss) == pytest.approx(float(-(posterior[:, answer] * logits.log_softmax(1)[0].numpy()).sum()))


def test_counts_by_hand() -> None:
    found = cluster_rr.counts(torch.tensor([0, 2, 2, 0, 2]), torch.tensor([1, 0, 0, 1, 1]), 2)
    assert found.tolist() == [[0, 2], [0, 0], [2, 1]]


def test_principal_components_keep_products_and_order() -> None:
    rows = torch.randn(30, 5, generator=rng()).double() * torch.tensor([9.0, 1, 4, 1, 1])
    whole = cluster_rr.principal_components(rows, 9)
    torch.testing.assert_close(whole @ whole.T, (rows - rows.mean(0)) @ (rows - rows.mean(0)).T)
    first = sorted(whole.var(0).tolist(), reverse=True)[:2]
    assert cluster_rr.principal_components(rows, 2).var(0).tolist() == pytest.approx(first)


@pytest.mark.parametrize("features", ["pixels", "wavelets"])
def test_clusters_ignore_labels_and_are_limited(features: Any) -> None:
    images, labels = toy_private(n=120)
    found = ClusterRr(features=features, clusters=4, components=5).cluster(images, context())
    together = cluster_rr.counts(found, labels, CLASSES)
    assert together.shape == (4, CLASSES) and (together > 0).sum() == 4, "the toy's classes are clusters"
    few = ClusterRr(features=features, clusters=50, members=40).cluster(images, context())
    assert int(few.max()) == 2


@pytest.mark.parametrize("eps", [0.2, 1.0, 3.0, 8.0])
@LOSSES
def test_label_costs_epsilon_and_example_is_unprotected(eps: float, loss: str) -> None:
    """The bench's account against e^eps1 e^eps2 of the two laws, and a record's is infinite."""
    release = convert(Budget(eps, unit=Unit.LABEL, account="accounted"), loss=loss, share="0.3")
    found = epsilon_of(release.ledger, Unit.LABEL)
    scale = 2 / (0.3 * eps)
    worst = 2 / scale + math.log1p((1 - release.solved["resampling"]) / (release.solved["resampling"] * 0.01))
    assert worst == pytest.approx(eps) and 0.98 * eps < found <= eps * (1 + 1e-9)
    first, second = release.ledger.entries(Unit.LABEL)
    assert (first.event, first.count, second.count) == (LaplaceDpEvent(scale), 2, 1)
    assert release.claim is not None and (release.claim.epsilon, release.claim.delta) == (eps, 0)
    assert release.claim.unit == Unit.LABEL and not release.claim.disputed
    assert math.isinf(epsilon_of(release.ledger))


def test_label_is_counted_and_randomised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = record_calls(monkeypatch, cluster_rr, "noisy_counts")
    resampled = record_calls(monkeypatch, cluster_rr, "draw_again")
    images, labels = toy_private()
    convert(Budget(1.0), (images, labels), epochs="3")
    assert len(counted) == len(resampled) == 1
    exact, given = counted[0].arguments[0], resampled[0].arguments[0]
    assert int(exact.sum()) == len(labels) and torch.equal(given, labels)


@LOSSES
def test_labels_are_resampled_by_their_cluster(monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    """Epsilon 2 is shared evenly: epsilon2 = 1 determines lambda, and the loss uses the same lambda and shares."""
    answered, shares = (record_calls(monkeypatch, cluster_rr, name) for name in ("draw_again", "floored_shares"))
    monkeypatch.setattr(ClusterRr, "train", lambda *given: None)
    trained = record_calls(monkeypatch, ClusterRr, "train")
    monkeypatch.setattr(ClusterRr, "cluster", lambda self, images, ctx: torch.arange(80) % 3)
    convert(Budget(2.0), loss=loss, share="0.5")
    (_, rows, resampling, epsilon, _), noisy = answered[0].arguments, answered[0].result
    found, q = trained[0].arguments[4], shares[0].result
    assert torch.equal(rows, q[torch.arange(80) % 3]) and len(q.unique(dim=0)) == 3
    assert (resampling, epsilon) == (resampled_share(1.0, 0.01), 1.0)
    expected = {"debiased": debiased_loss, "posterior": posterior_loss}[loss](noisy, rows.float(), resampling)
    logits, every = torch.randn(80, CLASSES, generator=rng()), torch.arange(80)
    torch.testing.assert_close(found(logits, every, 0.0), expected(logits, every, 0.0))


@pytest.mark.parametrize("made", [debiased_loss, posterior_loss])
def test_loss_is_independent_of_batch_position(made: Any) -> None:
    logits, q, chosen = torch.randn(6, 4, generator=rng()), torch.rand(6, 4, generator=rng(1)), torch.tensor([4, 3, 5])
    loss = made(torch.tensor([0, 1, 2, 3, 1, 2]), q, 0.4)
    torch.testing.assert_close(loss(logits[chosen], chosen, 0.0), loss(logits, torch.arange(6), 0.0)[chosen])


def test_game_uses_both_mechanisms_at_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = record_calls(monkeypatch, cluster_rr, "noisy_counts")
    resampled = record_calls(monkeypatch, cluster_rr, "draw_again")
    monkeypatch.setattr(cluster_rr, "label_game", lambda answer, *rest: answer)
    answer: Any = ClusterRr(share=0.25).game(Budget(2.0, unit=Unit.LABEL), "toy", 4)
    assert answer(torch.tensor([0, 1, 0]), rng()).shape == (3, 4 + 4)
    assert [call.arguments[1:3] for call in counted] == [("laplace", 2 / 0.5)]
    assert [call.arguments[2:4] for call in resampled] == [(resampled_share(1.5, 0.01), 1.5)]


@pytest.mark.thorough
def test_audit_bound_is_near_the_account() -> None:
    game = ClusterRr(share=0.5).game(Budget(2.0, unit=Unit.LABEL), "toy", 4)
    found = audit(game, plays=40_000)
    assert game.claimed == 2.0 and found.verdict == "not refuted" and found.lower_bound > 0.6
    assert audit(replace(game, claimed=0.5), plays=20_000).verdict == "refuted"


@pytest.mark.parametrize(("classes", "largest"), [(101, "0.00990099"), (100, "0.01")])
def test_tau_too_large_for_the_classes_is_refused(classes: int, largest: str) -> None:
    with refused(largest):
        ClusterRr(tau=0.01).check(Budget(1.0, unit=Unit.LABEL), "mnist", classes)


@pytest.mark.parametrize(("classes", "tau"), [(2, 0.01), (10, 0.01), (100, 0.001), (200, 0.0005)])
def test_default_tau_suits_many_classes(classes: int, tau: float) -> None:
    method = ClusterRr()
    assert method._tau(classes) == pytest.approx(tau)
    q = floored_shares(F.one_hot(torch.tensor([0]), classes) * 100.0, method._tau(classes))
    assert float(q[0, 0]) > 0.9


def test_leading_components_match_full_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(60, 5, generator=rng()).double() @ torch.randn(5, 30, generator=rng(1)).double()
    whole = cluster_rr.principal_components(rows, 3)
    monkeypatch.setattr(cluster_rr, "MOST_EXACT", 29)
    leading = cluster_rr.principal_components(rows, 3)
    torch.testing.assert_close(leading @ leading.T, whole @ whole.T, rtol=1e-6, atol=1e-6)
    assert cluster_rr.principal_components(rows[:2], 50).shape == (2, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(("eps", "loss"), [(math.inf, "debiased"), (math.inf, "posterior"), (1.0, "posterior")])
def test_student_learns_toy_classes(eps: float, loss: str) -> None:
    assert accuracy(convert(Budget(eps), toy_private(n=400), loss=loss, epochs="6"), 200, 9) >= 0.9


@pytest.mark.thorough
def test_student_of_random_labels_is_at_chance() -> None:
    found = [accuracy(convert(Budget(0.01), toy_private(n=400), seed=s, epochs="6"), 200, 9) for s in range(2)]
    assert sum(found) / 2 < 0.6


def test_target_without_noise_is_the_label() -> None:
    noisy, q = torch.tensor([1]), F.one_hot(torch.tensor([0]), 3).double()
    logits = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64)
    expected = F.cross_entropy(logits, noisy)
    for made in (debiased_loss, posterior_loss):
        assert float(made(noisy, q, 0.0)(logits, torch.tensor([0]), 0.0)) == pytest.approx(float(expected))
