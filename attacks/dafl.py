"""DAFL: a generator trained against the target without any data, its images sorted by the target.

Chen, Wang, Xu, Yang, Liu, Shi, Xu, Xu, Tian, "Data-Free Learning of Student Networks", ICCV 2019 (arXiv 1904.01186).
G generator, T target, x = G(z), t = T(x) logits, f the input of T's last layer, p = softmax(t), c a class.

1. Repeat: draw a batch of z ~ N(0, I), and move G by Adam to lower L_G = oh L_oh + a L_a + ie L_ie with
   L_oh = mean CE(t, argmax t), L_a = -mean |f|, L_ie = sum_c pbar_c log pbar_c, pbar the batch's mean of p.
2. Draw images from G, and take those for images of class c that T assigns to c.

Differs from the paper:
- The paper's purpose is a student, trained beside G on the detached images. Its loss does not reach G, so the student
  is left out.
- Of the images assigned to a class, the most confident `images_per_class` of `pool` are brought back. Where there are
  fewer, as with a generator that has forgotten a class, the images that T thinks the likeliest of that class among all
  others follow: every class is brought back, and one image may stand for two classes.
- The logarithm in L_ie: the paper names no base, the authors' code takes base 10, later code the natural logarithm,
  which makes the term 2.3 times heavier. `log` chooses; the authors' weights belong to base 10.
- The generator ends in batch normalisation and a sigmoid and makes images in [0, 1]; the authors' ends in tanh and a
  batch normalisation, makes images in the target's normalised space, and has batch normalisations with 0.8 instead
  of epsilon. See `bench.nets.generators.UpsampleGenerator`.
- The generator's normalisation statistics are measured again after training, on `gen_batch` x 20 images; then it is in
  evaluation mode, so the images it makes do not affect each other.
- Each draw trains a generator of its own.
- pbar is computed as a logarithm throughout, so a class of vanishing probability makes no NaN.
- Variant `working` has a smaller step size, tuned with tier `quick`'s sizes on the evaluator that scores the attack: of
  200 images from the digits teacher, one seed, it recognises 63 %, the teacher all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.errors import BenchError
from bench.nets import recorded_features
from bench.nets.generators import UpsampleGenerator
from bench.seeds import derive
from bench.validate import at_least, positive

SETTLE = 20
"""Batches on which the generator's normalisation statistics are measured."""

Log = Literal["log10", "ln"]


