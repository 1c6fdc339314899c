"""DP-GAN: a conditional GAN whose critic learns by DP-SGD; a classifier is trained on generated images.

References: Xie, Lin, Wang, Wang, Zhou, "Differentially Private Generative Adversarial Network", arXiv:1802.06739, for
the noise in the critic; Bie, Kamath, Zhang, "Private GANs, Revisited", TMLR 2023, Algorithm 1, for the settings. n
records, q = B / n, D the critic with weights phi, G the generator with weights theta. T times:

1. every record is in the batch S with probability q, independently, so that |S| is random;
2. g_real = (sum over (x, y) in S of clip(grad_phi -log sigmoid(D(x, y)), C) + N(0, sigma^2 C^2 I)) / B;
3. g_fake = sum over B generated (x', y') of clip(grad_phi -log(1 - sigmoid(D(x', y'))), C) / B, without noise;
4. phi <- Adam(phi, (g_real + g_fake) / 2);
5. after every n_D such steps, theta <- Adam(theta, grad_theta mean of -log sigmoid(D(G(z, y'), y'))).

z ~ N(0, I); y' is uniform over the classes.

Privacy. A step takes a Poisson-sampled Gaussian of multiplier sigma from the records, for one record added or removed
(step 2), T in all, and that is the ledger. Generated images, their gradients and the generator depend on the noisy
weights and on public randomness only: post-processing. Claim and account are the same number, by the bench's
accountant; sigma (`--solve sigma`) or T (`--solve steps`) is calibrated on it. Nothing in the critic mixes records.

Differs from the paper:
- Xie et al. bound the gradient by clipping weights and use a Wasserstein loss, a generator per class, and 5 critic
  steps; this is Bie et al.'s DP-SGD version, with labels as an input of both networks.
- Bie et al. account by Renyi moments, which give 10 for the settings below and 60,000 records; privacy loss
  distributions give less.
- Defaults are their settings for MNIST at epsilon 10. At epsilon 1 they use sigma 5, T = 325,000 and n_D = 200. The
  adaptive n_D, which depends on the critic's accuracy on generated images, is left out.
- Their networks are for 28x28 pixels; other sizes are in `bench/nets/conditional_gan.py`. `network mlp` is ours.
- `average`, an exponential average of the generator's weights, is ours.
- The student is `bench/dp_training/synthetic_data.py`'s; no epoch and no checkpoint is chosen on any data.
- Clipped gradients of fully connected networks are computed without per-sample gradients (`ghost_gradient`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import validate
from bench.api import Context, Sampler, Teacher, gaussian_latents
from bench.api.context import Tiers
from bench.config import Departure, Size, Solved
from bench.data import to_float
from bench.dp_training.accounting import DpSgdParameters, calibrate
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP, ROOM
from bench.dp_training.dp_sgd import WeightAverage, refuse_mixing
from bench.dp_training.exact_products import exact_products
from bench.dp_training.games import RECORDS, SAMPLING, accounted_game, played_context
from bench.dp_training.private_gradient import Parameters, PrivateGradient, assign
from bench.dp_training.synthetic_data import (
    QUICK,
    SMOKE,
    STUDENT_BY_ADAM,
    PrivateGenerator,
    Synthesis,
    conditional,
)
from bench.nets.conditional_gan import MlpCritic, build
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Source

Loss = Callable[[Tensor], Tensor]

SOURCE = "DP-SGD of the critic (Bie et al. 2023, Algorithm 1), by the bench's accountant"
CHOSEN = (
    "chosen by accuracy on the attacker's part of digits and MNIST, which is neither private (split iid) nor the test "
    "set"
)
CHUNK = 128
"""Number of records whose gradients are in memory at the same time."""
PLAYED = 64
"""Plays that one release of an audit game simulates."""


@dataclass(frozen=True)
class DpGan(PrivateGenerator):
    """Train a student on images of a GAN with a DP-SGD critic; the defaults are Bie et al.'s for MNIST, epsilon 10."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Bie et al., Private GANs, Revisited, TMLR 2023, Algorithm 1; Xie et al., 2018"
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE | {"steps": 4, "batch": 256, "latent": 8, "width": 8, "critic_width": 8},
        "quick": QUICK | {"steps": 2000, "batch": 512, "latent": 16, "width": 64, "critic_width": 64},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        STUDENT_BY_ADAM,
        Departure(
            what="fully connected networks instead of convolutions",
            why=f"per-sample gradients of convolutions take too long on two cores; {CHOSEN}",
            sets={"network": "mlp"},
        ),
        Departure(
            what="2 critic steps before each generator step instead of 50",
            why=f"the 2,000 critic steps of tier quick would leave 40 generator steps; {CHOSEN}",
            sets={"critic_steps": 2},
        ),
        Departure(
            what="learning rates of 3e-3 (critic) and 4e-3 (generator) instead of 2e-4, and beta_1 0 instead of 0.5",
            why=f"tier quick has 2,000 steps instead of 450,000; {CHOSEN}",
            sets={"rate": 3e-3, "rate_generator": 4e-3, "beta1": 0.0},
        ),
        Departure(
            what="an exponential average of the generator's weights is released, with decay 0.98",
            why=f"post-processing that averages out the noise of the last steps; {CHOSEN}",
            sets={"average": 0.98},
        ),
    )

    network: Literal["dcgan", "mlp"] = "dcgan"
    """Generator and critic: convolutions (dcgan) or fully connected layers (mlp)."""
    steps: Size[int] = 450000
    """T, critic steps. Solved from the budget with --solve steps."""
    critic_steps: int = 50
    """n_D, number of critic steps before each generator step."""
    batch: Size[int] = 128
    """B = qn, expected number of records in a batch, and number of generated images in every step."""
    multiplier: Solved[float] = 1.0
    """sigma, noise over the clipping norm; solved from the budget unless --solve steps or none."""
    clip: float = 1.0
    """C, the clipping norm of one record's gradient."""
    rate: float = 2e-4
    """Learning rate of the critic's Adam optimiser."""
    rate_generator: float = 2e-4
    """Learning rate of the generator's Adam optimiser."""
    beta1: float = 0.5
    """beta_1 of both Adam optimisers; beta_2 is 0.999."""
    latent: Size[int] = 128
    """Length of the latent vector z of the generator."""
    width: Size[int] = 128
    """d of the generator: channels of its narrowest hidden map (dcgan), half of its first hidden layer (mlp); even."""
    critic_width: Size[int] = 128
    """d of the critic: channels of its first map (dcgan), units of its first hidden layer (mlp); even."""
    average: float = 0.0
    """Decay of an exponential average of the generator's weights, which is released; 0 = the last weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "steps", "batch", "critic_steps", "latent")
        validate.at_least(self, 2, "width", "critic_width")
        validate.at_least(self, 0, "multiplier", "beta1", "average")
        validate.below(self, 1, "beta1", "average")
        validate.positive(self, "rate", "rate_generator")
        validate.between(self, LEAST_CLIP, LARGEST_CLIP, "clip")
        for name in ("width", "critic_width"):
            if getattr(self, name) % 2:
                raise ValueError(f"{name} is {getattr(self, name)}; expected an even number")

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Train G and D; the source of images is G with uniform labels."""
        fields = DpSgdParameters.of(self.batch, len(images), self.steps, self.multiplier)
        parameters = calibrate(fields, budget)
        generator, critic = build(
            self.network, teacher.shape, teacher.classes, self.latent, self.width, self.critic_width
        )
        refuse_mixing(critic, self.network)
        training = Training(self, ctx.prepared(generator), ctx.prepared(critic), teacher.classes, parameters, ctx)
        training.run(images, F.one_hot(labels, teacher.classes).float())
        draw = conditional(generator, teacher.classes, gaussian_latents(self.latent))
        return Synthesis(
            draw, parameters.ledger(), parameters.claim(budget.delta, SOURCE), parameters.solved(), generator
        )

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: a noisy gradient of the critic, with a record in half of the samples or without.

        The adversary chooses the critic: each record's gradient is in a separate row of its last layer, so that one
        step simulates PLAYED plays. The label of an absent record is NaN.
        """
        fields = DpSgdParameters.of(self.batch, RECORDS, self.steps, self.multiplier)
        once = replace(calibrate(fields, budget), sampling=SAMPLING, steps=1)
        images = torch.zeros(PLAYED, 1, 1, 2, dtype=torch.uint8)

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            ctx = played_context(generator, PLAYED if world else 0)
            critic = played_mlp() if self.network == "mlp" else PlayedCritic(10 * self.clip)
            training = Training(self, nn.Linear(1, 1), critic, PLAYED, once, ctx)
            source = ctx.privacy_noise("play")
            labels = torch.eye(PLAYED) if world else torch.full((PLAYED, PLAYED), torch.nan)
            last = [name for name, weight in critic.named_parameters() if len(weight) == PLAYED]
            found = [training.noisy_gradient(images, labels, source, source) for _ in range(-(-n // PLAYED))]
            return torch.cat([torch.cat([each[name].view(PLAYED, -1) for name in last], 1) for each in found])[:n]

        describe = "one noisy gradient of the critic, with one private record in half of the samples and without"
        return accounted_game(play, once.ledger(), budget.delta, describe)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build G with its Gaussian latents and labels."""
        generator, _ = build(self.network, shape, classes, self.latent, self.width, self.critic_width)
        return Sampler(generator, gaussian_latents(self.latent), classes)


