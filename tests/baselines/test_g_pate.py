"""G-PATE: who sees which record, votes by hand, what a coordinate costs and what is charged, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from scipy import stats
from torch import Tensor, nn

from baselines.g_pate import aggregation
from baselines.g_pate.aggregation import Aggregator, binned, midpoints, projections, read, votes
from baselines.g_pate.discriminators import Discriminators
from baselines.g_pate.g_pate import GPate, Training
from bench.api import uniform_latents
from bench.config import configure
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan
from bench.distillation.votes.pate import DIAGNOSTIC
from bench.dp_training.synthetic_data import Synthesis
from bench.errors import BenchError
from bench.gan.teacher_batches import TeacherBatches, panel_size
from bench.nets.conditional_gan import MlpCritic, MlpGenerator
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account, check_budget
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

FREE = Budget(None, solve="none")
PIXELS = math.prod(SHAPE)


def smoke(**given: str) -> GPate:
    return configure(GPate, "smoke", {"network": "mlp", **given}, "method", "printed")


def synthesise(by: GPate, budget: Budget = FREE, data: tuple[Tensor, Tensor] | None = None) -> Synthesis:
    return by.synthesise(*(data or toy_private()), toy_teacher(), budget, context())


def training(by: GPate, parts: list[np.ndarray], images: Tensor, labels: Tensor, noise: float = 0.0) -> Training:
    torch.manual_seed(0)
    generator = by.sampler(SHAPE, CLASSES, "toy").generator
    critics = by.critics(SHAPE, CLASSES, len(parts))
    plan = by.once(Aggregation("gaussian", noise), len(parts))
    batches = TeacherBatches(images, labels, CLASSES, parts)
    return Training(by, plan, batches, generator, uniform_latents(by.latent), critics, context())


def of_each(teachers: Discriminators) -> list[Tensor]:
    """One vector of weights per teacher."""
    blocks = [torch.cat([w.detach().flatten(1) for w in block.values()], 1) for block in teachers.blocks]
    return list(torch.cat(blocks))


def plan(noise: float, threshold: float, threshold_noise: float, asked: int, answers: int, teachers: int) -> VotePlan:
    return VotePlan(Aggregation("gaussian", noise, threshold, threshold_noise), answers, asked, teachers)


# The votes


def test_bins_and_midpoints_by_hand() -> None:
    """Five bins of [-1, 1] are 0.4 wide; both ends and what lies beyond belong to the outer ones."""
    given = torch.tensor([-9.0, -1.0, -0.61, -0.59, 0.0, 0.59, 0.61, 1.0, 9.0, math.inf, -math.inf, math.nan])
    assert binned(given, 1.0, 5).tolist() == [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 0, 2]
    assert midpoints(1.0, 5).tolist() == pytest.approx([-0.8, -0.4, 0.0, 0.4, 0.8])
    assert midpoints(1e-4, 10).tolist() == pytest.approx([(-9 + 2 * b) * 1e-5 for b in range(10)])


def test_an_aggregation_worked_by_hand() -> None:
    """Three teachers, an image of two pixels, P the identity: coordinates are pixels, c is 1, there are 5 bins.

    Pixel 1: 0.9, 0.7 and -0.5, bins 4, 4 and 1: two of three agree. Pixel 2: 0.1, 0.5 and -0.5: none do.
    """
    directions = torch.tensor([[[0.9, 0.1]], [[0.7, 0.5]], [[-0.5, -0.5]]])
    projection = torch.eye(2)[None]
    assert votes([directions[:2], directions[2:]], projection, 1.0, 5).tolist() == [[0, 1, 0, 0, 2], [0, 1, 1, 1, 0]]
    strict = Aggregator(plan(0, 1.5, 0, 2, 2, 3), 1.0, 5, "argmax", torch.Generator())
    assert strict([directions], projection).tolist() == [[pytest.approx(0.8), 0.0]]
    assert (strict.asked, strict.answered) == (2, 1)
    mean = Aggregator(plan(0, 0, 0, 2, 2, 3), 1.0, 5, "mean", torch.Generator())
    assert mean([directions], projection)[0].tolist() == pytest.approx([(0.8 + 0.8 - 0.4) / 3, (0 + 0.4 - 0.4) / 3])


def test_answers_go_back_to_their_own_image_through_its_own_projection() -> None:
    """Two images with projections to different pixels: each is moved along its own one."""
    projection = torch.zeros(2, 3, 1)
    projection[0, 0, 0], projection[1, 2, 0] = 1.0, 2.0
    directions = torch.tensor([[[0.9, 0.9, 0.9], [-0.4, -0.4, -0.4]]])
    found = Aggregator(plan(0, 0, 0, 2, 2, 1), 1.0, 5, "argmax", torch.Generator())([directions], projection)
    assert found.tolist() == [[pytest.approx(0.8), 0, 0], [0, 0, pytest.approx(-1.6)]]


def test_projections_are_of_variance_one_over_k_and_give_the_gradient_back_on_average() -> None:
    made = projections(4000, 6, 5, torch.Generator().manual_seed(0))
    spread = made.double().flatten() * math.sqrt(5)
    assert stats.kstest(spread.numpy(), "norm").pvalue > 0.01 > 1e-6 > stats.kstest(1.1 * spread.numpy(), "norm").pvalue
    g = torch.arange(6.0)
    back = torch.einsum("nij,nkj,k->ni", made, made, g).mean(0)
    assert torch.allclose(back, g, atol=0.4)


def test_one_teachers_change_moves_two_counts_of_each_histogram_by_one() -> None:
    """Whatever it becomes: sqrt(2) in L2 for a coordinate, 1 for the fullest bin."""
    rng = torch.Generator().manual_seed(0)
    directions, projection = torch.randn(9, 4, 20, generator=rng), projections(4, 20, 6, rng)
    before = votes([directions], projection, 0.5, 10)
    for change in (1e30, math.nan, math.inf, 0.0):
        other = directions.clone()
        other[3] *= change
        moved = votes([other], projection, 0.5, 10) - before
        assert (moved.sum(1) == 0).all() and moved.abs().sum(1).max() == 2
        assert moved.norm(dim=1).max() == pytest.approx(math.sqrt(2))
        assert (votes([other], projection, 0.5, 10).amax(1) - before.amax(1)).abs().max() <= 1


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_noise_on_counts_and_threshold_is_that_of_the_plan(factor: float) -> None:
    """Noisy counts of one agreeing teacher ensemble, and how often it passes the threshold; wrong scales are found."""
    seen: list[Tensor] = []

    def spy(counts: Tensor, clip: float, how: Any, teachers: int) -> Tensor:
        seen.append(counts)
        return read(counts, clip, how, teachers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "read", spy)
        made = Aggregator(plan(7, 40, 20, 5000, 5000, 30), 1.0, 10, "argmax", torch.Generator().manual_seed(2))
        made([torch.full((30, 1000, 5), 0.95)], torch.eye(5).expand(1000, 5, 5))
    noise = (torch.cat(seen) - torch.tensor([0.0] * 9 + [30.0])).flatten().numpy()
    p = stats.kstest(noise, stats.norm(0, 7 * factor).cdf).pvalue
    q = stats.binomtest(made.answered, 5000, float(stats.norm.sf(10 / (20 * factor**3)))).pvalue
    assert (p > 0.01 and q > 0.01) if factor == 1 else (p < 1e-4 and q < 1e-3)


def test_no_more_are_answered_than_are_charged() -> None:
    made = Aggregator(plan(0, 1, 0, 8, 3, 2), 1.0, 5, "argmax", torch.Generator())
    found = made([torch.ones(2, 4, 2)], torch.eye(2).expand(4, 2, 2))
    assert (made.asked, made.answered) == (8, 3) and int((found != 0).sum()) == 3


# Who sees what


def ask_alone(critics: list[nn.Module], x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for critic in critics:
        u = x.clone().requires_grad_()
        logits = critic(u, y)
        yield logits, -torch.autograd.grad(F.softplus(-logits).mean(), u)[0]


@pytest.mark.parametrize("network", ["mlp", "dcgan"])
def test_directions_are_each_teachers_own(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, in blocks, as one after another: minus the gradient of the mean binary cross-entropy."""
    monkeypatch.setattr("baselines.g_pate.discriminators.BLOCK", 2)
    torch.manual_seed(0)
    by = smoke(network=network)
    critics: list[nn.Module] = [by.critic(SHAPE, CLASSES) for _ in range(5)]
    made = Discriminators(critics, 1e-3, 0.5)
    x, y = torch.rand(3, *SHAPE), torch.eye(CLASSES)[:3]
    found = torch.cat(list(made.directions(x, y)))
    assert [len(next(iter(block.values()))) for block in made.blocks] == [2, 2, 1]
    for mine, (_, alone) in zip(found, ask_alone(critics, x, y), strict=True):
        assert alone.abs().max() > 0 and torch.allclose(mine, alone, rtol=1e-4, atol=1e-8)


