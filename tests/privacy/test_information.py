"""Information: capacities against computed or simulated channels, and bounds of ledgers."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent
from information_made import mutual_information

from bench.boards.information import of_events
from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan
from bench.privacy import Ledger, Unit
from bench.privacy.information import (
    Information,
    gaussian_capacity,
    laplace_capacity,
    noise_over_radius,
    of_ledger,
    response_capacity,
    selective_capacity,
)
from methods.dp_dfd.accounting import ResponsePlan, response_ledger, uncalibrated_plan


def capacity(rows: np.ndarray) -> float:
    """Blahut (1972) and Arimoto (1972): the lower of the two bounds, which meet."""
    p = np.full(len(rows), 1 / len(rows))
    for _ in range(20_000):
        with np.errstate(divide="ignore", invalid="ignore"):
            divergence = np.where(rows > 0, rows * np.log(rows / (p @ rows)), 0).sum(1)
        weights = p * np.exp(divergence)
        lower, upper = math.log(weights.sum()), divergence.max()
        if upper - lower < 1e-9:
            return lower
        p = weights / weights.sum()
    raise AssertionError(f"{upper - lower} apart")


def response_rows(epsilon: float, k: int, outside: int = 0) -> np.ndarray:
    """Randomised response over k candidates; `outside` further labels are not candidates and get uniform responses."""
    kept = 1 / (1 + (k - 1) * math.exp(-epsilon))
    other = (1 - kept) / (k - 1)
    return np.vstack([np.full((k, k), other) + (kept - other) * np.eye(k), np.full((outside, k), 1 / k)])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, math.inf])
@pytest.mark.parametrize("k, outside", [(2, 0), (2, 1), (3, 0), (3, 7), (7, 2)])
def test_response_capacity_is_that_of_its_channel(epsilon, k, outside):
    assert response_capacity(epsilon, k) == pytest.approx(capacity(response_rows(epsilon, k, outside)), abs=2e-9)


def test_response_capacity_needs_uniform_outside_responses():
    rows = response_rows(1.0, 3)
    lopsided = np.vstack([rows, [[0.9, 0.05, 0.05]]])
    assert capacity(lopsided) > response_capacity(1.0, 3) + 0.01


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0, 10.0, math.inf])
def test_selective_capacity_is_the_largest_over_candidates(epsilon):
    each = [response_capacity(epsilon, k) for k in range(2, 11)]
    assert selective_capacity(epsilon, 10) == max(each)
    assert min(each) >= 0 and (epsilon == 0) == (max(each) < 1e-12)
    assert epsilon != 1 or each.index(max(each)) == 1, "three candidates: neither the fewest nor the most"


def test_eq_5_as_published_carries_at_most_its_alphabet():
    k, c, epsilon = 3, 10, 1.0
    rows = np.vstack([response_rows(epsilon, c)[:k], np.pad(np.full((c - k, k), 1 / k), ((0, 0), (0, c - k)))])
    assert response_capacity(epsilon, c) < capacity(rows) < math.log(c)


def simulated(points: np.ndarray, noise: float, draws: int = 200_000, seed: int = 0) -> tuple[float, float]:
    """Mutual information of an even choice of points and the point with Gaussian noise; and its standard error."""
    rng = np.random.default_rng(seed)
    sent = rng.integers(len(points), size=draws)
    seen = points[sent] + noise * rng.standard_normal((draws, points.shape[1]))
    logs = -((seen[:, None, :] - points[None]) ** 2).sum(2) / (2 * noise**2)
    each = logs[np.arange(draws), sent] - (np.logaddexp.reduce(logs, axis=1) - math.log(len(points)))
    return float(each.mean()), float(each.std() / math.sqrt(draws))


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("c", [2, 3, 10])
def test_gaussian_capacity_bounds_one_hot_vectors(c, noise):
    found, error = simulated(np.eye(c), noise, 60_000)
    bound = gaussian_capacity(noise, c)
    assert found - 4 * error < bound <= gaussian_capacity(noise)
    assert found > 0.1 * min(bound, math.log(c)), "the simulation sees something"


def test_gaussian_capacity_is_nearly_reached():
    found, error = simulated(np.array([[1.0], [-1.0]]), 2.0)
    bound = gaussian_capacity(2.0, 1)
    assert found - 4 * error < bound < 1.05 * found


def test_noise_over_radius_is_jungs_radius():
    c, noise = 10, 2.0
    multiplier = noise / math.sqrt(2)
    found, error = simulated(np.eye(c), noise)
    assert found - 4 * error > gaussian_capacity(2 * multiplier), "a radius of half the distance would be too small"
    assert found + 4 * error < gaussian_capacity(noise_over_radius(multiplier))
    assert noise_over_radius(multiplier) == pytest.approx(noise)


@pytest.mark.parametrize("bound", [gaussian_capacity, laplace_capacity])
def test_capacity_bounds_grow_with_coordinates_to_the_limit(bound):
    bounds = [bound(0.7, c) for c in (1, 2, 10, 1000, 10**6)]
    assert bounds == sorted(bounds) and bounds[-1] == pytest.approx(bound(0.7), rel=1e-5)
    assert gaussian_capacity(0.7, 1) == pytest.approx(0.5 * math.log(1 + 1 / 0.49))
    assert laplace_capacity(0.5, 3) == pytest.approx(3 * math.log(1 + 1 / 1.5))


@pytest.mark.parametrize("levels, scale", [(2, 1.0), (2, 0.1), (51, 0.02)])
def test_laplace_capacity_bounds_the_channel(levels, scale):
    points = np.linspace(-1, 1, levels)
    grid = np.linspace(-1 - 40 * scale, 1 + 40 * scale, 200_001)
    density = np.exp(-np.abs(grid - points[:, None]) / scale) / (2 * scale)
    mixed = density.mean(0)
    safe = np.where(mixed > 0, mixed, 1)
    found = float(-(mixed * np.log(safe)).sum() * (grid[1] - grid[0])) - (1 + math.log(2 * scale))
    assert 0.2 * math.log(levels) < found < laplace_capacity(scale, 1) <= laplace_capacity(scale)


def test_adaptive_queries_carry_at_most_the_sum():
    """A secret of four values; each query uses randomised response on whether it is in a set; the second set may
    depend on the first response. Every strategy and a few priors, exactly."""
    kept = 1 / (1 + math.exp(-2.0))
    sets = [np.array(bits) for bits in itertools.product([0, 1], repeat=4) if bits[0] == 0 and any(bits)]
    one, best = response_capacity(2.0, 2), 0.0
    for prior in ([0.25] * 4, [0.4, 0.3, 0.2, 0.1], [0.5, 0.5, 0.0, 0.0]):
        for first, then in itertools.product(sets, itertools.product(sets, repeat=2)):
            joint = np.zeros((4, 4))
            for secret, a, b in itertools.product(range(4), (0, 1), (0, 1)):
                right = (a == first[secret]), (b == then[a][secret])
                chance = math.prod(kept if yes else 1 - kept for yes in right)
                joint[secret, 2 * a + b] = prior[secret] * chance
            best = max(best, mutual_information(joint))
    assert one + 0.2 < best <= 2 * one + 1e-12


PARAMETERS = AnnotationParameters(k=3, beta=1e-3, sigma=100.0, answer_epsilon=1.0, iterations=200)
QUIET = AnnotationParameters(k=3, beta=1e-3, sigma=0.0, answer_epsilon=math.inf, iterations=200)
MECHANISMS = {
    "rows": (AnnotationMechanism("data", 256, 10), PARAMETERS, 51_200 * 5 * math.log1p(1e-5)),
    "sum of a batch": (
        AnnotationMechanism("data", 256, 10, per_row=False),
        PARAMETERS,
        200 * 5 * math.log1p(256**2 / (10 * 100**2)),
    ),
    "teachers": (AnnotationMechanism("data", 8, 10, teachers=50), PARAMETERS, 1600 * 5 * math.log1p(0.5**2 / 10)),
    "clients": (AnnotationMechanism("data", 8, 10, clients=5), PARAMETERS, 1600 * 5 * math.log1p(0.05**2 / 10)),
    "labels": (AnnotationMechanism("label", 256, 10), PARAMETERS, 51_200 * response_capacity(1.0, 3)),
    "labels, all classes at first": (
        AnnotationMechanism("label", 256, 10, full_candidate_batches=50),
        PARAMETERS,
        12_800 * response_capacity(1.0, 10) + 38_400 * response_capacity(1.0, 3),
    ),
    "labels of clients": (AnnotationMechanism("label", 8, 10, clients=5), PARAMETERS, 8000 * response_capacity(1.0, 3)),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanism_ledger_carries_its_nats(name):
    mechanism, parameters, nats = MECHANISMS[name]
    ledger = mechanism.ledger(parameters)
    assert of_ledger(ledger).nats == pytest.approx(nats, rel=1e-12)
    events = json.loads(json.dumps(ledger.to_json()))
    assert of_events(events, 10).nats == pytest.approx(nats, rel=1e-9)


def test_responses_without_noise_carry_their_alphabet():
    assert of_ledger(AnnotationMechanism("data", 256, 10).ledger(QUIET)).nats == math.inf
    assert of_ledger(AnnotationMechanism("data", 8, 10, clients=5).ledger(QUIET)).nats == math.inf
    label = AnnotationMechanism("label", 256, 10, full_candidate_batches=50)
    expected = 12_800 * math.log(10) + 38_400 * math.log(3)
    assert of_ledger(label.ledger(QUIET)).nats == pytest.approx(expected)
    printed = AnnotationMechanism("label", 256, 10, response_as_printed=True, clients=2)
    assert of_ledger(printed.ledger(PARAMETERS)).nats == pytest.approx(2 * 51_200 * math.log(10))


def test_generator_trained_on_the_teacher_is_infinite():
    shown = AnnotationMechanism("data", 256, 10, teacher_trains_generator=True).ledger(PARAMETERS)
    assert of_ledger(shown).nats == math.inf and "DPSD-T" in of_ledger(shown).why
    plan = uncalibrated_plan(0.0, 4, 1000, 1.0, "digits", 10)
    assert of_ledger(response_ledger(plan, generator_saw_teacher=True)).nats == math.inf
    soft = response_ledger(plan, generator_saw_teacher=False, soft=True)
    assert of_ledger(soft).nats == math.inf


def test_selective_responses_carry_the_best_number():
    plan = uncalibrated_plan(0.0, 4, 1000, 1.0, "digits", 10)
    ledger = response_ledger(plan, generator_saw_teacher=False)
    assert of_ledger(ledger).nats == pytest.approx(1000 * response_capacity(1.0, 3))
    assert of_events(ledger.to_json(), 10).nats == pytest.approx(1000 * response_capacity(1.0, 3))
    unprotected = response_ledger(uncalibrated_plan(0.0, 4, 1000, math.inf, "digits", 10), generator_saw_teacher=False)
    assert of_ledger(unprotected).nats == pytest.approx(1000 * math.log(10))
    assert of_ledger(response_ledger(ResponsePlan(0.05, 4, 250, 1.0), generator_saw_teacher=False)).nats is None


@pytest.mark.parametrize("law, nats", [("gaussian", 100 * 50**2 / (2 * 40**2)), ("laplace", 100 * 50 / 40)])
def test_votes_carry_all_teachers_and_a_threshold_bit(law, nats):
    votes = VotePlan(Aggregation(law, 40.0), 100, 100, 50).ledger()
    assert of_ledger(votes).nats == of_events(votes.to_json(), 10).nats == pytest.approx(nats)
    for scale, bit in ((100.0, 0.5 * math.log1p(1 / 16)), (1.0, math.log(2)), (0.0, math.log(2))):
        asked = VotePlan(Aggregation(law, 40.0, threshold=30.0, threshold_scale=scale), 100, 300, 50).ledger()
        assert of_ledger(asked).nats == pytest.approx(nats + 300 * bit)
        if scale:
            assert of_events(asked.to_json(), 10).nats == pytest.approx(nats + 300 * bit)
    assert of_ledger(VotePlan(Aggregation(law, 0.0), 100, 100, 50).ledger()).nats == math.inf


def test_unknown_information_makes_the_sum_unknown():
    ledger = Ledger()
    assert of_ledger(ledger).nats is None
    ledger.spend(NoOpDpEvent(), why="nothing")
    assert of_ledger(ledger).nats == 0
    ledger.spend(GaussianDpEvent(2.0), why="votes", carries=3.0)
    ledger.spend(GaussianDpEvent(2.0), unit=Unit.QUERY, why="one vote")
    assert of_ledger(ledger, 10) == Information(3.0, "nothing; votes", 10)
    ledger.spend(GaussianDpEvent(2.0), why="moments")
    assert of_ledger(ledger).nats is None and "moments" in of_ledger(ledger).why
    ledger.spend(NonPrivateDpEvent(), why="the rest")
    assert of_ledger(ledger).nats == math.inf and "the rest" in of_ledger(ledger).why


def test_carries_is_validated_and_not_stored():
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match=str(wrong)):
            Ledger().spend(GaussianDpEvent(1.0), carries=wrong)
    ledger = Ledger()
    ledger.spend(GaussianDpEvent(1.0), why="votes", carries=3.0)
    assert set(ledger.to_json()[0]) == {"event", "count", "unit", "why"}
    assert Ledger.from_json(ledger.to_json()).entries()[0].carries is None


@pytest.mark.parametrize("nats", [0.0, 2.56, math.inf, None])
def test_information_round_trips_through_json(nats):
    found = Information(nats, "gradients", 10)
    assert Information.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
    assert (found.most_accuracy is None) == (nats is None) and Information(nats, "gradients").most_accuracy is None
