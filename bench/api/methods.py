"""Interfaces of methods: the teacher they convert, the release they return, and optional protocols."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from bench.api.access import Sampler, Shape
from bench.api.context import Context, Tiers
from bench.errors import BenchError, BudgetError
from bench.nets import Classifier, Ensemble
from bench.nets.backbone import BackboneName
from bench.privacy import Budget, Claim, Ledger, Unit

if TYPE_CHECKING:
    from bench.privacy.audit import DistinguishingGame


@dataclass(frozen=True)
class Shards:
    """Settings of a teacher ensemble: networks trained in parallel with Adam on disjoint parts of the private records.

    Attributes:
        count: n, the number of teachers.
        archs: names of their networks for `bench.nets.build`, assigned cyclically.
        partition: assignment of records to teachers: "hash" of the pixels; or as among the clients of a federation,
            "dirichlet": each class by Dirichlet shares; "dirichlet-balanced": likewise, except that a teacher that
            already has its equal share of all records gets no records of further classes.
        alpha: concentration of the Dirichlet shares, > 0.
        steps: optimiser steps; the learning rate falls linearly to 0 over them.
        batch: images per step from each part, drawn with replacement.
        lr: initial learning rate.
        weight_decay: decoupled (as in AdamW), >= 0.
        shift: random translation of the images by up to this many pixels.
        ridge: penalty of the ridge regression that fits networks with fixed features, in place of Adam.
    """

    count: int
    archs: tuple[str, ...]
    partition: str = "hash"
    alpha: float = 0.5
    steps: int = 3000
    batch: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.0
    shift: int = 0
    ridge: float = 0.01

    def __post_init__(self) -> None:
        for name in ("count", "steps", "batch"):
            if getattr(self, name) < 1:
                raise BenchError(f"the ensemble's {name} is {getattr(self, name)}; expected at least 1")
        if not (self.lr > 0 and self.weight_decay >= 0 and self.shift >= 0 and self.archs):
            raise BenchError(f"the ensemble's settings are out of range: {self}")


@dataclass(frozen=True)
class Teacher:
    """Input of a method: a trained private classifier, which must not be released itself.

    Attributes:
        model: maps (n, c, h, w) in [0, 1] to (n, classes) logits; in eval mode, on the context's device, frozen.
            Calling it raises RuntimeError unless the method's `needs` include "teacher".
        arch: its architecture name for `bench.nets.build`.
        shape: (c, h, w) of one image.
        classes: number of classes.
        dataset: name of the private data set, for settings that a paper chooses per data set.
        private: (n, c, h, w) uint8 images and (n,) int64 labels of the private records; None unless the method's
            `needs` include "private_data".
        ensemble: the teachers requested by the method's `shards`, frozen; None unless its `needs` include
            "teacher_ensemble".
        public: (n, c, h, w) uint8, unlabelled images from the private data's distribution, which are in no teacher's
            training records and which no attacker has; None unless the method's `needs` include "public_data".
        pretrained: a network with public pretrained weights, in eval mode, on the CPU: the one that the method's
            `backbone` names; None unless its `needs` include "pretrained_weights". Its weights are shared; copy it.
        guests: number of records at the end of `private` that are an audit's canaries; they must not change which
            client of a federation holds any other record (`bench.data.partition.with_guests`).
        groups: (n,) int64, the number of each private record's group, such as its patient; equal numbers are one group.
            None if the groups are unknown, or unless `needs` include "private_data".
    """

    model: nn.Module
    arch: str
    shape: Shape
    classes: int
    dataset: str
    private: tuple[Tensor, Tensor] | None = None
    ensemble: Ensemble | None = None
    public: Tensor | None = None
    guests: int = 0
    pretrained: Classifier | None = None
    groups: Tensor | None = None

    def members(self) -> Ensemble:
        """Return the ensemble. Raises RuntimeError if the method did not request one."""
        if self.ensemble is None:
            raise RuntimeError('the method uses an ensemble; its `needs` must name "teacher_ensemble"')
        return self.ensemble

    def pretrained_network(self) -> Classifier:
        """Return the network with pretrained weights. Raises RuntimeError if the method did not request it."""
        if self.pretrained is None:
            raise RuntimeError('the method uses pretrained weights; its `needs` must name "pretrained_weights"')
        return self.pretrained

    def public_images(self) -> Tensor:
        """Return the public images. Raises RuntimeError if the method did not request them."""
        if self.public is None:
            raise RuntimeError('the method uses public images; its `needs` must name "public_data"')
        return self.public


@dataclass
class Release:
    """Result of a method: everything that is released, and its privacy ledger.

    Attributes:
        student: the network to release; maps (n, c, h, w) in [0, 1] to (n, classes) logits.
        arch: name with which `bench.nets.build(arch, shape, classes)` rebuilds the student.
        ledger: every use that the method made of the private data, through the teacher or directly.
        claim: the guarantee that the method's paper states at these settings; None if it states none.
        generator: the trained image generator, if it is released too.
        synthetic: (n, c, h, w) a few generated images in [0, 1], for display.
        solved: parameters that were calibrated to the budget, such as {"sigma": 5.1}; stored in the record.
        control: baseline student trained the same way without the teachers' responses; its accuracy shows whether the
            teachers contributed anything. Only its accuracy is stored; it is not released.
        votes: maps images to the ensemble's vote counts with new noise of this release's scale. It is only used to
            measure the accuracy of the noisy votes; it is not released and not in the ledger.
        linear: logistic regression trained on the same synthetic images as the student, a second measure of them. Only
            its accuracy is stored; it is not released.
    """

    student: nn.Module
    arch: str
    ledger: Ledger
    claim: Claim | None
    generator: nn.Module | None = None
    synthetic: Tensor | None = None
    solved: dict[str, float] = field(default_factory=dict)
    control: nn.Module | None = None
    votes: nn.Module | None = None
    linear: nn.Module | None = None


@runtime_checkable
class Method(Protocol):
    """A conversion of a teacher into a private student. Baselines implement it too.

    Class variables:
        version: increased when results change; part of a run's hash.
        reference: paper and algorithm number.
        needs: any of "teacher", "private_data", "teacher_ensemble", "public_data", "pretrained_weights"; may depend on
            the settings (a property). "teacher_network" requests no input: it declares that the released network has
            the teacher's architecture. With "teacher_ensemble" the method is an `EnsembleMethod`, with "public_data" a
            `PublicDataMethod`, with "pretrained_weights" a `PretrainedMethod`.
        unit: the privacy unit of the paper's claim (`bench.privacy.Unit`).
        tiers: overrides {"smoke": {...}, "quick": {...}}; the field defaults are the paper's settings (tier `paper`).
        seen_test_sets: {data set: the choice that was made with its test accuracy}, for example "the learning rate was
            chosen"; omitted if there was no such choice. `bench choose` and the report show it.
        trains_student: False (a property, if it depends on the settings) if the method builds another network than
            `student`; otherwise omitted.
        releases_images: False if the release has neither a generator nor images; otherwise omitted.
        protects_groups: True if the method can account for unit group; otherwise omitted, and `--unit group` is
            refused.

    The bench calls optional methods before any training.

    Optional methods:
        networks(shape, student): names of the networks that it builds, if they differ from `student`.
        check_data(shape, records, dataset): raises BenchError for image shapes or numbers of records that it cannot
            use.
        held_bytes(shape, classes, dataset, budget): largest number of bytes of images in memory at once.
        gradients_at_once(dataset): number of records, or of views of records, whose gradients are in memory at once. A
            method that protects groups also takes the numbers of private records of all groups, for unit group.
        trained_weights(shape, classes): number of weights that have such gradients, if the network has more.
        check_groups(count, dataset): raises BenchError for a number of groups that it cannot use with unit group.
        public_source(): source of public data that it reads from an option, as KIND:NAME#SHA256, and None without any.
            The bench calls it before training too; it is in the run's spec, and the row has the flag `public-data`.
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    unit: ClassVar[str]
    tiers: ClassVar[Tiers]

    @property
    def needs(self) -> frozenset[str]:
        """The inputs that the method reads."""
        ...

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, if these settings cannot run within `budget`."""
        ...

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Convert the teacher within `budget` and return the release.

        `student` is a network name for `bench.nets.build`.
        """
        ...


