"""Helpers that build and run G-PATE."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from baseline_runs import FREE
from torch import Tensor

from baselines.g_pate.g_pate import GPate, Training
from bench.api import uniform_latents
from bench.config import configure
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan
from bench.dp_training.synthetic_data import Synthesis
from bench.gan.training import TeacherBatches
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher


def smoke(**given: str) -> GPate:
    return configure(GPate, "smoke", {"network": "mlp", **given}, "method", "printed")


def synthesise(by: GPate, budget: Budget = FREE, data: tuple[Tensor, Tensor] | None = None) -> Synthesis:
    return by.synthesise(*(data or toy_private()), toy_teacher(), budget, context())


def training(
    by: GPate, parts: list[np.ndarray], images: Tensor, labels: Tensor, noise: float = 0.0, steps: int = 1
) -> Training:
    torch.manual_seed(0)
    generator = by.sampler(SHAPE, CLASSES, "toy").generator
    critics = by.critics(SHAPE, CLASSES, len(parts))
    once = by.step_plan(Aggregation("gaussian", noise), len(parts))
    plan = replace(once, queries=steps * once.queries, candidates=steps * once.candidates)
    batches = TeacherBatches(images, labels, CLASSES, parts)
    return Training(by, plan, batches, generator, uniform_latents(by.latent), critics, context())


def plan(noise: float, threshold: float, threshold_noise: float, asked: int, answers: int, teachers: int) -> VotePlan:
    return VotePlan(Aggregation("gaussian", noise, threshold, threshold_noise), answers, asked, teachers)
