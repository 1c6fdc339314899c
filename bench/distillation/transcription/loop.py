"""The rounds of the `working` variants (DPSD, DP-DFD, DPDFD, FedDPSD, DGD): query, read by likelihood, train, repeat.

    for every round:
        candidates = new images of a prior and children of annotated images, `choose` for each query
        queries    = candidates that the student chooses: class-balanced, uncertain ones more often
        readings   = likelihoods of the teacher's noisy responses, one query per image or per augmented copy
        train the student on all readings so far
    if responses are few, or more often wrong than right:
        train new students on all readings; their mean teaches the released student

Only the function `query`, which the method provides, uses a teacher; the prior uses no data. `__init__.py` explains the
terms.
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
from bench.data import to_float
from bench.distillation.image_source import Source
from bench.distillation.transcription import committee
from bench.distillation.transcription.learner import Loss, Regulariser, Schedule, StudentTrainer
from bench.distillation.transcription.likelihoods import likelihood_loss
from bench.distillation.transcription.options import TranscriptionOptions
from bench.distillation.transcription.queries import (
    AnnotatedImages,
    augment_slightly,
    choose_rows,
    compute_logits,
    draw_children,
    to_bytes,
)
from bench.errors import BenchError
from bench.nets.small_net import xavier

Query = Callable[[Tensor, Tensor], Tensor]
"""Query function: (n, c, h, w) float images and the student's (n, classes) logits -> (n, classes) readings."""

Transform = Callable[[Tensor, torch.Generator], Tensor]
"""Transform of the queries before they are sent: (n, c, h, w) uint8 -> the same shape and type."""

FEW = 4096
"""Number of stored responses below which a student memorises them unless they are augmented, and a committee of
students is more accurate than one; above it augmentation harms."""
MEMBERS = 3
"""Number of students in a committee."""
IMAGES_PER_ROUND, FEWEST_ROUNDS = 5000, 4
"""Default number of rounds: one for this many images, and the smallest number."""
FIRST_STEPS, IMAGES_PER_STEP = 300, 40
"""Default number of student steps: these, and one more for this many images."""
UNCERTAINTY = 0.5
"""Default exponent of the student's uncertainty in the choice of queries (`choose_rows`)."""
FLOAT_COPIES = 12
"""Bytes per pixel value while float32 images are converted to bytes: three copies."""


