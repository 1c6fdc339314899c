"""All that the author of a plug-in reads: what a method or an attack is given, and what it must return.

A plug-in is one frozen dataclass in one file. Its fields are public hyper-parameters, shown by `--help`, written into
the record and hashed; the string under a field is its help line. Private data, devices and random generators come
only as arguments. Images are (n, c, h, w) float32 in [0, 1] everywhere; a model's own normalisation lives inside
the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from bench.data import corrupted
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Claim, Ledger
from bench.privacy.noise import Noise
from bench.ranks import Ranks
from bench.seeds import derive

if TYPE_CHECKING:
    from bench.privacy.audit import DistinguishingGame

Access = Literal["label", "scores", "weights", "samples", "generator"]
ACCESS_LEVELS: tuple[Access, ...] = ("label", "scores", "weights")
"""What may be seen of a network, each more than the one before."""
RELEASE_LEVELS: tuple[Access, ...] = ("samples", "generator")
"""What may be seen of the release besides the student: images; and the generator that draws them, with gradients."""

Tensors = dict[str, Tensor]
Network = TypeVar("Network", bound=nn.Module)
Drawing = TypeVar("Drawing", bound=nn.Module, covariant=True)
Advance = Callable[[int], None]


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
    """

    model: nn.Module
    arch: str
    shape: tuple[int, int, int]
    classes: int
    dataset: str
    private: tuple[Tensor, Tensor] | None = None
    ensemble: Ensemble | None = None
    public: Tensor | None = None

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
    """

    student: nn.Module
    arch: str
    ledger: Ledger
    claim: Claim | None
    generator: nn.Module | None = None
    synthetic: Tensor | None = None
    solved: dict[str, float] = field(default_factory=dict)
    control: nn.Module | None = None


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


class AccessDenied(Exception):
    """An attack asked its target for more than it declared."""


class Target:
    """A model seen through one access level; counts queries; refuses what is not granted.

    One query is one image put through the model. `label` answers class indices, `scores` adds softmax probabilities,
    `weights` adds logits that gradients flow through and the module itself.

    Args:
        model: in eval mode, frozen.
        victims: (m, c, h, w) images that another user puts to the model; an attack may be shown the answers to them
            (`victim_scores`), or the images corrupted (`corrupted_victims`), never the images.
    """

    def __init__(
        self,
        model: nn.Module,
        access: Access,
        shape: tuple[int, int, int],
        classes: int,
        victims: Tensor | None = None,
    ) -> None:
        self.access: Access = access
        self.shape = shape
        self.classes = classes
        self.queries = 0
        self.__model = model
        self.__victims = victims

    def labels(self, images: Tensor) -> Tensor:
        """(n,) int64 argmax classes."""
        return self.__ask(images, "label").argmax(1)

    def scores(self, images: Tensor) -> Tensor:
        """(n, classes) softmax probabilities. Raises AccessDenied below access `scores`."""
        return self.__ask(images, "scores").softmax(1)

    def victim_scores(self) -> Tensor:
        """(m, classes) softmax probabilities that the victims' images are answered with; not the attacker's queries.

        Raises:
            AccessDenied: access `label`, or a target that no one else uses.
        """
        self.__require("scores")
        if self.__victims is None:
            raise AccessDenied("the target has no victims; the attack's `observes` must be True")
        with torch.no_grad():
            return torch.cat([self.__model(part).softmax(1) for part in self.__victims.split(512)])

    def corrupted_victims(self, how: str) -> Tensor:
        """(m, c, h, w) the victims' images, corrupted (`bench.data.corrupted`): given to attacks that assume as much.

        Raises:
            AccessDenied: a target that no one else uses.
        """
        if self.__victims is None:
            raise AccessDenied("the target has no victims; the attack's `observes` must be True")
        return corrupted(self.__victims, how)

    def logits(self, images: Tensor) -> Tensor:
        """(n, classes), differentiable in `images`. Raises AccessDenied below access `weights`."""
        self.__require("weights")
        self.queries += len(images)
        return self.__model(images)

    def module(self) -> nn.Module:
        """The network itself, in eval mode. Raises AccessDenied below access `weights`."""
        self.__require("weights")
        return self.__model

    def __ask(self, images: Tensor, level: Access) -> Tensor:
        self.__require(level)
        self.queries += len(images)
        with torch.no_grad():
            return self.__model(images)

    def __require(self, level: Access) -> None:
        if ACCESS_LEVELS.index(self.access) < ACCESS_LEVELS.index(level):
            raise AccessDenied(f"the attack declared access '{self.access}' and asked for '{level}'")


Shape = tuple[int, int, int]
Latents = Callable[[int, torch.Generator], Tensor]


def gaussian_latents(length: int) -> Latents:
    """z ~ N(0, I), (n, length)."""
    return lambda count, rng: torch.randn(count, length, generator=rng, device=rng.device)


@dataclass(frozen=True)
class Sampler(Generic[Drawing]):
    """A generator, and how images are drawn from it.

    Attributes:
        generator: (n, latent), and (n,) int64 labels if it is conditional, to (n, c, h, w) in [0, 1].
        latents: (count, generator) to (count, latent), what is put to it.
        classes: of the labels that it takes too; 0 for a generator without labels.
    """

    generator: Drawing
    latents: Latents
    classes: int = 0

    def decode(self, z: Tensor, labels: Tensor) -> Tensor:
        """(n, c, h, w) of (n, latent) and (n,) labels, which a generator without labels is not told."""
        images: Tensor = self.generator(z, labels) if self.classes else self.generator(z)
        return images


class ReleasedImages:
    """What is released besides a student, seen through one access level; counts images; refuses what is not granted.

    Args:
        access: `samples` gives images; `generator` also their generator's answers to chosen latents, with gradients.
        images: (m, c, h, w) in [0, 1] that were released; None where a generator is there to draw from.
        sampler: the released generator, frozen and in eval mode, if there is one.

    Attributes:
        queries: images seen so far.
        most: how many images there are; None where a generator draws as many as are asked for.
    """

    def __init__(self, access: Access, images: Tensor | None, sampler: Sampler | None) -> None:
        self.access: Access = access
        self.most = None if images is None else len(images)
        self.queries = 0
        self.__images = images
        self.__sampler = sampler

    def samples(self, count: int, rng: torch.Generator) -> Tensor:
        """Up to `count` images, as 8 bits hold them: draws of the generator, classes in turn; else those released."""
        if self.__sampler is None:
            assert self.__images is not None
            found = self.__images[:count]
        else:
            parts = [self.__draw(start, min(start + 500, count), rng) for start in range(0, count, 500)]
            found = (torch.cat(parts) * 255).round() / 255
        self.queries += len(found)
        return found

    def latents(self, count: int, rng: torch.Generator) -> Tensor:
        """(count, latent) as they are drawn. Raises AccessDenied below access `generator`."""
        return self.__generator().latents(count, rng)

    def decode(self, z: Tensor, labels: Tensor) -> Tensor:
        """(n, c, h, w) of (n, latent), differentiable in them, and (n,) labels. Raises AccessDenied as `latents`."""
        self.queries += len(z)
        return self.__generator().decode(z, labels)

    def __generator(self) -> Sampler:
        if self.access != "generator" or self.__sampler is None:
            raise AccessDenied(f"the attack declared access '{self.access}' and asked for the released generator")
        return self.__sampler

    @torch.no_grad()
    def __draw(self, start: int, stop: int, rng: torch.Generator) -> Tensor:
        """The samples of these numbers, so that the classes go on in turn from one part to the next."""
        assert self.__sampler is not None
        labels = torch.arange(start, stop, device=rng.device) % max(1, self.__sampler.classes)
        return self.__sampler.decode(self.__sampler.latents(len(labels), rng), labels)


class Artifacts(Protocol):
    """Where a step keeps what others can reuse, such as an attacker's GAN trained once for many targets."""

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], Tensors]) -> Tensors: ...


