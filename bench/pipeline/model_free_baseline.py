"""The check of suspects before a membership attack: a classifier without any model must not recognise the members.

Das, Zhang, Tramer, "Blind Baselines Beat Membership Inference Attacks for Foundation Models", 2024 (arXiv 2406.16201).
If members and other suspects differ by themselves, the success of an attack says nothing about the network, and the
row is void. The classifiers see facts about the images (`bench.membership.image_facts`) and their classes. The order of
suspects is random and is not used.
"""

from __future__ import annotations

from bench.core.verdict import GUESSING, Success, exceeds
from bench.membership.blind import BlindBaseline, Facts, compare
from bench.membership.image_facts import image_facts
from bench.metrics.membership import MembershipPower
from bench.pipeline.challenge import SEED, Challenge
from bench.pipeline.trained import Metrics
from bench.progress import notify
from bench.validate import present


def compare_suspects(challenge: Challenge) -> BlindBaseline:
    """Test whether members and other suspects can be separated without a model; report it if they can."""
    found, members, labels = image_facts(challenge.images, SEED), challenge.members.numpy(), challenge.labels.numpy()
    inside, outside = (Facts(found.names, found.values[side], labels[side]) for side in (members, ~members))
    baseline = present(compare(inside, outside, SEED), "fact about the suspects that is not constant")
    if is_separable(baseline):
        notify(f"warning: {void_reason(baseline)}")
    return baseline


def is_separable(baseline: BlindBaseline) -> bool:
    """Return whether the interval of the baseline's AUC is above 0.5."""
    return bool(exceeds(Success(baseline.low, baseline.high), GUESSING))


def void_reason(baseline: BlindBaseline) -> str:
    """Return the sentence that says why a membership attack on these suspects is void."""
    return (
        f"Void: without any model, a classifier separates members from other suspects with AUC {baseline.auc:.3f} "
        f"[{baseline.low:.3f}, {baseline.high:.3f}], mostly by {', '.join(baseline.clues)}. Members and test records "
        "must have one source: use another --dataset, or divide your own records at random."
    )


def baseline_metrics(baseline: BlindBaseline) -> Metrics:
    """Return the baseline's AUC with its interval."""
    return {"blind_auc": baseline.auc, "blind_auc.lo": baseline.low, "blind_auc.hi": baseline.high}


def with_baseline(power: MembershipPower, baseline: BlindBaseline) -> MembershipPower:
    """Return the power of an attack: none if the suspects can be separated without a model."""
    return MembershipPower(False, void_reason(baseline)) if is_separable(baseline) else power
