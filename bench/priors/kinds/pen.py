"""light pen strokes on a dark background, for digits and letters: curved paths, closed loops, random walks

Prior knowledge: a glyph is one or two smooth strokes of one pen with a few corners, upright, taller than wide, in the
middle of the image, sometimes a closed loop. No alphabet and no image was used. Lengths are in halves of the image's
shorter side, angles in radians, pen radii in pixels.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from bench.nets.stroke_generator import catmull_rom
from bench.priors.drawing import Draws, hue, pixel_positions
from bench.priors.drawn import DrawnPrior

LOOPING, WALKS = 0.3, 0.1
"""Shares of looping images, whose paths may close and have other curvature, and of random walks; others are plain
paths."""
POINTS, DOTS_APART = 64, 14
"""Steps of a stroke; pixels per side up to which one dot of ink per step suffices; larger images get more dots."""

PIECES, TURN, STRAIGHT = 3, 7.2, 0.2
"""Paths have three pieces of constant curvature; a piece is straight, or curved by N(0, TURN^2) per whole length."""
CORNER, CORNER_ANGLE = 0.5, (0.5, 2.8)
"""Probability of a corner between two pieces, and the range of its angle."""
TURNS, CLOSED, DRIFT_REMOVED = (0.5, 1.0, 2.0), 0.3, (0.8, 1.05)
"""Looping paths: factors on TURN; share that close, and how much of the gap from end to start is removed."""
SECOND, SECOND_LENGTH, SECOND_OFF = 0.35, (0.3, 1.0), 0.03
"""Share of glyphs with a second path, its relative length, and how far it misses the point where it should touch."""

WALK_POINTS, WALK_STEP, MOMENTUM, WALK_CLOSED = 7, 0.55, 0.9, 0.2
"""Walks: most control points, standard deviation of a step, its largest correlation with the previous one, share
closed."""
WALK_MARGIN, WALK_START, SECOND_WALK = 0.12, 0.8, 0.25
"""Margin added to a walk's extent before scaling; spread of a second walk's start; share of images with a second
walk."""

HALF_HEIGHT, ASPECT_SPREAD, WIDEST = (0.6, 0.75), 0.3, 0.72
"""Box that contains a glyph: range of its half height; for paths, standard deviation of the logarithm of a random
factor on the width, and largest half width."""
WALK_HALF_WIDTH = (0.12, 0.7)
"""Range of the half width of that box for walks."""
SLANT, WALK_SLANT, MOVE = 0.15, 0.2, 0.1
"""Standard deviation of the slant, of paths and of walks; largest shift from the middle of the image."""
RADIUS, WALK_RADIUS, SHARPNESS = (0.8, 2.1), (0.9, 2.2), (1.4, 3.0)
"""Pen radii in pixels; and change of the logistic function's argument per pixel at the edge of the ink."""
USUAL_SIDE = 28
"""Image side above which pens grow with the image."""
CONTRAST = (0.4, 1.0)
"""Range of the difference in lightness between ink and background, in colour images."""
AT_ONCE = 32
"""Images whose distances are computed together, so that they fit into the CPU's cache."""


