"""Ten Georgian letters at 16x16, 1,152 + 288 images; the attacker has other letters (split identity); no download

The classes are letters of an alphabet that the attacker has never seen, as people in a recogniser of faces are people
whom the attacker has never seen: images of a private class come only from the model. The outsiders, whom split
`identity` gives to the attacker, are 56 letters that are in no class: the other 23 Georgian ones and 33 Armenian ones.

Each letter is drawn in the 12 styles of the DejaVu fonts (sans, mono, serif; regular, bold, slanted, both), which
come with matplotlib, 12 times (outsiders twice): centred, 0.68 to 0.85 of the side high or wide, moved by up to 0.06 of
the side, rotated by up to 12 degrees; sizes, moves and angles are uniform and drawn with a fixed seed. The test set is
the fifth of the records whose SHA-256 of "letters:<index>" is smallest. Letters are drawn large and averaged down to 16
pixels; another version of the font library may differ by single grey levels, which the fingerprint then shows.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData

if TYPE_CHECKING:
    import numpy as np
    from PIL.ImageFont import FreeTypeFont

SIDE = 16
LARGER = 8
"""Letters are drawn at this many times the side, and averaged down."""
POINTS = 64
STYLES = tuple(
    f"DejaVu{family}{weight}"
    for family, slanted in (("Sans", "Oblique"), ("SansMono", "Oblique"), ("Serif", "Italic"))
    for weight in ("", "-Bold", f"-{slanted}", f"-Bold{slanted}")
)
GEORGIAN = tuple(chr(code) for code in range(0x10D0, 0x10F1))
ARMENIAN = tuple(chr(code) for code in range(0x561, 0x582))
CLASSES = {
    "an": "\u10d0", "don": "\u10d3", "zen": "\u10d6", "in": "\u10d8", "las": "\u10da",
    "san": "\u10e1", "khar": "\u10e5", "qar": "\u10e7", "can": "\u10ea", "hae": "\u10f0",
}  # fmt: skip
"""Names of the private letters in Unicode, and the letters."""
PER_STYLE, PER_STYLE_OUTSIDE = 12, 2
"""Images of a letter in one style: of a class, and of an outsider."""
SIZES, MOST_MOVED, MOST_TURNED = (0.68, 0.85), 0.06, 12.0
"""Range of the longer side and largest shift as shares of the image's side; largest angle in degrees."""


class Letters(Dataset):
    """Ten letters as private classes, and other letters for the attacker: a task that shows what an inversion gains."""

    facts = DatasetFacts(
        shape=(1, SIDE, SIDE),
        class_names=tuple(CLASSES),
        is_public=True,
        has_outsiders=True,
        counts=(1152, 288),
        layout="none: it is drawn with the fonts that come with matplotlib",
        licence="the fonts' own: free to use and to draw with (Bitstream Vera, DejaVu)",
        prior="pen",
        teachers=48,
        augments_psg=True,
    )

    def load(self, root: Path, download: bool) -> ImageData:
        """Draw 1,152 training and 288 test images, and 1,344 outsiders."""
        import numpy as np
        import torch

        fonts = load_fonts()
        rng = np.random.default_rng(0)
        images = draw_letters(tuple(CLASSES.values()), PER_STYLE, fonts, rng)
        outsiders = tuple(letter for letter in GEORGIAN + ARMENIAN if letter not in CLASSES.values())
        labels = torch.arange(len(CLASSES)).repeat_interleave(len(STYLES) * PER_STYLE)
        order = sorted(range(len(labels)), key=lambda index: hashlib.sha256(f"letters:{index}".encode()).digest())
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        is_test[order[: len(labels) // 5]] = True
        pixels = torch.from_numpy(images)
        return ImageData(
            *("letters", pixels[~is_test], labels[~is_test], pixels[is_test], labels[is_test], self.facts.class_names),
            outsiders=torch.from_numpy(draw_letters(outsiders, PER_STYLE_OUTSIDE, fonts, rng)),
        )


def load_fonts() -> list[FreeTypeFont]:
    """Load the 12 styles from matplotlib's folder of fonts."""
    import matplotlib
    from PIL import ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return [
        ImageFont.truetype(folder / f"{style}.ttf", POINTS, layout_engine=ImageFont.Layout.BASIC) for style in STYLES
    ]


def draw_letters(
    letters: tuple[str, ...], per_style: int, fonts: list[FreeTypeFont], rng: np.random.Generator
) -> np.ndarray:
    """Draw (letters x styles x per_style, 1, 16, 16) uint8 images: white on black, in the order of the letters."""
    import numpy as np

    drawn = [draw(letter, font, rng) for letter in letters for font in fonts for _ in range(per_style)]
    return np.stack(drawn)[:, None]


def draw(letter: str, font: FreeTypeFont, rng: np.random.Generator) -> np.ndarray:
    """Draw one (16, 16) uint8 image of a letter with a random size, position and angle."""
    import numpy as np
    from PIL import Image, ImageDraw

    left, top, right, bottom = font.getbbox(letter)
    width, height = round(right - left), round(bottom - top)
    ink = Image.new("L", (width, height), 0)
    ImageDraw.Draw(ink).text((-left, -top), letter, font=font, fill=255)
    side = SIDE * LARGER
    scale = rng.uniform(*SIZES) * side / max(width, height)
    ink = ink.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.BILINEAR)
    down, across = rng.uniform(-MOST_MOVED, MOST_MOVED, 2) * side
    large = Image.new("L", (side, side), 0)
    large.paste(ink, (round((side - ink.width) / 2 + across), round((side - ink.height) / 2 + down)))
    turned = large.rotate(rng.uniform(-MOST_TURNED, MOST_TURNED), Image.Resampling.BILINEAR)
    return np.asarray(turned.resize((SIDE, SIDE), Image.Resampling.BOX))
