"""Contract tests of data sets, networks, priors, teacher recipes and metrics."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from bench import data, nets, priors, teachers
from bench.config import configure, options
from bench.errors import BenchError
from bench.metrics.metric import Metric
from bench.testing.plugins import expect, expect_frozen_with_documented_fields, expect_known_tiers
from bench.testing.toys import CLASSES, CPU, SHAPE, same_tensors, toy_private, toy_reconstructions, weights


@lru_cache(maxsize=1)
def _read(name: str, root: Path) -> data.ImageData:
    """Read a data set; the last one is cached, as reading a large one takes seconds and its checks run in sequence."""
    return data.load(name, root)


class DatasetContract:
    """Contract tests of a data set; subclass it, and set `name` and `root`."""

    name: ClassVar[str]
    """Its name on the command line, NAME:ARGUMENT for a data set with an argument."""
    root: ClassVar[Path]
    """The folder below which its files are."""

    def test_name_and_description_suit_the_command_line(self) -> None:
        data.check(self.name)
        plugin = data.base_name(data.slug(self.name))
        known = self.name, self.name.partition(":")[0], self.name.partition("@")[0]
        expect(plugin in known, f"the slug names data set '{plugin}'; expected '{known[1]}'")
        expect("\n" not in data.names()[plugin], f"the description of '{plugin}' has several lines; expected one")

    def test_files_are_present(self) -> None:
        missing = data.dataset(data.base_name(data.slug(self.name))).missing(self.root)
        expect(missing == [], f"files are missing below {self.root}: {missing}")

    def test_images_match_the_facts(self) -> None:
        read, name = _read(self.name, self.root), data.slug(self.name)
        facts = data.facts(name)
        found, expected = data.base_name(read.name), data.base_name(name)
        expect(found == expected, f"the data that were read are called '{found}'; expected '{expected}'")
        known = data.facts(read.name)  # settings for its own size do not apply at another size
        same = dataclasses.replace(known, shape=facts.shape, mmd_bandwidth=facts.mmd_bandwidth) == facts
        expect(same, f"facts of '{read.name}' and of '{name}' differ in more than size: {known} and {facts}")
        expect(known.shape in (None, read.shape), f"images are of shape {read.shape}; the facts say {known.shape}")
        named = known.class_names in ((), read.class_names)
        expect(named, f"classes are called {read.class_names}; the facts say {known.class_names}")
        labels = len(read.train_labels.unique())
        expect(read.classes >= 2, f"{read.classes} classes; expected 2 or more")
        expect(labels == read.classes, f"training labels of {labels} classes; expected all {read.classes}")

    def test_reading_is_reproducible(self) -> None:
        first, again = _read(self.name, self.root).fingerprint, data.load(self.name, self.root).fingerprint
        expect(again == first, f"two readings have fingerprints {first} and {again}; expected the same images")

    def test_can_be_split(self) -> None:
        images, facts = _read(self.name, self.root), data.facts(data.slug(self.name))
        shared = data.split(images, "iid")
        expect(len(shared.private), "split iid leaves no private records")
        expect(len(shared.aux), "split iid leaves no records to the attacker")
        if facts.other is not None:
            data.check(facts.other)

    def test_prior_draws_images_of_the_shape(self) -> None:
        shape = _read(self.name, self.root).shape
        prior = priors.for_dataset(priors.AUTO, data.slug(self.name))
        drawn = tuple(prior.draw(2, shape, torch.Generator()).shape)
        expect(drawn == (2, *shape), f"its prior draws images of shape {drawn}; expected {(2, *shape)}")


class NetworkContract:
    """Contract tests of a network that is a plug-in; subclass it and set `name`."""

    name: ClassVar[str]
    """Its name on the command line."""
    shapes: ClassVar[tuple[tuple[int, int, int], ...]] = ((1, 16, 16), (1, 28, 28), (3, 32, 32))
    """(c, h, w) of its input images."""

    def test_logits_are_the_head_of_the_features(self) -> None:
        for shape in self.shapes:
            torch.manual_seed(0)
            network, images = nets.build(self.name, shape, 7).eval(), torch.rand(3, *shape)
            expect(isinstance(network.body, nets.SmallNet), f"'{self.name}' does not extend `bench.nets.SmallNet`")
            with torch.no_grad():
                logits, features = network(images), network.features(images)
                expect(logits.shape == (3, 7), f"logits are of shape {tuple(logits.shape)}; expected (3, 7)")
                expect(features.ndim == 2, f"features are of shape {tuple(features.shape)}; expected (3, d)")
                expect(torch.isfinite(logits).all(), "some logits are NaN or infinite; expected finite ones")
                head = cast(nn.Module, network.body.head)
                same = torch.allclose(head(features), logits, atol=1e-5)
                expect(same, "`head` of the features differs from the logits by more than 1e-5")

    def test_logits_depend_on_one_image_only(self) -> None:
        torch.manual_seed(0)
        network, images = nets.build(self.name, self.shapes[0], 4).eval(), torch.rand(4, *self.shapes[0])
        with torch.no_grad():
            one_by_one = torch.cat([network(image[None]) for image in images])
            same = torch.allclose(network(images), one_by_one, atol=1e-5)
            expect(same, "in evaluation mode an image's logits depend on the other images of its batch")
            differ = not torch.allclose(one_by_one[0], one_by_one[1])
            expect(differ, "two images have the same logits; expected different ones")

    def test_logits_do_not_depend_on_the_memory_layout(self) -> None:
        for shape in self.shapes:
            torch.manual_seed(0)
            network, images = nets.build(self.name, shape, 4).eval(), torch.rand(5, *shape)
            with torch.no_grad():
                before = network(images)
                turned = network.to(memory_format=torch.channels_last)
                same = torch.allclose(turned(images), before, atol=1e-4)
                expect(same, f"images of shape {shape}: logits differ by more than 1e-4 in the channels-last layout")

    def test_weights_are_seeded_and_saved_completely(self) -> None:
        made = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            made.append(nets.build(self.name, self.shapes[0], 4).eval())
        first, again, other = ([w.clone() for w in network.parameters()] for network in made)
        expect(same_tensors(first, again), "the same seed gives other weights: draw from torch's global generator only")
        expect(not same_tensors(first, other), "another seed gives the same weights; expected different ones")
        made[2].load_state_dict(made[0].state_dict())
        images = torch.rand(2, *self.shapes[0])
        with torch.no_grad():
            same = torch.equal(made[2](images), made[0](images))
            expect(
                same,
                "two networks with one state_dict have different logits: some state is elsewhere",
            )

    def test_gradients_reach_all_weights_and_the_image(self) -> None:
        torch.manual_seed(0)
        network = nets.build(self.name, self.shapes[0], 4).eval()
        images = torch.rand(8, *self.shapes[0], requires_grad=True)
        network(images).square().sum().backward()
        idle = [name for name, w in network.named_parameters() if w.grad is None or not torch.isfinite(w.grad).all()]
        expect(not idle, f"weights without a finite gradient: {idle}")
        moved = images.grad is not None and images.grad.abs().sum() > 0
        expect(moved, "the images have no gradient; attacks need one")

    def test_too_small_images_are_refused_in_one_line(self) -> None:
        try:
            nets.build(self.name, (1, 1, 1), 4)
        except BenchError as error:
            expect("\n" not in str(error), f"the error has several lines; expected one: {error}")


class PriorContract:
    """Contract tests of a prior over images; subclass it and set `name`."""

    name: ClassVar[str]
    """Its name on the command line."""
    shapes: ClassVar[tuple[tuple[int, int, int], ...]] = (
        *((channels, side, side) for channels in (1, 3) for side in (8, 16, 28, 32, 64)),
        (1, 9, 20),
        (3, 33, 16),
    )
    """(c, h, w) of the images that it draws."""

    def draw(self, count: int, shape: tuple[int, int, int] = (1, 28, 28), seed: int = 0) -> Tensor:
        """Draw (count, c, h, w) images of the prior with a seed."""
        return priors.load(self.name).draw(count, shape, torch.Generator().manual_seed(seed))

    def test_draws_images_of_every_shape_in_range(self) -> None:
        for shape in self.shapes:
            for count in (0, 1, 7):
                images = self.draw(count, shape)
                drawn, expected = tuple(images.shape), (count, *shape)
                expect(drawn == expected, f"images of shape {drawn}; expected {expected}")
                expect(images.dtype == torch.float32, f"images are {images.dtype}; expected torch.float32")
                inside = torch.isfinite(images).all() and ((images >= 0) & (images <= 1)).all()
                expect(inside, f"images of shape {shape} have values outside of [0, 1]")

    def test_draws_depend_only_on_the_generator(self) -> None:
        state = torch.get_rng_state()
        first, again, other = (self.draw(7, seed=seed) for seed in (1, 1, 2))
        expect(torch.equal(torch.get_rng_state(), state), "the prior draws from torch's global generator; use `rng`")
        expect(torch.equal(first, again), "the same seed gives other images: draw from `rng` only")
        expect(not torch.equal(first, other), "another seed gives the same images; expected different ones")

    def test_second_draw_differs_from_the_first(self) -> None:
        prior, rng = priors.load(self.name), torch.Generator().manual_seed(0)
        first, then = (prior.draw(7, (1, 16, 16), rng) for _ in range(2))
        expect(not torch.equal(first, then), "two draws from one generator are equal; expected different images")

    def test_all_images_differ(self) -> None:
        for shape in ((1, 28, 28), (3, 32, 32)):
            images = self.draw(1000, shape)
            distinct = len(images.flatten(1).unique(dim=0))
            expect(distinct == len(images), f"{distinct} distinct images of {len(images)}; expected all distinct")

    def test_colour_images_have_colours(self) -> None:
        images = self.draw(200, (3, 16, 16))
        coloured = (images.amax(1) - images.amin(1)).amax((1, 2)) > 0.05
        share = float(coloured.float().mean())
        expect(share > 0.5, f"{share:.0%} of the images have colours; expected more than half")

    def test_other_shapes_are_refused_in_one_line(self) -> None:
        for shape in ((2, 16, 16), (1, 4, 16)):
            try:
                self.draw(1, shape)
            except BenchError as error:
                expect("\n" not in str(error), f"the error has several lines; expected one: {error}")
            else:
                raise AssertionError(f"the prior draws images of shape {shape}; expected a BenchError")


class TeacherRecipeContract:
    """Contract tests of a teacher recipe; subclass it and set `recipe`."""

    recipe: ClassVar[type[teachers.Recipe]]

    def trained(self, seed: int) -> nets.Classifier:
        """Train a network on toy images at tier smoke."""
        torch.manual_seed(0)
        network = nets.build("datalens", SHAPE, CLASSES)
        teachers.fit(network, *toy_private(), configure(self.recipe, "smoke", {}, "teacher"), CPU, seed)
        return network

    def test_fields_are_frozen_and_documented(self) -> None:
        expect_frozen_with_documented_fields(self.recipe)

    def test_tiers_change_only_sizes(self) -> None:
        sizes = {option.name for option in options(self.recipe) if option.size}
        expect_known_tiers(self.recipe.tiers)
        for tier, changed in self.recipe.tiers.items():
            expect(set(changed) <= sizes, f"{tier}: mark as Size, or leave out {set(changed) - sizes}")

    def test_teacher_depends_only_on_the_seed(self) -> None:
        first, again, other = (weights(self.trained(seed)) for seed in (1, 1, 2))
        expect(same_tensors(first, again), "the same seed gives another teacher: draw from the given generators only")
        expect(not same_tensors(first, other), "another seed gives the same teacher; expected another one")
        state = torch.get_rng_state()
        network = nets.build("datalens", SHAPE, CLASSES)
        drawn = torch.get_rng_state()
        teachers.fit(network, *toy_private(), configure(self.recipe, "smoke", {}, "teacher"), CPU, 1)
        expect(not torch.equal(drawn, state), "building a network draws nothing from torch's global generator")
        expect(torch.equal(torch.get_rng_state(), drawn), "the recipe draws from torch's global generator")

    def test_trained_teacher_is_accurate(self) -> None:
        torch.manual_seed(0)
        network = nets.build("datalens", SHAPE, CLASSES)
        recipe = configure(self.recipe, "quick", {}, "teacher")
        (images, labels), (unseen, known) = toy_private(0, 160), toy_private(1, 80)
        if recipe.flip:  # mirroring turns one toy class into another; upper and lower half are unchanged
            labels, known = labels // 2, known // 2
        teachers.fit(network, images, labels, recipe, CPU, 0)
        accuracy = teachers.accuracy(network, unseen, known, CPU)
        expect(accuracy > 0.9, f"accuracy {accuracy:.0%} on toy images at tier quick; expected more than 90 %")


class MetricContract:
    """Contract tests of a metric of reconstructed images; subclass it and set `metric`."""

    metric: ClassVar[Metric]

    def test_value_is_finite_and_reproducible(self) -> None:
        first, again = (self.metric.measure(toy_reconstructions()) for _ in range(2))
        expect(math.isfinite(first), f"the metric is {first}; expected a finite number")
        expect(first == again, f"the same images give {first}, then {again}; expected one number")

    def test_value_does_not_depend_on_the_order(self) -> None:
        given = toy_reconstructions()
        order = torch.randperm(len(given.images), generator=torch.Generator().manual_seed(0))
        parts = {name: getattr(given, name)[order] for name in ("images", "targets", "features", "logits")}
        again = self.metric.measure(dataclasses.replace(given, **parts))
        first = self.metric.measure(given)
        same = math.isclose(again, first, rel_tol=1e-4, abs_tol=1e-9)
        expect(same, f"the metric is {first}, and {again} for the same images in another order")

    def test_inputs_stay_unchanged(self) -> None:
        given, untouched = toy_reconstructions(), toy_reconstructions()
        self.metric.measure(given)
        for side, other in (
            (given, untouched),
            (given.private, untouched.private),
            (given.held_out, untouched.held_out),
        ):
            for name, value in vars(side).items():
                same = not isinstance(value, Tensor) or torch.equal(value, getattr(other, name))
                expect(same, f"the metric changes {name} in place; expected a copy")

    def test_its_module_imports_no_torch(self) -> None:
        module = getattr(self.metric.compute, "__module__", "")
        code = f"import sys; sys.path[:0] = {sys.path!r}; import {module}; sys.exit('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        expect(done.returncode == 0, f"boards are read without torch: import it in the function of {module}")
