"""Sim-PE: simulators, votes and their sensitivity, noise, selection, the released set, and refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import baseline_runs as runs
import pytest
import torch
from baseline_runs import FREE, class_share, gaussian_delta, record_calls, rng, synthesise
from scipy import stats
from torch import Tensor

from baselines.sim_pe import sim_pe, voting
from baselines.sim_pe.sim_pe import SimPe, Votes, by_turns, draw_rows, selection
from baselines.sim_pe.simulator import Population, UserSimulator
from baselines.sim_pe.text import DrawText
from baselines.sim_pe.voting import LARGEST, make_embedding, nearest, noisy_votes, votes
from bench.dp_training.synthetic_data import FiniteSet, sample
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, toy_private


def smoke(**given: Any) -> SimPe:
    return runs.smoke(SimPe, **given)


def whole(*size: int, high: int = 50, seed: int = 0) -> Tensor:
    """Features: whole numbers as floats."""
    return torch.randint(0, high, size, generator=rng(seed)).float()


def histogram(seed: int = 0, count: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Features and labels of records, and 7 candidates for each of 3 classes."""
    labels = torch.randint(0, 3, (count,), generator=rng(seed))
    return whole(count, 5, seed=seed + 1), labels, whole(3, 7, 5, seed=seed + 2)


# The mechanism


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "sigma"),
    [
        (1.0, 2.07e-6, 5, 9.10735),
        (1.0, 1.67e-6, 4, 8.238),
        (10.0, 1.67e-6, 4, 1.064),
        (1.0, 1.67e-6, 10, 13.025),
    ],
)
def test_sigma_is_that_of_published_budgets(epsilon: float, delta: float, steps: int, sigma: float) -> None:
    """DPImageBench's log has the first one; T exact Gaussians are one of multiplier sigma / sqrt(T)."""
    found = SimPe(steps=steps).calibrate(Budget(epsilon, delta=delta, account="accounted"))
    assert found.steps == steps and found.sigma == pytest.approx(sigma, rel=1.5e-3)
    spent = found.epsilon(delta)
    assert spent <= epsilon and gaussian_delta(spent, math.sqrt(steps) / found.sigma) == pytest.approx(delta, rel=2e-3)


def test_number_of_rounds_is_solved_for_given_noise() -> None:
    found = SimPe(sigma=13.025).calibrate(Budget(1.0, delta=1.67e-6, solve="steps"))
    assert (found.sigma, found.steps) == (13.025, 10)
    made = synthesise(smoke(sigma=13.025), Budget(1.0, delta=1.67e-6, solve="steps"))
    (entry,) = made.ledger.entries(Unit.EXAMPLE)
    assert entry.count == made.solved["steps"] == 10 and entry.event.noise_multiplier == 13.025


def test_every_record_votes_once_for_its_nearest_candidate() -> None:
    features, labels, candidates = histogram()
    by_hand = torch.zeros(3, 7, dtype=torch.float64)
    for row, label in zip(features, labels.tolist(), strict=True):
        by_hand[label, int((candidates[label] - row).square().sum(1).argmin())] += 1
    assert torch.equal(votes(features, labels, candidates), by_hand)
    assert by_hand.sum(1).tolist() == torch.bincount(labels, minlength=3).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_removed_or_added_record_changes_one_count_by_one(seed: int) -> None:
    features, labels, candidates = histogram(seed)
    counts = votes(features, labels, candidates)
    for missing in range(0, 60, 7):
        kept = torch.arange(60) != missing
        change = counts - votes(features[kept], labels[kept], candidates)
        assert change.abs().sum() == 1 and change.norm() == 1
        assert change.argmax() // 7 == labels[missing]


def test_replaced_record_changes_the_histogram_by_root_two() -> None:
    features, labels, candidates = histogram()
    other, moved = labels.clone(), []
    for row in range(20):
        other[row] = (labels[row] + 1) % 3
        moved.append(float((votes(features, labels, candidates) - votes(features, other, candidates)).norm()))
        other[row] = labels[row]
    assert moved == pytest.approx([math.sqrt(2)] * 20)


