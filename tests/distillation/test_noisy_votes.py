"""Noisy votes: the noise's distribution and scale, how often labels flip, the ledger, calibration, accuracy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent
from scipy import stats
from torch import Tensor, nn

from bench.distillation.votes.noisy_votes import (
    AGREEMENTS,
    LARGEST,
    Aggregation,
    NoisyEnsemble,
    VotePlan,
    calibrate,
    noisy_votes,
    posterior,
    release_counts,
)
from bench.distillation.votes.vote_game import class_vote_game, released_counts
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.pipeline import run, stages
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.privacy.claims import dgd_composition
from bench.privacy.noise import Noise, Source

LAPLACE, GAUSSIAN = Aggregation("laplace", 5.0), Aggregation("gaussian", 5.0)
PLAN = VotePlan(LAPLACE, 100, 100, 50)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flip_chance(law: str, gap: float, scale: float) -> float:
    """P(a + noise < b + noise') for a - b = gap.

    Laplace: the difference d of two draws has density (1 + |d|/s) e^(-|d|/s) / (4 s), so P(d > g) = e^(-g/s) (2 + g/s)
    / 4. Gaussian: the difference is N(0, 2 s^2).
    """
    if law == "laplace":
        return math.exp(-gap / scale) * (2 + gap / scale) / 4
    return float(stats.norm.sf(gap / (scale * math.sqrt(2))))


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("gap", [0.0, 4.0, 12.0])
@pytest.mark.parametrize("leader", [0, 1])
def test_labels_flip_at_the_noises_rate(law: str, gap: float, leader: int) -> None:
    n, votes = 60_000, torch.zeros(60_000, 2)
    votes[:, leader] = gap
    counts = Aggregation(law, 5.0).counts(votes, rng(3))  # type: ignore[arg-type]
    flipped = int((counts.argmax(1) != leader).sum())
    assert stats.binomtest(flipped, n, flip_chance(law, gap, 5.0)).pvalue > 0.001
    if gap:
        for wrong in (5.0 / 1.15, 5.0 * 1.15):
            assert stats.binomtest(flipped, n, flip_chance(law, gap, wrong)).pvalue < 1e-6


@pytest.mark.parametrize(("law", "name"), [("laplace", "laplace"), ("gaussian", "norm")])
@pytest.mark.parametrize("factor", [1.0, 1.1, 1 / 1.1])
def test_counts_have_noise_of_the_law_and_scale(law: str, name: str, factor: float) -> None:
    votes = torch.arange(40_000.0).view(-1, 4) % 7
    noise = Aggregation(law, 5.0).counts(votes, rng(1)) - votes  # type: ignore[arg-type]
    p = stats.kstest(noise.flatten().numpy(), getattr(stats, name)(0, 5.0 * factor).cdf).pvalue
    assert p > 0.01 if factor == 1.0 else p < 1e-6
    correlation = torch.corrcoef(noise.T) - torch.eye(4)
    assert float(correlation.abs().max()) < 0.05, "every count has its own draw"


def test_counts_without_noise_are_the_votes() -> None:
    votes = torch.tensor([[3.0, 1.0], [0.0, 4.0]])
    assert torch.equal(Aggregation("laplace", 0.0).counts(votes, rng()), votes.double())


@pytest.mark.parametrize(("share", "expected"), [(10.0, 0.5), (16.0, 1 - stats.norm.sf(2)), (4.0, stats.norm.sf(2))])
def test_threshold_passes_at_the_noises_rate(share: float, expected: float) -> None:
    """Threshold 10, noise N(0, 3^2), largest count 10, 16 or 4: P = Phi((count - 10) / 3)."""
    votes = torch.tensor([[share, 0.0, 1.0]]).expand(40_000, -1)
    passed = int(Aggregation("gaussian", 5.0, 10.0, 3.0).confident(votes, rng(2)).sum())
    assert stats.binomtest(passed, 40_000, expected).pvalue > 0.001


def test_without_threshold_all_pass_and_nothing_is_drawn() -> None:
    generator = rng()
    before = generator.get_state()
    assert LAPLACE.confident(torch.zeros(3, 2), generator).all()
    assert torch.equal(generator.get_state(), before)


def test_count_equal_to_the_threshold_passes() -> None:
    """Confident GNMax releases a label if the noisy largest count is at least T."""
    votes = torch.tensor([[5.0, 0.0], [4.0, 1.0], [0.0, 6.0]])
    assert Aggregation("gaussian", 1.0, 5.0, 0.0).confident(votes, rng()).tolist() == [True, False, True]


def test_release_counts_takes_the_first_that_pass() -> None:
    votes = torch.tensor([[9.0, 0.0], [1.0, 1.0], [0.0, 9.0], [9.0, 0.0]])
    plan = VotePlan(Aggregation("gaussian", 0.0, 5.0, 0.0), 2, 4, 9)
    rows, counts = release_counts(plan, votes, rng())
    assert rows.tolist() == [0, 2] and torch.equal(counts, votes[[0, 2]].double())
    with pytest.raises(ValueError, match=r"\b4\b.*\b3\b"):
        release_counts(replace(plan, candidates=3), votes, rng())


def test_ledger_of_laplace_votes() -> None:
    """One record moves one vote: L1 sensitivity 2, purely 2/s a query; another image may move all 50."""
    (example,) = PLAN.ledger().entries(Unit.EXAMPLE)
    assert (example.event, example.count) == (LaplaceDpEvent(2.5), 100)
    (query,) = PLAN.ledger().entries(Unit.QUERY)
    assert (query.event, query.count) == (LaplaceDpEvent(5 / 100), 1)
    (image,) = replace(PLAN, per_image=7).ledger().entries(Unit.QUERY)
    assert (image.event, image.count) == (query.event, 7), "seven queries about one image are replaced together"
    one = account(replace(PLAN, queries=1).ledger(), Unit.EXAMPLE, 1e-5)
    assert one.epsilon == pytest.approx(2 / 5) and one.delta == 0


def test_ledger_charges_the_threshold_per_candidate() -> None:
    """L2 sensitivity sqrt(2) of the counts, 1 of the largest count: mu^2 = 100 * 2/25 + 300 * 1/400."""
    plan = VotePlan(Aggregation("gaussian", 5.0, 10.0, 20.0), 100, 300, 50)
    labels, compared = plan.ledger().entries(Unit.EXAMPLE)
    assert labels.event == GaussianDpEvent(5 / math.sqrt(2)) and labels.count == 100
    assert compared.event == GaussianDpEvent(20.0) and compared.count == 300
    mu = math.sqrt(100 * 2 / 25 + 300 / 400)
    found = account(plan.ledger(), Unit.EXAMPLE, 1e-5).epsilon
    delta = stats.norm.cdf(mu / 2 - found / mu) - math.exp(found) * stats.norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_ledger_per_query_moves_all_votes_of_an_image() -> None:
    """The largest of 50 votes moves by up to 50, in each of the three queries that depend on one image."""
    plan = VotePlan(Aggregation("gaussian", 5.0, 10.0, 20.0), 100, 300, 50, per_image=3)
    labels, compared = plan.ledger().entries(Unit.QUERY)
    assert (labels.event, labels.count) == (GaussianDpEvent(5 / (math.sqrt(2) * 50)), 3)
    assert (compared.why, compared.event, compared.count) == (LARGEST, GaussianDpEvent(20 / 50), 3)


def test_ledger_bounds_the_information() -> None:
    """50 votes are at most 50 long: (50 / 80)^2 / 2 nats; a count from 0 to 50 is within 25 of 25: log(17/16) / 2."""
    plan = VotePlan(Aggregation("gaussian", 80.0, 10.0, 100.0), 100, 300, 50)
    labels, compared = plan.ledger().entries(Unit.EXAMPLE)
    assert labels.carries == pytest.approx(100 * (50 / 80) ** 2 / 2)
    assert compared.carries == pytest.approx(300 * math.log1p((25 / 100) ** 2) / 2)
    certain = replace(plan, aggregation=replace(plan.aggregation, threshold_scale=0.1)).ledger().entries(Unit.EXAMPLE)
    assert certain[1].carries == pytest.approx(300 * math.log(2)), "yes or no"


def test_ledger_without_noise_is_not_private() -> None:
    for noise in (Aggregation("laplace", 0.0), Aggregation("gaussian", 0.0)):
        ledger = replace(PLAN, aggregation=noise).ledger()
        assert all(entry.event == NonPrivateDpEvent() for entry in ledger.entries())
    ledger = replace(PLAN, aggregation=Aggregation("gaussian", 5.0, 10.0, 0.0)).ledger()
    assert math.isinf(account(ledger, Unit.EXAMPLE, 1e-5).epsilon)


def formula(plan: VotePlan) -> float:
    return dgd_composition(plan.queries, 2 / plan.aggregation.scale, 1e-5)


def accounted(plan: VotePlan) -> float:
    return account(plan.ledger(), Unit.EXAMPLE, 1e-5).epsilon


@pytest.mark.parametrize("target", [1.0, 10.0])
@pytest.mark.parametrize("cost", [formula, accounted])
def test_calibrate_finds_the_least_noise(cost: object, target: float) -> None:
    assert callable(cost)
    plan = calibrate(replace(PLAN, queries=20), cost, Budget(target))
    assert cost(plan) <= target < cost(plan.with_scale(plan.aggregation.scale / 1.001))


def test_calibrate_finds_the_most_queries() -> None:
    plan = calibrate(replace(PLAN, candidates=150), formula, Budget(3.0, solve="steps"))
    assert formula(plan) <= 3.0 < formula(plan.with_queries(plan.queries + 1))
    assert plan.candidates == math.ceil(1.5 * plan.queries)


def test_with_scale_keeps_the_threshold_noise_ratio() -> None:
    noise = replace(PLAN, aggregation=Aggregation("gaussian", 5.0, 10.0, 20.0)).with_scale(8.0).aggregation
    assert (noise.scale, noise.threshold_scale) == (8.0, 32.0)


def test_calibrate_without_budget_and_with_infinite_budget() -> None:
    assert calibrate(PLAN, formula, Budget(None, solve="none")) == PLAN
    assert calibrate(PLAN, formula, Budget(math.inf)).aggregation.scale == 0


@pytest.mark.parametrize(
    ("budget", "option"),
    [
        (Budget(1.0, unit=Unit.CLIENT), "--unit client"),
        (Budget(1.0, solve="steps", account="accounted", unit=Unit.QUERY), "--solve sigma"),
        (Budget(0.01, solve="steps"), "--epsilon 0.01"),
    ],
)
def test_calibrate_refuses_impossible_budgets(budget: Budget, option: str) -> None:
    with pytest.raises(BenchError, match=option):
        calibrate(PLAN, formula, budget)


def test_posterior_by_hand() -> None:
    """Two classes, every agreement a on a grid, a votes for the plurality: the posterior written out."""
    counts, scale, n = torch.tensor([[7.0, 1.0]]).double(), 5.0, 10

    def likelihood(first: float, second: float) -> float:
        return math.exp(-(abs(7 - first) + abs(1 - second)) / scale)

    shares = (0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
    first = sum(likelihood(a * n, (1 - a) * n) for a in shares)
    second = sum(likelihood((1 - a) * n, a * n) for a in shares)
    found = posterior(counts, LAPLACE, n)
    assert float(found[0, 0]) == pytest.approx(first / (first + second), rel=1e-5)


@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN])
def test_posterior_is_calibrated_and_flat_under_much_noise(noise: Aggregation) -> None:
    """With 180 teachers every share leaves a whole number of votes for each of the nine other classes."""
    noise = replace(noise, scale=45.0)
    meant = torch.randint(0, 10, (6000,), generator=rng(7))
    share = torch.tensor(AGREEMENTS)[torch.arange(6000) % 6, None]
    exact = ((1 - share) * 20).repeat(1, 10).scatter(1, meant[:, None], share * 180)
    votes = exact.round()
    torch.testing.assert_close(votes, exact)
    near = posterior(noise.counts(votes, rng(5)), noise, 180)
    assert torch.allclose(near.sum(1), torch.ones(6000), atol=1e-5)
    sure, right = near.amax(1), (near.argmax(1) == meant).float()
    assert abs(float(sure.mean() - right.mean())) < 0.02
    far = replace(noise, scale=9e4)
    assert float(posterior(far.counts(votes, rng(6)), far, 180).amax()) < 0.11


def step(plan: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> Tensor:
    return released_counts(plan, *noisy_votes(plan, images, members, noise))


@pytest.mark.parametrize("hypothesis", [False, True])
def test_failed_queries_release_only_zeros(hypothesis: bool) -> None:
    game = class_vote_game(VotePlan(Aggregation("gaussian", 5.0, 6.0, 3.0), 1, 1, 9), 1.0, 1e-5, step)
    rows = game.play(hypothesis, 1000, rng())
    passed = rows[:, 3] == 1
    assert rows.shape == (1000, 4 + 2) and 200 < int(passed.sum()) < 800
    assert not rows[~passed, :4].any(), "neither counts nor a flag"
    assert rows[passed, :3].any(1).float().mean() > 0.9


@pytest.mark.thorough
def test_audit_refutes_only_half_of_the_epsilon() -> None:
    plan = VotePlan(Aggregation("laplace", 1.0), 1, 1, 9)
    sound = class_vote_game(plan, 2.0, 1e-5, step)
    assert sound.accounted == pytest.approx(2.0)
    assert audit(sound, 200_000).verdict == "not refuted"
    assert audit(replace(sound, claimed=1.0), 200_000).verdict == "refuted"


N = 20_000
IMAGES = torch.zeros(N, 1, 2, 2)


class Always(nn.Module):
    """A network that predicts one class for every image."""

    def __init__(self, predicted: int) -> None:
        super().__init__()
        self.body, self.predicted = nn.Identity(), predicted

    def forward(self, images: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.full((len(images),), self.predicted), 2).float()


def ensemble() -> Ensemble:
    """Return 25 members, of which 16 predict class 0."""
    return Ensemble([Always(int(j >= 16)) for j in range(25)], classes=2)  # type: ignore[misc]


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noisy_ensemble_has_the_noises_accuracy(law: str) -> None:
    noisy = NoisyEnsemble(ensemble(), Aggregation(law, 8.0), Noise(torch.device("cpu"), 0))  # type: ignore[arg-type]
    counts = noisy(IMAGES)
    wrong = (counts[:, 1] > counts[:, 0]).double().mean() + 0.5 * (counts[:, 1] == counts[:, 0]).double().mean()
    expected = flip_chance(law, 7.0, 8.0)
    # whole numbers: with ties counted as half, within a hundredth of the law of real ones
    assert abs(float(wrong) - expected) < 0.01 + 4 * (expected * (1 - expected) / N) ** 0.5
    assert not torch.equal(noisy(IMAGES), counts), "drawn again"


def test_noisy_ensemble_without_noise_returns_the_votes() -> None:
    counts = NoisyEnsemble(ensemble(), Aggregation("laplace", 0.0), Noise(torch.device("cpu"), 0))(IMAGES)
    assert torch.equal(counts, torch.tensor([16.0, 9.0]).expand(N, -1))


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "variant"), [("dgd", "printed"), ("dgd", "working"), ("pate", None)])
def test_record_has_the_accuracy_of_noisy_votes(tmp_path: Path, method: str, variant: str | None) -> None:
    def metrics(epsilon: float) -> dict[str, float | None]:
        settings = Settings(method, None, tier="smoke", variant=variant, out=tmp_path, budget=Budget(epsilon))
        return run.run(load_job(settings), 0).record.metrics

    plain = metrics(float("inf"))
    assert plain["votes_accuracy"] == plain["ensemble_accuracy"], "equal without noise"
    noisy = metrics(0.05)
    assert noisy["ensemble_accuracy"] == plain["ensemble_accuracy"] and noisy["votes_accuracy"] is not None
    assert abs(noisy["votes_accuracy"] - 0.1) < 0.09, "much noise: one of ten classes by chance"


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "variant"), [("dgd", "printed"), ("dgd", "working"), ("pate", None)])
def test_measuring_votes_does_not_change_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, variant: str | None
) -> None:
    def released(out: str) -> tuple[dict[str, float | None], dict[str, object], bytes]:
        settings = Settings(method, None, tier="smoke", variant=variant, out=tmp_path / out, budget=Budget(10.0))
        record = run.run(load_job(settings), 0).record
        (student,) = (tmp_path / out / "steps" / "release").glob("*/model.safetensors")
        return record.metrics, record.privacy, student.read_bytes()

    with_votes = released("with")
    monkeypatch.setattr(stages, "test_accuracy", lambda model, *given: measured(replaced(model), *given))
    without = released("without")
    assert with_votes[1:] == without[1:]
    different = {name for name, value in with_votes[0].items() if without[0][name] != value}
    assert {name.partition(".")[0] for name in different} == {"votes_accuracy"}


def replaced(model: nn.Module) -> nn.Module:
    """Return another network in place of the votes, so that no noise is drawn."""
    return Always(0) if isinstance(model, NoisyEnsemble) else model


measured = stages.test_accuracy