class Pen(DrawnPrior):
    """Prior of pen strokes: six in ten images are plain paths, three looping ones, one is a random walk."""

    def draw_from(self, draws: Draws, count: int, shape: tuple[int, int, int]) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]."""
        channels, height, width = shape
        family = draws.uniform(0, 1, count)
        walks, looping = family < WALKS, family >= 1 - LOOPING
        lines = torch.empty(count, 2, POINTS, 2, device=draws.device)
        lines[walks] = draw_walks(int(walks.sum()), draws.of_rows(walks))
        lines[~walks] = draw_paths(looping[~walks], draws.of_rows(~walks))
        low, high = (torch.where(walks, WALK_RADIUS[i], RADIUS[i]) for i in range(2))
        radius = (low + (high - low) * draws.uniform(0, 1, count)) * max(1, min(height, width) / USUAL_SIDE)
        lines = add_dots(lines, -(-min(height, width) // DOTS_APART))
        distance = distance_to_strokes(lines, pixel_positions(height, width, draws.device)) * min(height, width) / 2
        ink = torch.sigmoid((radius[:, None] - distance) * draws.uniform(*SHARPNESS, count, 1))
        return colour_ink(ink.view(-1, 1, height, width), channels, draws)


def draw_paths(looping: Tensor, draws: Draws) -> Tensor:
    """Draw (n, 2, points, 2) pen paths in an upright box; the second path repeats the first where there is only one."""
    count = len(looping)
    first, second = (draw_path(looping, draws) for _ in range(2))
    second = second * draws.uniform(*SECOND_LENGTH, count, 1, 1)
    row = torch.arange(count, device=draws.device)
    touched, touching = draws.integers(0, POINTS - 1, 2, count)
    offset = first[row, touched] - second[row, touching] + SECOND_OFF * draws.normal(count, 2)
    second = torch.where(draws.chance(SECOND, count, 1, 1), second + offset[:, None], first)
    middle, extent = bounding_box(first, second)
    half_height = draws.uniform(*HALF_HEIGHT, count)
    aspect = (extent[:, 0] / extent[:, 1].clamp_min(0.05)).clamp(0.1, 1.3)
    half_width = (half_height * aspect * torch.exp(ASPECT_SPREAD * draws.normal(count))).clamp(0.05, WIDEST)
    scale = torch.stack([half_width, half_height], 1) / extent.clamp_min(0.02)
    return place_in_image(torch.stack([first, second], 1), middle, scale, SLANT, draws)


def draw_path(looping: Tensor, draws: Draws) -> Tensor:
    """Draw (n, points, 2): equal steps, whose heading is the integral of the curvature, with corners between pieces."""
    count = len(looping)
    t = torch.arange(POINTS, device=draws.device) / POINTS
    cuts = draws.uniform(0, 1, count, PIECES - 1).sort(1).values
    zero = torch.zeros(count, 1, device=draws.device)
    starts, ends = torch.cat([zero, cuts], 1)[..., None], torch.cat([cuts, zero + 1], 1)[..., None]
    turn = TURN * draws.normal(count, PIECES) * ~draws.chance(STRAIGHT, count, PIECES)
    turn = turn * torch.where(looping, draws.choice(TURNS, count), 1.0)[:, None]
    corner = draws.uniform(*CORNER_ANGLE, count, PIECES - 1) * draws.choice((-1.0, 1.0), count, PIECES - 1)
    corner = torch.cat([zero, corner * draws.chance(CORNER, count, PIECES - 1)], 1)
    turned = turn[..., None] * (torch.minimum(t, ends) - starts).clamp_min(0) + corner[..., None] * (t > starts)
    heading = draws.uniform(0, 2 * math.pi, count, 1) + turned.sum(1)
    path = torch.cumsum(torch.stack([heading.cos(), heading.sin()], -1) / POINTS, 1)
    closes = (looping & draws.chance(CLOSED, count))[:, None] * draws.uniform(*DRIFT_REMOVED, count, 1)
    return path - (closes * t)[..., None] * (path[:, -1:] - path[:, :1])


def draw_walks(count: int, draws: Draws) -> Tensor:
    """Draw (n, 2, points, 2): Catmull-Rom curves through random walks of 2 to 7 points; some glyphs have two."""
    two = draws.chance(SECOND_WALK, count)
    first = draw_walk(two, draws)
    second = draw_walk(two, draws) + WALK_START * draws.normal(count, 1, 2)
    second = torch.where(two[:, None, None], second, first)
    middle, extent = bounding_box(first, second)
    half = torch.stack([draws.uniform(*WALK_HALF_WIDTH, count), draws.uniform(*HALF_HEIGHT, count)], 1)
    return place_in_image(torch.stack([first, second], 1), middle, half / (extent + WALK_MARGIN), WALK_SLANT, draws)


def draw_walk(two: Tensor, draws: Draws) -> Tensor:
    """Draw (n, points, 2): one curve; with two per image, each has fewer points. Some curves are closed."""
    count = len(two)
    steps, momentum = WALK_STEP * draws.normal(count, WALK_POINTS, 2), draws.uniform(0, MOMENTUM, count, 1)
    for i in range(1, WALK_POINTS):
        steps[:, i] = momentum * steps[:, i - 1] + (1 - momentum.square()).sqrt() * steps[:, i]
    points = torch.where(two, draws.integers(2, 5, count), draws.integers(3, WALK_POINTS, count))
    index = torch.minimum(torch.arange(WALK_POINTS, device=draws.device), points[:, None] - 1)
    walk = steps.cumsum(1).gather(1, index[..., None].expand(-1, -1, 2))
    closed = draws.chance(WALK_CLOSED, count, 1)
    walk[:, -1] = torch.where(closed, walk[:, 0], walk[:, -1])
    return walk_curve(draws.device, torch.get_default_dtype()) @ walk


@cache
def walk_curve(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the weights of a walk's points along its curve; cached and shared, so callers must not modify it."""
    return catmull_rom(WALK_POINTS, POINTS).to(device, dtype)


