"""Losses of a GAN whose discriminator predicts the probability of a real image (Goodfellow et al., NeurIPS 2014).

D(x) = sigmoid of a logit. All losses are batch means, to be minimised.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def source_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Discriminator loss -mean log D(x) - mean log(1 - D(G(z))), from (n,) logits of real and of generated images."""
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def minimax_loss(fake: Tensor) -> Tensor:
    """Generator loss of the minimax game, mean log(1 - D(G(z))), from (n,) logits."""
    return -F.softplus(fake).mean()


def non_saturating_loss(fake: Tensor) -> Tensor:
    """Non-saturating generator loss, -mean log D(G(z)), the one commonly used; from (n,) logits."""
    return F.softplus(-fake).mean()
