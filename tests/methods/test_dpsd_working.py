"""DPSD's working variant: queries to the teacher, reading of responses, and the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from loops import small_generator
from methods_made import Fixed, Spy, of_method, towards
from torch import Tensor

from bench.distillation.losses import dkd_loss, gradient_at_output, kd_loss
from bench.distillation.noisy_labels import FEWEST, AnnotationParameters
from bench.distillation.transcription.likelihoods import LEAST_SIGMA
from bench.privacy import Budget, Unit
from bench.privacy.mechanisms import gaussian_rows
from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dpsd.working import WorkingDpsd

READABLE = 0.5
"""The default of `max_noise`."""

PARAMETERS = AnnotationParameters(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=math.inf, iterations=1)
FREE, OWN = Budget(math.inf, solve="none"), Budget(None, solve="none")
MODES = ["data", "label"]


smoke, convert = of_method("dpsd", "working")


def answers(method: WorkingDpsd, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters) -> Tensor:
    noise, images = torch.Generator().manual_seed(0), torch.zeros(len(ours), *SHAPE)
    return method._query_teacher(images, ours, Fixed(theirs), parameters, noise)


# Queried networks


@pytest.mark.thorough
@pytest.mark.parametrize("prior", ["auto", "generator"])
@pytest.mark.parametrize("mode", MODES)
def test_ledger_counts_the_teachers_queries(mode: str, prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many candidates are looked at, and however many steps student and generator take."""
    small_generator(monkeypatch)
    toy = toy_teacher()
    spy = Spy(toy.model)
    given = {"queries": "50", "choose": "3", "student_steps": "9", "prior": prior}
    release = convert(replace(toy, model=spy), mode=mode, **given)
    assert sum(spy.asked) == 50
    assert spy.with_gradient == 0, "neither student nor generator may learn from the teacher itself"
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == 50
    if mode == "data":
        assert entry.event == GaussianDpEvent(release.solved["sigma"] / 2)
    else:
        assert entry.event.num_buckets == CLASSES
    (once,) = release.ledger.entries(Unit.QUERY)
    assert (once.count, once.event) == (1, entry.event)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_release_has_the_last_queries(mode: str) -> None:
    release = convert(mode=mode)
    assert release.solved["iterations"] == 48 and release.solved["beta"] == 5e-3
    assert release.synthetic is not None and release.synthetic.shape == (16, *SHAPE) and release.generator is None
    assert release.claim is not None and 9.99 < release.claim.epsilon <= 10


# Data mode


@pytest.mark.parametrize("sigma", [0.0, 0.3, 2.0])
def test_reading_is_the_gaussian_likelihood(sigma: float) -> None:
    """beta (towards the class) + noise; log P(answer | r) = -|answer / beta - towards r|^2 / (2 sigma^2)."""
    r = torch.arange(40) % CLASSES
    sent = gaussian_rows(
        0.01 * torch.stack([towards(int(c)) for c in r]), sigma * 0.01, torch.Generator().manual_seed(0)
    )
    found = answers(
        smoke(), torch.randn(40, CLASSES), 9 * F.one_hot(r, CLASSES).float(), replace(PARAMETERS, sigma=sigma)
    )
    means = torch.stack([towards(c) for c in range(CLASSES)])
    by_hand = -(sent[:, None] / 0.01 - means).square().sum(2) / (2 * max(sigma, LEAST_SIGMA) ** 2)
    by_hand -= by_hand.amax(1, keepdim=True)
    assert torch.allclose(found, by_hand, atol=2e-3, rtol=0.03)


@pytest.mark.parametrize("at", ["flat", "student"])
def test_printed_reading_is_equation_6(at: Any) -> None:
    """y = p - 0.1 beta g / (||g|| + h), g the gradient of plain distillation at the flat output, or the student's."""
    torch.manual_seed(1)
    ours, theirs = torch.randn(5, CLASSES), torch.randn(5, CLASSES) * 3
    output = ours if at == "student" else torch.zeros_like(ours)
    g = gradient_at_output(kd_loss, output, theirs)
    by_hand = output.softmax(1) - 0.1 * 0.01 * g / (g.norm(dim=1, keepdim=True) + 1e-4)
    found = answers(smoke(reading="printed", gradient_at=at), ours, theirs, PARAMETERS)
    assert torch.allclose(found, by_hand, atol=1e-7)


