"""Data-free generators and their training against a fixed, unprotected network (DP-DFD Eq. 2, DGD Eq. 2).

If the discriminator is a teacher trained on private data, its gradients and statistics are a use of that data: the
caller must write a `NonPrivateDpEvent` into the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench import data
from bench.api import Advance
from bench.errors import Incompatible
from bench.nets.generators import UpsampleGenerator
from bench.nets.small_net import xavier
from bench.nets.stroke_generator import StrokeGenerator
from bench.validate import instance, present

ImageLoss = Callable[[Tensor], Tensor]
"""Loss of generated images: (n, c, h, w) in [0, 1] -> scalar."""


def make_generator(kind: str, dataset: str, shape: tuple[int, int, int], latent: int, width: int) -> nn.Module:
    """Build an untrained, Xavier-initialised generator.

    Args:
        kind: "upsample"; "strokes", which draws pen strokes; or "auto": "strokes" for data sets of glyphs (prior
            `pen`), "upsample" for others.
        dataset: name of the data set, for "auto".
        shape: (c, h, w) of its images.
        latent: length of z, for "upsample".
        width: channels of the last hidden map, for "upsample".

    Raises:
        BenchError: the generator cannot make images of this size.
    """
    if not (kind == "strokes" or (kind == "auto" and data.facts(dataset).prior == "pen")):
        return xavier(UpsampleGenerator(shape, latent, width))
    generator = StrokeGenerator(shape)
    xavier(generator).start_at_identity()
    return generator


def pretrain(
    generator: nn.Module,
    discriminator: nn.Module,
    steps: int,
    batch: int,
    lr: float,
    loss: ImageLoss,
    rng: torch.Generator,
    advance: Advance,
    *,
    decay_every: int = 0,
    decay_factor: float = 0.1,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Train `generator` with Adam on `loss` of its images, with new Gaussian latents z in every step.

    The discriminator's weights, statistics and gradients do not change; the generator is left in training mode.

    Args:
        generator: (n, generator.latent) to (n, c, h, w) in [0, 1], on the device of `rng`.
        discriminator: network used by `loss`; kept in evaluation mode with fixed parameters during training.
        steps: Adam steps; 0 trains nothing.
        batch: images per step, at least 2 (the loss terms are statistics of a batch).
        lr: of Adam.
        loss: maps (batch, c, h, w) images to a scalar, differentiable in the images.
        rng: draws z.
        advance: called with 1 after every step.
        decay_every: the learning rate is multiplied by `decay_factor` every this many steps; 0 = never.
        precision: context manager for the forward pass, such as `ctx.precision`.
    """
    optimizer = torch.optim.Adam(generator.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, decay_every or max(steps, 1) + 1, decay_factor)
    generator.train()
    with fixed(discriminator):
        for _ in range(steps):
            z = torch.randn(batch, generator.latent, generator=rng, device=rng.device)  # type: ignore[call-overload]
            with precision():
                value = loss(generator(z))
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            schedule.step()
            advance(1)


@contextmanager
def fixed(model: nn.Module) -> Iterator[nn.Module]:
    """Context manager: evaluation mode and no parameter gradients for `model`.

    Restores every module's state on exit.
    """
    modes = [(module, module.training) for module in model.modules()]
    needed = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield model.eval().requires_grad_(False)
    finally:
        for module, training in modes:
            module.training = training
        for parameter, needs in needed:
            parameter.requires_grad_(needs)


class BatchStatistics:
    """N(phi, x) of DP-DFD's Eq. 2: distance of a batch's statistics from phi's BatchNorm running statistics.

    `with BatchStatistics(phi) as statistics:` hooks the layers; after a forward pass of phi, `distance()` is

        sum over the layers of ||mean(a) - running mean||_2 + ||var(a) - running variance||_2,

    where a is the layer's input and mean and (biased) variance are its statistics per channel over the batch. Leaving
    the block removes the hooks.

    Args:
        model: phi, in evaluation mode.
        required: refuse a phi without stored statistics; if False, its distance is 0.

    Raises:
        BenchError: phi has no BatchNorm layer with running statistics, and they are required.
    """

    def __init__(self, model: nn.Module, required: bool = True) -> None:
        self._layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
        if required and not self._layers:
            raise Incompatible(
                "the discriminator has no BatchNorm layer with running statistics, which the norm term needs: "
                "switch the term off (weight 0) or take a network that has them, such as --teacher resnet18"
            )
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._terms: list[Tensor] = []

    def __enter__(self) -> BatchStatistics:
        self._hooks = [layer.register_forward_pre_hook(self._record) for layer in self._layers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._terms = [], []

    def distance(self) -> Tensor:
        """Return the scalar N of the forward passes since the last call, differentiable in the images."""
        if not self._layers:
            return torch.zeros(())
        if not self._terms:
            raise RuntimeError("no forward pass was recorded: call the network inside the `with` block first")
        total = torch.stack(self._terms).sum()
        self._terms = []
        return total

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        norm = instance(layer, _BatchNorm, "hooked layer")
        running_mean, running_variance = present(norm.running_mean, "mean"), present(norm.running_var, "variance")
        a = inputs[0].float()
        axes = [axis for axis in range(a.ndim) if axis != 1]
        variance, mean = torch.var_mean(a, axes, correction=0)
        self._terms.append((mean - running_mean).norm() + (variance - running_variance).norm())


def l1_activation_loss(features: Tensor, up: bool) -> Tensor:
    """Return the third generator term of DGD's Eq. 2: plus or minus the mean magnitude of the features.

    Args:
        features: (n, d).
        up: rewards large activations, as real images have (the paper's text); False is the printed sign.
    """
    size = features.abs().mean()
    return -size if up else size
