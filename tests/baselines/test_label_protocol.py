"""Label-only DP-SGD: the two parts of a gradient, the influence of a label on them, and its cost."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import baseline_runs as runs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import accuracy, epsilon_of, gaussian_delta, record_calls, refused, rng
from dp_accounting import GaussianDpEvent
from scipy import stats
from scipy.optimize import brentq
from torch import Tensor

from baselines import label_protocol
from baselines.label_protocol import LabelProtocol, factors, of_all_weights, of_last_layer, parts, splitter
from bench import nets
from bench.api import Release
from bench.data import to_float
from bench.privacy import Budget, Unit
from bench.privacy.audit import audit
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, toy_private

NETWORKS = pytest.mark.parametrize("name", ["shard-cnn", "evaluator-cnn", "scatter-linear"])
HUGE = 1e9


def convert(budget: Budget, private: tuple[Tensor, Tensor] | None = None, seed: int = 0, **given: str) -> Release:
    teacher = runs.forbidden_teacher(private=private or toy_private())
    return runs.convert(LabelProtocol, budget, teacher, "shard-cnn", seed, variant=None, **given)


def fresh(name: str) -> nets.Classifier:
    torch.manual_seed(0)
    return nets.build(name, SHAPE, CLASSES).eval()


@NETWORKS
def test_parts_add_up_to_the_gradient(name: str) -> None:
    model, (images, labels) = fresh(name), toy_private(n=3)
    loss = F.cross_entropy(model(to_float(images)), labels, reduction="sum")
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [p for p in model.parameters()])])
    clear, secret = splitter(model, images, labels, HUGE)(torch.arange(3))
    torch.testing.assert_close((clear - secret).float(), expected, rtol=1e-3, atol=1e-4)


def test_secret_part_is_the_sum_of_label_jacobians() -> None:
    """By hand: two records, two classes, three weights; the first is shortened to C = 1, the second is not."""
    jacobians = torch.tensor([[[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]], [[0.1, 0.0, 0.0], [0.0, 0.0, 0.2]]])
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    first = label_protocol.ROOM / 5
    torch.testing.assert_close(factors(jacobians, 1.0), torch.tensor([first, 1.0]))
    clear, secret = parts(jacobians, p, torch.tensor([0, 1]), 1.0)
    assert secret.tolist() == pytest.approx([3 * first, 0, 0.2])
    assert clear.tolist() == pytest.approx([0.25 * 3 * first + 0.5 * 0.1, 0.75 * 4 * first, 0.5 * 0.2])


def test_label_pairs_differ_by_at_most_the_bound() -> None:
    torch.manual_seed(0)
    jacobians = torch.randn(20, 5, 30) * torch.logspace(-2, 2, 20)[:, None, None] + 50 * torch.randn(20, 1, 30)
    scaled = factors(jacobians, 0.3)[:, None, None].double() * jacobians.double()
    pairs = itertools.combinations(range(5), 2)
    widest = torch.stack([(scaled[:, a] - scaled[:, b]).norm(dim=1) for a, b in pairs]).amax(0)
    assert float(widest.max()) <= 0.3 and float(widest.max()) > 0.29, "the bound is attained, and not from above"


def test_non_finite_record_counts_as_zero() -> None:
    jacobians = torch.ones(2, 3, 4)
    jacobians[0, 1, 2] = math.nan
    clear, secret = parts(jacobians, torch.full((2, 3), 1 / 3), torch.tensor([1, 0]), 1.0)
    torch.testing.assert_close(clear, torch.ones(4).double())
    assert torch.equal(secret, torch.ones(4).double())


@pytest.mark.parametrize("clip", [0.05, HUGE])
def test_last_layer_formula_matches_jacobians(clip: float) -> None:
    model, (images, labels) = fresh("scatter-linear"), toy_private(n=9)
    with torch.no_grad():
        rows = model.features(to_float(images))
    quick = of_last_layer(model.body.head, rows, labels, clip)  # type: ignore[arg-type, union-attr]
    for one, other in zip(quick, of_all_weights(model, images, labels, clip), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_chunked_jacobians_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (fresh("shard-cnn"), *toy_private(n=7), 0.1)
    whole = of_all_weights(*given)
    monkeypatch.setattr(label_protocol, "MOST_NUMBERS", 1)
    for one, other in zip(whole, of_all_weights(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_too_large_jacobian_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_protocol, "MOST_OF_A_RECORD", 100)
    with refused(r"100.*--student"):
        of_all_weights(fresh("shard-cnn"), *toy_private(n=7), 0.1)


@pytest.mark.thorough
@NETWORKS
def test_label_changes_only_the_secret_part(name: str) -> None:
    model, (images, labels) = fresh(name), toy_private(n=4)
    clear, secret = splitter(model, images, labels, 0.01)(torch.arange(4))
    moved = []
    for wrong in range(1, CLASSES):
        other = labels.clone()
        other[2] = (other[2] + wrong) % CLASSES
        again, changed = splitter(model, images, other, 0.01)(torch.arange(4))
        assert torch.equal(clear, again)
        moved.append(float((secret - changed).norm()))
    assert min(moved) > 0 and 0.0095 < max(moved) <= 0.01


def test_every_label_is_in_one_batch_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, original = list[Tensor](), label_protocol.splitter

    def spying(*given: Any) -> Any:
        split = original(*given)
        return lambda numbers: (chosen.append(numbers), split(numbers))[1]

    monkeypatch.setattr(label_protocol, "splitter", spying)
    release = convert(Budget(1.0), batch="30", epochs="3")
    assert [len(part) for part in chosen] == [30] * 6, "80 records: two batches a pass, 20 are left out"
    for each in (chosen[:2], chosen[2:4], chosen[4:]):
        assert len(torch.cat(each).unique()) == 60
    (entry,) = release.ledger.entries(Unit.LABEL)
    assert entry.count == 3 and isinstance(entry.event, GaussianDpEvent), "no sampling is counted"
    chosen.clear()
    convert(Budget(1.0), batch="0", epochs="2")
    assert [len(part) for part in chosen] == [80, 80]


def test_noiseless_pass_is_sgd_with_momentum() -> None:
    """Mean gradients of two batches, in the order that was drawn; no gradient is so long as to be shortened."""
    images, labels = toy_private()
    release = convert(Budget(math.inf), batch="40", epochs="1", clip="1000", rate="0.05", network="scatter-linear")
    torch.manual_seed(0)
    model = nets.build("scatter-linear", SHAPE, CLASSES).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.randperm(80, generator=context().generator("label-protocol"))
    for chosen in order.split(40):
        optimizer.zero_grad()
        F.cross_entropy(model(to_float(images[chosen])), labels[chosen]).backward()
        optimizer.step()
    for ours, theirs in zip(release.student.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-3, atol=1e-5)


def exact_sigma(eps: float, delta: float) -> float:
    """The noise of one Gaussian mechanism."""
    return 1 / brentq(lambda mu: gaussian_delta(eps, mu) - delta, 1e-2, 20)


@pytest.mark.parametrize(("eps", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (8.0, 1e-6)])
@pytest.mark.parametrize("epochs", [1, 9])
def test_noise_covers_one_release_per_pass(eps: float, delta: float, epochs: int) -> None:
    release = convert(Budget(eps, delta, unit=Unit.LABEL, account="accounted"), epochs=str(epochs))
    assert release.solved["sigma"] == pytest.approx(math.sqrt(epochs) * exact_sigma(eps, delta), rel=1e-4)
    found = epsilon_of(release.ledger, Unit.LABEL, delta)
    assert 0.999 * eps < found <= eps * (1 + 1e-9)
    assert release.claim is not None and release.claim.epsilon == pytest.approx(found)
    assert (release.claim.unit, release.claim.delta, release.claim.disputed) == (Unit.LABEL, delta, "")
    assert math.isinf(epsilon_of(release.ledger, delta=delta))


@pytest.mark.parametrize("factor", [1.0, 1.1, 1 / 1.1])
def test_secret_part_has_the_accounted_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    calls = record_calls(monkeypatch, Noise, "gaussian")
    release = convert(Budget(1.0), clip="0.25", epochs="4", batch="40", network="student")
    noise = [(call.result - call.arguments[1]).numpy() for call in calls]
    std = factor * release.solved["sigma"] * 0.25
    assert len(noise) == 8
    p = stats.kstest(np.concatenate(noise)[:20_000], stats.norm(scale=std).cdf).pvalue
    assert p > 0.01 if factor == 1 else p < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("network", ["student", "scatter-linear"])
def test_game_worlds_differ_as_in_the_ledger(monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    """A label moves one pass by C = 1/2, except for the rounding margin, under noise of sigma C, sigma = 2."""
    monkeypatch.setattr(LabelProtocol, "_sigma", lambda self, budget: 2.0)
    game = LabelProtocol(epochs=3, clip=0.5, network=network).game(Budget(2.0, unit=Unit.LABEL), "toy", 4)
    one, other = (game.play(world, 40_000, rng(int(world))) for world in (False, True))
    assert float((one.mean(0) - other.mean(0)).norm()) == pytest.approx(0.5, abs=0.03)
    assert (one - one.mean(0)).std().item() == pytest.approx(1.0, rel=0.02)


@pytest.mark.thorough
def test_audit_bound_is_near_the_account() -> None:
    game = LabelProtocol(epochs=1).game(Budget(2.0, unit=Unit.LABEL), "toy", 4)
    found = audit(game, plays=40_000)
    assert game.claimed == pytest.approx(2.0, rel=1e-3) and found.verdict == "not refuted" and found.lower_bound > 0.6
    assert audit(replace(game, claimed=0.4), plays=20_000).verdict == "refuted"


LEARNING = {"epochs": "20", "batch": "0", "rate": "1"}


@pytest.mark.parametrize("eps", [math.inf, 2.0])
def test_student_learns_toy_classes(eps: float) -> None:
    release = convert(Budget(eps), toy_private(n=400), **LEARNING)
    assert release.arch == "scatter-linear" and accuracy(release, 200, 9) >= 0.9


@pytest.mark.thorough
def test_whole_network_learns_without_noise() -> None:
    release = convert(Budget(math.inf), network="student", epochs="30", batch="20", rate="0.1", clip="5")
    assert release.arch == "shard-cnn" and accuracy(release, 200, 9) >= 0.9


def test_student_of_random_labels_is_at_chance() -> None:
    found = [accuracy(convert(Budget(0.01), toy_private(n=400), seed=s, **LEARNING), 200, 9) for s in range(3)]
    assert sum(found) / 3 < 0.6
