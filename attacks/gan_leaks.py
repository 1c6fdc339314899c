"""GAN-Leaks: predict that records close to the released generator's images are members.

Chen, Yu, Zhang, Fritz, "GAN-Leaks: A Taxonomy of Membership Inference Attacks against Generative Models", CCS 2020
(arXiv 1909.03935), sections 4.3 (full black box), 4.5 (white box) and 4.6 (calibration). G the generator, x a suspect.

1. Reconstruct x in the generator's range: R(x|G) = argmin over x^ of L(x, x^).
   - black box: the nearest of n released samples;
   - white box: G(z), with z found by gradient descent on L(x, G(z)) plus a penalty on ||z||^2. The penalty keeps z near
     Gaussian latents; latents that are uniform in [0, 1] are not constrained.
2. The score is -L(x, R(x|G)): a small error suggests a member.
3. Calibrated: L(x, R(x|G_ref)) - L(x, R(x|G)), because some images are easy for any generator.

Differs from the paper:
- The reference of step 3 is the attacker's own images, not a second generator. In the black box the reference error is
  the distance to the nearest of them. In the white box it is the squared residual outside of their leading principal
  components: 64, or an eighth of the number of values of an image if that is less. A second generator would have to be
  trained for every method, and its randomness makes the score less stable.
- Calibrated scores are differences of logarithms, log L(x, R(x|G_ref)) - log L(x, R(x|G)), which do not depend on the
  unit.
- In the white box L is the squared error and the penalty `penalty` ||z||^2. The paper adds 0.2 LPIPS, which needs the
  weights of a network trained on ImageNet, and penalises (||z||^2 - dim z)^2. The score contains the error without the
  penalty.
- z starts from 0 (from 1/2 where latents are drawn from [0, 1]) and is found by Adam on a sum over suspects, so it
  does not depend on the batch; the authors' code runs L-BFGS on batches of 20, with a common line search.
- A conditional generator gets the suspect's label.
- A release without a generator has as many samples as it has released images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, ReleasedImages
from bench.config import Departure, Size
from bench.gan.latent_search import nearest_images
from bench.membership.neighbours import TINY, Components, nearest, pixels
from bench.validate import at_least, positive

REFERENCE_COMPONENTS = 64
"""Largest number of principal components of the white box's reference."""
PIXELS_FOR_EACH = 8
"""Smallest number of values of an image per component of the white box's reference; with more components the reference
would reconstruct any small image."""


@dataclass(frozen=True)
class GanLeaks:
    """Membership by the error with which the release reconstructs a suspect; the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Chen et al., CCS 2020, arXiv 1909.03935, sections 4.3, 4.5, 4.6"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"samples": 60, "steps": 3},
        "quick": {"samples": 5000, "steps": 150},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="black box: distances in whitened principal components of the attacker's images, not in pixels",
            why="the nearest sample in pixels is usually the smoothest one, for members and non-members",
            sets={"space": "whitened"},
        ),
        Departure(
            what="calibrated by the attacker's own images",
            why="without calibration, images that are easy to draw count as members",
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
    """The attacker's access: released samples (black), or the generator, whose latents are optimised (white)."""
    calibration: Literal["none", "aux"] = "none"
    """Whether the error is compared with that of the attacker's own images (aux), or used as it is (none)."""
    space: Literal["pixels", "whitened"] = "pixels"
    """Black box: space in which distances to the samples are measured."""
    samples: Size[int] = 20_000
    """Black box: number of released samples that a suspect is compared with."""
    components: int = 200
    """Black box: largest number of whitened principal components; at most one per five of the attacker's images."""
    steps: Size[int] = 1000
    """White box: steps of Adam on the latent z of each suspect."""
    lr: float = 0.1
    """White box: learning rate of Adam on z."""
    penalty: float = 1e-3
    """White box: weight of the penalty ||z||^2 relative to the squared error."""
    batch: Size[int] = 250
    """White box: suspects searched for in one batch; affects rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "samples", "components", "steps", "batch")
        positive(self, "lr")
        at_least(self, 0, "penalty")

    @property
    def access(self) -> Access:
        """Access level: `generator` in the white box, `samples` in the black box."""
        return "generator" if self.box == "white" else "samples"

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: too few images of the attacker."""
        return None if aux >= 10 else f"{aux} auxiliary images; expected at least 10"

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 to 3; return a float64 score per suspect."""
        errors = self._by_decoder if self.box == "white" else self._by_samples
        own, reference = (found.clamp_min(TINY).log() for found in errors(released, knowledge, ctx))
        return MembershipResult(-own if self.calibration == "none" else reference - own)

    def _by_samples(
        self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """Return (n,) distances to the nearest sample, and to the nearest of the attacker's images."""
        drawn, aux = released.samples(self.samples, ctx.generator("gan-leaks")), knowledge.population[0]
        phi = pixels if self.space == "pixels" else Components.of(aux, self.components).whiten
        x = phi(knowledge.images)
        return nearest(x, phi(drawn)), nearest(x, phi(aux))

    def _by_decoder(
        self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """Return (n,) squared errors of the generator's best reconstruction, and of that by principal components."""
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
        count = max(1, min(REFERENCE_COMPONENTS, knowledge.images[0].numel() // PIXELS_FOR_EACH))
        components = Components.of(knowledge.population[0], count)
        return torch.cat(errors), components.residual(knowledge.images)