class Training:
    """Training state of G and D; only `run` uses private records, and only through the mechanism."""

    def __init__(
        self,
        by: DpGan,
        generator: nn.Module,
        critic: nn.Module,
        classes: int,
        parameters: DpSgdParameters,
        ctx: Context,
    ) -> None:
        self.by, self.generator, self.critic, self.classes = by, generator, critic, classes
        self.parameters, self.ctx = parameters, ctx
        self.mechanism = PrivateGradient(parameters.sampling, parameters.multiplier, by.clip, CHUNK)
        self.clipping = PrivateGradient(1.0, 0.0, by.clip, CHUNK)
        self.public = ctx.generator("DP-GAN/public")
        betas = (by.beta1, 0.999)
        self.of_critic = torch.optim.Adam(critic.parameters(), lr=by.rate, betas=betas)
        self.of_generator = torch.optim.Adam(generator.parameters(), lr=by.rate_generator, betas=betas)

    def run(self, images: Tensor, labels: Tensor) -> None:
        """Run steps 1 to 5, T times; the generator ends in eval mode.

        Args:
            images: (n, c, h, w) uint8 records.
            labels: (n, classes) one-hot labels.
        """
        sampling, noise = self.ctx.privacy_noise("DP-GAN/sampling"), self.ctx.privacy_noise("DP-GAN/noise")
        # The number of generated images is the expected batch size, because the drawn batch size is private
        batch = max(1, round(self.parameters.sampling * len(images)))
        average = WeightAverage(dict(self.generator.named_parameters()), self.by.average)
        with self.ctx.track("private GAN", self.parameters.steps) as advance:
            for step in range(1, self.parameters.steps + 1):
                # 1, 2: the clipped, noisy gradient of a Poisson sample of the records
                real = self.noisy_gradient(images, labels, sampling, noise)
                # 3: the clipped gradient of generated images
                fake = self.fake_gradient(batch)
                # 4: the critic
                assign(self.critic, {name: (real[name] + fake[name]) / 2 for name in real})
                self.of_critic.step()
                # 5: the generator
                if step % self.by.critic_steps == 0:
                    self.generator_step(batch)
                    average.update()
                advance(1)
        if average.seen:
            average.apply()
        self.of_generator.zero_grad(set_to_none=True)
        self.generator.eval()

    def noisy_gradient(self, images: Tensor, labels: Tensor, sampling: Source, noise: Source) -> Parameters:
        """Run steps 1 and 2, the only use of the records; both training and the audit's game call this function."""
        chosen = self.mechanism.sample(len(images), sampling)
        rows = (to_float(images[chosen]), labels[chosen])
        return self.gradient(self.mechanism, _real_loss, rows, len(images), noise)

    def fake_gradient(self, batch: int) -> Parameters:
        """Step 3: the mean gradient of generated images, which does not depend on records."""
        with torch.no_grad():
            made, labels = self.make(batch)
        return self.gradient(self.clipping, _fake_loss, (made, labels), batch, self.public)

    def gradient(
        self, mechanism: PrivateGradient, loss: Loss, rows: tuple[Tensor, Tensor], records: int, source: Source
    ) -> Parameters:
        """Compute the critic's gradient by `mechanism`; fully connected critics have a cheaper equivalent way."""
        if isinstance(self.critic, MlpCritic):
            return ghost_gradient(mechanism, self.critic, loss, rows, records, source)

        def of_one(weights: Parameters, image: Tensor, label: Tensor) -> Tensor:
            return loss(torch.func.functional_call(self.critic, weights, (image[None], label[None]))).sum()

        return mechanism(dict(self.critic.named_parameters()), of_one, rows, records, source)

    def generator_step(self, batch: int) -> None:
        """Run step 5."""
        made, labels = self.make(batch)
        weights = list(self.generator.parameters())
        loss = _real_loss(self.critic(made, labels)).mean()
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        self.of_generator.step()

    def make(self, count: int) -> tuple[Tensor, Tensor]:
        """Generate (count, c, h, w) images with (count, classes) uniform one-hot labels."""
        device = self.public.device
        z = torch.randn(count, self.by.latent, generator=self.public, device=device)
        y = torch.randint(self.classes, (count,), generator=self.public, device=device)
        return self.generator(z, y), F.one_hot(y, self.classes).float()


