"""Private training of a linear layer on patch features; shared by the baselines that use such a classifier.

`baselines/patch_features.py` describes the algorithm, its steps 1 to 4, and its privacy. This class overrides how
`FeatureTraining` builds the network, whitens the rows and chooses the number of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench import priors
from bench.api import Context, Teacher
from bench.config import Size
from bench.dp_training.block_whitening import WHITENING_VERSION, BlockWhitening
from bench.dp_training.feature_training import FeatureTraining
from bench.dp_training.fixed_features import digest_of, features_of, half_rows, sha256
from bench.dp_training.head_accounting import Spending
from bench.nets import Classifier
from bench.nets.classifiers.patch_nets import PatchRows
from bench.privacy import Budget
from bench.validate import inside

DICTIONARY = 2000
"""Number of drawings from which the filters are made."""
DRAWINGS_SEED = 1
"""Seed of the drawings that whiten the rows: public constants, as the filters are."""
STEPS, MU = 80, 0.26805
"""Number of steps at this mu, which is the budget of epsilon 1 at delta 1e-5."""
LEAST, MOST = 0.25, 16.0
"""Limits of a budget's mu / MU, beyond which the number of steps does not change."""
ROWS_VERSION = 1
"""Version of the rows, in the key of kept rows: raised when the features of a row change."""


@dataclass(frozen=True)
class PatchTraining(FeatureTraining):
    """Options of a private linear head on scattering and patch features, its training and its release."""

    fewest_steps: ClassVar[int] = 0
    added_options: ClassVar[tuple[str, ...]] = ("wide",)
    only_with: ClassVar[dict[str, str]] = {
        **FeatureTraining.only_with,
        "whitened": "whitening=private",
        "share": "whitening=private",
        "kappa": "whitening=private",
        "patch_share": "features=both whitening=auto|public",
    }

    features: Literal["both", "patches"] = "both"
    """Features of an image: scattering and responses to 800 filters (both), or the responses only (patches)."""
    patch_share: float = 0.5
    """Share of the patch features in a whitened row's squared norm, in (0, 1)."""
    wide: bool = False
    """Whether there are 1,600 filters instead of 800."""
    whitening: Literal["auto", "private", "public", "none"] = "auto"
    """Whiten each kind of features by those of images drawn from a prior (auto, public), or not (none); private, by the
    records' own second moment, is refused, as it would need too much of the budget for rows of this length."""
    drawings: Size[int] = 8000
    """Public whitening: number of images drawn from the data set's prior."""
    steps: Size[int] = 0
    """T, steps over all records; 0 = by the budget, 80 at epsilon 1; solved from the budget with --solve steps."""
    clip: float = 0.1
    """C, largest norm of a record's gradient; without clipping it is at most sqrt(2)."""
    logit_noise: float = 1.0
    """Standard deviation that the noise of all steps adds to a logit; determines the learning rate if `rate` is 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        inside(self, 0, 1, "patch_share")
        if self.whitening == "private":
            raise ValueError("whitening is private; expected auto, public or none")

    def network_name(self, shape: tuple[int, int, int]) -> str:
        """Return the name of the released network for images of shape (c, h, w)."""
        kind = "patch-wavelet-linear" if self.features == "both" else "patch-linear"
        return f"{'wide-' if self.wide else ''}{kind}{'-mirrored' if self.is_mirrored(shape) else ''}"

    def new_network(self, teacher: Teacher) -> Classifier:
        """Build the network and make its filters from drawings (step 1).

        The filters are the same for all seeds, so that runs share the features of the records.
        """
        network, rng = super().new_network(teacher), torch.Generator().manual_seed(0)
        _rows_of(network).patches.fit(draw(DICTIONARY, teacher, rng), rng)
        return network

    def kind(self, shape: tuple[int, int, int]) -> str:
        """Return the kind of whitening, public or none."""
        return "public" if self.whitening == "auto" else self.whitening

    def whiten(
        self,
        features: Tensor,
        network: Classifier,
        teacher: Teacher,
        spending: Spending,
        ctx: Context,
        weights: Tensor | None,
    ) -> tuple[Tensor, BlockWhitening | None]:
        """Whiten each block of the rows by the features of drawings (step 2); arguments as `FeatureTraining.whiten`.

        The result is cached: drawings are the same for all seeds, so that runs with other seeds and budgets share it.

        Returns:
            (n, d) float16 rows of norm at most 1, and the whitening; None without one.
        """
        if self.kind(teacher.shape) == "none":
            return half_rows(features, ctx.device), None
        drawn = draw(self.drawings, teacher, torch.Generator().manual_seed(DRAWINGS_SEED))
        shares = (1 - self.patch_share, self.patch_share) if self.features == "both" else (1.0,)

        def make() -> dict[str, Tensor]:
            public = half_rows(features_of(network, drawn, ctx), ctx.device)
            white = BlockWhitening.of_public(public, _rows_of(network).blocks, shares, self.rho)
            return {"rows": white(features), **white.state()}

        key = {
            "filters": digest_of(network), "features": sha256(features), "drawings": sha256(drawn),
            "network": self.network_name(teacher.shape), "shares": list(shares), "rho": self.rho,
            "version": [ROWS_VERSION, WHITENING_VERSION],
        }  # fmt: skip
        kept = ctx.artifacts.get("whitened-features", key, make)
        found = {name: tensor.to(ctx.device) for name, tensor in kept.items()}
        return found["rows"], BlockWhitening.of_state(found)

    def spending(self, kind: str, budget: Budget, images: float = 0.0) -> Spending:
        """Calibrate to `budget` as `FeatureTraining`; without private whitening, and with T by the budget (step 3)."""
        if kind == "auto":
            kind = "public"
        if self.steps:
            return super().spending(kind, budget, images)
        usual = replace(self, steps=STEPS).spending(kind, budget, images)
        if budget.solve != "sigma":
            return usual
        # A budget determines mu for any number of steps
        return replace(self, steps=steps_for(usual.mu)).spending(kind, budget, images)


def draw(count: int, teacher: Teacher, rng: torch.Generator) -> Tensor:
    """Return (count, c, h, w) float32 images that are drawn from the prior of the teacher's data set."""
    return priors.for_dataset(priors.AUTO, teacher.dataset).draw(count, teacher.shape, rng)


def steps_for(mu: float) -> int:
    """Return the number of steps for a budget's mu: more where less noise allows them; mu is infinite without noise.

    >>> [steps_for(mu) for mu in (0.0, 0.26805, 0.71912, 1.66603, math.inf)]
    [40, 80, 131, 199, 320]
    """
    return round(STEPS * math.sqrt(min(max(mu / MU, LEAST), MOST)))


def _rows_of(network: Classifier) -> PatchRows:
    """Return the layer of a network that computes the rows."""
    (rows,) = (layer for layer in network.modules() if isinstance(layer, PatchRows))
    return rows
