"""DP-DFD: responses and their reading, options, golden students, ledger, budgets, and the audit game."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from dp_dfd_made import learning, norm_teacher, printed
from methods_made import Fixed, Spy, convert
from torch import Tensor, nn

from bench import nets
from bench.api import Teacher
from bench.config import configure
from bench.distillation.training import ReplayBuffer
from bench.distillation.transcription.likelihoods import likelihood_loss
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame, audit
from bench.testing import CLASSES, SHAPE, MethodContract, toy_teacher
from methods.dp_dfd.accounting import ResponsePlan
from methods.dp_dfd.dp_dfd import DpDfd, candidates, kl_loss, respond
from methods.dp_dfd.working import DpDfdWorking


class TestPrinted(MethodContract):
    plugin = DpDfd

    def teacher(self) -> Teacher:
        return norm_teacher()


EQUATIONS = {"follow": "equations", "responses": "soft"}


ALONE = {"committee": "1"}


GOLDEN = [
    (DpDfd, "toy", 10.0, {}, [-0.122769, -0.750046, 1.694773, -0.243904]),
    (DpDfd, "toy", 1.0, EQUATIONS, [0.123025, 0.008411, -0.051386, -0.006666]),
    (DpDfdWorking, "toy", 10.0, ALONE, [-0.439986, -0.605277, 1.889449, -0.456330]),
    (DpDfdWorking, "digits", 1.0, ALONE, [-0.364253, -0.322284, 1.565242, -0.543729]),
]


@pytest.mark.usefixtures("usual_draws")
@pytest.mark.parametrize(("cls", "dataset", "target", "given", "logits"), GOLDEN)
def test_golden_students(
    cls: type[Any], dataset: str, target: float, given: dict[str, str], logits: list[float]
) -> None:
    """Golden values: of the printed variant's first version, and of the working variant's second one."""
    torch.manual_seed(0)
    resnet = nets.build("resnet10t", SHAPE, CLASSES).eval().requires_grad_(False)
    teacher = Teacher(resnet, "resnet10t", SHAPE, CLASSES, "toy") if cls is DpDfd else toy_teacher()
    release = convert(configure(cls, "smoke", given, "method"), replace(teacher, dataset=dataset), Budget(target))
    with torch.no_grad():
        found = release.student(torch.linspace(0, 1, 256).view(1, 1, 16, 16))
    assert found[0].tolist() == pytest.approx(logits, abs=1e-4)
    stages, asked = (2, 32) if cls is DpDfd else (48, 48)
    assert release.solved == {"threshold": 0.125, "stages": stages, "answers": asked, "answer_epsilon": target}
    assert release.claim is not None and (release.claim.epsilon, release.claim.delta) == (target, 0)


@pytest.mark.usefixtures("usual_draws")
def test_golden_student_of_an_accounted_budget() -> None:
    release = convert(learning(**ALONE), toy_teacher(), Budget(10.0, account="accounted"))
    with torch.no_grad():
        found = release.student(torch.linspace(0, 1, 256).view(1, 1, 16, 16))
    assert found[0].tolist() == pytest.approx([0.004756, -0.562421, 0.707300, 0.130557], abs=1e-4)
    assert release.solved["answer_epsilon"] == pytest.approx(0.301515, rel=1e-5)
    assert account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(9.999796, rel=1e-5)


def test_candidates_by_hand() -> None:
    y_s = torch.tensor(
        [[0.50, 0.30, 0.15, 0.05], [0.05, 0.93, 0.00, 0.02], [0.26, 0.24, 0.25, 0.25], [0.125, 0.125, 0.25, 0.50]]
    )
    assert candidates(y_s, 0.125).tolist() == [
        [True, True, True, False],
        [True, True, False, False],
        [True, True, True, True],
        [False, False, True, True],
    ]
    none = candidates(y_s, 0.9)
    assert none[0].tolist() == [True, True, False, False], "|I| = 0 gives the top two"
    assert (none.sum(1) == 2).all()


@pytest.mark.parametrize("sure", [0.9, 0.3], ids=["one above t", "none above t"])
def test_respond_counts_k_after_the_top_two(sure: float) -> None:
    """With the k of before, the teacher's class would be kept always (k = 1) or with a probability above 1 (k = 0)."""
    n = 40_000
    y_s = torch.tensor([[sure, (1 - sure) * 0.4, (1 - sure) * 0.3, (1 - sure) * 0.3]]).expand(n, -1)
    allowed = candidates(y_s, 0.5)
    y_t = torch.tensor([[0.0, 3.0, 0.0, 0.0]]).expand(n, -1)
    answers = respond(allowed, y_t, 1.0, torch.Generator().manual_seed(0)).mean(0)
    kept = math.e / (math.e + 1)
    assert answers[1] == pytest.approx(kept, abs=5 * math.sqrt(kept * (1 - kept) / n))
    assert answers[0] == pytest.approx(1 - kept, abs=0.012) and answers[2:].sum() == 0


