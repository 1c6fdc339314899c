"""Informed reconstruction: which of K candidate records was in the data, guessed from a mechanism's own release.

Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries", S&P 2022 (arXiv 2201.04845). The
adversary knows all records but one, and that this one is one of K equally likely candidates. A release R is (0, gamma)-
ReRo (robust against reconstruction) if no adversary names the record with a probability above gamma. Without R the
probability is kappa = 1 / K. Bounds on gamma:

- epsilon-differential privacy: kappa e^epsilon.
- Tight, from the trade-off function f (Hayes, Mahloujifar, Balle, NeurIPS 2023, arXiv 2302.07225; Kaissis et al. 2023,
  arXiv 2307.03928): 1 - f(kappa). For a Gaussian of sensitivity / deviation mu it is Phi(Phi^-1(kappa) + mu). For any
  privacy curve it is the smallest of kappa e^epsilon(delta) + delta and 1 - e^-epsilon(delta) (1 - delta - kappa).
- T steps of DP-SGD: with x from N(0, s^2)^T and the likelihood ratio r(x) = prod_t (1 - q + q e^((2 x_t - 1) / 2 s^2)),
  E[r(x); r(x) among the largest share kappa], by Monte Carlo.

The audit plays the game on the mechanism's own code. A success above the bound refutes the accounted epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bench.core.verdict import Success, exceeds
from bench.errors import BenchError
from bench.seeds import derive

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAWS, DRAWN_AT_ONCE = 200_000, 20_000
"""Number of Monte Carlo draws of a bound, and most of them in memory at once."""
SEARCHED = (-9.0, -0.001)
"""Range of log10(delta) in which the tight bound of a privacy curve is searched."""
GOLDEN, SECTIONS = (math.sqrt(5) - 1) / 2, 14
"""Ratio, and number of steps, of the golden-section search."""
LARGEST_EXPONENT = 700.0
"""Epsilon from which on e^epsilon is counted as infinite."""
TAIL = 0.025
"""Error probability of each end of an interval."""
REACH, POINTS = 12.0, 20_001
"""Half width of an integral over a normal density, in deviations, and its number of points."""

PlayCandidates = Callable[[Tensor, int, torch.Generator], Tensor]
"""Function (truths, candidates, generator) -> (n, candidates) scores: in play i candidate truths[i] is in the data."""


@dataclass(frozen=True)
class SampledGaussian:
    """T steps of a Poisson-sampled Gaussian: sampling rate q, noise multiplier s, number of steps T."""

    sampling: float
    multiplier: float
    steps: int


@dataclass(frozen=True)
class ReconstructionGame:
    """A release of a mechanism on known records and one of several candidates.

    Attributes:
        play: independent plays. A score is the log-likelihood ratio of the release with this candidate, or increases
            with it. All randomness is from the generator.
        most: largest number of candidates.
        curve: function from delta in (0, 1) to the accounted epsilon of the whole release; may be infinite.
        pure: the accounted epsilon at delta 0; may be infinite.
        describe: description for readers of the result.
        gaussian: parameters of the release if it is a sampled Gaussian with equal steps, for the bound of DP-SGD.
    """

    play: PlayCandidates
    most: int
    curve: Callable[[float], float]
    pure: float
    describe: str
    gaussian: SampledGaussian | None = None


@dataclass(frozen=True)
class ReconstructionAudit:
    """Result of `audit_reconstruction`; all probabilities are of naming the right candidate.

    Attributes:
        candidates, trials, correct: numbers of candidates, of plays, and of right guesses.
        low, high: 95 % Clopper-Pearson interval of the success.
        bound_pure, bound: bounds of the accounted epsilon at delta 0, and of the accounted privacy curve.
        bound_gaussian: bound of the sampled Gaussian by Monte Carlo; None for other mechanisms.
        verdict: "refuted" if `low` exceeds `bound`, else "not refuted".
    """

    candidates: int
    trials: int
    correct: int
    low: float
    high: float
    bound_pure: float
    bound: float
    bound_gaussian: float | None
    verdict: Literal["refuted", "not refuted"]

    @property
    def success(self) -> float:
        """Return the share of right guesses."""
        return self.correct / self.trials

    @property
    def chance(self) -> float:
        """Return kappa, the success without the release."""
        return 1 / self.candidates


def audit_reconstruction(game: ReconstructionGame, candidates: int, trials: int, seed: int = 0) -> ReconstructionAudit:
    """Play the game, guess the candidate with the largest score, and compare with the bounds.

    Args:
        candidates: K, from 2 to `game.most`, equally likely.
        trials: number of independent plays, at least 1.
        seed: of all randomness.

    Raises:
        BenchError: a number out of its range, or scores of a wrong form.
    """
    if not 2 <= candidates <= game.most:
        raise BenchError(f"--candidates {candidates}: expected 2 to {game.most}")
    if trials < 1:
        raise BenchError(f"--trials {trials}: expected at least 1")
    generator = torch.Generator().manual_seed(derive(seed, "reconstruction"))
    truths = torch.randint(candidates, (trials,), generator=generator)
    scores = game.play(truths, candidates, generator)
    if scores.shape != (trials, candidates) or not bool(scores.isfinite().all()):
        raise BenchError(f"a game returned scores of {tuple(scores.shape)}, or not finite; expected finite numbers")
    correct = int((scores.argmax(1) == truths).sum())
    low, high = clopper_pearson(correct, trials)
    kappa = 1 / candidates
    bound, gaussian = curve_bound(kappa, game.curve), game.gaussian
    is_noisy = gaussian is not None and gaussian.multiplier > 0
    return ReconstructionAudit(
        candidates=candidates,
        trials=trials,
        correct=correct,
        low=low,
        high=high,
        bound_pure=pure_bound(kappa, game.pure),
        bound=bound,
        bound_gaussian=sampled_gaussian_bound(kappa, gaussian) if gaussian is not None and is_noisy else None,
        verdict="refuted" if exceeds(Success(low, high), bound) else "not refuted",
    )


def clopper_pearson(successes: int, trials: int) -> tuple[float, float]:
    """Return the ends of the 95 % Clopper-Pearson interval of a probability."""
    from scipy.special import betaincinv  # here, as a cached run needs no scipy

    low = float(betaincinv(successes, trials - successes + 1, TAIL)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - TAIL)) if successes < trials else 1.0
    return low, high


def pure_bound(kappa: float, epsilon: float) -> float:
    """Return the bound of epsilon-differential privacy, min(1, kappa e^epsilon)."""
    return 1.0 if math.log(kappa) + epsilon >= 0 else kappa * math.exp(epsilon)


def zcdp_bound(kappa: float, rho: float) -> float:
    """Return the bound of rho-zCDP, exp(-(sqrt(log 1/kappa) - sqrt(rho))^2), and 1 for rho >= log 1/kappa."""
    gap = math.sqrt(-math.log(kappa)) - math.sqrt(rho)
    return math.exp(-gap * gap) if gap > 0 else 1.0


def gaussian_bound(kappa: float, mu: float) -> float:
    """Return the tight bound of a Gaussian mechanism of sensitivity / deviation mu, Phi(Phi^-1(kappa) + mu).

    >>> round(gaussian_bound(0.1, 1.0), 4)
    0.3891
    """
    from scipy.special import ndtr, ndtri

    return float(ndtr(ndtri(kappa) + mu))


def curve_bound(kappa: float, curve: Callable[[float], float]) -> float:
    """Return the tight bound of a privacy curve, at most 1.

    Each (epsilon, delta) of the curve bounds f from below by 1 - delta - e^epsilon kappa and by e^-epsilon (1 - delta -
    kappa). The smallest 1 - f(kappa) of each line is found by a search over delta: both are convex, since delta is a
    convex function of e^epsilon.

    Args:
        curve: function from delta in (0, 1) to epsilon; may be infinite.
    """

    def steep(delta: float, epsilon: float) -> float:
        return kappa * math.exp(epsilon) + delta if epsilon < LARGEST_EXPONENT else math.inf

    def shallow(delta: float, epsilon: float) -> float:
        return 1 - math.exp(-epsilon) * (1 - delta - kappa) if delta < 1 - kappa else math.inf

    return min(1.0, *(_smallest(line, curve) for line in (steep, shallow)))


def _smallest(line: Callable[[float, float], float], curve: Callable[[float], float]) -> float:
    """Return the smallest line(delta, epsilon(delta)), by golden-section search over log10(delta)."""

    def at(exponent: float) -> float:
        return line(10**exponent, curve(10**exponent))

    low, high = SEARCHED
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = at(left), at(right)
    for _ in range(SECTIONS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = at(left)
        else:  # where epsilon is infinite, it is finite at a larger delta, if anywhere
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = at(right)
    return min(at_left, at_right)


def sampled_gaussian_bound(kappa: float, mechanism: SampledGaussian, draws: int = DRAWS, seed: int = 0) -> float:
    """Return the bound of T steps of DP-SGD by Monte Carlo.

    The ratio is the density with the record over that without it. Of N draws without the record, the sum of the ratios
    of the largest kappa N estimates the probability of the best test with false positive rate kappa.

    Args:
        mechanism: its multiplier is above 0.
        draws: N.
    """
    generator = torch.Generator().manual_seed(derive(seed, "sampled-gaussian-bound"))
    ratios = torch.cat([*_log_ratios(mechanism, draws, generator)]).sort(descending=True).values.exp()
    whole = int(kappa * draws)
    rest = kappa * draws - whole
    total = float(ratios[:whole].sum()) + (rest * float(ratios[whole]) if whole < draws else 0.0)
    return min(1.0, total / draws)


def _log_ratios(mechanism: SampledGaussian, draws: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield log r(x) of `draws` releases without the record, float64."""
    q, s = mechanism.sampling, mechanism.multiplier
    for start in range(0, draws, DRAWN_AT_ONCE):
        total = torch.zeros(min(DRAWN_AT_ONCE, draws - start), dtype=torch.float64)
        for _ in range(mechanism.steps):
            x = s * torch.randn(total.shape, generator=generator, dtype=torch.float64)
            total += sampled_log_ratio((2 * x - 1) / (2 * s * s), q)
        yield total


def sampled_log_ratio(log_ratio: Tensor, q: float) -> Tensor:
    """Return log(1 - q + q e^l): the log-likelihood ratio of a record that is sampled with probability q."""
    if q == 1:
        return log_ratio
    return torch.logaddexp(log_ratio + math.log(q), log_ratio.new_tensor(math.log1p(-q)))


def orthogonal_success(candidates: int, mu: float) -> float:
    """Return the success of the best guess among K orthogonal candidates: the integral of phi(t - mu) Phi(t)^(K - 1).

    Each candidate shifts another coordinate of a Gaussian release by mu deviations.

    >>> round(orthogonal_success(10, 1.0), 4)
    0.3409
    """
    from scipy.special import log_ndtr

    t = torch.linspace(mu - REACH, mu + REACH, POINTS, dtype=torch.float64)
    density = torch.exp(-(t - mu).square() / 2) / math.sqrt(2 * math.pi)
    others = torch.exp((candidates - 1) * torch.from_numpy(log_ndtr(t.numpy())))
    return float(torch.trapezoid(density * others, t))
