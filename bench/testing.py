"""Contract tests that every plug-in must pass; third parties subclass them and set `plugin`.

class TestMine(MethodContract):
    plugin = MyMethod
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from bench import data, nets, priors, teachers
from bench.api import (
    ACCESS_LEVELS,
    RELEASE_LEVELS,
    Access,
    Attack,
    AttackerKnowledge,
    AttackResult,
    Context,
    GenerativeAttack,
    MembershipAttack,
    Method,
    Reference,
    Release,
    ReleaseAttack,
    ReleasedImages,
    Sampler,
    Target,
    Teacher,
    gaussian_latents,
)
from bench.config import TIERS, Variant, configure, departures, options
from bench.errors import BenchError
from bench.metrics.reconstructions import Labelled, Reconstructions
from bench.metrics.table import Metric
from bench.privacy import Budget, Unit, accountant
from bench.privacy.information import of_ledger

SHAPE, CLASSES = (1, 16, 16), 4
CPU = torch.device("cpu")


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


def toy_teacher(seed: int = 0, arch: str = "datalens") -> Teacher:
    """An untrained small network instead of a teacher."""
    torch.manual_seed(seed)
    model = nets.build(arch, SHAPE, CLASSES).eval().requires_grad_(False)
    return Teacher(model, arch, SHAPE, CLASSES, "toy")


def sure_network() -> nn.Module:
    """The toy teacher's network with large logits, so that its probabilities differ from image to image."""
    model = toy_teacher().model
    with torch.no_grad():
        for parameter in list(model.parameters())[-2:]:
            parameter.mul_(50)
    return model


