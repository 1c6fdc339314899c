"""DUCI: threshold and estimate by hand, its refusals, and the share that overfitted networks were trained on."""

from __future__ import annotations

import math

import pytest
import torch
from membership_made import draw, infer, split_in_half, table, world
from torch import Tensor, nn

from attacks.duci import Duci
from bench.api import AttackerKnowledge, Reference, Target
from bench.config import configure
from bench.errors import BenchError
from bench.membership.usage import Rule, best_rule, error_between_networks, estimate_share
from bench.testing import CLASSES, context, toy_private


def test_best_rule_by_hand() -> None:
    """At or above 3: two of three members, none of the others; at or above 2 all members, one of two others."""
    scores = torch.tensor([[5.0, 3.0, 2.0], [2.5, 0.0, 3.0]], dtype=torch.float64)
    members = torch.tensor([[True, True, True], [False, False, True]])
    assert best_rule(scores, members) == Rule(3.0, 0.75, 0.0)


def test_best_rule_includes_the_threshold_itself() -> None:
    scores, members = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([True, True, False])
    rule = best_rule(scores, members)
    found = estimate_share(scores, rule)
    assert (rule.tpr, rule.fpr) == (1.0, 0.0) and found is not None and found.value == pytest.approx(2 / 3)


def test_estimate_by_hand() -> None:
    """m = 0.4: (0.4 - 0.1) / (0.7 - 0.1) = 0.5, with the error sqrt(0.24 / 100) / 0.6."""
    scores = torch.tensor([1.0] * 40 + [0.0] * 60)
    found = estimate_share(scores, Rule(0.5, 0.7, 0.1))
    assert found is not None
    assert (found.value, found.error) == (pytest.approx(0.5), pytest.approx(math.sqrt(0.24 / 100) / 0.6))


@pytest.mark.parametrize(("gain", "is_estimable"), [(0.049, False), (0.051, True)])
def test_small_gain_is_not_estimable(gain: float, is_estimable: bool) -> None:
    assert (estimate_share(draw(50), Rule(0.0, 0.5 + gain, 0.5)) is not None) == is_estimable


def test_error_is_that_of_repeated_draws() -> None:
    """The standard error of p_hat for fixed rates is the deviation over sets of records."""
    rng = torch.Generator().manual_seed(0)
    rule, found = Rule(0.5, 0.8, 0.3), []
    for _ in range(2000):
        inside = torch.rand(200, generator=rng) < 0.25
        scores = (torch.rand(200, generator=rng) < torch.where(inside, 0.8, 0.3)).double()
        share = estimate_share(scores, rule)
        assert share is not None
        found.append((share.value, share.error))
    values, errors = (torch.tensor(each) for each in zip(*found, strict=True))
    assert float(values.mean()) == pytest.approx(0.25, abs=0.01)
    assert float(values.std()) == pytest.approx(float(errors.mean()), rel=0.05)


def test_error_between_networks_by_hand() -> None:
    """Estimates 0.75 and 0.25 of two networks whose shares are 0.5."""
    scores = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    members = torch.tensor([[True, True, False, False], [True, True, False, False]])
    assert error_between_networks(scores, members, Rule(0.5, 1.0, 0.0)) == pytest.approx(0.25)
    assert error_between_networks(scores, members, Rule(0.5, 0.75, 0.25)) == pytest.approx(0.5)


def test_interval_includes_the_error_between_networks(records: Records, knowledge: AttackerKnowledge) -> None:
    target = overfitted(records, torch.arange(100), 400, 0)
    facts = Duci(references=8).infer(target, knowledge, context()).facts
    gain = facts["used_share_tpr"] - facts["used_share_fpr"]
    predicted = facts["used_share"] * gain + facts["used_share_fpr"]
    of_records = 1.959964 * math.sqrt(predicted * (1 - predicted) / SUSPECTS) / gain
    assert facts["used_share.hi"] - facts["used_share"] > of_records


def test_references_that_reveal_nothing_have_a_reason() -> None:
    n = 4000
    result = Duci().infer(table(torch.zeros(n, 2)), world(torch.zeros(4, n), split_in_half(4, n)), context())
    assert "used_share" not in result.facts and "0.05" in result.missing["used_share"]
    assert {"used_share", "used_share.lo", "used_share.hi"} == set(result.missing)


def test_scores_use_equally_many_models_on_every_network() -> None:
    """The target that equals a reference has its scores, for the suspects that this reference was not trained on."""
    n, members = 40, split_in_half(6, 40)
    known = 2 * draw(6, n)
    attack = Duci(references=6)
    found = infer(attack, known[5], known, members)
    p, free = known.sigmoid(), ~members
    for i in range(n):
        outs = [float(p[j, i]) for j in range(6) if free[j, i]][:2]
        wanted = math.log(float(p[5, i])) - math.log(0.65 * sum(outs) / 2 + 0.35)
        assert float(found[i]) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_one_reference_cannot_judge_itself() -> None:
    with pytest.raises(BenchError, match="references"):
        configure(Duci, "paper", {"references": "2"}, "attack", "printed")


# Networks that overfit

SUSPECTS, SIZE = 240, 180
"""Number of suspects, and of training records of every network: rates on networks of another size are others."""
Records = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def records() -> Records:
    """600 images in [0, 1], half of them with a wrong label; the first ones are the suspects."""
    images, labels = toy_private(3, 600)
    rng = torch.Generator().manual_seed(0)
    wrong = (labels + torch.randint(1, CLASSES, (600,), generator=rng)) % CLASSES
    return images.float() / 255, torch.where(torch.rand(600, generator=rng) < 0.5, wrong, labels)


def overfitted(records: Records, suspects: Tensor, others: int, seed: int) -> Target:
    """A network that overfits these suspects and, up to SIZE, the records from row `others` on."""
    rows = torch.cat([suspects, torch.arange(others, others + SIZE - len(suspects))])
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, CLASSES))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(records[0][rows]), records[1][rows]).backward()
        optimizer.step()
    return Target(net.eval().requires_grad_(False), "scores", (1, 16, 16), CLASSES)


@pytest.fixture(scope="module")
def knowledge(records: Records) -> AttackerKnowledge:
    """The suspects, and 8 references that overfit half of them each."""
    x, labels = (each[:SUSPECTS] for each in records)
    halves = split_in_half(8, SUSPECTS)
    references = [
        Reference(overfitted(records, one.nonzero().flatten(), SUSPECTS, 10 + i), one) for i, one in enumerate(halves)
    ]
    return AttackerKnowledge(x, labels, lambda: (x[:0], labels[:0]), lambda count, _: references[:count])


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_estimate_is_near_the_true_share(share: float, records: Records, knowledge: AttackerKnowledge) -> None:
    """Card B7, the gate: |p_hat - p| < 0.1."""
    used = torch.randperm(SUSPECTS, generator=torch.Generator().manual_seed(5))[: int(SUSPECTS * share)]
    facts = Duci(references=8).infer(overfitted(records, used, 400, 0), knowledge, context()).facts
    assert facts["used_share"] == pytest.approx(share, abs=0.1)
    assert facts["used_share.lo"] < facts["used_share"] < facts["used_share.hi"]
    assert facts["used_share_tpr"] - facts["used_share_fpr"] > 0.3
