"""Contract tests that every plug-in must pass; third parties subclass them and set `plugin`.

class TestMine(MethodContract):
    plugin = MyMethod
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bench import nets
from bench.api import (
    ACCESS_LEVELS,
    Access,
    Attack,
    AttackResult,
    Context,
    Evidence,
    MembershipAttack,
    Method,
    Reference,
    Release,
    Target,
    Teacher,
)
from bench.config import TIERS, configure, departures, options
from bench.privacy import Budget, Unit, accountant

SHAPE, CLASSES = (1, 16, 16), 4


class MemoryArtifacts:
    """Artifacts kept in a dictionary, counting how often each kind was made."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Tensor]] = {}
        self.made: list[str] = []

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """What `make` returned the first time this key was asked for."""
        name = f"{kind}/{sorted(key.items())}"
        if name not in self.kept:
            self.made.append(kind)
            self.kept[name] = make()
        return self.kept[name]


@contextmanager
def silent(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar that shows nothing."""
    yield lambda n: None


def context(seed: int = 0) -> Context:
    """A context on the CPU with seeded noise and nothing kept on disk."""
    return Context(torch.device("cpu"), seed, silent, MemoryArtifacts())


def toy_teacher(seed: int = 0) -> Teacher:
    """An untrained small network in the place of a teacher."""
    torch.manual_seed(seed)
    model = nets.build("datalens", SHAPE, CLASSES).eval().requires_grad_(False)
    return Teacher(model, "datalens", SHAPE, CLASSES, "toy")


def toy_private(seed: int = 0, n: int = 80) -> tuple[Tensor, Tensor]:
    """Private images (n, c, h, w) uint8 and labels (n,) in which each class is bright in a corner of its own."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.randint(0, 60, (n, *SHAPE), generator=rng)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 8 * (label // 2) : 8 * (label // 2) + 8, 8 * (label % 2) : 8 * (label % 2) + 8] += 150
    return images.to(torch.uint8), labels


class PluginContract:
    """What holds for methods and attacks alike."""

    plugin: ClassVar[type[Any]]

    def smoke(self) -> Any:
        """The plug-in at tier smoke."""
        return configure(self.plugin, "smoke", {}, "plugin")

    def test_is_frozen_with_documented_flat_fields(self) -> None:
        assert dataclasses.is_dataclass(self.plugin) and self.plugin.__dataclass_params__.frozen  # type: ignore[attr-defined]
        undocumented = [option.name for option in options(self.plugin) if not option.help]
        assert not undocumented, f"put a string literal under each field: {undocumented}"

    def test_module_names_reference_and_differences(self) -> None:
        doc = inspect.getdoc(inspect.getmodule(self.plugin)) or ""
        assert "Differs from the paper" in doc and self.plugin.reference

    def test_tiers_are_known_and_valid(self) -> None:
        assert set(self.plugin.tiers) <= set(TIERS)
        for tier in TIERS:
            for variant in ("printed", "working"):
                configure(self.plugin, tier, {}, "plugin", variant)

    def test_a_tier_changes_sizes_alone(self) -> None:
        sizes = {option.name for option in options(self.plugin) if option.size}
        for tier, changed in self.plugin.tiers.items():
            assert set(changed) <= sizes, f"{tier}: mark as Size, or make a departure of {set(changed) - sizes}"

    def test_departures_say_why_and_set_what_no_tier_sets(self) -> None:
        known = {option.name: option for option in options(self.plugin)}
        for departure in departures(self.plugin):
            assert len(departure.what) > 10 and len(departure.why) > 10
            for name, value in departure.sets.items():
                assert value != known[name].default, f"{name} = {value} is the default: no departure"
                assert not any(name in changed for changed in self.plugin.tiers.values()), f"a tier sets {name} too"


class MethodContract(PluginContract):
    """What the runner relies on in a method."""

    budget: ClassVar[Budget] = Budget(10.0)
    uses_randomness: ClassVar[bool] = True

    def teacher(self) -> Teacher:
        """The toy teacher with what the method needs besides: private or public images, an untrained ensemble."""
        method, toy = self.smoke(), toy_teacher()
        if "private_data" in method.needs:
            toy = dataclasses.replace(toy, private=toy_private())
        if "public_data" in method.needs:
            toy = dataclasses.replace(toy, public=toy_private(seed=1)[0])
        if "teacher_ensemble" in method.needs:
            shards = method.shards(toy.arch, toy.dataset)
            members = nets.Ensemble.build(shards.archs, shards.count, SHAPE, CLASSES, range(shards.count))
            toy = dataclasses.replace(toy, ensemble=members.eval().requires_grad_(False))
        return toy

    def convert(self, seed: int = 0) -> Release:
        """One smoke conversion of the toy teacher."""
        torch.manual_seed(seed)
        return self.smoke().convert(self.teacher(), "datalens", self.budget, context(seed))

    def test_is_a_method(self) -> None:
        assert isinstance(self.smoke(), Method)
        assert self.plugin.unit in [str(unit) for unit in Unit]

    def test_release_can_be_rebuilt_and_classifies(self) -> None:
        release = self.convert()
        rebuilt = nets.build(release.arch, SHAPE, CLASSES)
        rebuilt.load_state_dict(release.student.state_dict())
        images = torch.rand(5, *SHAPE)
        with torch.no_grad():
            logits = release.student.eval()(images)
            assert torch.equal(rebuilt.eval()(images), logits)
        assert logits.shape == (5, CLASSES) and torch.isfinite(logits).all()

    def test_ledger_accounts_for_one_example(self) -> None:
        found = accountant.epsilon(self.convert().ledger, Unit.EXAMPLE, self.budget.delta)
        assert found.epsilon > 0, "a release of a private teacher cannot be free"

    def test_same_seed_same_release_and_other_seed_another(self) -> None:
        first, again, other = self.convert(1), self.convert(1), self.convert(2)
        assert all(torch.equal(a, b) for a, b in zip(weights(first.student), weights(again.student), strict=True))
        differs = any(
            not torch.equal(a, b) for a, b in zip(weights(first.student), weights(other.student), strict=True)
        )
        assert differs == self.uses_randomness

    def test_teacher_is_left_alone(self) -> None:
        teacher = self.teacher()
        before = [w.clone() for w in weights(teacher.model)]
        self.smoke().convert(teacher, "datalens", self.budget, context())
        assert all(torch.equal(a, b) for a, b in zip(before, weights(teacher.model), strict=True))
        assert all(p.grad is None for p in teacher.model.parameters())


class AttackContract(PluginContract):
    """What the runner relies on in an inversion attack."""

    def attack(self, seed: int = 0, model: nn.Module | None = None, **changes: Any) -> tuple[AttackResult, Target]:
        """One smoke attack on the toy teacher, some of its fields changed."""
        torch.manual_seed(seed)
        plugin = dataclasses.replace(self.smoke(), **changes)
        victims = toy_images(6) if getattr(plugin, "observes", False) else None
        target = Target(model or toy_teacher().model, self.plugin.access, SHAPE, CLASSES, victims)
        aux = torch.rand(64, *SHAPE, generator=torch.Generator().manual_seed(1))
        return plugin.run(target, aux, context(seed)), target

    def test_is_an_attack(self) -> None:
        assert isinstance(self.smoke(), Attack) and self.plugin.access in ACCESS_LEVELS
        assert self.plugin.goal == "inversion"

    def test_brings_back_images(self) -> None:
        found, target = self.attack()
        assert found.images.shape[1:] == SHAPE and found.images.dtype == torch.float32
        assert float(found.images.min()) >= 0 and float(found.images.max()) <= 1
        assert len(found.images) == len(found.targets) == len(found.draws)
        assert target.queries > 0
        if found.victims is None:
            assert sorted(set(found.targets.tolist())) == list(range(CLASSES))
        else:
            assert sorted(set(found.victims.tolist())) == list(range(6)) and len(found.victims) == len(found.images)

    def test_same_seed_same_images(self) -> None:
        assert torch.equal(self.attack(3)[0].images, self.attack(3)[0].images)

    def test_another_target_other_images(self) -> None:
        other = toy_teacher(1).model
        assert not torch.equal(self.attack(3)[0].images, self.attack(3, other)[0].images)

    def test_images_do_not_depend_on_how_they_are_batched(self) -> None:
        if "batch" not in {field.name for field in dataclasses.fields(self.plugin)}:
            return
        together, apart = self.attack(batch=200)[0], self.attack(batch=3)[0]
        assert torch.equal(together.targets, apart.targets)
        assert torch.allclose(together.images, apart.images, atol=1e-3)

    def test_target_is_left_alone(self) -> None:
        model = toy_teacher().model
        before = [w.clone() for w in weights(model)]
        self.attack(model=model)
        assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    def test_applicable_answers_none_or_a_sentence(self) -> None:
        assert self.smoke().applicable(SHAPE, CLASSES, 1000) is None
        reason = self.smoke().applicable(SHAPE, CLASSES, 0)
        assert reason is None or len(reason) > 10


class MembershipContract(PluginContract):
    """What the runner relies on in a membership attack."""

    def infer(self, seed: int = 0) -> tuple[Tensor, Target]:
        """The scores of 40 toy suspects."""
        torch.manual_seed(seed)
        target = Target(toy_teacher().model, self.plugin.access, SHAPE, CLASSES)
        found = self.smoke().infer(target, toy_evidence(self.plugin.access), context(seed))
        return found.scores, target

    def test_is_a_membership_attack(self) -> None:
        assert isinstance(self.smoke(), MembershipAttack) and self.plugin.access in ACCESS_LEVELS
        assert self.plugin.goal == "membership"

    def test_scores_every_suspect(self) -> None:
        scores, target = self.infer()
        assert scores.shape == (40,) and torch.isfinite(scores).all()
        assert len(scores.unique()) > 1 and target.queries >= 40

    def test_same_seed_same_scores(self) -> None:
        assert torch.equal(self.infer(3)[0], self.infer(3)[0])

    def test_applicable_answers_none_or_a_sentence(self) -> None:
        assert self.smoke().applicable(SHAPE, CLASSES, 1000) is None
        reason = self.smoke().applicable(SHAPE, CLASSES, 0)
        assert reason is None or len(reason) > 10


def toy_images(n: int, seed: int = 0) -> Tensor:
    """(n, c, h, w) float32 of `toy_private`, in [0, 1]."""
    return toy_private(seed, n)[0].float() / 255


def toy_evidence(access: Access) -> Evidence:
    """40 suspects, a population of 24, and untrained networks as references."""
    images, labels = toy_private(5, 40)
    others, classes = toy_private(6, 24)

    def references(count: int, kind: str) -> list[Reference]:
        inside = torch.rand(count, 40, generator=torch.Generator().manual_seed(7)).argsort(0) < count // 2
        return [
            Reference(Target(toy_teacher(10 + i).model, access, SHAPE, CLASSES), members)
            for i, members in enumerate(inside)
        ]

    return Evidence(images.float() / 255, labels, (others.float() / 255, classes), references)


def weights(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers of a module."""
    return list(module.state_dict().values())
