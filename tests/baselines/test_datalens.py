"""DataLens: which record reaches which teacher, its influence, queries and their cost, and the generator's training."""

from __future__ import annotations

import math
from typing import Any

import baseline_runs as runs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import NO_NOISE, check_adam_step, epsilon_of, is_normal, record_calls, smoke, synthesise
from dp_accounting import GaussianDpEvent
from teacher_gans_made import datalens_training
from torch import nn

from baselines.datalens import datalens
from baselines.datalens.accounting import DataLensParameters, published_epsilon
from baselines.datalens.datalens import DataLens, Training, sum_of_votes
from baselines.datalens.networks import Convolutions, Perceptrons
from bench.gan.training import TeacherBatches
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, recording_context, toy_private

PIXELS = math.prod(SHAPE)
K = round(0.383 * PIXELS)
PANELS = pytest.mark.parametrize("panel", [Convolutions, Perceptrons])


def training(parts: list[np.ndarray] | None = None, sigma: float = 0.0, **given: Any) -> Training:
    """The state of a training on toy records, by default with teachers of as many each."""
    by = smoke(DataLens, **given)
    return datalens_training(by, parts or list(np.array_split(np.arange(80), by.teachers)), *toy_private(), sigma)


@pytest.mark.parametrize(
    ("sigma", "k", "epsilon", "steps"), [(5000, 200, 1, 86), (800, 300, 10, 109), (1000, 350, 10, 146)]
)
def test_published_settings_reproduce_published_steps(sigma: float, k: int, epsilon: float, steps: int) -> None:
    """Each teacher has 15 images (60,000 records, 4,000 teachers), which are all in its batch."""
    assert published_epsilon(sigma, k, 15 * steps, 1e-5) <= epsilon < published_epsilon(sigma, k, 15 * steps + 15, 1e-5)


def test_claim_by_hand() -> None:
    """2 k a / sigma^2 an image at order a = 4, + log(1e5) / 3; the other orders give more."""
    found = published_epsilon(800.0, 300, 15 * 109, 1e-5)
    assert found == pytest.approx(15 * 109 * 2 * 300 * 4 / 800**2 + math.log(1e5) / 3)


def test_claim_is_above_the_exact_account() -> None:
    """Exact: B T Gaussians of mu^2 = 4 k / sigma^2 each; mu^2 = 4.002 is epsilon 10, at sqrt(4 k B T / 4.002)."""
    made = DataLensParameters(800.0, 109, 15, 300, 4000, 784)
    exact = epsilon_of(made.ledger())
    assert 0.8 * made.claim(1e-5).epsilon < exact < made.claim(1e-5).epsilon
    assert not made.claim(1e-5).disputed
    solved = DataLens(kept=300 / 784).calibrate(Budget(10.0, account="accounted"), 784, 4000)
    assert solved.sigma == pytest.approx(math.sqrt(4 * 300 * 15 * 109 / 4.002), rel=2e-3)


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("solve", ["sigma", "steps"])
def test_budget_is_met_and_nearly_spent(against: Any, solve: Any) -> None:
    budget = Budget(3.0, account=against, solve=solve)
    made = smoke(DataLens, sigma=300, steps=50).calibrate(budget, PIXELS, 3)
    assert 0.95 * 3.0 < made.cost(budget) <= 3.0
    assert (made.sigma == 300) == (solve == "steps") and (made.steps == 50) == (solve == "sigma")


def test_ledger_has_every_image_for_any_votes() -> None:
    """The released code's epsilon is a function of the noisy votes, and training stops by it."""
    one, other = (synthesise(smoke(DataLens, steps=4, sigma=90), private=toy_private(seed)) for seed in (0, 1))
    (entry,) = one.ledger.entries(Unit.EXAMPLE)
    assert entry.count == 4 * 4 == one.solved["queries"]
    assert entry.event == GaussianDpEvent(90 / (2 * math.sqrt(K)))
    assert (one.ledger.to_json(), one.claim) == (other.ledger.to_json(), other.claim)


def test_information_and_epsilon_of_one_image_by_hand() -> None:
    """n votes of norm sqrt(k) are n sqrt(k) long, under noise on d pixels: d / 2 log(1 + n^2 k / (d sigma^2)) nats."""
    made = DataLensParameters(800.0, 109, 15, 300, 4000, 784)
    (entry,) = made.ledger().entries(Unit.EXAMPLE)
    nats = 784 / 2 * math.log1p(4000**2 * 300 / (784 * 800**2))
    assert entry.carries == pytest.approx(109 * 15 * nats)
    game = smoke(DataLens, sigma=300, steps=50, batch=4).game(runs.FREE, "digits", CLASSES)
    assert game.claimed == pytest.approx(published_epsilon(300.0, K, 1, 1e-5))


