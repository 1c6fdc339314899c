"""DOMIAS: score a record by the density of the released samples at it, relative to that of the data distribution.

van Breugel, Sun, Qian, van der Schaar, "Membership Inference Attacks against Synthetic Data through Overfitting
Detection", AISTATS 2023 (arXiv 2302.12580), Eq. 2. p_G the density of released samples, p_R the density of
the data distribution, estimated from the attacker's own images, x a suspect.

1. Estimate p_G from n samples and p_R from the attacker's images.
2. The score is p_G(x) / p_R(x): it measures local overfitting, not a generally high density.

Differs from the paper:
- Densities are estimated in whitened principal components of the attacker's images; the paper estimates them in the
  128-dimensional codes of a variational autoencoder.
- The score is log p_G(x) - log p_R(x). The authors' code adds 1e-30 only to p_R, so in many dimensions both
  densities underflow and the ratio consists of rounding errors.
- Kernel densities have one bandwidth, Scott's for the smaller set: with one for each set the ratio compares bandwidths.
  The paper's normalising flows, one trained for each of the two sets, are omitted.
- `density=knn` is the k-nearest-neighbour estimate: log p_G - log p_R = const + dim (log r_R - log r_G), r the
  distance to the k-th nearest; the factor dim, which changes no order, is dropped.
- A release without a generator has as many samples as it has released images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, ReleasedImages
from bench.config import Departure, Size
from bench.membership.neighbours import TINY, Components, log_density, nearest
from bench.validate import at_least


@dataclass(frozen=True)
class Domias:
    """Membership by a ratio of densities; the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "van Breugel et al., AISTATS 2023, arXiv 2302.12580, Eq. 2"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "samples"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": {"samples": 60}, "quick": {"samples": 5000}}
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="densities by k nearest neighbours, not kernels",
            why="in 20 or more dimensions, one bandwidth is too wide where images are dense and too narrow elsewhere",
            sets={"density": "knn"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"k": "density=knn"}

    density: Literal["kde", "knn"] = "kde"
    """Density estimate for released samples and attacker's images: Gaussian kernels, or the k-th neighbour."""
    samples: Size[int] = 50_000
    """n, number of released samples from which their density is estimated."""
    components: int = 200
    """Largest number of whitened principal components; at most one per five of the attacker's images."""
    k: int = 10
    """Neighbours of density=knn; all, if a set has fewer."""

    def __post_init__(self) -> None:
        at_least(self, 1, "samples", "components", "k")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: too few images of the attacker."""
        return None if aux >= 10 else f"{aux} auxiliary images; expected at least 10"

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 and 2; return a float64 score per suspect."""
        drawn, aux = released.samples(self.samples, ctx.generator("domias")), knowledge.population[0]
        phi = Components.of(aux, self.components).whiten
        x, ours, theirs = phi(knowledge.images), phi(drawn), phi(aux)
        if self.density == "knn":
            near, far = (nearest(x, points, self.k).clamp_min(TINY) for points in (ours, theirs))
            return MembershipResult(far.log() - near.log())
        bandwidth = min(len(ours), len(theirs)) ** (-1 / (x.shape[1] + 4))
        return MembershipResult(log_density(x, ours, bandwidth) - log_density(x, theirs, bandwidth))
