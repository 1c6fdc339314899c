"""BASE: compare the loss of a suspect with the average likelihood of the suspect under reference models.

Lassila, Östman, Ngo, Graell i Amat, "Practical Bayes-Optimal Membership Inference Attacks", NeurIPS 2025 (arXiv
2505.24089). f the target, f_1, ..., f_K reference models, (x, y) a suspect with its true class, p_T the probability of
class y with softmax temperature T.

1. Train K reference models; each suspect is a training record of half of them.
2. Query the target and the references, and compute log p_T(x; f) and log p_T(x; f_k).
3. The Bayes-optimal rule compares the loss of x with a threshold that depends on x: minus the logarithm of the average
   likelihood of x over models. Online, over all K models: tau(x) = log(1/K sum_k p_T(x; f_k)).
   Offline, over the models that were not trained on x only.
4. Score: log p_T(x; f) - tau(x) online, and log p_T(x; f) - w tau(x) offline. The weight w corrects for the missing
   models that were trained on x.

With T = 1, online, the score ranks suspects exactly as RMIA with score=ratio. With equal reference models it ranks them
by their loss. Unlike LiRA it estimates no variance, so that few reference models suffice.

Differs from the paper:
- T = 2 and w = 0.33 are the defaults of the authors' implementation.
- Temperature is applied to probabilities, since the target returns no logits: softmax(z / T) is proportional to
  softmax(z)^(1/T). Probabilities are at least the smallest normal float32.
- The attack of the paper on nodes of graphs (G-BASE) is omitted.
- Reference models of kind "teacher" are trained without the defence: an attack on a student then relies on transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, Advance, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Departure
from bench.membership.confidences import (
    FEW,
    TEACHER_REFERENCES,
    ReferenceAttack,
    query_probabilities,
    split_by_membership,
)
from bench.membership.likelihood_ratios import base_score, log_mean, tempered_log_probability
from bench.validate import between, positive


@dataclass(frozen=True)
class Base(ReferenceAttack):
    """Bayes-approximate membership inference (BASE); the defaults are those of the authors' implementation."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Lassila et al., NeurIPS 2025, arXiv 2505.24089"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": FEW, "quick": FEW}
    departures: ClassVar[tuple[Departure, ...]] = (TEACHER_REFERENCES,)
    only_with: ClassVar[dict[str, str]] = {"weight": "mode=offline"}

    mode: Literal["offline", "online"] = "offline"
    """Reference models of a record: those that were not trained on it (offline), or all (online)."""
    temperature: float = 2.0
    """T, the softmax temperature."""
    weight: float = 0.33
    """Offline: w, from 0 to 1, the weight of the references' log-likelihood."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "temperature")
        between(self, 0, 1, "weight")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return None: the attack needs only suspects and reference models."""
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 to 4; return a float64 score per suspect."""
        references, members = self.reference_models(knowledge, ctx)
        with ctx.track("BASE: querying the models", 1 + len(references)) as advance:
            own = self._log_probability(target, knowledge, advance)
            known = torch.stack([self._log_probability(one, knowledge, advance) for one in references])
        if self.mode == "online":
            return MembershipResult(own - log_mean(known))
        outside = split_by_membership(known, members)[1]
        return MembershipResult(base_score(own, outside, self.weight))

    def _log_probability(self, model: Target, knowledge: AttackerKnowledge, advance: Advance) -> Tensor:
        """Return the (n,) log p_T of the suspects under one model."""
        probabilities = query_probabilities(model, knowledge.images, self.batch)
        advance(1)
        return tempered_log_probability(probabilities, knowledge.labels, self.temperature)
