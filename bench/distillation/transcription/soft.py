"""Distillation of an already private classifier by its softmax outputs, in the loop of `loop.py`.

The classifier was trained privately, so any number of queries is post-processing. The queries are images of a prior and
their children, class-balanced, those on which the student is uncertain more often. The logits are divided by a
temperature at which responses to images of the prior have a mean entropy of `ENTROPY`, since the size of a clipped and
noisy head's logits carries no information. The student minimises the cross-entropy to these responses.
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
from bench.distillation.transcription.loop import Transcription, Transform
from bench.distillation.transcription.options import TranscriptionOptions
from bench.distillation.transcription.queries import compute_logits, to_bytes

ENTROPY = 1.0
"""Target entropy in nats; with few classes at most half of the maximum."""
SHOWN = 60
"""Number of the last round's images that are released with the student."""
DRAWINGS = 2000
"""Number of images of the prior from which the temperature is computed."""
COLDEST, HOTTEST, HALVINGS = 1e-4, 1e4, 60
"""Range of the search for the temperature, and its number of bisections."""


@dataclass(frozen=True)
class SoftTranscription(TranscriptionOptions):
    """Settings of a student's training on a private classifier's softmax outputs.

    Attributes:
        queries: number of queries to the classifier.
        balanced: True = images are drawn for training so that their most likely classes are equally frequent.
        flips: True = half of the images are mirrored whenever the student is trained on them.
    """

    evolve: float = 0.5
    gamma_s: float = 8e-3
    student_steps: int = 2400
    queries: int = 60_000
    balanced: bool = True
    flips: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "queries")

    def train(
        self,
        model: nn.Module,
        teacher: Teacher,
        student: str,
        ctx: Context,
        second_source: Source | None = None,
        transform: Transform | None = None,
    ) -> tuple[nn.Module, Tensor]:
        """Train a student; return it in eval mode with some of its training images, (n, c, h, w) in [0, 1].

        Args:
            model: the classifier; maps (n, c, h, w) in [0, 1] to (n, classes) logits, on the context's device, in eval
                mode.
            teacher: only its shape, classes and data set name are used.
            second_source: source of half of the new images; None = all come from the prior.
            transform: transform of every round's images before they are queried.
        """
        source = image_source(self.prior, teacher, ctx)
        if second_source is not None:
            source = HalfAndHalf(source, second_source)
        temperature = self.temperature(model, teacher, source, ctx)

        def query(images: Tensor, ours: Tensor) -> Tensor:
            with torch.no_grad():
                return (model(images).float() / temperature).log_softmax(1)

        settings = replace(Transcription.of(self, self.queries), balanced=self.balanced, flips=self.flips)
        title = "private classifier"
        phi_s, images = settings.train(teacher, student, source, query, ctx, title, soft_loss, transform=transform)
        return phi_s, images[:SHOWN]

    def temperature(self, model: nn.Module, teacher: Teacher, source: Source, ctx: Context) -> float:
        """Return the temperature of the model's responses to new images of `source`; other arguments as `train`."""
        drawn = to_bytes(source.draw(min(DRAWINGS, self.queries), teacher.shape, ctx.generator("temperature")))
        return find_temperature(compute_logits(model, drawn), min(ENTROPY, math.log(teacher.classes) / 2))


def find_temperature(logits: Tensor, entropy: float) -> float:
    """Return the temperature at which the softmax of (n, classes) logits has this mean entropy, in nats.

    Constant logits have entropy log(classes) at every temperature: the lowest one is returned.
    """
    low, high = COLDEST, HOTTEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        log_p = (logits.double() / middle).log_softmax(1)
        found = float(-(log_p.exp() * log_p).sum(1).mean())
        low, high = (middle, high) if found < entropy else (low, middle)
    return low
