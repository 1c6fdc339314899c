"""The contracts of data sets, networks, priors and teacher recipes."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from bench import data, nets, priors, teachers
from bench.config import TIERS, configure, options
from bench.errors import BenchError
from bench.testing.toys import CLASSES, CPU, SHAPE, toy_private, weights


@lru_cache(maxsize=1)
def _read(name: str, root: Path) -> data.ImageData:
    """Large sets take seconds to read; the checks of one set follow one another."""
    return data.load(name, root)


class DatasetContract:
    """What everything relies on in a data set."""

    name: ClassVar[str]
    """What it is called on the command line; with an argument, NAME:ARGUMENT, where it takes one."""
    root: ClassVar[Path]
    """The folder below which its files lie."""

    def test_name_and_line_are_fit_for_the_command_line(self) -> None:
        data.check(self.name)
        plugin = data.base_name(data.slug(self.name))
        assert plugin in (self.name, self.name.partition(":")[0], self.name.partition("@")[0])
        assert "\n" not in data.names()[plugin]

    def test_files_are_there(self) -> None:
        assert data.dataset(data.base_name(data.slug(self.name))).missing(self.root) == []

    def test_reads_what_its_facts_promise(self) -> None:
        read, name = _read(self.name, self.root), data.slug(self.name)
        facts = data.facts(name)
        assert data.base_name(read.name) == data.base_name(name)
        known = data.facts(read.name)  # at another size than its own, settings made for that do not hold
        assert dataclasses.replace(known, shape=facts.shape, mmd_bandwidth=facts.mmd_bandwidth) == facts
        assert known.shape in (None, read.shape) and known.class_names in ((), read.class_names)
        assert read.classes >= 2 and len(read.train_labels.unique()) == read.classes

    def test_reads_the_same_again(self) -> None:
        assert data.load(self.name, self.root).fingerprint == _read(self.name, self.root).fingerprint

    def test_can_be_split(self) -> None:
        images, facts = _read(self.name, self.root), data.facts(data.slug(self.name))
        shared = data.split(images, "iid")
        assert len(shared.private) and len(shared.aux)
        if facts.other is not None:
            data.check(facts.other)

    def test_its_prior_draws_images_of_its_shape(self) -> None:
        shape = _read(self.name, self.root).shape
        prior = priors.for_dataset(priors.AUTO, data.slug(self.name))
        assert prior.draw(2, shape, torch.Generator()).shape == (2, *shape)


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

    def test_frozen_it_answers_the_same(self) -> None:
        for shape in self.shapes:
            torch.manual_seed(0)
            network, images = nets.build(self.name, shape, 4).eval(), torch.rand(5, *shape)
            with torch.no_grad():
                before = network(images)
                turned = network.to(memory_format=torch.channels_last)
                assert torch.allclose(turned(images), before, atol=1e-4)

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
        (images, labels), (unseen, known) = toy_private(0, 160), toy_private(1, 80)
        if recipe.flip:  # a mirrored image of one toy class shows another; upper and lower half stay what they are
            labels, known = labels // 2, known // 2
        teachers.fit(network, images, labels, recipe, CPU, 0)
        assert teachers.accuracy(network, unseen, known, CPU) > 0.9
