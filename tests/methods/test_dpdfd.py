"""DPDFD with one teacher, both variants: lines of Algorithm 1 by hand, reading of responses, and the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from loops import planned
from methods_made import Fixed, FixedMembers, Spy, log, of_method, towards
from scipy import stats
from torch import Tensor

from bench import registry
from bench.config import configure
from bench.distillation.losses import dkd_loss, gradient_at_output, kd_loss
from bench.distillation.noisy_labels import FEWEST, AnnotationParameters
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.privacy.mechanisms import gaussian_rows, gaussian_shared_mean
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpdfd.working import WorkingDpdfd

P_T, P_S = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]
THREE = AnnotationParameters(k=3, beta=0.5, sigma=0.0, answer_epsilon=1.0, iterations=1)
OWN = Budget(None, solve="none")


printed, convert_printed = of_method("dpdfd", "printed")


def annotate(method: Dpdfd, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return method._annotate(torch.zeros(len(ours), *SHAPE), Fixed(ours), Fixed(theirs), parameters, noise)


def test_line_7_by_hand() -> None:
    """The gradient of the decoupled loss, of norm |g|, is divided by |g| + e; clipped it stays if shorter than C."""
    ours, theirs = log(P_S), log(P_T)
    g = gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), ours, theirs)
    norm = float(g.norm())
    assert torch.allclose(printed()._bounded_gradient(ours, theirs, 0.5), 0.5 * g / (norm + 1e-4), atol=1e-6)
    clip = printed(bound="clip")
    assert torch.allclose(clip._bounded_gradient(ours, theirs, 2 * norm), g, atol=1e-6), "shorter than C stays"
    assert torch.allclose(clip._bounded_gradient(ours, theirs, 0.05), 0.05 * g / norm, atol=1e-6)


def test_lines_9_and_10_by_hand() -> None:
    """Two images share one mean step, of gamma, not of the student's learning rate."""
    ours, theirs = log(P_S, P_T), log(P_T, [0.1, 0.2, 0.7])
    bars = printed()._bounded_gradient(ours, theirs, 0.5)
    assert not torch.allclose(bars[0], bars[1], atol=0.1)
    found = annotate(printed(gamma="0.3", gamma_s="0.9"), ours, theirs, THREE)
    assert torch.allclose(found, torch.tensor([P_S, P_T]) - 0.3 * (bars[:1] + bars[1:]) / 2, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1.2, 1 / 1.2])
def test_noise_scale_is_that_of_line_9(scale: float) -> None:
    """One draw for all B images, of sigma C / B on the mean."""
    parameters, rng = replace(THREE, sigma=3.0, beta=0.01), torch.Generator().manual_seed(4)
    batch, draws = 4, 1500
    noisy = torch.stack([Dpdfd()._noisy_mean(torch.zeros(batch, CLASSES), parameters, rng) for _ in range(draws)])
    assert (noisy == noisy[:, :1]).all()
    noisy = noisy[:, 0]
    p = stats.kstest(noisy.flatten().double().numpy(), stats.norm(0, 0.03 / batch * scale).cdf).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6
    independent = torch.corrcoef(noisy.T) - torch.eye(CLASSES)
    assert float(independent.abs().max()) < 0.1


