"""RGP: the carriers, the gradient from theirs, its noise, and one record's influence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from privately_trained import (
    check_neighbours,
    convert,
    empty_batches,
    is_normal,
    moved,
    sums,
)
from torch import Tensor, nn

from baselines.rgp import Carriers, Rgp, power_iteration
from bench import nets
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.testing import CLASSES, SHAPE, toy_private


class TwoLayers(nn.Module):
    """A carried weight of 3 x 4, its bias, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(4, 3), nn.Linear(3, 2)


def carriers(**given: Any) -> Carriers:
    made = Carriers(Rgp(**{"rank": 1, **given}), TwoLayers(), torch.Generator().manual_seed(0))
    made.begin(0)
    return made


def gradients_of(weight: Tensor, bias: float = 3.0, head: float = 5.0) -> dict[str, Tensor]:
    return {
        "hidden.weight": weight[None],
        "hidden.bias": torch.full((1, 3), bias),
        "head.weight": torch.full((1, 2, 3), head),
        "head.bias": torch.full((1, 2), head),
    }


# The algorithm


def test_power_iteration_by_hand() -> None:
    """diag(3, 4) from (1, 1): L ~ (3, 4) / 5, and D^T L ~ (9, 16) / 5, so R ~ (9, 16) / sqrt(337)."""
    left, right = power_iteration(torch.diag(torch.tensor([3.0, 4.0])), torch.ones(2, 1), 1)
    assert left.abs().flatten().tolist() == pytest.approx([0.6, 0.8])
    assert right.abs().flatten().tolist() == pytest.approx([9 / 337**0.5, 16 / 337**0.5])


def test_carrier_gradients_and_update_by_hand() -> None:
    """L = e_1, R = e_2^T: dL is G's second column, dR its first row, and dW is G on that column and that row."""
    made = carriers()
    made.left["hidden.weight"] = torch.tensor([[1.0], [0], [0]]).double()
    made.right["hidden.weight"] = torch.tensor([[0.0, 1, 0, 0]]).double()
    g = torch.arange(12.0).view(3, 4)
    rows = made.encode(gradients_of(g))
    assert rows["hidden.weight/left"].flatten().tolist() == [1, 5, 9]
    assert rows["hidden.weight/right"].flatten().tolist() == [0, 1, 2, 3]
    back = made.decode({name: row[0] for name, row in rows.items()})
    assert back["hidden.weight"].tolist() == [[0, 1, 2, 3], [0, 5, 0, 0], [0, 9, 0, 0]]
    assert back["hidden.bias"].tolist() == [3, 3, 3]


def test_left_option_trains_only_the_left_carrier() -> None:
    made = carriers(carriers="left")
    made.left["hidden.weight"] = torch.tensor([[1.0], [0], [0]]).double()
    made.right["hidden.weight"] = torch.tensor([[0.0, 1, 0, 0]]).double()
    rows = made.encode(gradients_of(torch.arange(12.0).view(3, 4)))
    assert set(rows) == set(made.zeros()) and "hidden.weight/right" not in rows
    back = made.decode({name: row[0] for name, row in rows.items()})
    assert back["hidden.weight"].tolist() == [[0, 1, 0, 0], [0, 5, 0, 0], [0, 9, 0, 0]]


def test_carrier_gradients_match_reparametrised_layer() -> None:
    """W = L R + constant: autograd's gradients of L and R."""
    made = carriers(rank=2)
    model, x = TwoLayers(), torch.randn(4, generator=torch.Generator().manual_seed(1)).double()
    left, right = (held["hidden.weight"].clone().requires_grad_() for held in (made.left, made.right))
    w = model.hidden.weight.detach().double()
    ((left @ right + (w - left @ right).detach()) @ x).pow(2).sum().backward()
    plain = w.clone().requires_grad_()
    (plain @ x).pow(2).sum().backward()
    assert plain.grad is not None
    rows = made.encode(gradients_of(plain.grad))
    torch.testing.assert_close(rows["hidden.weight/left"][0], left.grad)
    torch.testing.assert_close(rows["hidden.weight/right"][0], right.grad)


def test_update_is_the_projection_on_the_span() -> None:
    """dW = G - (I - L L^T) G (I - R^T R): nothing is lost at full rank, and everything stays in the span."""
    made, g = carriers(rank=2), torch.randn(3, 4, generator=torch.Generator().manual_seed(2)).double()
    back = made.decode({name: row[0] for name, row in made.encode(gradients_of(g)).items()})["hidden.weight"]
    left, right = made.left["hidden.weight"], made.right["hidden.weight"]
    lost = (torch.eye(3).double() - left @ left.T) @ g @ (torch.eye(4).double() - right.T @ right)
    torch.testing.assert_close(back, g - lost)
    full = carriers(rank=16)
    again = full.decode({name: row[0] for name, row in full.encode(gradients_of(g)).items()})["hidden.weight"]
    torch.testing.assert_close(again, g)


