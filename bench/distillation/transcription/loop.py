"""The loop of the working variants (DPSD, DP-DFD, DPDFD, FedDPSD): ask, read by likelihood, learn, ask better.

    for every round:
        candidates = fresh images of a prior and children of answered images, `choose` for each question
        questions  = those of the candidates that the student chooses: balanced, unsure ones more often
        readings   = what the teacher's noisy answers say, asked once for each question, or for each of its moved copies
        the student descends the loss of all readings so far
    where answers are few, or more often wrong than right:
        new students descend the loss of all readings, and their mean teaches the one that is released

Nothing in here asks a teacher but `ask`, which the method gives; the prior knows no data.
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
from bench.nets.initialise import xavier

Ask = Callable[[Tensor, Tensor], Tensor]
"""(n, c, h, w) float images and the student's (n, classes) logits to (n, classes) readings of the answers."""

Move = Callable[[Tensor, torch.Generator], Tensor]
"""(n, c, h, w) uint8 questions to those that are asked in their place."""

FEW = 4096
"""Below so many stored answers a student learns them by heart unless they are jittered, and a committee of students
knows better than each of them; above, jitter harms."""
MEMBERS = 3
"""Of a committee."""
PER_ROUND, FEWEST_ROUNDS = 5000, 4
FIRST_STEPS, QUESTIONS_PER_STEP = 300, 40
UNSURE = 0.5
AS_FLOATS = 12
"""Bytes that a pixel's value takes while float32 images become bytes: three copies."""


@dataclass(frozen=True)
class Transcription:
    """Settings of the loop.

    Attributes:
        questions: N, answers in all.
        balanced: whether the classes that stored answers name are seen as often as each other.
        copies: of every image that the student chooses, each moved a little and asked about once; their readings add up
            to one. N / copies images are chosen.
        rounds: of equal numbers of questions.
        choose: candidates for each question, >= 1; 1 = no choice.
        evolve: share of children among the candidates, in [0, 1); the first round has none.
        unsure: exponent of the student's doubt where it chooses, >= 0.
        steps: of the student, in all.
        gamma_s: largest learning rate of the student's Adam; one cycle, a tenth of it rising.
        jitter: whether stored images are turned, scaled, sheared and moved a little whenever they are seen again.
        replay: whether all answers are learnt from, or the last round's alone.
        batch: stored answers per step.
        early: share of the steps that is taken between rounds; the rest, at a falling rate, follows the last one.
        members: students whose mean teaches the one that is released; 1 = the student that asked is released.
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
        """The settings of a method's options, where 0 and "auto" depend on the number of questions.

        Args:
            doubtful: whether single answers are more often wrong than right.

        Raises:
            BenchError: more copies of an image than there are answers.
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
        """That the student chooses, in all."""
        return max(self.questions // self.copies, 1)

    def image_bytes(self, shape: tuple[int, int, int]) -> int:
        """Bytes of the images that are held at the peak.

        A round's fresh images are float32, three times while they become bytes; of the answered ones there are two
        copies while a round's are added. From the second round on, a share `evolve` of the candidates are children.
        """
        size = math.ceil(self.images / min(self.rounds, self.images))
        candidates = self.choose * size
        fresh = max(size, candidates * (1 - self.evolve)) * AS_FLOATS
        return int(math.prod(shape) * (max(fresh, candidates) + 2 * self.images))

    @property
    def schedule(self) -> Schedule:
        """Of every student but the released one, where a committee teaches that."""
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
        """The student, in evaluation mode, and (n, c, h, w) images of the last round, in [0, 1].

        Of the teacher, only what is public of its data is used here.

        Args:
            source: of fresh images.
            ask: asked about every question once.
            loss: of a batch of stored readings.
            energy: added to it in every step of the student that asks.
            move: of what the student chose, before it is asked.
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
        """Images of each round."""
        rounds = min(self.rounds, self.images)
        edges = [self.images * i // rounds for i in range(rounds + 1)]
        return [after - before for before, after in itertools.pairwise(edges)]

    def _readings(self, ask: Ask, questions: Tensor, phi_s: nn.Module, rng: torch.Generator) -> Tensor:
        """(n, classes): the reading of each image's answer, or the sum of the readings of its copies' answers."""
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
        """(size, c, h, w) uint8: the round's questions."""
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
