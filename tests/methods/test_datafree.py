"""The losses of data-free distillation against the papers' equations worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bench.distillation.losses import (
    activation_loss,
    balance_loss,
    confidence_loss,
    dkd_loss,
    gradient_at_output,
    kd_loss,
)

P_T, P_S = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_kd_is_the_divergence_from_the_teacher() -> None:
    by_hand = sum(p * math.log(p / q) for p, q in zip(P_T, P_S, strict=True))
    assert kd_loss(logits(P_S), logits(P_T)).item() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("weight", [0.0, 1.0, 8.0])
def test_dkd_is_equation_2(weight: float) -> None:
    target = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    rest = (2 / 3) * math.log((2 / 3) / (3 / 5)) + (1 / 3) * math.log((1 / 3) / (2 / 5))
    assert dkd_loss(logits(P_S), logits(P_T), weight).item() == pytest.approx(target + weight * rest, abs=1e-12)


def test_dkd_with_weight_one_minus_p_r_is_kd() -> None:
    """KL = l_tc + (1 - p_t,r) l_nc, the identity that decoupled distillation starts from."""
    assert dkd_loss(logits(P_S), logits(P_T), 1 - 0.7).item() == pytest.approx(kd_loss(logits(P_S), logits(P_T)).item())


def test_the_gradient_of_kd_is_p_s_minus_p_t() -> None:
    found = gradient_at_output(kd_loss, logits(P_S, P_T), logits(P_T, P_T))
    assert torch.allclose(found[0], torch.tensor([-0.2, 0.1, 0.1], dtype=torch.float64))
    assert torch.allclose(found[1], torch.zeros(3, dtype=torch.float64), atol=1e-12)


def test_the_gradient_of_dkd_by_hand() -> None:
    """d l_tc / d z = (p_s,r - p_t,r)(1_r - q_s off r), d l_nc / d z = q_s - q_t off r, with q = p / (1 - p_r)."""
    weight = 8.0
    q_s, q_t = [0.6, 0.4], [2 / 3, 1 / 3]
    by_hand = [
        0.5 - 0.7,
        -(0.5 - 0.7) * q_s[0] + weight * (q_s[0] - q_t[0]),
        -(0.5 - 0.7) * q_s[1] + weight * (q_s[1] - q_t[1]),
    ]
    found = gradient_at_output(lambda s, t: dkd_loss(s, t, weight), logits(P_S), logits(P_T))
    assert torch.allclose(found[0], torch.tensor(by_hand, dtype=torch.float64), atol=1e-12)


def test_dkd_is_finite_for_confident_teachers() -> None:
    certain = torch.tensor([[200.0, -200.0, 0.0]])
    found = gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), torch.zeros(1, 3), certain)
    assert torch.isfinite(found).all() and found[0, 0] < 0


def test_confidence_is_cross_entropy_to_the_argmax() -> None:
    assert confidence_loss(logits(P_S, P_T)).item() == pytest.approx(-(math.log(0.5) + math.log(0.7)) / 2)


def test_balance_loss_by_hand_in_both_readings() -> None:
    mean = [(a + b) / 2 for a, b in zip(P_S, P_T, strict=True)]
    both = logits(P_S, P_T)
    assert balance_loss(both, per_sample=False).item() == pytest.approx(sum(p * math.log(p) for p in mean))
    each = [sum(p * math.log(p) for p in row) for row in (P_S, P_T)]
    assert balance_loss(both, per_sample=True).item() == pytest.approx(sum(each) / 2)


def test_activation_loss_signs_are_opposite() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert activation_loss(features, up=False).item() == pytest.approx(3.0)
    assert activation_loss(features, up=True).item() == pytest.approx(-3.0)
