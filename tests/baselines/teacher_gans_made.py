"""Training states of DataLens, G-PATE and PATE-GAN on toy records, and the weights of each of their teachers."""

from __future__ import annotations

import math
from typing import Any

import g_pate_made
import numpy as np
import torch
from torch import Tensor

from baselines.datalens.accounting import DataLensParameters
from baselines.datalens.datalens import DataLens
from baselines.datalens.datalens import Training as DataLensTraining
from baselines.datalens.networks import Convolutions, Perceptrons
from baselines.pate_gan import networks, pate_gan
from baselines.pate_gan.pate_gan import PateGan
from bench.config import configure
from bench.distillation.votes.noisy_votes import Aggregation
from bench.gan.training import TeacherBatches
from bench.testing import CLASSES, SHAPE, context

PIXELS = math.prod(SHAPE)
OPTIONS: dict[str, dict[str, Any]] = {
    "datalens": {"teacher": "perceptron"},
    "datalens-convolutions": {"teacher": "convolutions"},
    "g-pate": {},
    "pate-gan": {},
}
"""Options of the methods whose teachers are compared, by name of the test case."""


def datalens_training(
    by: DataLens, parts: list[np.ndarray], images: Tensor, labels: Tensor, sigma: float = 0.0
) -> DataLensTraining:
    batches = TeacherBatches(images, labels, CLASSES, parts)
    torch.manual_seed(0)
    source = by.sampler(SHAPE, CLASSES, "toy")
    kind = Convolutions if by.teacher == "convolutions" else Perceptrons
    panel = kind(len(parts), SHAPE, CLASSES, by.teacher_width)
    parameters = DataLensParameters(sigma, by.steps, by.batch, round(by.kept * PIXELS), len(parts), PIXELS)
    return DataLensTraining(by, parameters, batches, source, panel, context())


def pate_gan_training(
    by: PateGan, parts: list[np.ndarray], images: Tensor, labels: Tensor, scale: float = 0.0
) -> pate_gan.Training:
    torch.manual_seed(0)
    made = networks.LabelledPerceptron(SHAPE, CLASSES, by.latent, by.width)
    teachers = networks.Perceptrons(len(parts), PIXELS, CLASSES, by.teacher_width)
    student = networks.Perceptrons(1, PIXELS, CLASSES, by.student_width)
    batches = TeacherBatches(images, labels, CLASSES, parts)
    return pate_gan.Training(by, Aggregation(by.votes, scale), batches, made, teachers, student, context())


def teachers_after(
    case: str, steps: int, parts: list[np.ndarray], images: Tensor, labels: Tensor, **given: str
) -> list[Tensor]:
    """Train the teachers for some steps; return one vector of weights for each."""
    given = {**OPTIONS[case], **given}
    training: Any
    if case.startswith("datalens"):
        training = datalens_training(configure(DataLens, "smoke", given, "method", "printed"), parts, images, labels)
    elif case == "g-pate":
        training = g_pate_made.training(g_pate_made.smoke(**given), parts, images, labels)
    else:
        training = pate_gan_training(configure(PateGan, "smoke", given, "method", "printed"), parts, images, labels)
    for _ in range(steps):
        training.teach()
    if case == "g-pate":
        blocks = [[w.detach().flatten(1) for w in block.values()] for block in training.teachers.blocks]
        return list(torch.cat([torch.cat(block, 1) for block in blocks]))
    stacked = training.panel if case.startswith("datalens") else training.teachers
    return list(torch.cat([p.detach().reshape(len(parts), -1) for p in stacked.parameters()], 1))