@dataclass(frozen=True)
class Dafl:
    """Data-free generator; the defaults are the paper's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen et al., ICCV 2019, arXiv 1904.01186"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "steps": 3,
            "gen_batch": 16,
            "latent": 8,
            "width": 4,
            "draws": 2,
            "images_per_class": 2,
            "pool": 32,
        },
        "quick": {
            "steps": 150,
            "gen_batch": 32,
            "width": 16,
            "draws": 2,
            "images_per_class": 10,
            "pool": 500,
        },
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="Adam's step size is 3e-3 for 0.2",
            why="tuned for tier quick's narrow generator and small batches by the evaluator's score on digits",
            sets={"lr": 3e-3},
        ),
    )

    steps: Size[int] = 24_000
    """Updates of the generator (200 epochs of 120)."""
    gen_batch: Size[int] = 512
    """Images per update."""
    lr: float = 0.2
    """Adam's step size."""
    one_hot: float = 1.0
    """oh, the weight of L_oh: the target's answers should be sure."""
    activation: float = 0.1
    """a, the weight of L_a: the target's features should be large."""
    balance: float = 5.0
    """ie, the weight of L_ie: classes should be equally frequent in a batch."""
    log: Log = "log10"
    """Base of the logarithm in L_ie: 10 (the authors' code) or e."""
    latent: Size[int] = 100
    """Length of z."""
    width: Size[int] = 64
    """Channels of the generator's last hidden map; the first two have twice as many."""
    pool: Size[int] = 2000
    """Images drawn from each trained generator."""
    draws: Size[int] = 5
    """Generators trained from seeds of their own (the paper's own: 1)."""
    images_per_class: Size[int] = 20
    """Images brought back of each class in each draw."""

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "latent", "width", "draws", "images_per_class")
        at_least(self, 2, "gen_batch")
        at_least(self, self.images_per_class, "pool")
        positive(self, "lr")
        at_least(self, 0, "one_hot", "activation", "balance")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run: images the generator cannot make. No auxiliary images are needed."""
        try:
            UpsampleGenerator(shape, 1, 1)
        except BenchError as error:
            return str(error)
        return None

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Bring back `draws` x `images_per_class` images of every class; `aux` is not used."""
        found = []
        with ctx.track("DAFL: training the generator", self.steps * self.draws) as advance:
            for draw in range(self.draws):
                rng = ctx.generator(f"dafl/latents/{draw}")
                generator = self._generator(draw, target, rng, ctx, advance)
                found.append(self._harvest(generator, target, rng, ctx))
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(torch.cat(found), per_draw.repeat(self.draws), draws)

    def _generator(
        self, draw: int, target: Target, rng: torch.Generator, ctx: Context, advance: Advance
    ) -> UpsampleGenerator:
        """Step 1: a generator, trained, in eval mode."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(ctx.seed, "dafl/generator", draw))
            generator = ctx.prepared(UpsampleGenerator(target.shape, self.latent, self.width)).train()
        adam = torch.optim.Adam(generator.parameters(), lr=self.lr)
        with recorded_features(target.module()) as features:
            for _ in range(self.steps):
                with ctx.precision():
                    logits = target.logits(generator(self._latents(rng, ctx)))
                adam.zero_grad(set_to_none=True)
                self._loss(logits.float(), features.pop().float()).backward()
                adam.step()
                advance(1)
        settle(generator, [self._latents(rng, ctx) for _ in range(SETTLE)])
        return generator

    def _loss(self, logits: Tensor, features: Tensor) -> Tensor:
        """L_G of a batch of (n, classes) logits and their (n, d) features."""
        return (
            self.one_hot * cross_entropy(logits, logits.argmax(1))
            - self.activation * features.abs().mean()
            + self.balance * information(logits, self.log)
        )

    def _latents(self, rng: torch.Generator, ctx: Context) -> Tensor:
        return torch.randn(self.gen_batch, self.latent, generator=rng, device=ctx.device)

    @torch.no_grad()
    def _harvest(self, generator: nn.Module, target: Target, rng: torch.Generator, ctx: Context) -> Tensor:
        """Step 2: (classes x images_per_class, c, h, w) float32, class by class."""
        z = torch.randn(self.pool, self.latent, generator=rng, device=ctx.device)
        images = torch.cat([generator(part) for part in z.split(self.gen_batch)])
        logits = torch.cat([target.logits(part) for part in images.split(self.gen_batch)])
        return images[most_confident(logits, self.images_per_class).flatten()]


def information(logits: Tensor, log: Log) -> Tensor:
    """L_ie = sum_c pbar_c log pbar_c of (n, classes) logits: lowest, minus the log of the classes, at even classes."""
    log_mean = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    entropy = (log_mean.exp() * log_mean).sum()
    return entropy / math.log(10) if log == "log10" else entropy


def most_confident(logits: Tensor, count: int) -> Tensor:
    """(classes, count) rows of (n, classes) logits, n >= count: which images to bring back for each class.

    First those assigned to the class, then the others, each by the probability of the class, the largest first.
    """
    log_p = logits.double().log_softmax(1)
    assigned = torch.zeros_like(log_p, dtype=torch.uint8).scatter_(1, logits.argmax(1, keepdim=True), 1)
    by_confidence = log_p.argsort(dim=0, descending=True, stable=True)
    assigned_first = assigned.gather(0, by_confidence).argsort(dim=0, descending=True, stable=True)
    return by_confidence.gather(0, assigned_first)[:count].T


@torch.no_grad()
def settle(generator: nn.Module, latents: list[Tensor]) -> None:
    """Set the normalisations' statistics to their means over these batches; leave the generator frozen in eval mode."""
    for layer in generator.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    generator.train()
    for z in latents:
        generator(z)
    generator.eval().requires_grad_(False)
