"""The stage of a run in which a membership attack is played: on the student, the teacher and a random net."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from bench.metrics.membership import Membership, epsilon_lower, membership, membership_power
from bench.nets import Classifier
from bench.pipeline import membership_challenge, plots, steps
from bench.pipeline.attack_targets import NAMES, PREFIXES, Artists, aims
from bench.pipeline.job import Job
from bench.storage.records import Record, RunSpec


def play(
    job: Job, spec: RunSpec, record: Record, student: Classifier, teacher: Classifier, seconds: dict[str, float]
) -> Artists:
    """Fill the record's metrics and its power gate; returns the picture to draw."""
    aim, m = spec.attack, job.material
    assert aim is not None and job.attack is not None
    reason = job.attack.applicable(m.data.shape, m.data.classes, len(m.aux) // 2)
    if m.aux_labels is None:
        reason = membership_challenge.UNLABELLED
    if reason is not None:
        record.status, record.reason = "skipped", f"{aim.attack} does not apply: {reason}"
        return {}
    asked = membership_challenge.assemble(m)
    held = membership_challenge.holdings(job, spec.release, asked)
    scores: dict[str, Tensor] = {}
    found: dict[str, Membership] = {}
    for name, (aimed, network) in aims(job, spec, student, teacher).items():
        of: membership_challenge.Kind = "student" if name == "student" else "teacher"
        evidence = membership_challenge.evidence(job, spec.release, asked, of, seconds)
        step, scores[name] = steps.infer(
            job.store, replace(aimed, aux=held), job.attack, network, evidence, m, job.context
        )
        seconds[f"attack_{name}"] = step.seconds
        found[name] = membership(scores[name], asked.members)
        _fill(record, PREFIXES[name], found[name], scores[name], asked.members)
        if name == "student":
            record.metrics["queries"] = step.json("result.json")["queries"]
    gate = membership_power(found["teacher"], found["random"])
    if not gate.passed:
        record.status, record.reason = "inconclusive", gate.reason
    title = f"{aim.attack} against {spec.release.method} on {m.data.name}: who was in the private data"
    lines = {NAMES[name]: (scores[name], asked.members) for name in scores}
    return {"roc": ("roc.png", partial(plots.roc, title=title, lines=lines))}


def _fill(record: Record, prefix: str, found: Membership, scores: Tensor, members: Tensor) -> None:
    """The numbers of one target, shares with their 95 % intervals; the last is an indication, no proof."""
    one, tenth, balanced = found.at_1_percent, found.at_01_percent, found.balanced
    shares = {
        "auc": (found.auc, found.auc_low, found.auc_high),
        "tpr_at_1pct": (one.tpr, one.low, one.high),
        "tpr_at_01pct": (tenth.tpr, tenth.low, tenth.high),
        "balanced_accuracy": (balanced.accuracy, balanced.low, balanced.high),
    }
    for name, (value, low, high) in shares.items():
        record.metrics |= {f"{prefix}{name}": value, f"{prefix}{name}.lo": low, f"{prefix}{name}.hi": high}
    delta = record.privacy["accounted"]["delta"]
    record.metrics[f"{prefix}membership_epsilon_lower"] = epsilon_lower(scores, members, delta)
    if not tenth.resolved:
        few = (
            f"{found.non_members} non-members are too few for 0.1 %: the rate is at a measured false positive rate of 0"
        )
        record.missing[f"{prefix}tpr_at_01pct"] = few
