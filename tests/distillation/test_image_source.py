"""Sources of query images: priors by name, and the generator that the student trains."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench.distillation.image_source import StudentTrainedGenerator, generator_loss, image_source
from bench.errors import BenchError
from bench.testing import SHAPE, context, toy_teacher


class FixedOutputs(nn.Module):
    """A network with probabilities (3/4, 1/4) and (1/2, 1/2), and features of length 5 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()

    def features(self, x: Tensor) -> Tensor:
        return torch.tensor([[3.0, 4.0], [0.0, 1.0]])


def test_generator_loss_by_hand() -> None:
    """-log of the largest, 5 times the mean output's sum of p log p, minus 0.02 times the features' mean length."""
    confidence = -(math.log(0.75) + math.log(0.5)) / 2
    balance = 0.625 * math.log(0.625) + 0.375 * math.log(0.375)
    found = generator_loss(FixedOutputs(), torch.zeros(2, 1, 1, 1))
    assert float(found) == pytest.approx(confidence + 5 * balance - 0.02 * 3)


def test_image_source_auto_is_the_data_sets_prior() -> None:
    teacher = replace(toy_teacher(), dataset="mnist")
    own, named = (image_source(name, teacher, context()) for name in ("auto", "pen"))
    drawn = [source.draw(4, SHAPE, torch.Generator().manual_seed(0)) for source in (own, named)]
    assert torch.equal(*drawn)


def test_image_source_refuses_unknown_names() -> None:
    with pytest.raises(BenchError) as caught:
        image_source("pencil", toy_teacher(), context())
    assert caught.value.code == "unknown-name" and "'pen'" in str(caught.value)


@pytest.mark.thorough
def test_generator_lowers_its_loss_and_keeps_the_student(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.distillation.image_source.BATCH", 64)
    torch.manual_seed(0)
    student, source = toy_teacher(seed=1).model, StudentTrainedGenerator(SHAPE, context())
    before = {name: value.clone() for name, value in student.state_dict().items()}
    z = torch.randn(64, 100, generator=torch.Generator().manual_seed(1))

    def loss() -> float:
        with torch.no_grad():
            return float(generator_loss(student, source._phi_g(z)))

    first = loss()
    source.learn(student)
    assert loss() < first - 0.01
    assert all(torch.equal(before[name], value) for name, value in student.state_dict().items())
    images = source.draw(5, SHAPE, torch.Generator().manual_seed(2))
    assert images.shape == (5, *SHAPE) and images.min() >= 0 and images.max() <= 1 and not images.requires_grad
