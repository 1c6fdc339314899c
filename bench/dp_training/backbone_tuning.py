"""DP-SGD on a few parameters of a pretrained network: its linear layer, and either its biases or low-rank updates.

1. Tuned parameters. `bias`: all biases of the backbone, also those of normalisation layers (BitFit: Ben Zaken et al.,
   ACL 2022; private: Bu et al., ICML 2024). `lora`: W + U V for the linear layers of its attention blocks, with V
   random, U zero and of rank r (Hu et al., LoRA, ICLR 2022; private: Yu et al., ICLR 2022). In both cases also the
   linear layer on the pooled features, which starts at zero.
2. Training. DP-SGD (`dp_sgd.py`) with per-sample gradients of these parameters only, by torch.func.
3. Release. U V is added to W, so that the network has the names and shapes of the pretrained one.

Privacy. That of DP-SGD: T Poisson-sampled Gaussians. The backbone is in eval mode: batch normalisation uses the public
statistics that came with the weights, and a record's gradient does not depend on the other records of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from bench.api import Context
from bench.dp_training.accounting import DpSgdParameters, calibrate, require_unit_example
from bench.dp_training.dp_sgd import train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.games import RECORDS
from bench.dp_training.gradient_game import Lanes, gradient_game
from bench.errors import Incompatible
from bench.nets import Classifier
from bench.nets.backbone import BackboneLinear, BackboneName, make_backbone
from bench.privacy import Budget, Claim
from bench.privacy.audit import DistinguishingGame

Tuned = Literal["bias", "lora"]
AT_ONCE = 32
"""Number of records whose gradients are in memory at once."""


@dataclass(frozen=True)
class BackboneTuning:
    """Settings of the tuning, which do not depend on the data.

    Attributes:
        what: the parameters of the backbone that are tuned.
        rank: r, rank of the low-rank updates.
        batch, steps, multiplier, clip: as in `DpSgdSettings`.
        step_length: learning rate times C, the length of a step if all records agree.
    """

    what: Tuned
    rank: int
    batch: int
    steps: int
    multiplier: float
    clip: float
    step_length: float

    @property
    def settings(self) -> DpSgdSettings:
        """Return the settings of DP-SGD."""
        return DpSgdSettings(
            batch=self.batch,
            steps=self.steps,
            multiplier=self.multiplier,
            clip=self.clip,
            clipping="flat",
            rate=self.step_length / self.clip,
            momentum=0.0,
            decay=True,
            gradients="func",
            chunk=AT_ONCE,
        )

    def check(self, name: BackboneName, budget: Budget) -> None:
        """Raise BenchError for a network without such parameters, or a budget for another unit than example."""
        require_unit_example(budget)
        name.check()
        backbone = make_backbone(name)
        if self.what == "lora" and not attention_layers(backbone):
            raise Incompatible(
                f"--method.tune lora: {name.timm} has no linear layers in attention blocks; give --method.tune bias, "
                "or a vision transformer"
            )
        if self.what == "bias" and not tuned_names(backbone, self.what):
            raise Incompatible(f"--method.tune bias: {name.timm} has no biases; give --method.tune head")

    def train(
        self, network: Classifier, name: BackboneName, private: tuple[Tensor, Tensor], budget: Budget, ctx: Context
    ) -> DpSgdParameters:
        """Tune a network with pretrained weights in place; return the parameters of DP-SGD.

        Args:
            network: of `BackboneLinear`; it ends on the context's device, in eval mode.
            private: (n, c, h, w) uint8 images and (n,) int64 labels.
        """
        parameters = calibrate(self.settings.parameters(len(private[0])), budget)
        body = cast(BackboneLinear, network.body)
        nn.init.zeros_(body.head.weight)
        nn.init.zeros_(body.head.bias)
        lora = add_lora(body.backbone, self.rank, ctx.generator("lora")) if self.what == "lora" else {}
        network.to(ctx.device).eval().requires_grad_(False)
        names = [f"body.trunk.1.{name}" for name in tuned_names(body.backbone, self.what)]
        tuned = TunedParameters(network, [*names, "body.head.weight", "body.head.bias"])
        # One device: a rank would get a copy of these parameters without the network that they belong to
        train(
            cast(Classifier, tuned), str(name), private, self.settings, parameters, replace(ctx, ranks=None), "tuning"
        )
        for path, layer in lora.items():
            body.backbone.set_submodule(path, layer.merged())
        network.eval().requires_grad_(False)
        return parameters

    def count_trained(self, network: Classifier) -> int:
        """Return the number of weights that the tuning trains. Changes the network if `what` is "lora"."""
        body = cast(BackboneLinear, network.body)
        if self.what == "lora":
            add_lora(body.backbone, self.rank, torch.Generator())
        tuned = [body.backbone.get_parameter(name) for name in tuned_names(body.backbone, self.what)]
        return sum(weight.numel() for weight in (*tuned, *body.head.parameters()))

    def claim(self, parameters: DpSgdParameters, delta: float) -> Claim:
        """Return the accounted epsilon as a claim."""
        return parameters.claim(delta, "DP-SGD (Abadi et al. 2016, Algorithm 1), by the bench's accountant")

    def game(self, budget: Budget) -> DistinguishingGame:
        """Return the audit's game: one noisy gradient of the tuning."""
        parameters, lanes = calibrate(self.settings.parameters(RECORDS), budget), Lanes.rows()
        return gradient_game(self.settings, parameters, None, budget.delta, lanes, None, lanes.gradients(self.clip))


