"""GM-DP: DP-SGD with separate clipping of every layer's gradient, accounted as one Gaussian.

Reference: McMahan et al., "A General Approach to Adding Differential Privacy to Iterative Training Procedures",
arXiv 1812.06210, 2018, separate clipping of groups of parameters.

As `dp-sgd`, with the parameters in m groups, one a layer (a weight and its bias): group g of a record's gradient is
clipped to C_g = C / sqrt(m) and gets noise N(0, z_g^2 C_g^2) with z_g = z sqrt(m).

Privacy. The groups together are one Gaussian of multiplier (sum_g z_g^-2)^(-1/2) = z, and they share the sample: one
Poisson-sampled Gaussian of multiplier z a step, not m of them. Otherwise as `dp-sgd`: one added or removed record,
claim and account are the same number.

Differs from the paper:
- The paper is a framework without reported accuracies; groups, networks and settings are left to the user. Here the
  groups are the layers, with equal shares of C and of the privacy loss, so that the noise equals that of `dp-sgd` at
  the same C and z; networks and settings are those of `dp-sgd`.
- Joint clipping with a scale per group and adaptive clipping norms are not implemented.
- Accounted by privacy loss distributions instead of moments; batches are Poisson samples of single records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.api.context import Tiers
from bench.dp_training.clipping import Clipping
from bench.dp_training.private_classifier import QUICK, SMOKE, PrivateTraining


@dataclass(frozen=True)
class GmDp(PrivateTraining):
    """DP-SGD with per-layer clipping; the trained network is released."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "McMahan et al., arXiv 1812.06210 (2018), separate clipping"
    source: ClassVar[str] = "GM-DP (McMahan et al. 2018, separate clipping)"
    clipping: ClassVar[Clipping] = "layer"
    tiers: ClassVar[Tiers] = {"smoke": SMOKE, "quick": {**QUICK, "network": "relu-cnn"}}
