"""DeepInversion: optimise pixels until the target predicts a class with the BatchNorm statistics of its training data.

Yin, Molchanov, Li, Alvarez, Mallya, Hoiem, Jha, Kautz, "Dreaming to Distill: Data-free Knowledge Transfer via
DeepInversion", CVPR 2020 (arXiv 1912.08795). T target, y the attacked class, x a batch of images in the paper's
normalised pixels; for BatchNorm layer l, mu_l(x) and var_l(x) are mean and biased variance of each channel of its input
over the batch, mu^_l and var^_l the statistics the layer has stored.

1. Draw x ~ N(0, I), with equally many images per class in the batch.
2. Repeat: shift x randomly by up to `jitter` pixels, and update x by Adam to lower
   L = CE(T(shifted x), y) + a_bn sum_l (||mu_l - mu^_l||_2 + ||var_l - var^_l||_2) + a_tv R_TV(x) + a_l2 ||x||_2,
   where R_TV adds the norms of four differences of x: with the pixel to the right, below, and on both diagonals.
3. Keep the x of smallest L.

A target without BatchNorm layers, such as LeNet, a network with GroupNorm, or the student `datalens`, stores no
statistics. The sum over l is then empty, and the attack is an inversion by CE and the priors R_TV and ||x||_2; the
progress line says "no BatchNorm, priors only". Do not read the result on such a target as DeepInversion's.

Differs from the paper:
- Settings are those of the authors' command for CIFAR-10; the defaults of their program are lr 0.1 and a_bn 100.
  No norm is squared, as in their code.
- The adaptive term of Adaptive DeepInversion is omitted: it needs a student that is trained during the search, which
  the authors' released code does not train either; their default weight is 0.
- An attacker does not know the target's pixel normalisation. One unit of x is
  `pixel_std` of the image's range [0, 1], around 0.5, and x is clipped to that range at the start and after every step;
  the authors' script for CIFAR-10 does not clip, their script for ImageNet does.
- Images are shifted cyclically, all of a batch by the same amount, as in the authors' code; R_TV and ||x||_2 are
  those of the images before the shift, so no border crosses them. No mirroring: it is wrong for
  digits.
- The kept x is a copy of the x at which L was measured. The authors' CIFAR-10 script keeps a reference, which is always
  the last x, and their ImageNet script keeps the x after the step with the loss before it.
- Hooks are removed after use (the authors' CIFAR-10 script keeps them, so every call is slower than the last).
- `bn_batch` images are optimised together, because L depends on the batch (256 in the paper). Each draw is
  split into as few batches as possible, with balanced classes and sizes that differ by at most 1.
- Variant `working` has a larger learning rate, a_bn 0.03 and a_tv 0.01. (The authors' script for ImageNet has a_bn
  0.01.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.distillation.losses import total_variation
from bench.validate import at_least, instance, positive, present

CENTRE = 0.5
"""The pixel value in [0, 1] at x = 0."""


@dataclass(frozen=True)
class DeepInversion:
    """Inversion through BatchNorm statistics; the defaults are the authors' for CIFAR-10."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Yin et al., CVPR 2020, arXiv 1912.08795"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"iterations": 3, "draws": 2, "images_per_class": 2, "bn_batch": 8},
        "quick": {"iterations": 150, "draws": 2, "images_per_class": 4},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="the weights are a_bn 0.03, not 10 (statistics), and a_tv 0.01, not 2.5e-5 (total variation)",
            why="in 150 steps (tier quick) with a_bn 10, images match the statistics, but not the class",
            sets={"bn_weight": 0.03, "tv_weight": 0.01},
        ),
        Departure(
            what="Adam's learning rate is 0.1, not 0.05",
            why="tier quick has 150 steps, the paper 2,000",
            sets={"lr": 0.1},
        ),
    )

    iterations: Size[int] = 2000
    """Steps of Adam on the pixels."""
    lr: float = 0.05
    """Learning rate of Adam, in units of x (see `pixel_std`)."""
    bn_weight: float = 10.0
    """a_bn, the weight of the BatchNorm statistics; no effect if the target has no BatchNorm layers."""
    first_bn: float = 1.0
    """Factor of the first BatchNorm layer's terms in the loss (the authors' code for ImageNet: 10)."""
    tv_weight: float = 2.5e-5
    """a_tv, the weight of the total variation R_TV."""
    l2_weight: float = 0.0
    """a_l2, the weight of the norm of x."""
    jitter: int = 2
    """Largest random shift of the images in each direction, in pixels, before each query of the target."""
    pixel_std: float = 0.25
    """Size of one unit of x (the optimised variable), for pixels in [0, 1]."""
    bn_batch: Size[int] = 256
    """Images optimised together, whose statistics are matched as one batch; results depend on it."""
    draws: Size[int] = 5
    """Independent draws of the starting x (the paper: 1)."""
    images_per_class: Size[int] = 20
    """Images per class in each draw."""

    def __post_init__(self) -> None:
        at_least(self, 1, "iterations", "bn_batch", "draws", "images_per_class")
        positive(self, "lr", "pixel_std")
        at_least(self, 0, "bn_weight", "first_bn", "tv_weight", "l2_weight", "jitter")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return None: the attack needs no auxiliary images and supports all image sizes."""
        return None

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class; `aux` is not used."""
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        n = len(per_draw)
        groups = math.ceil(n / self.bn_batch)
        found = torch.empty(self.draws, n, *target.shape, device=ctx.device)
        with recorded_gaps(target.module(), self.first_bn) as gaps:
            stage = "DeepInversion: searching" + ("" if gaps.layers else " (no BatchNorm, priors only)")
            with ctx.track(stage, self.iterations * groups * self.draws) as advance:
                for draw in range(self.draws):
                    rng = ctx.generator(f"deepinversion/{draw}")
                    starts = torch.randn(n, *target.shape, generator=rng, device=ctx.device)
                    for rows in (slice(first, None, groups) for first in range(groups)):
                        x = self._search(starts[rows], per_draw[rows], gaps, target, rng, ctx, advance)
                        found[draw, rows] = self._pixels(x)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(n)
        return AttackResult(found.flatten(0, 1), per_draw.repeat(self.draws), draws)

    def _search(
        self,
        x: Tensor,
        labels: Tensor,
        gaps: Gaps,
        target: Target,
        rng: torch.Generator,
        ctx: Context,
        advance: Advance,
    ) -> Tensor:
        """Optimise one batch from `x`; return the (n, c, h, w) x of smallest L among all `iterations`."""
        bound = CENTRE / self.pixel_std
        x = x.clamp(-bound, bound).requires_grad_()
        best, lowest = x.detach().clone(), torch.full((), math.inf, device=ctx.device)
        adam = torch.optim.Adam([x], lr=self.lr)
        reach = (-self.jitter, self.jitter + 1)
        shifts = torch.randint(*reach, (self.iterations, 2), generator=rng, device=ctx.device).tolist()
        for shift in shifts:
            gaps.clear()
            with ctx.precision():
                logits = target.logits(self._pixels(x).roll(shift, (2, 3)))
            loss = (
                cross_entropy(logits.float(), labels)
                + self.bn_weight * gaps.total(x)
                + self.tv_weight * total_variation(x)
                + self.l2_weight * x.norm()
            )
            (x.grad,) = torch.autograd.grad(loss, x)
            better = loss.detach() < lowest
            best, lowest = torch.where(better, x.detach(), best), torch.where(better, loss.detach(), lowest)
            adam.step()
            with torch.no_grad():
                x.clamp_(-bound, bound)
            advance(1)
        return best

    def _pixels(self, x: Tensor) -> Tensor:
        """Map normalised images to [0, 1]."""
        return (CENTRE + self.pixel_std * x).clamp(0, 1)


