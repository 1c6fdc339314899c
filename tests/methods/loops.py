"""Losses of a printed loop's optimisers compared with values by hand; checks of a working one's training without
training it; whether two loops made the same student."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Teacher
from bench.distillation import image_source
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss
from bench.distillation.transcription.likelihoods import likelihood_loss
from bench.distillation.transcription.loop import Transcription


@dataclass
class Step:
    """One optimiser step, with the images and responses before it.

    Attributes:
        who: "student" or "generator".
        loss: the loss of the optimiser's step.
        by_hand: L_S of the last images and responses for the student; L_S + L_G for the generator.
        shapes: shapes of the optimiser's parameters.
        rate: the optimiser's learning rate.
        dropout: whether a layer of the student uses dropout.
    """

    who: str
    loss: float
    by_hand: float
    images: Tensor
    targets: Tensor
    shapes: list[tuple[int, ...]]
    rate: float
    dropout: bool


def watched_losses(monkeypatch: pytest.MonkeyPatch, module: ModuleType, cls: type[Any]) -> list[Step]:
    """Record every optimiser step of later conversions. Losses by hand assume students without dropout, and L_G as in
    the paper's text. The student must be in evaluation mode when it evaluates the images."""
    annotated, stepped, steps = cls._annotate, module.descend, []
    last: dict[str, Any] = {}

    def annotate(self: Any, images: Tensor, phi_s: Any, *rest: Any) -> Tensor:
        assert not phi_s.training
        targets = annotated(self, images, phi_s, *rest)
        last.update(images=images.clone(), phi_s=phi_s, targets=targets.clone())
        return targets

    def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        moved = [p for group in optimizer.param_groups for p in group["params"]]
        phi_s, images = last["phi_s"], last["images"]
        who = "student" if any(p is moved[0] for p in phi_s.parameters()) else "generator"
        with torch.no_grad():
            logits = phi_s(images)
            by_hand = F.cross_entropy(logits, last["targets"])
            if who == "generator":
                assert not phi_s.training and not any(p.requires_grad for p in phi_s.parameters())
                by_hand += confidence_loss(logits) + balance_loss(logits, per_sample=False)
                by_hand += activation_loss(phi_s.features(images), up=True)
        shapes = [tuple(p.shape) for p in moved]
        rate = optimizer.param_groups[0]["lr"]
        dropout = any(layer.training for layer in phi_s.modules() if isinstance(layer, nn.Dropout))
        steps.append(Step(who, float(loss.detach()), float(by_hand), images, last["targets"], shapes, rate, dropout))
        stepped(optimizer, loss)

    monkeypatch.setattr(cls, "_annotate", annotate)
    monkeypatch.setattr(module, "descend", descend)
    return steps


def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Transcription, Any]]:
    """How the working variants' conversions to come would train a student, and with what loss; none is trained."""
    told: list[tuple[Transcription, Any]] = []

    def train(
        self: Transcription, teacher: Teacher, student: str, source: Any, ask: Any, ctx: Context, stage: str,
        loss: Any = likelihood_loss,
    ) -> tuple[nn.Module, Tensor]:  # fmt: skip
        told.append((self, loss))
        return nets.build(student, teacher.shape, teacher.classes), torch.zeros(60, *teacher.shape)

    monkeypatch.setattr(Transcription, "train", train)
    return told


def same_students(one: Release, other: Release) -> bool:
    pairs = zip(one.student.state_dict().values(), other.student.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def small_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working variants' generator with 2 steps on 8 images after each round."""
    monkeypatch.setattr(image_source, "STEPS", 2)
    monkeypatch.setattr(image_source, "BATCH", 8)
