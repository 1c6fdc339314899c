"""DP-DFD: the generator (Eq. 2), its three terms by hand and its training, and the stages of Algorithm 1."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from dp_dfd_made import TwoNorms, generator_weights, norm_teacher, printed
from methods_made import convert
from scipy import stats
from torch import Tensor, nn

from bench.distillation.generator_training import BatchStatistics, fixed, l1_activation_loss, pretrain
from bench.errors import BenchError
from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dp_dfd import dp_dfd
from methods.dp_dfd.accounting import ResponsePlan
from methods.dp_dfd.dp_dfd import DpDfd, draw_images


class Pictures(nn.Module):
    """A generator of 1x1x1 images, z itself through one weight."""

    latent = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, z: Tensor) -> Tensor:
        return (self.weight * z).view(-1, 1, 1, 1)


def test_norm_term_by_hand() -> None:
    """x = (0, 1), (2, 3): mean (1, 2), biased var (1, 1). Layer 1 remembers (1, 0), (4, 1): |(0, 2)| + |(3, 0)| = 5.
    It hands on ((0 - 1) / 2, 1), ((2 - 1) / 2, 3): mean (0, 2), var (1/4, 1). Layer 2 remembers (0, 1), (1, 1):
    |(0, 1)| + |(3/4, 0)| = 7/4."""
    model = TwoNorms().eval()
    with BatchStatistics(model) as statistics:
        model(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        assert float(statistics.distance()) == pytest.approx(5 + 1.75)
        model(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        assert float(statistics.distance()) == pytest.approx(6.75), "each call starts afresh"
        with pytest.raises(RuntimeError):
            statistics.distance()
    assert not model.first._forward_pre_hooks and not model.second._forward_pre_hooks


def test_norm_term_of_maps_has_a_gradient() -> None:
    model = nn.BatchNorm2d(1).eval()
    images = torch.tensor([[[[0.0, 2.0]]], [[[4.0, 6.0]]]], requires_grad=True)
    with BatchStatistics(model) as statistics:
        model(images)
        distance = statistics.distance()
    assert float(distance) == pytest.approx(3 + (5 - 1)), "mean 3, variance 5 against 0 and 1"
    distance.backward()
    assert images.grad is not None and images.grad.abs().sum() > 0
    assert model.num_batches_tracked == 0, "the discriminator's own statistics stay"


def test_batch_statistics_remove_hooks_or_refuse() -> None:
    model = TwoNorms().eval()
    with pytest.raises(ZeroDivisionError), BatchStatistics(model):
        raise ZeroDivisionError
    assert not model.first._forward_pre_hooks
    with pytest.raises(BenchError):
        BatchStatistics(nn.Linear(2, 2))
    with pytest.raises(BenchError):
        convert(printed(beta="10"))


def test_equation_2_is_the_weighted_sum() -> None:
    """Logits (ln 3, 0) and (0, 0): CE = (ln 4/3 + ln 2) / 2; mean p = (5/8, 3/8)."""
    judge = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(2, eps=1e-12)).eval()
    images = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]]).view(2, 2, 1, 1)
    ce = (math.log(4 / 3) + math.log(2)) / 2
    balance = 5 / 8 * math.log(5 / 8) + 3 / 8 * math.log(3 / 8)
    per_sample = (0.75 * math.log(0.75) + 0.25 * math.log(0.25) + math.log(0.5)) / 2
    half = math.log(3) / 2
    norm = half + math.hypot(half**2 - 1, 1)
    for weights, follow, term in [
        ((1, 5, 10), "text", balance),
        ((2, 1, 1), "equations", per_sample),
        ((0, 1, 1), "text", balance),
        ((1, 0, 1), "text", balance),
        ((1, 1, 0), "text", balance),
    ]:
        a, b, c = weights
        method = DpDfd(ce_weight=a, alpha=b, beta=c, follow=follow)  # type: ignore[arg-type]
        with BatchStatistics(judge) as statistics:
            found = method.generator_loss(judge, statistics, images)
        assert float(found) == pytest.approx(a * ce + b * term + c * norm, rel=1e-5)
        assert float(method.generator_loss(judge, None, images)) == pytest.approx(a * ce + b * term, rel=1e-5)


def test_l1_activation_loss_by_hand() -> None:
    features = torch.tensor([[1.0, -3.0], [0.0, 4.0]])
    assert float(l1_activation_loss(features, up=False)) == 2 and float(l1_activation_loss(features, up=True)) == -2


def test_pretrain_descends_and_keeps_the_discriminator() -> None:
    generator, judge, told = Pictures(), nn.Sequential(nn.Linear(1, 1), nn.Dropout()), []
    seen: list[bool] = []

    def loss(images: Tensor) -> Tensor:
        seen.append(judge.training or any(p.requires_grad for p in judge.parameters()))
        return images.abs().mean()

    rng = torch.Generator().manual_seed(0)
    pretrain(generator, judge, 5, 8, 0.1, loss, rng, told.append, decay_every=2, decay_factor=0.1)
    assert told == [1] * 5 and seen == [False] * 5
    steps = 0.1 + 0.1 + 0.01 + 0.01 + 0.001
    assert float(generator.weight) == pytest.approx(2 - steps, rel=0.02), "Adam's step is about lr while the sign holds"
    assert judge.training and all(p.requires_grad and p.grad is None for p in judge.parameters())


def test_fixed_restores_each_modules_mode() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1).eval())
    model[0].bias.requires_grad_(False)
    with fixed(model):
        assert not model.training and not model[0].weight.requires_grad
    assert model.training and model[0].training and not model[1].training
    assert model[0].weight.requires_grad and not model[0].bias.requires_grad


def test_norm_term_trains_only_the_generator() -> None:
    teacher = norm_teacher()
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    made = [generator_weights(convert(printed(finetune_steps="0", beta=beta), teacher)) for beta in ("0", "10")]
    assert not torch.equal(*made)
    assert all(torch.equal(before[name], value) for name, value in teacher.model.state_dict().items())
    assert not any(layer._forward_pre_hooks for layer in teacher.model.modules())


@pytest.mark.parametrize("term", ["ce_weight", "alpha", "beta"])
def test_equation_2_weights_change_the_images(term: str) -> None:
    whole = {"ce_weight": "1", "alpha": "5", "beta": "10", "finetune_steps": "0", "pretrain_steps": "3"}
    assert not torch.equal(
        generator_weights(convert(printed(**whole), norm_teacher())),
        generator_weights(convert(printed(**whole | {term: "0"}), norm_teacher())),
    )


def test_convert_runs_the_lines_of_a_stage_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """1: the generator against the teacher. Twice 2: 17 of 35 images, labels by the student as it is, the student on
    them in training mode, the generator against the student."""
    happened: list[tuple[Any, ...]] = []
    teacher, students = toy_teacher(), []
    label, kl_loss = DpDfd.label, dp_dfd.kl_loss

    def trained(phi_g: nn.Module, judge: nn.Module, steps: int, batch: int, lr: float, *_: Any, **__: Any) -> None:
        happened.append(("teacher" if judge is teacher.model else "student", steps, batch, lr))

    def labelled(self: DpDfd, x: Tensor, phi_s: nn.Module, *rest: Any) -> Tensor:
        students.append(phi_s)
        happened.append(("label", len(x), phi_s.training))
        return label(self, x, phi_s, *rest)

    def learnt(logits: Tensor, targets: Tensor) -> Tensor:
        happened.append(("learn", len(logits), students[-1].training))
        return kl_loss(logits, targets)

    monkeypatch.setattr(dp_dfd, "pretrain", trained)
    monkeypatch.setattr(DpDfd, "label", labelled)
    monkeypatch.setattr(dp_dfd, "kl_loss", learnt)
    convert(printed(queries="35", pretrain_steps="7", finetune_steps="3", lr="0.002"), teacher)
    stage = [("label", 17, False), *[("learn", 16, True)] * 2, ("student", 3, 16, 0.002)]
    assert happened == [("teacher", 7, 16, 0.002), *stage, *stage]


def test_draw_images_uses_standard_normal_vectors() -> None:
    z = draw_images(nn.Identity(), 300, 16, torch.Generator().manual_seed(0))
    assert z.shape == (300, 100)
    assert stats.kstest(z.flatten().double().numpy(), stats.norm(0, 1).cdf).pvalue > 0.01


class Same(nn.Module):
    def __init__(self, *p: float) -> None:
        super().__init__()
        self.logits = torch.tensor([p]).log()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


@pytest.mark.parametrize(("sees", "answered"), [(0, 0), (2, 2), (3, None)])
def test_query_teacher_uses_the_students_candidates(sees: int, answered: int | None) -> None:
    """The student's first three are above t = 1/8; a teacher's class among them is revealed, the fourth is hidden."""
    teacher = Same(*[0.97 if c == sees else 0.01 for c in range(CLASSES)])
    plan, images = ResponsePlan(1 / 8, 1, 90, math.inf), torch.zeros(90, *SHAPE)
    rng = torch.Generator().manual_seed(0)
    found = printed().label(images, Same(0.45, 0.3, 0.24, 0.01), teacher, plan, rng).argmax(1)
    assert set(found.tolist()) == ({0, 1, 2} if answered is None else {answered})
