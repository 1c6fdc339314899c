"""GAN-Leaks: records that the released generator draws nearly are called members.

Chen, Yu, Zhang, Fritz, "GAN-Leaks: A Taxonomy of Membership Inference Attacks against Generative Models", CCS 2020
(arXiv 1909.03935), sections 4.3 (full black box), 4.5 (white box) and 4.6 (calibration). G the generator, x a suspect.

1. Reconstruct x from the generator's range: R(x|G) = argmin over x^ of L(x, x^).
   - black box: the nearest of n released samples;
   - white box: G(z), z found by descending L(x, G(z)) and a penalty on ||z||^2, which is small
     where Gaussian latents are drawn from (not where they are uniform in [0, 1]: nothing keeps them inside).
2. The score is -L(x, R(x|G)): what is drawn nearly is a member.
3. Calibrated: L(x, R(x|G_ref)) - L(x, R(x|G)), for some images are easy to draw by any generator.

Differs from the paper:
- The reference of step 3 is the attacker's own images, not a second generator: the distance to the nearest of them or,
  in the white box, the squared residual off their leading principal components (64; one for 8 values of an image). A
  second generator for every method would cost a training with its noise, and is the less stable of the two.
- Calibrated scores are differences of logarithms, log L(x, R(x|G_ref)) - log L(x, R(x|G)), which no unit changes.
- In the white box L is the squared error and the penalty `penalty` ||z||^2. The paper adds 0.2 LPIPS, which needs the
  weights of a network trained on ImageNet, and penalises (||z||^2 - dim z)^2. The error counts without the penalty.
- z starts from 0 (from 1/2 where latents are drawn from [0, 1]) and is found by Adam on a sum over suspects, which no
  batching changes; the authors' code runs one L-BFGS for a batch of 20, whose line search they share.
- A conditional generator is told the suspect's label.
- A release without a generator has as many samples as it has released images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, ReleasedImages
from bench.config import Departure, Size
from bench.gan.latent_search import nearest_images
from bench.membership.neighbours import TINY, Components, nearest, pixels
from bench.validate import at_least, positive

REFERENCE_COMPONENTS = 64
PIXELS_FOR_EACH = 8
"""Values of an image for each component of the white box's reference, at least: with more it draws any small image."""


@dataclass(frozen=True)
class GanLeaks:
    """How nearly the release draws a suspect; the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Chen et al., CCS 2020, arXiv 1909.03935, sections 4.3, 4.5, 4.6"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"samples": 60, "steps": 3},
        "quick": {"samples": 5000, "steps": 150},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="black box: distances in whitened principal components of the attacker's images, not in pixels",
            why="the nearest sample in pixels is the smoothest one, whoever was in the training data",
            sets={"space": "whitened"},
        ),
        Departure(
            what="calibrated by the attacker's own images",
            why="without it suspects that are easy to draw count as members, of whatever set they are",
            sets={"calibration": "aux"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {
        "space": "box=black",
        "samples": "box=black",
        "components": "box=black space=whitened",
        "steps": "box=white",
        "lr": "box=white",
        "penalty": "box=white",
        "batch": "box=white",
    }

    box: Literal["black", "white"] = "black"
    """What the attacker has: samples; or the generator, whose latents he searches by gradients."""
    calibration: Literal["none", "aux"] = "none"
    """Reference of step 3: none, or the attacker's own images."""
    space: Literal["pixels", "whitened"] = "pixels"
    """Where the black box measures distances L."""
    samples: Size[int] = 20_000
    """n, released samples in the black box."""
    components: int = 200
    """Most whitened principal components; at most one for every five of the attacker's images."""
    steps: Size[int] = 1000
    """Steps of Adam on z in the white box."""
    lr: float = 0.1
    """Step size of Adam on z."""
    penalty: float = 1e-3
    """Weight of ||z||^2 beside the squared error."""
    batch: Size[int] = 250
    """Suspects searched for at once in the white box; changes rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "samples", "components", "steps", "batch")
        positive(self, "lr")
        at_least(self, 0, "penalty")

    @property
    def access(self) -> Access:
        """`generator` in the white box."""
        return "generator" if self.box == "white" else "samples"

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run: no images to compare with."""
        return None if aux >= 10 else f"{aux} images of the attacker's: expected 10 to compare with"

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Steps 1 to 3 for every suspect, float64."""
        errors = self._by_decoder if self.box == "white" else self._by_samples
        own, reference = (found.clamp_min(TINY).log() for found in errors(released, knowledge, ctx))
        return MembershipResult(-own if self.calibration == "none" else reference - own)

    def _by_samples(
        self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """(n,) distances to the nearest sample, and to the nearest of the attacker's images."""
        drawn, aux = released.samples(self.samples, ctx.generator("gan-leaks")), knowledge.population[0]
        phi = pixels if self.space == "pixels" else Components.of(aux, self.components).whiten
        x = phi(knowledge.images)
        return nearest(x, phi(drawn)), nearest(x, phi(aux))

    def _by_decoder(
        self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """(n,) squared errors of the best reconstruction, and of that by the attacker's principal components."""
        rng, errors = ctx.generator("gan-leaks"), []
        parts = list(zip(knowledge.images.split(self.batch), knowledge.labels.split(self.batch), strict=True))
        start = released.latents(500, rng).mean(0).mul(2).round().div(2)
        with ctx.track("searching latents of the suspects", self.steps * len(parts)) as advance:
            for x, y in parts:
                _, error = nearest_images(
                    lambda z, y=y: released.decode(z, y),  # type: ignore[misc]
                    start.expand(len(x), -1),
                    x,
                    steps=self.steps,
                    lr=self.lr,
                    penalty=self.penalty,
                    advance=advance,
                )
                errors.append(error.double())
        most = max(1, min(REFERENCE_COMPONENTS, knowledge.images[0].numel() // PIXELS_FOR_EACH))
        components = Components.of(knowledge.population[0], most)
        return torch.cat(errors), components.residual(knowledge.images)
