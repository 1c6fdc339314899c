"""Contract tests of the three kinds of attack: inversion, membership, and on released images or generators."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.api import (
    ACCESS_LEVELS,
    RELEASE_LEVELS,
    Access,
    Attack,
    AttackResult,
    GenerativeAttack,
    MembershipAttack,
    ReleaseAttack,
    ReleasedImages,
    Target,
)
from bench.testing.plugins import PluginContract, expect
from bench.testing.toys import (
    CLASSES,
    SHAPE,
    context,
    same_tensors,
    sure_network,
    toy_aux,
    toy_images,
    toy_knowledge,
    toy_sampler,
    toy_teacher,
    weights,
)


class AttackContract(PluginContract):
    """Contract tests of an inversion attack (`bench.api.Attack`); subclass it and set `plugin`."""

    def attack(self, seed: int = 0, model: nn.Module | None = None, **changes: Any) -> tuple[AttackResult, Target]:
        """Run the attack at tier smoke; return its result and the target.

        Args:
            model: the attacked network; None = the toy teacher's.
            changes: values of options of the attack.
        """
        torch.manual_seed(seed)
        plugin = dataclasses.replace(self.smoke(), **changes)
        victims = toy_images(6) if plugin.observes else None
        target = Target(model or toy_teacher().model, self.plugin.access, SHAPE, CLASSES, victims)
        return plugin.run(target, toy_aux(), context(seed)), target

    def test_is_an_attack(self) -> None:
        expect(isinstance(self.smoke(), Attack), f"{self.plugin.__name__} has not every member of `bench.api.Attack`")
        _expect_access(self.plugin, ACCESS_LEVELS)
        _expect_goal(self.plugin, "inversion")

    def test_reconstructs_images_of_every_class(self) -> None:
        found, target = self.attack()
        _expect_images(found.images)
        expect(found.images.dtype == torch.float32, f"images are {found.images.dtype}; expected torch.float32")
        lengths = len(found.images), len(found.targets), len(found.draws)
        expect(len(set(lengths)) == 1, f"lengths of images, targets and draws are {lengths}; expected one length")
        expected = "none" if self.plugin.is_null else "some"
        expect((target.queries == 0) == self.plugin.is_null, f"{target.queries} queries; expected {expected} (is_null)")
        if found.victims is None:
            classes = sorted(set(found.targets.tolist()))
            expect(classes == list(range(CLASSES)), f"images of classes {classes}; expected all of {CLASSES} classes")
        else:
            victims = sorted(set(found.victims.tolist()))
            expect(victims == list(range(6)), f"images of victims {victims}; expected all of 6 victims")
            expect(len(found.victims) == lengths[0], f"{len(found.victims)} victims of {lengths[0]} images")

    def test_same_seed_same_images(self) -> None:
        first, again = (self.attack(3)[0].images for _ in range(2))
        expect(torch.equal(first, again), "the same seed gives other images: draw from `ctx` only")

    def test_images_depend_on_the_target_unless_null(self) -> None:
        # three others: two untrained networks may agree on one class, which is all that a label-only attack sees
        first, others = self.attack(3)[0].images, (toy_teacher(seed).model for seed in (1, 2, 3))
        same = all(torch.equal(first, self.attack(3, other)[0].images) for other in others)
        expect(same == self.plugin.is_null, "a null attack ignores the target; any other attack depends on it")

    def test_prior_makes_images_without_a_target(self) -> None:
        attack = self.smoke()
        if isinstance(attack, GenerativeAttack):
            images = attack.prior(5, toy_aux(), context())
            expect(len(images) == 5, f"`prior` made {len(images)} images; expected 5")
            _expect_images(images)

    def test_images_do_not_depend_on_the_batch_size(self) -> None:
        if "batch" not in {field.name for field in dataclasses.fields(self.plugin)}:
            return
        together, apart = self.attack(batch=200)[0], self.attack(batch=3)[0]
        expect(torch.equal(together.targets, apart.targets), "batches of 200 and of 3 give other targets")
        close = torch.allclose(together.images, apart.images, atol=1e-3)
        expect(close, "images differ by more than 1e-3 between batches of 200 and of 3")

    def test_attack_leaves_the_target_unchanged(self) -> None:
        model = toy_teacher().model
        before = [w.clone() for w in weights(model)]
        self.attack(model=model)
        expect(same_tensors(before, weights(model)), "the attack changes the target's weights or buffers")
        hooked = [name for name, each in model.named_modules() if each._forward_hooks or each._forward_pre_hooks]
        expect(not hooked, f"the attack leaves hooks on the target: {hooked}")

    def test_skip_reason_is_none_or_a_sentence(self) -> None:
        _expect_skip_reason(self.smoke())


class MembershipContract(PluginContract):
    """Contract tests of a membership attack (`bench.api.MembershipAttack`); subclass it and set `plugin`."""

    def infer(self, seed: int = 0) -> tuple[Tensor, Target]:
        """Run the attack at tier smoke; return the (40,) scores of toy suspects and the target."""
        torch.manual_seed(seed)
        target = Target(sure_network(), self.plugin.access, SHAPE, CLASSES)
        found = self.smoke().infer(target, toy_knowledge(self.plugin.access), context(seed))
        return found.scores, target

    def test_is_a_membership_attack(self) -> None:
        complete = isinstance(self.smoke(), MembershipAttack)
        expect(complete, f"{self.plugin.__name__} has not every member of `bench.api.MembershipAttack`")
        _expect_access(self.plugin, ACCESS_LEVELS)
        _expect_goal(self.plugin, "membership")

    def test_scores_every_suspect(self) -> None:
        scores, target = self.infer()
        _expect_scores(scores)
        expect(target.queries >= 40, f"{target.queries} queries for 40 suspects; expected one or more for each")

    def test_same_seed_same_scores(self) -> None:
        first, again = (self.infer(3)[0] for _ in range(2))
        expect(torch.equal(first, again), "the same seed gives other scores: draw from `ctx` only")

    def test_skip_reason_is_none_or_a_sentence(self) -> None:
        _expect_skip_reason(self.smoke())


class ReleaseContract(PluginContract):
    """Contract tests of an attack on a release (`bench.api.ReleaseAttack`); subclass it and set `plugin`."""

    def compare(self, seed: int = 0) -> tuple[Tensor, ReleasedImages]:
        """Run the attack at tier smoke on an untrained generator; return the (40,) scores and the released images."""
        torch.manual_seed(seed)
        plugin = self.smoke()
        released = ReleasedImages(plugin.access, None, toy_sampler())
        found = plugin.compare(released, toy_knowledge("scores"), context(seed))
        return found.scores, released

    def test_is_an_attack_on_a_release(self) -> None:
        plugin = self.smoke()
        expect(
            isinstance(plugin, ReleaseAttack),
            f"{self.plugin.__name__} has not every member of `bench.api.ReleaseAttack`",
        )
        _expect_access(plugin, RELEASE_LEVELS)
        _expect_goal(self.plugin, "membership")

    def test_scores_every_suspect(self) -> None:
        scores, released = self.compare()
        _expect_scores(scores)
        expect(released.queries > 0, "no released image was read; expected some")

    def test_same_seed_same_scores(self) -> None:
        first, again = (self.compare(3)[0] for _ in range(2))
        expect(torch.equal(first, again), "the same seed gives other scores: draw from `ctx` only")

    def test_samples_access_needs_only_released_images(self) -> None:
        plugin = self.smoke()
        if plugin.access == "samples":
            released = ReleasedImages("samples", toy_images(12, 9), None)
            scores = plugin.compare(released, toy_knowledge("scores"), context()).scores
            expect(torch.isfinite(scores).all(), "12 released images give NaN or infinity; expected finite scores")

    def test_skip_reason_is_none_or_a_sentence(self) -> None:
        _expect_skip_reason(self.smoke())


def _expect_access(plugin: Any, levels: Sequence[Access]) -> None:
    expect(plugin.access in levels, f"`access` is {plugin.access!r}; expected one of {', '.join(levels)}")


def _expect_goal(plugin: type[Any], goal: str) -> None:
    expect(plugin.goal == goal, f"`goal` is {plugin.goal!r}; expected '{goal}'")


def _expect_images(images: Tensor) -> None:
    """Expect the shape of the toy images, with values in [0, 1]."""
    expect(images.shape[1:] == SHAPE, f"images are of shape {tuple(images.shape[1:])}; expected {SHAPE}")
    low, high = float(images.min()), float(images.max())
    expect(low >= 0 and high <= 1, f"pixels are between {low:g} and {high:g}; expected 0 to 1")


def _expect_scores(scores: Tensor) -> None:
    """Expect one finite score for each of 40 suspects, not all the same."""
    expect(scores.shape == (40,), f"scores are of shape {tuple(scores.shape)}; expected (40,), one of each suspect")
    expect(torch.isfinite(scores).all(), "some scores are NaN or infinite; expected finite ones")
    expect(len(scores.unique()) > 1, "all scores are the same; expected scores that differ between suspects")


def _expect_skip_reason(attack: Any) -> None:
    """Expect no reason to skip a toy task, and None or a sentence for a task without images."""
    reason = attack.skip_reason(SHAPE, CLASSES, 1000)
    expect(reason is None, f"`skip_reason` gives {reason!r} for {CLASSES} classes and 1000 images; expected None")
    reason = attack.skip_reason(SHAPE, CLASSES, 0)
    expect(reason is None or len(reason) > 10, f"`skip_reason` gives {reason!r} without images; expected a sentence")