@pytest.mark.parametrize("terms", ["argued", "printed"])
def test_equation_5_by_hand(terms: Any) -> None:
    judge = Fixed(log(P_S, P_T), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    method = Dpdfd(ce_weight=2.0, ie_weight=3.0, norm_weight=5.0, generator_terms=terms)
    ce = -(math.log(0.5) + math.log(0.7)) / 2
    if terms == "argued":
        ie, norm = sum(p * math.log(p) for p in (0.6, 0.25, 0.15)), -(5 + 1) / 2
    else:
        ie = (sum(p * math.log(p) for p in P_S) + sum(p * math.log(p) for p in P_T)) / 2
        norm = (math.sqrt(0.38) + math.sqrt(0.54)) / 2
    by_hand = 2 * ce + 3 * ie + 5 * norm
    assert float(method._generator_loss(judge, torch.zeros(2, 1))) == pytest.approx(by_hand, rel=1e-5)
    without = replace(method, norm_weight=0.0)
    assert float(without._generator_loss(judge, torch.zeros(2, 1))) == pytest.approx(2 * ce + 3 * ie, rel=1e-5)


@pytest.mark.parametrize("terms", ["argued", "printed"])
def test_teacher_is_queried_once_per_batch(terms: str) -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert_printed(replace(toy, model=spy), generator_terms=terms, iterations="4")
    assert spy.queried == [16] * 4 and spy.with_gradient == 0
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == 4


VARIANTS = pytest.mark.parametrize("variant", [Dpdfd, WorkingDpdfd], ids=["printed", "working"])


@pytest.mark.parametrize(
    ("variant", "given", "multiplier", "count"),
    [("printed", {"iterations": "3"}, 100 / (2 * 16), 3), ("working", {"queries": "48"}, 50, 48)],
)
def test_ledger_multiplier_by_hand(variant: Any, given: dict[str, str], multiplier: float, count: int) -> None:
    """All 16 images of a batch share one draw as printed; in the working variant a record moves each response by
    itself."""
    method = configure(registry.load("method", "dpdfd", variant), "smoke", given, "method", variant)
    ledger = method.convert(toy_teacher(), "datalens", OWN, context()).ledger
    (example,), (query,) = ledger.entries(Unit.EXAMPLE), ledger.entries(Unit.QUERY)
    assert (example.event, example.count) == (GaussianDpEvent(multiplier), count)
    assert (query.event, query.count) == (GaussianDpEvent(50.0), 1)


@pytest.mark.parametrize(("method", "expected"), [(WorkingDpdfd(), 28.84), (Dpdfd(), 2929.0)])
def test_ledger_golden_epsilons(method: Any, expected: float) -> None:
    """sigma = 100, B T = 256 * 200 = 51,200: ../shared/privacy.md."""
    parameters, mechanism = method.parameters(OWN, 10), method._mechanism(10)
    ledger = mechanism.ledger(parameters)
    assert (mechanism.batch * parameters.iterations, method.sigma) == (51_200, 100.0)
    assert account(ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("bound_and_steps", [(1e-3, 200, 0.0456), (1e-3, 40_000, 0.8046), (5e-3, 40_000, 4.7933)])
@VARIANTS
def test_claim_is_theorem_3(variant: Any, bound_and_steps: tuple[float, int, float]) -> None:
    bound, steps, expected = bound_and_steps
    method = variant(norm_bound=bound, **({"iterations": steps} if variant is Dpdfd else {"queries": 256 * steps}))
    claim = method._mechanism(10).claim(method.parameters(OWN, 10), 1e-5)
    assert claim is not None and claim.epsilon == pytest.approx(expected, abs=1e-4)
    assert claim.unit == Unit.QUERY and claim.source == "DPDFD, Theorem 3"


def test_release_is_within_its_claim() -> None:
    release = convert_printed(budget=Budget(1.0))
    assert release.claim is not None and 0.999 < release.claim.epsilon <= 1
    assert release.solved["iterations"] == 3 and release.solved["sigma"] > 0
    sigma = convert_printed(budget=Budget(1.0, account="accounted")).solved["sigma"]
    assert sigma > 100 * release.solved["sigma"], "the theorem understates what one record costs"


@pytest.mark.thorough
@VARIANTS
def test_audit_refutes_theorem_3_not_the_ledger(variant: Any) -> None:
    """At sigma = 2 and C = 1e-3, Theorem 3 claims a cost of 0.1 per image; the noise is 2 C, not 2."""
    method = Dpdfd(batch=2, norm_bound=1e-3, sigma=2.0) if variant is Dpdfd else variant(norm_bound=1e-3, sigma=2.0)
    found = audit(method.game(OWN, "toy", 3), 6_000)
    assert found.claimed < 0.1 < 1 < found.lower_bound <= found.accounted and found.verdict == "refuted"


@pytest.mark.thorough
def test_game_of_shared_noise_plays_batches() -> None:
    budget = Budget(5.0, account="accounted", unit=Unit.QUERY)
    played = Dpdfd(batch=4).game(budget, "mnist", 10)
    assert played.play(False, 7, torch.Generator()).shape == (7, 11), "ten numbers of an answer, one of a later call"
    found = audit(played, 8_000)
    assert 0.5 < found.lower_bound <= found.accounted == pytest.approx(5.0, rel=1e-3)
    assert audit(replace(played, accounted=0.3), 8_000).verdict == "accountant refuted"


READABLE = 0.5
"""The default of `max_noise`."""

PARAMETERS = AnnotationParameters(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=1.0, iterations=1)
ALONE = {"committee": "1"}


working, convert = of_method("dpdfd", "working")


def answers(method: WorkingDpdfd, ours: Tensor, theirs: list[Tensor], parameters: AnnotationParameters) -> Tensor:
    phi_t = FixedMembers(torch.stack(theirs)) if method.teachers else Fixed(theirs[0])
    noise = torch.Generator().manual_seed(0)
    return method._query_teacher(torch.zeros(len(ours), *SHAPE), ours, phi_t, parameters, noise)


def test_shared_images_get_one_noisy_mean() -> None:
    """Line 9: (the sum of B rows and one draw of sigma C) / B, and every image of the B has it."""
    method, fields = working(shared="4"), replace(PARAMETERS, sigma=3.0)
    g = F.normalize(torch.randn(10, CLASSES, generator=torch.Generator().manual_seed(2)), dim=1) * fields.beta
    found = method._noisy(g, fields, torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(0)
    for rows in (slice(0, 4), slice(4, 8)):
        by_hand = gaussian_rows(g[rows].sum(0, keepdim=True).double(), 3.0 * fields.beta, rng).float() / 4
        assert torch.allclose(found[rows], by_hand.expand(4, -1), atol=1e-6)
    assert not found[8:].any(), "two images make up no four: nothing is answered, as nothing is charged"
    assert torch.equal(method._noisy(g[:8], fields, torch.Generator().manual_seed(0)), found[:8]), "two whole fours"


def test_shared_mean_is_read_with_its_own_noise() -> None:
    """Four images that agree: log P(answer | r) = -|answer / C - towards r|^2 / (2 (sigma / 4)^2)."""
    r, means = torch.arange(4).repeat_interleave(4), torch.stack([towards(c) for c in range(CLASSES)])
    rng = torch.Generator().manual_seed(0)
    sent = torch.cat([gaussian_rows(0.01 * means[c : c + 1].double(), 2.0 * 0.01 / 4, rng) for c in range(4)])
    by_hand = -(sent.float().repeat_interleave(4, 0)[:, None] / 0.01 - means).square().sum(2) / (2 * 0.5**2)
    by_hand -= by_hand.amax(1, keepdim=True)
    sure = [9 * F.one_hot(r, CLASSES).float()]
    found = answers(working(shared="4"), torch.randn(16, CLASSES), sure, replace(PARAMETERS, sigma=2.0))
    assert torch.allclose(found, by_hand, atol=2e-2, rtol=0.03)


def test_shared_queries_are_whole_means(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = planned(monkeypatch)
    convert(queries="50", shared="4")
    assert plans[0][0].queries == 48


def test_shared_mean_noise_limit_is_per_mean() -> None:
    """Noise of half the bound on the mean of four is noise of twice the bound on their sum."""
    budget = Budget(3000.0, account="accounted")
    for shared in (1, 4):
        assert WorkingDpdfd(shared=shared).parameters(budget, 10).sigma == pytest.approx(READABLE * shared, rel=0.05)


def test_shared_mean_ledger_by_hand() -> None:
    """One record may move all B rows of all N / B sums; one answer is a row of one sum."""
    release = convert(budget=Budget(10.0), queries="50", shared="4", **ALONE)
    (entry,), (once,) = (release.ledger.entries(unit) for unit in (Unit.EXAMPLE, Unit.QUERY))
    assert (entry.event, entry.count) == (GaussianDpEvent(release.solved["sigma"] / 8), 12)
    assert (once.event, once.count) == (GaussianDpEvent(release.solved["sigma"] / 2), 1)
    assert release.claim is not None and 9.99 < release.claim.epsilon <= 10


@pytest.mark.parametrize(("shared", "copies", "rounds"), [(4, 3, 5), (16, 1, 3), (5, 2, 1)])
def test_shared_means_are_never_more_than_charged(
    shared: int, copies: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def counted(rows: Tensor, std: float, source: Any) -> Tensor:
        drawn.append(len(rows))
        return gaussian_shared_mean(rows, std, source)

    monkeypatch.setattr("methods.dpdfd.working.gaussian_shared_mean", counted)
    given = {"shared": shared, "copies": copies, "rounds": rounds}
    release = convert(queries="50", **{name: str(value) for name, value in given.items()}, **ALONE)
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert 0 < len(drawn) <= entry.count == 50 // shared and set(drawn) == {shared}


@pytest.mark.thorough
def test_audit_of_a_shared_mean_is_close_to_accounted() -> None:
    """The first of four images decides; the answer is their one noisy mean."""
    method = WorkingDpdfd(shared=4, queries=64)
    found = audit(method.game(Budget(5.0, account="accounted", unit=Unit.QUERY), "mnist", 10), 8_000)
    assert 0.5 < found.lower_bound <= found.accounted == pytest.approx(5.0, rel=1e-3)


@pytest.mark.parametrize(("teachers", "sigma", "of_mean"), [(0, 0.5, 0.5), (4, 2.0, 0.5), (4, 8.0, 2.0)])
def test_reading_is_the_gaussian_likelihood(teachers: int, sigma: float, of_mean: float) -> None:
    """log P(answer | r) = -|answer / C - towards r|^2 / (2 s^2), s being the noise, over C, of the teachers' mean."""
    r = torch.arange(40) % CLASSES
    means, n = torch.stack([towards(c) for c in range(CLASSES)]), max(teachers, 1)
    noise = torch.Generator().manual_seed(0)
    sent = gaussian_rows(n * 0.01 * means[r].double(), sigma * 0.01, noise).float() / n
    if not teachers:
        sent = gaussian_rows(0.01 * means[r], sigma * 0.01, torch.Generator().manual_seed(0))
    sure = [9 * F.one_hot(r, CLASSES).float()] * n
    found = answers(working(teachers=str(teachers)), torch.randn(40, CLASSES), sure, replace(PARAMETERS, sigma=sigma))
    by_hand = -(sent[:, None] / 0.01 - means).square().sum(2) / (2 * of_mean**2)
    by_hand -= by_hand.amax(1, keepdim=True)
    assert torch.allclose(found, by_hand, atol=2e-2, rtol=0.03)


@pytest.mark.parametrize("at", ["flat", "student"])
@pytest.mark.parametrize("bound", ["normalise", "clip"])
def test_printed_reading_is_a_step_of_line_10(at: Any, bound: str) -> None:
    """y = p - 0.1 C g / (||g|| + e), or g clipped to C; the mean over two teachers."""
    torch.manual_seed(1)
    ours, theirs = torch.randn(5, CLASSES), list(torch.randn(2, 5, CLASSES) * 3)
    output = ours if at == "student" else torch.zeros_like(ours)
    bars = []
    for each in theirs:
        g = gradient_at_output(kd_loss, output, each)
        norm = g.norm(dim=1, keepdim=True)
        bars.append(0.3 * g / (norm + 1e-4) if bound == "normalise" else g * (0.3 / norm).clamp(max=1))
    method = working(reading="printed", gradient_at=at, bound=bound)
    one = answers(method, ours, theirs, replace(PARAMETERS, beta=0.3))
    assert torch.allclose(one, output.softmax(1) - 0.1 * bars[0], atol=1e-6)
    both = answers(replace(method, teachers=2), ours, theirs, replace(PARAMETERS, beta=0.3))
    assert torch.allclose(both, output.softmax(1) - 0.1 * (bars[0] + bars[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("given", [{}, {"gradient_at": "student"}, {"bound": "clip"}], ids=str)
def test_reading_prefers_the_teachers_class(given: dict[str, str]) -> None:
    torch.manual_seed(5)
    ours, r = torch.randn(400, CLASSES), torch.randint(0, CLASSES, (400,))
    found = answers(working(**given), ours, [6 * F.one_hot(r, CLASSES).float()], replace(PARAMETERS, sigma=0.2))
    assert float((found.argmax(1) == r).float().mean()) > 0.95


@pytest.mark.parametrize(("target", "queries"), [(0.5, FEWEST), (1e6, 2000)])
def test_accounted_budget_gives_few_queries(target: float, queries: int) -> None:
    budget = Budget(target, account="accounted")
    found = WorkingDpdfd(queries=2000).parameters(budget, 10)
    assert found.iterations == queries and (found.sigma > 10 * READABLE) == (queries == FEWEST)
    assert WorkingDpdfd(queries=100).parameters(budget, 10).iterations == 100


def test_more_teachers_allow_more_queries() -> None:
    budget, found = Budget(8.0, account="accounted"), {}
    for teachers in (50, 100, 200):
        method = WorkingDpdfd(teachers=teachers)
        parameters = method.parameters(budget, 10)
        found[teachers] = parameters.iterations
        assert parameters.sigma == pytest.approx(READABLE * teachers, rel=0.05)
        assert account(method._mechanism(10).ledger(parameters), Unit.EXAMPLE, 1e-5).epsilon <= 8
    assert FEWEST < found[50] < found[100] < found[200]
    assert found[200] == pytest.approx(16 * found[50], rel=0.02), "as the square of their number"
