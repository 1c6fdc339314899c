"""Interfaces of attacks: the inputs of an attacker, the results, and one protocol for each kind of attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor

from bench.api.access import Access, ReleasedImages, Shape, Target
from bench.api.context import Context, Tiers


@dataclass
class AttackResult:
    """Images reconstructed by an inversion attack. The attack never scores itself.

    Attributes:
        images: (n, c, h, w) float32 in [0, 1].
        targets: (n,) int64, the class that each image is meant to show.
        draws: (n,) int64, index of the independent attack seed that made the image.
        victims: (n,) int64, index of the victim (`Target.victim_scores`) that each image reconstructs; None for an
            attack on classes.
        facts: finite numbers specific to this attack that help to interpret its result; stored among the record's
            metrics under the same names.
    """

    images: Tensor
    targets: Tensor
    draws: Tensor
    victims: Tensor | None = None
    facts: dict[str, float] = field(default_factory=dict)


@dataclass
class MembershipResult:
    """Membership scores of the suspects. The attack never learns which suspects are members.

    Attributes:
        scores: (n,) one finite number per suspect, in the suspects' order; larger means more likely a member.
        facts: finite numbers about all suspects together, such as the estimated share of members; stored among the
            record's metrics under the same names.
        missing: name of a fact that could not be computed -> the reason.
    """

    scores: Tensor
    facts: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A reference model, made by the same process as the target from records that the attacker knows.

    Attributes:
        target: the reference model, behind the attack's own access level.
        members: (n,) bool, True for suspects in its training records.
    """

    target: Target
    members: Tensor


@dataclass(frozen=True)
class AttackerKnowledge:
    """Knowledge of a membership attacker apart from the target.

    Attributes:
        images: (n, c, h, w) float32 in [0, 1], the suspects; members and non-members in random order.
        labels: (n,) int64, the suspects' classes as in the training data; under `--split canaries` all of them are
            wrong on purpose.
        load_population: loads `population`, which may be large, on first use.
        references: function (count, kind) -> `count` reference models, count even; every suspect is in the training
            records of exactly half of them. Kind "teacher": networks trained like the undefended teacher; "student":
            networks converted like the target.
    """

    images: Tensor
    labels: Tensor
    load_population: Callable[[], tuple[Tensor, Tensor]]
    references: Callable[[int, Literal["teacher", "student"]], list[Reference]]

    @cached_property
    def population(self) -> tuple[Tensor, Tensor]:
        """Return (n, c, h, w) images and (n,) labels that are in no training set, not even in that of a reference.

        They are from the suspects' distribution. A label of -1 marks an image of no private class; only attacks with
        `labelled` False receive such images.
        """
        return self.load_population()


@runtime_checkable
class Attack(Protocol):
    """An inversion attack on one target: reconstructs images of the target's classes or of its victims.

    Class variables:
        version, reference, tiers: as for a method.
        goal: "inversion".
        access: the least access level that the attack needs; it gets exactly this level.
        observes: True if the attack needs the target's responses to the victims, or corrupted victims
            (`Target.victim_scores`, `corrupted_victims`); may depend on the settings (a property).
        is_null: True if the attack sends no query to its target; its result is then the baseline that other attacks are
            compared with.

    An attack whose generator is trained without the target also implements `GenerativeAttack`.
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    access: ClassVar[Access]
    tiers: ClassVar[Tiers]
    is_null: ClassVar[bool]

    @property
    def observes(self) -> bool:
        """Whether the attack receives the target's responses to its victims."""
        ...

    def skip_reason(self, shape: Shape, classes: int, aux: int) -> str | None:
        """Return a reason not to run on images of `shape` with `aux` auxiliary images, or None."""
        ...

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Attack `target` using `aux`, (n, c, h, w) unlabelled images in [0, 1] on the context's device."""
        ...


@runtime_checkable
class GenerativeAttack(Attack, Protocol):
    """An inversion attack with a generator that is trained without the target.

    The generator's images of random latents are a baseline for the attack's result.
    """

    def prior(self, count: int, aux: Tensor, ctx: Context) -> Tensor:
        """Generate (count, c, h, w) images in [0, 1] from random latents; `aux` as in `run`."""
        ...


@runtime_checkable
class DecodingAttack(GenerativeAttack, Protocol):
    """An attack whose generator can reconstruct a given image.

    Its reconstructions of unseen images show how well the generator can represent images at all.
    """

    def nearest(self, images: Tensor, aux: Tensor, ctx: Context) -> Tensor:
        """Return (n, c, h, w) in [0, 1], the closest image that the generator finds to each of `images`.

        `aux` as in `run`.
        """
        ...


@runtime_checkable
class MembershipAttack(Protocol):
    """An attack that separates the target's private training records from other records.

    Class variables:
        version, reference, tiers: as for a method.
        goal: "membership".
        access: the least access level that the attack needs; it gets exactly this level.
        labelled: optional; False if the attack needs no labels of the attacker's images, neither for learning nor for
            reference models, so that it also runs where those images show other people (`--split identity`).
        min_records: optional; the least population for which `skip_reason` gives no reason. The table of coverage
            (`bench leaderboard --coverage`) reads it without loading the attack.
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    access: ClassVar[Access]
    tiers: ClassVar[Tiers]

    def skip_reason(self, shape: Shape, classes: int, aux: int) -> str | None:
        """Return a reason not to run with a population of `aux` labelled images, or None."""
        ...

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Return a score for every suspect, using the target and the attacker's knowledge."""
        ...


@runtime_checkable
class ReleaseAttack(Protocol):
    """An attack that separates private records from other records by the released images or generator.

    Class variables:
        version, reference, tiers: as for a method.
        goal: "membership".
        access: "samples" or "generator"; may depend on the settings (a property).
        labelled: as for a `MembershipAttack`.
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    tiers: ClassVar[Tiers]

    @property
    def access(self) -> Access:
        """The access to the release that the attack needs."""
        ...

    def skip_reason(self, shape: Shape, classes: int, aux: int) -> str | None:
        """Return a reason not to run with a population of `aux` images, or None."""
        ...

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Return a score for every suspect.

        There are no reference models; `knowledge.population` has all of the attacker's images.
        """
        ...
