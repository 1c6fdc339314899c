"""What a method is given, what it returns, and which further questions it may answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from bench.api.context import Context
from bench.api.sampler import Sampler, Shape
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Claim, Ledger

if TYPE_CHECKING:
    from bench.privacy.audit import DistinguishingGame


@dataclass(frozen=True)
class Shards:
    """The ensemble a method asks for: teachers on disjoint parts of the private split, trained side by side by Adam.

    Attributes:
        count: n, how many teachers.
        archs: their networks, names for `bench.nets.build`, taken in turn.
        partition: who holds which record: "hash" of its pixels, or a federation's "dirichlet(-balanced)" shares.
        alpha: concentration of the Dirichlet shares, > 0.
        steps: optimiser steps; the learning rate falls linearly to 0 over them.
        batch: images of each part per step, drawn with replacement.
        lr: first learning rate.
        weight_decay: decoupled, >= 0.
        shift: images are moved by up to so many pixels at random.
        ridge: penalty of the regression that networks of fixed features are solved by, instead of Adam.
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
    """What a method converts: a trained classifier behind the trust boundary.

    Attributes:
        model: maps (n, c, h, w) in [0, 1] to (n, classes) logits; in eval mode, on the context's device, frozen. It
            raises RuntimeError when it is asked, unless the method's `needs` name "teacher".
        arch: the name `bench.nets.build` knows it by.
        shape: (c, h, w) of one image.
        classes: number of classes.
        dataset: name of the private data set, for the papers' per-data-set settings.
        private: (images uint8, labels) of the private split; None unless the method's `needs` names "private_data".
        ensemble: the teachers that the method's `shards` asked for, frozen; None unless its `needs` names
            "teacher_ensemble".
        public: (n, c, h, w) uint8, unlabelled images of the private data's own distribution, which no teacher was
            trained on and no attacker has; None unless the method's `needs` names "public_data".
        guests: how many of `private`, the last ones, are an audit's canaries; who holds another record of a federation
            must not depend on them (`bench.data.partition.with_guests`).
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

    def members(self) -> Ensemble:
        """The ensemble. Raises RuntimeError if the method did not ask for one."""
        if self.ensemble is None:
            raise RuntimeError('the method uses an ensemble; its `needs` must name "teacher_ensemble"')
        return self.ensemble

    def public_images(self) -> Tensor:
        """The public images. Raises RuntimeError if the method did not ask for them."""
        if self.public is None:
            raise RuntimeError('the method uses public images; its `needs` must name "public_data"')
        return self.public


@dataclass
class Release:
    """What leaves the trust boundary.

    Attributes:
        student: the network to release; (n, c, h, w) in [0, 1] to (n, classes) logits.
        arch: name that `bench.nets.build(arch, shape, classes)` rebuilds the student from.
        ledger: every use the method made of the private data, through the teacher or directly.
        claim: what the method's own paper promises at these settings, or None if it promises nothing.
        generator: the trained image generator, if one is released too.
        synthetic: (n, c, h, w) a few generated images in [0, 1], for the picture.
        solved: parameters the budget determined, such as {"sigma": 5.1}; goes to the record.
        control: a student of the same making without the teachers' answers, which only its accuracy leaves: what tells
            whether the teachers added anything. Not released.
        votes: images to the counts of an ensemble's votes, with noise as in this release, drawn anew; its accuracy
            alone is taken. Not released, and not in the ledger.
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


@runtime_checkable
class Method(Protocol):
    """A conversion of a teacher into a private student. Baselines are methods too.

    Class variables:
        version: bumped when results move; part of the hash.
        reference: paper, algorithm number.
        needs: of "teacher", "private_data", "teacher_ensemble", "public_data"; may depend on the settings (a property).
            "teacher_network" asks for nothing: it says that the release is a network like the teacher's.
            With "teacher_ensemble" the method is an `EnsembleMethod`, with "public_data" a `PublicDataMethod`.
        unit: the unit the paper's claim speaks of.
        tiers: {"smoke": {...}, "quick": {...}} overrides; the field defaults are the paper's (tier `paper`).
        seen_test_sets: data set to what was chosen by looking at its test accuracy, as "the learning rate was chosen";
            left out by a method of which nothing was. `bench choose` and the report say it of such a row.
        trains_student: false (a property, where it depends on the settings) if it builds another network than
            `student`; left out by all others.
        releases_images: false if neither a generator nor images are in its release; left out by all others.

    Further methods that it may have, for checks before anything is trained:
        networks(shape, student): names of the networks that it builds, where those are others than `student`.
        check_data(shape, records, dataset): raises BenchError for images, or numbers of records, that it cannot use.
        held_bytes(shape, classes, dataset, budget): bytes of the images that it holds at once.
        gradients_at_once(dataset): records whose separate gradients are in memory at once.
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    unit: ClassVar[str]
    tiers: ClassVar[dict[str, dict[str, Any]]]

    @property
    def needs(self) -> frozenset[str]: ...

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before anything is trained, if these settings cannot be run within `budget`."""
        ...

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Make a release within `budget`; `student` is a network name for `bench.nets.build`."""
        ...


def trains_student(method: Method) -> bool:
    """Whether a method builds the network of `--student`, so that images which that cannot take are refused early.

    One that releases a network of its own says so by an attribute `trains_student` that is false.
    """
    return bool(getattr(method, "trains_student", True))


def releases_images(method: Method) -> bool:
    """Whether a method may release a generator or images, on which attacks on the release can be played."""
    return bool(getattr(method, "releases_images", True))


@runtime_checkable
class EnsembleMethod(Method, Protocol):
    """A method that can ask for an ensemble: it is given one where its `needs` name "teacher_ensemble"."""

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The ensemble that it asks for at its settings; `teacher_arch` is the network of the teacher."""
        ...


@runtime_checkable
class PublicDataMethod(Method, Protocol):
    """A method that can ask for public images: it is given some where its `needs` name "public_data"."""

    def least_public(self) -> int:
        """The fewest public images that it can do with at its settings."""
        ...


@runtime_checkable
class SamplingMethod(Method, Protocol):
    """A method whose released generator can be built again, so that attacks can draw from it."""

    def sampler(self, shape: Shape, classes: int, dataset: str) -> Sampler:
        """The generator that it releases at its settings, untrained: released weights are loaded into it."""
        ...


@runtime_checkable
class AuditableMethod(Protocol):
    """What `bench audit mechanism` needs of a method: settings that can be checked, and a game to play against it."""

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """As of every method."""
        ...

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """The distinguishing game of one of its mechanisms, at the noise calibrated to the budget."""
        ...
