"""RMIA: score a suspect by its likelihood ratio, relative to the ratios of population records.

Zarifzadeh, Liu, Shokri, "Low-Cost High-Power Membership Inference Attacks", ICML 2024 (arXiv 2312.03262), Algorithm 1.
p(x | theta) is the true class's probability under the target, p_j(x) under reference model j, z a population record.

1. Offline, over the models that were not trained on x: pbar(x) = mean_j p_j(x), p(x) = ((1 + a) pbar(x) + 1 - a) / 2.
   Online, over all models: p(x) = mean_j p_j(x).
2. The same for population records z, on which no model was trained.
3. ratio_x = p(x | theta) / p(x), ratio_z = p(z | theta) / p(z).
4. Score = share of z with ratio_x / ratio_z >= gamma.
5. a is chosen beforehand, with a reference model in the role of the target.

Differs from the paper:
- `tune` uses every reference once as the target and the others as its references, of which each suspect uses equally
  many that were not trained on it. It selects the a of 0, 0.1, ..., 1 with the largest mean area under the curve (the
  smallest of equals). The authors' tool tries one paired model, and compares its suspects with the target's own
  responses on z.
- a = 0 means 0. The authors' tool then falls back to 0.3 in its proxy for a single reference; here no proxy is needed,
  because half of the models were not trained on a given suspect.
- `score=ratio` (variant `working`) ranks by ratio_x. For one target the share of step 4 is a non-decreasing function of
  ratio_x, the same for all suspects, so that gamma and the population only create ties: they choose the threshold, and
  the evaluation tries every threshold.
- p(z) is the mean of all references. The authors' tool uses the larger half of each z's probabilities.
- Population records that equal a suspect pixel by pixel are omitted, because they may be members.
- The authors' tool counts strictly larger ratios.
- Softmax probabilities only. The paper's Taylor softmax needs logits, which the released model does not return.
- One query per record; the paper also has a vote of 18 augmented queries.
- Reference models of kind "teacher" are trained without the defence: an attack on a student then relies on transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

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
from bench.membership.likelihood_ratios import marginal
from bench.validate import between, positive

GRID = [step / 10 for step in range(11)]
"""Values of a that `tune` tries."""


@dataclass(frozen=True)
class Rmia(ReferenceAttack):
    """Robust membership inference attack (RMIA); the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Zarifzadeh et al., ICML 2024, arXiv 2312.03262, Algorithm 1"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": FEW, "quick": FEW}
    departures: ClassVar[tuple[Departure, ...]] = (
        TEACHER_REFERENCES,
        Departure(
            what="suspects are ranked by their likelihood ratio, not by the share of population records below it",
            why="for one target the share is a function of the ratio, with ties between suspects",
            sets={"score": "ratio"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {
        "gamma": "score=share",
        "tune": "mode=offline",
        "a": "mode=offline tune=false",
    }

    mode: Literal["offline", "online"] = "offline"
    """Reference models of a record: those that were not trained on it (offline), or all (online)."""
    score: Literal["share", "ratio"] = "share"
    """Score: share of population records with a smaller ratio (the paper), or the logarithm of the ratio itself."""
    gamma: float = 2.0
    """Threshold on the likelihood ratio of a suspect over that of a population record."""
    tune: bool = True
    """Offline: choose the constant a with the reference models (step 5); needs 4 or more."""
    a: float = 0.3
    """Offline without `tune`: the constant a of step 1, from 0 to 1; 0.3 is the paper's for CIFAR-10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "gamma")
        between(self, 0, 1, "a")
        if self.tune and self.mode == "offline" and self.references < 4:
            raise ValueError(f"references is {self.references}; expected 4 or more to tune a, or tune=false")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: no population records for the share."""
        return (
            None
            if aux > 0 or self.score == "ratio"
            else "0 labelled auxiliary images; expected at least 1 population record"
        )

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Return a float64 score per suspect: the share in [0, 1] of population records below it, or log ratio_x."""
        references, members = self.reference_models(knowledge, ctx)
        others = without_suspects(knowledge) if self.score == "share" else None
        with ctx.track("RMIA: querying the models", 1 + len(references)) as advance:
            px, pz = self._probabilities(target, knowledge, others, advance)
            probabilities = [self._probabilities(one, knowledge, others, advance) for one in references]
        known_x, known_z = (torch.stack(part) for part in zip(*probabilities, strict=True))
        if self.mode == "online":
            return MembershipResult(self._score(px / known_x.mean(0), pz / known_z.mean(0)))
        a = self._tuned(known_x, known_z, members) if self.tune else self.a
        return MembershipResult(self._offline(px, split_by_membership(known_x, members)[1], pz, known_z, a))

    def _score(self, ratio_x: Tensor, ratio_z: Tensor) -> Tensor:
        """Return the scores of step 4, (n,), from the (n,) and (m,) ratios of step 3."""
        return dominated(ratio_x, ratio_z, self.gamma) if self.score == "share" else ratio_x.log()

    def _offline(self, px: Tensor, outside: Tensor, pz: Tensor, known_z: Tensor, a: float) -> Tensor:
        """Return the offline scores of steps 1 to 4, (n,).

        Args:
            px: (n,) and pz: (m,) under the target.
            outside: (k, n) under the references that were not trained on the suspect.
            known_z: (references, m).
        """
        return self._score(px / marginal(outside.mean(0), a), pz / marginal(known_z.mean(0), a))

    def _tuned(self, known_x: Tensor, known_z: Tensor, members: Tensor) -> float:
        """Return the a with which the references best recognise each other's training records (step 5).

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
                scores = self._offline(known_x[i], outside, known_z[i], known_z[rest], a)
                areas[place] += area(scores, members[i])
        return GRID[int(areas.argmax())]

    def _probabilities(
        self, model: Target, knowledge: AttackerKnowledge, others: tuple[Tensor, Tensor] | None, advance: Advance
    ) -> tuple[Tensor, Tensor]:
        """Return the true-class probabilities of the suspects and of the population; of no population, (0,)."""
        suspects = true_class_probability(query_probabilities(model, knowledge.images, self.batch), knowledge.labels)
        population = suspects[:0]
        if others is not None:
            population = true_class_probability(query_probabilities(model, others[0], self.batch), others[1])
        advance(1)
        return suspects, population


def without_suspects(knowledge: AttackerKnowledge) -> tuple[Tensor, Tensor]:
    """Return the population without images that equal a suspect pixel by pixel.

    Raises:
        RunFailed: no record remains.
    """
    images, labels = knowledge.population
    suspects = {image.numpy().tobytes() for image in knowledge.images.cpu()}
    new = [image.numpy().tobytes() not in suspects for image in images.cpu()]
    if not any(new):
        raise RunFailed(f"all {len(images)} population images are suspects; expected at least one other")
    kept = torch.tensor(new, device=images.device)
    return images[kept], labels[kept]


def dominated(ratio_x: Tensor, ratio_z: Tensor, gamma: float) -> Tensor:
    """Return for each ratio_x the share of the (m,) ratio_z with ratio_x >= gamma ratio_z, (n,)."""
    below = torch.searchsorted((gamma * ratio_z).sort().values, ratio_x, right=True)
    return below.double() / len(ratio_z)


def area(scores: Tensor, members: Tensor) -> Tensor:
    """Return the area under the ROC curve: share of pairs in which the member scores higher; ties count half."""
    inside, outside = scores[members], scores[~members].sort().values
    less = torch.searchsorted(outside, inside, right=False)
    most = torch.searchsorted(outside, inside, right=True)
    return (less + most).double().mean() / (2 * len(outside))