@pytest.mark.parametrize("bound", ["normalise", "clip"])
def test_decoupled_loss_has_weight_eight(bound: Any) -> None:
    torch.manual_seed(1)
    theirs = torch.randn(5, CLASSES) * 3
    g = gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), torch.zeros(5, CLASSES), theirs)
    norm = g.norm(dim=1, keepdim=True)
    by_hand = 3.0 * g / (norm + 1e-4) if bound == "normalise" else g * (3.0 / norm).clamp(max=1)
    method = WorkingDpsd(loss="dkd", bound=bound)
    found = method._bounded_gradient(torch.zeros(5, CLASSES), theirs, replace(PARAMETERS, beta=3.0))
    assert torch.allclose(found, by_hand, atol=1e-6) and not torch.allclose(found, g, atol=0.1)


@pytest.mark.parametrize("given", [{}, {"gradient_at": "student"}, {"loss": "dkd"}, {"bound": "clip"}], ids=str)
@pytest.mark.parametrize(("sigma", "right"), [(0.0, 0.9), (0.2, 0.9), (1000.0, 0.0)])
def test_reading_prefers_the_teachers_class(given: dict[str, str], sigma: float, right: float) -> None:
    torch.manual_seed(5)
    ours, r = torch.randn(400, CLASSES), torch.randint(0, CLASSES, (400,))
    found = answers(smoke(**given), ours, 6 * F.one_hot(r, CLASSES).float(), replace(PARAMETERS, sigma=sigma))
    share = float((found.argmax(1) == r).float().mean())
    assert share >= right if right else (share < 0.4 and float(found.min()) > -0.1)


def test_flat_reading_does_not_depend_on_the_student() -> None:
    torch.manual_seed(6)
    theirs = torch.randn(30, CLASSES) * 3
    one, other = torch.randn(2, 30, CLASSES)
    assert torch.equal(answers(smoke(), one, theirs, PARAMETERS), answers(smoke(), other, theirs, PARAMETERS))
    by_student = [answers(smoke(gradient_at="student"), ours, theirs, PARAMETERS) for ours in (one, other)]
    assert not torch.allclose(*by_student)


@pytest.mark.parametrize("loss", ["kd", "dkd"])
@pytest.mark.parametrize("bound", ["normalise", "clip"])
def test_gradient_has_k_entries_and_norm_beta(loss: Any, bound: Any) -> None:
    torch.manual_seed(7)
    ours, theirs = torch.randn(200, CLASSES), torch.randn(200, CLASSES) * 20
    rows = WorkingDpsd(loss=loss, bound=bound)._bounded_gradient(ours, theirs, replace(PARAMETERS, k=2))
    assert (rows != 0).sum(1).max() == 2 and 0.009 < float(rows.norm(dim=1).max()) <= 0.01 + 1e-7


# Label mode


def test_label_reading_is_the_response_likelihood() -> None:
    """epsilon = ln 3, two candidates: 3/4 for the class that was answered, 1/4 for the other, 1/2 outside of both."""
    torch.manual_seed(8)
    ours, theirs = torch.randn(300, CLASSES), torch.randn(300, CLASSES)
    found = answers(smoke(mode="label"), ours, theirs, replace(PARAMETERS, k=2, answer_epsilon=math.log(3))).exp()
    inside = ours.topk(2, 1).indices
    assert torch.allclose(found.gather(1, inside).sort(1).values, torch.tensor([[0.25, 0.75]]), atol=1e-6)
    assert torch.allclose(found.scatter(1, inside, 0.5), torch.tensor(0.5), atol=1e-6)
    told = (ours.topk(2, 1).indices == theirs.argmax(1, keepdim=True)).any(1)
    kept = (found.argmax(1) == theirs.argmax(1))[told].float().mean()
    assert float(kept) == pytest.approx(0.75, abs=0.12)


def test_printed_label_reading_is_one_hot() -> None:
    torch.manual_seed(9)
    ours, theirs = torch.randn(50, CLASSES), torch.randn(50, CLASSES)
    method = smoke(mode="label", reading="printed")
    found = answers(method, ours, theirs, PARAMETERS)
    assert torch.equal(found.exp(), F.one_hot(theirs.argmax(1), CLASSES).float())
    assert float(method._loss(ours, found)) == pytest.approx(float(F.cross_entropy(ours, theirs.argmax(1))))


# What it costs


@pytest.mark.parametrize(("target", "queries"), [(0.5, FEWEST), (1e6, 2000)])
def test_accounted_budget_gives_few_queries(target: float, queries: int) -> None:
    """One record moves all of a teacher's responses, so that a usual budget pays only for the least number."""
    method, budget = WorkingDpsd(queries=2000), Budget(target, account="accounted")
    found = method.parameters(budget, "mnist", 10)
    assert found.iterations == queries
    assert (found.sigma > 10 * READABLE) == (queries == FEWEST)
    assert WorkingDpsd(queries=100).parameters(budget, "mnist", 10).iterations == 100
    assert WorkingDpsd(queries=2000, mode="label").parameters(Budget(8.0), "mnist", 10).iterations == 2000
