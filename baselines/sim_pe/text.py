"""Rendered text as a simulator, after DrawText of Sim-PE: one character per image, white on black.

Parameters of an image: font, character, font size, stroke width and angle. The first character is random and
independent of the class; a variation keeps it. The fonts are those that Matplotlib ships, which Pillow renders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from baselines.sim_pe.simulator import Population, Shape
from bench.errors import BadOption

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmss10", "cmtt10", "cmb10", "cmmi10", "cmti10"),
)
"""Names of the font files; Matplotlib's other fonts have symbols only."""
USUAL_SIDE = 28
"""Side of the images for which sizes and strokes are given; they grow with the image."""
SIZE, STROKE, ANGLE = (10, 29), (0, 2), (-30.0, 30.0)
"""Ranges of the font size in pixels, of the stroke width in pixels, and of the angle in degrees (the paper's)."""
SIZE_CHANGE, ANGLE_CHANGE, STROKE_FROM = (2.0, 6.0), (3.0, 11.0), 0.5
"""Largest change of size and angle at degree 0 and at degree 1; degree from which the stroke changes by up to 1 (the
paper has these changes in its last and first round, and interpolated ones between them)."""


@dataclass(frozen=True)
class DrawText:
    """The simulator.

    Attributes:
        characters: the characters to draw from.
        shape: (c, h, w) of the images.
        fonts: paths of the font files.

    Parameters are the columns font, character, size, stroke, angle.
    """

    characters: str
    shape: Shape
    fonts: tuple[str, ...]

    @classmethod
    def of(cls, characters: str, shape: Shape) -> DrawText:
        """Return the simulator. Raises BadOption if Pillow has no FreeType, or a font or a character is missing."""
        return cls(characters, shape, find_fonts(characters))

    def random(self, count: int, rng: torch.Generator) -> Population:
        """Draw all parameters uniformly."""

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(count, generator=rng, device=rng.device)

        def integer(low: int, high: int) -> Tensor:
            return torch.randint(low, high + 1, (count,), generator=rng, device=rng.device).float()

        columns = [integer(0, len(self.fonts) - 1), integer(0, len(self.characters) - 1)]
        columns += [integer(*SIZE), integer(*STROKE), uniform(*ANGLE)]
        return self._render(torch.stack(columns, 1))

    def vary(self, population: Population, degree: float, rng: torch.Generator) -> Population:
        """Change the font with probability `degree`, and size, angle and stroke by at most the paper's numbers."""
        font, character, size, stroke, angle = population.parameters.unbind(1)
        drawn = torch.rand(5, len(population), generator=rng, device=rng.device)
        change = 2 * drawn - 1
        font = torch.where(drawn[0] < degree, (drawn[1] * len(self.fonts)).floor(), font)
        size = (size + (change[2] * _between(SIZE_CHANGE, degree)).round()).clamp(*SIZE)
        angle = (angle + change[3] * _between(ANGLE_CHANGE, degree)).clamp(*ANGLE)
        if degree >= STROKE_FROM:
            stroke = (stroke + (3 * drawn[4]).floor() - 1).clamp(*STROKE)
        return self._render(torch.stack([font, character, size, stroke, angle], 1))

    def _render(self, parameters: Tensor) -> Population:
        """Render each row of parameters."""
        channels, height, width = self.shape
        scale = min(height, width) / USUAL_SIDE
        made = np.empty((len(parameters), height, width), dtype=np.uint8)
        for row, (font, character, size, stroke, angle) in enumerate(parameters.tolist()):
            file = self.fonts[int(font)]
            made[row] = render(
                self.characters[int(character)], file, round(size * scale), round(stroke * scale), angle, height, width
            )
        images = torch.from_numpy(made).to(parameters.device).float()[:, None] / 255
        return Population(images.expand(-1, channels, -1, -1), parameters)


def render(character: str, font: str, size: int, stroke: int, angle: float, height: int, width: int) -> np.ndarray:
    """Return (height, width) uint8: the character in the middle, rotated by `angle` degrees."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (width, height))
    where = (width / 2, height / 2)
    ImageDraw.Draw(image).text(where, character, 255, load_font(font, size), anchor="mm", stroke_width=stroke)
    return np.asarray(image.rotate(angle, Image.Resampling.BILINEAR))


def find_fonts(characters: str) -> tuple[str, ...]:
    """Return the paths of all `FONTS`. Raises BadOption as `DrawText.of`."""
    from matplotlib import get_data_path
    from PIL import features

    if not features.check("freetype2"):
        raise BadOption("--method.api text: Pillow was built without FreeType and renders no fonts; reinstall pillow")
    paths = [Path(get_data_path()) / "fonts" / "ttf" / f"{name}.ttf" for name in FONTS]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise BadOption(f"--method.api text: the font {missing[0]} of Matplotlib is missing; reinstall matplotlib")
    for character in characters:
        if not render(character, str(paths[0]), USUAL_SIDE, 0, 0.0, USUAL_SIDE, USUAL_SIDE).any():
            raise BadOption(f"--method.characters: the fonts draw nothing for {character!r}; leave it out")
    return tuple(map(str, paths))


@cache
def load_font(file: str, size: int) -> FreeTypeFont:
    """Return a font of a file, kept for the process."""
    from PIL import ImageFont

    return ImageFont.truetype(file, size)


def _between(ends: tuple[float, float], degree: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * degree
