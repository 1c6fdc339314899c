"""DPDFD's section 4.4, both variants: many teachers' gradients, and direct training on private images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from methods_made import Fixed, Forbidden
from scipy import stats
from torch import Tensor, nn

from bench import registry
from bench.api import Release, Teacher
from bench.config import Variant, configure
from bench.distillation.distinguishing_games import ensemble_game
from bench.distillation.losses import dkd_loss, gradient_at_output
from bench.distillation.noisy_labels import AnnotationParameters
from bench.errors import BenchError
from bench.nets import Classifier, Ensemble, SmallNet
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame, audit
from bench.privacy.claims import dpsd_theorem1
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher
from methods.dpdfd import direct_training
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpdfd.working import WorkingDpdfd

EIGHT, FREE = Budget(8.0, account="accounted"), Budget(math.inf, solve="none")
OWN = Budget(None, solve="none")
PARAMETERS = AnnotationParameters(k=CLASSES, beta=0.01, sigma=0.0, answer_epsilon=1.0, iterations=1)
VARIANTS = pytest.mark.parametrize("variant", ["printed", "working"])


def smoke(variant: Variant, **given: str) -> Any:
    return configure(registry.load("method", "dpdfd", variant), "smoke", given, "method", variant)


def members(n: int = 3) -> Ensemble:
    return Ensemble.build(("shard-cnn",), n, SHAPE, CLASSES, seeds=range(n)).eval().requires_grad_(False)


def many(ensemble: Ensemble | None = None) -> Teacher:
    return replace(toy_teacher(), model=Forbidden(), ensemble=ensemble or members())


def convert(variant: Variant, teacher: Teacher, budget: Budget = EIGHT, **given: str) -> Release:
    torch.manual_seed(0)
    return smoke(variant, **given).convert(teacher, "datalens", budget, context())


def answer(method: Any, ours: Tensor, theirs: list[Tensor], parameters: AnnotationParameters) -> Tensor:
    """Targets or readings of as many images as the student has rows, the teachers' logits being `theirs`."""
    ensemble = Ensemble([Fixed(logits) for logits in theirs], ours.shape[1])  # type: ignore[list-item]
    noise = torch.Generator().manual_seed(0)
    if isinstance(method, WorkingDpdfd):
        return method._query_teacher(torch.zeros(len(ours), *SHAPE), ours, ensemble, parameters, noise)
    return method._annotate(torch.zeros(len(ours), *SHAPE), Fixed(ours), ensemble, parameters, noise)


# Many teachers.


@pytest.mark.thorough
@VARIANTS
def test_ledger_counts_every_teachers_queries(variant: Variant) -> None:
    ensemble = members()
    asked: list[list[int]] = [[] for _ in ensemble.members]

    def noting(into: list[int]) -> Callable[..., None]:
        return lambda _module, given, _answer: into.append(len(given[0]))

    for member, into in zip(ensemble.members, asked, strict=True):
        member.register_forward_hook(noting(into))
    given = {"iterations": "4"} if variant == "printed" else {"queries": "64"}
    release = convert(variant, many(ensemble), teachers="3", **given)
    assert [sum(each) for each in asked] == [64] * 3, "once about every image"
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.event == GaussianDpEvent(release.solved["sigma"] / 2) and entry.count == 64
    assert account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(8, rel=1e-3)
    assert release.claim is None and (release.generator is not None) == (variant == "printed")


@VARIANTS
def test_infinite_budget_has_no_noise(variant: Variant) -> None:
    free = convert(variant, many(), FREE, teachers="3")
    assert free.solved["sigma"] == 0
    assert all(isinstance(entry.event, NonPrivateDpEvent) for entry in free.ledger.entries(Unit.EXAMPLE))
    with pytest.raises(RuntimeError, match="teacher_ensemble"):
        convert(variant, replace(many(), ensemble=None), teachers="3")


