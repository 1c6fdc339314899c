"""Private synthetic data: a generator trained privately, and a classifier trained only on images drawn from it.

A baseline of this family trains a source of labelled images on the private records, once and privately; all that
follows is post-processing:

1. draw a set of `samples` images, with classes as balanced as possible;
2. train the run's `--student` on it from scratch, on pixels in [0, 1], and release it;
3. train a logistic regression on it too, whose accuracy is recorded as a second measure of the images.

The defaults are the protocol of DataLens (Wang et al., CCS 2021) and G-PATE: 100,000 images, 600 passes of plain SGD at
2e-3, batches of 512. Tier quick has 30,000 images, 8 passes and batches of 128; the variant `working` uses Adam at
1e-3, falling linearly to 0. The student after the last pass is released; DataLens and G-PATE report the best of 600
epochs on the test set. With `selection syn` the student of the pass is released that is most accurate on synthetic
images held out from its training, one in twelve (DPImageBench, Gong et al. 2025, rule `syn`: 5,000 of 60,000). Neither
rule reads private or test data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import nets, validate
from bench.api import Context, Release, Teacher
from bench.config import Departure, Size
from bench.data import to_float
from bench.dp_training.accounting import require_unit_example
from bench.dp_training.records import private_records
from bench.nets import Classifier
from bench.privacy import Budget, Claim, Ledger, Unit

CHUNK, SHOWN = 1000, 60
"""Most images that are drawn at once; most images that are released for display."""
SGD_RATE, ADAM_RATE = 2e-3, 1e-3
"""Learning rates of the student."""
HELD_OUT = 12
"""With `selection syn`, one synthetic image in this many is held out from training."""
PART = 500
"""Number of held-out images that the student classifies at once."""

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""Source of images: (n, generator) -> (n, c, h, w) in [0, 1] and (n,) int64 labels; called for at most CHUNK at
once."""


Labelled = tuple[Tensor, Tensor]
"""Images (n, c, h, w) in [0, 1] and their (n,) int64 labels."""


class FiniteSet:
    """A `Draw` from a finite set: its images one after the other, and from the first one again after the last.

    `samples` images of a set of as many are thus the set itself. Images are (n, c, h, w), uint8 or in [0, 1].
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels, self._next = images, labels, 0

    def __call__(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the next images and their labels; nothing is drawn."""
        rows = (torch.arange(count, device=self.images.device) + self._next) % len(self.images)
        self._next = (self._next + count) % len(self.images)
        images = self.images[rows]
        return to_float(images) if images.dtype == torch.uint8 else images, self.labels[rows]


SMOKE: dict[str, int] = {"samples": 40, "passes": 1, "student_batch": 128}
QUICK: dict[str, int] = {"samples": 30_000, "passes": 8, "student_batch": 128}
STUDENT_BY_ADAM = Departure(
    what="the student is trained by Adam at 1e-3, falling linearly to 0, instead of SGD at 2e-3",
    why="SGD at 2e-3 needs the published 600 passes over 100,000 images, which take hours on two CPU cores",
    sets={"student_optimiser": "adam"},
)


@dataclass
class Synthesis:
    """A private source of labelled images.

    Attributes:
        draw: makes images and labels from released values only (except in `dpgen`, which claims no privacy and takes
            its labels from the teacher).
        ledger, claim, solved: as in a `Release`.
        generator: the network used by `draw`, released with the student.
    """

    draw: Draw
    ledger: Ledger
    claim: Claim
    solved: dict[str, float] = field(default_factory=dict)
    generator: nn.Module | None = None


@dataclass(frozen=True)
class PrivateGenerator(ABC):
    """Options of the student trained on synthetic images, and the conversion; a baseline implements `synthesise`."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    added_options: ClassVar[tuple[str, ...]] = ("selection",)

    samples: Size[int] = 100_000
    """Number of images drawn for the student."""
    passes: Size[int] = 600
    """Passes of the student over the synthetic images."""
    student_batch: Size[int] = 512
    """Synthetic images per step of the student."""
    student_optimiser: Literal["sgd", "adam"] = "sgd"
    """Optimiser of the student: plain SGD at 2e-3 (DataLens, G-PATE), or Adam at 1e-3, falling linearly to 0."""
    selection: Literal["last", "syn"] = "last"
    """Release the student of the last pass (last), or of the pass that is most accurate on synthetic images held out
    from training (syn)."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "samples", "passes", "student_batch")
        if self.selection == "syn" and self.samples < 2:
            raise ValueError(f"samples is {self.samples} and selection syn; expected at least 2, one of them held out")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, if the budget's unit is not `example`."""
        require_unit_example(budget)

    @abstractmethod
    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Train the source on the private records within `budget`.

        Args:
            images: (n, c, h, w) uint8 on the context's device; n is public.
            labels: (n,) int64.
            teacher: provides shape, classes and name of the data set; only a baseline whose `needs` include "teacher"
                may query its model, which was trained on the private records.
        """

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Train the source, then the student; only the source may query `teacher.model`, if `needs` include it."""
        images, labels = private_records(teacher, ctx.device)
        made = self.synthesise(images, labels, teacher, budget, ctx)
        x, y = sample(made.draw, self.samples, ctx.generator("synthetic set"))
        network = seeing_pixels(nets.build(student, teacher.shape, teacher.classes))
        stage = "training on synthetic images"
        if self.selection == "syn":
            training, held_out = hold_out(x, y, ctx.generator("held-out synthetic images"))
            best = BestPass(*held_out, ctx)
            fit(network, *training, self, ctx, stage, best.see)
            best.restore(network)
        else:
            fit(network, x, y, self, ctx, stage)
        linear = logistic_regression(x, y, teacher.classes, self, ctx)
        shown = by_class(x, y, teacher.classes)[:SHOWN]
        return Release(network, student, made.ledger, made.claim, made.generator, shown, made.solved, linear=linear)