@pytest.mark.parametrize("carried", ["both", "left"])
def test_carriers_come_from_weight_then_its_update(carried: str) -> None:
    """The left carriers are computed only from the weight, in all steps, as in the code."""
    made = carriers(warm_up=2, carriers=carried)
    with torch.no_grad():
        made.weights["hidden.weight"].add_(torch.outer(torch.tensor([0.0, 1, 0]), torch.tensor([0.0, 0, 0, 9.0])))
    w, w0 = made._matrix("hidden.weight"), made.first["hidden.weight"]
    for step, target in ((1, w), (2, w if carried == "left" else w / w.norm() - w0 / w0.norm())):
        made.rng.manual_seed(7)
        made.begin(step)
        start = torch.randn(4, 1, generator=torch.Generator().manual_seed(7)).double()
        left, right = power_iteration(target, start, 1)
        torch.testing.assert_close(made.left["hidden.weight"], left)
        torch.testing.assert_close(made.right["hidden.weight"], right)


def test_classifier_gradient_is_scaled_without_carriers() -> None:
    made = carriers()
    rows = made.encode(gradients_of(torch.zeros(3, 4)))
    assert made.carried == ["hidden.weight"] and made.head == "head"
    assert rows["head.weight"].unique().tolist() == [0.05] and rows["head.bias"].unique().tolist() == [0.05]
    assert rows["hidden.bias"].unique().tolist() == [3.0]


# Noise and sensitivity


@pytest.mark.parametrize("carried", ["both", "left"])
def test_update_noise_is_that_of_the_carriers(monkeypatch: pytest.MonkeyPatch, carried: str) -> None:
    """One step, empty batch: L^T dW R^T of both carriers is N_L R R^T.. = that of dL in the span, sigma C / B each."""
    made: list[Carriers] = []
    begin = Carriers.begin

    def kept(self: Carriers, step: int) -> None:
        begin(self, step)
        made.append(self)

    monkeypatch.setattr(Carriers, "begin", kept)
    empty_batches(monkeypatch)
    given = {"rate": 1.0, "momentum": 0, "weight_decay": 0, "clip": 0.6, "multiplier": 1.5, "rank": 8}
    release = convert(Rgp, steps=1, batch=8, carriers=carried, **given)
    sizes = [w.numel() for w in made[0].weights.values()]
    parts = dict(zip(made[0].weights, moved(release).split(sizes), strict=True))
    std, found = 1.5 * 0.6 / 8, {"left": [], "right": []}  # type: ignore[var-annotated]
    for name in made[0].carried:
        left, right = made[0].left[name], made[0].right[name]
        dw = parts[name].view(len(left), -1)
        outside_left, outside_right = dw - left @ (left.T @ dw), dw - dw @ right.T @ right
        # dW R^T off the span of L is dL there; L^T dW is dR, but in the span of R where both carriers meet.
        found["left"].append(((outside_left @ right.T) ** 2).sum() / ((len(left) - left.shape[1]) * left.shape[1]))
        rows = right.shape[0] * (right.shape[1] - right.shape[0])
        found["right"].append(((left.T @ outside_right) ** 2).sum() / rows)
        assert float((outside_left - outside_left @ right.T @ right).abs().max()) < 1e-5, "outside of both spans"
    assert math.sqrt(float(torch.stack(found["left"]).mean())) == pytest.approx(std, rel=0.1)
    right_std = math.sqrt(float(torch.stack(found["right"]).mean()))
    assert right_std == pytest.approx(std, rel=0.1) if carried == "both" else right_std < 1e-5
    assert is_normal(torch.cat([parts[name] for name in parts if name not in made[0].first]), std)


@pytest.mark.parametrize("carried", ["both", "left"])
def test_one_record_moves_sum_by_at_most_clipping_norm(carried: Any) -> None:
    torch.manual_seed(0)
    network = nets.build("relu-cnn", SHAPE, CLASSES)
    gradients = GRADIENTS["opacus"](network, 1)
    coding = Carriers(Rgp(rank=4, clip=0.05, carriers=carried), network, torch.Generator().manual_seed(0))
    coding.begin(0)
    images, labels = toy_private(n=250)
    check_neighbours(coding, gradients, images.float() / 255, labels)
    one = sums(coding, gradients, images[:1].float() / 255, labels[:1])
    assert math.sqrt(sum(float(v.square().sum()) for v in one.values())) == pytest.approx(0.05 * 127 / 128, rel=1e-4)


# Accounting, and what is learnt


def test_settings_are_the_papers() -> None:
    settings = Rgp().settings("cifar10")
    assert (settings.batch, settings.steps, settings.clip, settings.momentum) == (1000, 20_000, 1.0, 0.9)
    rates = [settings.rate_at(step, 100) / 0.5 for step in (0, 29, 30, 59, 60, 79, 80)]
    assert rates == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04, 0.008])
    assert Rgp().rank == 16 and settings.weight_decay == 1e-4
