"""The contract of a method."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch

from bench import nets
from bench.api import (
    Method,
    Release,
    Teacher,
    releases_images,
    trains_student,
)
from bench.privacy import Budget, Unit, accountant
from bench.privacy.information import of_ledger
from bench.testing.plugins import PluginContract, expect
from bench.testing.toys import CLASSES, SHAPE, asking_context, same_tensors, toy_private, toy_teacher, weights


class MethodContract(PluginContract):
    """Checks of a method that the runner relies on."""

    budget: ClassVar[Budget] = Budget(10.0)
    teacher_arch: ClassVar[str] = "datalens"
    """Network of the toy teacher; override it for methods that need more, such as BatchNorm layers."""
    uses_randomness: ClassVar[bool] = True

    def teacher(self) -> Teacher:
        """Return the toy teacher and other inputs of the method: private or public images, an untrained ensemble."""
        method, toy = self.smoke(), toy_teacher(arch=self.teacher_arch)
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
        """Run one smoke conversion of the toy teacher."""
        return self._taught_by(self.teacher(), seed)

    def _taught_by(self, teacher: Teacher, seed: int) -> Release:
        return self._asking(teacher, seed)[0]

    def _asking(self, teacher: Teacher, seed: int) -> tuple[Release, list[tuple[int, str]]]:
        """Return the release, and the streams of privacy noise that it used."""
        torch.manual_seed(seed)
        ctx = asking_context(seed)
        return self.smoke().convert(teacher, "datalens", self.budget, ctx), ctx.asked

    def test_is_a_method(self) -> None:
        expect(isinstance(self.smoke(), Method), f"{self.plugin.__name__} has not every member of `bench.api.Method`")
        units = [str(unit) for unit in Unit]
        expect(self.plugin.unit in units, f"`unit` is {self.plugin.unit!r}; expected one of {', '.join(units)}")

    def test_release_can_be_rebuilt_and_classifies(self) -> None:
        release = _first(self).release
        rebuilt = nets.build(release.arch, SHAPE, CLASSES)
        rebuilt.load_state_dict(release.student.state_dict())
        images = torch.rand(5, *SHAPE)
        with torch.no_grad():
            logits = release.student.eval()(images)
            same = torch.equal(rebuilt.eval()(images), logits)
            expect(same, f"network '{release.arch}' with the student's weights gives other logits than the student")
            frozen = rebuilt.to(memory_format=torch.channels_last)(images)
            close = torch.allclose(frozen, logits, atol=1e-3)
            expect(close, "the student's logits differ by more than 1e-3 in the layout of attacks, channels-last")
        expect(logits.shape == (5, CLASSES), f"logits are of shape {tuple(logits.shape)}; expected (5, {CLASSES})")
        expect(torch.isfinite(logits).all(), "some logits are NaN or infinite; expected finite ones")

    def test_the_network_of_the_release_is_the_one_that_was_asked_for_unless_it_says_otherwise(self) -> None:
        if trains_student(self.smoke()):
            arch = _first(self).release.arch
            expect(arch == "datalens", f"the release's network is '{arch}'; expected 'datalens', as requested")

    def test_images_are_released_only_where_it_does_not_deny_it(self) -> None:
        release = _first(self).release
        has_none = release.generator is None and release.synthetic is None
        expect(
            releases_images(self.smoke()) or has_none,
            "images are released, and `releases_images` is false; set it to true or release none",
        )

    def test_a_teacher_that_it_does_not_need_changes_nothing(self) -> None:
        """Boards assume this: they apply measurements of such a release, such as an audit, to every teacher's
        network."""
        if self.smoke().needs & {"teacher", "teacher_network", "teacher_ensemble"}:
            return
        made, first = self._taught_by(dataclasses.replace(self.teacher(), arch="relu-cnn"), 0), _first(self).release
        expect(made.arch == first.arch, f"another teacher changes the network: {first.arch} to {made.arch}")
        same = same_tensors(weights(made.student), weights(first.student))
        expect(same, "another teacher changes the release: name 'teacher' in `needs`")

    def test_ledger_accounts_for_one_example(self) -> None:
        ledger = _first(self).release.ledger
        found, carried = accountant.account(ledger, Unit.EXAMPLE, self.budget.delta), of_ledger(ledger, CLASSES)
        expect(found.epsilon > 0, f"epsilon is {found.epsilon:g}; a release of a private teacher costs more than 0")
        expect(carried.nats is None or carried.nats > 0, "the ledger bounds the information by 0 nats; expected more")
        bounded = carried.nats != math.inf or not found.finite
        expect(bounded, f"epsilon is {found.epsilon:g}, but the information has no bound; expected a finite one")

    def test_no_stream_of_privacy_noise_is_asked_for_twice(self) -> None:
        """Two sources of one name draw the same bits, so that one release would reveal the noise of the other."""
        streams = _first(self).asked
        twice = sorted({each for each in streams if streams.count(each) > 1})
        expect(not twice, f"streams of privacy noise (seed, name) are used twice: {twice}; give each its own name")

    def test_same_seed_same_release_and_other_seed_another(self) -> None:
        first, again, other = _first(self).release, self.convert(0), self.convert(1)
        same = same_tensors(weights(first.student), weights(again.student))
        expect(same, "the same seed gives another release: draw from `ctx` only")
        differs = not same_tensors(weights(first.student), weights(other.student))
        expected = "another one" if self.uses_randomness else "the same one (uses_randomness is False)"
        expect(differs == self.uses_randomness, f"for the release of another seed, expected {expected}")

    def test_teacher_is_left_alone(self) -> None:
        first = _first(self)
        same = same_tensors(first.before, weights(first.teacher.model))
        expect(same, "the conversion changes the teacher's weights or buffers")
        graded = [name for name, weight in first.teacher.model.named_parameters() if weight.grad is not None]
        expect(not graded, f"the conversion leaves gradients on the teacher's weights: {graded}")


@dataclasses.dataclass(frozen=True)
class _Conversion:
    teacher: Teacher
    before: list[torch.Tensor]
    """The teacher's weights before the conversion."""
    release: Release
    asked: list[tuple[int, str]]
    """The streams of privacy noise that the release used."""


_MADE: dict[type[MethodContract], _Conversion] = {}


def _first(checks: MethodContract) -> _Conversion:
    """Return the conversion with seed 0 for the checks, made once per class."""
    contract = type(checks)
    if contract not in _MADE:
        teacher = checks.teacher()
        before = [w.clone() for w in weights(teacher.model)]
        _MADE[contract] = _Conversion(teacher, before, *checks._asking(teacher, 0))
    return _MADE[contract]
