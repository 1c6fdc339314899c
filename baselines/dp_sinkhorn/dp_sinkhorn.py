"""DP-Sinkhorn: a generator trained on noisy gradients, in its images, of an optimal-transport cost to the data.

Reference: Cao, Bie, Vahdat, Fidler, Kreis, "Don't Generate Me: Training Differentially Private Generative Models with
Sinkhorn Divergence", NeurIPS 2021, Algorithm 1 and section 4; the authors' released code.

n images in a batch, n' = floor(p n) further ones, N private records, C clipping norm, sigma noise. Every step:

1. Y: every private record is in the batch with probability q = n / N, independently of the others.
2. z uniform in the unit cube, labels l uniform; X = G(z, l), n images; n' further ones from new z and the first n'
   labels. Pixels are in [-1, 1].
3. To every image alpha_c times its one-hot label is appended; c_m(x, y) = ||x - y||_2^2 + m ||x - y||_1.
4. The semi-debiased loss 2 W_lambda(X[0:n], Y) - W_lambda(X[0:n], X[n':n + n']), W by Sinkhorn's iterations.
5. Its gradient with respect to X[0:n] is clipped to C and gets noise N(0, (2 C sigma)^2); the gradient with respect to
   the n' further images, in which Y does not occur, is clipped only.
6. Both are back-propagated to the generator's weights, and Adam takes a step.

The released generator draws equally many images of every class; a classifier is trained on them.

Privacy. A further record in the batch may change the whole transport plan, hence every image's gradient. `clipping
batch` bounds the norm of all n gradients together by C: for any batch they move by at most 2 C, and given the other
records of the batch the release is N(g, s^2) or, with probability q, N(g', s^2) with ||g - g'|| <= 2 C and
s = 2 C sigma. A step is thus a Poisson-sampled Gaussian of multiplier s / (2 C) = sigma; T of them are both claim and
ledger. `clipping image` is the paper's text: each image's gradient is clipped to C, so that together they move by
2 C sqrt(n), and the ledger has multiplier sigma / sqrt(n). The claim counts as the paper does to reach epsilon 10 with
its 160,000 steps and sigma = 1.5: n T Poisson-sampled Gaussians of multiplier sigma, as if each image had an
independent sample. They share one, and the claim is marked as disputed. N is public; the choice of settings is
in no epsilon.

Differs from the paper:
- The defaults are those of the released code (clipping of the whole batch, p = 0.2, latent 16, label embedding 8, rate
  1e-5, sigma = 1.1; as many steps as reach epsilon 10 with it). The paper's text has p = 0.4, latent 12, embedding 4,
  rate 1e-4 and sigma = 1.5 on MNIST, and on Fashion-MNIST m = 3, rate 1e-5 and sigma = 1.9.
- The number of generated images is n for every Poisson sample, as in the text; in the released code it is the size of
  the sample, which the shape of the release reveals.
- For a batch without records, step 5's first gradient is only noise; the second one is unchanged. A gradient with NaN
  or infinity counts as 0.
- Sinkhorn's iterations are implemented here: regularisation halved from the cube's diameter down to lambda with one
  iteration each, f before g, instead of a library's with averaged updates. The paper does not give their number.
- Epsilon by privacy loss distributions, also for claims, instead of Renyi divergences at a few orders: 8.5 instead of
  10 at the defaults and 60,000 records. Steps and sigma are fixed in advance; the code stops at the first check over
  the target.
- Other sizes than 28x28 start from the size that `bench.nets.generators.doublings` returns. All records of the data
  set's private part are used for training, not all 60,000.
- The classifier and its training are the bench's: no held-out tenth of the synthetic images, no early stopping.
- `decay` is the bench's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.dp_sinkhorn.accounting import Clipping, SinkhornParameters, calibrate
from bench import validate
from bench.api import Context, Sampler, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size, Solved
from bench.data import to_float
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP, ROOM, poisson_sample
from bench.dp_training.games import RECORDS, SAMPLING, PlayedNoise, accounted_game
from bench.dp_training.synthetic_data import QUICK, SMOKE, STUDENT_BY_ADAM, PrivateGenerator, Synthesis, conditional
from bench.nets.generators import Shape, check_square, doublings
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Noise, Source

NEAR = 6
"""Further records in the game of an audit."""


@dataclass(frozen=True)
class DpSinkhorn(PrivateGenerator):
    """Train a student on a generator with noisy Sinkhorn gradients; the defaults are the released code's for MNIST."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Cao et al., NeurIPS 2021, Algorithm 1"
    tiers: ClassVar[Tiers] = {
        "smoke": {**SMOKE, "steps": 3, "batch": 256, "width": 4},
        "quick": {**QUICK, "steps": 4000, "width": 16, "iterations": 5},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        STUDENT_BY_ADAM,
        Departure(
            what="a learning rate of 1e-3 that falls linearly to 0, instead of a constant 1e-5",
            why="tier quick has 4,000 steps instead of 3,441,600",
            sets={"rate": 1e-3, "decay": True},
        ),
    )

    clipping: Clipping = "batch"
    """Clip all images' gradients together to C (released code), or each image's gradient (the paper's text)."""
    batch: Size[int] = 50
    """n, generated images per step, and expected number of private records in a batch."""
    steps: Size[int] = 3_441_600
    """T, generator steps: 2868 passes over 60,000 records, epsilon 10 by the code; solved with --solve steps."""
    sigma: Solved[float] = 1.1
    """sigma, deviation of the noise over 2 C; solved from the budget with --solve sigma. 0 = no noise."""
    clip: float = 0.5
    """C, largest norm of a gradient with respect to images with pixels in [-1, 1]."""
    debias: float = 0.2
    """p, number of further images in the debiasing term as a share of the batch, from 0 to 1."""
    linear: float = 1.0
    """m, weight of the absolute distance in the transport cost; 1 for MNIST, 3 for Fashion-MNIST."""
    label_weight: float = 15.0
    """alpha_c, factor of the one-hot labels in the transport cost."""
    regularisation: float = 0.05
    """lambda, weight of the entropy in the transport problem."""
    iterations: Size[int] = 1
    """Sinkhorn iterations at lambda, after one at each larger regularisation."""
    latent: Size[int] = 16
    """Length of the latent vector z of the generator."""
    embedding: Size[int] = 8
    """Length of a label's embedding."""
    width: Size[int] = 64
    """Channels of the generator's last hidden map, which has the image's size."""
    rate: float = 1e-5
    """Learning rate of the generator's Adam optimiser."""
    weight_decay: float = 1e-5
    """Weight decay of Adam, added to the gradient."""
    decay: bool = False
    """The learning rate falls linearly to 0 (not in the paper)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.one_of(self, "clipping", "batch", "image")
        validate.at_least(self, 1, "steps", "iterations", "latent", "embedding", "width")
        validate.at_least(self, 2, "batch")
        validate.at_least(self, 0, "sigma", "linear", "label_weight", "weight_decay")
        validate.positive(self, "regularisation", "rate")
        validate.between(self, LEAST_CLIP, LARGEST_CLIP, "clip")
        validate.between(self, 0, 1, "debias")

    def calibrate(self, records: int, budget: Budget) -> SinkhornParameters:
        """Calibrate the mechanism for `records` private records within the budget."""
        sampling = min(1.0, self.batch / records)
        return calibrate(SinkhornParameters(sampling, self.batch, self.steps, self.sigma, self.clipping), budget)

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 6, T times."""
        parameters = self.calibrate(len(images), budget)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(ctx.generator("generator").initial_seed() % 2**63)
            source = self.sampler(teacher.shape, teacher.classes, teacher.dataset)
        generator = ctx.prepared(source.generator).train()
        self._train(generator, parameters, images, labels, teacher.classes, ctx)
        draw = conditional(generator, teacher.classes, source.latents)
        solved = {"sigma": parameters.sigma, "steps": float(parameters.steps)}
        return Synthesis(draw, parameters.ledger(), parameters.claim(budget.delta), solved, generator)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build the generator with its uniform latents and labels."""
        generator = SinkhornGenerator(shape, classes, self.latent, self.embedding, self.width)
        return Sampler(generator, uniform_latents(self.latent), classes)

    def _train(
        self,
        generator: nn.Module,
        parameters: SinkhornParameters,
        images: Tensor,
        labels: Tensor,
        classes: int,
        ctx: Context,
    ) -> None:
        rng, sampling, noise = ctx.generator("training"), ctx.privacy_noise("sampling"), ctx.privacy_noise("noise")
        optimizer = torch.optim.Adam(generator.parameters(), lr=self.rate, weight_decay=self.weight_decay)
        fresh, further = uniform_latents(self.latent), math.floor(self.debias * self.batch)
        with ctx.track("DP-Sinkhorn: generator", parameters.steps) as advance:
            for step in range(parameters.steps):
                # 2: generated images
                wanted = torch.randint(classes, (self.batch,), generator=rng, device=rng.device)
                made = [2 * generator(fresh(self.batch, rng), wanted) - 1]
                if further:
                    made.append(2 * generator(fresh(further, rng), wanted[:further]) - 1)
                # 1, 3 to 5: the transport cost's noisy gradients in these images
                still = [x.detach() for x in made]
                found = self.noisy_gradients(still, wanted, (images, labels), classes, parameters, sampling, noise)
                # 6: the generator
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(made, found)
                if self.decay:
                    for group in optimizer.param_groups:
                        group["lr"] = self.rate * (1 - step / parameters.steps)
                optimizer.step()
                advance(1)
        optimizer.zero_grad(set_to_none=True)
        generator.eval()

    def noisy_gradients(
        self,
        made: list[Tensor],
        wanted: Tensor,
        private: tuple[Tensor, Tensor],
        classes: int,
        parameters: SinkhornParameters,
        sampling: Source,
        noise: Source,
    ) -> list[Tensor]:
        """Run steps 1 and 3 to 5; both training and the audit's game call this function.

        Args:
            made: (n, c, h, w) images in [-1, 1], and (n', c, h, w) further ones if there are any.
            wanted: (n,) labels of the first; the further ones have the first n' of them.
            private: (N, c, h, w) uint8 images and (N,) labels.
            classes: number of classes.
            parameters: q and sigma.
            sampling, noise: random sources of the sample and of the noise.

        Returns:
            The noisy gradient in X[0:n], and the clipped gradient in the further images if there are any.
        """
        # 1: the private batch
        images, labels = private
        chosen = poisson_sample(len(images), parameters.sampling, sampling)
        # 3, 4: the transport cost's gradients in the generated images
        real = with_labels(2 * to_float(images[chosen]) - 1, labels[chosen], classes, self.label_weight)
        found = self.gradients(made, wanted, real, classes)
        # 5: only the first ones depend on the private batch
        bounded = clipped(found[0], ROOM * self.clip, self.clipping)  # ROOM: margin for float32 norms
        found[0] = noisy(bounded, 2 * self.clip * parameters.sigma, noise)
        if len(made) > 1:
            found[1] = clipped(found[1], self.clip, self.clipping)
        return found

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: noisy gradients in two grey images, with a white record or without.

        NEAR further records are slightly darker than the images. The white record reverses both gradients, which is the
        largest change that clipping allows. A row is the gradients' projection on that direction, and one pixel.
        """
        once = replace(self.calibrate(RECORDS, budget), sampling=SAMPLING, images=2, steps=1)
        images = torch.full((NEAR + 1, 1, 4, 4), 115, dtype=torch.uint8)
        images[NEAR] = 255
        private = images, torch.zeros(NEAR + 1, dtype=torch.int64)
        # Without labels, and with a regularisation for which one iteration is enough and the plan is uniform
        by = replace(self, linear=0.0, iterations=1, label_weight=0.0, regularisation=8.0)
        made, wanted = torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64)

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            source = PlayedNoise.drawing(generator, NEAR + 1 if world else NEAR)
            found = [by.noisy_gradients([made], wanted, private, 2, once, source, source)[0] for _ in range(n)]
            rows = torch.stack(found).flatten(1)
            return torch.stack([rows.sum(1) / math.sqrt(rows.shape[1]), rows[:, 0]], 1)

        describe = f"noisy gradients in two images, with one private record besides {NEAR} others and without"
        claimed = once.claim(budget.delta).epsilon
        return accounted_game(play, once.ledger(), budget.delta, describe, claimed=claimed, plays=1000)

    def gradients(self, made: list[Tensor], labels: Tensor, real: Tensor, classes: int) -> list[Tensor]:
        """Step 4: gradients of the loss in X[0:n] and, if there are any, in the further images.

        Only the first one depends on `real`.

        Args:
            made: (n, c, h, w) images in [-1, 1], and (n', c, h, w) further ones if there are any.
            labels: (n,) labels of the first; the further ones have the first n' of them.
            real: (m, d + classes) rows of the private batch, as returned by `with_labels`; for m = 0 the result is 0.
            classes: number of classes.
        """
        points = [x.requires_grad_() for x in made]
        rows = [with_labels(x, labels[: len(x)], classes, self.label_weight) for x in points]
        further = len(made[1]) if len(made) > 1 else 0
        diameter = math.sqrt(4 * made[0][0].numel() + classes * self.label_weight**2)
        scales = annealing(diameter, self.regularisation, self.iterations)
        against = transport(ground_cost(rows[0], torch.cat(rows)[further:], self.linear), scales)
        loss = -against
        if len(real):
            loss = loss + 2 * transport(ground_cost(rows[0], real, self.linear), scales)
        found = list(torch.autograd.grad(loss, points))
        if not len(real):
            found[0] = torch.zeros_like(found[0])
        return found


