from __future__ import annotations

from typing import Any

import pytest
import torch
from inversion_made import TINY_GAN, Brightness, LinearQuadrants, SmoothGenerator
from torch import Tensor, nn

from attacks.lomma import Lomma, identity_loss
from bench.api import Target
from bench.gan.latent_search import nesterov_step, search_latents
from bench.testing import context, toy_images

SHAPE = (1, 16, 16)
TINY: dict[str, Any] = TINY_GAN | {"students": "shard-cnn,datalens", "student_steps": 2, "student_batch": 8}
TINY |= {"iterations": 4, "ref_batch": 5}
AUX = toy_images(32)


def target() -> Target:
    return Target(LinearQuadrants().eval(), "weights", SHAPE, 4)


class Corners(nn.Module):
    """Four latent numbers, each the brightness of a quadrant; two more that do nothing."""

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.interpolate(z[:, :4].sigmoid().view(-1, 1, 2, 2), scale_factor=8)


@pytest.fixture
def smooth(monkeypatch: pytest.MonkeyPatch) -> SmoothGenerator:
    generator = SmoothGenerator(side=16)
    monkeypatch.setattr(Lomma, "gan", lambda *_: (generator, Brightness()))
    return generator


def test_identity_loss_by_hand() -> None:
    """Two images, the target and one student; the regulariser is outside the mean over models."""
    logits = [torch.tensor([[1.0, 2.0], [5.0, 0.0]]), torch.tensor([[7.0, -4.0], [3.0, 9.0]])]
    features, p_reg = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), torch.tensor([0.0, 0.0, 1.0])
    loss = identity_loss(logits, features, p_reg, torch.tensor([1, 0]), reg_weight=0.6)
    torch.testing.assert_close(loss, torch.tensor([0.6 * 9 / 3 - (2 - 4) / 2, 0.6 / 3 - 4.0]))


def test_identity_loss_gradient_does_not_vanish() -> None:
    """Where the class is certain already, cross-entropy has no gradient left."""
    logits = torch.tensor([[60.0, 0.0]], requires_grad=True)
    loss = identity_loss([logits], torch.zeros(1, 2), torch.zeros(2), torch.tensor([0]), 1.0).sum()
    assert torch.autograd.grad(loss, logits)[0].tolist() == [[-1, 0]]
    entropy = nn.functional.cross_entropy(logits, torch.tensor([0]))
    assert torch.autograd.grad(entropy, logits)[0].abs().max() < 1e-20


def test_search_latents_by_hand() -> None:
    """f(z) = z^2 / 2, lr 0.1, mu 0.5, from z = 1; then clamped to 0.68."""
    z, v = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    for expected in [(0.85, -0.1), (0.6975, -0.135), (0.559125, -0.13725)]:
        z, v = nesterov_step(z, v, z, lr=0.1, momentum=0.5)
        assert (z.item(), v.item()) == pytest.approx(expected)
    steps: list[int] = []
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.5, "clip": 0.68, "advance": steps.append}
    # From 0.68, v' = -0.068, z' = 0.68 - 1.5 x 0.068 = 0.578; then v'' = -0.034 - 0.0578 = -0.0918,
    # z'' = 0.578 + 0.034 - 1.5 x 0.0918 = 0.4743.
    found = search_latents(torch.tensor([[1.0]]), lambda z: z.square().sum() / 2, iterations=2, **settings)
    assert found.item() == pytest.approx(0.4743) and steps == [1, 1]
    assert not found.requires_grad


def test_p_reg_is_the_mean_feature() -> None:
    attacked = target()
    expected = nn.functional.avg_pool2d(AUX, 8).flatten(1)
    torch.testing.assert_close(Lomma(**TINY)._mean_features(attacked, AUX, context()), expected.mean(0))
    assert attacked.queries == len(AUX)
    one = Lomma(**TINY, reg_images=1)._mean_features(attacked, AUX, context())
    assert (expected - one).abs().amax(1).min() < 1e-6 and (one - expected.mean(0)).abs().max() > 1e-3


@pytest.mark.parametrize("arch", ["shard-cnn", "datalens"])
def test_students_learn_the_targets_outputs(arch: str) -> None:
    settings = {**TINY, "students": arch, "student_batch": 32, "student_lr": 0.05}

    def gap(steps: int) -> Tensor:
        attacked = target()
        (student,) = Lomma(**{**settings, "student_steps": steps})._augment(attacked, AUX, context())
        assert attacked.queries == len(AUX)
        assert not student.training and not any(p.requires_grad for p in student.parameters())
        t, s = target().logits(AUX).log_softmax(1), student(AUX).log_softmax(1)
        return (t.exp() * (t - s)).sum(1).mean()

    assert gap(60) < 0.3 * gap(1)


