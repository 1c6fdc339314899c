"""A game plays the function that training calls: what hands private values to noise in both is the same code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from neighbours import OWN, held, method, records, teachers

from bench import registry
from bench.api import AuditableMethod
from bench.config import Variant
from bench.privacy import Unit
from bench.privacy.accountant import EmptyLedger, account
from bench.privacy.noise import Noise
from bench.testing import CLASSES, context

ROOT = Path(__file__).parents[2]
PRIMITIVES = (ROOT / "bench" / "privacy", ROOT / "bench" / "dp_training" / "clipping.py")
"""Functions that add noise to any input: their caller is the step of a method."""
PLUG_INS = [
    (name, variant) for name in registry.entries("method") for variant in (registry.variants("method", name) or (None,))
]

OPTIONS: dict[tuple[str, Variant | None], dict[str, Any]] = {("dp-dfd", "printed"): {"beta": 0}}
"""For the toy teacher, which has no BatchNorm."""


@contextmanager
def steps_seen(found: set[CodeType]) -> Iterator[None]:
    """Collect the function that called a noise mechanism, for every use of one."""
    original = Noise.entering

    def entering(self: Noise, kind: Any, values: Any, scale: float) -> Any:
        frame = sys._getframe(1)
        while frame is not None and any(Path(frame.f_code.co_filename).is_relative_to(path) for path in PRIMITIVES):
            frame = frame.f_back  # type: ignore[assignment]
        found.add(frame.f_code)
        return original(self, kind, values, scale)

    Noise.entering = entering  # type: ignore[method-assign]
    try:
        yield
    finally:
        Noise.entering = original  # type: ignore[method-assign]


def teacher_of(plugin: Any) -> Any:
    private = records()
    shards = plugin.shards("shard-cnn", "toy") if "teacher_ensemble" in plugin.needs else None
    return held(private, teachers(shards, private) if shards else None)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "variant"), PLUG_INS, ids=lambda each: str(each))
def test_game_plays_the_function_that_training_calls(name: str, variant: Variant | None) -> None:
    plugin = method(name, OPTIONS.get((name, variant), {}), variant)
    trained: set[CodeType] = set()
    torch.manual_seed(11)
    with steps_seen(trained):
        release = plugin.convert(teacher_of(plugin), "datalens", OWN, context())
    try:
        accounted = account(release.ledger, Unit(plugin.unit), OWN.delta)
    except EmptyLedger:
        accounted = account(release.ledger, Unit.EXAMPLE, OWN.delta)
    if not accounted.finite:
        pytest.skip(f"{name}: no finite epsilon is accounted")
    assert isinstance(plugin, AuditableMethod), "a finite epsilon is accounted: the method needs a game"
    played: set[CodeType] = set()
    with steps_seen(played):
        game = plugin.game(OWN, "digits", CLASSES)
        game.play(False, 4, torch.Generator().manual_seed(0))
        game.play(True, 4, torch.Generator().manual_seed(0))
    missing = {code.co_qualname for code in trained - played}
    assert trained & played, f"the game calls none of {missing}"
    assert not missing, f"training also gives private values to noise in {missing}, which no game plays"