def test_many_teachers_are_averaged_per_image() -> None:
    """Section 4.4: y_i = p_i - gamma / n sum_j C g_ij / (||g_ij|| + e), gamma not being the learning rate."""
    torch.manual_seed(1)
    ours, theirs = torch.randn(5, CLASSES), list(torch.randn(3, 5, CLASSES) * 3)
    gradients = [gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), ours, of) for of in theirs]
    bars = torch.stack([0.01 * g / (g.norm(dim=1, keepdim=True) + 1e-4) for g in gradients])
    found = answer(Dpdfd(teachers=3, gamma=0.5, gamma_s=0.9), ours, theirs, PARAMETERS)
    assert torch.allclose(found, ours.softmax(1) - 0.5 * bars.mean(0), atol=1e-6)


@pytest.mark.parametrize("bound", ["normalise", "clip"])
def test_one_teacher_moves_the_sum_by_at_most_2c(bound: Any) -> None:
    torch.manual_seed(2)
    method, ours = Dpdfd(teachers=5, gamma=1.0, bound=bound), torch.randn(6, CLASSES)
    others = list(torch.randn(4, 6, CLASSES))
    sure = 60 * F.one_hot(torch.arange(6) % CLASSES, CLASSES).float()
    odd = [sure, -sure, sure.roll(1, 1), torch.full_like(sure, math.nan), sure * math.inf, torch.zeros_like(sure)]
    sums = [answer(method, ours, [*others, one], PARAMETERS) * 5 for one in odd]
    assert all(one.isfinite().all() for one in sums)
    distances = [(a - b).norm(dim=1).max().item() for a, b in itertools.combinations(sums, 2)]
    assert 0.01 < max(distances) <= 2 * 0.01 + 1e-5


def test_noise_on_the_sum_has_deviation_sigma_c() -> None:
    """Whatever the number of teachers; the target has it times gamma over n."""
    torch.manual_seed(3)
    method, ours, theirs = Dpdfd(teachers=3, gamma=1.0), torch.randn(5000, CLASSES), list(torch.randn(3, 5000, CLASSES))
    silent, noisy = (answer(method, ours, theirs, replace(PARAMETERS, sigma=sigma)) for sigma in (0.0, 40.0))
    noise: np.ndarray = ((noisy - silent) * 3).flatten().double().numpy()
    assert stats.kstest(noise, stats.norm(0, 0.4).cdf).pvalue > 0.01
    for wrong in (1 / 3, 1 / 2, 1 / math.sqrt(2), 1 / 1.1, 1.1, math.sqrt(2), 2, 3):
        assert stats.kstest(noise, stats.norm(0, wrong * 0.4).cdf).pvalue < 1e-6, wrong


def test_agreeing_teachers_dominate_the_noise() -> None:
    """300 teachers are sure of a class at sigma 40: the sum exceeds the noise, and that class is the most likely."""
    theirs = [torch.full((200, CLASSES), 0.0).index_fill(1, torch.tensor([1]), 5.0)] * 300
    got = answer(WorkingDpdfd(teachers=300), torch.zeros(200, CLASSES), theirs, replace(PARAMETERS, sigma=40.0))
    assert (got.argmax(1) == 1).float().mean() > 0.99


def played(variant: Variant, target: float = 1.0) -> DistinguishingGame:
    """One response, with the part of the budget that a release with one response has for it."""
    one = {"batch": "1", "iterations": "1"} if variant == "printed" else {"queries": "1"}
    return smoke(variant, teachers="5", **one).game(Budget(target, account="accounted"), "x", 3)


@pytest.mark.thorough
@VARIANTS
@pytest.mark.parametrize(("plays", "share"), [(200_000, 0.45), pytest.param(1_200_000, 0.6, marks=pytest.mark.slow)])
def test_audit_is_close_to_the_accounted_epsilon(variant: Variant, plays: int, share: float) -> None:
    found = audit(played(variant), plays, seed=0)
    assert found.accounted == pytest.approx(1, rel=1e-3) and found.delta == 1e-5
    assert found.verdict == "not refuted"
    assert share * found.accounted < found.lower_bound <= found.accounted


