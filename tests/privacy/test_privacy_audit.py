"""The mechanism audit accepts correct mechanisms and refutes planted faults."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from planted_noise import cyclic_order, half_precision_noise, resampled_within_2, three_signs
from scipy import stats
from torch import Tensor
from torch.nn.functional import one_hot

from bench.errors import BenchError
from bench.privacy._bounds import gaussian_epsilon
from bench.privacy.audit import DistinguishingGame, Play, audit, choose, clopper_pearson_bound, strongest_game
from bench.privacy.mechanisms import (
    gaussian_rows,
    keep_top_k,
    normalise_rows,
    randomised_response,
    randomised_response_as_printed,
)

C, K, BETA = 10, 3, 1e-3
MU = 0.2680511
"""Gaussian differential privacy of epsilon 1 at delta 1e-5."""
SIGMA = 2 / MU
EPSILON = 1.0
PLAYS, FEW_PLAYS = 100_000, 20_000
"""Few plays if nearly every one shows the fault: they prove an epsilon above 6 where 1 is guaranteed."""

STUDENT = torch.tensor([0.5, 0.5] + [0.0] * (C - 2))
TEACHERS = one_hot(torch.tensor([0, 1]), C).float()


def gradients(world: bool, n: int) -> Tensor:
    return (STUDENT - TEACHERS[int(world)]).expand(n, -1)


def gaussian_game(play: Play, releases: int = 1) -> DistinguishingGame:
    """Claims the guarantee of the correct mechanism for that many releases."""
    return DistinguishingGame(play, gaussian_epsilon(MU * math.sqrt(releases), 1e-5), math.inf, 1e-5, "planted")


def response_game(play: Play, epsilon: float = EPSILON) -> DistinguishingGame:
    return DistinguishingGame(play, epsilon, math.inf, 0.0, "planted")


def release(world: bool, n: int, g: torch.Generator) -> Tensor:
    """DPSD's data mode: top-k, normalise, noise on every coordinate."""
    return gaussian_rows(normalise_rows(keep_top_k(gradients(world, n), K, "magnitude"), BETA), SIGMA * BETA, g)


def two_releases(world: bool, n: int, g: torch.Generator) -> Tensor:
    return torch.cat([release(world, n, g), release(not world, n, g)], 1)


def noised(std: float) -> Play:
    return lambda world, n, g: gaussian_rows(normalise_rows(gradients(world, n), BETA), std, g)


def no_normalisation(world: bool, n: int, g: torch.Generator) -> Tensor:
    return gaussian_rows(gradients(world, n), SIGMA * BETA, g)