def test_vote_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, ctx = record_calls(monkeypatch, datalens, "noisy_counts"), recording_context()
    made = synthesise(smoke(DataLens), Budget(2.0), ctx=ctx)
    assert sorted(name for _, name in ctx.streams) == ["DataLens/minibatches", "DataLens/signs", "DataLens/votes"]
    (entry,) = made.ledger.entries(Unit.EXAMPLE)
    for votes, law, scale, _ in (call.arguments for call in calls):
        assert (law, scale) == ("gaussian", made.solved["sigma"]) and votes.shape[1] == PIXELS
        assert (votes == votes.round()).all() and votes.abs().max() <= 3
    assert sum(len(call.arguments[0]) for call in calls) == entry.count
    assert entry.event.noise_multiplier == pytest.approx(made.solved["sigma"] / (2 * math.sqrt(K)))


def test_noise_is_on_every_pixel_with_deviation_sigma() -> None:
    """Teachers without votes leave N(0, sigma^2) / n on all pixels; half and twice of it are distinguished."""
    played = training(batch=8, aggregate="mean", sigma=50.0)
    u = played.directions(torch.full((3, 8, PIXELS), math.nan))
    assert is_normal(u, 50 / 3) and (u != 0).all() and played.images == 8


def test_parts_are_disjoint_for_unequal_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released code starts a class again after its last record, so that 1,138 of MNIST's positions repeat a
    record."""
    calls = record_calls(monkeypatch, datalens, "TeacherBatches")
    images, labels = toy_private(n=83)
    labels[:30] = 0
    synthesise(smoke(DataLens, teachers=7, steps=1), private=(images, labels))
    ((_, _, _, parts),) = (call.arguments for call in calls)
    assert len(parts) == 7 and sorted(np.concatenate(parts).tolist()) == list(range(83))


@pytest.mark.parametrize("clip", [1e-5, 1e9])
def test_one_teacher_moves_votes_by_at_most_2_sqrt_k(clip: float) -> None:
    """Any other gradients of teacher 2: of every image by at most 2 sqrt(k), which turned signs reach."""
    torch.manual_seed(0)
    gradients, k = torch.randn(5, 4, 30), 9
    places = torch.rand(5).double(), torch.rand(4, 30).double()
    before = sum_of_votes(gradients, k, clip, *places)
    each = [sum_of_votes(gradients[i : i + 1], k, clip, places[0][i : i + 1], places[1]) for i in range(5)]
    assert torch.equal(before, torch.stack(each).sum(0))
    for scale in (-1.0, 1e6, 0.0, math.nan):
        moved = gradients.clone()
        moved[2] = scale * torch.randn(4, 30)
        far = (sum_of_votes(moved, k, clip, *places) - before).norm(dim=1)
        assert (far <= 2 * math.sqrt(k) + 1e-5).all() and far.max() > 0
    moved[2] = -gradients[2]
    far = (sum_of_votes(moved, k, 1e-9, *places) - sum_of_votes(gradients, k, 1e-9, *places)).norm(dim=1)
    assert torch.allclose(far, torch.full((4,), 2 * math.sqrt(k)))


def test_images_have_independent_stochastic_signs() -> None:
    """g = (1, 0): the second coordinate is +1 with probability 1/2, that is, of the places 0.25 and not of 0.75."""
    gradients = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    of_pixels = torch.tensor([[0.0, 0.25], [0.0, 0.75]]).double()
    votes = sum_of_votes(gradients, 2, 1.0, torch.zeros(1).double(), of_pixels)
    assert votes.tolist() == [[1.0, 1.0], [1.0, -1.0]]


def test_clipped_coordinates_vote_by_their_sign() -> None:
    """One coordinate is a thousand times as large as all others, which are far above c: no sign is left to chance."""
    played = training(batch=1, clip=1e-5)
    gradients = torch.zeros(3, 1, PIXELS)
    gradients[:, 0, :K] = 1e-3 * (1 - 2 * (torch.arange(K) % 2))
    gradients[:, 0, 0] = 1.0
    assert played.directions(gradients)[0, :K].tolist() == gradients[0, 0, :K].sign().tolist()


@PANELS
def test_teachers_are_independent_and_use_the_label(panel: type[nn.Module]) -> None:
    """Teacher i by itself, with its weights, has the same outputs as among others."""
    torch.manual_seed(0)
    many, x = panel(3, SHAPE, CLASSES, 4), torch.rand(3, 5, PIXELS)
    y = F.one_hot(torch.randint(CLASSES, (3, 5)), CLASSES).float()
    logits = many(x, y)
    assert logits.shape == (3, 5)
    for i in range(3):
        one = panel(1, SHAPE, CLASSES, 4)
        with torch.no_grad():
            for mine, theirs in zip(one.parameters(), many.parameters(), strict=True):
                mine.copy_(theirs.reshape(3, *mine.shape)[i].reshape(mine.shape) if theirs.shape[0] != 3
                           else theirs[i : i + 1])  # fmt: skip
        torch.testing.assert_close(one(x[i : i + 1], y[i : i + 1])[0], logits[i], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(many(x, y.roll(1, 2)), logits)


def test_convolutional_teacher_by_hand() -> None:
    """One teacher, through torch's own layers with its weights."""
    torch.manual_seed(0)
    one = Convolutions(1, SHAPE, CLASSES, 3)
    x, y = torch.rand(1, 2, PIXELS), torch.eye(CLASSES)[None, :2]
    planes = y[0][:, :, None, None]
    h = F.leaky_relu(F.conv2d(torch.cat([x[0].view(2, *SHAPE), planes.expand(-1, -1, 16, 16)], 1), one.first,
                              one.biases[0], 2, 2), 0.2)  # fmt: skip
    h = F.leaky_relu(F.conv2d(torch.cat([h, planes.expand(-1, -1, 8, 8)], 1), one.second, one.biases[1], 2, 2), 0.2)
    h = F.leaky_relu(torch.cat([h.flatten(1), y[0]], 1) @ one.third[0] + one.biases[2][0], 0.2)
    wanted = torch.cat([h, y[0]], 1) @ one.last[0] + one.biases[3][0]
    torch.testing.assert_close(one(x, y)[0], wanted[:, 0])