@pytest.mark.thorough
def test_audit_detects_halved_noise() -> None:
    method = Dpdfd(teachers=5, batch=1, iterations=1)
    parameters, mechanism = method.parameters(Budget(1.0, account="accounted"), 3), method._mechanism(3)
    half = replace(parameters, sigma=parameters.sigma / 2)
    careless = ensemble_game(lambda d, s, t, noise: method._annotate(d, s, t, half, noise), mechanism, parameters, 1e-5)
    found = audit(careless, 300_000, seed=1)
    assert found.accounted == pytest.approx(1, rel=1e-3) and found.verdict == "accountant refuted"


def test_game_worlds_differ_by_one_teacher() -> None:
    game = Dpdfd(teachers=5, sigma=0.0, norm_bound=0.01).game(OWN, "x", 4)
    rows = [game.play(hypothesis, 2, torch.Generator()).double() for hypothesis in (False, True)]
    target = Dpdfd.gamma / 2  # the step of line 10, along the mean of two teachers
    assert (rows[0] - rows[1]).norm(dim=1).tolist() == pytest.approx([0.02 * target] * 2, rel=1e-3)


# Direct training.


def private_teacher() -> Teacher:
    return replace(toy_teacher(), model=Forbidden(), private=toy_private())


@VARIANTS
def test_direct_training_has_infinite_epsilon(variant: Variant) -> None:
    release = convert(variant, private_teacher(), Budget(10.0), data="private")
    (entry,) = release.ledger.entries()
    assert isinstance(entry.event, NonPrivateDpEvent) and entry.unit == Unit.EXAMPLE
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    assert release.claim is not None and release.claim.unit == Unit.EXAMPLE and 9.9 < release.claim.epsilon <= 10
    assert release.claim.source == "DPDFD, Theorem 3, on private images"
    assert release.generator is None and release.synthetic is None
    with pytest.raises(RuntimeError, match="private_data"):
        convert(variant, toy_teacher(), Budget(10.0), data="private")