class TunedParameters(nn.Module):
    """The tuned parameters of a frozen network, as a module that has no other parameters and no buffers.

    `forward` is the network's. The parameters are the network's own objects, so that training changes the network.

    Args:
        network: in eval mode, frozen; these parameters will require gradients.
        names: names of its parameters.
    """

    def __init__(self, network: Classifier, names: list[str]) -> None:
        super().__init__()
        # A tuple hides the network from this module's own lists of layers, parameters and buffers
        self._hidden = (network,)
        self._names = {name.replace(".", "/"): name for name in names}
        for own, name in self._names.items():
            self.register_parameter(own, cast(nn.Parameter, network.get_parameter(name).requires_grad_(True)))

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to (n, classes) logits."""
        given = {name: getattr(self, own) for own, name in self._names.items()}
        logits: Tensor = torch.func.functional_call(self._hidden[0], given, (images,))
        return logits


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a low-rank update: x -> W x + b + U (V x), with U zero at the start.

    Attributes:
        up: U, (outputs, rank).
        down: V, (rank, inputs), standard deviation 1 / sqrt(inputs).
    """

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = layer
        drawn = torch.randn(rank, layer.in_features, generator=generator, device=generator.device)
        self.down = nn.Parameter(drawn.to(layer.weight.device) / math.sqrt(layer.in_features))
        self.up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., inputs) to (..., outputs)."""
        y: Tensor = self.layer(x)
        return y + (x @ self.down.T) @ self.up.T

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Add U V to the layer's weight, in place; return the layer."""
        self.layer.weight += self.up @ self.down
        return self.layer


def add_lora(backbone: nn.Module, rank: int, generator: torch.Generator) -> dict[str, LowRankLinear]:
    """Replace the linear layers of a backbone's attention blocks by low-rank updates of them; return them by path."""
    found = {path: LowRankLinear(layer, rank, generator) for path, layer in attention_layers(backbone).items()}
    for path, layer in found.items():
        backbone.set_submodule(path, layer)
    return found


def attention_layers(backbone: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers of a backbone's attention blocks, by path."""
    layers = backbone.named_modules()
    return {path: each for path, each in layers if isinstance(each, nn.Linear) and "attn" in path.split(".")}


def tuned_names(backbone: nn.Module, what: Tuned) -> list[str]:
    """Return the names of the tuned parameters of a backbone, to which `add_lora` was applied for "lora"."""
    ends = {"bias": (".bias",), "lora": (".up", ".down")}[what]
    return [name for name, _ in backbone.named_parameters() if name.endswith(ends)]
