"""Checks that look for the faults of mutants_training.py; `benchmarks/mutants.py` makes the table."""

from __future__ import annotations

from typing import Any

import torch
from mutants_training import ONE, TRAINING
from mutation import found_by_game
from neighbours import OWN, held, method, records, two_runs, violations, with_another, with_another_label, without
from torch import nn

from bench.config import Variant
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.witness import Diverged, Trace
from bench.testing import CLASSES, weights

MUTANTS = TRAINING
Settings = tuple[str, dict[str, Any], Variant | None]
"""A plug-in, its options, its variant."""
CORRECT: list[Settings] = [
    *((mutant.plug_in, mutant.options, mutant.variant)
      for mutant in {f"{each.plug_in} {each.options}": each for each in MUTANTS}.values()),
    ("ts-adp", ONE, None),
    ("zcdp", {**ONE, "schedule": "constant"}, None),
    ("dp-teacher", {**ONE, "conversion": "none"}, None),
    ("dp-teacher", {"teacher": "private-features", "conversion": "transcribe", "moments_share": 0.3}, None),
]  # fmt: skip
"""Each plug-in with its options in the tables, without a fault, and those that share all their steps with others."""
LEFT_OUT = {"dp-merf", "dp-ntk", "dp-kernel", "sim-pe", "gs-wgan"}
"""Plug-ins that do not sample: a record is left out of everything."""


def plays_of(settings: Settings) -> int:
    """How often the game is played."""
    return int(method(*settings).game(_budget(settings), "toy", CLASSES).plays)


def by_game(settings: Settings, seed: int = 0) -> str | None:
    """Return the fault that the game finds; None if it finds none."""
    return found_by_game(method(*settings), _budget(settings), "toy", CLASSES, seed)


def by_neighbours(settings: Settings) -> str | None:
    """What neighbouring runs find; None where they find nothing."""
    plug_in, options, variant = settings
    sizes = {"critics": 4, "steps": 12} if plug_in == "gs-wgan" else {}
    made = method(plug_in, {**options, **sizes}, variant)
    absent = plug_in in LEFT_OUT
    another = without if absent else with_another_label if plug_in == "label-protocol" else with_another
    try:
        pair = held(records()), held(another(records()))
        trace, first, second = two_runs(made, _budget(settings), *pair, absent)
        if any(step.scale == 0 for step in trace.steps):
            return "a release without noise"
        if plug_in == "dp-blsgd":
            found = _searches(trace, first.solved["search_epsilon"])
            trace.steps = [step for step in trace.steps if step.kind == "gaussian"]
            gradients = first.ledger.entries(Unit.EXAMPLE)[0]
            protected = Ledger()
            protected.spend(gradients.event, count=gradients.count)
            found += violations(trace, protected, twice=True)
        else:
            unit = Unit.LABEL if plug_in == "label-protocol" else Unit.EXAMPLE
            found = violations(trace, first.ledger, unit, twice=not absent and unit is Unit.EXAMPLE)
    except Diverged as error:
        return f"diverged: {error}"
    except (BenchError, RuntimeError) as error:
        return f"refused: {type(error).__name__}"
    return found[0] if found else None if _same(first.student, second.student) else "students that differ"


def _searches(trace: Trace, epsilon: float) -> list[str]:
    """Decreases that moved by more than eps_s / 4 of their noise, as the sparse vector technique has it."""
    moved = [step.difference or 0.0 for step in trace.protected() if step.kind == "laplace"]
    return [f"a decrease moved by {max(moved):.3g} of its noise"] * (max(moved, default=0.0) > epsilon / 4 * (1 + 1e-6))


def _same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def _budget(settings: Settings) -> Budget:
    return Budget(4.0, unit=Unit.LABEL) if settings[0] == "label-protocol" else OWN
