"""Contract tests of a method."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch

from bench import nets
from bench.api import Method, Release, Teacher, releases_images, trains_student
from bench.privacy import Budget, Unit, accountant
from bench.privacy.information import of_ledger
from bench.testing.plugins import PluginContract, expect
from bench.testing.toys import CLASSES, SHAPE, recording_context, same_tensors, toy_private, toy_teacher, weights


class MethodContract(PluginContract):
    """Contract tests of a method (`bench.api.Method`); subclass it and set `plugin`."""

    budget: ClassVar[Budget] = Budget(10.0)
    """Budget of the conversions."""
    teacher_arch: ClassVar[str] = "datalens"
    """Network of the toy teacher; override it for methods that need more, such as BatchNorm layers."""
    uses_randomness: ClassVar[bool] = True
    """Whether another seed changes the release."""

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
        return self._convert(self.teacher(), seed).release

    def _convert(self, teacher: Teacher, seed: int) -> _Conversion:
        """Convert a teacher and record the streams of privacy noise."""
        before = [weight.clone() for weight in weights(teacher.model)]
        torch.manual_seed(seed)
        ctx = recording_context(seed)
        release = self.smoke().convert(teacher, "datalens", self.budget, ctx)
        return _Conversion(teacher, before, release, ctx.streams)

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

    def test_release_has_the_requested_network(self) -> None:
        if trains_student(self.smoke()):
            arch = _first(self).release.arch
            expect(arch == "datalens", f"the release's network is '{arch}'; expected 'datalens', as requested")

    def test_images_are_released_only_if_declared(self) -> None:
        release = _first(self).release
        has_none = release.generator is None and release.synthetic is None
        expect(
            releases_images(self.smoke()) or has_none,
            "images are released, and `releases_images` is false; set it to true or release none",
        )

    def test_unneeded_teacher_has_no_effect(self) -> None:
        """Boards assume this: they apply measurements of such a release, such as an audit, to runs with any teacher."""
        if self.smoke().needs & {"teacher", "teacher_network", "teacher_ensemble"}:
            return
        made = self._convert(dataclasses.replace(self.teacher(), arch="relu-cnn"), 0).release
        first = _first(self).release
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

    def test_noise_streams_are_used_once(self) -> None:
        """Two sources of one name draw the same bits, so that one release would reveal the noise of the other."""
        streams = _first(self).streams
        twice = sorted({each for each in streams if streams.count(each) > 1})
        expect(not twice, f"streams of privacy noise (seed, name) are used twice: {twice}; give each its own name")

    def test_release_depends_on_the_seed(self) -> None:
        first, again, other = _first(self).release, self.convert(0), self.convert(1)
        same = same_tensors(weights(first.student), weights(again.student))
        expect(same, "the same seed gives another release: draw from `ctx` only")
        differs = not same_tensors(weights(first.student), weights(other.student))
        expected = "another one" if self.uses_randomness else "the same one (uses_randomness is False)"
        expect(differs == self.uses_randomness, f"for the release of another seed, expected {expected}")

    def test_conversion_leaves_the_teacher_unchanged(self) -> None:
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
    streams: list[tuple[int, str]]
    """(seed, name) of the streams of privacy noise that the release used."""


_MADE: dict[type[MethodContract], _Conversion] = {}


def _first(checks: MethodContract) -> _Conversion:
    """Return the conversion with seed 0 for the checks, made once per class."""
    contract = type(checks)
    if contract not in _MADE:
        _MADE[contract] = checks._convert(checks.teacher(), 0)
    return _MADE[contract]
