"""IF-GMI: after the latents, optimise the features between the layers of an image prior, inside an l1 ball.

Qiu, Fang, Yu, Chen, Qiu, Xia, "A Closer Look at GAN Priors: Exploiting Intermediate Features for Enhanced Model
Inversion Attacks", ECCV 2024 (arXiv 2407.13863). G = b_L o ... o b_1 generator, trained without the target; T the
target's logits, y the attacked class, h_i the output of block b_i.

1. Initial selection, as step 1 of PPA (`attacks/ppa.py`): keep the `candidates_per_class` latents of largest score.
2. Layer 0: `steps` steps of Adam on each kept z; the loss is the Poincare distance of T(crop(G(z))) to class y.
3. Layer i = 1 .. `layers`: start from h_i^0, the output of b_i at the result of layer i - 1. Make `layer_steps` steps
   of a new Adam on h_i by the loss of b_L o ... o b_{i+1}(h_i). After each step project
   h_i <- h_i^0 + P(h_i - h_i^0), P the projection to the l1 ball of radius r_i.
4. The results of all layers are candidates. Return, for each start, the result of one layer.

Differs from the paper:
- The paper's G is StyleGAN2, whose blocks also receive the intermediate latent w, optimised and projected together with
  h_i. Here G is the GAN that several attacks share; its blocks receive only h_i. It has few blocks: 1 feature map of 8
  pixels, 2 of 16 and 28, 4 of 64. `layers` is at most this number.
- r_i is `radius` times the l1 norm of each h_i^0. The paper has 1000, 2000, ... for its generator of 1,024 pixels.
- The paper reports the layer of largest accuracy by the evaluator, which an attacker does not have. Step 4 chooses the
  layer of each start by PPA's score: the mean probability of y over `transformations` random crops by the target.
- The results are those after the last step; the authors' code keeps the images before it.
- Only the `images_per_class` results of largest score are kept. With the paper's 50 candidates and 50 images these are
  all.
- Crops, |u| near 1, and the variant `working`: as in `attacks/ppa.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bench.api import Advance, AttackResult, Context, Target
from bench.config import Size
from bench.gan.gan_prior import QUICK, SMOKE
from bench.gan.plug_and_play import BETAS, CROPPED, RATIO, PlugAndPlay, most_robust, resized_crop
from bench.validate import at_least

Project = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class IfGmi(PlugAndPlay):
    """Inversion by intermediate features; the defaults are the authors' for FFHQ and CelebA."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Qiu et al., ECCV 2024, arXiv 2407.13863"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            **SMOKE, "latents": 16, "candidates_per_class": 2, "steps": 2, "layer_steps": 2, "transformations": 2,
            "draws": 2, "images_per_class": 1,
        },
        "quick": {
            **QUICK, "latents": 1000, "candidates_per_class": 8, "steps": 40, "layer_steps": 15, "transformations": 20,
            "draws": 5, "images_per_class": 4,
        },
    }  # fmt: skip

    candidates_per_class: Size[int] = 50
    """Latents that are optimised for each class and draw."""
    layers: int = 4
    """Largest number of feature maps that are optimised after the latents; 0 = the latents only."""
    layer_steps: Size[int] = 25
    """Steps of Adam for each feature map."""
    radius: float = 0.1
    """Radius r_i of the l1 ball, as a share of the l1 norm of the feature map at its start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "layers", "radius")
        at_least(self, 1, "layer_steps")

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `images_per_class` images of every class in each draw."""
        generator, _ = self.gan(aux, ctx)
        blocks = generator.blocks()
        rng = ctx.generator("if-gmi")
        mirrored = self.mirror == "always" or aux.shape[1] == 3
        labels = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.candidates_per_class)
        steps = self.steps + min(self.layers, len(blocks) - 1) * self.layer_steps
        kept: list[Tensor] = []
        with ctx.track("IF-GMI: optimising", self.draws * -(-len(labels) // self.batch) * steps) as advance:
            for _ in range(self.draws):
                drawn = torch.randn(self.latents, self.latent, generator=rng, device=ctx.device)
                starts = drawn[self.initial_selection(drawn, generator, target, mirrored).flatten()]
                crops = torch.rand(steps, 4, generator=rng, device=ctx.device)
                last_crops = torch.rand(self.transformations, 4, generator=rng, device=ctx.device)
                found, scores = [], []
                for z, y in zip(starts.split(self.batch), labels.split(self.batch), strict=True):
                    layers = self._results(z, y, blocks, crops, target, ctx, advance)
                    each = torch.stack([self.final_scores(x, y, target, last_crops, mirrored) for x in layers])
                    score, chosen = each.max(0)
                    found.append(torch.stack(layers)[chosen, torch.arange(len(y), device=ctx.device)])
                    scores.append(score)
                best = most_robust(torch.cat(scores).view(target.classes, -1), self.images_per_class)
                kept.append(torch.cat(found)[best.flatten()])
        classes = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(classes))
        return AttackResult(torch.cat(kept), classes.repeat(self.draws), draws)

    def _results(
        self,
        z: Tensor,
        labels: Tensor,
        blocks: list[nn.Module],
        crops: Tensor,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> list[Tensor]:
        """Steps 2 and 3: return the images of every layer, each (n, c, h, w), for (n, latent) starts z.

        Args:
            crops: (steps, 4) draws, one for each step of layer 0, then of layer 1, and so on.
        """
        generator = nn.Sequential(*blocks)
        h = self._optimised(z, labels, generator, crops[: self.steps], lambda x: x, target, ctx, advance)
        with torch.no_grad():
            images = [generator(h)]
        for i, part in enumerate(crops[self.steps :].split(self.layer_steps)):
            with torch.no_grad():
                start = blocks[i](h)
            rest = nn.Sequential(*blocks[i + 1 :])
            h = self._optimised(start, labels, rest, part, self._ball(start), target, ctx, advance)
            with torch.no_grad():
                images.append(rest(h))
        return images

    def _optimised(
        self,
        start: Tensor,
        labels: Tensor,
        network: nn.Module,
        crops: Tensor,
        project: Project,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> Tensor:
        """Return `start` after one step of Adam for each crop, so that `network` makes images of the classes."""
        h = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([h], self.lr, BETAS)
        for crop in crops:
            with ctx.precision():
                logits = target.logits(resized_crop(network(h), crop, CROPPED, RATIO))
            (h.grad,) = torch.autograd.grad(self.distances(logits.float(), labels).sum(), h)
            optimizer.step()
            with torch.no_grad():
                h.copy_(project(h))
            advance(1)
        return h.detach()

    def _ball(self, start: Tensor) -> Project:
        """Return the projection to the l1 ball around `start`, one ball for each image."""
        radius = self.radius * start.flatten(1).abs().sum(1)
        return lambda h: start + l1_projection((h - start).flatten(1), radius).view_as(start)


def l1_projection(v: Tensor, radius: Tensor) -> Tensor:
    """Return P(v), (n, d): the nearest point of each row of v whose l1 norm is at most its (n,) radius.

    The absolute values are lowered by one number theta for each row and cut off at 0.
    """
    largest = v.abs().sort(1, descending=True).values
    excess = largest.cumsum(1) - radius[:, None]
    count = torch.arange(1, v.shape[1] + 1, device=v.device)
    left = (largest * count > excess).sum(1, keepdim=True).clamp_min(1)
    theta = (excess.gather(1, left - 1) / left).clamp_min(0)
    return v.sign() * (v.abs() - theta).clamp_min(0)
