"""The game of an audit of P3GM: every release once, by the functions that the training calls.

Every record contributes to separate numbers, so that one release of PLAYED records simulates that many plays. An absent
record contributes nothing: it equals the mean that is subtracted, has the code of a component that is not returned (or
0, which moves no sum), or is NaN, which a clipped sum counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from baselines.p3gm.accounting import P3gmParameters
from baselines.p3gm.mixture import Mixture, noisy_gram, noisy_sums, private_mean
from baselines.p3gm.network import PhasedVae, noisy_gradient
from bench.dp_training.games import PlayedNoise
from bench.dp_training.private_gradient import PrivateGradient

PLAYED = 32
FAR = 1e4
"""Norm of a record's gradient over the clipping norm."""


def play_releases(parameters: P3gmParameters, clip: float, world: bool, n: int, generator: torch.Generator) -> Tensor:
    """Return (n, d), n plays of every release, in the world with the record or without it."""
    lanes = torch.arange(PLAYED)
    source = PlayedNoise.drawing(generator, PLAYED if world else 0)
    found = [
        _repeated(lambda: _gram(lanes, parameters, world, source), n),
        _repeated(lambda: _sums(lanes, parameters, world, source), n),
        _repeated(lambda: _gradient(lanes, parameters, clip, world, source), n),
    ]
    if (multiplier := parameters.mean) is not None:
        record = torch.full((1, 2), 1.0 if world else 0.5)
        found.append(_repeated(lambda: private_mean(record, multiplier, source)[None], n))
    return torch.cat([rows.double() for rows in found], 1)


def _repeated(release: Callable[[], Tensor], n: int) -> Tensor:
    """Repeat a release until there are n rows, (n, d)."""
    rows = release()
    return torch.cat([rows, *(release() for _ in range(-(-n // len(rows)) - 1))])[:n]


def _gram(lanes: Tensor, parameters: P3gmParameters, world: bool, source: PlayedNoise) -> Tensor:
    records = torch.full((PLAYED, PLAYED, 2), 0.5)
    if world:
        records[lanes, lanes] += torch.tensor([0.995, 0.1]) * 10
    flat = records.flatten(1)
    gram = noisy_gram(flat, torch.full_like(flat[0], 0.5), 1.0, parameters.components, source)
    return gram.view(PLAYED, 2, PLAYED, 2)[lanes, :, lanes].flatten(1)[:, [0, 1, 3]]


def _sums(lanes: Tensor, parameters: P3gmParameters, world: bool, source: PlayedNoise) -> Tensor:
    """Play the sums of the mixture: each record has a separate component, or coordinate of a single component."""
    codes, nowhere = torch.eye(PLAYED), -torch.full((1, PLAYED), PLAYED**-0.5)
    if parameters.kinds == 1:
        mixture = Mixture(torch.ones(1), torch.zeros(1, PLAYED), torch.ones(1, PLAYED))
        _, firsts, seconds = noisy_sums(codes if world else 0 * codes, mixture, parameters.mixture, source)
        return torch.stack([firsts[0], seconds[0]], 1)
    means = torch.cat([codes, nowhere])
    mixture = Mixture(torch.full((len(means),), 1 / len(means)), means, torch.full_like(means, 1e-3))
    sums = noisy_sums(codes if world else nowhere.expand(PLAYED, -1), mixture, parameters.mixture, source)
    counts, firsts, seconds = sums
    return torch.stack([counts[lanes], firsts[lanes, lanes], seconds[lanes, lanes]], 1)


def _gradient(lanes: Tensor, parameters: P3gmParameters, clip: float, world: bool, source: PlayedNoise) -> Tensor:
    """Play the noisy gradient of an autoencoder with output 0: a record's gradient is in the rows of its pixel."""
    prior = Mixture(torch.ones(1), torch.zeros(1, 1), torch.ones(1, 1))
    vae = PhasedVae(1, 2, (1, 1, PLAYED), 0, prior)
    with torch.no_grad():
        for weight in vae.parameters():
            nn.init.zeros_(weight)
        vae.decoder.body.first.bias.fill_(1.0)
    records = FAR * clip * torch.eye(PLAYED) if world else torch.full((PLAYED, PLAYED), torch.nan)
    mechanism = PrivateGradient(parameters.sampling, parameters.gradients, clip)
    found = noisy_gradient(vae, records, torch.zeros(PLAYED, 1), mechanism, source, source, source)
    return torch.cat([found["decoder.body.last.weight"], found["decoder.body.last.bias"][:, None]], 1)[lanes]
