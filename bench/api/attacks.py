"""What an attack is given besides its target, and what it brings back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor

from bench.api.access import Access, ReleasedImages, Target
from bench.api.context import Context
from bench.api.sampler import Shape


@dataclass
class AttackResult:
    """What an inversion attack brings back. It never scores itself.

    Attributes:
        images: (n, c, h, w) float32 in [0, 1].
        targets: (n,) int64, the class each image was aimed at.
        draws: (n,) int64, which independent attack seed made the image.
        victims: (n,) int64, which of the victims (`Target.victim_scores`) each image reconstructs; None for an attack
            on classes.
        facts: finite numbers of the attack's own that a reader of its result must know; the record has them among its
            metrics, under the same names.
    """

    images: Tensor
    targets: Tensor
    draws: Tensor
    victims: Tensor | None = None
    facts: dict[str, float] = field(default_factory=dict)


@dataclass
class MembershipResult:
    """What a membership attack thinks of its suspects. It never learns who is a member.

    Attributes:
        scores: (n,) one finite number per suspect, in their order; larger = more likely a member.
    """

    scores: Tensor


@dataclass(frozen=True)
class Reference:
    """A model that the attacker had made as the target was, on records that the attacker knows.

    Attributes:
        target: with the attack's own access.
        members: (n,) bool, the suspects among its training records.
    """

    target: Target
    members: Tensor


@dataclass(frozen=True)
class AttackerKnowledge:
    """What a membership attacker holds besides the target.

    Attributes:
        images: (n, c, h, w) float32 in [0, 1], the suspects, members and others in no particular order.
        labels: (n,) int64, their classes, as the training data have them if they are there: wrong ones under split
            canaries.
        load_population: makes `population`, which may be large, for those who look at it.
        references: (count, kind) to so many references, count even; every suspect is in exactly half of them. Kind
            "teacher": networks trained like the undefended teacher; "student": those converted as the target was.
    """

    images: Tensor
    labels: Tensor
    load_population: Callable[[], tuple[Tensor, Tensor]]
    references: Callable[[int, Literal["teacher", "student"]], list[Reference]]

    @cached_property
    def population(self) -> tuple[Tensor, Tensor]:
        """(images, labels) of the same distribution, in no training records, those of the references included.

        Labels are -1 where the images are of no private class; only attacks that are not `labelled` see such.
        """
        return self.load_population()


@runtime_checkable
class Attack(Protocol):
    """An inversion attack on one target: images of its classes, or of its victims, are brought back.

    Class variables:
        version, reference, tiers: as for a method.
        goal: "inversion".
        access: the least access the attack needs; what it is given.
        observes: whether it is shown the target's answers to victims, or the victims' images corrupted
            (`Target.victim_scores`, `corrupted_victims`); may depend on the settings (a property).
        is_null: whether it asks its target nothing, so that what it brings back is the floor that the others are
            measured from.

    An attack with a generator that is trained without the target is a `GenerativeAttack` besides.
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    access: ClassVar[Access]
    tiers: ClassVar[dict[str, dict[str, Any]]]
    is_null: ClassVar[bool]

    @property
    def observes(self) -> bool: ...

    def skip_reason(self, shape: Shape, classes: int, aux: int) -> str | None:
        """A reason not to run on images of `shape` with `aux` auxiliary images, or None."""
        ...

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Attack `target` with the help of `aux`, (n, c, h, w) unlabelled images in [0, 1] on the context's device."""
        ...


@runtime_checkable
class GenerativeAttack(Attack, Protocol):
    """An inversion attack with a generator whose images of random latents, made without any target, are reference
    images beside its row."""

    def prior(self, count: int, aux: Tensor, ctx: Context) -> Tensor:
        """(count, c, h, w) images in [0, 1] of random latents, with the help of `aux` as in `run`."""
        ...


@runtime_checkable
class DecodingAttack(GenerativeAttack, Protocol):
    """An attack whose generator can redraw a given image: what it can draw at all is seen by unseen images."""

    def nearest(self, images: Tensor, aux: Tensor, ctx: Context) -> Tensor:
        """(n, c, h, w) in [0, 1]: each of `images` as its generator comes nearest to it; `aux` as in `run`."""
        ...


@runtime_checkable
class MembershipAttack(Protocol):
    """An attack that tells the target's private training records from others.

    Class variables:
        version, reference, tiers: as for a method.
        goal: "membership".
        access: the least access the attack needs; what it is given.
        labelled: optional, False where it needs no labels of the attacker's images, neither to learn from nor for
            reference models, so that it can be played where they are of other people (split identity).
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    access: ClassVar[Access]
    tiers: ClassVar[dict[str, dict[str, Any]]]

    def skip_reason(self, shape: Shape, classes: int, aux: int) -> str | None:
        """A reason not to run with `aux` labelled images that are no one's training records, or None."""
        ...

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Score every suspect."""
        ...


@runtime_checkable
class ReleaseAttack(Protocol):
    """An attack that tells the private records from others by what is released besides the student.

    Class variables:
        version, reference, tiers: as for a method.
        goal: "membership".
        access: "samples" or "generator"; may depend on the settings (a property).
        labelled: as of a `MembershipAttack`.
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    tiers: ClassVar[dict[str, dict[str, Any]]]

    @property
    def access(self) -> Access: ...

    def skip_reason(self, shape: Shape, classes: int, aux: int) -> str | None:
        """A reason not to run with `aux` images that are no one's training records, or None."""
        ...

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Score every suspect; there are no reference models, and all of the attacker's images are the population."""
        ...