def test_respond_soft_returns_the_teachers_vector() -> None:
    y_t = torch.tensor([[0.0, 2.0, 1.0, 0.0]]).expand(2000, -1)
    allowed = torch.tensor([[True, True, False, False]]).expand(2000, -1)
    answers = respond(allowed, y_t, 1.0, torch.Generator().manual_seed(0), soft=True)
    own = (answers == y_t.softmax(1)).all(1)
    assert 0.65 < own.float().mean() < 0.81
    assert (answers[~own] == torch.tensor([1.0, 0.0, 0.0, 0.0])).all()


def readings(method: DpDfdWorking, ours: Tensor, theirs: Tensor, epsilon: float, threshold: float) -> Tensor:
    """Return the working variant's reading of one response for each row of logits."""
    asked, noise = ResponsePlan(threshold, len(ours), 1, epsilon), torch.Generator().manual_seed(0)
    return method.query_teacher(torch.zeros(len(ours), *SHAPE), ours, Fixed(theirs), asked, noise)


@pytest.mark.parametrize(("sure", "k"), [([0.6, 0.38, 0.01, 0.01], 2), ([0.4, 0.3, 0.29, 0.01], 3)])
def test_reading_is_the_likelihood_of_the_response(sure: list[float], k: int) -> None:
    """epsilon = 1: e / (e + k - 1) for the class that was answered, 1 / (e + k - 1) for another candidate, else 1/k."""
    ours = torch.tensor([sure]).log().expand(300, -1)
    theirs = torch.randn(300, CLASSES, generator=torch.Generator().manual_seed(1)) * 3
    found = readings(learning(), ours, theirs, 1.0, 0.05).exp()
    stay, leave = math.e / (math.e + k - 1), 1 / (math.e + k - 1)
    assert torch.allclose(found[:, :k].sort(1).values, torch.tensor([*[leave] * (k - 1), stay]), atol=1e-6)
    assert torch.allclose(found[:, k:], torch.tensor(1 / k), atol=1e-6)
    among = theirs.argmax(1) < k
    assert float((found.argmax(1) == theirs.argmax(1))[among].float().mean()) == pytest.approx(stay, abs=0.1)


def test_printed_reading_is_the_one_hot_response() -> None:
    ours, theirs = torch.randn(40, CLASSES), torch.randn(40, CLASSES)
    one_hot = readings(learning(reading="printed"), ours, theirs, 1.0, 0.125)
    likely = readings(learning(), ours, theirs, 1.0, 0.125)
    assert torch.equal(one_hot.exp().sum(1), torch.ones(40)) and set(one_hot.exp().unique().tolist()) == {0.0, 1.0}
    assert torch.equal(one_hot.argmax(1), likely.argmax(1)), "the same answer, read otherwise"
    loss = float(likelihood_loss(ours, one_hot))
    assert loss == pytest.approx(float(kl_loss(ours, one_hot.exp())), rel=1e-5)


def test_student_losses_by_hand() -> None:
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    onehot, soft = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    assert float(kl_loss(logits, onehot)) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    by_hand = (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25) + math.log(2)) / 2
    assert float(kl_loss(logits, soft)) == pytest.approx(by_hand)


