"""RMIA: count the population records that the target favours less than the suspect, each beside reference models.

Zarifzadeh, Liu, Shokri, "Low-Cost High-Power Membership Inference Attacks", ICML 2024 (arXiv 2312.03262), Algorithm 1.
p(x | theta) is the true class's probability under the target, p_j(x) under reference model j, z a population record.

1. Offline, over the models that were not trained on x: pbar(x) = mean_j p_j(x), p(x) = ((1 + a) pbar(x) + 1 - a) / 2.
   Online, over all models: p(x) = mean_j p_j(x).
2. The same for population records z, which are OUT of every model.
3. ratio_x = p(x | theta) / p(x), ratio_z = p(z | theta) / p(z).
4. Score = share of z with ratio_x / ratio_z >= gamma.
5. a is chosen beforehand with a reference model instead of the target.

Differs from the paper:
- `tune` takes every reference for the target in turn, with the others as its references and equally many OUT
  models for each suspect, and takes the a of 0, 0.1, ..., 1 with the largest mean area under the curve (the smallest
  of equals). The authors' tool tries one paired model, and compares its suspects with the target's own answers on z.
- a = 0 means 0. The authors' tool then falls back to 0.3 in its proxy for a single reference; no proxy is needed here,
  because every suspect is OUT of half the models.
- p(z) has the mean of all references. The authors' tool takes the larger half of each z's answers.
- Population records equal to a suspect, pixel by pixel, are left out: they would not be non-members.
- gamma is 1 in variant `working`, as in the authors' tool, which counts strictly larger ratios.
- Softmax probabilities only. The paper's Taylor softmax needs logits, which the released model does not give.
- One query per record; the paper also lets 18 augmented queries vote.
- References of kind "teacher" do not know the defence: for a student the attack then rests on transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, Advance, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Departure
from bench.errors import RunFailed
from bench.membership.confidences import (
    FEW,
    TEACHER_REFERENCES,
    ReferenceAttack,
    query_probabilities,
    split_by_membership,
    true_class_probability,
)
from bench.validate import between, positive

GRID = [step / 10 for step in range(11)]


@dataclass(frozen=True)
class Rmia(ReferenceAttack):
    """Robust membership inference attack; the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Zarifzadeh et al., ICML 2024, arXiv 2312.03262, Algorithm 1"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": FEW, "quick": FEW}
    departures: ClassVar[tuple[Departure, ...]] = (
        TEACHER_REFERENCES,
        Departure(
            what="gamma is 1, not 2",
            why="few suspects of a target that hardly overfits dominate any record twice",
            sets={"gamma": 1.0},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"tune": "mode=offline", "a": "mode=offline tune=false"}

    mode: Literal["offline", "online"] = "offline"
    """Whether p(x) is made of models that were not trained on x, or of all models."""
    gamma: float = 2.0
    """Threshold on ratio_x / ratio_z."""
    tune: bool = True
    """Choose a with the references, offline (step 5); needs 4 or more of them."""
    a: float = 0.3
    """How p(x) is made of pbar(x), offline and without `tune`; 0.3 is the paper's for CIFAR-10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "gamma")
        between(self, 0, 1, "a")
        if self.tune and self.mode == "offline" and self.references < 4:
            raise ValueError(f"references is {self.references}; expected 4 or more to tune a, or tune=false")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run: no population."""
        return None if aux > 0 else "0 labelled images that are no one's training records; RMIA compares with them"

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """The share of population records that each suspect dominates, float64 in [0, 1]."""
        references, members = self.reference_models(knowledge, ctx)
        others = without_suspects(knowledge)
        with ctx.track("RMIA: asking the models", 1 + len(references)) as advance:
            px, pz = self._probabilities(target, knowledge, others, advance)
            answers = [self._probabilities(one, knowledge, others, advance) for one in references]
        known_x, known_z = (torch.stack(part) for part in zip(*answers, strict=True))
        if self.mode == "online":
            return MembershipResult(dominated(px / known_x.mean(0), pz / known_z.mean(0), self.gamma))
        a = tuned(known_x, known_z, members, self.gamma) if self.tune else self.a
        outside = split_by_membership(known_x, members)[1]
        return MembershipResult(offline(px, outside, pz, known_z, a, self.gamma))

    def _probabilities(
        self, model: Target, knowledge: AttackerKnowledge, others: tuple[Tensor, Tensor], advance: Advance
    ) -> tuple[Tensor, Tensor]:
        """True-class probabilities of the suspects and of the population."""
        suspects = true_class_probability(query_probabilities(model, knowledge.images, self.batch), knowledge.labels)
        population = true_class_probability(query_probabilities(model, others[0], self.batch), others[1])
        advance(1)
        return suspects, population


def without_suspects(knowledge: AttackerKnowledge) -> tuple[Tensor, Tensor]:
    """The population without images that a suspect equals pixel by pixel.

    Raises:
        RunFailed: none is left.
    """
    images, labels = knowledge.population
    suspects = {image.numpy().tobytes() for image in knowledge.images.cpu()}
    new = [image.numpy().tobytes() not in suspects for image in images.cpu()]
    if not any(new):
        raise RunFailed(f"all {len(images)} population images are suspects; RMIA needs others")
    kept = torch.tensor(new, device=images.device)
    return images[kept], labels[kept]


def offline(px: Tensor, outside: Tensor, pz: Tensor, known_z: Tensor, a: float, gamma: float) -> Tensor:
    """(n,) scores of steps 1 to 4, offline.

    Args:
        px: (n,) and pz: (m,) under the target.
        outside: (k, n) under the references that were not trained on the suspect.
        known_z: (references, m).
    """
    return dominated(px / marginal(outside.mean(0), a), pz / marginal(known_z.mean(0), a), gamma)


def marginal(pbar: Tensor, a: float) -> Tensor:
    """p = ((1 + a) pbar + 1 - a) / 2, the mean over IN and OUT models told from OUT alone."""
    return ((1 + a) * pbar + 1 - a) / 2


def dominated(ratio_x: Tensor, ratio_z: Tensor, gamma: float) -> Tensor:
    """(n,) share of the (m,) ratio_z with ratio_x >= gamma ratio_z."""
    below = torch.searchsorted((gamma * ratio_z).sort().values, ratio_x, right=True)
    return below.double() / len(ratio_z)


def tuned(known_x: Tensor, known_z: Tensor, members: Tensor, gamma: float) -> float:
    """The a with which the references best tell each other's training records.

    Args:
        known_x: (references, n). known_z: (references, m). members: (references, n) bool.
    """
    count = len(members)
    areas = torch.zeros(len(GRID), dtype=torch.float64, device=known_x.device)
    suspects = torch.arange(members.shape[1], device=members.device)
    for i in range(count):
        free = ~members
        free[i] = False
        order = free.long().argsort(stable=True, dim=0, descending=True)[: count // 2 - 1]
        outside, rest = known_x[order, suspects], [j for j in range(count) if j != i]
        for place, a in enumerate(GRID):
            scores = offline(known_x[i], outside, known_z[i], known_z[rest], a, gamma)
            areas[place] += area(scores, members[i])
    return GRID[int(areas.argmax())]


def area(scores: Tensor, members: Tensor) -> Tensor:
    """Share of pairs of a member and another in which the member scores more; equal scores count half."""
    inside, outside = scores[members], scores[~members].sort().values
    less = torch.searchsorted(outside, inside, right=False)
    most = torch.searchsorted(outside, inside, right=True)
    return (less + most).double().mean() / (2 * len(outside))
