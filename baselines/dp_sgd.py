"""DP-SGD: a network trained on the private records by clipped gradients and Gaussian noise, and released.

Reference: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1.

Every step: (1) each record is in the batch with probability q; (2) g_i, the gradient of record i's loss; (3)
g_i <- g_i min(1, C / ||g_i||); (4) g = (sum_i g_i + N(0, sigma^2 C^2)) / (qN); (5) a step of SGD along g. It is
`bench/dp_training/dp_sgd.py`. The undefended teacher of the run is not used.

Privacy. T Poisson-sampled Gaussians of multiplier sigma, for one private record added or removed. Claim and account are
the same number, so that `--account` makes no difference; `--solve sigma` and `--solve steps` are calibrated on the
bench's accountant. The number of private records is public. The choice of hyper-parameters is not accounted.

Groups. With `--unit group` all records of a group, such as a patient, are protected together: a group is in the batch
with probability q, g_i is the mean gradient of its records, clipped to C, and N is the number of groups, which is
public. Of a group with more than `max_per_group` records, that many are used, chosen by a public order of all records.
The account is the same, for one group added or removed.

Differs from the paper:
- Accounted by privacy loss distributions instead of the paper's moments accountant, whose bound is looser.
- Batches are Poisson samples, as the analysis requires; the sum is divided by the expected batch size, not by the
  number of records drawn.
- The networks are those of Papernot et al. (AAAI 2021) with ReLU, so that `ts-adp` differs only in the activation. The
  paper has differentially private PCA before one hidden layer on MNIST, and on CIFAR-10 convolutions that were
  pretrained on CIFAR-100; here no public data are used.
- Batch, steps, rate, momentum and C are those of Tramer and Boneh (ICLR 2021) for these networks. Their code normalises
  CIFAR-10's channels by public means and deviations; here pixels are from 0 to 1 (`mean`, `std`).
- Unit group is not in the paper.
- `student` trains the network of the run's `--student`, for which no settings are published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench import validate
from bench.api.context import Tiers
from bench.dp_training.clipping import MOST_CHUNK
from bench.dp_training.private_classifier import QUICK, SMOKE, STANDARD, PrivateTraining
from bench.dp_training.record_groups import refuse_unread_bound
from bench.errors import BadOption
from bench.privacy import Budget


@dataclass(frozen=True)
class DpSgd(PrivateTraining):
    """DP-SGD on the private records; the trained network is released."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Abadi et al., CCS 2016, Algorithm 1"
    source: ClassVar[str] = "DP-SGD (Abadi et al. 2016, Algorithm 1)"
    protects_groups: ClassVar[bool] = True
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE,
        "quick": {**QUICK, "network": "relu-cnn"},
        "standard": {**STANDARD, "network": "relu-cnn"},
    }

    max_per_group: int = 64
    """With --unit group: largest number of records of a group that are used, 1 to 256; a public order chooses them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.between(self, 1, MOST_CHUNK, "max_per_group")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Also refuse a `max_per_group` that is not read."""
        refuse_unread_bound(self.max_per_group, DpSgd.max_per_group, budget)
        super().check(budget, dataset, classes)

    def group_bound(self) -> int:
        """Return `max_per_group`."""
        return self.max_per_group

    def check_groups(self, count: int, dataset: str) -> None:
        """Raise BadOption if the expected batch is larger than the number of groups."""
        if (batch := self.settings(dataset).batch) > count:
            raise BadOption(
                f"--unit group: the batch of {batch} groups is larger than the {count} private groups of data set "
                f"'{dataset}'; give --method.batch {count} or less"
            )