def with_labels(images: Tensor, labels: Tensor, classes: int, weight: float) -> Tensor:
    """Step 3: append `weight` times the one-hot label to the pixels: (n, d + classes)."""
    return torch.cat([images.flatten(1), weight * F.one_hot(labels, classes).to(images.dtype)], 1)


def clipped(gradient: Tensor, bound: float, clipping: Clipping) -> Tensor:
    """Clip (n, c, h, w) gradients to norm `bound`, jointly or by image; those with NaN or infinity become 0."""
    flat = gradient.flatten() if clipping == "batch" else gradient.flatten(1)
    norm = flat.norm(dim=-1, keepdim=True)
    factor = (bound / norm.clamp_min(1e-30)).clamp(max=1.0)
    return (flat * factor).masked_fill(~norm.isfinite(), 0.0).view_as(gradient)


def noisy(gradient: Tensor, deviation: float, source: Source) -> Tensor:
    """Add independent N(0, deviation^2) to every pixel."""
    return Noise.of(source).gaussian(gradient.double(), deviation).to(gradient.dtype)


def ground_cost(x: Tensor, y: Tensor, linear: float) -> Tensor:
    """Compute (n, m) costs ||x_i - y_j||_2^2 + linear ||x_i - y_j||_1 of (n, d) and (m, d) points."""
    squares = x.square().sum(1)[:, None] + y.square().sum(1)[None] - 2 * x @ y.T
    return squares + linear * torch.cdist(x, y, p=1) if linear else squares