def toy_private(seed: int = 0, n: int = 80) -> tuple[Tensor, Tensor]:
    """Private images (n, c, h, w) uint8 and labels (n,) in which each class is bright in a corner of its own."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.randint(0, 60, (n, *SHAPE), generator=rng)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 8 * (label // 2) : 8 * (label // 2) + 8, 8 * (label % 2) : 8 * (label % 2) + 8] += 150
    return images.to(torch.uint8), labels


class PluginContract:
    """What holds for methods and for attacks."""

    plugin: ClassVar[type[Any]]
    variant: ClassVar[Variant | None] = None
    """Of the plug-in; None = its default one."""

    def smoke(self) -> Any:
        """The plug-in at tier smoke."""
        return configure(self.plugin, "smoke", {}, "plugin", self.variant)

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


class DatasetContract:
    """What everything relies on in a data set."""

    name: ClassVar[str]
    """What it is called on the command line."""
    root: ClassVar[Path]
    """The folder below which its files lie."""

    def test_name_and_line_are_fit_for_the_command_line(self) -> None:
        data.check(self.name)
        assert data.slug(self.name) == self.name and "\n" not in data.names()[self.name]

    def test_files_are_there(self) -> None:
        assert data.dataset(self.name).missing(self.root) == []

    def test_reads_what_its_facts_promise(self) -> None:
        read, facts = data.load(self.name, self.root), data.facts(self.name)
        assert read.name == self.name or read.name.startswith(f"{self.name}-")
        assert data.facts(read.name) == facts
        assert facts.shape in (None, read.shape) and facts.class_names in ((), read.class_names)
        assert read.classes >= 2 and len(read.train_labels.unique()) == read.classes

    def test_reads_the_same_again(self) -> None:
        assert data.load(self.name, self.root).fingerprint == data.load(self.name, self.root).fingerprint

    def test_can_be_split(self) -> None:
        images, facts = data.load(self.name, self.root), data.facts(self.name)
        shared = data.split(images, "iid")
        assert len(shared.private) and len(shared.aux)
        if facts.other is not None:
            data.check(facts.other)

    def test_its_prior_draws_images_of_its_shape(self) -> None:
        shape = data.load(self.name, self.root).shape
        assert priors.for_dataset(priors.AUTO, self.name).draw(2, shape, torch.Generator()).shape == (2, *shape)


class NetworkContract:
    """What everything relies on in a network that is named on the command line."""

    name: ClassVar[str]
    """What it is called there."""
    shapes: ClassVar[tuple[tuple[int, int, int], ...]] = ((1, 16, 16), (1, 28, 28), (3, 32, 32))
    """(c, h, w) of images that it takes."""

    def test_logits_are_the_head_of_the_features(self) -> None:
        for shape in self.shapes:
            torch.manual_seed(0)
            network, images = nets.build(self.name, shape, 7).eval(), torch.rand(3, *shape)
            assert isinstance(network.body, nets.SmallNet)
            with torch.no_grad():
                logits, features = network(images), network.features(images)
                assert logits.shape == (3, 7) and features.ndim == 2 and torch.isfinite(logits).all()
                head = cast(nn.Module, network.body.head)
                assert torch.allclose(head(features), logits, atol=1e-5)

    def test_an_answer_depends_on_its_own_image_alone(self) -> None:
        torch.manual_seed(0)
        network, images = nets.build(self.name, self.shapes[0], 4).eval(), torch.rand(4, *self.shapes[0])
        with torch.no_grad():
            alone = torch.cat([network(image[None]) for image in images])
            assert torch.allclose(network(images), alone, atol=1e-5) and not torch.allclose(alone[0], alone[1])

    def test_weights_come_from_the_global_generator_and_are_saved_whole(self) -> None:
        made = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            made.append(nets.build(self.name, self.shapes[0], 4).eval())
        first, again, other = ([w.clone() for w in network.parameters()] for network in made)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        made[2].load_state_dict(made[0].state_dict())
        images = torch.rand(2, *self.shapes[0])
        with torch.no_grad():
            assert torch.equal(made[2](images), made[0](images))

    def test_every_weight_learns_and_so_does_the_image(self) -> None:
        torch.manual_seed(0)
        network = nets.build(self.name, self.shapes[0], 4).eval()
        images = torch.rand(8, *self.shapes[0], requires_grad=True)
        network(images).square().sum().backward()
        assert all(w.grad is not None and torch.isfinite(w.grad).all() for w in network.parameters())
        assert images.grad is not None and images.grad.abs().sum() > 0

    def test_images_that_are_too_small_are_refused_in_a_sentence(self) -> None:
        try:
            nets.build(self.name, (1, 1, 1), 4)
        except BenchError as error:
            assert "\n" not in str(error)


class PriorContract:
    """What everything relies on in a prior over images."""

    name: ClassVar[str]
    """What it is called on the command line."""
    shapes: ClassVar[tuple[tuple[int, int, int], ...]] = (
        *((channels, side, side) for channels in (1, 3) for side in (8, 16, 28, 32, 64)),
        (1, 9, 20),
        (3, 33, 16),
    )
    """(c, h, w) of images that it draws."""

    def draw(self, count: int, shape: tuple[int, int, int] = (1, 28, 28), seed: int = 0) -> Tensor:
        """Images of a seed."""
        return priors.load(self.name).draw(count, shape, torch.Generator().manual_seed(seed))

    def test_draws_images_of_any_shape_in_range(self) -> None:
        for shape in self.shapes:
            for count in (0, 1, 7):
                images = self.draw(count, shape)
                assert images.shape == (count, *shape) and images.dtype == torch.float32
                assert torch.isfinite(images).all() and ((images >= 0) & (images <= 1)).all()

    def test_same_seed_same_images_and_nobody_elses_randomness_moves(self) -> None:
        state = torch.get_rng_state()
        first, again, other = (self.draw(7, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(first, again) and not torch.equal(first, other)

    def test_a_generator_goes_on(self) -> None:
        prior, rng = priors.load(self.name), torch.Generator().manual_seed(0)
        assert not torch.equal(prior.draw(7, (1, 16, 16), rng), prior.draw(7, (1, 16, 16), rng))

    def test_no_two_images_are_alike(self) -> None:
        for shape in ((1, 28, 28), (3, 32, 32)):
            images = self.draw(1000, shape)
            assert len(images.flatten(1).unique(dim=0)) == len(images)

    def test_colours_are_used(self) -> None:
        images = self.draw(200, (3, 16, 16))
        coloured = (images.amax(1) - images.amin(1)).amax((1, 2)) > 0.05
        assert float(coloured.float().mean()) > 0.5

    def test_a_shape_that_it_cannot_draw_is_refused_in_a_sentence(self) -> None:
        for shape in ((2, 16, 16), (1, 4, 16)):
            try:
                self.draw(1, shape)
            except BenchError as error:
                assert "\n" not in str(error)
            else:
                raise AssertionError(f"it draws {shape}")


class TeacherRecipeContract:
    """What everything relies on in a teacher recipe."""

    recipe: ClassVar[type[teachers.Recipe]]

    def trained(self, seed: int) -> nets.Classifier:
        """A network trained on toy images at tier smoke."""
        torch.manual_seed(0)
        network = nets.build("datalens", SHAPE, CLASSES)
        teachers.fit(network, *toy_private(), configure(self.recipe, "smoke", {}, "teacher"), CPU, seed)
        return network

    def test_is_frozen_with_documented_flat_fields(self) -> None:
        assert dataclasses.is_dataclass(self.recipe) and self.recipe.__dataclass_params__.frozen  # type: ignore[attr-defined]
        undocumented = [option.name for option in options(self.recipe) if not option.help]
        assert not undocumented, f"put a string literal under each field: {undocumented}"

    def test_a_tier_changes_sizes_alone(self) -> None:
        sizes = {option.name for option in options(self.recipe) if option.size}
        assert set(self.recipe.tiers) <= set(TIERS)
        assert all(set(changed) <= sizes for changed in self.recipe.tiers.values())

    def test_same_seed_same_teacher_and_nobody_elses_randomness_moves(self) -> None:
        first, again, other = (weights(self.trained(seed)) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        state = torch.get_rng_state()
        network = nets.build("datalens", SHAPE, CLASSES)
        drawn = torch.get_rng_state()
        teachers.fit(network, *toy_private(), configure(self.recipe, "smoke", {}, "teacher"), CPU, 1)
        assert torch.equal(torch.get_rng_state(), drawn) and not torch.equal(drawn, state)

    def test_teaches(self) -> None:
        torch.manual_seed(0)
        network = nets.build("datalens", SHAPE, CLASSES)
        recipe = configure(self.recipe, "quick", {}, "teacher")
        teachers.fit(network, *toy_private(0, 160), recipe, CPU, 0)
        assert teachers.accuracy(network, *toy_private(1, 80), CPU) > 0.9


class MethodContract(PluginContract):
    """What the runner relies on in a method."""

    budget: ClassVar[Budget] = Budget(10.0)
    teacher_arch: ClassVar[str] = "datalens"
    """Network of the toy teacher; another one for methods that read what this one has not, such as BatchNorm."""
    uses_randomness: ClassVar[bool] = True

    def teacher(self) -> Teacher:
        """The toy teacher with what the method needs besides: private or public images, an untrained ensemble."""
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
        ledger = self.convert().ledger
        found, carried = accountant.account(ledger, Unit.EXAMPLE, self.budget.delta), of_ledger(ledger, CLASSES)
        assert found.epsilon > 0, "a release of a private teacher cannot be free"
        assert carried.nats is None or carried.nats > 0, "answers of a private teacher carry something"
        assert carried.nats != math.inf or not found.finite, "what is protected is not without a bound"

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


def toy_sampler(seed: int = 0) -> Sampler:
    """An untrained generator of 8 latents and no labels."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(8, math.prod(SHAPE)), nn.Sigmoid(), nn.Unflatten(1, SHAPE))
    return Sampler(layers.eval().requires_grad_(False), gaussian_latents(8))


