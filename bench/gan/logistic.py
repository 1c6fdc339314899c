"""The losses of a GAN whose discriminator says how likely an image is real (Goodfellow et al., NeurIPS 2014).

D(x) = sigmoid of a logit. All losses are batch means, to be minimised.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def source_loss(real: Tensor, fake: Tensor) -> Tensor:
    """-mean log D(x) - mean log(1 - D(G(z))), the discriminator's; of (n,) logits of real and of generated images."""
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def minimax_loss(fake: Tensor) -> Tensor:
    """mean log(1 - D(G(z))), the generator's by the minimax game; of (n,) logits."""
    return -F.softplus(fake).mean()


def non_saturating_loss(fake: Tensor) -> Tensor:
    """-mean log D(G(z)), the generator's as it is mostly trained; of (n,) logits."""
    return F.softplus(-fake).mean()
