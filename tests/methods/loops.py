"""What a printed loop hands to its optimisers, beside what it should; whether two loops made the same student."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.api import Release
from bench.distillation import image_source
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss


@dataclass
class Step:
    """One optimiser step, and the images and answers that came before it.

    Attributes:
        who: "student" or "generator".
        loss: what the optimiser was given.
        by_hand: L_S of the last images and answers for the student; L_S + L_G for the generator.
        shapes: of what the optimiser moves.
    """

    who: str
    loss: float
    by_hand: float
    images: Tensor
    targets: Tensor
    shapes: list[tuple[int, ...]]


def watched_losses(monkeypatch: pytest.MonkeyPatch, module: ModuleType, cls: type[Any]) -> list[Step]:
    """Every optimiser step of the conversions to come; for students without dropout, and L_G as the text argues."""
    annotated, stepped, steps = cls._annotate, module.descend, []
    last: dict[str, Any] = {}

    def annotate(self: Any, images: Tensor, phi_s: Any, *rest: Any) -> Tensor:
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
        steps.append(Step(who, float(loss.detach()), float(by_hand), images, last["targets"], shapes))
        stepped(optimizer, loss)

    monkeypatch.setattr(cls, "_annotate", annotate)
    monkeypatch.setattr(module, "descend", descend)
    return steps


def same_students(one: Release, other: Release) -> bool:
    """Whether two releases have the same student, bit for bit."""
    pairs = zip(one.student.state_dict().values(), other.student.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def small_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working variants' generator with 2 steps on 8 images after each round."""
    monkeypatch.setattr(image_source, "STEPS", 2)
    monkeypatch.setattr(image_source, "BATCH", 8)
