"""Private features: a linear layer on fixed wavelet features, trained with noise on all private records at once.

1. Features. A record's 81 scattering maps per channel, normalised in groups of three maps, become a row u of norm 1
   (`bench/nets/classifiers/wavelet_nets.py`), which depends only on that record and public constants. Rows are computed
   once per data set. With `features timm:NAME` the row is that of the pooled features of a timm network instead, whose
   pretrained weights are public (`bench/nets/backbone.py`); it is not whitened unless `whitening` says so.
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

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from bench import nets
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Size
from bench.dp_training.backbone_tuning import AT_ONCE, BackboneTuning
from bench.dp_training.clipping import MOST_CHUNK
from bench.dp_training.feature_training import SMOKE, FeatureTraining
from bench.dp_training.record_groups import refuse_unread_bound
from bench.dp_training.records import private_records
from bench.nets import Classifier
from bench.nets.backbone import LARGEST, SMALLEST, BackboneName
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame
from bench.validate import at_least, between, positive

WAVELETS = ("auto", "scattering")
"""Values of `features` besides networks of timm."""
TIMM = "timm:"


@dataclass(frozen=True)
class PrivateFeatures(FeatureTraining):
    """A private linear layer on fixed features; the network is released."""

    version: ClassVar[int] = 2
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "this project; Tramer and Boneh, ICLR 2021; Mehta et al., TMLR 2023"
    tiers: ClassVar[Tiers] = {"smoke": SMOKE}
    protects_groups: ClassVar[bool] = True
    only_with: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("whitening", "rate", "momentum", "average", "neighbours"), "tune=head"),
        **{name: f"{condition} tune=head" for name, condition in FeatureTraining.only_with.items()},
        "mirrored": "features=auto|scattering",
        "image_size": "features=timm:*",
        "tune": "features=timm:*",
        "rank": "tune=lora",
        "batch": "tune=bias|lora",
        "step_length": "tune=bias|lora",
    }

    features: str = "auto"
    """Fixed features of an image: scattering; or timm:NAME, pooled features of a pretrained timm network, whose weights
    are public data (--pretrained); auto = scattering."""
    whitening: Literal["auto", "private", "public", "none"] = "auto"
    """Whiten feature rows by their own noisy second moment (private), by that of images drawn from a prior (public), or
    not (none); auto = private, for colour images public, for a pretrained network none."""
    image_size: int = 160
    """Side in pixels to which images are resized for the timm network, such as 160 or 224."""
    tune: Literal["head", "bias", "lora"] = "head"
    """Parameters that are trained: the linear layer on the features (head); or by DP-SGD also all biases of the timm
    network (bias), or low-rank updates of its attention layers (lora)."""
    rank: int = 8
    """Rank of the low-rank updates."""
    batch: Size[int] = 1024
    """Expected number of records in a batch of DP-SGD."""
    step_length: float = 0.5
    """Learning rate times C of DP-SGD."""
    max_per_group: int = 64
    """With --unit group: largest number of records of a group that are used, 1 to 256; a public order chooses them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        between(self, 1, MOST_CHUNK, "max_per_group")
        between(self, SMALLEST, LARGEST, "image_size")
        at_least(self, 1, "rank", "batch")
        positive(self, "step_length")
        if self.features not in WAVELETS and not (self.is_pretrained and self.features.removeprefix(TIMM)):
            raise ValueError(f"features is {self.features}; expected {', '.join(WAVELETS)} or {TIMM}NAME")

    @property
    def is_pretrained(self) -> bool:
        """Return whether the features are those of a pretrained timm network."""
        return self.features.startswith("timm:")

    @property
    def is_tuned(self) -> bool:
        """Return whether parameters of the pretrained network are trained, too."""
        return self.is_pretrained and self.tune != "head"

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Return the inputs: the private records, and pretrained weights for features of a timm network."""
        # Constants here, so that the manifest lists all values
        if self.features == "auto" or self.features == "scattering" or not self.features.startswith("timm:"):
            return frozenset({"private_data"})
        return frozenset({"private_data", "pretrained_weights"})

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Also refuse a `max_per_group` that is not read, and a network without parameters to tune."""
        refuse_unread_bound(self.max_per_group, PrivateFeatures.max_per_group, budget)
        if self.is_tuned:
            return self._tuning().check(self.backbone(), budget)
        super().check(budget, dataset, classes)

    def group_bound(self) -> int:
        """Return `max_per_group`."""
        return self.max_per_group

    def backbone(self) -> BackboneName:
        """Return the timm network of the features and its image size."""
        return BackboneName(self.features.removeprefix(TIMM), self.image_size)

    def network_name(self, shape: tuple[int, int, int]) -> str:
        """Return the name of the released network for images of shape (c, h, w)."""
        return str(self.backbone()) if self.is_pretrained else super().network_name(shape)

    def new_network(self, teacher: Teacher) -> Classifier:
        """Build the network that will be released, with the pretrained weights if it has any."""
        return copy.deepcopy(teacher.pretrained_network()) if self.is_pretrained else super().new_network(teacher)

    def gradients_at_once(self, dataset: str, group_sizes: Sequence[int] = ()) -> int:
        """Return the number of records that are propagated back through the timm network at once; 0 for tune head."""
        return min(self.batch, AT_ONCE) if self.is_tuned else 0

    def trained_weights(self, shape: tuple[int, int, int], classes: int) -> int:
        """Return the number of weights that are trained, with those of the linear layer."""
        return self._tuning().count_trained(nets.build(str(self.backbone()), shape, classes))

    def kind(self, shape: tuple[int, int, int]) -> str:
        """Return the kind of whitening for images of shape (c, h, w)."""
        return "none" if self.is_pretrained and self.whitening == "auto" else super().kind(shape)

    def positions(self, features: int, shape: tuple[int, int, int]) -> int:
        """Return the number of image positions that are whitened alike; pooled features have one."""
        return 1 if self.is_pretrained else super().positions(features, shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run steps 1 to 4, or DP-SGD on the linear layer and parameters of the timm network (`backbone_tuning`)."""
        if not self.is_tuned:
            return super().convert(teacher, student, budget, ctx)
        name, tuning, network = self.backbone(), self._tuning(), self.new_network(teacher)
        parameters = tuning.train(network, name, private_records(teacher), budget, ctx)
        claim = tuning.claim(parameters, budget.delta)
        return Release(network, str(name), parameters.ledger(), claim, solved=parameters.solved())

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the audit's game of `FeatureTraining`, or of DP-SGD's step."""
        return self._tuning().game(budget) if self.is_tuned else super().game(budget, dataset, classes)

    def _tuning(self) -> BackboneTuning:
        what: Literal["bias", "lora"] = "lora" if self.tune == "lora" else "bias"
        return BackboneTuning(what, self.rank, self.batch, self.steps, self.multiplier, self.clip, self.step_length)
