"""Helpers that build and run label-private baselines, and record the inputs and outputs of their mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import baseline_runs
import pytest
from baseline_runs import forbidden_teacher
from scipy import stats
from torch import Tensor

from baselines import alibi, lp_2st, rr, rr_debiased
from baselines.alibi import Alibi
from baselines.lp_2st import Lp2st, rr_with_prior
from baselines.rr import Rr
from baselines.rr_debiased import RrDebiased
from bench.api import Release
from bench.dp_training.label_privacy import respond
from bench.dp_training.noisy_label_training import LabelPrivate
from bench.privacy import Budget
from bench.testing import toy_private

METHODS = [Rr, RrDebiased, Lp2st, Alibi]


def convert(
    cls: type[LabelPrivate], budget: Budget | None = None, private: Any = None, ctx: Any = None, **given: Any
) -> Release:
    teacher = forbidden_teacher(private=private or toy_private())
    return baseline_runs.convert(cls, budget or Budget(2.0), teacher, ctx=ctx, variant=None, **given)


def law(noise: str, scale: float) -> Any:
    return stats.laplace(scale=scale) if noise == "laplace" else stats.norm(scale=scale)


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], list[float], list[Tensor]]:
    """Records the labels that every mechanism receives, its epsilon or scale, and its outputs."""
    queried: list[Tensor] = []
    noise: list[float] = []
    answers: list[Tensor] = []

    def spy(real: Callable[..., Tensor], at: int = 0) -> Callable[..., Tensor]:
        def ask(*given: Any) -> Tensor:
            queried.append(given[at])
            noise.append(given[at + 2])
            answers.append(real(*given))
            return answers[-1]

        return ask

    for module in (rr, rr_debiased):
        monkeypatch.setattr(module, "respond", spy(respond))
    monkeypatch.setattr(lp_2st, "rr_with_prior", spy(rr_with_prior))
    monkeypatch.setattr(alibi.Alibi, "_noisy", spy(Alibi._noisy, at=1))
    return queried, noise, answers
