"""A student taught by the soft answers of a classifier that may be asked freely, in the loop of `loop.py`.

For a classifier that is private itself: whatever is made of its answers is post-processing. It is asked about drawings
of a prior and their children, balanced and where the student is unsure; its logits are divided by a temperature at
which its answers to drawings have a mean entropy of `ENTROPY`, since a clipped and noisy head says nothing by the size
of its logits; and the student descends the divergence from these answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bench import validate
from bench.api import Context, Teacher
from bench.distillation.image_source import HalfAndHalf, Source, image_source
from bench.distillation.transcription.likelihoods import soft_loss
from bench.distillation.transcription.loop import Move, Transcription
from bench.distillation.transcription.options import TranscriptionOptions
from bench.distillation.transcription.questions import as_bytes, logits_of

ENTROPY = 1.0
"""Nats; of few classes at most half of the largest there is."""
SHOWN = 60
"""Images of the last round that are released with the student."""
DRAWINGS = 2000
"""That the temperature is taken of."""
COLDEST, HOTTEST, HALVINGS = 1e-4, 1e4, 60


@dataclass(frozen=True)
class SoftTranscription(TranscriptionOptions):
    """How a student is taught; public.

    Attributes:
        questions: images that the classifier is asked about.
        balanced: whether the classes that stored answers name are seen as often as each other.
    """

    evolve: float = 0.5
    gamma_s: float = 8e-3
    student_steps: int = 2400
    questions: int = 60_000
    balanced: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "questions")

    def teach(
        self,
        model: nn.Module,
        teacher: Teacher,
        student: str,
        ctx: Context,
        besides: Source | None = None,
        move: Move | None = None,
    ) -> tuple[nn.Module, Tensor]:
        """The student, in eval mode, and some of the images that it learnt from, (n, c, h, w) in [0, 1].

        Args:
            model: the classifier; (n, c, h, w) in [0, 1] to (n, classes) logits, on the context's device, in eval mode.
            teacher: of which only shape, classes and the data set's name are looked at.
            besides: where half of the fresh images come from, if not all are the prior's.
            move: of every round's questions, before they are asked.
        """
        source, rng = image_source(self.prior, teacher, ctx), ctx.generator("temperature")
        if besides is not None:
            source = HalfAndHalf(source, besides)
        drawn = as_bytes(source.draw(min(DRAWINGS, self.questions), teacher.shape, rng))
        heat = temperature(logits_of(model, drawn), min(ENTROPY, math.log(teacher.classes) / 2))

        def ask(images: Tensor, ours: Tensor) -> Tensor:
            with torch.no_grad():
                return (model(images).float() / heat).log_softmax(1)

        settings = replace(Transcription.of(self, self.questions), balanced=self.balanced)
        phi_s, asked = settings.train(teacher, student, source, ask, ctx, "private classifier", soft_loss, move=move)
        return phi_s, asked[:SHOWN]


def temperature(logits: Tensor, entropy: float) -> float:
    """What (n, classes) logits are to be divided by for softmax answers of that mean entropy, in nats.

    Logits without any difference have log(classes) at every temperature: the coldest is returned.
    """
    low, high = COLDEST, HOTTEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        answers = (logits.double() / middle).log_softmax(1)
        found = float(-(answers.exp() * answers).sum(1).mean())
        low, high = (middle, high) if found < entropy else (low, middle)
    return low
