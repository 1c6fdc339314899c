"""The loop of the `working` variants (DPSD, DP-DFD, DPDFD, FedDPSD): query, read by likelihood, learn, repeat.

    for every round:
        candidates = new images of a prior and children of annotated images, `choose` for each query
        queries    = candidates that the student chooses: class-balanced, uncertain ones more often
        readings   = likelihoods of the teacher's noisy responses, one query per image or per augmented copy
        train the student on all readings so far
    if responses are few, or more often wrong than right:
        train new students on all readings; their mean teaches the released student

Only `ask`, which the method provides, queries a teacher; the prior uses no data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Teacher
from bench.distillation.image_source import Source
from bench.distillation.transcription import committee
from bench.distillation.transcription.learner import Energy, Learner, Loss, Schedule
from bench.distillation.transcription.likelihoods import likelihood_loss
from bench.distillation.transcription.options import TranscriptionOptions
from bench.distillation.transcription.questions import (
    Answered,
    as_bytes,
    as_floats,
    chosen,
    drawn_children,
    logits_of,
    slightly_moved,
)
from bench.errors import BenchError
from bench.nets.small_net import xavier

Ask = Callable[[Tensor, Tensor], Tensor]
"""Query function: (n, c, h, w) float images and the student's (n, classes) logits -> (n, classes) readings."""

Move = Callable[[Tensor, torch.Generator], Tensor]
"""Transform of the queries before they are sent: (n, c, h, w) uint8 -> the same shape and type."""

FEW = 4096
"""Number of stored responses below which a student memorises them unless they are augmented, and a committee of
students is more accurate than one; above it augmentation harms."""
MEMBERS = 3
"""Number of students in a committee."""
PER_ROUND, FEWEST_ROUNDS = 5000, 4
FIRST_STEPS, QUESTIONS_PER_STEP = 300, 40
UNSURE = 0.5
AS_FLOATS = 12
"""Bytes per pixel value while float32 images are converted to bytes: three copies."""


