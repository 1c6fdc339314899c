"""DOMIAS: where the release is denser than the data's distribution, there were members.

van Breugel, Sun, Qian, van der Schaar, "Membership Inference Attacks against Synthetic Data through Overfitting
Detection", AISTATS 2023 (arXiv 2302.12580), Eq. 2. p_G the density of released samples, p_R that of the data's
distribution, from the attacker's own images, x a suspect.

1. Estimate p_G from n samples and p_R from the attacker's images.
2. The score is p_G(x) / p_R(x): a density that is high anyhow does not count, local overfitting does.

Differs from the paper:
- Densities are of whitened principal components of the attacker's images. The paper's images are codes of a
  variational autoencoder of 128 dimensions.
- The score is log p_G(x) - log p_R(x). The authors' code adds 1e-30 to p_R alone, so that in many dimensions both
  densities underflow and the ratio is one of rounding.
- Kernel densities have one bandwidth, Scott's for the smaller set: with one for each set the ratio compares bandwidths.
  The paper's normalising flows are left out: they are trained for each of both sets.
- `density=knn` is the plug-in of k nearest neighbours: log p_G - log p_R = const + dim (log r_R - log r_G), r the
  distance to the k-th nearest; the factor dim, which changes no order, is dropped.
- A release without a generator has as many samples as it has released images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, ReleasedImages
from bench.config import Departure, Size
from bench.membership.neighbours import TINY, Components, log_density, nearest
from bench.validate import at_least


@dataclass(frozen=True)
class Domias:
    """A ratio of densities; the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "van Breugel et al., AISTATS 2023, arXiv 2302.12580, Eq. 2"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "samples"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": {"samples": 60}, "quick": {"samples": 5000}}
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="densities by the k nearest neighbours instead of kernels",
            why="with 20 dimensions or more one bandwidth is too wide where images are many and too narrow elsewhere",
            sets={"density": "knn"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"k": "density=knn"}

    density: Literal["kde", "knn"] = "kde"
    """p_G and p_R by Gaussian kernels, or by the k-th nearest neighbour."""
    samples: Size[int] = 50_000
    """n, released samples."""
    components: int = 200
    """Most whitened principal components; at most one for every five of the attacker's images."""
    k: int = 10
    """Neighbours of density=knn; all, where a set has fewer."""

    def __post_init__(self) -> None:
        at_least(self, 1, "samples", "components", "k")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run: no images to compare with."""
        return None if aux >= 10 else f"{aux} images of the attacker's: expected 10 to compare with"

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Steps 1 and 2 for every suspect, float64."""
        drawn, aux = released.samples(self.samples, ctx.generator("domias")), knowledge.population[0]
        phi = Components.of(aux, self.components).whiten
        x, ours, theirs = phi(knowledge.images), phi(drawn), phi(aux)
        if self.density == "knn":
            near, far = (nearest(x, points, self.k).clamp_min(TINY) for points in (ours, theirs))
            return MembershipResult(far.log() - near.log())
        bandwidth = min(len(ours), len(theirs)) ** (-1 / (x.shape[1] + 4))
        return MembershipResult(log_density(x, ours, bandwidth) - log_density(x, theirs, bandwidth))
