"""Private training of a linear layer ("head") on fixed wavelet features; shared by the baselines that release it.

`baselines/private_features.py` describes the algorithm, its steps 1 to 4, and its privacy. mu is the parameter of
Gaussian differential privacy; squared mu's of composed mechanisms add up, so a release can have a share of mu^2.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from bench import data, nets, priors
from bench.api import Context, Release, Teacher
from bench.config import Size, Solved
from bench.dp_training.backbone_tuning import BackboneTuning
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP
from bench.dp_training.fixed_features import digest_of, features_of, half_rows, kept_features, unit_rows
from bench.dp_training.games import accounted_game
from bench.dp_training.group_clipping import GroupProducts
from bench.dp_training.head_accounting import Neighbours, Spending, calibrated
from bench.dp_training.linear_head import HeadSettings, noisy_descent, played_gradients
from bench.dp_training.record_groups import RecordGroups, groups_of
from bench.dp_training.records import private_records
from bench.dp_training.whitening import (
    BlockWhitening,
    Whitening,
    played_moments,
    private_whitening,
    public_whitening,
)
from bench.nets import Classifier
from bench.nets.backbone import LARGEST, SMALLEST, BackboneName
from bench.nets.classifiers.patch_nets import PatchFeatures, PatchRows
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.validate import at_least, below, between, inside, positive

SMOKE: dict[str, int] = {"steps": 3, "drawings": 64}
OWN_FEATURES = ("auto", "scattering", "patches", "both")
"""Values of `features` besides networks of timm."""
DICTIONARY = 2000
"""Number of drawings from which the filters of patch features are made."""
STEPS, LEAST_MU = 80, 0.26805
"""Number of steps at that mu, which is the budget of epsilon 1 at delta 1e-5, if `steps` is 0."""
MOST_GAIN = 16.0
"""Largest multiple of `LEAST_MU` that still raises the number of steps."""
TIMM = "timm:"
LONG = 5000
"""Number of features above which the maps are whitened instead of the whole row."""
FASTEST = 400.0
"""Largest learning rate times C; it applies with little or no noise."""


@dataclass(frozen=True)
class FeatureTraining:
    """Options of a private linear head, its training and its release; the defaults suit two CPU cores."""

    releases_images: ClassVar[bool] = False
    trains_student: ClassVar[bool] = False
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    seen_test_sets: ClassVar[dict[str, str]] = {
        "cifar10": "mirroring, public whitening and its shift rho were chosen",
        "usps": "settings of the head and of the private whitening were chosen",
    }
    only_with: ClassVar[dict[str, str]] = {
        "whitening": "tune=head",
        "whitened": "whitening=auto|private|public tune=head",
        "share": "whitening=auto|private tune=head",
        "kappa": "whitening=auto|private tune=head",
        "rho": "whitening=auto|public tune=head",
        "drawings": "whitening=auto|public tune=head",
        "rate": "tune=head",
        "logit_noise": "rate=0.0 tune=head",
        "momentum": "tune=head",
        "average": "tune=head",
        "neighbours": "tune=head",
        "mirrored": "features=auto|scattering|patches|both",
        "patch_share": "features=both whitening=auto|public",
        "image_size": "features=timm:*",
        "tune": "features=timm:*",
        "rank": "tune=lora",
        "batch": "tune=bias|lora",
        "step_length": "tune=bias|lora",
    }

    features: str = "auto"
    """Fixed features of an image: scattering; patches, responses to 800 filters made from drawings; both; or timm:NAME,
    pooled features of a pretrained timm network, whose weights are public data (--pretrained); auto = scattering."""
    patch_share: float = 0.5
    """Share of the patch features in a whitened row's squared norm, in (0, 1)."""
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

    whitening: Literal["auto", "private", "public", "none"] = "auto"
    """Whiten feature rows by their own noisy second moment (private), by that of images drawn from a prior (public), or
    not (none); auto = private, for colour images public, for a pretrained network none."""
    whitened: Literal["auto", "rows", "maps"] = "auto"
    """Whiten whole feature rows (rows), or the features of each image position by one common matrix (maps); auto = rows
    up to 5,000 features."""
    share: float = 0.2
    """Share of the privacy cost mu^2 that the private whitening has, in (0, 1)."""
    kappa: float = 1.0
    """Private whitening: multiple of the identity added to the noisy second moment, in units of the noise's largest
    eigenvalue."""
    rho: float = 0.3
    """Public whitening: multiple of the identity added to the drawn images' covariance, in units of its mean diagonal.
    """
    drawings: Size[int] = 6000
    """Public whitening: number of images drawn from the data set's prior."""
    steps: Size[int] = 120
    """T, steps over all records; 0 = by the budget, 80 at epsilon 1; solved from the budget with --solve steps."""
    clip: float = 0.03
    """C, largest norm of a record's gradient; without clipping it is at most sqrt(2)."""
    multiplier: Solved[float] = 30.0
    """z, noise of a step divided by its sensitivity to one record; solved from the budget unless --solve steps or none.
    """
    rate: float = 0.0
    """Learning rate times C; 0 = the rate at which the noise on a logit is `logit_noise`."""
    logit_noise: float = 0.75
    """Standard deviation that the noise of all steps adds to a logit; determines the learning rate if `rate` is 0."""
    momentum: float = 0.0
    """Momentum of the descent, in [0, 1)."""
    average: float = 0.0
    """Fraction of the last steps whose weights are averaged; 0 = the last weights."""
    mirrored: Literal["auto", "yes", "no"] = "auto"
    """Whether features are averaged over an image and its mirror image; auto = yes for colour images."""
    neighbours: Neighbours = "add-or-remove"
    """Neighbours for which the noise is calibrated: one record added or removed, or one record replaced."""

    def __post_init__(self) -> None:
        inside(self, 0, 1, "share", "patch_share")
        positive(self, "kappa", "rho", "logit_noise")
        at_least(self, 0, "multiplier", "rate", "momentum")
        at_least(self, 0, "steps")
        at_least(self, 2, "drawings")
        between(self, LEAST_CLIP, LARGEST_CLIP, "clip")
        between(self, 0, 1, "average")
        below(self, 1, "momentum")
        between(self, SMALLEST, LARGEST, "image_size")
        at_least(self, 1, "rank", "batch")
        positive(self, "step_length")
        if self.features not in OWN_FEATURES and not (self.is_pretrained and self.features.removeprefix(TIMM)):
            raise ValueError(f"features is {self.features}; expected {', '.join(OWN_FEATURES)} or {TIMM}NAME")
        if self.has_patches and self.whitening == "private":
            raise ValueError(f"whitening is private with features {self.features}; expected auto, public or none")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, for a unit that is not protected or a budget that no noise meets."""
        if self.is_tuned:
            return self._tuning().check(self.backbone(), budget)
        self.spending(self.whitening, budget)

    @property
    def needs(self) -> frozenset[str]:
        """Return the inputs: the private records, and pretrained weights for features of a timm network."""
        if self.features == "auto" or self.features == "scattering":  # texts that the manifest can list
            return frozenset({"private_data"})
        return frozenset({"private_data", "pretrained_weights"} if self.is_pretrained else {"private_data"})

    @property
    def has_patches(self) -> bool:
        """Return whether the rows have patch features."""
        return self.features in ("patches", "both")

    @property
    def is_pretrained(self) -> bool:
        """Return whether the features are those of a pretrained timm network."""
        return self.features.startswith("timm:")

    @property
    def is_tuned(self) -> bool:
        """Return whether parameters of the pretrained network are trained, too."""
        return self.is_pretrained and self.tune != "head"

    def backbone(self) -> BackboneName:
        """Return the timm network of the features and its image size."""
        return BackboneName(self.features.removeprefix(TIMM), self.image_size)

    def spending(self, kind: str, budget: Budget, images: float = 0.0) -> Spending:
        """Calibrate the mechanism parameters to `budget` for this kind of whitening.

        Args:
            kind: value of `whitening`.
            images: fraction of mu^2 reserved for class moments, in [0, 1).
        """
        share = self.share * (1 - images) if kind in ("auto", "private") and not self.has_patches else 0.0
        unit = Unit.GROUP if budget.unit == Unit.GROUP and self.group_bound() else Unit.EXAMPLE
        steps, bound = self.steps or STEPS, self.group_bound()
        fields = Spending(steps, self.multiplier, share, self.neighbours, images, unit, bound)
        if not self.steps and budget.solve == "sigma":  # mu follows from the budget alone
            fields = replace(fields, steps=steps_for(calibrated(fields, budget).mu))
        return calibrated(fields, budget)

    def group_bound(self) -> int:
        """Return the largest number of records of a group that are used; 0 for a method without groups."""
        return 0

    def head(self, records: int, steps: int, mu: float) -> HeadSettings:
        """Return the training settings of the head whose T steps together are one Gaussian of `mu`.

        An infinite `mu` means no noise.

        A step's noise z C / n enters the weights multiplied by rate / (1 - momentum). Over T steps of multiplier z =
        sqrt(T) / mu this is rate C T / (n mu (1 - momentum)) on every weight, and on the logit of every row of norm 1.
        It is twice that if a record is replaced, which changes a sum by 2 C.
        """
        quiet = self.logit_noise * records * mu * (1 - self.momentum) / steps
        if self.neighbours == "replace":
            quiet /= 2
        rate = self.rate or min(quiet, FASTEST)
        return HeadSettings(steps, self.clip, rate / self.clip, self.momentum, self.average)

    def networks(self, shape: tuple[int, int, int], student: str) -> tuple[str, ...]:
        """Return the names of the networks that are built in addition to the teacher's."""
        return (self.network_name(shape),)

    def network_name(self, shape: tuple[int, int, int]) -> str:
        """Return the name of the released network for images of shape (c, h, w)."""
        if self.is_pretrained:
            return str(self.backbone())
        kind = {"patches": "patch-linear", "both": "patch-wavelet-linear"}.get(self.features, "wavelet-linear")
        return f"{kind}{'-mirrored' if self._mirrors(shape) else ''}"

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run steps 1 to 4 and return the release; `teacher.model` is not used."""
        if self.is_tuned:
            return self._tune(teacher, budget, ctx)
        groups = groups_of(teacher, budget, self.group_bound())
        return self.train(teacher, self.spending(self.kind(teacher.shape), budget), budget.delta, ctx, groups)

    def train(
        self, teacher: Teacher, spending: Spending, delta: float, ctx: Context, groups: RecordGroups | None = None
    ) -> Release:
        """Run steps 1 to 4 with the given noise; any class moments in `spending` must be released by the caller.

        Args:
            groups: the groups of the records, for unit group; None for unit example.
        """
        return self.train_and_whiten(teacher, spending, delta, ctx, groups)[0]

    def train_and_whiten(
        self, teacher: Teacher, spending: Spending, delta: float, ctx: Context, groups: RecordGroups | None = None
    ) -> tuple[Release, Whitening | BlockWhitening | None]:
        """Train as `train`; also return the whitening (None without one), which the same privacy account covers."""
        images, labels = private_records(teacher)
        name = self.network_name(teacher.shape)
        network = self._new_network(name, teacher).to(ctx.device)  # needed if features are cached
        digest = digest_of(network) if self.is_pretrained or self.has_patches else ""
        features, weights, products = kept_features(network, name, images, ctx, digest), None, None  # 1
        if groups is not None:
            features, labels = features[groups.records], labels[groups.records]
            weights = (1 / groups.sizes).repeat_interleave(groups.sizes).to(ctx.device)
        white: Whitening | BlockWhitening | None
        if self.has_patches:
            white = self._block_whitening(network, teacher, ctx)
            rows = half_rows(features, ctx.device) if white is None else white(features)  # 2
        else:
            rows = unit_rows(features, ctx.device)
            white = self._whitening(self.kind(teacher.shape), rows, network, teacher, spending, ctx, weights)  # 2
            rows = rows if white is None else white(rows)
        if groups is not None:
            products = GroupProducts.of(rows, groups.sizes)
        units = len(rows) if groups is None else len(groups)
        # The number of steps in the ledger, which may have been solved from the budget
        settings = self.head(units, spending.steps, spending.mu * math.sqrt(spending.of_steps))
        noise, std = ctx.privacy_noise("gradients"), spending.gradient_noise(self.clip)
        weight = noisy_descent(
            rows, labels.to(ctx.device), teacher.classes, settings, std, noise, ctx, "private head", products
        )  # 3
        assign_head(network, weight, white)  # 4
        solved = spending.solved() | {"rate": settings.rate * self.clip}
        return Release(network.eval(), name, spending.ledger(), spending.claim(delta), solved=solved), white

    def _new_network(self, name: str, teacher: Teacher) -> Classifier:
        """Build the network that will be released, with pretrained weights or filters if the features have any.

        The filters are the same for all seeds, so that runs share features.
        """
        if self.is_pretrained:
            return copy.deepcopy(teacher.pretrained_network())
        network = nets.build(name, teacher.shape, teacher.classes)
        if self.has_patches:
            rng = torch.Generator().manual_seed(0)
            drawings = priors.for_dataset(priors.AUTO, teacher.dataset).draw(DICTIONARY, teacher.shape, rng)
            for module in network.modules():
                if isinstance(module, PatchFeatures):
                    module.fit(drawings, rng)
        return network

    def _tuning(self) -> BackboneTuning:
        what: Literal["bias", "lora"] = "lora" if self.tune == "lora" else "bias"
        return BackboneTuning(what, self.rank, self.batch, self.steps, self.multiplier, self.clip, self.step_length)

    def _tune(self, teacher: Teacher, budget: Budget, ctx: Context) -> Release:
        """Train the linear layer and parameters of the timm network by DP-SGD (`backbone_tuning`)."""
        name, tuning = self.backbone(), self._tuning()
        network = self._new_network(str(name), teacher)
        parameters = tuning.train(network, name, private_records(teacher), budget, ctx)
        claim = tuning.claim(parameters, budget.delta)
        return Release(network, str(name), parameters.ledger(), claim, solved=parameters.solved())

    def _mirrors(self, shape: tuple[int, int, int]) -> bool:
        return shape[0] == 3 if self.mirrored == "auto" else self.mirrored == "yes"

    def kind(self, shape: tuple[int, int, int]) -> str:
        """Return the kind of whitening for images of shape (c, h, w)."""
        if self.whitening != "auto":
            return self.whitening
        if self.is_pretrained:
            return "none"
        return "public" if shape[0] == 3 or self.has_patches else "private"

    def _whitening(
        self,
        kind: str,
        rows: Tensor,
        network: Classifier,
        teacher: Teacher,
        spending: Spending,
        ctx: Context,
        weights: Tensor | None,
    ) -> Whitening | None:
        """Compute the whitening (step 2); `weights` are those of the rows in the second moment."""
        _, height, width = teacher.shape
        whole = rows.shape[1] <= LONG if self.whitened == "auto" else self.whitened == "rows"
        whole = whole or self.is_pretrained  # pooled features have no positions
        places = 1 if whole else (height // 4) * (width // 4)
        if kind == "private":
            noise = ctx.privacy_noise("second moment")
            return private_whitening(rows, places, spending.moment_noise, self.kappa, noise, weights)
        if kind == "public":
            prior = priors.for_dataset(priors.AUTO, teacher.dataset)
            drawn = prior.draw(self.drawings, teacher.shape, ctx.generator("drawings"))
            return public_whitening(unit_rows(features_of(network, drawn, ctx), ctx.device), places, self.rho)
        return None

    def _block_whitening(self, network: Classifier, teacher: Teacher, ctx: Context) -> BlockWhitening | None:
        """Compute the whitening of rows with patch features by the features of drawings (step 2)."""
        if self.whitening == "none":
            return None
        prior = priors.for_dataset(priors.AUTO, teacher.dataset)
        drawn = prior.draw(self.drawings, teacher.shape, ctx.generator("drawings"))
        rows = half_rows(features_of(network, drawn, ctx), ctx.device)
        blocks = [module.blocks for module in network.modules() if isinstance(module, PatchRows)]
        shares = (1 - self.patch_share, self.patch_share) if self.features == "both" else (1.0,)
        return BlockWhitening.of_public(rows, blocks[0], shares, self.rho)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the audit's game: one step's noisy gradient, and the noisy second moment if there is one."""
        if self.is_tuned:
            return self._tuning().game(budget)
        shape = data.facts(dataset).shape
        spending = self.spending(self.whitening if shape is None else self.kind(shape), budget)
        who = "a group of records" if spending.unit == Unit.GROUP else "a record"
        describe = f"one step's noisy gradient, and a noisy second moment if there is one, with {who} and without"

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            return self.play(spending, classes, world, n, generator)

        return accounted_game(play, spending.ledger(steps=1), budget.delta, describe, spending.unit)

    def play(self, spending: Spending, classes: int, world: bool, n: int, generator: torch.Generator) -> Tensor:
        """Return (n, d): n plays of the releases in `spending` except class moments; only world 1 has the record."""
        std, grouped = spending.gradient_noise(self.clip), spending.unit == Unit.GROUP
        found = [played_gradients(classes, self.clip, std, world, n, generator, grouped)]
        if spending.share:
            found.append(played_moments(spending.moment_noise, world, n, generator, grouped))
        return torch.cat(found, 1)


def steps_for(mu: float) -> int:
    """Return the number of steps for this budget: more where less noise allows them, STEPS at `LEAST_MU`.

    An infinite mu means no noise.
    """
    return round(STEPS * math.sqrt(min(max(mu / LEAST_MU, 0.25), MOST_GAIN)))


@torch.no_grad()
def assign_head(network: Classifier, weight: Tensor, white: Whitening | BlockWhitening | None) -> None:
    """Install a head trained on whitened rows into a network whose features have norm sqrt(d), in place."""
    folded, bias = (weight, torch.zeros(len(weight))) if white is None else white.folded(weight)
    head = cast(nn.Linear, network.body.head)
    head.weight.copy_(folded / math.sqrt(head.in_features))
    head.bias.copy_(bias)
