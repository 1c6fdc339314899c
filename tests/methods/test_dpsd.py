"""DPSD, both variants: queries to the teacher, form and reading of a response, and the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from methods_made import Fixed, Spy, of_method, towards
from scipy import stats
from torch import Tensor

from bench import data
from bench.distillation.losses import dkd_loss, gradient_at_output, kd_loss
from bench.distillation.noisy_labels import FEWEST, AnnotationParameters
from bench.distillation.transcription.likelihoods import LEAST_SIGMA
from bench.privacy import Budget, Unit
from bench.privacy.mechanisms import gaussian_rows
from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dpsd.dpsd import Dpsd
from methods.dpsd.working import WorkingDpsd

PARAMETERS = AnnotationParameters(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=math.inf, iterations=1)


printed, convert_printed = of_method("dpsd", "printed")


def annotate(method: Dpsd, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return method._annotate(torch.zeros(len(ours), *SHAPE), Fixed(ours), Fixed(theirs), parameters, noise)


@pytest.mark.parametrize("mode", ["data", "label"])
def test_ledger_counts_the_teachers_queries(mode: str) -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert_printed(replace(toy, model=spy), mode=mode)
    assert spy.queried == [16, 16, 16], "three batches of 16"
    assert spy.with_gradient == 0, "the generator must not see the teacher"
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == (3 if mode == "data" else 3 * 16)


def test_dpsd_t_generator_is_in_the_ledger() -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert_printed(replace(toy, model=spy), discriminator="teacher")
    assert spy.with_gradient > 0
    assert any("NonPrivate" in type(e.event).__name__ for e in release.ledger.entries(Unit.EXAMPLE))


@pytest.mark.parametrize("bound", ["normalise", "clip"])
def test_annotate_is_the_step_of_equation_3(bound: str) -> None:
    """Without noise and with k = c: y = p_s - gamma beta g / (||g|| + h), g the gradient of Eq. 2 at the logits."""
    torch.manual_seed(1)
    ours, theirs = torch.randn(5, CLASSES), torch.randn(5, CLASSES) * 3
    gradient = gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), ours, theirs)
    norm = gradient.norm(dim=1, keepdim=True)
    scale = 0.01 / (norm + 1e-4) if bound == "normalise" else (0.01 / norm).clamp(max=1)
    found = annotate(printed(gamma_s="0.5", bound=bound), ours, theirs, PARAMETERS)
    assert torch.allclose(found, ours.softmax(1) - 0.5 * scale * gradient, atol=1e-7)


@pytest.mark.parametrize(("terms", "sign"), [("argued", -1), ("printed", 1)])
def test_equation_8_by_hand(terms: str, sign: int) -> None:
    p, q = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]

    class Judge(Fixed):
        def features(self, x: Tensor) -> Tensor:
            return torch.tensor([[3.0, 4.0], [0.0, 1.0]])

    method = Dpsd(generator_terms=terms, ce_weight=2.0, ie_weight=3.0, norm_weight=5.0)  # type: ignore[arg-type]
    ce = -(math.log(0.7) + math.log(0.5)) / 2
    rows = [[(a + b) / 2 for a, b in zip(p, q, strict=True)]] if terms == "argued" else [p, q]
    ie = sum(x * math.log(x) for row in rows for x in row) / len(rows)
    found = method._generator_loss(Judge(torch.tensor([p, q]).log()), torch.zeros(2, 1))
    assert float(found) == pytest.approx(2 * ce + 3 * ie + sign * 5 * 3.0, rel=1e-5)


def test_top_k_noise_covers_all_entries() -> None:
    torch.manual_seed(1)
    ours, theirs = torch.randn(200, CLASSES), torch.randn(200, CLASSES) * 3
    method = printed(gamma_s="100.0")
    silent = ours.softmax(1) - annotate(method, ours, theirs, replace(PARAMETERS, k=2))
    assert ((silent.abs() > 1e-7).sum(1) == 2).all()
    noisy = ours.softmax(1) - annotate(method, ours, theirs, replace(PARAMETERS, k=2, sigma=1.0))
    assert (noisy != 0).all()


@pytest.mark.parametrize("variant", [Dpsd, WorkingDpsd], ids=["printed", "working"])
def test_top_k_keeps_the_largest_magnitudes(variant: Any) -> None:
    """Plain distillation's gradient at a flat output is 1/4 - p: -0.65 at the teacher's class, 0.25 at the last."""
    theirs = torch.tensor([[0.9, 0.07, 0.03, 1e-9]]).log()
    kept = variant(loss="kd")._bounded_gradient(torch.zeros(1, 4), theirs, replace(PARAMETERS, k=2))
    norm = math.hypot(0.65, 0.25)
    assert kept[0].tolist() == pytest.approx([-0.65 * 0.01 / norm, 0, 0, 0.25 * 0.01 / norm], rel=1e-3)


@pytest.mark.parametrize("scale", [1.0, 2 / 3, 3 / 2])
def test_noise_has_deviation_sigma_beta(scale: float) -> None:
    torch.manual_seed(2)
    ours, theirs = torch.randn(2000, CLASSES), torch.randn(2000, CLASSES)
    method = printed(gamma_s="1.0")
    silent, noisy = (annotate(method, ours, theirs, replace(PARAMETERS, sigma=sigma)) for sigma in (0.0, 3.0))
    noise = silent - noisy
    p = stats.kstest(noise.flatten().double().numpy(), stats.norm(0, 3.0 * 0.01 * scale).cdf).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6


def test_label_mode_responds_with_a_candidate() -> None:
    torch.manual_seed(3)
    ours, theirs = torch.randn(300, CLASSES), torch.randn(300, CLASSES)
    parameters = replace(PARAMETERS, k=2, answer_epsilon=1.0)
    answers = annotate(printed(mode="label"), ours, theirs, parameters)
    assert ((answers == 0) | (answers == 1)).all() and (answers.sum(1) == 1).all()
    inside = (ours.topk(2, 1).indices == answers.argmax(1, keepdim=True)).any(1)
    assert inside.all()
    as_printed = annotate(printed(mode="label", response="printed"), ours, theirs, parameters)
    assert not (ours.topk(2, 1).indices == as_printed.argmax(1, keepdim=True)).any(1).all()


def test_label_mode_without_noise_is_the_teachers_class() -> None:
    torch.manual_seed(4)
    ours, theirs = torch.randn(100, CLASSES), torch.randn(100, CLASSES)
    answers = annotate(printed(mode="label"), ours, theirs, PARAMETERS)
    assert torch.equal(answers.argmax(1), theirs.argmax(1))


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "kd"},
        {"bound": "clip"},
        {"generator_terms": "printed"},
        {"ce_weight": "0", "ie_weight": "0", "norm_weight": "0"},
        {"mode": "label", "response": "printed"},
        {"mode": "label", "discriminator": "teacher"},
    ],
    ids=lambda given: "-".join(given),
)
def test_options_run(given: dict[str, str]) -> None:
    assert convert_printed(**given).ledger.entries(Unit.EXAMPLE)


@pytest.mark.thorough
def test_generator_weights_change_the_images() -> None:
    def generator(**given: str) -> Tensor:
        made = convert_printed(budget=Budget(math.inf, solve="none"), gamma_s="0.001", **given).generator
        assert made is not None
        return torch.cat([p.detach().flatten() for p in made.parameters()])

    whole = generator()
    for term in ("ce_weight", "ie_weight", "norm_weight"):
        assert not torch.equal(whole, generator(**{term: "0"}))


@pytest.mark.parametrize(("dataset", "classes", "k"), [("mnist", 10, 3), ("hundred", 100, 50), ("x", 2, 2)])
def test_k_defaults_to_the_papers(dataset: str, classes: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"hundred": data.DatasetFacts(candidates=50)}
    monkeypatch.setattr(data, "facts", lambda name: known.get(name, data.DatasetFacts()))
    assert Dpsd().parameters(Budget(10.0), dataset, classes).k == k


READABLE = 0.5
"""The default of `max_noise`."""


working, _ = of_method("dpsd", "working")


def answers(method: WorkingDpsd, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters) -> Tensor:
    noise, images = torch.Generator().manual_seed(0), torch.zeros(len(ours), *SHAPE)
    return method._query_teacher(images, ours, Fixed(theirs), parameters, noise)


# Queried networks


# Data mode


@pytest.mark.parametrize("sigma", [0.0, 0.3, 2.0])
def test_reading_is_the_gaussian_likelihood(sigma: float) -> None:
    """beta (towards the class) + noise; log P(answer | r) = -|answer / beta - towards r|^2 / (2 sigma^2)."""
    r = torch.arange(40) % CLASSES
    sent = gaussian_rows(
        0.01 * torch.stack([towards(int(c)) for c in r]), sigma * 0.01, torch.Generator().manual_seed(0)
    )
    found = answers(
        working(), torch.randn(40, CLASSES), 9 * F.one_hot(r, CLASSES).float(), replace(PARAMETERS, sigma=sigma)
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
    found = answers(working(reading="printed", gradient_at=at), ours, theirs, PARAMETERS)
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
    found = answers(working(**given), ours, 6 * F.one_hot(r, CLASSES).float(), replace(PARAMETERS, sigma=sigma))
    share = float((found.argmax(1) == r).float().mean())
    assert share >= right if right else (share < 0.4 and float(found.min()) > -0.1)


def test_flat_reading_does_not_depend_on_the_student() -> None:
    torch.manual_seed(6)
    theirs = torch.randn(30, CLASSES) * 3
    one, other = torch.randn(2, 30, CLASSES)
    assert torch.equal(answers(working(), one, theirs, PARAMETERS), answers(working(), other, theirs, PARAMETERS))
    by_student = [answers(working(gradient_at="student"), ours, theirs, PARAMETERS) for ours in (one, other)]
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
    found = answers(working(mode="label"), ours, theirs, replace(PARAMETERS, k=2, answer_epsilon=math.log(3))).exp()
    inside = ours.topk(2, 1).indices
    assert torch.allclose(found.gather(1, inside).sort(1).values, torch.tensor([[0.25, 0.75]]), atol=1e-6)
    assert torch.allclose(found.scatter(1, inside, 0.5), torch.tensor(0.5), atol=1e-6)
    candidate = (ours.topk(2, 1).indices == theirs.argmax(1, keepdim=True)).any(1)
    kept = (found.argmax(1) == theirs.argmax(1))[candidate].float().mean()
    assert float(kept) == pytest.approx(0.75, abs=0.12)


def test_printed_label_reading_is_one_hot() -> None:
    torch.manual_seed(9)
    ours, theirs = torch.randn(50, CLASSES), torch.randn(50, CLASSES)
    method = working(mode="label", reading="printed")
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
