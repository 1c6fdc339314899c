"""GEDDP and TopAgg: codes and votes of each record by hand, their influence, the noise, and denoising."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_runs import NO_NOISE, is_normal, record_calls, rng
from privately_trained import convert, distances, empty_batches, moved, network, sums, toy
from torch import Tensor, nn

from baselines.geddp import Codes, Geddp, directions, shrunk
from baselines.topagg import TopAgg, Votes
from bench import nets
from bench.dp_training import dp_sgd
from bench.dp_training.clipping import ROOM, add_clipped
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.privacy.noise import Noise
from bench.testing import toy_private

CROSS = torch.tensor([[1.0, 0.0], [0.6, 0.8]])


def codes(model: nn.Module, noise: float = 0.0, **given: Any) -> Codes:
    by = Geddp(**given)
    return Codes(by, model, directions(by.codes, by.block, rng()), noise)


def test_code_by_hand() -> None:
    """Four numbers in two blocks, C = 4 and quant = 2 sqrt(2): lengths are multiples of 4 / (2 sqrt(2) sqrt(2)) = 1.

    (3.7, 0.5) has 3.7 along (1, 0) and 2.62 along (0.6, 0.8): 3 (1, 0). (-0.9, -1.8) has -0.9 and -1.98: -(0.6, 0.8),
    as it is rounded towards zero.
    """
    by = Geddp(block=2, codes=2, clip=4.0, quant=2 * math.sqrt(2))
    made = Codes(by, nn.Linear(2, 2, bias=False), CROSS, 0.0)
    assert made.blocks == 2 and made.step == pytest.approx(1.0)
    found = made.code(torch.tensor([[3.7, 0.5], [-0.9, -1.8]]))
    torch.testing.assert_close(found, torch.tensor([[3.0, 0.0], [-0.6, -0.8]]))


def test_gradient_is_clipped_and_padded_before_encoding() -> None:
    """Three numbers in two blocks: (300, 0, 0) is clipped to (4 - 1/32, 0, 0), of which a code keeps 3."""
    by = Geddp(block=2, codes=2, clip=4.0, quant=2 * math.sqrt(2))
    made = Codes(by, nn.Linear(3, 1, bias=False), CROSS, 0.0)
    found = made.encode({"weight": torch.tensor([[[300.0, 0.0, 0.0]], [[0.0, math.nan, 0.0]]])})
    torch.testing.assert_close(found["code"], torch.tensor([[3.0, 0, 0, 0], [0.0, 0, 0, 0]]).double())
    assert made.decode({"code": found["code"][0]})["weight"].tolist() == [[3.0, 0.0, 0.0]]


def test_codes_are_finite_and_not_longer_than_gradients() -> None:
    """Every block is a whole multiple of one of the directions; finer steps and more directions come nearer."""
    model = network()
    made, part = codes(model, clip=1.0), torch.randn(500, 4, generator=rng(3)) / 100
    found = made.code(part)
    along = found @ made.codebook.T / made.step
    best = along.gather(1, along.abs().argmax(1, keepdim=True))
    assert float((best - best.round()).abs().max()) < 1e-3 and float(best.abs().max()) >= 2
    assert bool((found.norm(dim=1) <= part.norm(dim=1) * (1 + 1e-6)).all())
    errors = [
        float((codes(model, quant=quant, codes=many).code(part) - part).square().sum() / part.square().sum())
        for quant, many in ((4.0, 8), (4.0, 64), (400.0, 64), (400.0, 4096))
    ]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.03


def test_directions_are_uniform_on_the_sphere() -> None:
    by = Geddp()
    one, again, other = (directions(by.codes, by.block, rng(seed)) for seed in (0, 0, 1))
    assert one.shape == (64, 4) and torch.equal(one, again) and not torch.equal(one, other)
    torch.testing.assert_close(one.norm(dim=1), torch.ones(64))
    many = directions(40_000, 3, rng())
    assert float(many.mean(0).abs().max()) < 5 / math.sqrt(3 * 40_000)


def single(coding: Codes, model: nets.Classifier, images: Tensor, labels: Tensor) -> Tensor:
    """What enters the noise of a step whose sample are these records, computed as `dp_sgd.train` does."""
    gradients, total = GRADIENTS["opacus"](model, 1), coding.zeros()
    for i in range(len(images)):
        rows = gradients(images[i : i + 1].float() / 255, labels[i : i + 1])
        add_clipped(total, coding.encode(rows), coding.groups(), len(images))
    gradients.close()
    return total["code"]


@pytest.mark.parametrize("given", [{"clip": 0.1}, {"clip": 1.0, "quant": 0.5}, {"block": 7, "codes": 3}])
def test_one_record_moves_sum_by_c_and_no_other_code(given: dict[str, Any]) -> None:
    model = network()
    coding, (images, labels) = codes(model, **given), toy_private(n=20)
    whole, without = single(coding, model, images, labels), single(coding, model, images[1:], labels[1:])
    own = single(coding, model, images[:1], labels[:1])
    assert 0 < distances(coding, {"code": whole}, {"code": without})[0] <= 1
    assert float(own.norm()) <= ROOM * coding.by.clip
    torch.testing.assert_close(whole - own, without, rtol=0, atol=1e-12)


def test_code_is_discontinuous_between_directions() -> None:
    """Two gradients that differ by 1e-6 have codes that differ by a tenth of a step or more: hence a separate test."""
    made = Codes(Geddp(block=2, codes=2), nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 0.0)
    one, other = (made.code(torch.tensor([[0.6, 0.6 + tiny]])) for tiny in (-1e-6, 1e-6))
    assert float((one - other).norm()) > made.step / 10


def test_codes_are_clipped_before_division() -> None:
    model = network()
    gradients, coding, (images, labels) = GRADIENTS["opacus"](model, 1), codes(model, clip=0.1), toy_private(n=1)
    once = sums(coding, gradients, images.float() / 255, labels)["code"]
    many = sums(coding, gradients, images.repeat(64, 1, 1, 1).float() / 255, labels.repeat(64))["code"]
    assert float(once.norm()) > 0.03
    torch.testing.assert_close(many, 64 * once, rtol=1e-3, atol=1e-4)


def test_every_coordinate_has_the_full_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """sigma C / B, with nothing encoded and nothing denoised; half of it, or twice, would be found."""
    empty_batches(monkeypatch)
    release = convert(Geddp, steps=1, batch=8, rate=1.0, momentum=0, clip=0.6, multiplier=1.5, denoise="off")
    assert is_normal(moved(release), 1.5 * 0.6 / 8)


def test_denoising_by_hand() -> None:
    """(3, 4) with noise 1: 1 - 2 / 25. (1, 1) with noise 1: nothing is left. Without noise: all is."""
    rows = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.0, 0.0]]).double()
    torch.testing.assert_close(shrunk(rows, 1.0), torch.tensor([[2.76, 3.68], [0, 0], [0, 0]]).double())
    assert torch.equal(shrunk(rows, 0.0), rows)


@pytest.mark.parametrize("how", ["layers", "blocks"])
def test_denoising_reduces_the_error(how: str) -> None:
    made, noise = codes(network(), noise=0.5, denoise=how), torch.randn(26_012, generator=rng(1)).double() / 2
    truth = made.zeros()["code"]
    noise, truth[:2000] = noise[: len(truth)], 1.0
    found = torch.cat([part.flatten() for part in made.decode({"code": truth + noise}).values()])
    raw, left = noise.square().sum(), (found - truth[: len(found)]).square().sum()
    assert left < 0.6 * raw
    rest = torch.cat([part.flatten() for part in made.decode({"code": noise}).values()])
    assert rest.norm() < 0.5 * noise.norm()


def test_denoising_assumes_the_added_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost nothing of pure noise passes; if tau were half as large, three quarters would."""
    empty_batches(monkeypatch)
    given = {"steps": 1, "batch": 8, "rate": 1.0, "momentum": 0, "clip": 0.6, "multiplier": 1.5}
    energy = {how: float(moved(convert(Geddp, denoise=how, **given)).square().sum()) for how in ("layers", "off")}
    assert energy["layers"] < 0.05 * energy["off"]


