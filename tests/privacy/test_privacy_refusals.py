"""Settings that no draw can satisfy are refused before training, and a baseline uses separate draws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bench import registry
from bench.config import configure
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, recording_context, toy_private, toy_teacher

OF_LABELS = Budget(40.0, account="accounted", unit=Unit.LABEL)


def method(name: str, **options: object):
    return configure(registry.load("method", name), "smoke", {k: str(v) for k, v in options.items()}, "method")


@pytest.mark.parametrize(
    ("plugin", "budget"),
    [
        (method("rr"), OF_LABELS),
        (method("rr-debiased"), OF_LABELS),
        (method("lp-2st"), OF_LABELS),
        (method("dpsd", mode="label"), Budget(40.0)),
        (method("fed-dpsd", mode="label"), Budget(40.0)),
        (method("dp-dfd"), Budget(1e6)),
    ],
    ids=["rr", "rr-debiased", "lp-2st", "dpsd", "fed-dpsd", "dp-dfd"],
)
def test_check_refuses_a_response_that_never_flips(plugin, budget: Budget) -> None:
    """Printed were 40 and 999,985, and no label was ever flipped."""
    with pytest.raises(BenchError, match="epsilon") as caught:
        plugin.check(budget, "toy", CLASSES)
    assert "\n" not in str(caught.value)
    plugin.check(replace(budget, epsilon=10.0), "toy", CLASSES)
    plugin.check(replace(budget, epsilon=math.inf, solve="sigma"), "toy", CLASSES)


def test_dpsd_spends_a_huge_budget_on_drawable_responses() -> None:
    plan = method("dpsd", mode="label").parameters(Budget(1e7, account="accounted"), "toy", CLASSES)
    assert 22.1 < plan.answer_epsilon < 22.2


def test_check_accepts_laplace_noise_at_any_epsilon() -> None:
    method("alibi").check(OF_LABELS, "toy", CLASSES)


@pytest.mark.parametrize("clip", [0.0, 1e-22, 1e22])
def test_dp_sgd_refuses_extreme_clipping_norms(clip: float) -> None:
    """At 1e-22 the sum of float32's clipped rows had 16 times the norm."""
    with pytest.raises((ValueError, BenchError), match="clip"):
        method("dp-sgd", clip=clip)


def test_baseline_without_the_teacher_has_separate_draws() -> None:
    """Two releases with one draw of the noise would cancel it."""
    plugin, ctx = method("class-moments", teachers=3), recording_context()
    ensemble = Ensemble.build(["shard-cnn"], 3, SHAPE, CLASSES, range(3)).eval()
    teacher = replace(toy_teacher(), private=toy_private(), ensemble=ensemble)
    plugin.convert(teacher, "datalens", Budget(None, solve="none"), ctx)
    names = [name for _, name in ctx.streams]
    assert len(set(names)) == len(names) == 3 and "control" in names