def test_votes_do_not_depend_on_order_or_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large whole features with many ties: products of float32 would depend on it."""
    features = torch.randint(-32767, 32768, (300, 1000), generator=rng()).float()
    candidates = features[:40] + torch.randint(-1, 2, (40, 1000), generator=rng(1))
    candidates = torch.cat([candidates, candidates.flip(0)])
    found, order = nearest(features, candidates), torch.randperm(300, generator=rng(2))
    assert int(found.max()) < 40, "of equals the first"
    assert torch.equal(nearest(features[order], candidates), found[order])
    monkeypatch.setattr(voting, "PART", 7)
    assert torch.equal(nearest(features, candidates), found)
    assert LARGEST**2 * 2**22 < 2**52


def test_records_of_other_classes_do_not_vote() -> None:
    features, _, candidates = histogram()
    assert votes(features, torch.full((60,), 3), candidates).sum() == 0


@pytest.mark.parametrize(("wrong", "fits"), [(1.0, True), (0.9, False), (1.1, False)])
def test_noise_has_the_deviation_of_the_ledger(wrong: float, fits: bool) -> None:
    """Rounding and the uniform fraction add 1/12 each to the variance."""
    features, labels, _ = histogram()
    candidates = whole(3, 2000, 5)
    noisy = noisy_votes(features, labels, candidates, 9.0, rng(3))
    difference = (noisy - votes(features, labels, candidates)).flatten()
    statistic = float(difference.square().sum()) / ((wrong * 9.0) ** 2 + 1 / 6)
    assert (0.001 < stats.chi2.sf(statistic, len(difference)) < 0.999) == fits


def test_every_round_draws_new_noise_of_sigma(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, sim_pe, "noisy_votes")
    made = synthesise(smoke(population=400), Budget(1.0))
    assert len(calls) == made.solved["steps"] == 4
    assert {call.arguments[3] for call in calls} == {made.solved["sigma"]}
    noise = [(call.result - votes(*call.arguments[:3])).flatten() for call in calls]
    assert (torch.corrcoef(torch.stack(noise)) - torch.eye(4)).abs().max() < 0.25
    ratio = float(torch.cat(noise).std()) / made.solved["sigma"]
    assert 0.9 < ratio < 1.1


def test_ledger_is_claim_for_all_accounts() -> None:
    made = synthesise(smoke(sigma=3.0))
    (entry,) = made.ledger.entries(Unit.EXAMPLE)
    assert (entry.event.noise_multiplier, entry.count, entry.unit) == (3.0, 4, Unit.EXAMPLE)
    assert made.claim.epsilon == Votes(4, 3.0).epsilon(1e-5) and not made.claim.disputed
    solved = [synthesise(smoke(), Budget(1.0, account=account)).solved["sigma"] for account in ("claimed", "accounted")]
    assert solved[0] == solved[1]


# Selection and the released set


def test_selection_by_hand() -> None:
    counts = torch.tensor([[5.0, 2.0, 3.0, -4.0], [1.0, 2.0, 0.5, 1.9]])
    expected = torch.tensor([[0.75, 0.0, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert torch.allclose(selection(counts, 2.0), expected)


def test_candidate_without_votes_is_never_drawn_without_noise() -> None:
    features, labels, candidates = histogram(count=9)
    counts = noisy_votes(features, labels, candidates, 0.0, rng())
    drawn = torch.bincount(draw_rows(selection(counts, 0.0), 5000, rng()), minlength=21).view(3, 7)
    assert (counts == 0).sum() >= 10
    assert torch.equal(drawn > 0, counts > 0) and drawn.sum(1).tolist() == [5000] * 3


def test_drawn_rows_have_the_shares() -> None:
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.1, 0.9]], dtype=torch.float64)
    rows = draw_rows(shares, 10_000, rng())
    found = torch.bincount(rows, minlength=6) / 10_000
    assert found.tolist() == pytest.approx(shares.flatten().tolist(), abs=0.02)
    assert rows[:10_000].max() < 3 <= rows[10_000:].min()


def test_classes_take_turns() -> None:
    assert by_turns(torch.arange(6), 3).tolist() == [0, 2, 4, 1, 3, 5]


def test_undecided_classes_are_counted_and_drawn_uniformly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold of 100 sigma no count remains: 4 rounds of all classes are uniform."""
    calls = record_calls(monkeypatch, sim_pe, "selection")
    made = synthesise(smoke(threshold=100.0), Budget(1.0))
    assert made.solved["undecided"] == 4 * CLASSES
    assert all((call.result == 1 / call.result.shape[1]).all() for call in calls)
    assert synthesise(smoke(), Budget(math.inf)).solved["undecided"] == 0