def test_teacher_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """-log D(x, y) - log(1 - D(x~, y)) of each teacher's own x and the x~ of all, by Adam's first step."""
    played = training(teacher="perceptron", rate=0.01)
    rows = torch.cat([torch.rand(3, 4, PIXELS), torch.eye(CLASSES).expand(3, 4, CLASSES)], 2)
    made, labels = torch.rand(4, *SHAPE), torch.tensor([3, 1, 0, 2])
    monkeypatch.setattr(TeacherBatches, "__call__", lambda batches, count, source: rows)
    monkeypatch.setattr(played, "_generated", lambda: (made, labels))
    other = Perceptrons(3, SHAPE, CLASSES, played.by.teacher_width)
    other.load_state_dict(played.panel.state_dict())
    of_real = other(rows[..., :PIXELS], rows[..., PIXELS:]).sigmoid()
    of_made = other(made.flatten(1).expand(3, 4, PIXELS), F.one_hot(labels, CLASSES).float()).sigmoid()
    slopes = torch.autograd.grad(-(of_real.log() + (1 - of_made).log()).mean(1).sum(), list(other.parameters()))
    played.teach()
    check_adam_step(other.parameters(), played.panel, slopes, 0.01)


@pytest.mark.parametrize("loss", ["square", "entropy"])
@pytest.mark.parametrize("aggregate", ["sign", "mean"])
def test_generator_follows_the_votes(loss: str, aggregate: str) -> None:
    """Teachers that like bright images, and do not learn."""
    given = {"gamma": 0.1, "loss": loss, "aggregate": aggregate, "rate": 0.01}
    played = training(teacher="perceptron", generator="mlp", **given)
    with torch.no_grad():
        for p in played.panel.parameters():
            p.zero_()
        played.panel.first += 0.05
        played.panel.last += 0.1
    made, labels = played._generated()
    x, y = played._for_all_teachers(made.detach(), labels)
    x.requires_grad_()
    (gradients,) = torch.autograd.grad(F.logsigmoid(played.panel(x, y)).sum(), x)
    assert (gradients > 0).all(), "brighter is more real"
    for _ in range(10):
        played.generate()
    assert played._generated()[0].mean() > made.mean() + 0.03


def test_teachers_warm_up_once_then_train_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    played = training(warm=5, teacher_steps=2, steps=3)
    done: list[str] = []

    def generate() -> None:
        done.append("generator")
        played.images += played.by.batch

    monkeypatch.setattr(played, "teach", lambda: done.append("teacher"))
    monkeypatch.setattr(played, "generate", generate)
    played.run()
    assert done == ["teacher"] * 5 + ["generator"] + (["teacher"] * 2 + ["generator"]) * 2


def test_directions_by_hand() -> None:
    """Three teachers for one image of 256 pixels, k = 98; beta 0.4: two of three are enough, one is not."""
    played = training(beta=0.4, batch=1)
    gradients = torch.zeros(3, 1, PIXELS)
    gradients[:, 0, :K] = torch.linspace(1, 2, K)
    gradients[0, 0, 0] = -2.0
    gradients[1:, 0, 1] *= -1
    gradients[1, 0, 2] = 0.0
    gradients[1, 0, 200] = 5.0
    u = played.directions(gradients)[0]
    assert u[:4].tolist() == [0, 0, 1, 1] and u[K:].tolist() == [0] * (PIXELS - K)
    gradients[1, 0, 0] = -3.0
    assert training(beta=0.3, batch=1).directions(gradients)[0, :2].tolist() == [-1, -1]


@pytest.mark.thorough
def test_generator_learns_classes_without_noise() -> None:
    given = {"gamma": 0.1, "loss": "entropy", "teachers": 4, "steps": 150, "batch": 16, "width": 16, "rate": 0.005}
    method = smoke(DataLens, teacher="perceptron", generator="mlp", beta=0, warm=10, teacher_steps=2, **given)
    assert runs.class_share(synthesise(method, NO_NOISE)) > 0.7
