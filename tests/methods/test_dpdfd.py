"""Algorithm 1 of DPDFD and section 4.4: each line by hand, who asks the teacher what, and that the ledger tells."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import stats
from torch import Tensor, nn

from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.noisy_labels import Plan
from bench.errors import BenchError
from bench.nets import Classifier, Ensemble, SmallNet
from bench.privacy import Budget, Unit
from bench.privacy.accountant import epsilon
from bench.privacy.audit import audit
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher
from methods.dpdfd.dpdfd import Dpdfd

P_T, P_S = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]
PLAN = Plan(k=3, beta=0.5, sigma=0.0, answer_epsilon=1.0, iterations=1)
FREE = Budget(None, solve="none")


class Spy(nn.Module):
    """Counts how often, with how many images and with or without gradients a network is asked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.asked: list[int] = []
        self.seen: list[Tensor] = []
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(len(x))
        self.seen.append(x.detach().clone())
        self.with_gradient += x.requires_grad
        return self.model(x)

    def features(self, x: Tensor) -> Tensor:
        self.with_gradient += x.requires_grad
        return self.model.features(x)  # type: ignore[operator]


class Fixed(nn.Module):
    """Answers every batch with the same logits, and shows the same features."""

    def __init__(self, logits: Tensor, shown: Tensor | None = None) -> None:
        super().__init__()
        self.logits = logits
        self.shown = logits if shown is None else shown

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[: len(x)]

    def features(self, x: Tensor) -> Tensor:
        return self.shown[: len(x)]


class Forbidden(nn.Module):
    """Must not be asked."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the teacher was asked")


def log(*rows: list[float]) -> Tensor:
    return torch.tensor(rows).log()


def smoke(**given: str) -> Dpdfd:
    return configure(Dpdfd, "smoke", given, "method")


def convert(teacher: Teacher | None = None, budget: Budget | None = None, **given: str) -> Release:
    torch.manual_seed(0)
    return smoke(**given).convert(teacher or toy_teacher(), "datalens", budget or Budget(10.0), context())


def annotate(method: Dpdfd, ours: Tensor, theirs: Tensor, plan: Plan, seed: int = 0) -> Tensor:
    teacher = Teacher(Fixed(theirs), "datalens", SHAPE, ours.shape[1], "toy")
    noise = torch.Generator().manual_seed(seed)
    return method._annotate(torch.zeros(len(ours), *SHAPE), Fixed(ours), teacher, plan, noise)


def test_line_7_by_hand() -> None:
    """The gradient of plain distillation is p_s - p_t = (-.2, .1, .1), of norm sqrt(.06) = .24495."""
    method = smoke(loss="kd", stability="0.1")
    g, norm = torch.tensor([[-0.2, 0.1, 0.1]]), math.sqrt(0.06)
    normalised = method._bounded_gradient(log(P_S), log(P_T), PLAN)
    assert torch.allclose(normalised, 0.5 * g / (norm + 0.1), atol=1e-6)
    clip = replace(method, bound="clip")
    assert torch.allclose(clip._bounded_gradient(log(P_S), log(P_T), PLAN), g, atol=1e-6), "shorter than C stays"
    tight = clip._bounded_gradient(log(P_S), log(P_T), replace(PLAN, beta=0.05))
    assert torch.allclose(tight, 0.05 * g / norm, atol=1e-6)


def test_lines_9_and_10_by_hand() -> None:
    """Two images: one shared mean step (as printed), or each its own; gamma, not the student's learning rate."""
    ours, theirs = log(P_S, P_T), log(P_T, [0.1, 0.2, 0.7])
    g = torch.tensor([[-0.2, 0.1, 0.1], [0.6, 0.0, -0.6]])
    bars = 0.5 * g / (g.norm(dim=1, keepdim=True) + 1e-4)
    p_s = torch.tensor([P_S, P_T])
    printed = smoke(loss="kd", gamma="0.3", gamma_s="0.9")
    assert printed.noise == "batch"
    assert torch.allclose(annotate(printed, ours, theirs, PLAN), p_s - 0.3 * (bars[:1] + bars[1:]) / 2, atol=1e-6)
    rows = replace(printed, noise="row")
    assert torch.allclose(annotate(rows, ours, theirs, PLAN), p_s - 0.3 * bars, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1.2, 1 / 1.2])
