"""Faults that the bench once had, kept as regression tests: the result of neighbouring runs for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neighbours import (
    MISSING,
    OWN,
    N,
    differing,
    held,
    method,
    planted,
    records,
    teachers,
    two_runs,
    violations,
    watched,
    with_another,
    without,
)
from torch import Tensor, nn

from baselines.gs_wgan import gs_wgan
from baselines.p3gm import p3gm
from bench.api import Shards
from bench.distillation.class_moments import noisy_moments
from bench.dp_training import clipped_sums, dp_sgd
from bench.dp_training.augmentation import Augmentation
from bench.errors import BenchError
from bench.privacy import Budget, Unit, accountant
from bench.privacy.noise import Noise
from bench.privacy.witness import Diverged, Trace, Witness
from bench.teachers import ensemble as training


def replaced_record(name: str, **options: Any) -> list[str]:
    pair = held(records()), held(with_another(records()))
    trace, first, _ = two_runs(method(name, options), OWN, *pair, absent=False)
    return violations(trace, first.ledger, twice=True)


@pytest.mark.thorough
@pytest.mark.parametrize("gradients", ["opacus", "func", "layers"])
def test_found_dropout_drawn_by_batch_position(gradients: str) -> None:
    options = {"batch": 40, "network": "student", "gradients": gradients}
    with planted(dp_sgd, "train_without_dropout", lambda model, *_: model.train()):
        with pytest.raises(BenchError):
            replaced_record("dp-sgd", **options)
        with planted(dp_sgd, "refuse_shared_rows", lambda *_: None):
            assert replaced_record("dp-sgd", **options)


@pytest.mark.thorough
def test_found_views_drawn_by_batch_position() -> None:
    original = clipped_sums.views

    def by_place(
        images: Tensor, count: int, chosen: Tensor, drawn: Tensor | None, augmentation: Augmentation
    ) -> Tensor:
        return original(images, count, torch.arange(len(chosen)), drawn, augmentation)

    with planted(clipped_sums, "views", by_place):
        assert replaced_record("dp-sgd", batch=40, views=2)


def test_found_codes_drawn_by_batch_position() -> None:
    correct = p3gm.PhasedVae.clipped_sum

    def redrawn(vae: Any, rows: Tensor, codes: Tensor, draws: Tensor, clip: float) -> dict[str, Tensor]:
        by_place = torch.randn(draws.shape, generator=torch.Generator().manual_seed(0))
        return correct(vae, rows, codes, by_place, clip)

    with planted(p3gm.PhasedVae, "clipped_sum", redrawn):
        assert replaced_record("p3gm", batch=30)


def test_found_moments_of_unnormalised_images() -> None:
    original = noisy_moments._sums

    def of_their_own_length(images: Tensor, labels: Tensor, classes: int, basis: Tensor, pooled: bool) -> Any:
        lengths = images.double().flatten(1).norm(dim=1) / 255
        first, second = original(images, labels, classes, basis, pooled)
        return first * lengths.mean(), second * lengths.square().mean()

    with planted(noisy_moments, "_sums", of_their_own_length):
        assert replaced_record("class-moments")


@pytest.mark.thorough
def test_found_critics_that_share_random_draws() -> None:
    shared = torch.Generator()

    class Sharing(gs_wgan.Critic):
        def __init__(self, by: Any, network: nn.Module, shard: Any, rng: torch.Generator) -> None:
            super().__init__(by, network, shard, shared)

    case = ("gs-wgan", {"critics": 4, "steps": 12, "batch": 64})
    trace = Trace(MISSING)
    with planted(gs_wgan, "Critic", Sharing):
        for pair in (records(), without(records())):
            torch.manual_seed(11)
            shared.manual_seed(1)

            release = method(*case).convert(held(pair), "datalens", OWN, watched(trace))
            trace.start_second_run()
    assert violations(trace, release.ledger)


@pytest.mark.thorough
def test_found_a_teacher_that_uses_anothers_record(monkeypatch) -> None:
    """Empty parts were given the next part's first record, which BatchNorm's buffers remembered."""
    original = training.MemberBatches.__call__

    def unmasked(batches: Any) -> tuple[Tensor, Tensor]:
        weight, batches.weight = batches.weight, torch.ones_like(batches.weight)
        x, y = original(batches)
        batches.weight = weight
        return x, y

    monkeypatch.setattr(training.MemberBatches, "__call__", unmasked)
    monkeypatch.setattr(nn.Module, "load_state_dict", lambda *_: None)
    few, shards = records(7), Shards(6, ("resnet10t",), steps=2, batch=4)
    assert differing(teachers(shards, few), teachers(shards, without(few, 0))) > 1


def test_found_steps_that_depend_on_a_record() -> None:
    trace = Trace(0)
    for pair in (records(5), without(records(5), 0)):
        noise = Witness(trace, 1)
        for row in pair[0]:
            Noise.of(noise).gaussian(row.float(), 1.0)
        if trace.is_second_run:
            with pytest.raises(Diverged, match="4 steps"):
                trace.end_second_run()
        trace.start_second_run()


@pytest.mark.parametrize(
    "second",
    [
        lambda noise: noise.gaussian(torch.zeros(4), 1.5),
        lambda noise: noise.gaussian(torch.zeros(4), 0.5),
        lambda noise: noise.gaussian(torch.zeros(5), 1.0),
        lambda noise: noise.gaussian(torch.zeros(1), 1.0),
        lambda noise: noise.laplace(torch.zeros(4), 1.0),
    ],
    ids=["more noise", "less noise", "longer", "broadcastable", "other law"],
)
def test_found_a_mechanism_that_depends_on_a_record(second: Callable[[Noise], Tensor]) -> None:
    trace = Trace(0)
    noise = Witness(trace, 1)
    noise.gaussian(torch.zeros(4), 1.0)
    trace.start_second_run()
    with pytest.raises(Diverged, match=r"step 0: .*, in the first run gaussian of \(4,\) and scale 1"):
        second(noise)


def test_violations_refuses_an_unprotected_ledger() -> None:
    release = two_runs(method("dp-merf", {}), Budget(float("inf")), held(records()), held(without(records())), True)[1]
    assert not accountant.account(release.ledger, Unit.EXAMPLE, 1e-5).finite
    with pytest.raises(AssertionError, match="NonPrivateDpEvent"):
        violations(Trace(0), release.ledger)
    assert len(records()[0]) == N