def bounded_by_the_largest_entry(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Infinity norm where the L2 norm is meant: sqrt(c) too far for a gradient that is equally large everywhere."""
    rows = torch.tensor([0.1, -0.1] * (C // 2)).expand(n, -1) * (1 if world else -1)
    return gaussian_rows(BETA * rows / rows.abs().amax(1, keepdim=True), SIGMA * BETA, g)


def reused_noise(world: bool, n: int, g: torch.Generator) -> Tensor:
    # Not by gaussian_rows: a release of 0 is on a grid, and a value added to it later would be off the grid.
    noise = SIGMA * BETA * torch.randn(n, C, generator=g, dtype=torch.float64)
    first, second = (normalise_rows(gradients(w, n), BETA) for w in (world, not world))
    return torch.cat([first + noise, second + noise], 1)


def smaller_in_one_direction(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Each coordinate by itself shows almost nothing: the noise's sum is smaller in world 1."""
    noise = torch.randn(n, 20, generator=g)
    return noise - 0.9 * world * noise.mean(1, keepdim=True)


def five_signs(world: bool, n: int, g: torch.Generator) -> Tensor:
    """The product of five noises' signs is the world."""
    noise = torch.randn(n, C, generator=g)
    noise[:, 0] = noise[:, :5].sign().prod(1) * noise[:, 0] * (1 if world else -1)
    return noise


def noise_where_the_teacher_points(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Equal means and covariances; the worlds differ in which coordinates are exactly 0 together."""
    first = [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]] if world else [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    return torch.randn(n, 4, generator=g) * torch.tensor(first)[torch.randint(2, (n,), generator=g)]


def several_categories(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Three bits, even parity in one world and odd in the other: no two coordinates tell."""
    bits = torch.randint(2, (n, 2), generator=g)
    return torch.cat([bits, (bits.sum(1, keepdim=True) + int(world)) % 2], 1).float()


GAUSSIAN_FAULTS: dict[str, tuple[Play, int, int]] = {
    "half the noise": (noised(SIGMA * BETA / 2), 1, PLAYS),
    "variance for the deviation": (noised((SIGMA * BETA) ** 2), 1, FEW_PLAYS),
    "a replaced row changes the sum by beta, not 2 beta": (noised(BETA / MU), 1, PLAYS),
    "no normalisation": (no_normalisation, 1, FEW_PLAYS),
    "bounded by the largest entry": (bounded_by_the_largest_entry, 1, PLAYS),
    "noise used twice": (reused_noise, 2, FEW_PLAYS),
    "noise where the teacher points": (noise_where_the_teacher_points, 1, FEW_PLAYS),
}
"""Faults of the bench's functions; test_privacy_planted.py has more."""


@pytest.mark.thorough
@pytest.mark.parametrize("fault", GAUSSIAN_FAULTS)
def test_audit_refutes_a_planted_gaussian_fault(fault: str) -> None:
    play, releases, plays = GAUSSIAN_FAULTS[fault]
    found = audit(gaussian_game(play, releases), plays)
    assert found.verdict == "refuted" and found.lower_bound > found.claimed


@pytest.mark.thorough
@pytest.mark.parametrize(("play", "releases"), [(release, 1), (two_releases, 2)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_audit_accepts_the_gaussian_mechanism(play: Play, releases: int, seed: int) -> None:
    found = audit(gaussian_game(play, releases), PLAYS, seed)
    assert found.verdict == "not refuted" and found.lower_bound > 0.3


def responding(respond: Callable[[Tensor, torch.Generator], Tensor], other: int) -> Play:
    """Worlds: the teacher's label is class 0, or class `other`."""

    def play(world: bool, n: int, g: torch.Generator) -> Tensor:
        responses = respond(torch.full((n,), other if world else 0), g)
        return responses if responses.ndim == 2 else one_hot(responses, C).float()

    return play


def response_of(epsilon: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    return lambda r, g: randomised_response(r, torch.arange(3).expand(len(r), -1), epsilon, g)


def kept_as_among_two(r: Tensor, g: torch.Generator, k: int = 3) -> Tensor:
    """Kept with e^eps / (e^eps + 1), which is right for two candidates only."""
    kept = torch.rand(len(r), generator=g) < 1 / (1 + math.exp(-EPSILON))
    return torch.where(kept, r, (r + torch.randint(1, k, (len(r),), generator=g)) % k)


def equation_5(r: Tensor, g: torch.Generator) -> Tensor:
    return randomised_response_as_printed(r, torch.arange(3).expand(len(r), -1), C, EPSILON, g)


def soft_responses(r: Tensor, g: torch.Generator) -> Tensor:
    """DP-DFD's: if the label is kept, the teacher's whole vector is released."""
    responses = response_of(EPSILON)(r, g)
    return torch.where((responses == r)[:, None], 0.9 * one_hot(r, C) + 0.01, one_hot(responses, C).float())


def scaled_if_changed(r: Tensor, g: torch.Generator) -> Tensor:
    """A vector that is scaled in place: the response's value reveals the branch."""
    responses = response_of(EPSILON)(r, g)
    return one_hot(responses, C) * torch.where(responses == r, 1.0, 0.999)[:, None]


RESPONSE_FAULTS = {
    "kept": responding(kept_as_among_two, 1),
    "eq5": responding(equation_5, 5),
    "soft": responding(soft_responses, 1),
    "soft-outside": responding(soft_responses, 5),
    "size": responding(scaled_if_changed, 1),
}


@pytest.mark.parametrize("fault", RESPONSE_FAULTS)
def test_audit_refutes_a_planted_response_fault(fault: str) -> None:
    assert audit(response_game(RESPONSE_FAULTS[fault]), PLAYS).verdict == "refuted"


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("other", [1, 5])
def test_audit_accepts_randomised_response(epsilon: float, other: int) -> None:
    found = audit(response_game(responding(response_of(epsilon), other), epsilon), PLAYS)
    assert found.verdict == "not refuted"
    assert found.lower_bound > (0.9 if other == 1 else 0.3) * epsilon
    among_two = responding(lambda r, g: kept_as_among_two(r, g, k=2), 1)
    assert epsilon != EPSILON or audit(response_game(among_two), PLAYS).verdict == "not refuted"


@pytest.mark.thorough
def test_audit_finds_reused_noise_of_correct_releases() -> None:
    def one_of_them(world: bool, n: int, g: torch.Generator) -> Tensor:
        return reused_noise(world, n, g)[:, :C]

    assert audit(gaussian_game(one_of_them), 20_000).verdict == "not refuted"
    found = audit(gaussian_game(reused_noise, 2), 20_000)
    assert found.scorer != "mean difference" and found.lower_bound > 0.9 * found.ceiling


def test_audit_verdict_names_a_refuted_accountant_first() -> None:
    found = audit(DistinguishingGame(no_normalisation, 2.0, 1.0, 1e-5, ""), 10_000)
    assert found.verdict == "accountant refuted"


def test_audit_of_an_infinite_claim_is_not_refuted() -> None:
    found = audit(DistinguishingGame(no_normalisation, math.inf, math.inf, 1e-5, ""), 10_000)
    # The threshold was chosen on other plays, beyond the outermost of which a few of these may lie.
    assert found.verdict == "not refuted" and found.lower_bound == pytest.approx(found.ceiling, rel=1e-3)


@pytest.mark.thorough
def test_audit_of_equal_worlds_is_about_zero() -> None:
    def play(world: bool, n: int, g: torch.Generator) -> Tensor:
        return torch.randn(n, 5, generator=g)

    bounds = [audit(DistinguishingGame(play, 0.0, 0.0, 0.0, ""), 2_000, seed).lower_bound for seed in range(60)]
    assert sum(bound > 0 for bound in bounds) <= 7, "binomial(60, 0.05): more than 7 in 2 of 100 cases"


def test_bound_is_the_log_ratio_of_clopper_pearson_bounds() -> None:
    got = clopper_pearson_bound(np.array([300]), np.array([100]), 1000, 0.01, 0.95)[0]
    low = stats.binomtest(300, 1000, alternative="greater").proportion_ci(0.975).low
    high = stats.binomtest(100, 1000, alternative="less").proportion_ci(0.975).high
    assert got == pytest.approx(math.log((low - 0.01) / high))


def test_audit_subtracts_delta() -> None:
    """Answers that give themselves away with probability delta only are (0, delta)-private."""

    def play(world: bool, n: int, g: torch.Generator) -> Tensor:
        return (world & (torch.rand(n, 1, generator=g) < 0.01)).float()

    assert audit(DistinguishingGame(play, 0.0, 0.0, 0.01, ""), PLAYS).verdict == "not refuted"
    assert audit(DistinguishingGame(play, 0.0, math.inf, 0.001, ""), PLAYS).verdict == "refuted"


def test_audit_selects_and_tests_on_separate_plays() -> None:
    states: list[bytes] = []

    def play(world: bool, n: int, g: torch.Generator) -> Tensor:
        states.append(g.get_state().numpy().tobytes())
        return torch.randn(n, 2, generator=g)

    audit(DistinguishingGame(play, 0.0, 0.0, 0.0, ""), 4_000)
    assert len(set(states)) == len(states) >= 6


@pytest.mark.thorough
def test_strongest_game_is_the_most_distinguishable() -> None:
    games = [gaussian_game(play) for play in (release, no_normalisation, noised(SIGMA * BETA / 2))]
    assert strongest_game(games, 20_000) is games[1]


BEST = [
    (gaussian_game(smaller_in_one_direction), "quadratic discriminant"),
    (gaussian_game(reused_noise), "linear discriminant"),
    (gaussian_game(noise_where_the_teacher_points), "support"),
    (response_game(several_categories), "category"),
    (gaussian_game(three_signs), "cubic discriminant"),
    (gaussian_game(five_signs), "signs, product of x0 x1 x2 x3 x4"),
    (gaussian_game(cyclic_order), "order, of x3 x5 x8"),
    (gaussian_game(resampled_within_2), "outside world.*"),
    (gaussian_game(half_precision_noise), "x0 mod.*"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("game", "scorer"), BEST, ids=[scorer for _, scorer in BEST])
def test_choose_selects_the_best_score(game: DistinguishingGame, scorer: str) -> None:
    assert re.fullmatch(scorer, choose(game, 20_000, 0)[0].scorer)


@pytest.mark.parametrize("given", [{"plays": 10}, {"confidence": 0.0}, {"confidence": 1.0}])
def test_audit_refuses_arguments_out_of_range(given: dict[str, float]) -> None:
    with pytest.raises(BenchError):
        audit(gaussian_game(release), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [torch.full((5000, 2), math.nan), torch.zeros(5000), torch.zeros(7, 2)])
def test_audit_refuses_outputs_that_are_not_rows(bad: Tensor) -> None:
    with pytest.raises(BenchError):
        audit(DistinguishingGame(lambda world, n, g: bad[:n], 1.0, 1.0, 0.0, ""), 2_000)


def measured(plays: int, seeds: int) -> np.ndarray:
    assert gaussian_epsilon(MU, 1e-5) == pytest.approx(1.0, abs=1e-4)
    return np.array([audit(gaussian_game(release), plays, seed).lower_bound for seed in range(seeds)])


@pytest.mark.slow
def test_audit_bound_of_epsilon_1_over_five_seeds() -> None:
    bounds = measured(100_000, 5)
    assert (bounds <= 1).all() and (bounds >= 0.35).sum() >= 4


@pytest.mark.slow
def test_audit_bound_of_epsilon_1_over_100_seeds() -> None:
    bounds = measured(1_000_000, 100)
    assert (bounds <= 1).sum() >= 95
    assert (bounds >= 0.55).sum() >= 90
