"""What neighbouring runs find of a faulty method of votes, responses or annotation: the second check, after its game.

Ensembles and teachers are tables: of two ensembles one teacher differs, in every answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from dp_accounting import dp_event
from neighbours import held, records, two_runs, violations, with_another_label, without
from torch import Tensor

from baselines.dp_teacher import DpTeacher
from bench.api import Release, Teacher
from bench.distillation.distinguishing_games import TableNetwork
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.witness import Diverged, Trace
from bench.testing import CLASSES, weights
from methods.dpdfd.working import WorkingDpdfd
from methods.dpsd.working import WorkingDpsd
from methods.fed_dpsd.working import WorkingFedDpsd

ROWS = {"pate-gan", "g-pate", "datalens"}
RESPONSES = {"rr", "rr-debiased", "lp-2st", "alibi", "cluster-rr"}
ROOM = 1 + 1e-6


def found_by_neighbours(name: str, method: Any, budget: Budget) -> str | None:
    """How runs on neighbouring data find that a method is faulty; None where they do not."""
    try:
        found = _check(name, method)(name, method, budget)
    except Diverged as error:
        return f"runs diverge: {error}"
    except AssertionError as error:  # the ledger has uses of a kind of noise that nothing entered
        return f"uses differ: {error}"
    except (BenchError, RuntimeError, ValueError) as error:  # a check of the method's own refuses to run
        return f"refused: {type(error).__name__}"
    return "; ".join(found) or None


def _check(name: str, method: Any) -> Callable[[str, Any, Budget], list[str]]:
    if hasattr(method, "pretrain_steps"):  # of DP-DFD as printed the generator learns from the teacher, unprotected
        return lambda *_: []
    if name in RESPONSES:
        return labels_replaced
    if name in ROWS:
        return records_left_out
    return answers_replaced


def records_left_out(name: str, method: Any, budget: Budget) -> list[str]:
    trace, first, second = two_runs(method, budget, held(records()), held(without(records())), absent=True)
    return violations(trace, first.ledger, rows=True) + _students(first, second)


def labels_replaced(name: str, method: Any, budget: Budget) -> list[str]:
    """A record's label is replaced. No label is answered twice, nor by a response of more epsilon than is written."""
    private = records()
    trace, first, second = two_runs(method, budget, held(private), held(with_another_label(private)), absent=False)
    found = _students(first, second) + _responses(trace, first.ledger, Unit.LABEL)
    answers = sum(len(step.input) for step in trace.steps if step.kind == "response")
    if answers > len(private[1]):
        found.append(f"{answers} answers to {len(private[1])} labels")
    moved = sum(step.difference or 0 for step in trace.steps if step.kind == "response")
    if moved > 1:
        found.append(f"one label is answered {moved:g} times")
    entries = {type(entry.event): entry for entry in first.ledger.entries(Unit.LABEL)}
    for step in trace.steps:
        if step.kind == "response":
            continue
        event = dp_event.LaplaceDpEvent if step.kind == "laplace" else dp_event.GaussianDpEvent
        entry = entries[event]
        # Each of the two coordinates of a one-hot vector, or of two counts, is an entry's Laplace mechanism
        reach = entry.count / entry.event.noise_multiplier
        if (step.difference or 0) > reach * ROOM:
            found.append(f"{step.kind}: moved by {step.difference:.4g}, the ledger has {reach:.4g}")
    return found


def answers_replaced(name: str, method: Any, budget: Budget) -> list[str]:
    """A teacher answers otherwise: the only one, or one of many."""
    many = "teacher_ensemble" in method.needs
    trace, first, second = two_runs(method, budget, _behind(method, 0), _behind(method, 1), absent=False)
    protected = Ledger()
    for entry in first.ledger.entries(Unit.EXAMPLE):
        if not isinstance(entry.event, dp_event.NonPrivateDpEvent):
            protected.spend(entry.event, count=entry.count, why=entry.why)
    by_rows = many or _per_row(method)
    return (
        violations(trace, protected, rows=by_rows)
        + _responses(trace, protected, Unit.EXAMPLE)
        + _students(first, second)
    )


def _per_row(method: Any) -> bool:
    """Whether the ledger of a single teacher has an entry for each row, not for each batch of them."""
    is_per_row = isinstance(method, WorkingDpsd | WorkingFedDpsd | WorkingDpdfd | DpTeacher)
    return is_per_row and getattr(method, "shared", 1) == 1


def _behind(method: Any, world: int) -> Teacher:
    """A teacher with one response, or with an ensemble whose first member has another response in the other world."""
    if "teacher_ensemble" not in method.needs:
        return replace(held(records()), model=_sure(world).eval().requires_grad_(False))
    count = max(method.shards("shard-cnn", "toy").count, 2)
    # Of two or three teachers the arg-max changes, and the largest count
    members = [_sure(1 if world else 2), *(_sure(0 if j % 2 else 2) for j in range(count - 1))]
    return held(records(), Ensemble(members, CLASSES).eval().requires_grad_(False))  # type: ignore[arg-type]


def _sure(chosen: int) -> TableNetwork:
    """Sure of one class for every image; less so of the next one."""
    logits = torch.full((CLASSES,), -4.0)
    logits[chosen], logits[(chosen + 2) % CLASSES] = 8.0, 4.0
    return TableNetwork(logits.expand(256, -1))


def _responses(trace: Trace, ledger: Ledger, unit: Unit) -> list[str]:
    """Responses of more epsilon than the ledger has: p = k / (e^epsilon + k - 1) there."""
    given = [step.scale for step in trace.steps if step.kind == "response"]
    events = [each.event for each in ledger.entries(unit)] if given else []
    written = [
        math.log1p(event.num_buckets * (1 - event.noise_parameter) / event.noise_parameter)
        for event in events
        if isinstance(event, dp_event.RandomizedResponseDpEvent)
    ]
    if not given or max(given) <= max(written, default=0.0) * ROOM:
        return []
    return [f"response of epsilon {max(given):.4g}, the ledger has {max(written, default=0.0):.4g}"]


def _students(first: Release, second: Release) -> list[str]:
    pairs: list[tuple[Tensor, Tensor]] = list(zip(weights(first.student), weights(second.student), strict=True))
    return [] if all(torch.equal(a, b) for a, b in pairs) else ["the students differ"]
