"""Images with hard labels of a private classifier: drawn from a prior, improved, labelled, filtered and balanced.

    for every round:
        candidates = new images of a prior and children of earlier images, `choose` for each image
        images     = candidates chosen by the classifier: class-balanced, uncertain ones more often
        images    <- some of them moved towards typical records and towards classes (`typical_images.py`)
        responses  = the classifier's softmax outputs to them
    labels  = the most likely class of each response
    release = images whose label is at least as likely as `confidence`, equally many of each class

The classifier is private and has already been released, so that all of this is post-processing. A child is a randomly
rotated, stretched, bent, thickened or combined copy of an earlier image (`transcription/queries.py`). Logits are
divided by a temperature at which responses to images of the prior have a mean entropy of one nat, as in
`transcription/soft.py`, so that `confidence` means the same for every classifier.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.api import Context
from bench.distillation.transcription.loop import UNCERTAINTY
from bench.distillation.transcription.queries import (
    AnnotatedImages,
    choose_rows,
    compute_logits,
    draw_children,
    to_bytes,
)
from bench.distillation.transcription.soft import DRAWINGS, ENTROPY, find_temperature
from bench.errors import BenchError
from bench.priors import Prior

Shape = tuple[int, int, int]
Move = Callable[[Tensor, torch.Generator], Tensor]
"""Transform of a round's images: (n, c, h, w) uint8 -> the same shape and type."""


@dataclass(frozen=True)
class LabelledImages:
    """Labelled images and a count for the record.

    Attributes:
        images: (n, c, h, w) uint8.
        labels: (n,) int64; the classes take turns if they are balanced.
        confident: number of different images from which these were taken.
    """

    images: Tensor
    labels: Tensor
    confident: int


@dataclass(frozen=True)
class SoftClassifier:
    """A classifier with the temperature of its responses.

    Attributes:
        network: maps (n, c, h, w) images in [0, 1] to (n, classes) logits; in eval mode, on the images' device.
        temperature: positive divisor of the logits.
    """

    network: torch.nn.Module
    temperature: float

    @classmethod
    def on_prior(
        cls, network: torch.nn.Module, prior: Prior, shape: Shape, classes: int, ctx: Context
    ) -> SoftClassifier:
        """Choose the temperature by the classifier's responses to images of the prior."""
        drawn = to_bytes(prior.draw(DRAWINGS, shape, ctx.generator("temperature")))
        entropy = min(ENTROPY, math.log(classes) / 2)
        return cls(network, find_temperature(compute_logits(network, drawn), entropy))

    def logits(self, images: Tensor) -> Tensor:
        """Return (n, classes) logits, divided by the temperature, of (n, c, h, w) uint8 images."""
        return compute_logits(self.network, images) / self.temperature


@dataclass(frozen=True)
class DrawingRounds:
    """Settings of the rounds in which images are drawn and labelled.

    Attributes:
        images: total number of images that are labelled, at least 1.
        rounds: number of rounds, with equal numbers of images, at least 1.
        choose: candidates per image, >= 1; 1 = no choice.
        evolve: share of children among the candidates, in [0, 1); the first round has none.
    """

    images: int
    rounds: int
    choose: float
    evolve: float

    def draw(
        self, classifier: SoftClassifier, prior: Prior, shape: Shape, classes: int, ctx: Context, move: Move | None
    ) -> AnnotatedImages:
        """Run the rounds; readings of the result are the logarithms of the responses.

        Args:
            move: changes each round's images before they are labelled; None = they stay as drawn.
        """
        rng, found = ctx.generator("labelled images"), AnnotatedImages(shape, classes, ctx.device)
        rounds = min(self.rounds, self.images)
        edges = [self.images * i // rounds for i in range(rounds + 1)]
        with ctx.track("drawing images", self.images) as advance:
            for start, end in itertools.pairwise(edges):
                chosen = self._choose(found, classifier, prior, shape, end - start, rng)
                if move is not None:
                    chosen = move(chosen, rng)
                found.add(chosen, classifier.logits(chosen).log_softmax(1))
                advance(end - start)
        return found

    def _choose(
        self,
        found: AnnotatedImages,
        classifier: SoftClassifier,
        prior: Prior,
        shape: Shape,
        count: int,
        rng: torch.Generator,
    ) -> Tensor:
        """Return (count, c, h, w) uint8: the images of one round, before they are moved."""
        candidates = math.ceil(count * self.choose)
        children = int(candidates * self.evolve) if len(found) else 0
        images = to_bytes(prior.draw(candidates - children, shape, rng))
        if children:
            images = torch.cat([images, draw_children(found, found.readings.argmax(1), children, rng)])
        if candidates == count:
            return images
        return images[choose_rows(classifier.logits(images), count, UNCERTAINTY, rng)]


def select_labelled(
    found: AnnotatedImages, count: int, confidence: float, balanced: bool, rng: torch.Generator
) -> LabelledImages:
    """Label images by their most likely class and select `count` of those with a confident label.

    Images are drawn without replacement; if there are fewer than needed, all of them are repeated.

    Args:
        found: images with the logarithms of the classifier's responses.
        count: at least the number of classes if they are balanced.
        confidence: least probability of a label, in [0, 1); 0 = all images.
        balanced: True = equally many images of each class, to one; False = as frequent as among the confident images.

    Raises:
        BenchError: no confident image of a class, or none at all.
    """
    top = found.readings.exp().max(1)
    confident, classes = (top.values >= confidence).nonzero().flatten(), found.readings.shape[1]
    labels = top.indices
    if balanced:
        each = -(-count // classes)
        parts = [confident[labels[confident] == c] for c in range(classes)]
        missing = [c for c, part in enumerate(parts) if len(part) == 0]
        if missing:
            raise _nothing_found(f"class {missing[0]}", len(found), confidence)
        rows = torch.stack([_draw(part, each, rng) for part in parts], 1).flatten()[:count]
    else:
        if len(confident) == 0:
            raise _nothing_found("any class", len(found), confidence)
        rows = _draw(confident, count, rng)
    return LabelledImages(found.images[rows], labels[rows], len(confident))


def _draw(rows: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Return `count` of the rows in random order, each of them as often as any other one, to one."""
    times = -(-count // len(rows))
    return torch.cat([rows[torch.randperm(len(rows), generator=rng, device=rng.device)] for _ in range(times)])[:count]


def _nothing_found(of: str, images: int, confidence: float) -> BenchError:
    return BenchError(
        f"the private classifier gave no image of {of} a probability of {confidence:g} or more, among {images:,} "
        "images; expected at least one; lower --method.confidence, raise --method.drawn or --epsilon, or choose "
        "another --method.prior"
    )
