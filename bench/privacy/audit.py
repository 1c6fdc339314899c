"""Audit of a mechanism: play the distinguishing game, and convert its outcome into a lower bound on epsilon.

The two worlds of a game, 0 and 1, are two neighbouring inputs of a mechanism. A play is one run of the mechanism in one
of them; the adversary sees its output. P0 and P1 are the distributions of outputs.

(epsilon, delta)-differential privacy requires P1(R) <= e^epsilon P0(R) + delta for every set R of outputs, and the same
with the worlds exchanged. Half of the plays selects a score, a threshold and the order of the worlds; the other,
independent half tests this one R: epsilon >= log((P1(R) - delta) / P0(R)), with exact one-sided binomial bounds
(Clopper and Pearson, 1934) on both probabilities that hold together at the requested confidence. The bound is valid for
any selection from any number of candidates; a bad selection only makes it weak. An audit proves no mechanism correct:
its best verdict is "not refuted". At 95 % a correct mechanism is refuted in up to 5 of 100 audits; repeat with another
seed to check. docs/audits.md describes the scores and the faults that they find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.core.verdict import is_refuted
from bench.errors import BenchError
from bench.privacy._scorers import Scorer, fit
from bench.privacy.reconstruction import ReconstructionGame
from bench.seeds import derive

Play = Callable[[bool, int, torch.Generator], Tensor]
"""Function (world, n, generator) -> (n, d) outputs of n plays, see `DistinguishingGame.play`."""

CHUNK = 50_000
"""Most plays per call of a game's `play`."""
FITTED_NUMBERS = 10_000_000
"""Most numbers (plays times length of an output) to which scores are fitted, per world."""
LEAST_PLAYS = 1000
"""Smallest number of plays per world of an audit."""
CAUTION = 2.0
"""Standard deviations by which a candidate's counts are corrected downwards, to compensate the selection of the
best."""
CURVE_DELTAS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 0.9)
"""Deltas at which a privacy curve is tested besides the game's own; there a few thousand plays detect a wrong scale."""
SUGGESTED_PLAYS = 1_000_000
"""Default number of plays per world of a game."""


@dataclass(frozen=True)
class DistinguishingGame:
    """Two worlds between which a mechanism must not let an adversary distinguish.

    Attributes:
        play: function (world, n, generator) -> (n, d) floats: n independent plays in that world. A row is everything
            that an adversary sees of one output (or of several, if a play has several). All randomness is from the
            generator.
        claimed: the epsilon of a play at `delta` according to the method's paper; may be infinite.
        accounted: the epsilon of a play at `delta` by the accountant; may be infinite.
        delta: in [0, 1).
        describe: description of the game for readers of the result.
        curve: function from delta in (0, 1) to the accounted epsilon of one play (`accounted_curve`). With it the audit
            also tests the mechanism at larger deltas, where few plays suffice; None tests at `delta` only.
        plays: default number of plays in each world.
        reconstruction: builds the game of an informed adversary (`bench.privacy.reconstruction`) for a number of
            releases, such as steps of training; None as its argument = as many as the method makes. None if the method
            has no such game.
    """

    play: Play
    claimed: float
    accounted: float
    delta: float
    describe: str
    curve: Callable[[float], float] | None = None
    plays: int = SUGGESTED_PLAYS
    reconstruction: Callable[[int | None], ReconstructionGame] | None = None


@dataclass(frozen=True)
class CurvePoint:
    """Result of the test at one larger delta of the accountant's privacy curve.

    Attributes:
        delta: selected on the first half of the plays from `CURVE_DELTAS`.
        lower_bound: >= 0; the mechanism's epsilon at `delta` is at least this, at the audit's confidence.
        accounted: the curve's epsilon at `delta`.
        scorer: the score selected on the first half.
    """

    delta: float
    lower_bound: float
    accounted: float
    scorer: str


@dataclass(frozen=True)
class MechanismAudit:
    """Result of `audit`.

    Attributes:
        lower_bound: >= 0; the mechanism's true epsilon at `delta` is at least this, at the requested confidence.
        claimed, accounted, delta: those of the game.
        plays: number per world, both halves together.
        verdict: "refuted" (the bound exceeds the claim), "accountant refuted" (it exceeds the accounted epsilon: a
            defect of the accountant or of the ledger), or "not refuted".
        scorer: the score selected on the first half.
        ceiling: the detection limit: the bound of a perfect distinguisher with the same number of plays.
        curve_point: the test of the privacy curve; None for a game without a curve.
    """

    lower_bound: float
    claimed: float
    accounted: float
    delta: float
    plays: int
    verdict: str
    scorer: str
    ceiling: float
    curve_point: CurvePoint | None = None