def test_student_is_trained_on_the_set_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,500 images are drawn in three parts: S_T, in order, with labels that do not depend on the private ones."""
    varied = record_calls(monkeypatch, DrawText, "vary")
    made = synthesise(smoke(samples=2501, variations=0))
    images, labels = sample(made.draw, 2501, rng())
    last = by_turns(varied[-1].result.images, CLASSES)
    assert torch.equal(images, last[:2501])
    assert labels.tolist() == [row % CLASSES for row in range(2501)]


def test_finite_set_starts_again_after_its_last_image() -> None:
    images = torch.arange(5.0).view(5, 1, 1, 1) / 10
    found, labels = sample(FiniteSet(images, torch.arange(5)), 12, rng())
    assert labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert torch.equal(found, images[labels])


def test_lookahead_is_the_mean_embedding_of_variations() -> None:
    class Shift:
        """A variation adds 0.1, then 0.5."""

        done = 0

        def random(self, count: int, rng: torch.Generator) -> Tensor:
            return torch.full((count, *SHAPE), 0.5)

        def vary(self, images: Tensor, degree: float, rng: torch.Generator) -> Tensor:
            self.done += 1
            return images + (0.1, 0.5)[(self.done - 1) % 2]

    population = Population(torch.full((4, *SHAPE), 0.5), torch.empty(4, 0))
    embed = make_embedding("pixels", 1, population.images)
    simulator = UserSimulator(Shift(), SHAPE)
    found, own = (smoke(variations=n)._embedded(simulator, population, 0.5, embed, rng()) for n in (2, 0))
    assert torch.equal(found, torch.full((4, 256), (153.0 + 255.0) / 2))
    assert torch.equal(own, embed(population.images))


def test_degrees_fall_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, DrawText, "vary")
    synthesise(smoke(variations=0, first_degree=0.9, last_degree=0.3))
    assert [call.arguments[2] for call in calls] == pytest.approx([0.9, 0.7, 0.5, 0.3])


@dataclass(frozen=True)
class Corners(SimPe):
    """Sim-PE with a user's simulator: a bright corner, which is the toy classes' content."""

    def user_source(self, shape: tuple[int, int, int], dataset: str) -> Any:
        return Corner(shape)


class Corner:
    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape

    def random(self, count: int, rng: torch.Generator) -> Tensor:
        which = torch.randint(0, 4, (count,), generator=rng)
        grid = torch.eye(4)[which].view(count, 1, 2, 2) * 0.7
        return torch.nn.functional.interpolate(grid, self.shape[1:]).expand(count, *self.shape).contiguous()

    def vary(self, images: Tensor, degree: float, rng: torch.Generator) -> Tensor:
        return (images + 0.1 * degree * torch.rand(images.shape, generator=rng)).clamp(0, 1)


@pytest.mark.parametrize(("epsilon", "least", "most"), [(math.inf, 0.97, 1.0), (10.0, 0.8, 1.0), (0.001, 0.0, 0.5)])
def test_votes_find_the_classes_of_a_users_simulator(epsilon: float, least: float, most: float) -> None:
    method = runs.smoke(Corners, population=80, threshold=2.0, samples=400)
    share = class_share(synthesise(method, Budget(epsilon), toy_private(n=400)), 400)
    assert least <= share <= most


# The audit's game


def test_game_tells_the_worlds_apart_by_one_vote() -> None:
    """A count of mean 1 or 0, both with noise of sigma; the other count has mean 0 in both."""
    game = smoke(sigma=2.0).game(FREE, "toy", CLASSES)
    with_record, without = (game.play(world, 20_000, rng(seed)) for seed, world in enumerate((True, False)))
    assert float(with_record[:, 0].mean()) == pytest.approx(1, abs=0.08)
    for values in (with_record[:, 1], without[:, 0], without[:, 1]):
        assert float(values.mean()) == pytest.approx(0, abs=0.08)
    assert float(without.std()) == pytest.approx(math.sqrt(4 + 1 / 6), rel=0.03)
    assert game.accounted == pytest.approx(Votes(1, 2.0).epsilon(1e-5))
