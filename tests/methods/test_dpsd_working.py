"""DPSD's working variant: who asks the teacher what, how answers are read, and that the ledger tells."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_dpsd import Fixed, Spy
from torch import Tensor

from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.noisy_labels import AnnotationParameters
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dpsd.working import WorkingDpsd

PARAMETERS = AnnotationParameters(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=math.inf, iterations=1)


def smoke(**given: str) -> WorkingDpsd:
    return configure(WorkingDpsd, "smoke", given, "method", "working")


def convert(teacher: Teacher | None = None, budget: Budget | None = None, **given: str) -> Release:
    torch.manual_seed(0)
    return smoke(**given).convert(teacher or toy_teacher(), "datalens", budget or Budget(10.0), context())


def annotate(
    method: WorkingDpsd, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, k: int = CLASSES
) -> Tensor:
    noise, images = torch.Generator().manual_seed(0), torch.zeros(len(ours), *SHAPE)
    return method._annotate(images, Fixed(ours), Fixed(theirs), parameters, k, noise)


@pytest.mark.parametrize(("mode", "batches"), [("data", 3), ("label", 6)])
def test_the_ledger_counts_what_the_teacher_was_asked(mode: str, batches: int) -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    given = {"iterations": "3", "batches_before_update": "2", "student_steps": "3", "generator_steps": "2"}
    release = convert(replace(toy, model=spy), mode=mode, **given)
    assert spy.asked == [16] * batches, "however many steps student and generator take"
    assert spy.with_gradient == 0, "the generator must not see the teacher"
    entries = release.ledger.entries(Unit.EXAMPLE)
    assert sum(entry.count for entry in entries) == (batches if mode == "data" else batches * 16)


def test_batches_before_the_first_update_are_asked_about_all_classes_and_entered_as_such() -> None:
    release = convert(mode="label", iterations="3", batches_before_update="2", k="2")
    assert [(e.count, e.event.num_buckets) for e in release.ledger.entries(Unit.EXAMPLE)] == [(32, CLASSES), (64, 2)]


@pytest.mark.parametrize(("loss", "noise"), [("kd", 0.0), ("kd", 0.1), ("dkd", 0.0)])
def test_the_posterior_finds_a_sure_teachers_class(loss: str, noise: float) -> None:
    torch.manual_seed(5)
    ours, r = torch.randn(200, CLASSES), torch.randint(0, CLASSES, (200,))
    theirs = torch.nn.functional.one_hot(r, CLASSES).float() * 6
    targets = annotate(smoke(loss=loss), ours, theirs, replace(PARAMETERS, sigma=noise))
    assert torch.allclose(targets.sum(1), torch.ones(200), atol=1e-5)
    assert (targets.argmax(1) == r).float().mean() > 0.95


def test_the_posterior_gives_up_when_noise_drowns_the_answer() -> None:
    torch.manual_seed(6)
    ours, theirs = torch.randn(200, CLASSES), torch.randn(200, CLASSES) * 5
    targets = annotate(smoke(), ours, theirs, replace(PARAMETERS, sigma=1000.0))
    assert (targets.amax(1) < 0.3).all()


def test_label_mode_reads_a_response_over_the_students_candidates() -> None:
    """epsilon = ln 3, two candidates: kept with 3/4, else 1/4; a class outside answers either with 1/2."""
    torch.manual_seed(7)
    ours, theirs = torch.randn(300, CLASSES), torch.randn(300, CLASSES)
    parameters = replace(PARAMETERS, answer_epsilon=math.log(3))
    targets = annotate(smoke(mode="label"), ours, theirs, parameters, k=2)
    candidates = ours.topk(2, 1).indices
    inside = targets.gather(1, candidates).sort(1).values / targets.sum(1, keepdim=True)
    assert torch.allclose(inside, torch.tensor([[0.125, 0.375]]).expand(300, -1), atol=1e-6)
    outside = targets.scatter(1, candidates, 0.0)
    assert torch.allclose(outside[outside > 0], torch.tensor(0.25), atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"bound": "clip"},
        {"generator": "strokes"},
        {"augment": "false"},
        {"generator_steps": "0"},
        {"ce_weight": "0", "ie_weight": "0", "norm_weight": "0"},
        {"mode": "label", "k": "3"},
    ],
    ids=lambda given: "-".join(given),
)
def test_every_other_option_runs_and_changes_the_student(given: dict[str, str]) -> None:
    free = Budget(math.inf, solve="none")
    one, other = convert(budget=free), convert(budget=free, **given)
    pairs = zip(one.student.state_dict().values(), other.student.state_dict().values(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_an_infinite_budget_has_no_noise_and_no_promise() -> None:
    release = convert(budget=Budget(math.inf, solve="none"))
    assert release.solved["sigma"] == 0 and release.claim is not None and math.isinf(release.claim.epsilon)


@pytest.mark.parametrize("given", [{"k": 11}, {"k": 1}])
def test_k_outside_two_to_c_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="2 to 10"):
        WorkingDpsd(**given).check(Budget(10.0), "mnist", 10)


@pytest.mark.parametrize(
    "given", [{"batches_before_update": 0}, {"student_steps": 0}, {"generator_steps": -1}, {"gamma_s": 0.0}]
)
def test_impossible_fields_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        WorkingDpsd(**given)
