"""A diffusion model trained by DP-SGD: options, one private step, and sampling, for the baselines that train one.

`baselines/dpdm.py` has the algorithm with its privacy argument. Both training and audits call `noisy_gradient`.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import validate
from bench.api import Context, Sampler, gaussian_latents
from bench.config import Departure, Size, Solved
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.clipped_sums import as_seen
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP
from bench.dp_training.dp_sgd import WeightAverage
from bench.dp_training.games import PlayedNoise, played_context
from bench.dp_training.private_gradient import Parameters, PrivateGradient, assign
from bench.dp_training.record_draws import normal_of_keys, uniform_of_keys
from bench.dp_training.synthetic_data import QUICK, SMOKE, Draw, PrivateGenerator, conditional
from bench.nets.denoiser import Denoiser, DenseNet, DiffusionGenerator, Shape, UNet, denoising_losses
from bench.privacy.noise import Noise, Source

LEVEL_MEAN, LEVEL_DEVIATION = -1.2, 1.2
"""Mean and deviation of ln s in training (EDM)."""
MOST_CHUNK, NUMBERS = 64, 1 << 24
"""Most records whose gradients are in memory at once; most numbers of their copies at full width."""

SMOKE_SIZES: dict[str, int] = SMOKE | {
    "width": 4, "blocks": 1, "steps": 2, "batch": 32, "copies": 2, "denoisings": 3,
}  # fmt: skip
QUICK_SIZES: dict[str, int] = QUICK | {
    "width": 128, "steps": 150, "batch": 2048, "copies": 4, "denoisings": 20, "samples": 8000, "passes": 6,
}  # fmt: skip
DENSE = Departure(
    what="linear layers on images of half the size, instead of convolutions on the full size",
    why="a step with per-sample gradients of a small U-Net takes ten times as long on one core",
    sets={"network": "dense", "side": "half"},
)
FEW_STEPS = Departure(
    what="gradients are clipped to 0.001 instead of 1, Adam's rate is 2e-3 instead of 3e-4, the average's decay 0.98",
    why="tier quick has 150 steps instead of 2,100; with this norm every gradient is clipped, as in DPImageBench",
    sets={"clip": 1e-3, "rate": 2e-3, "average": 0.98},
)
PLAYED, FAR = 64, 1e3
"""Plays that one gradient of an audit's game simulates; length of a record's gradient there, over the clipping norm."""


@dataclass(frozen=True)
class PrivateDiffusion(PrivateGenerator, ABC):
    """Options of a denoiser trained by DP-SGD and of sampling from it."""

    network: Literal["unet", "dense"] = "unet"
    """Denoiser: a U-Net of convolutions, or three linear layers on all pixels."""
    side: Literal["full", "half"] = "full"
    """Size of the denoiser's images: the data set's, or half of it, enlarged after sampling."""
    width: Size[int] = 32
    """Channels of the U-Net at full size, a multiple of 4; units of the hidden linear layers."""
    resolutions: Size[int] = 2
    """Number of image sizes in the U-Net, each half of the one before."""
    blocks: Size[int] = 2
    """Residual blocks of the U-Net at each size."""
    steps: Size[int] = 2100
    """T, steps of DP-SGD. Solved from the budget with --solve steps."""
    batch: Size[int] = 4096
    """B = qn, expected number of records in a batch."""
    copies: Size[int] = 32
    """K, noise levels of each sampled record, whose gradients are averaged before clipping."""
    multiplier: Solved[float] = 2.0
    """sigma, noise over the clipping norm; solved from the budget unless --solve steps or none."""
    clip: float = 1.0
    """C, the clipping norm of one record's gradient."""
    rate: float = 3e-4
    """Learning rate of Adam in DP-SGD."""
    average: float = 0.999
    """Decay of the exponential average of the denoiser's weights, which is released; 0 = the last weights."""
    unlabelled: float = 0.1
    """Probability that a sampled record is used without its label."""
    denoisings: Size[int] = 50
    """N, calls of the denoiser for each generated image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "resolutions", "blocks", "batch", "copies", "denoisings")
        validate.at_least(self, 4, "width")
        validate.at_least(self, 0, "multiplier", "average", "unlabelled")
        validate.below(self, math.inf, "multiplier")
        validate.below(self, 1, "average")
        validate.at_most(self, 1, "unlabelled")
        validate.positive(self, "rate")
        validate.between(self, LEAST_CLIP, LARGEST_CLIP, "clip")
        if self.width % 4:
            raise ValueError(f"width is {self.width}; expected a multiple of 4")

    def inside(self, shape: Shape) -> Shape:
        """Return the shape of the denoiser's images."""
        return shape if self.side == "full" else (shape[0], -(-shape[1] // 2), -(-shape[2] // 2))

    def denoiser(self, shape: Shape, classes: int) -> Denoiser:
        """Build an untrained denoiser of images of `inside(shape)`."""
        if self.network == "dense":
            return Denoiser(DenseNet(self.inside(shape), classes, self.width))
        return Denoiser(UNet(self.inside(shape), classes, self.width, self.resolutions, self.blocks))

    def generator(self, denoiser: Denoiser, shape: Shape) -> DiffusionGenerator:
        """Return the generator that samples from a denoiser."""
        return DiffusionGenerator(denoiser, shape, self.inside(shape), self.denoisings).to(_device(denoiser)).eval()

    def drawing(self, generator: DiffusionGenerator, classes: int) -> Draw:
        """Return the source of images and labels, with equally many images of every class."""
        return conditional(generator, classes, gaussian_latents(math.prod(generator.inside)))

    def sampler(self, shape: Shape, classes: int, dataset: str) -> Sampler[DiffusionGenerator]:
        """Build a generator with its Gaussian latents and labels."""
        latents = gaussian_latents(math.prod(self.inside(shape)))
        return Sampler(self.generator(self.denoiser(shape, classes), shape), latents, classes)


class DenoiserTraining:
    """Training of a denoiser by DP-SGD; only `noisy_gradient` uses private records, through the mechanism.

    Args:
        by: the options.
        denoiser: trained in place.
        classes: number of classes; also the label of records without their label.
        parameters: sampling rate, steps and noise.
        ctx: provides privacy noise and progress.
        stage: label of the progress bar and of the privacy noise.
    """

    def __init__(
        self, by: PrivateDiffusion, denoiser: nn.Module, classes: int, parameters: DpSgdParameters, ctx: Context,
        stage: str,
    ) -> None:  # fmt: skip
        self.by, self.denoiser, self.classes, self.ctx, self.stage = by, denoiser, classes, ctx, stage
        self.parameters = parameters

    def run(self, images: Tensor, labels: Tensor) -> None:
        """Take T steps of Adam along noisy gradients; the denoiser ends with its averaged weights, in eval mode.

        Args:
            images: (n, c, h, w), uint8 or in [0, 1]; n is public.
            labels: (n,) int64.

        Raises:
            RuntimeError: the weights became NaN or infinite.
        """
        sampling, noise = (self.ctx.privacy_noise(f"{self.stage}/{name}") for name in ("sampling", "noise"))
        secret = self.ctx.privacy_noise(f"{self.stage}/copies")
        optimizer = torch.optim.Adam(self.denoiser.parameters(), lr=self.by.rate)
        average = WeightAverage(dict(self.denoiser.named_parameters()), self.by.average)
        self.denoiser.train()
        with self.ctx.track(self.stage, self.parameters.steps) as advance:
            for _ in range(self.parameters.steps):
                assign(self.denoiser, self.noisy_gradient(images, labels, sampling, secret, noise))
                optimizer.step()
                average.update()
                advance(1)
        if average.seen:
            average.apply()
        optimizer.zero_grad(set_to_none=True)
        self.denoiser.eval()
        if not all(bool(weight.isfinite().all()) for weight in self.denoiser.parameters()):
            raise RuntimeError(f"{self.stage}: the weights became NaN or infinite; lower --method.rate")

    def noisy_gradient(
        self, images: Tensor, labels: Tensor, sampling: Source, secret: Source, noise: Source
    ) -> Parameters:
        """Return one noisy gradient: clipped gradients of a Poisson sample, plus noise, over the expected batch.

        Args:
            images, labels: all records, as in `run`.
            sampling, noise: sources of the Poisson sample and of the noise.
            secret: source of the records' keys, from which their noise levels and noise are made.
        """
        fields, chunk = self.parameters, self.at_once(images)
        mechanism = PrivateGradient(fields.sampling, fields.multiplier, self.by.clip, chunk)
        chosen = mechanism.sample(len(images), sampling)
        # A key for every record, sampled or not: a record that is left out must not change the others' draws
        keys = Noise.of(secret).bits(len(images)).to(images.device)
        rows = (images[chosen], labels[chosen], keys[chosen])
        return mechanism(dict(self.denoiser.named_parameters()), self.loss, rows, len(images), noise)

    def loss(self, weights: Parameters, image: Tensor, label: Tensor, key: Tensor) -> Tensor:
        """Return the loss of one record: the mean over its K noisy copies.

        Args:
            weights: the denoiser's parameters.
            image: (c, h, w).
            label: () int64.
            key: () int64, the source of the record's noise levels and noise.
        """
        x = scaled(image[None], self.by.side)
        copies, shape = self.by.copies, x.shape[1:]
        sigma = (LEVEL_MEAN + LEVEL_DEVIATION * normal_of_keys(key, 0, copies)).exp()
        e = normal_of_keys(key, copies, copies * shape.numel()).view(copies, *shape)
        is_dropped = uniform_of_keys(key, copies + copies * shape.numel(), 1)[0] < self.by.unlabelled
        y = torch.where(is_dropped, self.classes, label).expand(copies)
        noisy = x + sigma[:, None, None, None] * e
        denoised = torch.func.functional_call(self.denoiser, weights, (noisy, sigma, y))
        return denoising_losses(denoised, x, sigma).mean()

    def at_once(self, images: Tensor) -> int:
        """Return how many records' gradients are in memory at once."""
        each = self.by.copies * self.by.width * (images[0, 0].numel() if self.by.network == "unet" else 1)
        return max(1, min(MOST_CHUNK, NUMBERS // each))


def scaled(images: Tensor, side: str) -> Tensor:
    """Map (n, c, h, w) images, uint8 or in [0, 1], to the denoiser's: in [-1, 1], and half as large for side "half"."""
    x = as_seen(images)
    return (F.avg_pool2d(x, 2, ceil_mode=True) if side == "half" else x) * 2 - 1


class PlayedNetwork(nn.Module):
    """F of an audit: a constant, with a gradient longer than the clipping norm in the row of the label."""

    def __init__(self, clip: float) -> None:
        super().__init__()
        self.weight, self.clip = nn.Parameter(torch.zeros(PLAYED, 2)), clip

    def forward(self, x: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        """Map (n, c, h, w) images, (n,) noise levels and (n,) labels to (n, c, h, w)."""
        rows = (labels[:, None] == torch.arange(PLAYED)).float() @ self.weight
        return (FAR + self.clip * rows @ torch.tensor([0.6, 0.8]))[:, None, None, None].expand_as(x)


def play_noisy_gradients(
    by: PrivateDiffusion, once: DpSgdParameters, world: bool, n: int, generator: torch.Generator
) -> Tensor:
    """Return (n, 2): n plays of one noisy gradient, with the record or without it.

    Each record's gradient is in a row of its label, so that one gradient simulates PLAYED plays. An absent record is
    never sampled, and NaN.

    Args:
        by: the options; records keep their labels.
        once: one step.
    """
    source = PlayedNoise.drawing(generator, PLAYED if world else 0)
    denoiser = Denoiser(PlayedNetwork(by.clip))
    training = DenoiserTraining(replace(by, unlabelled=0.0), denoiser, PLAYED, once, played_context(generator), "play")
    images = torch.full((PLAYED, 1, 2, 2), 0.5 if world else math.nan)
    labels = torch.arange(PLAYED)
    rows = (training.noisy_gradient(images, labels, source, source, source) for _ in range(-(-n // PLAYED)))
    return torch.cat([found["network.weight"] for found in rows])[:n]


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