@pytest.mark.parametrize("noise", ["batch", "row"])
def test_the_noise_has_the_scale_that_line_9_prints(noise: Any, scale: float) -> None:
    """Per batch: one draw for all B images, of sigma C / B on the mean. Per row: its own draw, of sigma C."""
    method, plan, rng = Dpdfd(noise=noise), replace(PLAN, sigma=3.0, beta=0.01), torch.Generator().manual_seed(4)
    batch, draws = 4, 1500
    silence = torch.zeros(batch, CLASSES)
    noisy = torch.stack([method._noisy(silence, plan, rng) for _ in range(draws)])
    std = 0.03 / batch if noise == "batch" else 0.03
    if noise == "batch":
        assert (noisy == noisy[:, :1]).all()
        noisy = noisy[:, 0]
    p = stats.kstest(noisy.flatten().double().numpy(), "norm", args=(0, std * scale)).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6
    independent = torch.corrcoef(noisy.flatten(0, -2).T) - torch.eye(CLASSES)
    assert float(independent.abs().max()) < 0.1


def test_rows_have_draws_of_their_own() -> None:
    noisy = Dpdfd(noise="row")._noisy(torch.zeros(6, CLASSES), replace(PLAN, sigma=1.0), torch.Generator())
    assert len(noisy.unique(dim=0)) == 6


