"""A convolutional variational autoencoder (Kingma and Welling, ICLR 2014) for small images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import Incompatible

Shape = tuple[int, int, int]

SMALLEST = 8
CLOSEST, FARTHEST = -10.0, 10.0


class VAE(nn.Module):
    """A VAE that encodes images as Gaussian codes and decodes them.

    Encoder: two 3x3 convolutions of stride 2 with `width` and 2 `width` channels, leaky ReLU 0.2; a dense layer to the
    mean and the log variance of each of `code` numbers. Decoder: a dense layer to 2 `width` maps of a quarter of the
    image's size; twice nearest-neighbour doubling, 3x3 convolution, leaky ReLU; a 3x3 convolution to logits; sigmoid.
    No layer mixes the images of a batch, so that row i of `decode` depends only on row i of its codes, and every layer
    supports forward-mode derivatives (`torch.func.jvp`).

    Args:
        shape: (c, h, w) of the images; h and w multiples of 4, at least 8.
        code: length of a code, >= 1.
        width: channels of the first convolution, >= 1.

    Raises:
        BenchError: an unsupported image size.
    """

    def __init__(self, shape: Shape, code: int = 32, width: int = 32) -> None:
        c, h, w = shape
        if h % 4 or w % 4 or min(h, w) < SMALLEST:
            raise Incompatible(
                f"images of {h}x{w} pixels: the autoencoder needs height and width to be multiples of 4, "
                f"at least {SMALLEST}; resize the data set"
            )
        super().__init__()
        self.code = code
        wide, small = 2 * width, (h // 4, w // 4)
        flat = wide * small[0] * small[1]
        self.encoder = nn.Sequential(
            nn.Conv2d(c, width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, wide, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(flat, 2 * code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, flat),
            nn.LeakyReLU(0.2),
            nn.Unflatten(1, (wide, *small)),
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(wide, width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(width, width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, c, 3, padding=1),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (n, c, h, w) in [0, 1] to the mean and the log variance of each code, both (n, code).

        The log variance is clamped to [-10, 10].
        """
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return mean, log_variance.clamp(CLOSEST, FARTHEST)

    def decode(self, codes: Tensor) -> Tensor:
        """Map (n, code) to (n, c, h, w) in [0, 1]."""
        return self.decoder(codes).sigmoid()

    def loss(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Return the negative evidence lower bound of (n, c, h, w) images in [0, 1], with one code drawn per image."""
        mean, log_variance = self.encode(x)
        codes = sample(mean, log_variance, rng)
        return -elbo(x, self.decoder(codes), mean, log_variance)


def sample(mean: Tensor, log_variance: Tensor, rng: torch.Generator) -> Tensor:
    """Draw (n, code) codes from N(mean, exp(log_variance)), differentiable in both."""
    noise = torch.randn(mean.shape, generator=rng, device=mean.device, dtype=mean.dtype)
    return mean + (log_variance / 2).exp() * noise


def elbo(x: Tensor, logits: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the mean evidence lower bound in nats: log p(x | code) - KL(N(mean, exp(log_variance)) || N(0, I)).

    log p is the sum over pixels of x log s + (1 - x) log(1 - s), s = sigmoid(logits): the Bernoulli likelihood, which
    for x strictly between 0 and 1 is a loss, not a density.

    Args:
        x: (n, c, h, w) in [0, 1].
        logits: (n, c, h, w), of the decoder.
        mean, log_variance: (n, code), of the encoder.
    """
    fit = -F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)
    divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
    return (fit - divergence).mean()