def ghost_gradient(
    mechanism: PrivateGradient,
    critic: MlpCritic,
    loss: Callable[[Tensor], Tensor],
    rows: tuple[Tensor, Tensor],
    records: int,
    source: Source,
) -> Parameters:
    """Compute the noisy mean gradient of a fully connected critic without storing any record's gradient.

    For a linear layer with input a_i and gradient d_i in its output, record i's gradients are d_i a_i^T and d_i,
    together of squared norm |d_i|^2 (|a_i|^2 + 1). So one backward pass gives the norms of all records' gradients, and
    the clipped sum is one matrix product for each layer (Goodfellow, "Efficient Per-Example Gradient Computations",
    2015). The result is that of `mechanism`: the sum of clip(g_i, C), plus N(0, z^2 C^2), over q n.

    Args:
        mechanism: clipping norm, noise multiplier and sampling rate.
        critic: the critic.
        loss: maps (m,) logits to (m,) losses of the records.
        rows: (m, c, h, w) images and (m, classes) one-hot labels of the sampled records; for m = 0 only noise.
        records: n.
        source: source of the noise.

    Returns:
        The noisy gradient by parameter name.
    """
    with exact_products(rows[0].device):
        inputs, outputs = critic.traced(rows[0])
        logits = (outputs[-1] * rows[1]).sum(1)
        deltas = torch.autograd.grad(loss(logits).sum(), outputs)
    inputs = [a.detach() for a in inputs]
    squares = [d.square().sum(1) * (a.square().sum(1) + 1) for a, d in zip(inputs, deltas, strict=True)]
    norms = torch.stack(squares).sum(0).sqrt()
    broken = ~norms.isfinite()
    factor = (ROOM * mechanism.clip / norms.clamp_min(1e-30)).clamp(max=1.0).masked_fill(broken, 0.0)[:, None]
    total: Parameters = {}
    for name, a, d in zip(critic.linear_names(), inputs, deltas, strict=True):
        scaled = (factor * d.masked_fill(broken[:, None], 0.0)).double()
        total[f"{name}.weight"] = scaled.T @ a.masked_fill(broken[:, None], 0.0).double()
        total[f"{name}.bias"] = scaled.sum(0)
    return mechanism.released(total, dict(critic.named_parameters()), records, source)


class PlayedCritic(nn.Module):
    """The critic of an audit game: logit 0, with a gradient of norm `slope` in the row of the label."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.weight, self.slope = nn.Parameter(torch.zeros(PLAYED, 2)), slope

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Map (n, c, h, w) images and (n, PLAYED) one-hot labels to (n,) logits."""
        return 2 * self.slope * (y @ self.weight) @ torch.tensor([0.6, 0.8])


@torch.no_grad()
def played_mlp() -> MlpCritic:
    """Build a fully connected critic of logit 0 for an audit game.

    Only the label's row of the last layer has a gradient, which is longer than the clipping norm.
    """
    critic = MlpCritic((1, 1, 2), PLAYED, 4)
    first, second, last = (critic.layers[at] for at in (0, 2, 4))
    for layer, bias in ((first, 1.0), (second, 1e4), (last, 0.0)):
        nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
        nn.init.constant_(layer.bias, bias)  # type: ignore[arg-type]
    return critic


def _real_loss(logits: Tensor) -> Tensor:
    """Compute -log sigmoid(D) for each record."""
    return F.softplus(-logits)


def _fake_loss(logits: Tensor) -> Tensor:
    """Compute -log(1 - sigmoid(D)) for each image."""
    return F.softplus(logits)
