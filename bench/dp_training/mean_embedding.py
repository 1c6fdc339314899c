"""One noisy mean embedding of labelled images, and a generator fitted to it: the common part of three baselines.

DP-MERF, DP-NTK and DP-Kernel (in its corrected form) differ in their features phi. With features of norm 1:

1. phi is drawn without data.
2. mu = (1/n) sum_i phi(x_i) (x) onehot(y_i), in R^(D x classes): the joint mean embedding of images and labels.
3. mu~ = mu + (Delta / n) sigma N(0, I), once. Delta = 1, or 2 if neighbours replace a record by another one.
4. A generator G(z, y), z ~ N(0, I), y uniform, is trained by Adam on
   || mu~ - (1/B) sum_b phi(G(z_b, y_b)) (x) onehot(y_b) ||_F^2, its rate times `decay` after every epoch.

Adding or removing a record moves n mu by ||phi(x)|| = 1, where n is public. Replacing a record moves it by at most 2:
by sqrt(2) if its class changes, as the two features are then in different columns, else by ||phi(x) - phi(x')||.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import validate
from bench.api import Context, Sampler, Teacher, gaussian_latents
from bench.config import Size, Solved
from bench.data import to_float
from bench.dp_training.exact_products import exact_products
from bench.dp_training.games import accounted_game
from bench.dp_training.synthetic_data import CHUNK, PrivateGenerator, Synthesis, conditional
from bench.errors import BenchError
from bench.nets.bilinear_generator import BilinearGenerator
from bench.nets.generators import Shape
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.events import gaussian_event
from bench.privacy.mechanisms import gaussian_rows
from bench.privacy.noise import Source

Neighbours = Literal["add-or-remove", "replace"]
REACH = {"add-or-remove": 1.0, "replace": 2.0}
"""Delta, sensitivity of the sum of embeddings of norm 1 to one record."""
PLAYED = 64
"""Plays that one release of an audit game simulates."""


class Features(ABC):
    """phi: a map from images to R^D whose values have norm 1."""

    @abstractmethod
    def sums(self, images: Tensor, labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute sum_i onehot(y_i) (x) phi(x_i), (classes, D), differentiable in the images.

        Args:
            images: (n, c, h, w) float32 in [0, 1].
            labels: (n,) int64.
            classes: number of classes.
            dtype: of the result, and of all sums over images.
        """

    def distance(self, target: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Compute || target - (1/B) sum_b onehot(y_b) (x) phi(x_b) ||_F^2 of B images, for a (classes, D) target."""
        made = self.sums(images, labels, len(target)) / len(images)
        return (target - made).square().sum()


@dataclass(frozen=True)
class RandomFeatures(Features):
    """Random Fourier features of a Gaussian kernel (Rahimi and Recht 2007); W is `frequencies`, (D/2, d)."""

    frequencies: Tensor

    @classmethod
    def draw(cls, features: int, pixels: int, length: float, rng: torch.Generator) -> RandomFeatures:
        """Draw W with entries N(0, 1 / length)."""
        drawn = torch.randn(features // 2, pixels, generator=rng, device=rng.device)
        return cls(drawn / math.sqrt(length))

    def __call__(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n, D) rows of norm 1, whose products are about exp(-||x_i - x_j||^2 / (2 l))."""
        waves = images.flatten(1) @ self.frequencies.T
        return torch.cat([waves.cos(), waves.sin()], 1) * math.sqrt(1 / len(self.frequencies))

    def sums(self, images: Tensor, labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the sum of all classes by one product."""
        return joint_sum(self(images).to(dtype), labels, classes)


def joint_sum(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Compute sum_i onehot(y_i) (x) phi_i, (classes, D), from (n, D) features and (n,) labels."""
    return F.one_hot(labels, classes).to(features.dtype).T @ features


@torch.no_grad()
def mean_embedding(phi: Features, images: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Step 2: compute mu, (classes, D) float64, of (n, c, h, w) uint8 images.

    Adding or removing a record moves n mu by a matrix of norm 1; replacing one, by at most 2.
    """
    total: Tensor | None = None
    with exact_products(images.device):
        for part, answers in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
            added = phi.sums(to_float(part), answers, classes, torch.float64)
            total = added if total is None else total.add_(added)
    return validate.present(total, "private records") / len(images)


def noisy_embedding(
    phi: Features, images: Tensor, labels: Tensor, classes: int, multiplier: float, source: Source
) -> Tensor:
    """Step 3: compute mu~, (classes, D) float32; both training and the audit's game call this function.

    Args:
        phi: the features.
        images, labels: the private records.
        classes: number of classes.
        multiplier: noise over the sensitivity of mu to adding or removing a record, 1 / n; 0 = none.
        source: source of the noise.
    """
    mean = mean_embedding(phi, images, labels, classes)
    return gaussian_rows(mean, multiplier / len(images), source).float()


@dataclass(frozen=True)
class NoisyMeanEmbedding:
    """Parameters of the mechanism.

    Attributes:
        sigma: deviation of the noise over the sensitivity Delta / n; 0 = none.
        neighbours: the neighbour relation that determines Delta.
    """

    sigma: float
    neighbours: Neighbours

    @property
    def multiplier(self) -> float:
        """Noise over the sensitivity to adding or removing a record, which is 1 / n."""
        return REACH[self.neighbours] * self.sigma

    def ledger(self) -> Ledger:
        """Return the ledger of the single release, for a record added or removed."""
        return _one_gaussian(self.multiplier)

    def claim(self, delta: float, source: str) -> Claim:
        """Return the claim of `source`: one Gaussian of multiplier sigma, for the option's neighbour relation."""
        spent = account(_one_gaussian(self.sigma), Unit.EXAMPLE, delta).epsilon
        relation = "a record replaced" if self.neighbours == "replace" else "a record added or removed"
        return Claim(spent, delta, Unit.EXAMPLE, f"{source}, one Gaussian mechanism, {relation}")

    def cost(self, budget: Budget) -> float:
        """Return the epsilon, claimed or accounted, that `budget` limits."""
        ledger = _one_gaussian(self.sigma) if budget.account == "claimed" else self.ledger()
        return account(ledger, Unit.EXAMPLE, budget.delta).epsilon


def _one_gaussian(multiplier: float) -> Ledger:
    ledger = Ledger()
    ledger.spend(gaussian_event(multiplier), why="mean embedding of the private records, released once")
    return ledger


@dataclass(frozen=True)
class MeanEmbeddingGenerator(PrivateGenerator):
    """A student of images of a generator that is fitted to a noisy mean embedding; a baseline draws the features."""

    source: ClassVar[str]

    neighbours: Neighbours = "add-or-remove"
    """Neighbours that the noise is for: a record added or removed (Delta = 1), or replaced (Delta = 2, the paper)."""
    sigma: Solved[float] = 5.0
    """sigma, noise over Delta / n; solved from the budget unless --epsilon none."""
    latent: Size[int] = 5
    """Length of the latent vector z of the generator."""
    hidden: Size[int] = 200
    """Width of the generator's first layer."""
    batch: Size[int] = 100
    """B, generated images per step."""
    epochs: Size[int] = 5
    """Epochs of the generator's training; the learning rate falls after each."""
    steps: Size[int] = 600
    """Steps of the generator per epoch."""
    rate: float = 0.01
    """Learning rate of the generator's Adam optimiser."""
    decay: float = 0.9
    """Factor of the learning rate after every epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "latent", "hidden", "epochs", "steps")
        validate.at_least(self, 2, "batch")
        validate.at_least(self, 0, "sigma")
        validate.below(self, math.inf, "sigma")
        validate.positive(self, "rate", "decay")

    @abstractmethod
    def draw_features(self, shape: Shape, dataset: str, rng: torch.Generator) -> Features:
        """Draw phi without data (step 1). Raises BenchError for options that do not fit the images."""

    @abstractmethod
    def played_features(self, shape: Shape) -> Features:
        """Draw small features of the same kind for an audit's game; the same at every call."""

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit than one record, and steps to solve for."""
        super().check(budget, dataset, classes)
        if budget.solve == "steps":
            raise BenchError("--solve steps: the mean embedding is released once; use --solve sigma")

    def calibrate(self, budget: Budget) -> NoisyMeanEmbedding:
        """Calibrate sigma to `budget`. Raises BenchError if no noise meets it."""
        fields = NoisyMeanEmbedding(self.sigma, self.neighbours)
        return noise_or_steps(fields, budget, lambda release: release.cost(budget), "sigma", 1)

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 4."""
        self.check(budget, teacher.dataset, teacher.classes)
        phi = self.draw_features(teacher.shape, teacher.dataset, ctx.generator("features"))
        release = self.calibrate(budget)
        noise = ctx.privacy_noise("mean embedding")
        target = noisy_embedding(phi, images, labels, teacher.classes, release.multiplier, noise)
        sampler = self.sampler(teacher.shape, teacher.classes, teacher.dataset)
        generator = ctx.prepared(sampler.generator)
        self.fit(generator, phi, target, ctx)
        draw = conditional(generator, teacher.classes, sampler.latents)
        claim = release.claim(budget.delta, self.source)
        return Synthesis(draw, release.ledger(), claim, {"sigma": release.sigma}, generator)

    def sampler(self, shape: Shape, classes: int, dataset: str) -> Sampler[BilinearGenerator]:
        """Build the generator with its Gaussian latents and labels."""
        generator = BilinearGenerator(shape, classes, self.latent, self.hidden)
        return Sampler(generator, gaussian_latents(self.latent), classes)

    def fit(self, generator: BilinearGenerator, phi: Features, target: Tensor, ctx: Context) -> None:
        """Run step 4 in place; the generator ends in eval mode."""
        classes, rng = len(target), ctx.generator("generator")
        optimizer = torch.optim.Adam(generator.parameters(), lr=self.rate)
        make = ctx.compiled(generator.train())
        with ctx.track("fitting the mean embedding", self.epochs * self.steps) as advance:
            for epoch in range(self.epochs):
                for group in optimizer.param_groups:
                    group["lr"] = self.rate * self.decay**epoch
                for _ in range(self.steps):
                    z = torch.randn(self.batch, self.latent, generator=rng, device=rng.device)
                    y = torch.randint(classes, (self.batch,), generator=rng, device=rng.device)
                    with ctx.precision():
                        made = make(generator.condition(z, y))
                    loss = phi.distance(target, made.float(), y)
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    advance(1)
        optimizer.zero_grad(set_to_none=True)
        generator.eval()

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: the noisy mean embedding with a private record or without.

        Records have different classes, so that one release simulates PLAYED plays; absent records have a further class,
        whose embedding is not returned.
        """
        release, shape = self.calibrate(budget), (1, 2, 2)
        phi = self.played_features(shape)
        images = (torch.arange(PLAYED * math.prod(shape)) * 37 % 256).view(PLAYED, *shape).to(torch.uint8)
        with torch.no_grad():
            added = phi.sums(to_float(images), torch.arange(PLAYED), PLAYED).double()

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            labels = torch.arange(PLAYED) if world else torch.full((PLAYED,), PLAYED)
            rounds = range(-(-n // PLAYED))
            rows = [
                noisy_embedding(phi, images, labels, PLAYED + 1, release.multiplier, generator)[:PLAYED] for _ in rounds
            ]
            return torch.cat([torch.stack([(row * added).sum(1), row[:, 0]], 1) for row in rows])[:n]

        describe = "the noisy mean embedding, along what one private record adds to it, with the record and without"
        claimed = release.claim(budget.delta, self.source).epsilon
        return accounted_game(play, release.ledger(), budget.delta, describe, claimed=claimed)
