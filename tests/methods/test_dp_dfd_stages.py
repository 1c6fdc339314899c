"""The stages of DP-DFD's Algorithm 1: order and direction of training, and queries to each network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from dp_dfd_made import convert, printed
from scipy import stats
from torch import Tensor, nn

from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dp_dfd import dp_dfd
from methods.dp_dfd.accounting import ResponsePlan
from methods.dp_dfd.dp_dfd import DpDfd, draw_images


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
    """Sees the same probabilities in every image."""

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
