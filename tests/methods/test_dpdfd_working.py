"""DPDFD's working variant: queries to the teacher, reading of responses, and the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from loops import planned, small_generator
from methods_made import Fixed, FixedMembers, Spy, of_method, towards
from torch import Tensor

from bench.distillation.losses import gradient_at_output, kd_loss
from bench.distillation.noisy_labels import FEWEST, AnnotationParameters
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.privacy.mechanisms import gaussian_rows, gaussian_shared_mean
from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dpdfd.working import WorkingDpdfd

READABLE = 0.5
"""The default of `max_noise`."""

PARAMETERS = AnnotationParameters(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=1.0, iterations=1)
FREE = Budget(math.inf, solve="none")
ALONE = {"committee": "1"}


smoke, convert = of_method("dpdfd", "working")


def answers(method: WorkingDpdfd, ours: Tensor, theirs: list[Tensor], parameters: AnnotationParameters) -> Tensor:
    """Readings of a teacher's answers, or of many teachers'."""
    phi_t = FixedMembers(torch.stack(theirs)) if method.teachers else Fixed(theirs[0])
    noise = torch.Generator().manual_seed(0)
    return method._query_teacher(torch.zeros(len(ours), *SHAPE), ours, phi_t, parameters, noise)


@pytest.mark.thorough
@pytest.mark.parametrize("prior", ["auto", "generator"])
def test_ledger_counts_the_teachers_queries(prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many candidates are looked at, and however many steps student and generator take."""
    small_generator(monkeypatch)
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(replace(toy, model=spy), queries="50", choose="3", student_steps="9", prior=prior)
    assert sum(spy.asked) == 50 == len(torch.cat(spy.seen).unique(dim=0)), "once about every image"
    assert spy.with_gradient == 0, "neither student nor generator may learn from the teacher itself"
    (entry,), (once,) = (release.ledger.entries(unit) for unit in (Unit.EXAMPLE, Unit.QUERY))
    assert (entry.event, entry.count) == (GaussianDpEvent(release.solved["sigma"] / 2), 50)
    assert (once.event, once.count) == (entry.event, 1)
    assert release.solved["iterations"] == 50 and release.solved["norm_bound"] == 5e-3
    assert release.claim is not None and 9.99 < release.claim.epsilon <= 10 and release.generator is None


def test_shared_images_get_one_noisy_mean() -> None:
    """Line 9: (the sum of B rows and one draw of sigma C) / B, and every image of the B has it."""
    method, fields = smoke(shared="4"), replace(PARAMETERS, sigma=3.0)
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
    found = answers(smoke(shared="4"), torch.randn(16, CLASSES), sure, replace(PARAMETERS, sigma=2.0))
    assert torch.allclose(found, by_hand, atol=2e-2, rtol=0.03)


def test_shared_queries_are_whole_means(monkeypatch: pytest.MonkeyPatch) -> None:
    told = planned(monkeypatch)
    convert(queries="50", shared="4")
    assert told[0][0].queries == 48


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
    found = answers(smoke(teachers=str(teachers)), torch.randn(40, CLASSES), sure, replace(PARAMETERS, sigma=sigma))
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
    method = smoke(reading="printed", gradient_at=at, bound=bound)
    one = answers(method, ours, theirs, replace(PARAMETERS, beta=0.3))
    assert torch.allclose(one, output.softmax(1) - 0.1 * bars[0], atol=1e-6)
    both = answers(replace(method, teachers=2), ours, theirs, replace(PARAMETERS, beta=0.3))
    assert torch.allclose(both, output.softmax(1) - 0.1 * (bars[0] + bars[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("given", [{}, {"gradient_at": "student"}, {"bound": "clip"}], ids=str)
def test_reading_prefers_the_teachers_class(given: dict[str, str]) -> None:
    torch.manual_seed(5)
    ours, r = torch.randn(400, CLASSES), torch.randint(0, CLASSES, (400,))
    found = answers(smoke(**given), ours, [6 * F.one_hot(r, CLASSES).float()], replace(PARAMETERS, sigma=0.2))
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
