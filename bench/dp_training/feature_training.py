"""Private training of a linear layer ("head") on fixed features; shared by the baselines that release it.

`baselines/private_features.py` describes the algorithm, its steps 1 to 4, and its privacy. The class here has wavelet
features; baselines with other features override how the network is built and how rows are whitened. mu is the parameter
of Gaussian differential privacy; squared mu's of composed mechanisms add up, so a release can have a share of mu^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from bench import data, nets, priors
from bench.api import Context, Release, Teacher
from bench.config import Size, Solved
from bench.dp_training.block_whitening import BlockWhitening
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP
from bench.dp_training.fixed_features import features_of, kept_features, unit_rows
from bench.dp_training.games import accounted_game
from bench.dp_training.group_clipping import GroupProducts
from bench.dp_training.head_accounting import Neighbours, Spending, calibrated
from bench.dp_training.linear_head import HeadSettings, noisy_descent, played_gradients
from bench.dp_training.record_groups import RecordGroups, groups_of
from bench.dp_training.records import private_records
from bench.dp_training.whitening import Whitening, played_moments, private_whitening, public_whitening
from bench.nets import Classifier
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.progress import notify
from bench.validate import at_least, below, between, inside, positive

SMOKE: dict[str, int] = {"steps": 3, "drawings": 64}
WHITENED_BY = {
    "private": "by the noisy second moment of the records",
    "public": "by drawings, at no privacy cost",
    "none": "rows stay as they are",
}
LONG = 5000
"""Number of features above which the maps are whitened instead of the whole row."""
FASTEST = 400.0
"""Largest learning rate times C; it applies with little or no noise."""


@dataclass(frozen=True)
class FeatureTraining:
    """Options of a private linear head, its training and its release; the defaults suit two CPU cores."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    releases_images: ClassVar[bool] = False
    trains_student: ClassVar[bool] = False
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    fewest_steps: ClassVar[int] = 1
    seen_test_sets: ClassVar[dict[str, str]] = {
        "cifar10": "mirroring, public whitening and its shift rho were chosen",
        "usps": "settings of the head and of the private whitening were chosen",
    }
    only_with: ClassVar[dict[str, str]] = {
        "whitened": "whitening=auto|private|public",
        "share": "whitening=auto|private",
        "kappa": "whitening=auto|private",
        "rho": "whitening=auto|public",
        "drawings": "whitening=auto|public",
        "logit_noise": "rate=0.0",
    }

    whitening: Literal["auto", "private", "public", "none"] = "auto"
    """Whiten feature rows by their own noisy second moment (private), by that of images drawn from a prior (public), or
    not (none); auto = private, for colour images public."""
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
    """T, steps over all records; solved from the budget with --solve steps."""
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
        inside(self, 0, 1, "share")
        positive(self, "kappa", "rho", "logit_noise")
        at_least(self, 0, "multiplier", "rate", "momentum")
        at_least(self, self.fewest_steps, "steps")
        at_least(self, 2, "drawings")
        between(self, LEAST_CLIP, LARGEST_CLIP, "clip")
        between(self, 0, 1, "average")
        below(self, 1, "momentum")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, for a unit that is not protected or a budget that no noise meets."""
        self.spending(self.whitening, budget)

    def spending(self, kind: str, budget: Budget, images: float = 0.0) -> Spending:
        """Calibrate the mechanism parameters to `budget` for this kind of whitening.

        Args:
            kind: value of `whitening`.
            images: fraction of mu^2 reserved for class moments, in [0, 1).
        """
        share = self.share * (1 - images) if kind in ("auto", "private") else 0.0
        unit = Unit.GROUP if budget.unit == Unit.GROUP and self.group_bound() else Unit.EXAMPLE
        fields = Spending(self.steps, self.multiplier, share, self.neighbours, images, unit, self.group_bound())
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
        return f"wavelet-linear{'-mirrored' if self.is_mirrored(shape) else ''}"

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run steps 1 to 4 and return the release; `teacher.model` is not used."""
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
        network = self.new_network(teacher).to(ctx.device)  # needed if features are cached
        features, weights, products = kept_features(network, name, images, ctx), None, None  # 1
        kind = self.kind(teacher.shape)
        notify(f"features: {features.shape[1]:,} of each image, by {name}; whitening {kind}, {WHITENED_BY[kind]}")
        if groups is not None:
            features, labels = features[groups.records], labels[groups.records]
            weights = (1 / groups.sizes).repeat_interleave(groups.sizes).to(ctx.device)
        rows, white = self.whiten(features, network, teacher, spending, ctx, weights)  # 2
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

    def new_network(self, teacher: Teacher) -> Classifier:
        """Build the network that will be released; its features are fixed, its last layer is not yet trained."""
        return nets.build(self.network_name(teacher.shape), teacher.shape, teacher.classes)

    def is_mirrored(self, shape: tuple[int, int, int]) -> bool:
        """Return whether features of images of shape (c, h, w) are averaged over the image and its mirror image."""
        return shape[0] == 3 if self.mirrored == "auto" else self.mirrored == "yes"

    def kind(self, shape: tuple[int, int, int]) -> str:
        """Return the kind of whitening for images of shape (c, h, w)."""
        if self.whitening != "auto":
            return self.whitening
        return "public" if shape[0] == 3 else "private"

    def whiten(
        self,
        features: Tensor,
        network: Classifier,
        teacher: Teacher,
        spending: Spending,
        ctx: Context,
        weights: Tensor | None,
    ) -> tuple[Tensor, Whitening | BlockWhitening | None]:
        """Compute the whitening and the whitened rows, of norm 1 (step 2).

        Args:
            features: (n, d) float16, of any norm, on the CPU.
            weights: (n,) weights of the rows in the second moment; None = 1.

        Returns:
            (n, d) rows on the context's device, and the whitening; None without one.
        """
        kind, rows = self.kind(teacher.shape), unit_rows(features, ctx.device)
        positions = self.positions(rows.shape[1], teacher.shape)
        if kind == "private":
            noise = ctx.privacy_noise("second moment")
            white = private_whitening(rows, positions, spending.moment_noise, self.kappa, noise, weights)
        elif kind == "public":
            drawn = unit_rows(self.features_of_drawings(network, teacher, ctx), ctx.device)
            white = public_whitening(drawn, positions, self.rho)
        else:
            return rows, None
        return white(rows), white

    def positions(self, features: int, shape: tuple[int, int, int]) -> int:
        """Return the number of image positions that are whitened alike; 1 if whole rows are whitened."""
        is_whole = features <= LONG if self.whitened == "auto" else self.whitened == "rows"
        return 1 if is_whole else (shape[1] // 4) * (shape[2] // 4)

    def features_of_drawings(self, network: Classifier, teacher: Teacher, ctx: Context) -> Tensor:
        """Return (drawings, d) float16: the features of images that are drawn from the data set's prior."""
        prior = priors.for_dataset(priors.AUTO, teacher.dataset)
        drawn = prior.draw(self.drawings, teacher.shape, ctx.generator("drawings"))
        return features_of(network, drawn, ctx)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the audit's game: one step's noisy gradient, and the noisy second moment if there is one."""
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


@torch.no_grad()
def assign_head(network: Classifier, weight: Tensor, white: Whitening | BlockWhitening | None) -> None:
    """Install a head trained on whitened rows into a network whose features have norm sqrt(d), in place."""
    folded, bias = (weight, torch.zeros(len(weight))) if white is None else white.folded(weight)
    head = cast(nn.Linear, network.body.head)
    head.weight.copy_(folded / math.sqrt(head.in_features))
    head.bias.copy_(bias)