def test_a_step_of_a_teacher_by_hand() -> None:
    """Adam's first step is the full rate against the sign of the gradient of both binary cross-entropies."""
    images, labels = toy_private()
    torch.manual_seed(0)
    critic = MlpCritic(SHAPE, CLASSES, 4)
    made = Discriminators([critic, MlpCritic(SHAPE, CLASSES, 4)], 0.01, 0.5)
    batches = TeacherBatches(images, labels, CLASSES, [np.arange(40), np.arange(40, 80)])
    u, y, chosen = torch.rand(4, *SHAPE), torch.eye(CLASSES), torch.tensor([[3, 9], [50, 51]])
    real = critic(images[[3, 9]].float() / 255, F.one_hot(labels[[3, 9]], CLASSES).float())
    loss = F.binary_cross_entropy_with_logits(real, torch.ones(2))
    loss = loss + F.binary_cross_entropy_with_logits(critic(u, y), torch.zeros(4))
    names, weights = zip(*critic.named_parameters(), strict=True)
    slopes = dict(zip(names, torch.autograd.grad(loss, weights), strict=True))
    made.learn(batches, chosen, u, y)
    for name, weight in critic.named_parameters():
        clear = slopes[name].abs() > 1e-5
        moved = made.blocks[0][name][0] - weight
        assert torch.allclose(moved[clear], -0.01 * slopes[name][clear].sign(), rtol=0.02)


