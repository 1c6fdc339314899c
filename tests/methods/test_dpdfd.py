"""Algorithm 1 of DPDFD as printed: each line by hand, queries to the teacher, and the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent
from methods_made import Fixed, Spy, log, of_method
from scipy import stats
from torch import Tensor

from bench import registry
from bench.config import configure
from bench.distillation.losses import dkd_loss, gradient_at_output
from bench.distillation.noisy_labels import AnnotationParameters
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpdfd.working import WorkingDpdfd

P_T, P_S = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]
PARAMETERS = AnnotationParameters(k=3, beta=0.5, sigma=0.0, answer_epsilon=1.0, iterations=1)
FREE = Budget(None, solve="none")


smoke, convert = of_method("dpdfd", "printed")


def annotate(method: Dpdfd, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return method._annotate(torch.zeros(len(ours), *SHAPE), Fixed(ours), Fixed(theirs), parameters, noise)


def test_line_7_by_hand() -> None:
    """The gradient of the decoupled loss, of norm |g|, is divided by |g| + e; clipped it stays if shorter than C."""
    ours, theirs = log(P_S), log(P_T)
    g = gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), ours, theirs)
    norm = float(g.norm())
    assert torch.allclose(smoke()._bounded_gradient(ours, theirs, 0.5), 0.5 * g / (norm + 1e-4), atol=1e-6)
    clip = smoke(bound="clip")
    assert torch.allclose(clip._bounded_gradient(ours, theirs, 2 * norm), g, atol=1e-6), "shorter than C stays"
    assert torch.allclose(clip._bounded_gradient(ours, theirs, 0.05), 0.05 * g / norm, atol=1e-6)


def test_lines_9_and_10_by_hand() -> None:
    """Two images share one mean step, of gamma, not of the student's learning rate."""
    ours, theirs = log(P_S, P_T), log(P_T, [0.1, 0.2, 0.7])
    bars = smoke()._bounded_gradient(ours, theirs, 0.5)
    assert not torch.allclose(bars[0], bars[1], atol=0.1)
    found = annotate(smoke(gamma="0.3", gamma_s="0.9"), ours, theirs, PARAMETERS)
    assert torch.allclose(found, torch.tensor([P_S, P_T]) - 0.3 * (bars[:1] + bars[1:]) / 2, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1.2, 1 / 1.2])
def test_noise_scale_is_that_of_line_9(scale: float) -> None:
    """One draw for all B images, of sigma C / B on the mean."""
    parameters, rng = replace(PARAMETERS, sigma=3.0, beta=0.01), torch.Generator().manual_seed(4)
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
    release = convert(replace(toy, model=spy), generator_terms=terms, iterations="4")
    assert spy.asked == [16] * 4 and spy.with_gradient == 0
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
    ledger = method.convert(toy_teacher(), "datalens", FREE, context()).ledger
    (example,), (query,) = ledger.entries(Unit.EXAMPLE), ledger.entries(Unit.QUERY)
    assert (example.event, example.count) == (GaussianDpEvent(multiplier), count)
    assert (query.event, query.count) == (GaussianDpEvent(50.0), 1)


@pytest.mark.parametrize(("method", "expected"), [(WorkingDpdfd(), 28.84), (Dpdfd(), 2929.0)])
def test_ledger_golden_epsilons(method: Any, expected: float) -> None:
    """sigma = 100, B T = 256 * 200 = 51,200: ../shared/privacy.md."""
    parameters, mechanism = method.parameters(FREE, 10), method._mechanism(10)
    ledger = mechanism.ledger(parameters)
    assert (mechanism.batch * parameters.iterations, method.sigma) == (51_200, 100.0)
    assert account(ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("bound_and_steps", [(1e-3, 200, 0.0456), (1e-3, 40_000, 0.8046), (5e-3, 40_000, 4.7933)])
@VARIANTS
def test_claim_is_theorem_3(variant: Any, bound_and_steps: tuple[float, int, float]) -> None:
    bound, steps, expected = bound_and_steps
    method = variant(norm_bound=bound, **({"iterations": steps} if variant is Dpdfd else {"queries": 256 * steps}))
    claim = method._mechanism(10).claim(method.parameters(FREE, 10), 1e-5)
    assert claim is not None and claim.epsilon == pytest.approx(expected, abs=1e-4)
    assert claim.unit == Unit.QUERY and claim.source == "DPDFD, Theorem 3"


def test_release_is_within_its_claim() -> None:
    release = convert(budget=Budget(1.0))
    assert release.claim is not None and 0.999 < release.claim.epsilon <= 1
    assert release.solved["iterations"] == 3 and release.solved["sigma"] > 0
    sigma = convert(budget=Budget(1.0, account="accounted")).solved["sigma"]
    assert sigma > 100 * release.solved["sigma"], "the theorem understates what one record costs"


@pytest.mark.thorough
@VARIANTS
def test_audit_refutes_theorem_3_not_the_ledger(variant: Any) -> None:
    """At sigma = 2 and C = 1e-3, Theorem 3 claims a cost of 0.1 per image; the noise is 2 C, not 2."""
    method = Dpdfd(batch=2, norm_bound=1e-3, sigma=2.0) if variant is Dpdfd else variant(norm_bound=1e-3, sigma=2.0)
    found = audit(method.game(FREE, "toy", 3), 6_000)
    assert found.claimed < 0.1 < 1 < found.lower_bound <= found.accounted and found.verdict == "refuted"


@pytest.mark.thorough
def test_game_of_shared_noise_plays_batches() -> None:
    budget = Budget(5.0, account="accounted", unit=Unit.QUERY)
    played = Dpdfd(batch=4).game(budget, "mnist", 10)
    assert played.play(False, 7, torch.Generator()).shape == (7, 11), "ten numbers of an answer, one of a later call"
    found = audit(played, 8_000)
    assert 0.5 < found.lower_bound <= found.accounted == pytest.approx(5.0, rel=1e-3)
    assert audit(replace(played, accounted=0.3), 8_000).verdict == "accountant refuted"
