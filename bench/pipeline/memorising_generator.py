"""Baselines of attacks on released generators: a generator that memorises its training data, and an untrained one.

The undefended teacher draws no images and cannot be the baseline. An attack that does not find the records of this
generator shows nothing about a method's generator at any AUC.

The network is a variational autoencoder of dense layers, d - 400 - 64 - 400 - d, trained by Adam on
20 x squared error + KL divergence of 200 private records for 1,500 steps of 100. Images of fewer than 256 values get
one latent per four values; with more the network could draw any image. The release is the decoder. Every run's record
states how well attacks find its records (`memorising_auc`). Size and training were chosen by these numbers, so that
attacks can find the records: of 500 records in 750 steps `gan-leaks` had 0.57 and 0.62 by samples on digits and MNIST.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from bench import teachers
from bench.api import Advance, Sampler, Shape, gaussian_latents
from bench.data import images_fingerprint, to_float
from bench.pipeline.job import Job
from bench.seeds import derive
from bench.storage.specs import GeneratorSpec, TrainedGeneratorSpec

RECORDS = 200
STEPS, SMOKE_STEPS = 1500, 30
LATENT, HIDDEN, BATCH, RATE, FIT = 64, 400, 100, 1e-3, 20.0
VALUES_PER_LATENT = 4
"""Smallest number of image values per latent."""
WEIGHTS = "generator.safetensors"


class Decoder(nn.Module):
    """Dense 400, ReLU; dense to the pixels, sigmoid."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.latent = max(1, min(LATENT, math.prod(shape) // VALUES_PER_LATENT))
        self.layers = nn.Sequential(
            *(nn.Linear(self.latent, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, math.prod(shape)), nn.Sigmoid()),
            nn.Unflatten(1, shape),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Map (n, latent) to (n, c, h, w) in [0, 1]."""
        images: Tensor = self.layers(z)
        return images


def memorising_generator(job: Job, spec: GeneratorSpec, images: Tensor) -> Sampler:
    """Train the decoder on (n, c, h, w) uint8 images for the steps of `spec`; with 0 steps the weights are random."""
    seed = derive(spec.seed, "memorising-generator")
    torch.manual_seed(seed)
    decoder = Decoder(job.material.data.shape)
    if spec.steps:
        fingerprint = images_fingerprint(images)
        trained_spec = TrainedGeneratorSpec(spec.data, spec.records, spec.steps, spec.seed, images=fingerprint)

        def make(path: Path) -> None:
            with job.context(seed).track("memorising generator", spec.steps) as advance:
                train(decoder.to(job.device), to_float(images).to(job.device), spec.steps, seed, advance)
            teachers.save(path / WEIGHTS, decoder)

        step = job.store.step("control-generator", trained_spec, make)
        teachers.load(step.path / WEIGHTS, decoder)
    return Sampler(decoder.to(job.device).eval().requires_grad_(False), gaussian_latents(decoder.latent))


def train(decoder: Decoder, images: Tensor, steps: int, seed: int, advance: Advance) -> None:
    """Train decoder and a fresh encoder on 20 x squared error + KL, averaged over the batch; each pass is shuffled."""
    rng = torch.Generator(images.device).manual_seed(seed)
    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(images[0].numel(), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * decoder.latent)
    ).to(images.device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=RATE)
    batch = min(BATCH, len(images))
    per_pass = len(images) // batch
    for step in range(steps):
        if step % per_pass == 0:
            order = torch.randperm(len(images), generator=rng, device=images.device)
        x = images[order[step % per_pass * batch :][:batch]]
        mean, log_variance = encoder(x).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=rng, device=images.device)
        error = (decoder(mean + noise * (log_variance / 2).exp()) - x).square().sum()
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2
        optimizer.zero_grad(set_to_none=True)
        ((FIT * error + divergence) / batch).backward()
        optimizer.step()
        advance(1)
