"""Image grids: every pixel where it belongs, in its own grey or colour."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench.pipeline.plots import CELL, DPI, EDGE, grid


def drawn(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("channels", [1, 3])
def test_grid_places_images_by_row_and_column(tmp_path: Path, channels: int) -> None:
    shades = torch.tensor([[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]])
    rows = [("", shade.view(3, 1, 1, 1).expand(3, channels, 8, 8)) for shade in shades]
    grid(tmp_path / "grid.png", "", ["", "", ""], rows)
    found, side, edge = drawn(tmp_path / "grid.png"), round(CELL * DPI), round(EDGE * DPI)
    for row in range(2):
        for column in range(3):
            y, x = found.shape[0] - edge - side * (2 - row) + side // 2, edge + side * column + side // 2
            assert found[y, x].tolist() == [round(255 * float(shades[row, column]))] * 3


def test_grid_draws_pixels_as_blocks(tmp_path: Path) -> None:
    image = torch.zeros(1, 3, 2, 4)
    image[0, 0, 0, 0] = image[0, 1, 1, 3] = 1.0
    grid(tmp_path / "grid.png", "", [""], [("", image)])
    found = drawn(tmp_path / "grid.png")
    inside = (found != 255).any(2)
    height, width = inside.any(1).sum(), inside.any(0).sum()
    assert width == pytest.approx(2 * height, abs=2)
    red, green = ((found == colour).all(2) for colour in ([255, 0, 0], [0, 255, 0]))
    for block in (red, green):
        assert block.any(1).sum() == pytest.approx(height / 2, abs=1)
        assert block.any(0).sum() == pytest.approx(width / 4, abs=1)
    assert np.argwhere(red).max(0).tolist() < np.argwhere(green).min(0).tolist()


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_grid_keeps_grey_images_grey_and_is_deterministic(tmp_path: Path, channels: int, mode: str) -> None:
    images = torch.rand(2, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    for name in ("a.png", "b.png"):
        grid(tmp_path / name, "title", ["x", "y"], [("row", images)])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as found:
        assert found.mode == mode
