"""Helpers that build and run G-PATE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import baseline_runs
import numpy as np
import torch
from torch import Tensor

from baselines.g_pate.g_pate import GPate, Training
from bench.api import uniform_latents
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan
from bench.gan.training import TeacherBatches
from bench.testing import CLASSES, SHAPE, context, toy_private


def smoke(**given: Any) -> GPate:
    return baseline_runs.smoke(GPate, **{"network": "mlp", **given})


def training(
    by: GPate,
    parts: list[np.ndarray] | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    noise: float = 0.0,
    steps: int = 1,
) -> Training:
    """The state of a training on toy records, by default with one teacher of all."""
    torch.manual_seed(0)
    usual, classes = toy_private()
    parts = parts or [np.arange(len(usual))]
    generator = by.sampler(SHAPE, CLASSES, "toy").generator
    critics = by.critics(SHAPE, CLASSES, len(parts))
    once = by.step_plan(Aggregation("gaussian", noise), len(parts))
    plan = replace(once, queries=steps * once.queries, candidates=steps * once.candidates)
    batches = TeacherBatches(usual if images is None else images, classes if labels is None else labels, CLASSES, parts)
    return Training(by, plan, batches, generator, uniform_latents(by.latent), critics, context())


def plan(noise: float, threshold: float, threshold_noise: float, queried: int, answers: int, teachers: int) -> VotePlan:
    return VotePlan(Aggregation("gaussian", noise, threshold, threshold_noise), answers, queried, teachers)