def test_distillation_has_momentum_and_weight_decay() -> None:
    """v <- 0.9 v + gradient + weight decay x weights, weights <- weights - lr v, over the same images at every step.

    The first pixel is black in all of them: its weights, which are large, decay and do nothing else.
    """
    torch.manual_seed(0)
    student, images = nn.Sequential(nn.Flatten(), nn.Linear(256, 4, bias=False)), AUX[:8].clone()
    images[:, 0, 0, 0], student[1].weight.data[:, 0] = 0, 1000
    x, log_p = images.flatten(1), target().logits(images).log_softmax(1)
    weight = student[1].weight.detach().clone()
    velocity = torch.zeros_like(weight)
    for _ in range(4):
        error = (x @ weight.T).softmax(1) - log_p.exp()
        velocity = 0.9 * velocity + error.T @ x / 8 + 1e-4 * weight
        weight = weight - 0.1 * velocity
    attack = Lomma(**{**TINY, "student_steps": 4, "student_lr": 0.1})
    attack._distil(student, images, log_p, torch.Generator().manual_seed(0), context(), lambda _: None)
    torch.testing.assert_close(student[1].weight.detach(), weight)


def test_students_depend_only_on_the_seed() -> None:
    """One of them drops out units."""
    attacked = target()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    answers = []
    for seed in (0, 0, 1):
        students = Lomma(**TINY)._augment(attacked, AUX, context(seed))
        answers.append(torch.stack([student(AUX) for student in students]))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])
    twins = Lomma(**{**TINY, "students": "shard-cnn, shard-cnn"})._augment(target(), AUX, context())
    assert not torch.equal(twins[0](AUX), twins[1](AUX))


def test_search_step_by_hand(smooth: SmoothGenerator) -> None:
    """One step, momentum 0, of one image, its gradient taken here: only the target's features count."""
    torch.manual_seed(1)
    student = nn.Sequential(nn.Flatten(), nn.Linear(256, 4)).requires_grad_(False)
    z, y, p_reg = 0.3 * torch.randn(1, 6), torch.tensor([2]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    attack = Lomma(**{**TINY, "iterations": 1, "identity_weight": 3.0, "reg_weight": 2.0}, lr=1e-3, momentum=0.0)
    found = attack._search(z.clone(), y, smooth, Brightness(), [student], p_reg, target(), context(), lambda _: None)
    free = z.clone().requires_grad_()
    x = smooth(free)
    means = nn.functional.avg_pool2d(x, 8).flatten()
    identity = -(8 * means[2] + student(x)[0, 2]) / 2 + 2 * (means - p_reg).square().mean()
    (3 * identity - x.mean()).div(5).backward()
    torch.testing.assert_close(found, z - 1e-3 * free.grad)
    assert (found - z).abs().max() > 1e-5


def test_regulariser_keeps_features_near_p_reg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each quadrant is free; without the regulariser the aimed one goes to its limit, with it less far."""
    monkeypatch.setattr(Lomma, "gan", lambda *_: (Corners(), Brightness()))
    settings = {**TINY, "students": "none", "iterations": 150, "identity_weight": 1.0, "momentum": 0.0, "lr": 0.5}
    p_reg = nn.functional.avg_pool2d(AUX, 8).flatten(1).mean(0)
    excess = []
    for weight in (0.0, 60.0, 600.0):
        found = Lomma(**settings, latent_clip=4.0, reg_weight=weight).run(target(), AUX, context())
        means = nn.functional.avg_pool2d(found.images, 8).flatten(1)
        excess.append((means - p_reg).gather(1, found.targets[:, None]).mean().item())
    # The best excess e solves 8 + 1/4 (critic) = 2 weight e / 4.
    assert excess[1] == pytest.approx(8.25 * 4 / 2 / 60, abs=0.03) and excess[2] < 0.06
    assert excess[0] > 0.5


def test_search_raises_the_logit(smooth: SmoothGenerator) -> None:
    start, end = (
        Lomma(**{**TINY, "students": "none", "iterations": 80}, lr=lr).run(target(), AUX, context())
        for lr in (1e-9, 0.02)
    )
    before, after = (target().logits(r.images).gather(1, r.targets[:, None]) for r in (start, end))
    assert (after > before).all()


def test_attack_images_differ_and_students_cost_queries(smooth: SmoothGenerator) -> None:
    for changes, passes in (({}, 2), ({"students": "none"}, 1)):
        attacked = target()
        found = Lomma(**TINY | changes).run(attacked, AUX, context())
        assert found.targets.tolist() == [c for c in range(4) for _ in range(3)] * 2
        assert found.draws.tolist() == [0] * 12 + [1] * 12
        assert len(torch.unique(found.images.flatten(1), dim=0)) == len(found.images)
        assert attacked.queries == passes * len(AUX) + 24 * TINY["iterations"]


def test_students_change_the_result(smooth: SmoothGenerator) -> None:
    alone, helped = (
        Lomma(**{**TINY, "students": students}, lr=0.01).run(target(), AUX, context()).images
        for students in ("none", "shard-cnn")
    )
    assert (alone - helped).abs().max() > 1e-3