def toy_images(n: int, seed: int = 0) -> Tensor:
    """(n, c, h, w) float32 of `toy_private`, in [0, 1]."""
    return toy_private(seed, n)[0].float() / 255


def toy_aux() -> Tensor:
    """(64, c, h, w) float32 in [0, 1], an attacker's images: noise."""
    return torch.rand(64, *SHAPE, generator=torch.Generator().manual_seed(1))


def toy_knowledge(access: Access) -> AttackerKnowledge:
    """40 suspects, a population of 24, and untrained networks as references."""
    images, labels = toy_private(5, 40)
    others, classes = toy_private(6, 24)

    def references(count: int, kind: str) -> list[Reference]:
        inside = torch.rand(count, 40, generator=torch.Generator().manual_seed(7)).argsort(0) < count // 2
        return [
            Reference(Target(toy_teacher(10 + i).model, access, SHAPE, CLASSES), members)
            for i, members in enumerate(inside)
        ]

    return AttackerKnowledge(images.float() / 255, labels, lambda: (others.float() / 255, classes), references)


def weights(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers of a module."""
    return list(module.state_dict().values())


def toy_reconstructions(seed: int = 0) -> Reconstructions:
    """Noisy private images as reconstructions, with features and logits of a network that learned nothing."""
    evaluator = toy_teacher(seed).model
    assert isinstance(evaluator, nets.Classifier)
    private, held_out = (_labelled(evaluator, *toy_private(number)) for number in (seed, seed + 1))
    noise = torch.randint(-20, 20, private.images.shape, generator=torch.Generator().manual_seed(seed))
    made = _labelled(evaluator, (private.images + noise).clamp(0, 255).to(torch.uint8), private.labels)
    logits = evaluator(made.images / 255).double()
    return Reconstructions(made.images, made.labels, made.features, logits, private, held_out)


def _labelled(evaluator: nets.Classifier, images: Tensor, labels: Tensor) -> Labelled:
    return Labelled(images, labels, evaluator.features(images / 255))


class MetricContract:
    """What everything relies on in a metric of reconstructed images."""

    metric: ClassVar[Metric]

    def test_is_a_finite_number_and_the_same_again(self) -> None:
        assert self.metric.measure(toy_reconstructions()) == self.metric.measure(toy_reconstructions())

    def test_the_order_of_the_images_plays_no_part(self) -> None:
        given = toy_reconstructions()
        order = torch.randperm(len(given.images), generator=torch.Generator().manual_seed(0))
        parts = {name: getattr(given, name)[order] for name in ("images", "targets", "features", "logits")}
        again = self.metric.measure(dataclasses.replace(given, **parts))
        assert math.isclose(again, self.metric.measure(given), rel_tol=1e-4, abs_tol=1e-9)

    def test_leaves_what_it_is_given_alone(self) -> None:
        given, untouched = toy_reconstructions(), toy_reconstructions()
        self.metric.measure(given)
        for side, other in (
            (given, untouched),
            (given.private, untouched.private),
            (given.held_out, untouched.held_out),
        ):
            for name, value in vars(side).items():
                assert not isinstance(value, Tensor) or torch.equal(value, getattr(other, name)), f"it changes {name}"

    def test_its_module_imports_no_torch(self) -> None:
        module = getattr(self.metric.compute, "__module__", "")
        code = f"import sys; sys.path[:0] = {sys.path!r}; import {module}; assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, f"boards are read without torch: import it in the function of {module}"