@dataclass(frozen=True)
class Choice:
    """A candidate set R of outputs, with scores at or above `threshold` (or below it), and the world that favours R.

    `bound` is the expected result of the test; it is an estimate, not a valid bound.
    """

    scorer: str
    threshold: float
    above: bool
    world: bool
    bound: float

    def hits(self, scores: Tensor) -> int:
        """Return the number of scores in R."""
        inside = scores >= self.threshold if self.above else scores < self.threshold
        return int(inside.sum())


def audit(
    game: DistinguishingGame, plays: int | None = None, seed: int = 0, confidence: float = 0.95
) -> MechanismAudit:
    """Play `game` and return a lower bound on its epsilon.

    Args:
        plays: number per world; a quarter fits the scores, a quarter selects, half tests. None = the game's default.
        seed: of all randomness.
        confidence: in (0, 1); all bounds hold together with at least this probability, for any mechanism.

    Raises:
        BenchError: fewer than 1000 plays, a confidence outside (0, 1), or answers that are not finite numbers.
    """
    plays = game.plays if plays is None else plays
    if plays < LEAST_PLAYS:
        raise BenchError(f"--plays {plays}: expected at least {LEAST_PLAYS}")
    if not 0 < confidence < 1:
        raise BenchError(f"confidence is {confidence}; expected a number between 0 and 1, such as 0.95")
    scored = _score(game, plays // 2, derive(seed, "choose"))
    choices = [scored.best(game.delta)]
    delta = None if game.curve is None else scored.best_delta(game.curve)
    if delta is not None:
        choices.append(scored.best(delta))
    n = plays - plays // 2
    generator = torch.Generator().manual_seed(derive(seed, "test"))
    counts = np.zeros((2, len(choices)), dtype=int)
    for world in (False, True):
        for outputs in _played(game, world, n, generator):
            counts[int(world)] += [choice.hits(scored.scorers[choice.scorer](outputs)) for choice in choices]
    each = 1 - (1 - confidence) / len(choices)  # Bonferroni: the bounds use the same plays and hold together

    def tested(at: int, delta: float) -> float:
        world = choices[at].world
        likely, unlikely = counts[int(world), at : at + 1], counts[int(not world), at : at + 1]
        return max(0.0, float(clopper_pearson_bound(likely, unlikely, n, delta, each)[0]))

    point = None
    if game.curve is not None and delta is not None:
        point = CurvePoint(delta, tested(1, delta), game.curve(delta), choices[1].scorer)
    bound = tested(0, game.delta)
    return MechanismAudit(
        lower_bound=bound,
        claimed=game.claimed,
        accounted=game.accounted,
        delta=game.delta,
        plays=plays,
        verdict=verdict(bound, game, point),
        scorer=choices[0].scorer,
        ceiling=float(clopper_pearson_bound(np.array([n]), np.array([0]), n, game.delta, each)[0]),
        curve_point=point,
    )


def strongest_game(games: Sequence[DistinguishingGame], plays: int = 100_000) -> DistinguishingGame:
    """Return the game, of several for different pairs of worlds, whose worlds are easiest to distinguish.

    The plays of this selection are independent of those of a later `audit`, which therefore stays valid. Of equally
    strong games the first is returned.
    """
    seeds = [derive(0, "worst", index) for index in range(len(games))]
    bounds = [choose(game, plays, each)[0].bound for game, each in zip(games, seeds, strict=True)]
    return games[int(np.argmax(bounds))]


def choose(game: DistinguishingGame, plays: int, seed: int) -> tuple[Choice, Scorer]:
    """Return the set R with the best expected bound in a test with the same number of new plays, and its score."""
    scored = _score(game, plays, seed)
    best = scored.best(game.delta)
    return best, scored.scorers[best.scorer]


@dataclass(frozen=True)
class ScoredPlays:
    """Scores fitted on one sample, and their values on another sample of world 0 and of world 1."""

    scorers: dict[str, Scorer]
    scores: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]

    def best(self, delta: float) -> Choice:
        """Return the set of outputs with the best expected bound at `delta`."""
        zero, one = self.scores
        choices = [_best_threshold(name, zero[name], one[name], delta) for name in self.scorers]
        return max(choices, key=lambda choice: choice.bound)

    def best_delta(self, curve: Callable[[float], float]) -> float | None:
        """Return the delta at which the expected bound exceeds the curve most; None if the curve is nowhere finite."""
        excess = {delta: self.best(delta).bound - curve(delta) for delta in CURVE_DELTAS if math.isfinite(curve(delta))}
        return max(excess, key=excess.__getitem__) if excess else None


