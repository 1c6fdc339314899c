"""Selective randomised response: its distribution, enumerated and sampled, for every label and set of candidates."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from bench.errors import BenchError
from bench.privacy.events import most_response_epsilon
from bench.privacy.mechanisms import selective_response
from bench.privacy.noise import Noise

C = 4
SETS = [row for row in itertools.product([False, True], repeat=C) if sum(row) >= 2]
EPSILONS = [0.0, 0.5, 1.0, 3.0]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(label: int, allowed: tuple[bool, ...], epsilon: float, k: int | None = None) -> list[float]:
    """The law of the answer as Alg. 1 states it; a wrong k may be put in."""
    k = k or sum(allowed)
    if not allowed[label]:
        return [1 / sum(allowed) if member else 0.0 for member in allowed]
    kept = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    rest = (1 - kept) / (sum(allowed) - 1)
    return [0.0 if not member else kept if y == label else rest for y, member in enumerate(allowed)]


def enumerated(monkeypatch, label: int, allowed: tuple[bool, ...], epsilon: float) -> list[float]:
    """The mechanism run on a grid over both of its draws; the first one only says whether to stay."""
    k = sum(allowed)
    kept = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    found = [0.0] * C
    for stay, chance in ((True, kept), (False, 1 - kept)):

        def flipped(noise, probability, n, stay=stay, chance=chance):
            assert probability.tolist() == pytest.approx([1 - kept] * n)
            return torch.full((n,), not stay)

        monkeypatch.setattr(Noise, "chance", flipped)
        monkeypatch.setattr(Noise, "bits", lambda noise, n: torch.arange(n))
        answers = selective_response(torch.full((12,), label), torch.tensor([allowed] * 12), epsilon, seeded())
        for answer in answers.tolist():
            found[answer] += chance / 12
    return found


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("allowed", SETS, ids=lambda row: "".join("01"[m] for m in row))
def test_selective_response_follows_alg_1_within_epsilon(monkeypatch, allowed, epsilon):
    laws = [enumerated(monkeypatch, label, allowed, epsilon) for label in range(C)]
    for label, law in enumerate(laws):
        assert sum(law) == pytest.approx(1) and law == pytest.approx(by_hand(label, allowed, epsilon))
    members = [y for y in range(C) if allowed[y]]
    assert all(law[y] == 0 for law in laws for y in range(C) if not allowed[y])
    worst = max(one[y] / other[y] for one in laws for other in laws for y in members)
    assert worst == pytest.approx(math.exp(epsilon)), "the bound is met and reached"


def counts(label: int, allowed: tuple[bool, ...], epsilon: float, n: int, seed: int) -> list[int]:
    answers = selective_response(torch.full((n,), label), torch.tensor([allowed]).expand(n, C), epsilon, seeded(seed))
    return torch.bincount(answers, minlength=C).tolist()


def fits(found: list[int], law: list[float]) -> bool:
    """Chi-square at level 1e-6 over the classes that the law allows; an answer outside them never fits."""
    if any(count for count, p in zip(found, law, strict=True) if p == 0):
        return False
    pairs = [(count, p) for count, p in zip(found, law, strict=True) if p > 0]
    expected = [p * sum(found) for _, p in pairs]
    return bool(chisquare([count for count, _ in pairs], expected).pvalue > 1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_selective_response_frequencies_fit_k(epsilon):
    for index, (allowed, label) in enumerate(itertools.product(SETS, range(C))):
        found = counts(label, allowed, epsilon, 40_000, index)
        assert fits(found, by_hand(label, allowed, epsilon))
        if allowed[label]:
            for wrong in {2, 3, 4} - {sum(allowed)}:
                assert not fits(found, by_hand(label, allowed, epsilon, wrong))
        else:
            assert not fits(found, by_hand(label, (True,) * C, epsilon)), "not a response over all classes"


def test_selective_response_uses_each_rows_candidates():
    allowed = torch.tensor(SETS).repeat(2000, 1)
    labels = torch.randint(0, C, (len(allowed),), generator=seeded(1))
    answers = selective_response(labels, allowed, 1.0, seeded(2))
    assert allowed.gather(1, answers[:, None]).all()
    k = allowed.sum(1).double()
    kept = torch.where(allowed.gather(1, labels[:, None])[:, 0], math.e / (math.e + k - 1), torch.zeros_like(k))
    found, spread = float((answers == labels).double().sum()), float((kept * (1 - kept)).sum().sqrt())
    assert abs(found - float(kept.sum())) < 5 * spread


@pytest.mark.parametrize("epsilon", [most_response_epsilon(2), math.inf])
def test_selective_response_of_huge_epsilon_keeps_labels(epsilon):
    allowed = torch.tensor(SETS).repeat_interleave(C, 0)
    labels = torch.arange(C).repeat(len(SETS))
    answers = selective_response(labels, allowed, epsilon, seeded(5))
    inside = allowed.gather(1, labels[:, None])[:, 0]
    assert torch.equal(answers[inside], labels[inside])
    assert allowed.gather(1, answers[:, None]).all()


def test_selective_response_without_a_choice_is_constant():
    allowed = torch.tensor([[False, True, False]] * 3 + [[False] * 3] * 3)
    answers: Tensor = selective_response(torch.tensor([0, 1, 2] * 2), allowed, 1.0, seeded())
    assert answers.tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("epsilon", [-0.1, math.nan])
def test_selective_response_refuses_an_invalid_epsilon(epsilon):
    with pytest.raises(BenchError, match="epsilon"):
        selective_response(torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool), epsilon, seeded())


@pytest.mark.parametrize("allowed", [torch.ones(2, 3), torch.ones(1, 3, dtype=torch.bool), torch.ones(2).bool()])
def test_selective_response_refuses_invalid_shapes(allowed):
    with pytest.raises(ValueError, match="allowed"):
        selective_response(torch.tensor([0, 1]), allowed, 1.0, seeded())
