"""Every method against every attack on a toy data set, through the runner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import registry, runner


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 16x16 images, each bright in its own quarter."""
    rng = np.random.default_rng(0)
    place = tmp_path_factory.mktemp("toy")

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 4, n)
        images = rng.integers(0, 60, (n, 16, 16), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            y, x = divmod(int(label), 2)
            image[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] += 150
        return images, labels

    train, test = part(160), part(40)
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(place / "toy.npz", **dict(zip(names, (*train, *test), strict=True)))
    return place


@pytest.mark.parametrize("attack", [None, *registry.entries("attack")])
@pytest.mark.parametrize("method", registry.entries("method"))
def test_every_pair_gives_a_record(toy: Path, method: str, attack: str | None) -> None:
    settings = runner.Settings(
        method=method, attack=attack, dataset=f"npz:{toy}/toy.npz", teacher="datalens", tier="smoke", out=toy / "runs"
    )
    outcome = runner.run(runner.prepare(settings), 0)
    record = outcome.record
    assert record.status in ("ok", "inconclusive", "skipped"), record.reason
    assert (record.reason == "") == (record.status == "ok")
    assert 0 <= record.metrics["accuracy"] <= 1  # type: ignore[operator]
    assert record.privacy["accounted"]["unit"] == "example"
    assert all((outcome.path / file).stat().st_size > 1000 for file in record.artifacts.values())
    if attack and record.status != "skipped":
        assert 0 <= record.metrics["attack_accuracy"] <= 1  # type: ignore[operator]