def bounding_box(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n, 2) middle and half extent of both strokes."""
    low, high = torch.minimum(first.amin(1), second.amin(1)), torch.maximum(first.amax(1), second.amax(1))
    return (low + high) / 2, (high - low) / 2


def place_in_image(lines: Tensor, middle: Tensor, scale: Tensor, slant: float, draws: Draws) -> Tensor:
    """Scale lines (n, 2, points, 2) around their middle, slant them, and shift them slightly off the centre."""
    count = len(lines)
    x, y = ((lines - middle[:, None, None]) * scale[:, None, None]).unbind(-1)
    x = x + slant * draws.normal(count, 1, 1) * y
    return torch.stack([x, y], -1) + draws.uniform(-MOVE, MOVE, count, 1, 1, 2)


def add_dots(lines: Tensor, times: int) -> Tensor:
    """Interpolate lines (n, 2, points, 2) so that each segment has `times` dots, including its first point."""
    share = torch.arange(times, device=lines.device)[:, None] / times
    between = lines[:, :, :-1, None].lerp(lines[:, :, 1:, None], share)
    return torch.cat([between.flatten(2, 3), lines[:, :, -1:]], 2)


def distance_to_strokes(lines: Tensor, pixels: Tensor) -> Tensor:
    """Return (n, pixels): the distance from every pixel to the nearest dot of the lines (n, 2, points, 2)."""
    nearest = nearest_dot(lines[:, 0], pixels)
    two = (lines[:, 0] != lines[:, 1]).any(2).any(1)
    nearest[two] = torch.maximum(nearest[two], nearest_dot(lines[two, 1], pixels))
    return (pixels.square().sum(1) - nearest).clamp_min(1e-6).sqrt()


def nearest_dot(dots: Tensor, pixels: Tensor) -> Tensor:
    """Return (n, pixels): |p|^2 minus the squared distance to the nearest dot, for dots d (n, points, 2) and pixels p.

    It is the maximum of 2 <d, p> - |d|^2 over the dots.
    """
    rows = torch.cat([2 * dots, -dots.square().sum(-1, keepdim=True)], -1)
    columns = torch.cat([pixels, torch.ones_like(pixels[:, :1])], 1).T
    return torch.cat([(part @ columns).amax(1) for part in rows.split(AT_ONCE)])


def colour_ink(ink: Tensor, channels: int, draws: Draws) -> Tensor:
    """Render ink (n, 1, h, w) on black; in colour images, one colour on a lighter or darker one."""
    if channels == 1:
        return ink
    count = len(ink)
    contrast = draws.uniform(*CONTRAST, count, 1)
    dark = draws.uniform(0, 1, count, 1) * (1 - contrast)
    pair = torch.stack([dark + hue(count, channels, draws), dark + contrast + hue(count, channels, draws)]).clamp(0, 1)
    swapped = draws.chance(0.5, count, 1)
    ground, colour = torch.where(swapped, pair.flip(0), pair)[..., None, None].unbind(0)
    return ground.lerp(colour, ink.expand(-1, channels, -1, -1))