@pytest.mark.parametrize("change", ["pixels", "label", "removed"])
def test_a_record_reaches_no_teacher_but_that_of_its_part(change: str) -> None:
    images, labels = toy_private()
    parts = [np.arange(30), np.arange(30, 50), np.arange(50, 80)]
    other, others, shorter = images.clone(), labels.clone(), list(parts)
    if change == "pixels":
        other[31] = 255 - other[31]
    elif change == "label":
        others[31] = (others[31] + 1) % CLASSES
    else:
        shorter[1] = np.delete(parts[1], 1)
    ends = []
    for world in ((parts, images, labels), (shorter, other, others)):
        played = training(smoke(batch="16"), *world)
        for _ in range(6):
            played.teach()
        ends.append(of_each(played.teachers))
    assert [torch.equal(a, b) for a, b in zip(*ends, strict=True)] == [True, False, True]


def test_a_part_without_a_record_teaches_from_generated_images_alone() -> None:
    images, labels = toy_private()
    ends = []
    for seen in (images, 255 - images):
        played = training(smoke(), [np.arange(80), np.arange(0)], seen, labels)
        played.teach()
        ends.append(of_each(played.teachers))
    assert not torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])
    assert ends[0][1].isfinite().all()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_not_even_an_infinite_record_reaches_an_empty_parts_teacher(value: float) -> None:
    """The records drawn for an empty part are another teacher's, and infinity times 0 is no number."""

    class Infinite(TeacherBatches):
        def records(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
            pixels, labels = super().records(chosen)
            return torch.full_like(pixels, value), torch.full_like(labels, value)

    images, labels = toy_private()
    ends, parts = [], [np.arange(80), np.arange(0)]
    for batches in (TeacherBatches(images, labels, CLASSES, parts), Infinite(images, labels, CLASSES, parts)):
        played = training(smoke(), parts, images, labels)
        played.batches = batches
        played.teach()
        ends.append(of_each(played.teachers))
    assert not ends[1][0].isfinite().all() and torch.equal(ends[0][1], ends[1][1])


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> list[list[list[bytes]]]:
    """Of each run, the pixels of every teacher's records."""
    seen: list[list[list[bytes]]] = []

    class Spy(TeacherBatches):
        def __init__(self, images: Tensor, labels: Tensor, classes: int, parts: list[Any]) -> None:
            seen.append([[images[row].numpy().tobytes() for row in part] for part in parts])
            super().__init__(images, labels, classes, parts)

    monkeypatch.setattr("baselines.g_pate.g_pate.TeacherBatches", Spy)
    return seen


def test_every_record_has_one_teacher_however_uneven_the_classes(divided: list[list[list[bytes]]]) -> None:
    """DataLens' code deals records out by class and begins again where a class runs out."""
    images, labels = toy_private()
    keep = (labels != 0) | (torch.arange(80) < 8)
    synthesise(smoke(teachers="7"), data=(images[keep], labels[keep]))
    (parts,) = divided
    assert len(parts) == 7
    held = sorted(record for part in parts for record in part)
    assert held == sorted(image.numpy().tobytes() for image in images[keep])


def test_without_a_record_all_others_stay_with_their_teachers(divided: list[list[list[bytes]]]) -> None:
    """The number of teachers is public: neither it nor a part is a function of other records."""
    images, labels = toy_private()
    by = smoke(teachers="30")
    synthesise(by, data=(images, labels))
    synthesise(by, data=(images[:79], labels[:79]))
    whole, lacking = divided
    last = images[79].numpy().tobytes()
    assert [[record for record in part if record != last] for part in whole] == lacking


@pytest.mark.parametrize("network", ["mlp", "dcgan"])
def test_teaching_leaves_the_generator_as_it_is_buffers_included(network: str) -> None:
    """The released code's generator was run on private labels in training mode, which its normalisation remembers."""
    images, labels = toy_private()
    by = smoke(network=network)
    generator = by.sampler(SHAPE, CLASSES, "toy").generator
    assert not list(generator.buffers()) and not list(by.critic(SHAPE, CLASSES).buffers())
    played = training(by, [np.arange(80)], images, labels)
    critics = of_each(played.teachers)
    before = [weight.clone() for weight in played.generator.parameters()]
    played.teach()
    assert all(torch.equal(a, b) for a, b in zip(before, played.generator.parameters(), strict=True))
    assert not torch.equal(critics[0], of_each(played.teachers)[0])


def test_without_votes_the_generator_is_the_same_for_all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an answer that no teacher had a part in, nothing of the records is in what is released."""

    def constant(self: Aggregator, directions: Any, projection: Tensor) -> Tensor:
        list(directions)
        self.asked += self.plan.candidates
        return projection.sum(2)

    monkeypatch.setattr(Aggregator, "__call__", constant)
    images, labels = toy_private()
    one, other = (synthesise(smoke(), data=pair) for pair in ((images, labels), (255 - images, labels.flip(0))))
    assert one.generator is not None and other.generator is not None
    pairs = zip(one.generator.parameters(), other.generator.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_generator_goes_where_the_answers_point() -> None:
    """(6): the gradient in the weights is -2 J^T g^, and Adam's first step is the full rate against its sign."""
    images, labels = toy_private()
    played = training(smoke(), [np.arange(80)], images, labels)
    other = MlpGenerator(SHAPE, CLASSES, played.by.latent, played.by.width)
    other.load_state_dict(played.generator.state_dict())
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    drawn, inner = played._drawn, played.aggregate

    def spy(directions: Any, projection: Tensor) -> Tensor:
        seen.append((*latest, inner(directions, projection)))
        return seen[-1][2]

    def draw() -> tuple[Tensor, Tensor]:
        latest[:] = drawn()
        return latest[0], latest[1]

    latest: list[Tensor] = []
    played._drawn, played.aggregate = draw, spy  # type: ignore[method-assign, assignment]
    played.step()
    ((z, y, moved),) = seen
    assert moved.abs().max() > 0
    u = other(z, y)
    slopes = torch.autograd.grad(-2 * (u * moved.view_as(u)).sum(), list(other.parameters()))
    for was, now, slope in zip(other.parameters(), played.generator.parameters(), slopes, strict=True):
        clear = slope.abs() > 1e-6
        assert torch.allclose((now - was)[clear], -played.by.rate * slope[clear].sign(), rtol=0.05)


def test_by_cross_entropy_a_black_pixel_still_follows_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pixels are 1e-4 the squared distance has no slope in their logits; the cross-entropy has u minus target."""
    images, labels = toy_private()
    rose = {}
    for loss in ("square", "entropy"):
        played = training(smoke(loss=loss, rate="0.003"), [np.arange(80)], images, labels)
        last = [layer for layer in played.generator.modules() if isinstance(layer, torch.nn.Linear)][-1]
        with torch.no_grad():
            last.weight.mul_(0.01)
            last.bias.fill_(math.log(1e-4))
        monkeypatch.setattr(played, "aggregate", lambda found, projection: (list(found), torch.full((4, 256), 0.1))[1])
        played.of_generator = torch.optim.SGD(played.generator.parameters(), lr=0.01)  # type: ignore[assignment]
        before = float(last.bias.detach().mean())
        played.step()
        rose[loss] = float(last.bias.detach().mean()) - before
    assert rose["entropy"] == pytest.approx(0.01 * 4 * 0.1, rel=0.05), "the slope is 0.1 in every one of four images"
    assert 0 < rose["square"] < 1e-3 * rose["entropy"]


def test_the_number_of_teachers_suits_the_data_set_and_never_the_records() -> None:
    quick = configure(GPate, "quick", {}, "method").teachers
    assert [panel_size(quick, name) for name in ("digits", "mnist", "toy")] == [48, 1000, 1000]
    assert panel_size(7, "mnist") == 7
    with pytest.raises(BenchError, match="1000 teachers for 80 private records"):
        synthesise(smoke(teachers="0"), data=toy_private())


def test_a_shared_start_is_the_same_for_all_and_their_own_is_not() -> None:
    images, labels = toy_private()
    for start, same in (("shared", True), ("own", False)):
        first, second = of_each(
            training(smoke(start=start), [np.arange(40), np.arange(40, 80)], images, labels).teachers
        )
        assert torch.equal(first, second) == same


def test_for_a_shared_start_one_network_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[nn.Module] = []
    critic = GPate.critic

    def spy(self: GPate, *given: Any) -> nn.Module:
        built.append(critic(self, *given))
        return built[-1]

    monkeypatch.setattr(GPate, "critic", spy)
    for start, count in (("shared", 1), ("own", 5)):
        built.clear()
        synthesise(smoke(start=start, teachers="5"))
        assert len(built) == count


# The account


def test_the_ledger_has_every_coordinate_of_every_image() -> None:
    """T k B thresholds of multiplier sigma_1, and as many answers of sigma_2 / sqrt(2), answered or not."""
    by = smoke(projected="5", scale="9", threshold="0.9", threshold_noise="3")
    made = synthesise(by)
    answer, threshold = made.ledger.entries(Unit.EXAMPLE)
    assert answer.event == GaussianDpEvent(9 / math.sqrt(2)) and threshold.event == GaussianDpEvent(27.0)
    assert answer.count == threshold.count == 3 * 5 * 4 == made.solved["queries"] == made.solved["answers"]
    assert made.solved["answered"] < 60
    (alone,) = synthesise(replace(by, threshold=0.0)).ledger.entries(Unit.EXAMPLE)
    assert alone == answer
    capped = synthesise(replace(by, answers=0.5)).ledger.entries(Unit.EXAMPLE)
    assert [entry.count for entry in capped] == [3 * 10, 60]


def test_noise_drawn_is_noise_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float, float]] = []
    counts, confident = Aggregation.counts, Aggregation.confident

    def spy(self: Aggregation, given: Tensor, rng: Any) -> Tensor:
        asked.append((len(given), self.scale, 0.0))
        return counts(self, given, rng)

    def spy_threshold(self: Aggregation, given: Tensor, rng: Any) -> Tensor:
        asked.append((len(given), 0.0, self.threshold_scale))
        return confident(self, given, rng)

    monkeypatch.setattr(Aggregation, "counts", spy)
    monkeypatch.setattr(Aggregation, "confident", spy_threshold)
    made = synthesise(smoke(), Budget(2.0, account="accounted"))
    answer, threshold = made.ledger.entries(Unit.EXAMPLE)
    assert {scale for _, scale, _ in asked if scale} <= {made.solved["scale"]}
    assert {scale for _, _, scale in asked if scale} == {made.solved["threshold_scale"]}
    assert sum(n for n, scale, _ in asked if scale) == made.solved["answered"] <= answer.count
    assert sum(n for n, _, scale in asked if scale) == threshold.count
    assert answer.event.noise_multiplier == pytest.approx(made.solved["scale"] / math.sqrt(2))
    assert threshold.event.noise_multiplier == pytest.approx(6 * made.solved["scale"])


@pytest.mark.parametrize(("epsilon", "sigmas", "steps"), [(1.0, (3000, 1000), 131), (10.0, (600, 100), 50)])
def test_the_released_settings_allow_few_steps_whatever_the_votes(
    epsilon: float, sigmas: tuple[int, int], steps: int
) -> None:
    """README of the released code: 15 or 30 images, k = 10, by Renyi orders 1.1, 2, 3, ... 199 and the plain bound."""
    teachers, batch = (4000, 15) if epsilon == 1 else (2000, 30)
    by = GPate(
        teachers=teachers, batch=batch, scale=sigmas[1], threshold_noise=sigmas[0] / sigmas[1], answers=1.0, steps=1
    )
    found = by.calibrate(Budget(epsilon, solve="steps"), teachers)
    allowed = found.candidates // (10 * batch)
    orders = np.array([1.1, *range(2, 200)])
    each = orders / (2 * sigmas[0] ** 2) + orders / sigmas[1] ** 2

    def spent(count: int) -> float:
        return float((count * 10 * batch * each + math.log(1e5) / (orders - 1)).min())

    assert by.formula(found, 1e-5) == pytest.approx(spent(allowed))
    assert spent(allowed) <= epsilon < spent(allowed + 1)
    assert allowed == steps


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("solved", ["sigma", "steps"])
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_the_budget_is_met_and_nearly_spent(threshold: float, against: Any, solved: Any) -> None:
    budget = Budget(3.0, account=against, solve=solved)
    by = replace(smoke(), threshold=threshold, scale=40.0)
    made, delta = by.calibrate(budget, 3), budget.delta
    claimed, proved = by.formula(made, delta), account(made.ledger(), Unit.EXAMPLE, delta).epsilon
    assert proved <= claimed * (1 + 1e-9)
    check_budget(made.ledger(), None, replace(budget, account="accounted"))
    assert 0.9 * 3.0 < (claimed if against == "claimed" else proved) <= 3.0
    assert made.candidates % 40 == 0 and made.queries == made.candidates


def test_the_exact_sigma_of_votes_without_a_threshold() -> None:
    """500 votes at epsilon 10: sqrt(2 500) / mu, mu^2 = 4.002."""
    by = GPate(steps=5, batch=10, projected=10, threshold=0.0)
    found = by.calibrate(Budget(10.0, account="accounted"), 100)
    assert found.aggregation.scale == pytest.approx(math.sqrt(1000 / 4.002), rel=1e-3)


def test_the_data_dependent_epsilon_is_asked_for_and_decides_nothing() -> None:
    """Charged and claimed are the same for teachers that agree and for ones that do not; only the diagnostic moves."""
    plain, asked_for = (synthesise(smoke(diagnostic=flag, scale="9")) for flag in ("false", "true"))
    assert DIAGNOSTIC not in plain.solved
    assert {k: v for k, v in asked_for.solved.items() if k != DIAGNOSTIC} == plain.solved
    assert asked_for.claim == plain.claim and asked_for.ledger.to_json() == plain.ledger.to_json()
    assert 0 < asked_for.solved[DIAGNOSTIC] <= plain.claim.epsilon
    projection, found = torch.eye(2).expand(1, 2, 2), []
    for directions in (torch.ones(90, 1, 2), torch.linspace(-1, 1, 180).view(90, 1, 2)):
        made = Aggregator(plan(5, 45, 10, 2, 2, 90), 1.0, 10, "argmax", torch.Generator().manual_seed(0), True)
        made([directions], projection)
        found.append(made.data_dependent_epsilon(1e-5))
    assert found[0] < found[1]


def test_an_infinite_budget_has_no_noise_and_proves_nothing() -> None:
    made = synthesise(smoke(diagnostic="true"), Budget(math.inf))
    assert {type(entry.event) for entry in made.ledger.entries(Unit.EXAMPLE)} == {NonPrivateDpEvent}
    assert math.isinf(made.claim.epsilon) and made.solved["scale"] == 0 and DIAGNOSTIC not in made.solved


def test_an_audit_does_not_refute_what_is_accounted_and_would_refute_a_third() -> None:
    made = smoke(steps="1", batch="1", projected="1").game(Budget(4.0), "toy", CLASSES)
    assert made.accounted <= made.claimed <= 4.0
    assert audit(made, 60_000).verdict == "not refuted"
    assert audit(replace(made, claimed=made.accounted / 3), 60_000).verdict == "refuted"


# What it does


def test_without_noise_it_learns_the_brightness_of_each_class() -> None:
    """Toy records of which class 0 is black and all others white: generated images follow."""
    labels = torch.arange(400) % CLASSES
    images = torch.where(labels[:, None, None, None] == 0, 10, 245).to(torch.uint8).expand(-1, *SHAPE).clone()
    images += torch.randint(0, 10, images.shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    by = smoke(teachers="8", steps="120", batch="16", threshold="0", target_estimator="mean", clip="0.01", rate="0.005")
    by = replace(by, width=16, critic_width=16)
    made = synthesise(by, Budget(math.inf), (images, labels))
    x, y = made.draw(200, torch.Generator().manual_seed(1))
    assert x[y == 0].mean() < 0.35 and x[y != 0].mean() > 0.65


@pytest.mark.parametrize(
    ("name", "value"),
    [("teachers", -1), ("steps", 0), ("teacher_steps", 0), ("batch", 0), ("projected", 0), ("bins", 1), ("clip", 0.0),
     ("threshold", -0.1), ("threshold_noise", 0.0), ("scale", -1.0), ("scale", math.nan), ("answers", 0.0),
     ("answers", 1.1), ("target_estimator", "mode"), ("loss", "hinge"), ("network", "vit"), ("start", "warm"),
     ("rate", 0.0), ("teacher_rate", 0.0), ("latent", 0), ("width", 7), ("critic_width", 5), ("passes", 0)],
)  # fmt: skip
def test_bad_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is"):
        GPate(**{name: value})


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="answers is 0"):
        GPate(answers=0.5, threshold=0.0)
    with pytest.raises(ValueError, match="arg-maxes"):
        GPate(diagnostic=True, target_estimator="mean")
    with pytest.raises(BenchError, match="9 teachers for 8 private records"):
        synthesise(smoke(teachers="9"), data=toy_private(n=8))
    with pytest.raises(BenchError, match="--unit query"):
        smoke().check(Budget(3.0, unit=Unit.QUERY), "toy", CLASSES)
    with pytest.raises(BenchError, match="fewer than the 40 of one step"):
        smoke(scale="20").calibrate(Budget(1.0, solve="steps"), 3)
