"""PPA: the Poincare distance, the random crops and both selections."""

from __future__ import annotations

import pytest
import torch
from inversion_made import Quadrants, SmoothGenerator, target
from torch import Tensor, nn

from attacks.ppa import Ppa
from bench.gan.plug_and_play import most_robust, poincare_distance, resized_crop
from bench.testing import context

LOGITS = torch.tensor([[5.0, 1.0, 0.0, -1.0]])
TINY = {"gan_batch": 4, "latent": 6, "latents": 64, "candidates_per_class": 8, "images_per_class": 3, "draws": 2,
        "steps": 20, "transformations": 8, "lr": 0.1}  # fmt: skip


@pytest.mark.parametrize(
    ("logits", "label", "expected"),
    [(LOGITS, 0, 8.604155), (LOGITS, 1, 10.939529), (LOGITS + 3, 0, 9.325803), (10 * LOGITS, 0, 8.604155),
     (LOGITS.softmax(1), 0, 6.023653)],
)  # fmt: skip
def test_distance_in_the_poincare_ball(logits: Tensor, label: int, expected: float) -> None:
    found = poincare_distance(logits.double(), torch.tensor([label]))
    assert float(found) == pytest.approx(expected, abs=2e-4)


def test_distance_is_finite_on_the_rim_of_the_ball() -> None:
    logits = torch.tensor([[7.0, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    distances = poincare_distance(logits, torch.tensor([0, 1]))
    distances.sum().backward()
    assert distances.isfinite().all() and logits.grad is not None and logits.grad.isfinite().all()


def test_crops_keep_constants_and_the_whole_image() -> None:
    images, constant = torch.rand(5, 3, 16, 16), torch.full((5, 1, 16, 16), 0.3)
    for crop in torch.rand(20, 4, generator=torch.Generator().manual_seed(0)):
        assert torch.allclose(resized_crop(images, crop, (1, 1), (1, 1)), images, atol=1e-5)
        assert torch.allclose(resized_crop(constant, crop, (0.5, 0.9), (0.8, 1.2)), constant, atol=1e-6)


def test_crops_have_the_given_area_ratio_and_place() -> None:
    """On a ramp from 0 to 1, the range of a crop is its side and its middle is its centre."""
    ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64)
    sides, centres = [], []
    for crop in torch.rand(2000, 4, generator=torch.Generator().manual_seed(0)):
        across = resized_crop(ramp, crop, (0.5, 0.9), (0.8, 1.2))[0, 0, 32]
        down = resized_crop(ramp.mT, crop, (0.5, 0.9), (0.8, 1.2))[0, 0, :, 32]
        sides.append((float(across[-1] - across[0]), float(down[-1] - down[0])))
        centres.append((float(across.mean()), float(down.mean())))
    width, height = torch.tensor(sides).T
    area, ratio, centre = width * height, width / height, torch.tensor(centres)
    assert 0.48 < float(area.min()) < 0.52 and 0.86 < float(area.max()) < 0.92
    assert 0.78 < float(ratio.min()) < 0.84 and 1.16 < float(ratio.max()) < 1.24
    assert ((centre.mean(0) - 0.5).abs() < 0.01).all() and (centre.std(0) > 0.02).all()
    square = resized_crop(ramp, torch.tensor([0.0, 0.3, 0.0, 0.0]), (0.9, 1.0), (1, 1))[0, 0]
    assert float(square[:, -1].mean()) == pytest.approx(0.9**0.5, abs=0.02)


def test_result_does_not_depend_on_the_batch_size(stub: nn.Module) -> None:
    found = [Ppa(**TINY, batch=n).run(target(Quadrants()), torch.rand(8, 1, 8, 8), context()).images for n in (200, 3)]
    assert torch.allclose(*found, atol=1e-4)


def test_most_robust_are_the_largest_of_each_class() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.7], [0.8, 0.2, 0.6, 0.1]])
    assert most_robust(scores, 2).tolist() == [[1, 3], [4, 6]]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    generator = SmoothGenerator(slope=3.0)
    monkeypatch.setattr(Ppa, "gan", lambda *_: (generator, None))
    return generator


def test_images_are_of_their_class(stub: nn.Module) -> None:
    attacked = target(Quadrants())
    found = Ppa(**TINY).run(attacked, torch.rand(8, 1, 8, 8), context())
    right = (Quadrants()(found.images).argmax(1) == found.targets).float().mean()
    assert found.images.shape == (24, 1, 8, 8) and float(right) > 0.9


def testinitial_selection_takes_each_latent_once_for_a_class(stub: nn.Module) -> None:
    attack, drawn = Ppa(**TINY), torch.randn(64, 6)
    chosen = attack.initial_selection(drawn, stub, target(Quadrants()), True)
    probabilities = torch.stack([Quadrants()(v).softmax(1) for v in (stub(drawn), stub(drawn).flip(3))]).mean(0)
    for label, rows in enumerate(chosen):
        assert len(set(rows.tolist())) == 8
        assert set(rows.tolist()) == set(probabilities[:, label].topk(8).indices.tolist())


def test_centred_logits_ignore_a_constant(stub: nn.Module) -> None:
    labels = torch.tensor([2])
    for centred, is_same in ((True, True), (False, False)):
        attack = Ppa(**TINY, centred=centred)
        distances = [float(attack.distances(each, labels)) for each in (LOGITS, LOGITS + 3)]
        assert (distances[0] == pytest.approx(distances[1], abs=1e-5)) == is_same


def test_final_selection_keeps_what_survives(stub: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate whose score under transformations is the largest of its class is among the results."""
    scores = torch.rand(32, generator=torch.Generator().manual_seed(3))
    made: list[Tensor] = []
    monkeypatch.setattr(Ppa, "final_scores", lambda _, images, *rest: made.append(images) or scores)
    found = Ppa(**TINY | {"draws": 1}).run(target(Quadrants()), torch.rand(8, 1, 8, 8), context())
    best = most_robust(scores.view(4, 8), 3).flatten()
    assert torch.equal(found.images, made[0][best])
