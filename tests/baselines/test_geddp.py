"""GEDDP: codes by hand, one record's influence, the noise on a code, and the effect of denoising."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from privately_trained import convert, distances, empty_batches, is_normal, moved, sums
from torch import Tensor, nn

from baselines.geddp import Codes, Geddp, directions, shrunk
from bench import nets
from bench.dp_training.clipping import ROOM, add_clipped
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.testing import CLASSES, SHAPE, toy_private

CROSS = torch.tensor([[1.0, 0.0], [0.6, 0.8]])


def network() -> nets.Classifier:
    torch.manual_seed(0)
    return nets.build("relu-cnn", SHAPE, CLASSES)


def codebook(by: Geddp, seed: int = 0) -> Tensor:
    return directions(by.codes, by.block, torch.Generator().manual_seed(seed))


def codes(model: nn.Module, noise: float = 0.0, **given: Any) -> Codes:
    by = Geddp(**given)
    return Codes(by, model, codebook(by), noise)


# The code


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
    model, rng = network(), torch.Generator().manual_seed(3)
    made, part = codes(model, clip=1.0), torch.randn(500, 4, generator=rng) / 100
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
    one, other = codebook(by), codebook(by, 1)
    assert one.shape == (64, 4) and torch.equal(one, codebook(by)) and not torch.equal(one, other)
    torch.testing.assert_close(one.norm(dim=1), torch.ones(64))
    many = directions(40_000, 3, torch.Generator().manual_seed(0))
    assert float(many.mean(0).abs().max()) < 5 / math.sqrt(3 * 40_000)


# Sensitivity and noise


def alone(coding: Codes, model: nets.Classifier, images: Tensor, labels: Tensor) -> Tensor:
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
    whole, without = alone(coding, model, images, labels), alone(coding, model, images[1:], labels[1:])
    own = alone(coding, model, images[:1], labels[:1])
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


# Denoising


def test_denoising_by_hand() -> None:
    """(3, 4) with noise 1: 1 - 2 / 25. (1, 1) with noise 1: nothing is left. Without noise: all is."""
    rows = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.0, 0.0]]).double()
    torch.testing.assert_close(shrunk(rows, 1.0), torch.tensor([[2.76, 3.68], [0, 0], [0, 0]]).double())
    assert torch.equal(shrunk(rows, 0.0), rows)


@pytest.mark.parametrize("how", ["layers", "blocks"])
def test_denoising_reduces_the_error(how: str) -> None:
    model, rng = network(), torch.Generator().manual_seed(1)
    made, noise = codes(model, noise=0.5, denoise=how), torch.randn(26_012, generator=rng).double() / 2
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


# Accounting, and what is learnt


def test_settings_are_the_authors() -> None:
    settings = Geddp().settings("mnist")
    assert (settings.batch, settings.steps, settings.clip) == (256, 100 * 60_000 // 256, 1.0)
    assert settings.multiplier == pytest.approx(math.sqrt(9 / 7), abs=1e-3), "the deviation of Student's t, 9 degrees"