@dataclass(frozen=True)
class Transcription:
    """Settings of the loop; "transcription" is DPSD's word for the private distillation of a teacher.

    Attributes:
        queries: N, total number of queries.
        rounds: number of rounds, with equal numbers of queries.
        choose: candidates per query, >= 1; 1 = no choice.
        evolve: share of children among the candidates, in [0, 1); the first round has none.
        uncertainty: exponent of the student's uncertainty in its choice, >= 0.
        steps: total steps of the student.
        gamma_s: largest learning rate of the student's Adam; one cycle, a tenth of it rising.
        jitter: True = randomly rotate, scale, shear and shift stored images whenever they are reused.
        replay: True = train on all readings, False = on the last round's only.
        batch: readings per step.
        early: share of the steps between rounds; the others follow the last round, at a falling rate.
        members: number of students whose mean teaches the released one; 1 = the querying student is released.
        copies: augmented copies of every chosen image, each queried once; their readings are summed. N / copies images
            are chosen.
        balanced: True = images are drawn for training so that their most likely classes are equally frequent.
        flips: True = half of the images are mirrored whenever they are reused.
    """

    queries: int
    rounds: int
    choose: float
    evolve: float
    uncertainty: float
    steps: int
    gamma_s: float
    jitter: bool
    replay: bool = True
    batch: int = 256
    early: float = 0.8
    members: int = 1
    copies: int = 1
    balanced: bool = False
    flips: bool = False

    @classmethod
    def of(cls, options: TranscriptionOptions, queries: int, unreliable: bool = False) -> Transcription:
        """Build the settings from a method's options, whose values 0 and "auto" depend on the number of queries.

        Args:
            unreliable: True if single responses are more often wrong than right.

        Raises:
            BenchError: more copies of an image than queries.
        """
        if options.copies > queries:
            raise BenchError(f"--method.copies {options.copies}: expected at most {queries}, the number of all queries")
        images = queries // options.copies
        return cls(
            queries=queries,
            rounds=options.rounds or max(FEWEST_ROUNDS, images // IMAGES_PER_ROUND),
            choose=options.choose,
            evolve=options.evolve,
            uncertainty=UNCERTAINTY,
            steps=options.student_steps or FIRST_STEPS + images // IMAGES_PER_STEP,
            gamma_s=options.gamma_s,
            jitter=images < FEW if options.jitter == "auto" else options.jitter == "on",
            replay=options.replay,
            members=options.committee or (MEMBERS if images < FEW or unreliable else 1),
            copies=options.copies,
        )

    @property
    def images(self) -> int:
        """Return the total number of distinct query images, without their copies."""
        return max(self.queries // self.copies, 1)

    def image_bytes(self, shape: tuple[int, int, int]) -> int:
        """Return the peak memory of the images, in bytes.

        New images of a round are float32, and there are three copies of them during conversion to bytes. There are two
        copies of the annotated images while a round's images are added. From the second round on, a share `evolve` of
        the candidates are children.
        """
        size = math.ceil(self.images / min(self.rounds, self.images))
        candidates = self.choose * size
        new = max(size, candidates * (1 - self.evolve)) * FLOAT_COPIES
        return int(math.prod(shape) * (max(new, candidates) + 2 * self.images))

    @property
    def schedule(self) -> Schedule:
        """Return the schedule of every student, except one taught by a committee."""
        return Schedule(self.steps, self.gamma_s, self.batch, self.jitter, self.balanced, self.flips)

    def train(
        self,
        teacher: Teacher,
        student: str,
        source: Source,
        query: Query,
        ctx: Context,
        title: str,
        loss: Loss = likelihood_loss,
        regulariser: Regulariser | None = None,
        transform: Transform | None = None,
    ) -> tuple[nn.Module, Tensor]:
        """Run the loop; return the student in eval mode and (n, c, h, w) images of the last round, in [0, 1].

        Args:
            teacher: only its `shape` and `classes` are used; queries go through `query`.
            student: name of the student's network.
            source: source of new images.
            query: returns the readings of a batch; every image and copy is passed to it exactly once.
            title: title of the progress bar.
            loss: loss on a batch of readings.
            regulariser: loss term added in every step of the querying student.
            transform: transform of the chosen images before they are queried.
        """
        shape, rng = teacher.shape, ctx.generator("transcription")

        def new() -> nn.Module:
            return ctx.prepared(xavier(nets.build(student, shape, teacher.classes)))

        phi_s = new()
        trainer = StudentTrainer(self.schedule, phi_s, ctx, loss, rng, regulariser)
        annotated = AnnotatedImages(shape, teacher.classes, ctx.device)
        steps = self.steps + committee.count_steps(self.members, self.schedule)
        left = self.queries
        with ctx.track(f"{title}: converting", steps) as advance:
            for size in self._round_sizes():
                left -= size * self.copies
                if left < 0:
                    raise ValueError(f"{self.queries - left} queries; the ledger has {self.queries}")
                chosen = self._choose_queries(annotated, phi_s, source, shape, size, rng)
                if transform is not None:
                    chosen = transform(chosen, rng)
                annotated.add(chosen, self._read_responses(query, chosen, phi_s, rng))
                until = self.steps
                if len(annotated) < self.images:
                    until = int(self.early * self.steps * len(annotated) / self.images)
                used = annotated if self.replay else annotated.newest(size)
                trainer.train(used, until, advance)
                source.learn(phi_s)
            if self.members > 1:
                phi_s = committee.train_by_committee(
                    self.members, self.schedule, new, used, source, ctx, loss, rng, advance
                )
        return phi_s.eval(), to_float(annotated.images[-size:])

    def _round_sizes(self) -> list[int]:
        """Return the number of images of each round."""
        rounds = min(self.rounds, self.images)
        edges = [self.images * i // rounds for i in range(rounds + 1)]
        return [after - before for before, after in itertools.pairwise(edges)]

    @torch.no_grad()
    def _choose_queries(
        self,
        annotated: AnnotatedImages,
        phi_s: nn.Module,
        source: Source,
        shape: tuple[int, int, int],
        size: int,
        rng: torch.Generator,
    ) -> Tensor:
        """Return (size, c, h, w) uint8: the queries of one round."""
        if not len(annotated):
            return to_bytes(source.draw(size, shape, rng))
        candidates = math.ceil(size * self.choose)
        children = int(candidates * self.evolve)
        images = to_bytes(source.draw(candidates - children, shape, rng))
        if children:
            classes = (compute_logits(phi_s, annotated.images).log_softmax(1) + annotated.readings).argmax(1)
            images = torch.cat([images, draw_children(annotated, classes, children, rng)])
        if candidates == size:
            return images
        return images[choose_rows(compute_logits(phi_s, images), size, self.uncertainty, rng)]

    def _read_responses(self, query: Query, chosen: Tensor, phi_s: nn.Module, rng: torch.Generator) -> Tensor:
        """Query the teacher; return (n, classes) readings, for each image the sum over its copies."""
        logits = compute_logits(phi_s, chosen)
        readings = []
        for part, ours in zip(chosen.split(self.batch), logits.split(self.batch), strict=True):
            images = to_float(part)
            copies = [images, *(augment_slightly(images, rng) for _ in range(self.copies - 1))]
            readings.append(torch.stack([query(copy, ours) for copy in copies]).sum(0))
        return torch.cat(readings)
