"""Games that audits play on one noisy response of a teacher."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench.distillation.distinguishing_games import numbered_images, response_game
from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters
from bench.privacy.noise import Source


@pytest.mark.parametrize("classes", [4, 10, 31, 32, 100])
def test_response_game_has_the_candidates_that_it_describes(classes: int) -> None:
    k, seen = 3, list[tuple[set[int], set[int]]]()

    def step(images: Tensor, student: nn.Module, teacher: nn.Module, noise: Source) -> Tensor:
        worlds = numbered_images(torch.tensor([0, 1]))
        candidates = student(worlds).topk(k, 1).indices.unique()
        seen.append((set(teacher(worlds).argmax(1).tolist()), set(candidates.tolist())))
        return teacher(images).argmax(1, keepdim=True)

    mechanism = AnnotationMechanism("label", 1, classes)
    response_game(step, mechanism, AnnotationParameters(k, 1.0, 0.0, 1.0, 1), 1e-5)
    assert {frozenset(teachers) for teachers, _ in seen} == {frozenset({0, 1}), frozenset({0, k})}
    assert all(candidates == {0, 1, 2} for _, candidates in seen)
