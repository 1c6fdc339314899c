"""G-PATE: votes by hand, the generator's training on them, and which record reaches which teacher."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import NO_NOISE, Call, check_adam_step, record_calls, synthesise
from g_pate_made import plan, smoke, training
from scipy import stats
from torch import Tensor, nn

from baselines.g_pate.aggregation import Aggregator, binned, midpoints, projections, read, votes
from baselines.g_pate.discriminators import Discriminators
from baselines.g_pate.g_pate import GPate
from bench.errors import BenchError
from bench.gan.training import TeacherBatches
from bench.nets.conditional_gan import MlpCritic, MlpGenerator
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, toy_private


def test_bins_and_midpoints_by_hand() -> None:
    """Five bins of [-1, 1] are 0.4 wide; both ends and values beyond belong to the outer ones."""
    given = torch.tensor([-9.0, -1.0, -0.61, -0.59, 0.0, 0.59, 0.61, 1.0, 9.0, math.inf, -math.inf, math.nan])
    assert binned(given, 1.0, 5).tolist() == [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 0, 2]
    assert midpoints(1.0, 5).tolist() == pytest.approx([-0.8, -0.4, 0.0, 0.4, 0.8])
    assert midpoints(1e-4, 10).tolist() == pytest.approx([(-9 + 2 * b) * 1e-5 for b in range(10)])


def test_aggregation_by_hand() -> None:
    """Three teachers, an image of two pixels, P the identity: coordinates are pixels, c is 1, there are 5 bins.

    Pixel 1: 0.9, 0.7 and -0.5, bins 4, 4 and 1: two of three agree. Pixel 2: 0.1, 0.5 and -0.5: none do.
    """
    directions = torch.tensor([[[0.9, 0.1]], [[0.7, 0.5]], [[-0.5, -0.5]]])
    projection = torch.eye(2)[None]
    assert votes([directions[:2], directions[2:]], projection, 1.0, 5).tolist() == [[0, 1, 0, 0, 2], [0, 1, 1, 1, 0]]
    strict = Aggregator(plan(0, 1.5, 0, 2, 2, 3), 1.0, 5, "argmax", torch.Generator())
    assert strict([directions], projection).tolist() == [[pytest.approx(0.8), 0.0]]
    assert (strict.queries, strict.answered) == (2, 1)
    mean = Aggregator(plan(0, 0, 0, 2, 2, 3), 1.0, 5, "mean", torch.Generator())
    assert mean([directions], projection)[0].tolist() == pytest.approx([(0.8 + 0.8 - 0.4) / 3, (0 + 0.4 - 0.4) / 3])


def test_mean_is_over_teachers_not_noisy_votes() -> None:
    """Three teachers, bins at -0.8, -0.4, 0, 0.4 and 0.8, noisy counts that add up to 4: (-0.4 + 3 * 0.8) / 3."""
    counts = torch.tensor([[0.0, 1.0, 0.0, 0.0, 3.0]], dtype=torch.float64)
    assert read(counts, 1.0, "mean", 3).tolist() == pytest.approx([2 / 3])


def test_answers_return_through_their_projection() -> None:
    """Two images with projections to different pixels: each is moved along its own one."""
    projection = torch.zeros(2, 3, 1)
    projection[0, 0, 0], projection[1, 2, 0] = 1.0, 2.0
    directions = torch.tensor([[[0.9, 0.9, 0.9], [-0.4, -0.4, -0.4]]])
    found = Aggregator(plan(0, 0, 0, 2, 2, 1), 1.0, 5, "argmax", torch.Generator())([directions], projection)
    assert found.tolist() == [[pytest.approx(0.8), 0, 0], [0, 0, pytest.approx(-1.6)]]


def test_projections_are_unbiased_with_variance_one_over_k() -> None:
    made = projections(4000, 6, 5, torch.Generator().manual_seed(0))
    spread = made.double().flatten() * math.sqrt(5)
    assert stats.kstest(spread.numpy(), "norm").pvalue > 0.01 > 1e-6 > stats.kstest(1.1 * spread.numpy(), "norm").pvalue
    g = torch.arange(6.0)
    back = torch.einsum("nij,nkj,k->ni", made, made, g).mean(0)
    assert torch.allclose(back, g, atol=0.4)


def test_one_teacher_moves_two_counts_of_each_histogram() -> None:
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


def test_generator_follows_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """(6): the gradient in the weights is -2 J^T g^, and Adam's first step is the full rate against its sign."""
    played = training(smoke())
    other = MlpGenerator(SHAPE, CLASSES, played.by.latent, played.by.width)
    other.load_state_dict(played.generator.state_dict())
    inputs, answers = record_calls(monkeypatch, played, "_inputs"), record_calls(monkeypatch, played, "aggregate")
    played.step()
    u, moved = other(*inputs[-1].result), answers[0].result
    assert moved.abs().max() > 0
    slopes = torch.autograd.grad(-2 * (u * moved.view_as(u)).sum(), list(other.parameters()))
    check_adam_step(other.parameters(), played.generator, slopes, played.by.rate, rtol=0.05)