@VARIANTS
def test_direct_training_first_step_by_hand(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise: y_s = p - gamma C g / (||g|| + e), g = p - onehot(label), on images of the private split."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    students: list[nn.Module] = []
    build, cross_entropy = direct_training.nets.build, F.cross_entropy

    def built(*given: Any) -> nn.Module:
        students.append(build(*given))
        students[0].register_forward_pre_hook(lambda _, x: images.append(x[0]))
        return students[0]

    images: list[Tensor] = []

    def capture(logits: Tensor, targets: Tensor) -> Tensor:
        seen.append((images[0], targets, logits.detach().softmax(1)))
        return cross_entropy(logits, targets)

    teacher = private_teacher()
    monkeypatch.setattr(direct_training.nets, "build", built)
    monkeypatch.setattr(direct_training.F, "cross_entropy", capture)
    convert(variant, teacher, FREE, data="private", direct_iterations="1", norm_bound="0.5")
    ((x, targets, p),) = seen
    private, labels = toy_private()
    same = (x[:, None] == private[None].float() / 255).flatten(2).all(2)
    assert (same.sum(1) == 1).all(), "every image is a private one"
    g = p - F.one_hot(labels[same.int().argmax(1)], CLASSES)
    bars = 0.5 * g / (g.norm(dim=1, keepdim=True) + 1e-4)
    step = bars.mean(0, keepdim=True) if variant == "printed" else bars
    assert torch.allclose(targets, p - 0.1 * step, atol=1e-6), "and the student had no dropout"


@pytest.mark.thorough
@VARIANTS
def test_direct_training_noise_has_deviation_sigma_c(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every row, or as printed on the sum over the batch, here of two."""
    taken: list[Any] = []
    monkeypatch.setattr(direct_training, "train_directly", lambda *given, **_: taken.append(given[2]))
    convert(variant, private_teacher(), Budget(None, solve="none"), data="private", norm_bound="0.5", sigma="3")
    noise = torch.stack([taken[0](torch.zeros(2, CLASSES))[0] for _ in range(2000)]).flatten().double().numpy()
    std = 1.5 / 2 if variant == "printed" else 1.5
    assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 0.01
    for wrong in (1 / 2, 1 / math.sqrt(2), math.sqrt(2), 2):
        assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-6, wrong


@pytest.mark.thorough
@pytest.mark.parametrize(("variant", "last"), [("printed", 0.1), ("working", 0.0)])
def test_direct_training_rate(variant: Variant, last: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant as printed; the working variant's falls to 0."""
    rates: list[float] = []
    stepped = direct_training.descend

    def watch(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        stepped(optimizer, loss)

    monkeypatch.setattr(direct_training, "descend", watch)
    convert(variant, private_teacher(), Budget(10.0), data="private", direct_iterations="100")
    assert len(rates) == 100 and rates[-1] == pytest.approx(last, abs=1e-6)
    assert rates[0] == (0.1 if variant == "printed" else 2e-3)


@VARIANTS
def test_direct_training_solves_its_steps(variant: Variant) -> None:
    method = smoke(variant, data="private", direct_iterations="77")
    assert method.parameters(OWN, 10).iterations == 77
    steps = Budget(2.0, solve="steps")
    images = [each._mechanism(10).batch * each.parameters(steps, 10).iterations for each in (method, smoke(variant))]
    assert 77 * 16 < images[0] <= images[1] < images[0] + 16, "as many images as queries"


@VARIANTS
def test_direct_training_claims_theorem_3(variant: Variant) -> None:
    method = smoke(variant, data="private", batch="16", direct_iterations="77", norm_bound="0.001", sigma="2")
    claim = method._mechanism(10).claim(method.parameters(OWN, 10), 1e-5)
    by_hand = dpsd_theorem1(beta=1e-3, classes=10, batch=16, steps=77, sigma=2.0, delta=1e-5)
    assert claim is not None and claim.epsilon == pytest.approx(by_hand)


@VARIANTS
def test_direct_training_has_no_game(variant: Variant) -> None:
    with pytest.raises(BenchError, match="bench audit release"):
        smoke(variant, data="private").game(OWN, "mnist", 10)


# Both learn.


class Halves(SmallNet):
    """Sees which half of the image is brighter: a teacher that needs no training."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.AvgPool2d((16, 8)), nn.Flatten())
        self.head = nn.Linear(2, 2)
        nn.init.zeros_(self.head.bias)
        self.head.weight.data.copy_(40 * torch.eye(2))


def halves(n: int = 400) -> tuple[Tensor, Tensor]:
    images = 0.6 * torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(n) % 2
    images[labels == 0, :, :, :8] += 0.3
    images[labels == 1, :, :, 8:] += 0.3
    return images, labels


def accuracy(release: Release) -> float:
    images, labels = halves()
    with torch.no_grad():
        return float((release.student(images).argmax(1) == labels).float().mean())


@pytest.mark.thorough
@pytest.mark.parametrize("committee", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_student_learns_an_easy_teacher_without_noise(committee: int) -> None:
    torch.manual_seed(0)
    teacher = Teacher(Classifier(Halves()).eval(), "datalens", SHAPE, 2, "toy")
    method = WorkingDpdfd(queries=512, rounds=2, student_steps=160, jitter="off", prior="noise", committee=committee)
    release = method.convert(teacher, "shard-cnn", FREE, context())
    assert accuracy(release) > 0.9


def test_direct_training_learns_without_noise() -> None:
    torch.manual_seed(0)
    images, labels = halves()
    teacher = Teacher(Forbidden(), "datalens", SHAPE, 2, "toy", private=((255 * images).to(torch.uint8), labels))
    method = WorkingDpdfd(data="private", direct_iterations=80, batch=32, norm_bound=5.0)
    assert accuracy(method.convert(teacher, "shard-cnn", FREE, context())) > 0.9