@pytest.mark.thorough
def test_likelihood_reading_recovers_the_class_law() -> None:
    """Minimising it over one shared output recovers the teacher's class frequencies; Eq. 3 recovers the noisy ones."""
    rng = torch.Generator().manual_seed(0)
    truth = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 30_000, True, generator=rng)
    truths, flat = nn.functional.one_hot(truth, 3).float(), torch.zeros(len(truth), 3)
    answers = respond(torch.ones(len(truth), 3, dtype=torch.bool), truths, 1.0, rng)
    found = {}
    for name, loss, targets in [
        ("likelihood", likelihood_loss, readings(learning(), flat, truths, 1.0, 0.1)),
        ("answer", kl_loss, answers),
    ]:
        logits = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.Adam([logits], lr=0.05)
        for _ in range(150):
            optimizer.zero_grad()
            loss(logits.expand(len(truth), -1), targets).backward()
            optimizer.step()
        found[name] = logits.softmax(0).tolist()
    assert found["likelihood"] == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    assert found["answer"][0] < 0.5


@pytest.mark.parametrize(
    "given",
    [
        *({"responses": each, "follow": follow} for each in ("onehot", "soft") for follow in ("text", "equations")),
        {"pretrain_steps": "0", "finetune_steps": "0"},
        {"ce_weight": "0", "alpha": "0"},
    ],
    ids=str,
)
def test_printed_options_run(given: dict[str, str]) -> None:
    release = convert(printed(**given))
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())
    assert release.ledger.entries(Unit.EXAMPLE)


@pytest.mark.parametrize(
    ("method", "kept"), [(printed(stages="3"), [16, 32, 48]), (printed(stages="3", follow="equations"), [16, 16, 16])]
)
def test_follow_decides_whether_responses_are_reused(
    monkeypatch: pytest.MonkeyPatch, method: DpDfd, kept: list[int]
) -> None:
    seen: list[int] = []
    original = ReplayBuffer.sample

    def watched(answers: ReplayBuffer, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        images, targets = original(answers, count, rng)
        seen.append(sum(map(len, answers.images)))
        return images, targets

    monkeypatch.setattr(ReplayBuffer, "sample", watched)
    convert(replace(method, queries=48, student_steps=1))
    assert seen == kept


PLAYS = 60_000
FREE = Budget(None, solve="none")
BOTH = [DpDfd, DpDfdWorking]


def test_printed_generator_is_not_private_in_the_ledger() -> None:
    toy = toy_teacher()
    spy = Spy(toy.model)
    release = convert(printed(pretrain_steps="3"), replace(toy, model=spy))
    assert spy.with_gradient == 3, "line 1 only: fine-tuning queries the student"
    assert spy.queried == [16, 16]
    assert any("NonPrivate" in type(e.event).__name__ for e in release.ledger.entries(Unit.EXAMPLE))
    assert release.ledger.entries(Unit.EXAMPLE)[1].count == 32
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    assert account(release.ledger, Unit.QUERY, 1e-5).epsilon == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_few_responses_compose(n: int, epsilon: float) -> None:
    ledger = DpDfdWorking().ledger(ResponsePlan(0.05, n, 1, epsilon))
    found = account(ledger, Unit.EXAMPLE, 1e-9)
    assert found.epsilon == pytest.approx(n * epsilon, rel=1e-3) and found.epsilon <= n * epsilon * (1 + 1e-9)
    assert account(ledger, Unit.QUERY, 1e-9).epsilon == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "budget"),
    [(printed(responses="soft"), Budget(1.0)), (printed(), Budget(math.inf)), (learning(), Budget(math.inf))],
    ids=["soft", "no noise", "no noise, working"],
)
def test_soft_responses_have_infinite_epsilon(method: Any, budget: Budget) -> None:
    release = convert(method, budget=budget)
    for unit in (Unit.EXAMPLE, Unit.QUERY):
        assert math.isinf(account(release.ledger, unit, 1e-5).epsilon)
    assert release.claim is not None and release.claim.epsilon == budget.epsilon and release.claim.delta == 0
    soft = getattr(method, "responses", "") == "soft"
    assert bool(release.claim.disputed) == soft, "infinity is a true claim of answers without noise"


