"""Algorithm 1 of DPSD: who asks the teacher what, what an answer is, and that the ledger tells."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.losses import dkd_loss, gradient_at_output
from bench.distillation.noisy_labels import Plan
from bench.distillation.replay import balanced
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dpsd.dpsd import Dpsd

PLAN = Plan(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=math.inf, iterations=1)


class Spy(nn.Module):
    """Counts how often, with how many images and with or without gradients a network is asked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.asked: list[int] = []
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(len(x))
        self.with_gradient += x.requires_grad
        return self.model(x)

    def features(self, x: Tensor) -> Tensor:
        self.with_gradient += x.requires_grad
        return self.model.features(x)  # type: ignore[operator]


class Fixed(nn.Module):
    """Answers every batch with the same logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[: len(x)]


def smoke(**given: str) -> Dpsd:
    return configure(Dpsd, "smoke", given, "method")


def convert(teacher: Teacher | None = None, budget: Budget | None = None, **given: str) -> Release:
    torch.manual_seed(0)
    return smoke(**given).convert(teacher or toy_teacher(), "datalens", budget or Budget(10.0), context())


def annotate(method: Dpsd, ours: Tensor, theirs: Tensor, plan: Plan, seed: int = 0) -> Tensor:
    toy = toy_teacher()
    teacher = Teacher(Fixed(theirs), "datalens", toy.shape, ours.shape[1], "toy")
    noise = torch.Generator().manual_seed(seed)
    return method._annotate(torch.zeros(len(ours), *SHAPE), Fixed(ours), teacher, plan, noise, plan.k)


@pytest.mark.parametrize("mode", ["data", "label"])
def test_the_ledger_counts_what_the_teacher_was_asked(mode: str) -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(replace(toy, model=spy), mode=mode, student_steps="3", generator_steps="2")
    assert spy.asked == [16, 16, 16], "three batches of 16, however many steps student and generator take"
    assert spy.with_gradient == 0, "the generator must not see the teacher"
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == (3 if mode == "data" else 3 * 16)


def test_wide_batches_are_asked_about_all_classes_and_entered_as_such() -> None:
    release = convert(mode="label", wide="1", label_batches="2", latents="fresh", k="2", student_steps="2")
    assert [(e.count, e.event.num_buckets) for e in release.ledger.entries(Unit.EXAMPLE)] == [(16, CLASSES), (80, 2)]


def test_dpsd_t_lets_the_teacher_train_the_generator_and_says_so() -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(replace(toy, model=spy), discriminator="teacher")
    assert spy.with_gradient > 0
    assert any("NonPrivate" in type(e.event).__name__ for e in release.ledger.entries(Unit.EXAMPLE))


def test_an_answer_is_the_step_of_equation_3() -> None:
    """Without noise and with k = c: y = p_s - gamma beta g / (||g|| + h), g the gradient of Eq. 2 at the logits."""
    torch.manual_seed(1)
    ours, theirs = torch.randn(5, CLASSES), torch.randn(5, CLASSES) * 3
    method = smoke(gamma_s="0.5")
    gradient = gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), ours, theirs)
    by_hand = ours.softmax(1) - 0.5 * 0.01 * gradient / (gradient.norm(dim=1, keepdim=True) + 1e-4)
    assert torch.allclose(annotate(method, ours, theirs, PLAN), by_hand, atol=1e-7)


def test_top_k_keeps_the_largest_and_noise_covers_the_rest() -> None:
    torch.manual_seed(1)
    ours, theirs = torch.randn(200, CLASSES), torch.randn(200, CLASSES) * 3
    method = smoke(gamma_s="100.0")
    silent = ours.softmax(1) - annotate(method, ours, theirs, replace(PLAN, k=2))
    assert ((silent.abs() > 1e-7).sum(1) == 2).all()
    noisy = ours.softmax(1) - annotate(method, ours, theirs, replace(PLAN, k=2, sigma=1.0))
    assert (noisy != 0).all()


@pytest.mark.parametrize("scale", [1.0, 2 / 3, 3 / 2])
def test_the_noise_of_an_answer_has_standard_deviation_sigma_beta(scale: float) -> None:
    torch.manual_seed(2)
    ours, theirs = torch.randn(2000, CLASSES), torch.randn(2000, CLASSES)
    plan = replace(PLAN, sigma=3.0)
    method = smoke(gamma_s="1.0")
    noise = annotate(method, ours, theirs, PLAN) - annotate(method, ours, theirs, plan)
    p = stats.kstest(noise.flatten().double().numpy(), "norm", args=(0, 3.0 * 0.01 * scale)).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6


def test_every_row_has_its_own_noise_or_all_share_one() -> None:
    ours, theirs = torch.zeros(6, CLASSES), torch.eye(CLASSES)[torch.zeros(6, dtype=torch.long)] * 5
    plan = replace(PLAN, sigma=1.0)
    own = annotate(smoke(), ours, theirs, plan)
    assert len(own.unique(dim=0)) == 6
    shared = annotate(smoke(noise="batch"), ours, theirs, plan)
    assert len(shared.unique(dim=0)) == 1


def test_label_mode_answers_a_candidate_of_the_student() -> None:
    torch.manual_seed(3)
    ours, theirs = torch.randn(300, CLASSES), torch.randn(300, CLASSES)
    plan = replace(PLAN, k=2, answer_epsilon=1.0)
    answers = annotate(smoke(mode="label"), ours, theirs, plan)
    assert ((answers == 0) | (answers == 1)).all() and (answers.sum(1) == 1).all()
    inside = (ours.topk(2, 1).indices == answers.argmax(1, keepdim=True)).any(1)
    assert inside.all()
    printed = annotate(smoke(mode="label", response="printed"), ours, theirs, plan)
    assert not (ours.topk(2, 1).indices == printed.argmax(1, keepdim=True)).any(1).all()


def test_label_mode_without_noise_repeats_the_teacher_where_it_can() -> None:
    torch.manual_seed(4)
    ours, theirs = torch.randn(100, CLASSES), torch.randn(100, CLASSES)
    answers = annotate(smoke(mode="label"), ours, theirs, PLAN)
    assert torch.equal(answers.argmax(1), theirs.argmax(1))


@pytest.mark.parametrize(("loss", "noise"), [("kd", 0.0), ("kd", 0.1), ("dkd", 0.0)])
def test_the_posterior_finds_a_sure_teachers_class(loss: str, noise: float) -> None:
    torch.manual_seed(5)
    ours, r = torch.randn(200, CLASSES), torch.randint(0, CLASSES, (200,))
    theirs = torch.nn.functional.one_hot(r, CLASSES).float() * 6
    targets = annotate(smoke(reading="posterior", loss=loss), ours, theirs, replace(PLAN, sigma=noise))
    assert torch.allclose(targets.sum(1), torch.ones(200), atol=1e-5)
    assert (targets.argmax(1) == r).float().mean() > 0.95


def test_the_posterior_gives_up_when_noise_drowns_the_answer() -> None:
    torch.manual_seed(6)
    ours, theirs = torch.randn(200, CLASSES), torch.randn(200, CLASSES) * 5
    targets = annotate(smoke(reading="posterior", loss="kd"), ours, theirs, replace(PLAN, sigma=1000.0))
    assert (targets.amax(1) < 0.3).all()


def test_balanced_choice_evens_out_the_students_classes() -> None:
    images = torch.zeros(1000, *SHAPE)
    images[:900] += 1
    logits = torch.where(images[:, :1, 0, 0] > 0, torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]]))

    class Brightness(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, :1, 0, 0] > 0, torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]]))

    assert logits.argmax(1).float().mean() == pytest.approx(0.1)
    chosen = balanced(images, Brightness(), 200, torch.Generator().manual_seed(0))
    assert 0.25 < float((chosen[:, 0, 0, 0] == 0).float().mean()) < 0.65


SWITCHES = {
    "mode": ["data", "label"],
    "noise": ["row", "batch"],
    "latents": ["trained", "fresh"],
    "discriminator": ["student", "teacher"],
    "reading": ["step", "posterior"],
}


@pytest.mark.parametrize("chosen", list(itertools.product(*SWITCHES.values())), ids="-".join)
def test_every_combination_of_switches_runs_or_is_refused(chosen: tuple[str, ...]) -> None:
    if {"data", "batch", "posterior"} <= set(chosen):
        with pytest.raises(BenchError, match="one image's own answer"):
            convert(**dict(zip(SWITCHES, chosen, strict=True)))
        return
    release = convert(**dict(zip(SWITCHES, chosen, strict=True)))
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "kd"},
        {"bound": "clip"},
        {"top_by": "value"},
        {"optimizer": "sgd"},
        {"images": "strokes", "augment": "true", "student_steps": "2"},
        {"entropy": "sample", "activation": "down"},
        {"ce_weight": "0", "ie_weight": "0", "norm_weight": "0", "latents": "fresh"},
        {"decay": "true", "choose": "2", "latents": "fresh"},
        {"mode": "label", "response": "printed"},
    ],
    ids=lambda given: "-".join(given),
)
def test_every_other_option_runs(given: dict[str, str]) -> None:
    assert convert(**given).ledger.entries(Unit.EXAMPLE)


def test_switching_a_generator_term_off_changes_what_is_made() -> None:
    def generator(**given: str) -> Tensor:
        made = convert(budget=Budget(math.inf, solve="none"), generator_steps="3", **given).generator
        assert made is not None
        return torch.cat([p.detach().flatten() for p in made.parameters()])

    whole = generator()
    for term in ("ce_weight", "ie_weight", "norm_weight"):
        assert not torch.equal(whole, generator(**{term: "0"}))


def test_an_infinite_budget_has_no_noise_and_no_promise() -> None:
    release = convert(budget=Budget(math.inf, solve="none"))
    assert release.solved["sigma"] == 0 and release.claim is not None and math.isinf(release.claim.epsilon)


@pytest.mark.parametrize(("dataset", "classes", "k"), [("mnist", 10, 3), ("cifar100", 100, 50), ("x", 2, 2)])
def test_k_is_the_papers_for_the_data_set(dataset: str, classes: int, k: int) -> None:
    assert Dpsd().plan(Budget(10.0), dataset, classes).k == k


@pytest.mark.parametrize(("epsilon", "beta"), [(0.5, 1e-3), (1.0, 1e-3), (1.1, 5e-3), (10.0, 5e-3)])
def test_beta_is_the_papers_for_the_budget(epsilon: float, beta: float) -> None:
    assert Dpsd().plan(Budget(epsilon), "mnist", 10).beta == beta


@pytest.mark.parametrize("given", [{"k": 11}, {"k": 1}])
def test_k_outside_two_to_c_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="2 to 10"):
        Dpsd(**given).check(Budget(10.0), "mnist", 10)


@pytest.mark.parametrize(
    "given", [{"iterations": 0}, {"label_batches": 2}, {"batch": 0}, {"gamma_s": 0.0}, {"sigma": -1.0}]
)
def test_impossible_fields_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Dpsd(**given)
