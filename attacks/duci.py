"""DUCI: estimate the share of a data set that the target was trained on, from unbiased membership predictions.

Tong, Zarifzadeh, Kong, Shokri, "How much of my dataset did you use? Quantitative Data Usage Inference in Machine
Learning", ICLR 2025. X = {x_1, ..., x_n} the suspects, m_i the prediction of a membership attack for x_i.

1. Train reference models; each suspect is a training record of half of them.
2. Score the suspects on every reference model by a membership attack that uses the other reference models. Choose the
   threshold with the largest TPR - FPR on these scores.
3. Score the suspects on the target; m_i = 1 if the score of x_i is at or above the threshold.
4. p_hat = 1/n sum_i (m_i - FPR) / (TPR - FPR).

The record of a run has p_hat as `used_share` with an interval of 1.96 standard errors, and the two rates as
`used_share_tpr` and `used_share_fpr`. Below a gain of 0.05 over guessing, p_hat is missing: not estimable. The squared
standard error is the sum of that over records, m (1 - m) / n / (TPR - FPR)^2 with m the mean of m_i, and of the mean
squared error of p_hat on the reference models, whose shares are known. The rates hold for networks of the references'
kind with as many training records, so not for the random network. The suspects of a run are half members: p = 0.5 for
the student and the undefended teacher.

Differs from the paper:
- The attack of step 2 is RMIA's likelihood ratio, offline with a fixed constant a. Each score uses equally many
  reference models that were not trained on the suspect, also on the target. With all of them, members would have one
  more than the others, and the rates would not be those on the target.
- The authors' code compares with >= when it chooses the threshold, and with > when it predicts; here both are >=.
- Fewer than 4 reference models are refused. The authors' code lets a single one judge itself.
- The scores of suspects are the likelihood ratios themselves; p_hat is a second result.
- Reference models of kind "teacher" are trained without the defence. For a student p_hat is then biased: the rates are
  those on teachers.
"""

from __future__ import annotations

import math
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
    true_class_probability,
)
from bench.membership.likelihood_ratios import rmia_log_ratio
from bench.membership.usage import LEAST_GAIN, NORMAL_95, Rule, best_rule, error_between_networks, estimate_share
from bench.validate import between


@dataclass(frozen=True)
class Duci(ReferenceAttack):
    """Data usage cardinality inference (DUCI): how much of a set of records was used for training."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Tong et al., ICLR 2025"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": FEW, "quick": FEW}
    departures: ClassVar[tuple[Departure, ...]] = (TEACHER_REFERENCES,)

    a: float = 0.3
    """RMIA's constant a, from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        between(self, 0, 1, "a")
        if self.references < 4:
            raise ValueError(f"references is {self.references}; expected 4 or more, as none may judge itself")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return None: the attack needs only suspects and reference models."""
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 to 4; return the likelihood ratios, and the estimated share of members as a fact."""
        references, members = self.reference_models(knowledge, ctx)
        with ctx.track("DUCI: querying the models", 1 + len(references)) as advance:
            own = self._probability(target, knowledge, advance)
            known = torch.stack([self._probability(one, knowledge, advance) for one in references])
        on_references = self._scores_of_references(known, members)
        rule = best_rule(on_references, members)
        scores = self._scores(own, known, ~members)
        between = error_between_networks(on_references, members, rule) if rule.gain > 0 else 0.0
        return MembershipResult(scores, *used_share_facts(scores, rule, between))

    def _probability(self, model: Target, knowledge: AttackerKnowledge, advance: Advance) -> Tensor:
        """Return the (n,) true-class probabilities of the suspects."""
        probabilities = query_probabilities(model, knowledge.images, self.batch)
        advance(1)
        return true_class_probability(probabilities, knowledge.labels)

    def _scores(self, px: Tensor, known: Tensor, is_free: Tensor) -> Tensor:
        """Return (n,) scores of the suspects on one model.

        Args:
            px: (n,) probabilities under the model.
            known: (references, n) probabilities.
            is_free: (references, n) bool, references that may be used: not trained on the suspect, not the model
                itself. The first references / 2 - 1 of them are used.
        """
        count = len(known) // 2 - 1
        rows = is_free.long().argsort(stable=True, dim=0, descending=True)[:count]
        return rmia_log_ratio(px, known.gather(0, rows), self.a)

    def _scores_of_references(self, known: Tensor, members: Tensor) -> Tensor:
        """Return the (references, n) scores of step 2, each reference as the target of the others."""
        scored = []
        for i in range(len(known)):
            is_free = ~members
            is_free[i] = False
            scored.append(self._scores(known[i], known, is_free))
        return torch.stack(scored)


def used_share_facts(scores: Tensor, rule: Rule, between: float) -> tuple[dict[str, float], dict[str, str]]:
    """Return the facts of a `MembershipResult`: p_hat with its interval and both rates; and the reasons for missing.

    Args:
        between: standard error of p_hat between networks.
    """
    facts = {"used_share_tpr": rule.tpr, "used_share_fpr": rule.fpr}
    share = estimate_share(scores, rule)
    if share is None:
        reason = (
            f"not estimable: TPR - FPR is {rule.gain:.3f} on the reference models, at least {LEAST_GAIN} is needed; "
            "use more references, or a target that overfits more"
        )
        return facts, dict.fromkeys(("used_share", "used_share.lo", "used_share.hi"), reason)
    reach = NORMAL_95 * math.hypot(share.error, between)
    bounds = {"used_share.lo": share.value - reach, "used_share.hi": share.value + reach}
    return facts | {"used_share": share.value} | bounds, {}
