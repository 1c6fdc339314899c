"""P3GM's second phase: decoder and variance network, and the sum of clipped per-sample gradients.

The networks are chains of dense layers: a record's gradient of a layer is the outer product of delta, the gradient of
its loss in the layer's output, and a, the layer's input; its norm is ||delta|| sqrt(||a||^2 + 1), bias included. One
backward pass gives the norms of all records, without storing per-sample gradients (Goodfellow 2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from baselines.p3gm.mixture import Mixture
from bench.dp_training.clipping import ROOM, poisson_sample
from bench.dp_training.exact_products import exact_products
from bench.dp_training.private_gradient import Parameters, PrivateGradient
from bench.privacy.noise import Noise, Source

START = 0.1
"""Initial output of the variance network over the mixture's mean variance."""


class Chain(nn.Module):
    """Two dense layers with a ReLU in between."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def traced(self, x: Tensor) -> tuple[Tensor, list[tuple[nn.Linear, Tensor, Tensor]]]:
        """Return the outputs, and (layer, its input, its output) of both layers."""
        middle = self.first(x)
        active = middle.relu()
        out = self.last(active)
        return out, [(self.first, x, middle), (self.last, active, out)]

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs) to (n, outputs)."""
        return self.last(self.first(x).relu())


class Decoder(nn.Module):
    """Decoder of codes to records: pixels and class scores, with a linear output.

    Args:
        latent: k.
        hidden: width.
        shape: (c, h, w).
        classes: number of classes.
    """

    def __init__(self, latent: int, hidden: int, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        c, h, w = shape
        self.shape, self.pixels = shape, c * h * w
        self.body = Chain(latent, hidden, self.pixels + classes)

    def forward(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Map (n, k) codes to images (n, c, h, w), clipped to [0, 1], and labels (n,) of the highest scores."""
        records = self.body(codes)
        pixels, scores = records[:, : self.pixels], records[:, self.pixels :]
        return pixels.clamp(0, 1).unflatten(1, self.shape), scores.argmax(1)


class PhasedVae(nn.Module):
    """The autoencoder that is trained privately; the mean of its encoder is fixed.

    Args:
        latent, hidden, shape, classes: of the decoder; the variance network has the same width.
        mixture: the prior, which also initialises the variance network.
    """

    def __init__(self, latent: int, hidden: int, shape: tuple[int, int, int], classes: int, mixture: Mixture) -> None:
        super().__init__()
        self.decoder = Decoder(latent, hidden, shape, classes)
        self.variance = Chain(self.decoder.pixels + classes, hidden, latent)
        self.mixture = mixture
        with torch.no_grad():
            self.variance.last.bias.copy_((START * mixture.variances.mean(0)).log())

    def losses(
        self, records: Tensor, means: Tensor, noise: Tensor
    ) -> tuple[Tensor, list[tuple[nn.Linear, Tensor, Tensor]]]:
        """Compute (n,) losses ||x - x^||^2 + KL(N(mean, s^2) || mixture), and the layers as `Chain.traced`.

        Args:
            records: (n, d) x.
            means: (n, k) their codes.
            noise: (n, k) of N(0, I).
        """
        log_variance, below = self.variance.traced(records)
        made, above = self.decoder.body.traced(means + (log_variance / 2).exp() * noise)
        loss = (records - made).square().sum(1) + self.mixture.divergence(means, log_variance)
        return loss, below + above

    def clipped_sum(self, records: Tensor, means: Tensor, noise: Tensor, clip: float) -> dict[str, Tensor]:
        """Sum the records' gradients, each clipped to norm `clip` over all parameters; float64 by parameter name.

        A record whose gradient has NaN or infinity counts as zero. Without records the sum is zero.
        """
        with exact_products(records.device):
            loss, layers = self.losses(records, means, noise)
            deltas = torch.autograd.grad(loss.sum(), [out for _, _, out in layers])
        factor = _factors(layers, deltas, clip)
        names = {id(layer): name for name, layer in self.named_modules()}
        total = {}
        for (layer, inputs, _), delta in zip(layers, deltas, strict=True):
            rows = torch.where(factor[:, None] > 0, delta * factor[:, None], 0.0).double()
            clean = torch.where(factor[:, None] > 0, inputs.detach(), 0.0).double()
            total[f"{names[id(layer)]}.weight"] = rows.T @ clean
            total[f"{names[id(layer)]}.bias"] = rows.sum(0)
        return total


def noisy_gradient(
    vae: PhasedVae,
    records: Tensor,
    codes: Tensor,
    mechanism: PrivateGradient,
    sampling: Source,
    secret: Noise,
    noise: Source,
) -> Parameters:
    """Compute step 4's noisy gradient; both training and the audit's game call this function.

    Args:
        vae: the autoencoder.
        records: (n, d) private records.
        codes: (n, k) their codes.
        mechanism: clipping norm, noise multiplier and sampling rate.
        sampling, noise: sources of the Poisson sample and of the noise.
        secret: source of the draws around the codes.
    """
    chosen = poisson_sample(len(records), mechanism.sampling, sampling)
    # Drawn for every record, sampled or not, from a secret source: a record that is left out moves the positions of the
    # others, and with a public seed their draws.
    draws = secret.normal(len(records), codes.shape[1]).to(records)
    total = vae.clipped_sum(records[chosen], codes[chosen], draws[chosen], mechanism.clip)
    return mechanism.released(total, dict(vae.named_parameters()), len(records), noise)


def _factors(layers: Sequence[tuple[nn.Linear, Tensor, Tensor]], deltas: Sequence[Tensor], clip: float) -> Tensor:
    """Compute (n,) factors min(1, clip / ||g_i||), 0 if the norm is not finite."""
    squares = [
        delta.square().sum(1) * (inputs.detach().square().sum(1) + 1)
        for (_, inputs, _), delta in zip(layers, deltas, strict=True)
    ]
    norms = torch.stack(squares).sum(0).sqrt()
    return (ROOM * clip / norms.clamp_min(1e-30)).clamp(max=1.0).masked_fill(~norms.isfinite(), 0.0)
