"""left-right symmetric soft blobs arranged as a face: an oval head, darker hair, two eyes, a mouth, a background

Prior knowledge: how a face is arranged, that it is lit from a side, and that skin has more red than blue. No picture of
a person was used. Lengths are in halves of the image's shorter side, except those that are stated relative to a part of
the face; angles are in radians.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.priors.drawing import Draws, hue, pixel_positions, texture
from bench.priors.drawn import DrawnPrior

TURN, MOVE = 0.1, 0.1
"""Standard deviation of the rotation angle; largest shift."""
HALF_WIDTH, TALLER = (0.4, 0.65), (1.15, 1.5)
"""Ranges of the head's half width, and of its height over its width."""
HAIR_WIDER, HAIR_LONGER, HAIR_UP = (0.95, 1.4), (0.9, 1.4), (0.05, 0.3)
"""Hair behind the head: ranges of its half axes and of its upward offset, relative to the head's."""
CAP, HAIRLINE, HAIR_ARCH = 1.08, (0.3, 0.9), (-0.5, 0.8)
"""Cap of hair in front of the head: size relative to the head; height of the hairline in half heights, and how much
lower it is at the sides."""
EYES_APART, EYES_UP, EYE_SIZE, EYE_FLATTER = (0.32, 0.5), (0.0, 0.22), (0.12, 0.24), (0.4, 0.8)
"""Position and size of the eyes: in half widths, half heights, half widths, and relative to the eye's half width."""
MOUTH_DOWN, MOUTH_WIDTH, MOUTH_HEIGHT = (0.42, 0.65), (0.22, 0.5), (0.04, 0.13)
"""Position and size of the mouth: in half heights, half widths and half heights."""
SKIN, HAIR, DARK, LIPS = (0.35, 0.95), (0.1, 0.7), (0.1, 0.5), (0.3, 0.8)
"""Lightness of the skin, and of the other parts relative to it."""
WARMTH = (0.0, 0.15)
"""Increase of red and decrease of blue in skin and lips."""
FADED = 0.3
"""Weight of a random colour in skin and hair."""
GROUND = (1.5, 3.5)
"""Range of exponents of the background's spectrum (`texture`): backgrounds are out of focus."""
SHADE, GRAIN = 0.25, 0.15
"""Standard deviation of the light's horizontal and vertical gradient; share of texture on everything."""
SHARPNESS = (1.0, 4.0)
"""Steepness of an edge: change of the logistic function's argument per pixel of an image of 32 pixels."""
USUAL_SIDE = 32


class Faces(DrawnPrior):
    """Prior with one face per image."""

    def draw_from(self, draws: Draws, count: int, shape: tuple[int, int, int]) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]."""
        channels, height, width = shape
        x, y = face_coordinates(count, pixel_positions(height, width, draws.device), draws)
        image = texture(count, shape, draws, GROUND).flatten(2)
        for inside, colour in draw_parts(x, y, channels, draws):
            image = image.lerp(colour[..., None].expand_as(image), inside[:, None])
        slope = SHADE * draws.normal(2, count, 1)
        light = 1 + slope[0] * x + slope[1] * y
        image = image.view(count, *shape) * light.view(count, 1, height, width).clamp_min(0)
        return image.lerp(texture(count, shape, draws), GRAIN * draws.uniform(0, 1, count, 1, 1, 1)).clamp(0, 1)


def face_coordinates(count: int, pixels: Tensor, draws: Draws) -> Tensor:
    """Return (2, n, pixels): pixel coordinates in the frame of a slightly rotated and shifted face."""
    angle, move = TURN * draws.normal(count, 1), draws.uniform(-MOVE, MOVE, 2, count, 1)
    x, y = pixels[:, 0] - move[0], pixels[:, 1] - move[1]
    return torch.stack([x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()])


def draw_parts(x: Tensor, y: Tensor, channels: int, draws: Draws) -> list[tuple[Tensor, Tensor]]:
    """Return the painted parts from back to front: (n, pixels) opacities in [0, 1], and (n, c) colours."""
    count = len(x)

    def one(bounds: tuple[float, float]) -> Tensor:
        return draws.uniform(*bounds, count, 1)

    wide, sharpness = one(HALF_WIDTH), one(SHARPNESS) * USUAL_SIDE / 2
    tall = wide * one(TALLER)
    head = soft_oval(x, y, wide, tall, sharpness)
    behind = soft_oval(x, y + tall * one(HAIR_UP), wide * one(HAIR_WIDER), tall * one(HAIR_LONGER), sharpness)
    hairline = tall * (one(HAIR_ARCH) * (x / wide).square() - one(HAIRLINE))
    cap = soft_oval(x, y, CAP * wide, CAP * tall, sharpness) * torch.sigmoid((hairline - y) * sharpness)
    eye = wide * one(EYE_SIZE)
    eyes = soft_oval(x.abs() - wide * one(EYES_APART), y + tall * one(EYES_UP), eye, eye * one(EYE_FLATTER), sharpness)
    mouth = soft_oval(x, y - tall * one(MOUTH_DOWN), wide * one(MOUTH_WIDTH), tall * one(MOUTH_HEIGHT), sharpness)

    light, tint, strands = one(SKIN), FADED * hue(count, channels, draws), FADED * hue(count, channels, draws)
    tint = tint + one(WARMTH) * torch.linspace(1, -1, channels, device=x.device) * (channels > 1)
    hair = light * one(HAIR) + strands
    colours = [hair, light + tint, hair, light * one(DARK) + strands, light * one(LIPS) + tint]
    return list(zip([behind, head, cap, eyes, mouth], [colour.clamp(0, 1) for colour in colours], strict=True))


def soft_oval(x: Tensor, y: Tensor, half_width: Tensor, half_height: Tensor, sharpness: Tensor) -> Tensor:
    """Return (n, pixels) in [0, 1]: a soft indicator of an ellipse around the origin."""
    radius = ((x / half_width).square() + (y / half_height).square()).sqrt()
    return torch.sigmoid((1 - radius) * torch.minimum(half_width, half_height) * sharpness)