def annealing(start: float, regularisation: float, iterations: int) -> list[float]:
    """Return the regularisations of the iterations: `start` halved repeatedly, then `iterations` times the last one.

    >>> annealing(4.0, 1.0, 3)
    [4.0, 2.0, 1.0, 1.0, 1.0]
    """
    halvings = max(0, math.ceil(math.log2(start / regularisation)))
    return [start / 2**k for k in range(halvings)] + [regularisation] * iterations


@torch.no_grad()
def plan(cost: Tensor, scales: list[float]) -> Tensor:
    """Compute the (n, m) entropic transport plan between uniform weights, by Sinkhorn's iterations in logarithms.

    The plan minimises sum_ij pi_ij c_ij + lambda KL(pi | a b), with row sums a_i = 1 / n and column sums b_j = 1 / m.
    With potentials f and g the optimum is pi_ij = a_i b_j exp((f_i + g_j - c_ij) / lambda); an iteration sets f so that
    the row sums are right, then g so that the column sums are. In the result the row sums are exact.

    Args:
        cost: (n, m), n and m at least 1.
        scales: regularisations, one iteration each; the last one is lambda. Not empty.
    """
    n, m = cost.shape
    g = cost.new_zeros(m)
    for scale in scales:
        f = scale * (math.log(m) - ((g - cost) / scale).logsumexp(1))
        g = scale * (math.log(n) - ((f[:, None] - cost) / scale).logsumexp(0))
    return ((g - cost) / scales[-1]).softmax(1) / n