def plan(cls: type[Any], budget: Budget, **fields: Any) -> ResponsePlan:
    return cls(**fields).plan(budget, "mnist", 10)


def test_plan_is_the_papers() -> None:
    found, ours = plan(DpDfd, FREE), plan(DpDfdWorking, FREE)
    assert found.threshold == ours.threshold == 0.05
    assert found.stages == 320 and found.answers == 50_000 // 320 * 320
    assert DpDfd().plan(FREE, "fmnist", 10).share == 120_000 // 320
    assert ours.answers == 50_000 and DpDfdWorking().plan(FREE, "fmnist", 10).answers == 120_000
    assert DpDfd(alpha=1.0) != DpDfd() == DpDfd(alpha=5.0, beta=10.0)


@pytest.mark.parametrize("cls", BOTH)
def test_claimed_budget_is_one_responses_epsilon(cls: type[Any]) -> None:
    assert plan(cls, Budget(3.0)).answer_epsilon == 3
    assert plan(cls, Budget(3.0, account="accounted", unit=Unit.QUERY)).answer_epsilon == 3
    assert plan(cls, Budget(3.0, solve="none"), answer_epsilon=0.7).answer_epsilon == 0.7
    assert plan(cls, FREE, answer_epsilon=0.7).answer_epsilon == 0.7
    assert math.isinf(plan(cls, Budget(math.inf)).answer_epsilon)


def test_accounted_budget_is_met_by_all_responses() -> None:
    budget = Budget(4.0, account="accounted")
    method = DpDfdWorking(queries=200)
    found = method.plan(budget, "mnist", 10)
    cost = account(method.ledger(found), Unit.EXAMPLE, budget.delta).epsilon
    assert 4 / 200 < found.answer_epsilon < 0.2 and 3.99 < cost <= 4


def test_solve_steps_finds_the_number_of_responses() -> None:
    budget = Budget(4.0, account="accounted", solve="steps")
    method = DpDfdWorking(queries=20, answer_epsilon=0.05)
    found = method.plan(budget, "mnist", 10)
    more = replace(found, stages=found.stages + 1)
    assert found.answers > 20 and found.answer_epsilon == 0.05
    assert account(method.ledger(found), Unit.EXAMPLE, budget.delta).epsilon <= 4
    assert account(method.ledger(more), Unit.EXAMPLE, budget.delta).epsilon > 4


def game(budget: Budget, classes: int = 10, **fields: Any) -> DistinguishingGame:
    return DpDfd(**fields).game(budget, "mnist", classes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cls", "classes", "epsilon"),
    [*((DpDfd, classes, epsilon) for classes in (2, 10) for epsilon in (0.5, 3.0)), (DpDfdWorking, 10, 3.0)],
)
def test_audit_does_not_refute_one_hot_responses(cls: type[Any], classes: int, epsilon: float) -> None:
    found = audit(cls().game(Budget(epsilon), "mnist", classes), PLAYS)
    assert found.claimed == epsilon == pytest.approx(found.accounted, rel=1e-3)
    assert 0.8 * epsilon < found.lower_bound <= epsilon and found.verdict == "not refuted"


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_audit_refutes_soft_responses(epsilon: float) -> None:
    found = audit(game(Budget(epsilon), responses="soft"), PLAYS)
    assert found.verdict == "refuted" and found.lower_bound > epsilon + 1 and math.isinf(found.accounted)


@pytest.mark.thorough
def test_audit_refutes_k_before_the_top_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the answer is drawn with the k = 1 that line 5 sets, which keeps the label always."""
    from methods.dp_dfd import dp_dfd

    def planted(labels: Tensor, allowed: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
        odds = math.inf if int(allowed[0].sum()) == 2 else epsilon
        return original(labels, allowed, odds, generator)

    original = dp_dfd.selective_response
    monkeypatch.setattr(dp_dfd, "selective_response", planted)
    for cls in BOTH:
        assert audit(cls().game(Budget(1.0), "mnist", 10), PLAYS).verdict == "accountant refuted"