PARAMETERS = 26_010 - 198
"""Number of parameters of relu-cnn for the toy images: the last layer has 4 outputs instead of 10."""


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
    order = torch.randperm(40, generator=rng(1))
    assert torch.equal(of_each(coding, gradients, order), whole[order])
    coding.begin(1)
    assert (of_each(coding, gradients, torch.arange(40)) != whole).sum() > 100, "new ones in every step"


def test_training_passes_record_indices_to_the_coding(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, Votes, "of")
    monkeypatch.setattr(dp_sgd, "poisson_sample", lambda n, q, rng: torch.tensor([3, 5, 11, 40]))
    convert(TopAgg, NO_NOISE, steps=2)
    assert [call.arguments[1].tolist() for call in calls] == [[3], [5], [11], [40]] * 2


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
    """Unlike that of the released code: the minimum of the Gaussian's cost and a function of the noisy votes."""
    one, other = toy(64), replace(toy(64), private=toy_private(seed=5, n=64))
    cases = ((one, 0.01), (other, 0.01), (one, 0.3))
    first, *others = (convert(TopAgg, multiplier=1.5, teacher=of, kept=kept) for of, kept in cases)
    assert not torch.equal(moved(first), moved(others[0])), "other records vote otherwise"
    for release in others:
        assert release.ledger.to_json() == first.ledger.to_json() and release.claim == first.claim