def transport(cost: Tensor, scales: list[float]) -> Tensor:
    """Compute the transport cost of the plan for (n, m) costs, a scalar, with the gradient of W_lambda.

    By the envelope theorem the derivative of the optimal plan is not needed.
    """
    return (plan(cost, scales) * cost).sum()


class SinkhornGenerator(nn.Module):
    """The generator of the released code: transposed convolutions with batch normalisation and leaky ReLU.

    A transposed convolution makes a small square, one more for each doubling of its sides, and a convolution the image.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64. For 28x28 the sides are 7, 14 and 28.
        classes: number of labels.
        latent: length of z.
        embedding: length of a label's embedding.
        width: channels of the map of the image's size; a map of half that size has twice as many.

    Raises:
        BenchError: an image size that is not supported.
    """

    def __init__(self, shape: Shape, classes: int, latent: int, embedding: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        self.embed = nn.Embedding(classes, embedding)
        stages = doublings(shape[1])
        channels = width << stages
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent + embedding, channels, shape[1] >> stages, bias=False)]
        for _ in range(stages):
            layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(0.2)]
            layers.append(nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False))
            channels //= 2
        self.grow = nn.Sequential(
            *layers, nn.BatchNorm2d(channels), nn.LeakyReLU(0.2), nn.Conv2d(channels, shape[0], 3, padding=1), nn.Tanh()
        )

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Map (n, latent) latents and (n,) int64 labels to (n, c, h, w) images in [0, 1]."""
        return (self.grow(torch.cat([z, self.embed(labels)], 1)[:, :, None, None]) + 1) / 2


def uniform_latents(length: int) -> Callable[[int, torch.Generator], Tensor]:
    """Return a sampler of z, uniform in [0, 1]^length."""
    return lambda count, rng: torch.rand(count, length, generator=rng, device=rng.device)