def _score(game: DistinguishingGame, plays: int, seed: int) -> ScoredPlays:
    """Fit the scores on half of the plays, and score the other half."""
    generator = torch.Generator().manual_seed(seed)
    n = plays // 2
    sample0, sample1 = (_sample(game, world, n, generator) for world in (False, True))
    scorers = fit(sample0, sample1, game.delta)
    scores: list[dict[str, np.ndarray]] = []
    for world in (False, True):
        parts = [{name: f(x).numpy() for name, f in scorers.items()} for x in _played(game, world, n, generator)]
        scores.append({name: np.concatenate([part[name] for part in parts]) for name in scorers})
    return ScoredPlays(scorers, (scores[0], scores[1]))


def _sample(game: DistinguishingGame, world: bool, n: int, generator: torch.Generator) -> Tensor:
    """Return up to n plays, fewer if outputs are long, so that they fit into memory."""
    first = next(_played(game, world, min(n, CHUNK), generator))
    rest = min(n, max(2000, FITTED_NUMBERS // first.shape[1])) - len(first)
    return torch.cat([first, *_played(game, world, rest, generator)])


def _played(game: DistinguishingGame, world: bool, n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield n plays in chunks, as float64 on the CPU."""
    while n > 0:
        rows = min(n, CHUNK)
        outputs = game.play(world, rows, generator)
        if outputs.ndim != 2 or len(outputs) != rows:
            raise BenchError(f"a game of {rows} plays returned {tuple(outputs.shape)}; expected ({rows}, d)")
        if not outputs.isfinite().all():
            raise BenchError("a game returned NaN or infinity; expected finite numbers")
        yield outputs.detach().cpu().double()
        n -= rows


def _best_threshold(name: str, score0: np.ndarray, score1: np.ndarray, delta: float) -> Choice:
    """Return the best of about 130 thresholds, with both sides of each, and both orders of the worlds."""
    score0, score1 = np.sort(score0), np.sort(score1)
    n, pooled = len(score0), np.sort(np.concatenate([score0, score1]))
    thresholds = np.unique(pooled)
    if len(thresholds) > 256:  # use quantiles that are dense at both ends
        last, tail = len(pooled) - 1, np.geomspace(5, len(pooled) / 2, 64).astype(int)
        thresholds = np.unique(pooled[np.concatenate([tail, last - tail, [0, last]])])
    below = np.searchsorted(score0, thresholds), np.searchsorted(score1, thresholds)
    best = Choice(name, float(thresholds[0]), True, True, -math.inf)
    for above in (True, False):
        hits = [n - count if above else count for count in below]
        for world in (True, False):
            bounds = expected_bounds(hits[world], hits[not world], n, delta)
            at = int(np.argmax(bounds))
            if bounds[at] > best.bound:
                best = Choice(name, float(thresholds[at]), above, world, float(bounds[at]))
    return best


def expected_bounds(likely: np.ndarray, unlikely: np.ndarray, n: int, delta: float) -> np.ndarray:
    """Return the bound to expect from a test with twice as many plays, after a cautious correction of the counts.

    Args:
        likely, unlikely: (k,) numbers of the n plays whose output is in R, as in `clopper_pearson_bound`.
    """
    fewer = 2 * np.maximum(likely - CAUTION * np.sqrt(likely), 0)
    more = 2 * np.minimum(unlikely + CAUTION * np.sqrt(unlikely + 0.25), n)
    return clopper_pearson_bound(fewer, more, 2 * n, delta, 0.95)


def clopper_pearson_bound(
    likely: np.ndarray, unlikely: np.ndarray, n: int, delta: float, confidence: float
) -> np.ndarray:
    """Return log((P - delta) / Q) with a lower bound on P and an upper bound on Q; -inf where P <= delta.

    Args:
        likely: (k,) numbers of the n plays in the more probable world whose output is in R; P is this probability.
        unlikely: (k,) numbers of the n plays in the other world; Q is this probability.
        confidence: each of the two bounds has half of the error 1 - confidence.
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = np.where(likely > 0, betaincinv(np.maximum(likely, 1), n - likely + 1, tail), 0.0)
    high = np.where(unlikely < n, betaincinv(unlikely + 1, np.maximum(n - unlikely, 1), 1 - tail), 1.0)
    return np.log(np.maximum(low - delta, 0.0), out=np.full(low.shape, -np.inf), where=low > delta) - np.log(high)


def verdict(bound: float, game: DistinguishingGame, point: CurvePoint | None) -> str:
    """Return the verdict of an audit with this lower bound and curve test; see `MechanismAudit`."""
    if is_refuted(game.accounted, bound) or (point is not None and point.lower_bound > point.accounted):
        return "accountant refuted"
    return "refuted" if is_refuted(game.claimed, bound) else "not refuted"
