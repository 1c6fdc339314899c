"""Patch features: the formula, independence of images, mirror images, gradients, saved filters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bench import nets, priors
from bench.errors import BenchError
from bench.nets.classifiers.patch_nets import FILTERS, PatchFeatures

NAMES = ["patch-linear", "patch-linear-mirrored", "patch-wavelet-linear", "patch-wavelet-linear-mirrored"]


def drawings(shape: tuple[int, int, int], count: int = 1000) -> Tensor:
    return priors.load("shapes").draw(count, shape, torch.Generator().manual_seed(0))


def fitted(shape: tuple[int, int, int], mirrored: bool = False) -> PatchFeatures:
    features = PatchFeatures(shape, mirrored)
    features.fit(drawings(shape), torch.Generator().manual_seed(0))
    return features


@pytest.mark.parametrize("shape", [(1, 12, 10), (3, 9, 9)])
def test_features_follow_the_formula(shape: tuple[int, int, int]) -> None:
    features, image = fitted(shape), drawings(shape, 1)[0]
    rows, columns = shape[1] - 5, shape[2] - 5
    responses = torch.empty(2 * FILTERS, rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            patch = image[:, i : i + 6, j : j + 6].flatten().double()
            patch = (patch - patch.mean()) / (patch.var() + 10 / 255**2).sqrt()
            y = features.filters.double() @ patch + features.offsets
            responses[:, i, j] = torch.cat([(y - 0.25).clamp_min(0), (-y - 0.25).clamp_min(0)])
    expected = torch.nn.functional.adaptive_avg_pool2d(responses, 3).flatten().sqrt()
    found = features(image[None] * 2 - 1)[0]
    assert torch.allclose(found, (expected / expected.norm()).float(), atol=1e-4)


def test_filters_are_whitened_patches_of_norm_one() -> None:
    features = fitted((1, 16, 16))
    patches = torch.nn.functional.unfold(drawings((1, 16, 16)), 6, stride=5).transpose(1, 2).flatten(0, 1)
    patches = patches[patches.var(1) > 1e-4]
    patches = (patches - patches.mean(1, keepdim=True)) / (patches.var(1, keepdim=True) + 10 / 255**2).sqrt()
    values, vectors = torch.linalg.eigh(torch.cov(patches.T, correction=0))
    unwhiten = vectors * (values + 0.1).sqrt() @ vectors.T
    dictionary = features.filters @ unwhiten
    assert torch.allclose(dictionary.norm(dim=1), torch.ones(FILTERS), atol=1e-3)
    assert torch.allclose(features.offsets, -features.filters @ patches.mean(0), atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_rows_depend_on_their_image_only(name: str) -> None:
    network = nets.build(name, (1, 12, 12), 3).eval()
    network.body.trunk[0].patches.fit(drawings((1, 12, 12)), torch.Generator())
    images = drawings((1, 12, 12), 70)
    with torch.no_grad():
        together, alone = network.features(images), torch.cat([network.features(x[None]) for x in images[::23]])
    assert torch.allclose(together[::23], alone, atol=2e-5)
    assert torch.allclose(together.norm(dim=1), torch.full((70,), math.sqrt(together.shape[1])), rtol=1e-4)


def test_mirrored_features_ignore_mirroring() -> None:
    features, images = fitted((3, 12, 12), mirrored=True), drawings((3, 12, 12), 3) * 2 - 1
    assert torch.allclose(features(images), features(images.flip(-1)), atol=1e-5)
    assert not torch.allclose(fitted((3, 12, 12))(images), fitted((3, 12, 12))(images.flip(-1)), atol=1e-3)


def test_gradients_are_finite_for_black_images() -> None:
    features = fitted((1, 12, 12))
    images = torch.stack([-torch.ones(1, 12, 12), drawings((1, 12, 12), 1)[0] * 2 - 1]).requires_grad_()
    features(images)[:, ::7].sum().backward()
    assert images.grad is not None and images.grad.isfinite().all() and images.grad[1].abs().max() > 0


def test_filters_are_saved_with_the_network() -> None:
    network, again = (nets.build("patch-linear", (1, 12, 12), 3).eval() for _ in range(2))
    network.body.trunk[0].patches.fit(drawings((1, 12, 12)), torch.Generator())
    again.load_state_dict(network.state_dict())
    images = drawings((1, 12, 12), 4)
    assert torch.equal(network(images), again(images))


@pytest.mark.parametrize(("shape", "named"), [((1, 7, 12), "7x12"), ((2, 12, 12), "2"), ((1, 65, 65), "65x65")])
def test_image_shapes_are_limited(shape: tuple[int, int, int], named: str) -> None:
    with pytest.raises(BenchError, match=named):
        nets.build("patch-linear", shape, 3)


def test_flat_drawings_are_refused() -> None:
    with pytest.raises(BenchError, match=str(FILTERS)):
        PatchFeatures((1, 12, 12)).fit(torch.zeros(500, 1, 12, 12), torch.Generator())