def trains_student(method: Method) -> bool:
    """Return whether the method builds the network of `--student`; if so, that network must take the images.

    A method that releases another network sets the attribute `trains_student` to False.
    """
    return bool(getattr(method, "trains_student", True))


def releases_images(method: Method) -> bool:
    """Return whether the method may release a generator or images; only then can attacks on the release run."""
    return bool(getattr(method, "releases_images", True))


def refuse_groups(method: object, budget: Budget, name: str) -> None:
    """Raise BudgetError for a budget of unit group if the method does not declare `protects_groups`."""
    if budget.unit == Unit.GROUP and not getattr(method, "protects_groups", False):
        raise BudgetError(
            f"--unit group: {name} bounds no influence of a whole group; use dp-sgd or private-features, or --unit "
            "example"
        )


@runtime_checkable
class EnsembleMethod(Method, Protocol):
    """A method that can use an ensemble: it receives one if its `needs` include "teacher_ensemble"."""

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Return the settings of the ensemble that it needs; `teacher_arch` is the teacher's architecture."""
        ...


@runtime_checkable
class PublicDataMethod(Method, Protocol):
    """A method that can use public images: it receives them if its `needs` include "public_data"."""

    def least_public(self) -> int:
        """Return the smallest number of public images that it needs at its settings."""
        ...


@runtime_checkable
class PretrainedMethod(Method, Protocol):
    """A method that can use public pretrained weights: it receives a network with them if its `needs` include
    "pretrained_weights"."""

    def backbone(self) -> BackboneName:
        """Return the timm network, and the size of images, whose weights it needs."""
        ...


@runtime_checkable
class SamplingMethod(Method, Protocol):
    """A method whose released generator can be rebuilt, so that attacks can draw from it."""

    def sampler(self, shape: Shape, classes: int, dataset: str) -> Sampler:
        """Build the untrained generator of these settings; the released weights are loaded into it."""
        ...


@runtime_checkable
class AuditableMethod(Protocol):
    """A method that `bench audit mechanism` can audit: it has a check of the settings and a distinguishing game."""

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError if these settings cannot run within `budget`, as `Method.check`."""
        ...

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the distinguishing game of one of its mechanisms, with the noise calibrated to the budget."""
        ...
