"""PATE: a student trained on the noisy arg-max of many teachers' votes, with Laplace noise.

Papernot, Abadi, Erlingsson, Goodfellow, Talwar, "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data" (ICLR 2017), sections 2 and 3.

1. The private data are split into K disjoint parts; a teacher is trained on each.
2. For each of a few unlabelled images x, n_j(x) teachers vote for class j, and the answer is
   argmax_j n_j(x) + Lap(b), b = 1 / gamma of the paper.
3. The student is trained on the answered images, and on further ones without answers.

Privacy. A private record is in one part, so it moves one vote of each query, and an answer is e0 = 2 / b = 2 gamma
differentially private. The claim is Theorem 2 by the moments accountant, which holds for arbitrary votes; the ledger
has every query's noisy counts, of which the answer is a post-processing. Both are for one private record. The images
are public, as in the paper, and cost nothing: a row has the flag `public-data`. `bench/distillation/votes/pate.py` has
the other sources of images; `images private` is refused if the account must be finite.

Differs from the paper:
- The paper's epsilons (2.04 and 8.03 on MNIST, 5.04 and 8.19 on SVHN) are data-dependent (Theorem 3): functions of the
  private votes, which cannot be released as they are. The claim here is the data-independent one, 5.30 for MNIST's
  100 queries at b = 20, and a budget is solved for it. `diagnostic` records Theorem 3's number for comparison with the
  paper; it is private information and must not be published.
- The student's images: the paper takes them from the test set, as public. Here they are a part of the training set that
  neither teachers nor attackers have (half of the records that split iid excludes from the teachers), and the test set
  is not used.
- The student is trained by cross-entropy and, on images without answers, by its own confident predictions, instead of a
  semi-supervised GAN; its network is the run's --student. Steps, batch and rate of its training are the bench's.
- Teachers have two convolutions (`dgd-cnn`), without local response normalisation, weight decay and averaged weights,
  and learn by Adam with a linearly falling rate.
- `target_estimator posterior` uses all noisy counts, whose release the ledger charges for anyway, instead of their
  arg-max.
- Tier `quick` has teachers of linear layers on fixed scattering features and a shorter training, for two CPU cores. It
  has as many queries as the paper, for which the public part of digits (119 images) is large enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.api.context import Tiers
from bench.config import Departure, Size, Solved
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan
from bench.distillation.votes.pate import NoisyVotes, vote_plan
from bench.distillation.votes.vote_bounds import (
    FEW_WHOLE_ORDERS,
    Values,
    epsilon_of,
    laplace_claim,
    laplace_renyi_of_votes,
)
from bench.distillation.votes.voted_student import MOVED_ABOUT
from bench.privacy import Unit
from bench.validate import at_least


@dataclass(frozen=True)
class Pate(NoisyVotes):
    """Train a student on noisy arg-maxes with Laplace noise; the defaults are the paper's MNIST setting."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Papernot et al., PATE, ICLR 2017, sections 2 and 3"
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    tiers: ClassVar[Tiers] = {
        "smoke": {"teachers": 3, "teacher_net": "shard-cnn", "teacher_steps": 3, "teacher_batch": 8, "query_count": 4,
                  "unlabelled": 16, "steps": 3, "batch": 8},
        "quick": {"teachers": 0, "teacher_net": "scatter-linear", "unlabelled": 3000, "steps": 600, "batch": 64},
    }  # fmt: skip
    departures: ClassVar[tuple[Departure, ...]] = (MOVED_ABOUT,)

    query_count: Size[int] = 100
    """Number of images that the teachers vote on, each of which is answered."""
    scale: Solved[float] = 20.0
    """b = 1 / gamma, scale of the Laplace noise, in votes; solved from the budget unless --solve steps or none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "query_count")
        at_least(self, 0, "scale")

    def query_plan(self, teachers: int) -> VotePlan:
        """Return the plan of step 2: the number of queries, all of which are answered, and the noise on their votes."""
        return vote_plan(Aggregation("laplace", self.scale), self.query_count, self.query_count, teachers)

    @property
    def theorem(self) -> str:
        """The theorem, as named in the claim."""
        return "PATE 2017, Theorem 2 by the moments accountant (data-independent)"

    def formula(self, plan: VotePlan, delta: float) -> float:
        """Compute epsilon by Theorem 2."""
        return laplace_claim(plan.queries, plan.aggregation.scale, delta)

    def formula_of_votes(self, plan: VotePlan, votes: Values, answered: Values, delta: float) -> float:
        """Compute epsilon by Theorem 3 for every answer."""
        orders = FEW_WHOLE_ORDERS
        return epsilon_of(laplace_renyi_of_votes(answered, plan.aggregation.scale, orders).sum(0), orders, delta)
