"""The check of suspects before a membership attack: sets that differ, halves of one set, and rows that are void."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import toy_job

from bench.metrics.membership import MembershipPower
from bench.pipeline import run
from bench.pipeline.challenge import Challenge, make_challenge
from bench.pipeline.model_free_baseline import compare_suspects, is_separable, void_reason, with_baseline
from bench.testing import toy_private

WORKS = MembershipPower(True, "The attack works.")


def challenge(count: int, seed: int = 0) -> Challenge:
    """Suspects of one source: the members are a random half."""
    images, labels = toy_private(seed, count)
    members = torch.rand(count, generator=torch.Generator().manual_seed(seed)).argsort() < count // 2
    return Challenge(images, labels, members, (images[:0], labels[:0]), (images[:0], labels[:0]))


def shifted(found: Challenge, deviations: float) -> Challenge:
    """The same suspects, with all members brighter by a share of the pixels' deviation."""
    images = found.images.float()
    images[found.members] += deviations * float(images.std())
    return replace(found, images=images.round().clamp(0, 255).to(torch.uint8))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_halves_of_one_source_are_accepted(seed: int) -> None:
    baseline = compare_suspects(challenge(600, seed))
    assert not is_separable(baseline) and with_baseline(WORKS, baseline) == WORKS


def test_shift_of_a_tenth_of_a_deviation_is_found() -> None:
    """Card B8."""
    baseline = compare_suspects(shifted(challenge(1000), 0.1))
    assert is_separable(baseline) and baseline.low > 0.5
    power = with_baseline(WORKS, baseline)
    assert not power.passed and f"{baseline.auc:.3f}" in power.reason and baseline.clues[0] in power.reason


def test_members_of_other_classes_are_found() -> None:
    found = challenge(400)
    members = found.labels < 2
    assert is_separable(compare_suspects(replace(found, members=members)))


def test_check_takes_less_than_five_seconds() -> None:
    found, start = challenge(4000), time.process_time()
    compare_suspects(found)
    assert time.process_time() - start < 5


def test_row_of_separable_suspects_is_void(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = toy_job(toy, attack="loss-threshold", out=toy / "void")
    honest = make_challenge(given.material)
    monkeypatch.setattr("bench.pipeline.membership.make_challenge", lambda _: shifted(honest, 0.5))
    record = run.run(given, 0).record
    assert record.status == "inconclusive" and record.reason == void_reason(compare_suspects(shifted(honest, 0.5)))
    assert 0.5 < record.metrics["blind_auc.lo"] < record.metrics["blind_auc"] <= 1  # type: ignore[operator]
