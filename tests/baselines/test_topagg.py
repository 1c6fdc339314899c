"""TopAgg in private training: the vote of each record, its influence, the noise, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_runs import NO_NOISE
from privately_trained import convert, empty_batches, is_normal, moved, toy
from torch import Tensor

from baselines.topagg import TopAgg, Votes
from bench import nets
from bench.config import configure
from bench.dp_training import dp_sgd
from bench.dp_training.clipping import ROOM, add_clipped
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, recording_context, toy_private

PARAMETERS = 26_010 - 198
"""Number of parameters of relu-cnn for the toy images: the last layer has 4 outputs instead of 10."""


def network() -> nets.Classifier:
    torch.manual_seed(0)
    return nets.build("relu-cnn", SHAPE, CLASSES)


def votes(model: Any, records: int = 250, **given: Any) -> Votes:
    made = Votes(TopAgg(**given), model, records, Noise("cpu", 3))
    made.begin(0)
    return made


def trained() -> nets.Classifier:
    """After thirty steps; many gradients of a trained network nearly tie."""
    model = network()
    release = convert(TopAgg, NO_NOISE, toy(80), steps=30, batch=40, rate=0.003, network="relu-cnn")
    model.load_state_dict(release.student.state_dict())
    return model


def of_each(coding: Votes, gradients: Any, chosen: Tensor, chunk: int = 1) -> Tensor:
    """Return the (n, d) votes of these toy records, computed in groups of `at_once`."""
    images, labels = toy_private(n=250)
    found = []
    for part in chosen.split(chunk):
        coding.of(part)
        found.append(coding.encode(gradients(images[part].float() / 255, labels[part]))["votes"])
    return torch.cat(found)


def total_of(coding: Votes, rows: Tensor) -> Tensor:
    """Their sum, as `dp_sgd` makes it: record by record."""
    total = coding.zeros()
    for row in rows:
        add_clipped(total, {"votes": row[None]}, coding.groups(), len(rows))
    return total["votes"]


@pytest.mark.thorough
@pytest.mark.parametrize("clip", [1e-5, 1e9])
@pytest.mark.parametrize("make", [network, trained])
def test_record_moves_sum_by_sqrt_k_and_no_other_vote(clip: float, make: Any) -> None:
    """If any record is removed, all others have exactly the same votes, each with its own signs."""
    model = make()
    gradients, coding = GRADIENTS["opacus"](model, 1), votes(model, clip=clip)
    whole = of_each(coding, gradients, torch.arange(24))
    assert coding.k == round(0.01 * coding.d) == 258 and coding.d == PARAMETERS
    assert (whole.abs().sum(1) == coding.k).all()
    (group,) = coding.groups()
    assert group.bound == math.sqrt(coding.k) and group.share == 1.0
    everyone = total_of(coding, whole)
    for missing in (0, 9, 23):
        left = torch.arange(24)[torch.arange(24) != missing]
        without = of_each(coding, gradients, left)
        assert torch.equal(without, whole[left])
        moved_by = everyone - total_of(coding, without)
        torch.testing.assert_close(moved_by, ROOM * whole[missing].double(), rtol=0, atol=1e-6)
        assert ROOM * math.sqrt(coding.k) * (1 - 1e-4) <= float(moved_by.norm()) <= group.bound


def test_stochastic_signs_belong_to_the_record() -> None:
    """The order of records does not matter."""
    model = network()
    gradients = GRADIENTS["opacus"](model, 1)
    coding = votes(model, clip=1e9)
    whole = of_each(coding, gradients, torch.arange(40))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(of_each(coding, gradients, order), whole[order])
    coding.begin(1)
    assert (of_each(coding, gradients, torch.arange(40)) != whole).sum() > 100, "new ones in every step"


@pytest.mark.thorough
def test_signs_have_a_separate_noise_stream() -> None:
    ctx = recording_context()
    configure(TopAgg, "smoke", {}, "method", "printed").convert(toy(), "datalens", NO_NOISE, ctx)
    names = [name for _, name in ctx.streams]
    assert "private training/signs" in names and len(names) == len(set(names)) == 4


def test_training_passes_record_indices_to_the_coding(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Tensor] = []
    original, monkey = Votes.of, torch.tensor([3, 5, 11, 40])
    monkeypatch.setattr(Votes, "of", lambda self, records: (told.append(records), original(self, records))[1])
    monkeypatch.setattr(dp_sgd, "poisson_sample", lambda n, q, rng: monkey)
    convert(TopAgg, NO_NOISE, steps=2)
    assert [part.tolist() for part in told] == [[3], [5], [11], [40]] * 2


def test_every_coordinate_has_the_noise_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty batch the release is N(0, z^2 k) over B on all d coordinates, also without votes."""
    empty_batches(monkeypatch)
    release = convert(TopAgg, steps=1, batch=8, rate=1.0, aggregate="mean", multiplier=1.5)
    found = moved(release)
    k = round(0.01 * len(found))
    assert len(found) == PARAMETERS and is_normal(found, 1.5 * math.sqrt(k) / 8)


def test_step_by_hand() -> None:
    """V / B of 0.3, -0.2 and 0.05 with beta 0.1: by gamma down, up, and not at all."""
    model = network()
    coding = votes(model, beta=0.1)
    mean = torch.zeros(coding.d, dtype=torch.float64)
    mean[:3] = torch.tensor([0.3, -0.2, 0.05])
    first = next(iter(coding.shapes))
    steps = coding.decode({"votes": mean})
    assert steps[first].flatten()[:4].tolist() == [1, -1, 0, 0]
    assert {name: step.shape for name, step in steps.items()} == coding.shapes
    raw = votes(model, aggregate="mean").decode({"votes": mean})
    assert raw[first].flatten()[:4].tolist() == pytest.approx([0.3, -0.2, 0.05, 0])


def test_step_moves_weights_by_gamma_or_zero() -> None:
    found = moved(convert(TopAgg, NO_NOISE, steps=1, batch=64, rate=0.01, kept=0.05)).abs()
    still, stepped = found < 1e-7, (found - 0.01).abs() < 1e-7
    assert (still | stepped).all() and 0.01 < stepped.double().mean() < 0.9


@pytest.mark.thorough
def test_epsilon_is_independent_of_the_votes() -> None:
    """The released code does: it takes the minimum of the Gaussian's cost and a function of the noisy votes."""
    one, other = toy(64), replace(toy(64), private=toy_private(seed=5, n=64))
    releases = [
        convert(TopAgg, multiplier=1.5, teacher=of, kept=kept) for of, kept in ((one, 0.01), (other, 0.01), (one, 0.3))
    ]
    assert not torch.equal(moved(releases[0]), moved(releases[1])), "other records vote otherwise"
    assert all(release.ledger.to_json() == releases[0].ledger.to_json() for release in releases)
    assert all(release.claim == releases[0].claim for release in releases)
