"""Class inversion of an assessment: gains over a baseline, power on the control, and models without gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from models_made import SHAPE, images, trained
from torch import Tensor

import bench
from bench.assess.inversion import InversionCase, has_gradients
from bench.assess.models import ModelGiven, load_model
from bench.assess.policy import INVERSION
from bench.assess.schema import Assessment
from bench.cli.assess import inversion_line
from bench.errors import BenchError

LABELS = torch.arange(3)


def people(n: int, seed: int, classes: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """(n, 8, 8) uint8 images, each a random pattern of its class under noise, and (n,) labels."""
    patterns = np.random.default_rng(99).integers(0, 2, (classes, 8, 8))
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    values = 70 + 110 * patterns[labels] + rng.normal(0, 30, (n, 8, 8))
    return values.clip(0, 255).astype(np.uint8), labels


def assessed(tmp_path: Path, model: object, **options: object) -> Assessment:
    paths = []
    for seed in range(2):
        pixels, labels = people(320, seed)
        paths.append(tmp_path / f"{seed}.npz")
        np.savez(paths[-1], images=pixels, labels=labels)
    return bench.assess(model, *paths, attacks=["loss", INVERSION], **options)  # type: ignore[arg-type]


def fitted() -> torch.nn.Module:
    from bench import nets
    from bench.teachers.recipes.standard import Recipe
    from bench.teachers.training import fit

    pixels, labels = (torch.from_numpy(each) for each in people(320, 0))
    torch.manual_seed(3)
    model = nets.build("dense-cnn", SHAPE, 8)
    fit(model, pixels[:, None], labels, Recipe(epochs=8, batch=64, shift=0), torch.device("cpu"), 0)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [(lambda x: trained()(x), True), (lambda x: trained()(x).numpy(), False), (lambda x: trained()(x).detach(), False)],
)
def test_gradients_are_found_by_trying(model: Callable[[Tensor], object], expected: bool) -> None:
    trained()  # loading a model turns gradients off, which its training needs
    assert has_gradients(load_model(ModelGiven(model), SHAPE, LABELS).module, SHAPE) == expected


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_time_limits_are_refused(minutes: float) -> None:
    with pytest.raises(BenchError, match="--inversion-minutes"):
        InversionCase(minutes=minutes)


def test_an_attack_on_membership_is_needed_too(tmp_path: Path) -> None:
    paths = [images(150, seed).save(tmp_path / f"{seed}.npz") for seed in range(2)]
    with pytest.raises(BenchError, match="--attacks"):
        bench.assess(trained(), *paths, attacks=[INVERSION])


def test_three_classes_are_too_few(tmp_path: Path) -> None:
    paths = [images(150, seed).save(tmp_path / f"{seed}.npz") for seed in range(2)]
    found = bench.assess(trained(), *paths, attacks=["loss", INVERSION])
    assert found.inversion is None
    assert next(each.reason for each in found.not_tested if each.name == INVERSION).startswith(
        "needs at least 4 classes"
    )


@pytest.mark.thorough
def test_private_classes_are_reconstructed_unlike_public_ones(tmp_path: Path) -> None:
    model = fitted()
    private = assessed(tmp_path, model, private_classes=True)
    assert private.inversion is not None and private.inversion.has_power
    assert private.inversion.gain.low > 0.2 and private.verdict.decision == "do not release"
    public = assessed(tmp_path, model)
    assert public.inversion is not None and not public.inversion.has_power and public.inversion.gain.high <= 0.1
    assert "--private-classes" in inversion_line(public.inversion)
    assert public.verdict.decision != "do not release"


@pytest.mark.thorough
def test_inversion_that_is_left_out_or_impossible_is_listed(tmp_path: Path) -> None:
    model = fitted()
    late = assessed(tmp_path, model, inversion_minutes=1e-9)
    left_out = assessed(tmp_path, model, inversion=False)
    no_gradients = assessed(tmp_path, lambda x: model(x).detach())
    for found, word in ((late, "--inversion-minutes"), (left_out, "left out"), (no_gradients, "needs gradients")):
        assert found.inversion is None
        assert word in next(each.reason for each in found.not_tested if each.name == INVERSION)