@torch.no_grad()
def sample(draw: Draw, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw (count, c, h, w) float32 images in [0, 1] and (count,) labels.

    Raises RuntimeError for pixels outside [0, 1].
    """
    parts = [draw(min(CHUNK, count - start), rng) for start in range(0, count, CHUNK)]
    images, labels = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise RuntimeError("the generator made pixels outside [0, 1], or NaN: its training diverged")
    return images, labels


def conditional(generator: nn.Module, classes: int, latents: Callable[[int, torch.Generator], Tensor]) -> Draw:
    """Return a `Draw` from `generator(z, y)`, (n, latent) z and (n,) int64 labels y that cycle through the classes."""

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count, device=rng.device) % classes
        return generator(latents(count, rng), labels), labels

    return draw


def seeing_pixels(network: Classifier) -> Classifier:
    """Make the classifier take pixels in [0, 1] without normalisation, in place, and return it."""
    network.mean.fill_(0.0)
    network.std.fill_(1.0)
    return network


def hold_out(images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Labelled, Labelled]:
    """Split n >= 2 labelled images at random into those of training and one in HELD_OUT, at least one, held out."""
    order = torch.randperm(len(images), generator=rng, device=rng.device).to(images.device)
    few = max(len(images) // HELD_OUT, 1)
    training, held_out = order[few:], order[:few]
    return (images[training], labels[training]), (images[held_out], labels[held_out])


class BestPass:
    """Keeps the weights of the pass that is most accurate on held-out synthetic images; the first one of several."""

    def __init__(self, images: Tensor, labels: Tensor, ctx: Context) -> None:
        self._images, self._labels = images.to(ctx.device), labels.to(ctx.device)
        self._correct, self._weights = -1, dict[str, Tensor]()

    @torch.no_grad()
    def see(self, network: nn.Module) -> None:
        """Keep a copy of the network's weights if it is more accurate than all before; it ends in training mode."""
        network.eval()
        right = [
            network(x).argmax(1) == y for x, y in zip(self._images.split(PART), self._labels.split(PART), strict=True)
        ]
        if (correct := int(torch.cat(right).sum())) > self._correct:
            self._correct = correct
            self._weights = {name: value.detach().clone() for name, value in network.state_dict().items()}
        network.train()

    def restore(self, network: nn.Module) -> None:
        """Give the network the weights of the best pass."""
        network.load_state_dict(self._weights)


def logistic_regression(images: Tensor, labels: Tensor, classes: int, by: PrivateGenerator, ctx: Context) -> nn.Module:
    """Train a linear layer on the pixels of (n, c, h, w) images in [0, 1], from zero weights, by Adam.

    Args:
        by: provides the number of passes and the batch size, which are the student's.
    """
    layer = nn.utils.skip_init(nn.Linear, images[0].numel(), classes)  # draws nothing from torch's own generator
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    network = nn.Sequential(nn.Flatten(), layer)
    fit(network, images, labels, replace(by, student_optimiser="adam"), ctx, "logistic regression on synthetic images")
    return network


def fit(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    by: PrivateGenerator,
    ctx: Context,
    stage: str,
    after_pass: Callable[[nn.Module], None] | None = None,
) -> None:
    """Train the network in place by cross-entropy; it ends on the context's device in eval mode.

    Passes are shuffled; the incomplete last batch of a pass is dropped unless it is the only one.

    Args:
        images, labels: (n, c, h, w) in [0, 1], (n,) int64.
        by: provides the student's passes, batch size and optimiser.
        after_pass: called with the network after each pass; must leave it in training mode.

    Raises:
        RuntimeError: the weights became NaN or infinite.
    """
    network = ctx.prepared(network).train()
    compiled, rng = ctx.compiled(network), ctx.generator(stage)
    images, labels = images.to(ctx.device), labels.to(ctx.device)
    batch = min(by.student_batch, len(images))
    per_pass = len(images) // batch
    total = by.passes * per_pass
    adam = by.student_optimiser == "adam"
    rate = ADAM_RATE if adam else SGD_RATE
    optimizer = (torch.optim.Adam if adam else torch.optim.SGD)(network.parameters(), lr=rate)
    with ctx.track(stage, total) as advance:
        for step in range(total):
            if step % per_pass == 0:
                order = torch.randperm(len(images), generator=rng, device=ctx.device)
            chosen = order[step % per_pass * batch :][:batch]
            if adam:
                for group in optimizer.param_groups:
                    group["lr"] = rate * (1 - step / total)
            with ctx.precision():
                logits = compiled(images[chosen])
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(logits.float(), labels[chosen]).backward()
            optimizer.step()
            if after_pass is not None and (step + 1) % per_pass == 0:
                after_pass(network)
            advance(1)
    optimizer.zero_grad(set_to_none=True)
    network.eval()
    if not all(bool(p.isfinite().all()) for p in network.parameters()):
        raise RuntimeError(f"{stage}: the weights became NaN or infinite")


def by_class(images: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return at most 60 images for display, ordered class 0, 1, ..., 0, 1, ...: the first images of each class.

    Only the first 10 classes are shown; if one of them has no image, the first images of all are returned.
    """
    firsts = [(labels == c).nonzero().flatten()[: SHOWN // min(classes, 10)] for c in range(min(classes, 10))]
    rows = min((len(found) for found in firsts), default=0)
    if rows == 0:
        return images[:SHOWN]
    return images[torch.stack([found[:rows] for found in firsts], 1).flatten()]
