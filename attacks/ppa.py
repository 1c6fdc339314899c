"""PPA: optimise latents of an image prior by the Poincare distance, then keep the images that survive transformations.

Struppek, Hintersdorf, De Almeida Correia, Adler, Kersting, "Plug & Play Attacks: Towards Robust and Flexible Model
Inversion Attacks", ICML 2022 (arXiv 2201.12179). G generator, trained without the target; T the target's logits, K
classes, y the attacked class.

1. Initial selection. Draw n latents z. The score of z for class y is the mean probability of y over G(z)
   and its mirror image. Keep the `candidates_per_class` latents of largest score for each class.
2. Optimisation. Adam with betas (0.1, 0.1) on each kept z; the loss of one image is the Poincare distance of
   u = o / |o|_1, o = T(crop(G(z))), to v = max(onehot(y) - 1e-4, 0):
   d(u, v) = arcosh(1 + 2 |u - v|^2 / ((1 - |u|^2)(1 - |v|^2))).
   Each step crops a random square of 90 to 100 % of the area, resized to the image's size.
3. Final selection. The score of a result is the mean probability of y over `transformations` random
   crops of 50 to 90 % of the area with a ratio of 0.8 to 1.2, half of them mirrored. Keep the `images_per_class` of
   largest score.

Differs from the paper:
- The paper's G is StyleGAN2, and z its intermediate latent w, truncated in step 1. Here G is the GAN that several
  attacks share, trained on the attacker's images, and z its input, drawn from N(0, I).
- The crops of a draw are the same for every batch, so that the images do not depend on the batch size. The loss is the
  sum over the batch, which changes a step of Adam by its epsilon only.
- |u| is 1 if one logit has all the weight: 1 - |u|^2 is at least 1e-6.
- d is invariant to the scale of the logits but not to a constant added to all of them. The variant `working` subtracts
  their mean, so that targets of equal probabilities give equal losses.
- The variant `working` mirrors colour images only: a mirrored digit is another symbol.
- Several independent draws, each with its own latents; the paper has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.api import AttackResult, Context, Target
from bench.gan.gan_prior import QUICK, SMOKE
from bench.gan.plug_and_play import BETAS, CROPPED, RATIO, PlugAndPlay, most_robust, resized_crop


@dataclass(frozen=True)
class Ppa(PlugAndPlay):
    """Plug & Play inversion; the defaults are the authors' for 224 pixels."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Struppek et al., ICML 2022, arXiv 2201.12179"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            **SMOKE, "latents": 16, "candidates_per_class": 2, "steps": 2, "transformations": 2, "draws": 2,
            "images_per_class": 1,
        },
        "quick": {
            **QUICK, "latents": 1000, "candidates_per_class": 8, "steps": 40, "transformations": 20, "draws": 5,
            "images_per_class": 4,
        },
    }  # fmt: skip

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `images_per_class` images of every class in each draw."""
        generator, _ = self.gan(aux, ctx)
        rng = ctx.generator("ppa")
        mirrored = self.mirror == "always" or aux.shape[1] == 3
        labels = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.candidates_per_class)
        parts = -(-len(labels) // self.batch)
        kept: list[Tensor] = []
        with ctx.track("PPA: optimising latents", self.draws * parts * self.steps) as advance:
            for _ in range(self.draws):
                drawn = torch.randn(self.latents, self.latent, generator=rng, device=ctx.device)
                starts = drawn[self.initial_selection(drawn, generator, target, mirrored).flatten()]
                crops = torch.rand(self.steps, 4, generator=rng, device=ctx.device)
                last_crops = torch.rand(self.transformations, 4, generator=rng, device=ctx.device)
                found, scores = [], []
                for z, y in zip(starts.split(self.batch), labels.split(self.batch), strict=True):
                    z = z.clone().requires_grad_()
                    optimizer = torch.optim.Adam([z], self.lr, BETAS)
                    for crop in crops:
                        with ctx.precision():
                            logits = target.logits(resized_crop(generator(z), crop, CROPPED, RATIO))
                        loss = self.distances(logits.float(), y).sum()
                        (z.grad,) = torch.autograd.grad(loss, z)
                        optimizer.step()
                        advance(1)
                    with torch.no_grad():
                        images = generator(z)
                    found.append(images)
                    scores.append(self.final_scores(images, y, target, last_crops, mirrored))
                best = most_robust(torch.cat(scores).view(target.classes, -1), self.images_per_class)
                kept.append(torch.cat(found)[best.flatten()])
        per_draw = target.classes * self.images_per_class
        classes = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(per_draw)
        return AttackResult(torch.cat(kept), classes.repeat(self.draws), draws)