def statistics_gap(inputs: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return ||mu_l - mu^_l||_2 + ||var_l - var^_l||_2 of one layer; norms are not squared.

    Args:
        inputs: (n, channels, ...), the layer's input. mean, variance: (channels,), its running statistics.
    """
    dims = [0, *range(2, inputs.ndim)]
    var, mu = torch.var_mean(inputs.float(), dims, correction=0)
    return (mu - mean).norm() + (var - variance).norm()


class Gaps:
    """Distances of the BatchNorm statistics in the last forward pass from the running statistics.

    Attributes:
        layers: the BatchNorm layers with running statistics, in the order of the module.
    """

    def __init__(self, layers: list[_BatchNorm], first: float) -> None:
        self.layers = layers
        self._first = first
        self._gaps: list[Tensor] = []

    def record(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Forward pre-hook: measure the input of `layer`."""
        norm = instance(layer, _BatchNorm, "watched layer")
        running_mean, running_variance = present(norm.running_mean, "mean"), present(norm.running_var, "variance")
        gap = statistics_gap(inputs[0], running_mean, running_variance)
        self._gaps.append(self._first * gap if layer is self.layers[0] else gap)

    def clear(self) -> None:
        """Remove the gaps of the last pass."""
        self._gaps.clear()

    def total(self, like: Tensor) -> Tensor:
        """Return the sum over the layers, a scalar on the device of `like`; 0 if there are none."""
        return torch.stack(self._gaps).sum() if self._gaps else like.new_zeros(())


@contextmanager
def recorded_gaps(module: nn.Module, first: float = 1.0) -> Iterator[Gaps]:
    """Record the gaps of every forward pass through `module`; remove all hooks at the end of the context.

    Args:
        first: factor of the first layer's gap.
    """
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    gaps = Gaps(layers, first)
    handles = [layer.register_forward_pre_hook(gaps.record) for layer in layers]
    try:
        yield gaps
    finally:
        for handle in handles:
            handle.remove()
