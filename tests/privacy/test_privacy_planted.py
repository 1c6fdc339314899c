"""The mechanism audit refutes every planted fault, accepts correct code, and docs/audits.md has its results."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import planted_counts
import planted_noise
import pytest
import torch
from planted import DELTA, MU, Planted, gaussian_promise, sampled_promise
from planted_correct import CORRECT, Correct
from scipy import integrate, stats
from torch import Tensor

from bench.privacy._marginals import expected_bound
from bench.privacy._scorers import fit
from bench.privacy.audit import DistinguishingGame, audit

FAULTS = [*planted_noise.REPORTED, *planted_counts.REPORTED, *planted_noise.ADDED, *planted_counts.ADDED]
MARKS = {False: pytest.mark.thorough, True: pytest.mark.slow}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "audits.md"


def named(each: Planted | Correct) -> str:
    return each.name


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=MARKS[each.plays > 50_000], id=each.name) for each in FAULTS]
)
def test_audit_refutes_a_planted_fault(fault: Planted) -> None:
    found = audit(fault.game, fault.plays)
    assert found.verdict == "refuted", f"{found.lower_bound:.2f} by {found.scorer}"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_audit_refutes_a_planted_fault_at_another_seed(fault: Planted) -> None:
    """With a million plays nothing hangs on the luck of one seed."""
    found = audit(fault.game, 1_000_000, seed=3)
    assert found.verdict == "refuted", f"{found.lower_bound:.2f} by {found.scorer}"


@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", CORRECT, ids=named)
def test_audit_accepts_a_correct_mechanism(mechanism: Correct) -> None:
    bounds = [audit(mechanism.game, 20_000, seed).lower_bound for seed in range(3)]
    assert max(bounds) <= mechanism.epsilon
    assert min(bounds) > 0.05 * mechanism.epsilon, "an audit that sees nothing accepts everything"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", CORRECT, ids=named)
@pytest.mark.parametrize(("plays", "seeds", "most"), [(20_000, 100, 5), (1_000_000, 10, 1)])
def test_audit_accepts_a_correct_mechanism_at_most_seeds(mechanism: Correct, plays: int, seeds: int, most: int) -> None:
    refuted = sum(audit(mechanism.game, plays, seed).verdict != "not refuted" for seed in range(seeds))
    assert refuted <= most


def test_sampled_epsilon_is_that_of_the_worse_direction() -> None:
    rate, mu = 0.1, 1.0
    got = math.exp(sampled_promise(rate, mu))

    def excess(x: float, removed: bool) -> float:
        plain = stats.norm.pdf(x)
        mixed = (1 - rate) * plain + rate * stats.norm.pdf(x - mu)
        return max(plain - got * mixed if removed else mixed - got * plain, 0.0)

    spent = [integrate.quad(excess, -12, 12, args=(way,), limit=500, points=[2, 3, 4])[0] for way in (False, True)]
    assert max(spent) == pytest.approx(DELTA, rel=1e-3)


def test_worlds_have_the_distance_of_epsilon_1() -> None:
    assert gaussian_promise() == pytest.approx(1.0, abs=1e-4)
    apart = planted_noise.gradients(True, 1) - planted_noise.gradients(False, 1)
    assert float(apart.norm()) == pytest.approx(MU)


@pytest.mark.thorough
def test_audit_ignores_an_atom_as_rare_as_delta() -> None:
    """A response of probability 1/100 that occurs in one world only is free at delta 1/100, and refutes at delta
    1/1000."""

    def play(world: bool, n: int, g: torch.Generator) -> Tensor:
        noise = torch.randn(n, 2, generator=g, dtype=torch.float64)
        return torch.where(torch.rand(n, 1, generator=g) < 0.01, float(world), noise)

    allowed = [audit(DistinguishingGame(play, 0.0, math.inf, 0.01, ""), 20_000, seed).verdict for seed in range(10)]
    assert allowed.count("refuted") <= 1
    assert audit(DistinguishingGame(play, 1.0, math.inf, 0.001, ""), 20_000).verdict == "refuted"


def test_expected_bound_subtracts_delta() -> None:
    assert expected_bound(np.array([500, 0]), np.array([470, 30]), 0.0) > 1
    assert expected_bound(np.array([500, 0]), np.array([470, 30]), 0.06) < 0


def test_scores_do_not_depend_on_the_batch() -> None:
    """The test half comes in chunks: a score may look at its own answer only."""
    g = torch.Generator().manual_seed(0)
    samples = [planted_noise.clamped_at_3(world, 1000, g) for world in (False, True)]
    fresh = planted_noise.clamped_at_3(True, 64, g)
    for name, scorer in fit(samples[0], samples[1], DELTA).items():
        apart = torch.cat([scorer(fresh[:13]), scorer(fresh[13:])])
        torch.testing.assert_close(scorer(fresh), apart, rtol=1e-9, atol=1e-9, msg=name)


def test_docs_list_every_fault_and_its_plays() -> None:
    section = PAGE.read_text().split("### Planted faults")[1].split("### ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", section, flags=re.MULTILINE)
    listed = {name: (int(plays.replace(",", "")), float(bound), float(least)) for name, plays, bound, least in rows}
    assert {fault.name for fault in FAULTS} == set(listed)
    for fault in FAULTS:
        plays, bound, least = listed[fault.name]
        assert plays <= fault.plays and bound >= least == pytest.approx(fault.promised, abs=0.006)
