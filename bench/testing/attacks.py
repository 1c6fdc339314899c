"""The contracts of the three kinds of attack."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from bench.api import (
    ACCESS_LEVELS,
    RELEASE_LEVELS,
    Attack,
    AttackResult,
    GenerativeAttack,
    MembershipAttack,
    ReleaseAttack,
    ReleasedImages,
    Target,
)
from bench.testing.plugins import PluginContract
from bench.testing.toys import (
    CLASSES,
    SHAPE,
    context,
    sure_network,
    toy_aux,
    toy_images,
    toy_knowledge,
    toy_sampler,
    toy_teacher,
    weights,
)


class AttackContract(PluginContract):
    """What the runner relies on in an inversion attack."""

    def attack(self, seed: int = 0, model: nn.Module | None = None, **changes: Any) -> tuple[AttackResult, Target]:
        """One smoke attack on the toy teacher, some of its fields changed."""
        torch.manual_seed(seed)
        plugin = dataclasses.replace(self.smoke(), **changes)
        victims = toy_images(6) if plugin.observes else None
        target = Target(model or toy_teacher().model, self.plugin.access, SHAPE, CLASSES, victims)
        return plugin.run(target, toy_aux(), context(seed)), target

    def test_is_an_attack(self) -> None:
        assert isinstance(self.smoke(), Attack) and self.plugin.access in ACCESS_LEVELS
        assert self.plugin.goal == "inversion"

    def test_brings_back_images(self) -> None:
        found, target = self.attack()
        assert found.images.shape[1:] == SHAPE and found.images.dtype == torch.float32
        assert float(found.images.min()) >= 0 and float(found.images.max()) <= 1
        assert len(found.images) == len(found.targets) == len(found.draws)
        assert (target.queries == 0) == self.plugin.is_null
        if found.victims is None:
            assert sorted(set(found.targets.tolist())) == list(range(CLASSES))
        else:
            assert sorted(set(found.victims.tolist())) == list(range(6)) and len(found.victims) == len(found.images)

    def test_same_seed_same_images(self) -> None:
        assert torch.equal(self.attack(3)[0].images, self.attack(3)[0].images)

    def test_images_depend_on_the_target_unless_the_attack_is_null(self) -> None:
        # three others: untrained networks may agree on one class, which is all that an attack by labels sees
        first, others = self.attack(3)[0].images, (toy_teacher(seed).model for seed in (1, 2, 3))
        same = all(torch.equal(first, self.attack(3, other)[0].images) for other in others)
        assert same == self.plugin.is_null, "a null attack knows no target; any other one must"

    def test_a_generator_makes_images_without_a_target(self) -> None:
        attack = self.smoke()
        if isinstance(attack, GenerativeAttack):
            images = attack.prior(5, toy_aux(), context())
            assert images.shape == (5, *SHAPE) and float(images.min()) >= 0 and float(images.max()) <= 1

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
        target = Target(sure_network(), self.plugin.access, SHAPE, CLASSES)
        found = self.smoke().infer(target, toy_knowledge(self.plugin.access), context(seed))
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


class ReleaseContract(PluginContract):
    """What the runner relies on in an attack on what is released besides the student."""

    def compare(self, seed: int = 0) -> tuple[Tensor, ReleasedImages]:
        """The scores of 40 toy suspects, against an untrained generator."""
        torch.manual_seed(seed)
        plugin = self.smoke()
        released = ReleasedImages(plugin.access, None, toy_sampler())
        found = plugin.compare(released, toy_knowledge("scores"), context(seed))
        return found.scores, released

    def test_is_an_attack_on_a_release(self) -> None:
        plugin = self.smoke()
        assert isinstance(plugin, ReleaseAttack) and plugin.access in RELEASE_LEVELS
        assert plugin.goal == "membership"

    def test_scores_every_suspect(self) -> None:
        scores, released = self.compare()
        assert scores.shape == (40,) and torch.isfinite(scores).all()
        assert len(scores.unique()) > 1 and released.queries > 0

    def test_same_seed_same_scores(self) -> None:
        assert torch.equal(self.compare(3)[0], self.compare(3)[0])

    def test_released_images_alone_will_do_for_samples(self) -> None:
        plugin = self.smoke()
        if plugin.access == "samples":
            released = ReleasedImages("samples", toy_images(12, 9), None)
            assert torch.isfinite(plugin.compare(released, toy_knowledge("scores"), context()).scores).all()

    def test_applicable_answers_none_or_a_sentence(self) -> None:
        assert self.smoke().applicable(SHAPE, CLASSES, 1000) is None
        reason = self.smoke().applicable(SHAPE, CLASSES, 0)
        assert reason is None or len(reason) > 10
