"""Algorithm 1 of DPSD as printed: queries to the teacher, form of a response, and the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from methods_made import Fixed, Spy, of_method
from scipy import stats
from torch import Tensor

from bench import data
from bench.distillation.losses import dkd_loss, gradient_at_output
from bench.distillation.noisy_labels import AnnotationParameters
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dpsd.dpsd import Dpsd
from methods.dpsd.working import WorkingDpsd

PARAMETERS = AnnotationParameters(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=math.inf, iterations=1)


smoke, convert = of_method("dpsd", "printed")


def annotate(method: Dpsd, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return method._annotate(torch.zeros(len(ours), *SHAPE), Fixed(ours), Fixed(theirs), parameters, noise)


@pytest.mark.parametrize("mode", ["data", "label"])
def test_ledger_counts_the_teachers_queries(mode: str) -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(replace(toy, model=spy), mode=mode)
    assert spy.asked == [16, 16, 16], "three batches of 16"
    assert spy.with_gradient == 0, "the generator must not see the teacher"
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == (3 if mode == "data" else 3 * 16)


def test_dpsd_t_generator_is_in_the_ledger() -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(replace(toy, model=spy), discriminator="teacher")
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
    found = annotate(smoke(gamma_s="0.5", bound=bound), ours, theirs, PARAMETERS)
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
    method = smoke(gamma_s="100.0")
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
    method = smoke(gamma_s="1.0")
    silent, noisy = (annotate(method, ours, theirs, replace(PARAMETERS, sigma=sigma)) for sigma in (0.0, 3.0))
    noise = silent - noisy
    p = stats.kstest(noise.flatten().double().numpy(), stats.norm(0, 3.0 * 0.01 * scale).cdf).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6


def test_label_mode_responds_with_a_candidate() -> None:
    torch.manual_seed(3)
    ours, theirs = torch.randn(300, CLASSES), torch.randn(300, CLASSES)
    parameters = replace(PARAMETERS, k=2, answer_epsilon=1.0)
    answers = annotate(smoke(mode="label"), ours, theirs, parameters)
    assert ((answers == 0) | (answers == 1)).all() and (answers.sum(1) == 1).all()
    inside = (ours.topk(2, 1).indices == answers.argmax(1, keepdim=True)).any(1)
    assert inside.all()
    printed = annotate(smoke(mode="label", response="printed"), ours, theirs, parameters)
    assert not (ours.topk(2, 1).indices == printed.argmax(1, keepdim=True)).any(1).all()


def test_label_mode_without_noise_is_the_teachers_class() -> None:
    torch.manual_seed(4)
    ours, theirs = torch.randn(100, CLASSES), torch.randn(100, CLASSES)
    answers = annotate(smoke(mode="label"), ours, theirs, PARAMETERS)
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
    assert convert(**given).ledger.entries(Unit.EXAMPLE)


@pytest.mark.thorough
def test_generator_weights_change_the_images() -> None:
    def generator(**given: str) -> Tensor:
        made = convert(budget=Budget(math.inf, solve="none"), gamma_s="0.001", **given).generator
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