def test_entropy_loss_moves_black_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pixels are 1e-4 the squared distance has no slope in their logits; the cross-entropy has u minus target."""
    rose = {}
    for loss in ("square", "entropy"):
        played = training(smoke(loss=loss, rate="0.003"))
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


@pytest.mark.thorough
def test_noiseless_generator_learns_class_brightness() -> None:
    """Toy records of which class 0 is black and all others white: generated images follow."""
    labels = torch.arange(400) % CLASSES
    images = torch.where(labels[:, None, None, None] == 0, 10, 245).to(torch.uint8).expand(-1, *SHAPE).clone()
    images += torch.randint(0, 10, images.shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    by = smoke(teachers="8", steps="120", batch="16", threshold="0", target_estimator="mean", clip="0.01", rate="0.005")
    by = replace(by, width=16, critic_width=16)
    made = synthesise(by, NO_NOISE, (images, labels))
    x, y = made.draw(200, torch.Generator().manual_seed(1))
    assert x[y == 0].mean() < 0.35 and x[y != 0].mean() > 0.65


def test_steps_too_few_for_the_budget_are_refused() -> None:
    with pytest.raises(BenchError, match=r" 40 .*--method.scale"):
        smoke(scale="20").calibrate(Budget(1.0, solve="steps"), 3)


def of_each(teachers: Discriminators) -> list[Tensor]:
    """One vector of weights per teacher."""
    blocks = [torch.cat([w.detach().flatten(1) for w in block.values()], 1) for block in teachers.blocks]
    return list(torch.cat(blocks))


@pytest.mark.parametrize("network", ["mlp", "dcgan"])
def test_directions_are_independent_by_teacher(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, in blocks, as one after another: minus the gradient of the mean binary cross-entropy."""
    monkeypatch.setattr("baselines.g_pate.discriminators.BLOCK", 2)
    torch.manual_seed(0)
    by = smoke(network=network)
    critics: list[nn.Module] = [by.critic(SHAPE, CLASSES) for _ in range(5)]
    made = Discriminators(critics, 1e-3, 0.5)
    x, y = torch.rand(3, *SHAPE).requires_grad_(), torch.eye(CLASSES)[:3]
    found = torch.cat(list(made.directions(x.detach(), y)))
    assert [len(next(iter(block.values()))) for block in made.blocks] == [2, 2, 1]
    for mine, critic in zip(found, critics, strict=True):
        single = -torch.autograd.grad(F.softplus(-critic(x, y)).mean(), x)[0]
        assert single.abs().max() > 0 and torch.allclose(mine, single, rtol=1e-4, atol=1e-8)


def test_teacher_step_by_hand() -> None:
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


def test_teachers_get_labels_of_generated_images(monkeypatch: pytest.MonkeyPatch) -> None:
    played = training(smoke(batch="12"))
    drawn, shown = played._inputs(), []
    monkeypatch.setattr(played, "_inputs", lambda: drawn)
    monkeypatch.setattr(played.teachers, "learn", lambda batches, chosen, u, y: shown.append((u, y)))
    played.teach()
    ((u, y),) = shown
    assert len(drawn[1].unique()) == CLASSES and torch.equal(y, F.one_hot(drawn[1], CLASSES).float())
    assert torch.equal(u, played.generator(*drawn))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_infinite_record_does_not_reach_an_empty_part(value: float) -> None:
    """The records drawn for an empty part belong to another teacher, and infinity times 0 is NaN."""

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


def held(calls: list[Call]) -> list[list[bytes]]:
    """The pixels of every teacher's records."""
    _, images, _, _, parts = calls[-1].arguments
    return [[images[row].numpy().tobytes() for row in part] for part in parts]


def test_every_record_has_one_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """DataLens' code deals records out by class and begins again where a class runs out."""
    calls, (images, labels) = record_calls(monkeypatch, TeacherBatches, "__init__"), toy_private()
    keep = (labels != 0) | (torch.arange(80) < 8)
    synthesise(smoke(teachers="7"), private=(images[keep], labels[keep]))
    parts = held(calls)
    assert len(parts) == 7
    found = sorted(record for part in parts for record in part)
    assert found == sorted(image.numpy().tobytes() for image in images[keep])


def test_removed_record_does_not_move_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of teachers is public: neither it nor a part is a function of other records."""
    calls, (images, labels) = record_calls(monkeypatch, TeacherBatches, "__init__"), toy_private()
    parts = []
    for n in (80, 79):
        synthesise(smoke(teachers="30"), private=(images[:n], labels[:n]))
        parts.append(held(calls))
    last = images[79].numpy().tobytes()
    assert [[record for record in part if record != last] for part in parts[0]] == parts[1]


@pytest.mark.parametrize("network", ["mlp", "dcgan"])
def test_teacher_step_does_not_change_the_generator(network: str) -> None:
    """The released code's generator was run on private labels in training mode, which its normalisation remembers."""
    by = smoke(network=network)
    generator = by.sampler(SHAPE, CLASSES, "toy").generator
    assert not list(generator.buffers()) and not list(by.critic(SHAPE, CLASSES).buffers())
    played = training(by)
    critics = of_each(played.teachers)
    before = [weight.clone() for weight in played.generator.parameters()]
    played.teach()
    assert all(torch.equal(a, b) for a, b in zip(before, played.generator.parameters(), strict=True))
    assert not torch.equal(critics[0], of_each(played.teachers)[0])


def test_start_option_shares_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    built = record_calls(monkeypatch, GPate, "critic")
    for start, same, count in (("shared", True, 1), ("own", False, 2)):
        built.clear()
        first, second = of_each(training(smoke(start=start), [np.arange(40), np.arange(40, 80)]).teachers)
        assert torch.equal(first, second) == same and len(built) == count
