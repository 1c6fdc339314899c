"""TS-ADP: DP-SGD on a network with tempered sigmoids as activations, which bound the gradient.

Reference: Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", AAAI 2021.

As `dp-sgd`, with phi(x) = s sigmoid(T x) - o after every layer except the last. (s, T, o) = (2, 2, 1), the default, is
tanh. After training with other constants they are folded into weights and biases: with shift b = s/2 - o,
phi(x) = s/2 tanh(T x / 2) + b, so each layer before a phi is scaled by T/2, and each layer after it gets
W <- W s/2, bias <- bias + b sum(W). The released network is the equivalent plain tanh network.

Privacy. That of `dp-sgd`: T Poisson-sampled Gaussians for one added or removed record, claim and account the same
number; folding is post-processing. Choosing s, T and o is not accounted.

Differs from the paper:
- tanh is one point of the paper's family, at or near the optimum of its searches; there is no search here.
- Batch, steps, rate, momentum and C are those of Tramer and Boneh (ICLR 2021) for these networks, whose code
  normalises CIFAR-10's channels; here pixels are from 0 to 1 (`mean`, `std`).
- Accounted by privacy loss distributions instead of Renyi divergences; batches are Poisson samples.
- A phi that is not 0 at 0 cannot be folded through a padded convolution: tanh-vgg needs o = s/2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from bench import validate
from bench.api import Teacher
from bench.api.context import Tiers
from bench.dp_training.private_classifier import QUICK, SMOKE, STANDARD, PrivateTraining
from bench.errors import BenchError
from bench.nets import Classifier
from bench.nets.classifiers.dp_sgd_nets import TEMPERED, TemperedSigmoid
from bench.privacy import Budget


@dataclass(frozen=True)
class TsAdp(PrivateTraining):
    """DP-SGD with tempered sigmoids; the trained network is released."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Papernot et al., AAAI 2021"
    source: ClassVar[str] = "DP-SGD with tempered sigmoids (Papernot et al. 2021)"
    activation: ClassVar[str] = "tanh"
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE,
        "quick": {**QUICK, "network": "tanh-cnn"},
        "standard": {**STANDARD, "network": "tanh-cnn"},
    }

    scale: float = 2.0
    """s, the width of the activation's range."""
    temperature: float = 2.0
    """T, the activation's inverse temperature."""
    offset: float = 1.0
    """o, subtracted from the activation; s/2 makes it 0 at 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive(self, "scale", "temperature")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Check as `dp-sgd`, and refuse a network without tempered sigmoids."""
        super().check(budget, dataset, classes)
        if self.network not in ("auto", "student"):
            self._accept(self.network)

    def _accept(self, name: str) -> None:
        if name not in TEMPERED:
            raise BenchError(
                f"the network '{name}' has no tempered sigmoids, which ts-adp trains: use {' or '.join(TEMPERED)}"
            )
        if name == "tanh-vgg" and self.offset != self.scale / 2:
            raise BenchError(
                f"--method.offset {self.offset:g} --method.scale {self.scale:g}: on tanh-vgg, whose convolutions are "
                "padded, the activation must be 0 at 0; give an offset of half the scale, or use tanh-cnn"
            )

    def _network(self, name: str, teacher: Teacher) -> Classifier:
        self._accept(name)
        network = super()._network(name, teacher)
        temper(network, self.scale, self.temperature, self.offset)
        return network

    def _finish(self, network: Classifier) -> None:
        fold(network, self.scale, self.temperature, self.offset)


def temper(network: nn.Module, scale: float, temperature: float, offset: float) -> None:
    """Set these constants in every tempered sigmoid of a network, in place."""
    for layer in network.modules():
        if isinstance(layer, TemperedSigmoid):
            layer.scale, layer.temperature, layer.offset = scale, temperature, offset


@torch.no_grad()
def fold(network: Classifier, scale: float, temperature: float, offset: float) -> None:
    """Replace a network's tempered sigmoids by tanh, in place; its outputs are the same, up to rounding.

    Between two layers with weights there are one tempered sigmoid and at most max-pooling and flattening, which commute
    with an increasing affine map.
    """
    shift = scale / 2 - offset
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for i, layer in enumerate(layers):
        bias = validate.present(layer.bias, "bias to move the tempered sigmoids into")
        if i > 0:
            bias += shift * layer.weight.flatten(1).sum(1)
            layer.weight *= scale / 2
        if i < len(layers) - 1:
            layer.weight *= temperature / 2
            bias *= temperature / 2
    temper(network, 2.0, 2.0, 1.0)