@pytest.mark.parametrize(
    ("entropy", "norm_of", "activation"),
    list(itertools.product(["batch", "sample"], ["features", "outputs"], ["up", "down"])),
)
def test_equation_5_by_hand(entropy: Any, norm_of: Any, activation: Any) -> None:
    judge = Fixed(log(P_S, P_T), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    method = Dpdfd(
        ce_weight=2.0, ie_weight=3.0, norm_weight=5.0, entropy=entropy, norm_of=norm_of, activation=activation
    )
    ce = -(math.log(0.5) + math.log(0.7)) / 2
    if entropy == "batch":
        ie = sum(p * math.log(p) for p in (0.6, 0.25, 0.15))
    else:
        ie = (sum(p * math.log(p) for p in P_S) + sum(p * math.log(p) for p in P_T)) / 2
    norm = (5 + 1) / 2 if norm_of == "features" else (math.sqrt(0.38) + math.sqrt(0.54)) / 2
    by_hand = 2 * ce + 3 * ie + (5 * norm if activation == "down" else -5 * norm)
    assert float(method.generator_loss(judge, torch.zeros(2, 1))) == pytest.approx(by_hand, rel=1e-5)
    without = replace(method, norm_weight=0.0)
    assert float(without.generator_loss(judge, torch.zeros(2, 1))) == pytest.approx(2 * ce + 3 * ie, rel=1e-5)


@pytest.mark.parametrize("norm_of", ["features", "outputs"])
@pytest.mark.parametrize("loss_s", ["true", "false"])
def test_the_teacher_is_asked_once_a_batch_and_never_trains_the_generator(loss_s: str, norm_of: str) -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(
        replace(toy, model=spy), loss_s=loss_s, norm_of=norm_of, student_steps="3", generator_steps="2", iterations="4"
    )
    assert spy.asked == [16] * 4 and spy.with_gradient == 0
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == 4


def test_line_14_is_of_the_images_and_answers_of_lines_3_and_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured as it happens: the generator learns on z of line 2 with y_s of line 10, in the order of Algorithm 1."""
    happened: list[tuple[str, Tensor]] = []
    vectors: list[Tensor] = []
    annotated, taught, made = Dpdfd._annotate, Dpdfd.update_student, Dpdfd.update_generator

    def annotate_(self: Dpdfd, images: Tensor, *rest: Any) -> Tensor:
        y_s = annotated(self, images, *rest)
        happened.extend([("D", images.clone()), ("y_s", y_s.clone())])
        return y_s

    def student_(self: Dpdfd, players: Any, images: Tensor, targets: Tensor, *rest: Any) -> None:
        happened.extend([("student sees", images.clone()), ("student learns", targets.clone())])
        taught(self, players, images, targets, *rest)

    def generator_(self: Dpdfd, players: Any, ctx: Any, judge: Any, targets: Any = None) -> None:
        spy = Spy(judge)
        vectors.append(players.z.detach().clone())
        made(self, players, ctx, spy, targets)
        happened.extend([("generator makes", spy.seen[0]), ("generator learns", targets)])

    monkeypatch.setattr(Dpdfd, "_annotate", annotate_)
    monkeypatch.setattr(Dpdfd, "update_student", student_)
    monkeypatch.setattr(Dpdfd, "update_generator", generator_)
    convert()
    assert len(happened) == 3 * 6
    for at in range(0, 18, 6):
        names, values = zip(*happened[at : at + 6], strict=True)
        assert names == ("D", "y_s", "student sees", "student learns", "generator makes", "generator learns")
        assert torch.equal(values[0], values[2]) and torch.equal(values[0], values[4])
        assert torch.equal(values[1], values[3]) and torch.equal(values[1], values[5])
    assert len(torch.cat(vectors).unique(dim=0)) == 3 * 16, "line 2 samples new vectors"


def test_without_loss_s_the_generator_learns_on_new_images_and_no_answers() -> None:
    method, ctx = smoke(loss_s="false"), context()
    players = method.players(toy_teacher(), "datalens", 1, ctx)
    images, judge = method._generate(players, ctx), Spy(players.student)
    method.update_generator(players, ctx, judge)
    assert not torch.equal(judge.seen[0], images)


@pytest.mark.parametrize("loss_s", [True, False])
def test_the_generators_step_descends_l_g_and_l_s_where_asked(loss_s: bool) -> None:
    """Plain steps of 0.5: the generator moves by -0.5 d(L_S + L_G)/d theta_g, the student not at all."""
    torch.manual_seed(0)
    method, ctx = smoke(optimizer="sgd", gamma_g="0.5", loss_s=str(loss_s).lower()), context()
    players = method.players(toy_teacher(), "datalens", 1, ctx)
    targets = torch.rand(16, CLASSES).softmax(1)
    players.student.eval()
    state = players.rng.get_state()
    z = players.z.detach() if loss_s else torch.randn(16, 8, generator=players.rng)
    players.rng.set_state(state)
    generator = copy.deepcopy(players.generator)
    images = generator(z)
    loss = method.generator_loss(players.student, images)
    if loss_s:
        loss = loss - (targets * players.student(images).log_softmax(1)).sum(1).mean()
    gradient = torch.autograd.grad(loss, list(generator.parameters()))
    method.update_generator(players, ctx, players.student, targets if loss_s else None)
    for before, after, g in zip(generator.parameters(), players.generator.parameters(), gradient, strict=True):
        assert torch.allclose(after, before - 0.5 * g, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("noise", "multiplier"), [("batch", 100 / (2 * 16)), ("row", 100 / (2 * 4))])
def test_the_ledger_has_sigma_over_what_a_record_may_move(noise: str, multiplier: float) -> None:
    ledger = convert(budget=FREE, noise=noise).ledger
    (example,), (query,) = ledger.entries(Unit.EXAMPLE), ledger.entries(Unit.QUERY)
    assert (example.event, example.count) == (GaussianDpEvent(multiplier), 3)
    assert (query.event, query.count) == (GaussianDpEvent(50.0), 1)


@pytest.mark.parametrize(("noise", "expected"), [("row", 28.84), ("batch", 2929.0)])
def test_the_golden_epsilons_of_the_ledger(noise: Any, expected: float) -> None:
    """B = 256, sigma = 100, T = 200: ../shared/privacy.md."""
    method = Dpdfd(noise=noise)
    ledger = method._mechanism(10).ledger(method.plan(FREE, 10))
    assert (method.batch, method.sigma, method.iterations) == (256, 100.0, 200)
    assert epsilon(ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("bound_and_steps", [(1e-3, 200, 0.0456), (1e-3, 40_000, 0.8046), (5e-3, 40_000, 4.7933)])
@pytest.mark.parametrize("noise", ["row", "batch"])
def test_the_claim_is_theorem_3(noise: Any, bound_and_steps: tuple[float, int, float]) -> None:
    bound, steps, expected = bound_and_steps
    method = Dpdfd(noise=noise, norm_bound=bound, iterations=steps)
    claim = method._mechanism(10).claim(method.plan(FREE, 10), 1e-5)
    assert claim is not None and claim.epsilon == pytest.approx(expected, abs=1e-4)
    assert claim.unit == Unit.QUERY and claim.source == "DPDFD, Theorem 3"


def test_a_release_says_what_it_solved_and_stays_within_its_claim() -> None:
    release = convert(budget=Budget(1.0))
    assert release.claim is not None and 0.999 < release.claim.epsilon <= 1
    assert release.solved["iterations"] == 3 and release.solved["sigma"] > 0
    sigma = convert(budget=Budget(1.0, account="accounted")).solved["sigma"]
    assert sigma > 100 * release.solved["sigma"], "the theorem understates what one record costs"


@pytest.mark.parametrize("noise", ["row", "batch"])
def test_the_audit_finds_theorem_3_too_small_and_the_ledger_large_enough(noise: Any) -> None:
    """At sigma = 2 and C = 1e-3, Theorem 3 says that one image's answer costs 0.1; the noise is 2 C, not 2."""
    method = Dpdfd(noise=noise, batch=2, norm_bound=1e-3, sigma=2.0)
    found = audit(method.game(FREE, "toy", 3), 6_000)
    assert found.claimed < 0.1 < 1 < found.lower_bound <= found.accounted and found.verdict == "refuted"


@pytest.mark.parametrize("aggregate", ["gradients", "votes"])
def test_many_teachers_make_no_claim_and_have_an_audit_that_holds(aggregate: Any) -> None:
    method = Dpdfd(teachers=5, aggregate=aggregate, sigma=1.0)
    assert method._mechanism(4).claim(method.plan(FREE, 4), 1e-5) is None
    found = audit(method.game(FREE, "toy", 4), 20_000)
    assert 0.5 < found.lower_bound <= found.accounted and found.verdict == "not refuted"


def ensemble_answer(method: Dpdfd, seed: int = 0, sigma: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Three teachers' answers to two images: targets, the student's probabilities, the noisy mean of section 4.4."""
    torch.manual_seed(2)
    members = Ensemble.build(["shard-cnn"], 3, SHAPE, CLASSES, range(3)).eval()
    ours, images, plan = torch.randn(2, CLASSES), torch.rand(2, *SHAPE), replace(PLAN, sigma=sigma)
    with torch.no_grad():
        rows = torch.stack([method._bounded_gradient(ours, logits, plan) for logits in members(images)])
    noise = torch.Generator().manual_seed(seed)
    total = Noise.of(torch.Generator().manual_seed(seed)).gaussian(rows.double().sum(0), sigma * 0.5).float()
    targets = method._answer(images, None, Fixed(ours), members, plan, method._bounded_gradient, noise)
    return targets, ours.softmax(1), total / 3


def test_many_teachers_are_averaged_image_by_image() -> None:
    """Section 4.4: g~_i = (sum_j C g_ij / (||g_ij|| + e) + N(0, sigma^2 C^2)) / n."""
    method = Dpdfd(teachers=3, gamma=0.3, gamma_s=0.3)
    targets, p_s, mean = ensemble_answer(method, sigma=2.0)
    assert torch.allclose(targets, p_s - 0.3 * mean, atol=1e-6)


def test_many_teachers_step_by_gamma_and_not_by_the_learning_rate() -> None:
    targets, p_s, mean = ensemble_answer(Dpdfd(teachers=3, gamma=0.3, gamma_s=0.9))
    assert torch.allclose(targets, p_s - 0.3 * mean, atol=1e-6)


def private_teacher(model: nn.Module | None = None) -> Teacher:
    return replace(toy_teacher(), model=model or Forbidden(), private=toy_private())


def test_direct_training_never_asks_the_teacher_and_proves_nothing() -> None:
    release = convert(private_teacher(), data="private")
    (entry,) = release.ledger.entries()
    assert isinstance(entry.event, NonPrivateDpEvent) and entry.unit == Unit.EXAMPLE
    assert math.isinf(epsilon(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    assert release.claim is not None and release.claim.unit == Unit.EXAMPLE and 9.9 < release.claim.epsilon <= 10
    assert release.generator is None and release.synthetic is None
    assert smoke(data="private").needs == {"private_data"}
    assert smoke().needs == {"teacher"}


@pytest.mark.parametrize("noise", ["batch", "row"])
def test_the_first_step_of_direct_training_by_hand(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise: y_s = p - gamma C g / (||g|| + e), g = p - onehot(label), on images of the private split."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def capture(self: Dpdfd, players: Any, images: Tensor, targets: Tensor, *rest: Any) -> None:
        with torch.no_grad():
            seen.append((images.clone(), targets.clone(), players.student(images).softmax(1)))

    monkeypatch.setattr(Dpdfd, "update_student", capture)
    budget = Budget(math.inf, solve="none")
    convert(private_teacher(), budget, data="private", noise=noise, direct_iterations="1", norm_bound="0.5")
    ((images, targets, p),) = seen
    private, labels = toy_private()
    same = (images[:, None] == private[None].float() / 255).flatten(2).all(2)
    assert (same.sum(1) == 1).all(), "every image is a private one"
    g = p - F.one_hot(labels[same.int().argmax(1)], CLASSES)
    bars = 0.5 * g / (g.norm(dim=1, keepdim=True) + 1e-4)
    step = bars.mean(0, keepdim=True) if noise == "batch" else bars
    assert torch.allclose(targets, p - 0.1 * step, atol=1e-6)


def test_the_rate_of_direct_training_falls_to_0_whatever_replay_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    taught = Dpdfd.update_student

    def watch(self: Dpdfd, players: Any, *rest: Any) -> None:
        rates.append(players.step_student.param_groups[0]["lr"])
        taught(self, players, *rest)
        rates.append(players.step_student.param_groups[0]["lr"])

    monkeypatch.setattr(Dpdfd, "update_student", watch)
    convert(private_teacher(), data="private", decay="true", student_steps="7", direct_iterations="4")
    assert len(rates) == 8 and rates[0] == 1e-3 and rates[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "budget", [Budget(8.0, account="accounted"), Budget(1.0, account="accounted", unit=Unit.QUERY)]
)
def test_direct_training_refuses_an_accounted_budget_in_one_line(budget: Budget) -> None:
    with pytest.raises(BenchError, match="nothing can be proved of direct training") as refused:
        Dpdfd(data="private").check(budget, "mnist", 10)
    assert "\n" not in str(refused.value)
    Dpdfd(data="private").check(Budget(8.0), "mnist", 10)


@pytest.mark.parametrize("unit", [Unit.QUERY, Unit.CLIENT])
def test_direct_training_refuses_a_unit_its_ledger_lacks_before_anything_is_trained(unit: Unit) -> None:
    with pytest.raises(BenchError, match="use --unit example"):
        Dpdfd(data="private").check(Budget(8.0, unit=unit), "mnist", 10)


def test_direct_training_solves_its_own_number_of_steps() -> None:
    method = Dpdfd(data="private", direct_iterations=77)
    assert method.plan(FREE, 10).iterations == 77
    solved = method.plan(Budget(2.0, solve="steps"), 10)
    assert solved.iterations == Dpdfd().plan(Budget(2.0, solve="steps"), 10).iterations != 77


@pytest.mark.parametrize(
    "given",
    [
        {"choose": 2},
        {"data": "private", "teachers": 3},
        {"norm_bound": 0.0},
        {"gamma": -0.1},
        {"direct_iterations": 0},
        {"prior_share": 1.0},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|leave out"):
        Dpdfd(**given)
    told = {name: str(value) for name, value in given.items()}
    with pytest.raises(BenchError, match="--method: ") as refused:
        configure(Dpdfd, "smoke", told, "method")
    assert "\n" not in str(refused.value)


class Halves(SmallNet):
    """Sees which half of the image is brighter: a teacher that needs no training."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.AvgPool2d((16, 8)), nn.Flatten())
        self.head = nn.Linear(2, 2)
        nn.init.zeros_(self.head.bias)
        self.head.weight.data.copy_(40 * torch.eye(2))


def halves(n: int = 400) -> tuple[Tensor, Tensor]:
    """Images brighter by 0.3 on the left (class 0) or on the right."""
    images = 0.6 * torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(n) % 2
    images[labels == 0, :, :, :8] += 0.3
    images[labels == 1, :, :, 8:] += 0.3
    return images, labels


def accuracy(release: Release) -> float:
    images, labels = halves()
    with torch.no_grad():
        return float((release.student(images).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("reading", ["step", "posterior"])
def test_a_student_learns_an_easy_teacher_from_noiseless_rows(reading: Any) -> None:
    torch.manual_seed(0)
    teacher = Teacher(Classifier(Halves()).eval(), "datalens", SHAPE, 2, "toy")
    method = Dpdfd(
        iterations=4, batch=64, latent=8, width=4, loss="kd", noise="row", reading=reading, gamma=50.0, gamma_s=2e-3,
        gamma_g=5e-3, loss_s=False, choose=2, student_steps=25, replay_batch=64, generator_steps=5, ie_weight=5.0,
        norm_weight=0.0,
    )  # fmt: skip
    release = method.convert(teacher, "shard-cnn", Budget(math.inf, solve="none"), context())
    assert accuracy(release) > 0.9


def test_direct_training_learns_without_noise() -> None:
    torch.manual_seed(0)
    images, labels = halves()
    teacher = Teacher(Forbidden(), "datalens", SHAPE, 2, "toy", private=((255 * images).to(torch.uint8), labels))
    method = Dpdfd(data="private", direct_iterations=80, batch=32, norm_bound=1.0, gamma=0.5, gamma_s=2e-3, noise="row")
    assert accuracy(method.convert(teacher, "shard-cnn", Budget(math.inf, solve="none"), context())) > 0.9
