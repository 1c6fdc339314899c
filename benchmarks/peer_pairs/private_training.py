"""DP-SGD of a classifier: `bench.dp_training.dp_sgd.train` compared with opacus, with and without opacus' loader.

All clip to C and divide by q N; before the timing all train three steps on all records without noise, and must reach
the same weights. In this check the peer clips to C (1 - 2^-7), as ours does to leave room for rounding.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench import nets
from bench.api import Context
from bench.dp_training.clipping import ROOM
from bench.dp_training.dp_sgd import train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.nets import Classifier
from bench.testing import MemoryArtifacts
from peer_pairs._pair import Different, Pair, untracked

RECORDS, BATCH, STEPS, CLIP, MULTIPLIER, RATE, MOMENTUM = 8192, 256, 16, 1.0, 1.0, 0.25, 0.9
CHECKED_STEPS, CHECKED_RECORDS = 3, 256
SHAPE, CLASSES, NETWORK, GROUPS = (1, 28, 28), 10, "tanh-cnn", 8
Weights = list[Tensor]
Gradients = Literal["opacus", "func", "layers"]
Train = Callable[[Classifier, tuple[Tensor, Tensor], int, int, float, float], None]
"""(network, records, batch, steps, noise multiplier, clip): train the network in place."""


@dataclass(frozen=True)
class Work:
    """The training that a pair times: its network, and the numbers of records, records a batch and steps."""

    network: Callable[[], Classifier]
    records: int = RECORDS
    batch: int = BATCH
    steps: int = STEPS


def pairs() -> Iterator[Pair]:
    """Yield our routes to per-sample gradients, against opacus' own loop and the same loop without opacus' loader."""
    cnn, resnet = Work(network), Work(residual_network, records=2048, batch=128, steps=4)
    routes: list[tuple[Gradients, str]] = [("opacus", "hooks"), ("func", "torch.func"), ("layers", "layer rules")]
    for loop, peer in ((opacus_loop, "opacus, PrivacyEngine"), (bare_loop, "opacus, without its loader")):
        for route, name in routes:
            bar = 0.8 if route == "layers" else 1.2
            yield _pair(f"DP-SGD, {name}", peer, cnn, our_loop(route), loop, bar)
    peer = "opacus, PrivacyEngine"
    yield _pair("DP-SGD of a ResNet, layer rules", peer, resnet, our_loop("layers"), opacus_loop, 0.8)


def _pair(name: str, peer: str, work: Work, ours: Train, theirs: Train, bar: float) -> Pair:
    start, private = work.network(), records(work.records)

    def run(loop: Train) -> Callable[[], Weights]:
        def trained() -> Weights:
            model = copy.deepcopy(start)
            loop(model, private, work.batch, work.steps, MULTIPLIER, CLIP)
            return weights(model)

        return trained

    def check(_ours: Weights, _theirs: Weights) -> None:
        same_weights(start, private, ours, theirs)

    return Pair(name, peer, run(ours), run(theirs), check, bar)


def same_weights(start: Classifier, private: tuple[Tensor, Tensor], ours: Train, theirs: Train) -> None:
    """Raise Different unless both reach the same weights without noise, on batches of all records."""
    few = private[0][:CHECKED_RECORDS], private[1][:CHECKED_RECORDS]
    mine, other = copy.deepcopy(start), copy.deepcopy(start)
    ours(mine, few, CHECKED_RECORDS, CHECKED_STEPS, 0.0, CLIP)
    theirs(other, few, CHECKED_RECORDS, CHECKED_STEPS, 0.0, CLIP * ROOM)
    moved = max(float((a - b).abs().max()) for a, b in zip(weights(mine), weights(start), strict=True))
    apart = max(float((a - b).abs().max()) for a, b in zip(weights(mine), weights(other), strict=True))
    if not (moved > 1e-3 and apart < 1e-3 * moved):
        raise Different(f"weights moved by up to {moved:.3g}, and are up to {apart:.3g} apart; expected 0.1 % at most")


def network(arch: str = NETWORK) -> Classifier:
    """Return the small CNN of DP-SGD on MNIST, 26,010 weights."""
    torch.manual_seed(0)
    return nets.build(arch, SHAPE, CLASSES)


class PlainBlock(nn.Module):
    """Two 3x3 convolutions with group normalisation and ReLU, added to the input or to a 1x1 convolution of it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(GROUPS, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return (self.residual(x) + self.skip(x)).relu()


def residual_network() -> Classifier:
    """Return a ResNet of eight layers with group normalisation: 16, 32 and 64 channels, 78,000 weights."""
    torch.manual_seed(0)
    stem = (nn.Conv2d(SHAPE[0], 16, 3, padding=1, bias=False), nn.GroupNorm(GROUPS, 16), nn.ReLU())
    blocks = (PlainBlock(16, 16, 1), PlainBlock(16, 32, 2), PlainBlock(32, 64, 2))
    body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    return Classifier(body)


def records(count: int = RECORDS) -> tuple[Tensor, Tensor]:
    """Return random uint8 images: their content does not change the work."""
    drawn = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=drawn)
    return images, torch.arange(count) % CLASSES


def weights(model: nn.Module) -> Weights:
    """Return copies of the weights."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def our_loop(gradients: Gradients) -> Train:
    """Train with the bench, by one way to per-sample gradients."""

    def run(model: Classifier, private: tuple[Tensor, Tensor], batch: int, steps: int, z: float, clip: float) -> None:
        settings = DpSgdSettings(batch, steps, z, clip, "flat", RATE, MOMENTUM, gradients=gradients)
        ctx = Context(torch.device("cpu"), 0, untracked, MemoryArtifacts())
        train(model, NETWORK, private, settings, settings.parameters(len(private[0])), ctx, "peers")

    return run


def opacus_loop(
    model: Classifier, private: tuple[Tensor, Tensor], batch: int, steps: int, z: float, clip: float
) -> None:
    """Train as opacus' tutorials: `make_private` of model, optimiser and loader, and a plain loop over Poisson
    batches."""
    from opacus import PrivacyEngine

    images, labels = as_floats(private)
    loader = DataLoader(TensorDataset(images, labels), batch_size=batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped, private_optimizer, loader = PrivacyEngine().make_private(
            module=model.train(), optimizer=optimizer, data_loader=loader, noise_multiplier=z, max_grad_norm=clip
        )
        done = 0
        while done < steps:
            for x, y in loader:
                _step(wrapped, private_optimizer, x, y)
                done += 1
                if done == steps:
                    break


def bare_loop(model: Classifier, private: tuple[Tensor, Tensor], batch: int, steps: int, z: float, clip: float) -> None:
    """Train with only GradSampleModule and DPOptimizer; batches are rows of one tensor, sampled as ours."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    images, labels = as_floats(private)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = GradSampleModule(model.train())
        private_optimizer = DPOptimizer(optimizer, noise_multiplier=z, max_grad_norm=clip, expected_batch_size=batch)
        for _ in range(steps):
            chosen = (torch.rand(len(images)) < batch / len(images)).nonzero().flatten()
            _step(wrapped, private_optimizer, images[chosen], labels[chosen])


def _step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def as_floats(private: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return images as users of opacus hold them: floating point, converted once."""
    return private[0].float() / 255, private[1]