@dataclass(frozen=True)
class Context:
    """How to run: nothing in here may change what is being measured.

    Attributes:
        device: where tensors live.
        seed: this step's own seed, derived from the named parts of its spec.
        noise: "seeded" derives the privacy noise from `seed`; "os" takes all of it from the system's entropy.
        track: opens a progress bar; use `with ctx.track("stage", total) as advance: advance(1)`.
        artifacts: the content-addressed store for reusable parts.
        autocast: True where bfloat16 autocast was asked for.
        compile: True where networks are to be compiled.
        ranks: the devices that a training is shared out over, `device` the first; None for one device.
    """

    device: torch.device
    seed: int
    track: Callable[[str, int], Any]
    artifacts: Artifacts
    noise: Literal["seeded", "os"] = "seeded"
    autocast: bool = False
    compile: bool = False
    ranks: Ranks | None = None

    def prepared(self, module: Network) -> Network:
        """The module on the device; on an accelerator, its convolutions' weights in the channels-last layout."""
        if self.device.type == "cpu":
            return module.to(self.device)
        return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def compiled(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """The module as it should be called: compiled if the user asked for it (`--compile`)."""
        return torch.compile(module) if self.compile else module

    def generator(self, name: str) -> torch.Generator:
        """A generator on the device, seeded from (this step's seed, name)."""
        return torch.Generator(self.device).manual_seed(derive(self.seed, name))

    def privacy_noise(self, name: str) -> Noise:
        """What a guarantee rests on: noise, and all that is drawn per private record unless it is indexed by it.

        Seeded like any other randomness, or every bit from the system's entropy (`--noise os`).
        """
        seed = derive(self.seed, f"privacy-noise/{name}") if self.noise == "seeded" else None
        return Noise(self.device, seed)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Autocast to bfloat16 if the user asked for it."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            yield


@runtime_checkable
class Method(Protocol):
    """A conversion of a teacher into a private student. Baselines are methods too.

    Class variables:
        version: bumped when results move; part of the hash.
        reference: paper, algorithm number.
        needs: of "teacher", "private_data", "teacher_ensemble", "public_data"; may depend on the settings (a property).
            With "teacher_ensemble" the method is an `EnsembleMethod`, with "public_data" a `PublicDataMethod`.
        unit: the unit the paper's claim speaks of.
        tiers: {"smoke": {...}, "quick": {...}} overrides; the field defaults are the paper's (tier `paper`).
        seen_test_sets: data set to what was chosen by looking at its test accuracy, as "the learning rate was chosen";
            left out by a method of which nothing was. `bench choose` and the report say it of such a row.
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
        labels: (n,) int64, their true classes.
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
        """(images, labels) of the same distribution, in no training records, those of the references included."""
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

    def applicable(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
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
    """An attack whose generator can redraw a given image: what it makes of unseen images is the most it can show."""

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
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    access: ClassVar[Access]
    tiers: ClassVar[dict[str, dict[str, Any]]]

    def applicable(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
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
    """

    version: ClassVar[int]
    reference: ClassVar[str]
    goal: ClassVar[Literal["inversion", "membership"]]
    tiers: ClassVar[dict[str, dict[str, Any]]]

    @property
    def access(self) -> Access: ...

    def applicable(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run with `aux` images that are no one's training records, or None."""
        ...

    def compare(self, released: ReleasedImages, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Score every suspect; there are no reference models, and all of the attacker's images are the population."""
        ...
