"""A data-free prior for glyphs: a smooth pen stroke through random control points, drawn in soft ink.

It encodes only "light curves on a dark ground, centred". Nothing in here was fitted to data; the few numbers below (pen
width in pixels, height and width of a glyph) were set by hand for small images of handwritten digits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.errors import Incompatible
from bench.validate import instance

PEN, PEN_SPREAD = 1.5, 0.5
HALF_HEIGHT, HALF_HEIGHT_SPREAD = 0.75, 0.1
NARROWEST, WIDEST = 0.22, 0.68
MARGIN = 0.15
STEP = 0.55


class StrokeGenerator(nn.Module):
    """Maps latent vectors to images of one stroke each; differentiable in the latents and in its trainable part.

    z contains `points` steps of a random walk, then aspect, height and pen width. A residual network transforms z; it
    starts as the identity, so an untrained generator draws random walks. A Catmull-Rom curve passes through the walk's
    points, scaled to the middle of the image; a pixel is inked if it is nearer to the curve than the pen's half-width.

    Args:
        shape: (c, h, w) of the images, h = w; all channels are the same.
        points: control points of the curve, at least 2.
        samples: points of the curve at which the distance of a pixel is measured.
        hidden: width of the residual network.

    Raises:
        BenchError: images that are not square.
    """

    curve: Tensor
    pixels: Tensor

    def __init__(self, shape: tuple[int, int, int], points: int = 6, samples: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.channels, self.size, width = shape
        if self.size != width:
            raise Incompatible(
                f"images of {self.size}x{width} pixels: strokes need square images; use --method.generator upsample"
            )
        self.points = points
        self.latent = 2 * points + 3
        self.move = nn.Sequential(
            nn.Linear(self.latent, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.latent),
        )
        self.register_buffer("curve", catmull_rom(points, samples), persistent=False)
        centres = (torch.arange(self.size) + 0.5) / self.size * 2 - 1
        grid = torch.stack(torch.meshgrid(centres, centres, indexing="xy"), -1).view(-1, 2)
        self.register_buffer("pixels", grid, persistent=False)
        self.start_at_identity()

    def start_at_identity(self) -> None:
        """Initialise the residual network as the identity."""
        last = instance(self.move[-1], nn.Linear, "last layer")
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Map (n, latent) to (n, c, h, w) in [0, 1]."""
        z = z + self.move(z)
        steps, (aspect, height, pen) = z[:, : 2 * self.points], z[:, 2 * self.points :].unbind(1)
        # The walk's points (n, points, 2), scaled to the wanted width and height around the middle
        walk = torch.cumsum(steps.view(-1, self.points, 2) * STEP, 1)
        low, high = walk.amin(1, keepdim=True), walk.amax(1, keepdim=True)
        half_widths = NARROWEST + (WIDEST - NARROWEST) * torch.sigmoid(aspect)
        half = torch.stack([half_widths, HALF_HEIGHT + HALF_HEIGHT_SPREAD * torch.tanh(height)], 1)
        placed = (walk - (low + high) / 2) / ((high - low) / 2 + MARGIN) * half[:, None]
        line = torch.einsum("mp,npk->nmk", self.curve, placed)
        squared = (line[:, :, None, :] - self.pixels).square().sum(-1).amin(1)
        half_width = (PEN + PEN_SPREAD * torch.tanh(pen)) * 2 / self.size
        ink = torch.sigmoid((half_width[:, None] - (squared + 1e-6).sqrt()) * self.size)
        return ink.view(-1, 1, self.size, self.size).expand(-1, self.channels, -1, -1)


def catmull_rom(points: int, samples: int) -> Tensor:
    """Return (samples, points) weights of the control points along a Catmull-Rom curve through them; rows sum to 1."""
    weights = torch.zeros(samples, points)
    for row, t in enumerate(torch.linspace(0, points - 1 - 1e-4, samples).tolist()):
        k, u = int(t), t - int(t)
        terms = (
            (-u + 2 * u**2 - u**3) / 2,
            1 - (5 * u**2 - 3 * u**3) / 2,
            (u + 4 * u**2 - 3 * u**3) / 2,
            (u**3 - u**2) / 2,
        )
        for offset, term in zip((-1, 0, 1, 2), terms, strict=True):
            weights[row, min(max(k + offset, 0), points - 1)] += term
    return weights