@dataclass(frozen=True)
class Transcription:
    """Settings of the loop.

    Attributes:
        questions: N, total number of queries.
        balanced: True = the classes that stored responses name are equally frequent in training.
        copies: augmented copies of every chosen image, each queried once; their readings are added to one. N / copies
            images are chosen.
        rounds: number of rounds, with equal numbers of queries.
        choose: candidates per query, >= 1; 1 = no choice.
        evolve: share of children among the candidates, in [0, 1); the first round has none.
        unsure: exponent of the student's uncertainty in its choice, >= 0.
        steps: total steps of the student.
        gamma_s: largest learning rate of the student's Adam; one cycle, a tenth of it rising.
        jitter: True = randomly rotate, scale, shear and shift stored images whenever they are reused.
        replay: True = train on all responses, False = on the last round's only.
        batch: stored responses per step.
        early: share of the steps between rounds; the others follow the last round, at a falling rate.
        members: number of students whose mean teaches the released one; 1 = the querying student is released.
    """

    questions: int
    rounds: int
    choose: float
    evolve: float
    unsure: float
    steps: int
    gamma_s: float
    jitter: bool
    replay: bool = True
    batch: int = 256
    early: float = 0.8
    members: int = 1
    copies: int = 1
    balanced: bool = False

    @classmethod
    def of(cls, options: TranscriptionOptions, questions: int, doubtful: bool = False) -> Transcription:
        """Build the settings from a method's options, whose values 0 and "auto" depend on the number of queries.

        Args:
            doubtful: True if single responses are more often wrong than right.

        Raises:
            BenchError: more copies of an image than queries.
        """
        if options.copies > questions:
            raise BenchError(
                f"--method.copies {options.copies}: expected at most {questions}, as many as all answers that there are"
            )
        images = questions // options.copies
        return cls(
            questions=questions,
            rounds=options.rounds or max(FEWEST_ROUNDS, images // PER_ROUND),
            choose=options.choose,
            evolve=options.evolve,
            unsure=UNSURE,
            steps=options.student_steps or FIRST_STEPS + images // QUESTIONS_PER_STEP,
            gamma_s=options.gamma_s,
            jitter=images < FEW if options.jitter == "auto" else options.jitter == "on",
            replay=options.replay,
            members=options.committee or (MEMBERS if images < FEW or doubtful else 1),
            copies=options.copies,
        )

    @property
    def images(self) -> int:
        """Return the total number of images that the student chooses."""
        return max(self.questions // self.copies, 1)

    def image_bytes(self, shape: tuple[int, int, int]) -> int:
        """Return the bytes of the images in memory at the peak.

        A round's new images are float32, in three copies during conversion to bytes; there are two copies of the
        annotated ones while a round's are added. From the second round on, a share `evolve` of the candidates are
        children.
        """
        size = math.ceil(self.images / min(self.rounds, self.images))
        candidates = self.choose * size
        fresh = max(size, candidates * (1 - self.evolve)) * AS_FLOATS
        return int(math.prod(shape) * (max(fresh, candidates) + 2 * self.images))

    @property
    def schedule(self) -> Schedule:
        """Return the schedule of every student, except one taught by a committee."""
        return Schedule(self.steps, self.gamma_s, self.batch, self.jitter, self.balanced)

    def train(
        self,
        teacher: Teacher,
        student: str,
        source: Source,
        ask: Ask,
        ctx: Context,
        title: str,
        loss: Loss = likelihood_loss,
        energy: Energy | None = None,
        move: Move | None = None,
    ) -> tuple[nn.Module, Tensor]:
        """Run the loop; return the student in eval mode and (n, c, h, w) images of the last round, in [0, 1].

        Only public properties of the teacher's data are used here.

        Args:
            source: of new images.
            ask: query function, called on every query once.
            loss: of a batch of stored readings.
            energy: loss term added in every step of the querying student.
            move: transform of the student's chosen images before they are sent.
        """
        shape, rng = teacher.shape, ctx.generator("transcription")

        def new() -> nn.Module:
            return ctx.prepared(xavier(nets.build(student, shape, teacher.classes)))

        phi_s = new()
        learner = Learner(self.schedule, phi_s, ctx, loss, rng, energy)
        answered = Answered(shape, teacher.classes, ctx.device)
        steps = self.steps + committee.steps(self.members, self.schedule)
        left = self.questions
        with ctx.track(f"{title}: converting", steps) as advance:
            for size in self._sizes():
                left -= size * self.copies
                if left < 0:
                    raise ValueError(f"{self.questions - left} answers, but the ledger is told of {self.questions}")
                questions = self._questions(answered, phi_s, source, shape, size, rng)
                if move is not None:
                    questions = move(questions, rng)
                answered.add(questions, self._readings(ask, questions, phi_s, rng))
                until = self.steps
                if len(answered) < self.images:
                    until = int(self.early * self.steps * len(answered) / self.images)
                known = answered if self.replay else answered.newest(size)
                learner.learn(known, until, advance)
                source.learn(phi_s)
            if self.members > 1:
                phi_s = committee.taught_by_committee(
                    self.members, self.schedule, new, known, source, ctx, loss, rng, advance
                )
        return phi_s.eval(), as_floats(answered.images[-size:])

    def _sizes(self) -> list[int]:
        """Return the number of images of each round."""
        rounds = min(self.rounds, self.images)
        edges = [self.images * i // rounds for i in range(rounds + 1)]
        return [after - before for before, after in itertools.pairwise(edges)]

    def _readings(self, ask: Ask, questions: Tensor, phi_s: nn.Module, rng: torch.Generator) -> Tensor:
        """Return (n, classes): the reading of each image's response, or the sum over its copies' responses."""
        logits = logits_of(phi_s, questions)
        found = []
        for part, ours in zip(questions.split(self.batch), logits.split(self.batch), strict=True):
            images = as_floats(part)
            copies = [images, *(slightly_moved(images, rng) for _ in range(self.copies - 1))]
            found.append(torch.stack([ask(copy, ours) for copy in copies]).sum(0))
        return torch.cat(found)

    @torch.no_grad()
    def _questions(
        self,
        answered: Answered,
        phi_s: nn.Module,
        source: Source,
        shape: tuple[int, int, int],
        size: int,
        rng: torch.Generator,
    ) -> Tensor:
        """Return (size, c, h, w) uint8: the queries of one round."""
        if not len(answered):
            return as_bytes(source.draw(size, shape, rng))
        candidates = math.ceil(size * self.choose)
        old = int(candidates * self.evolve)
        images = as_bytes(source.draw(candidates - old, shape, rng))
        if old:
            seen = (logits_of(phi_s, answered.images).log_softmax(1) + answered.readings).argmax(1)
            images = torch.cat([images, drawn_children(answered, seen, old, rng)])
        if candidates == size:
            return images
        return images[chosen(images, logits_of(phi_s, images), size, self.unsure, rng)]
