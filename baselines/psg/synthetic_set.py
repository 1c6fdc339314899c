"""Training a classifier on a set of a few synthetic images, as PSG's authors do; see `psg.py`.

1. Every pass augments each image in one random way: a shift of up to 4 pixels, or a scaling by 0.8 to 1.2 along each
   axis, or a rotation by up to 45 degrees, with black borders.
2. SGD with momentum 0.9 and weight decay 5e-4; the learning rate falls to a tenth after half of the passes.
3. The classifier after the last pass is used; no pass is selected.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.api import Context
from bench.nets import Classifier

SHIFT, SCALE, TURN = 4.0, 0.2, math.pi / 4
MOMENTUM, WEIGHT_DECAY, LATER = 0.9, 5e-4, 0.1
BATCH, RATE = 256, 0.01


def moved(images: Tensor, rng: torch.Generator) -> Tensor:
    """Shift, scale or rotate each of (n, c, h, w) images at random; `rng` is on the images' device."""
    count, _, height, width = images.shape
    way = torch.randint(3, (count,), generator=rng, device=images.device)
    drawn = torch.rand(5, count, generator=rng, device=images.device) * 2 - 1
    shifts, scales, turns = (way == kind for kind in range(3))
    right, down = (shifts * drawn[i] * 2 * SHIFT / side for i, side in ((0, width), (1, height)))
    wider, taller = (1 / (1 + scales * SCALE * drawn[i]) for i in (2, 3))
    angle = turns * TURN * drawn[4]
    top = torch.stack([wider * angle.cos(), -angle.sin() * height / width, right], 1)
    bottom = torch.stack([angle.sin() * width / height, taller * angle.cos(), down], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def fit_set(
    network: Classifier, images: Tensor, labels: Tensor, passes: int, augment: bool, ctx: Context, stage: str
) -> None:
    """Train in place by cross-entropy; the network ends on the context's device in eval mode.

    Args:
        network: the classifier.
        images, labels: (n, c, h, w) in [0, 1], (n,) int64.
        passes: passes over the set.
        augment: augment the images in every pass.
        ctx: device, random streams and progress.
        stage: name of the stage, for progress and the random stream.

    Raises:
        RuntimeError: the weights became NaN or infinite.
    """
    network = ctx.prepared(network).train()
    forward, rng = ctx.compiled(network), ctx.generator(stage)
    images, labels = images.to(ctx.device), labels.to(ctx.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    with ctx.track(stage, passes) as advance:
        for number in range(passes):
            optimizer.param_groups[0]["lr"] = RATE * (LATER if 2 * number >= passes else 1.0)
            for chosen in torch.randperm(len(images), generator=rng, device=ctx.device).split(BATCH):
                seen = moved(images[chosen], rng) if augment else images[chosen]
                with ctx.precision():
                    logits = forward(seen)
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(logits.float(), labels[chosen]).backward()
                optimizer.step()
            advance(1)
    optimizer.zero_grad(set_to_none=True)
    network.eval()
    if not all(bool(p.isfinite().all()) for p in network.parameters()):
        raise RuntimeError(f"{stage}: the weights became NaN or infinite")
