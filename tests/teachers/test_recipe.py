"""Training recipes of teachers and evaluators: tiers, options, settings in records, and changes to images."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench import data, plugins, registry, teachers, testing
from bench.boards import read_records
from bench.config import EVALUATOR, TIERS, describe, options
from bench.errors import BadOption, BenchError, UnknownName
from bench.nets import check
from bench.storage.specs import digest
from bench.teachers import Recipe, make_recipe, recipe_for
from bench.teachers.recipe import EVALUATOR_TIERS
from bench.teachers.recipes.faces import Faces, erased, lightened

KEYS = {
    "smoke": "08d2a8aece8762a5",
    "quick": "4a09bd5d264d790f",
    "standard": "4a09bd5d264d790f",
    "paper": "28c75a5b3a2a7fd6",
}
"""Hashes of the standard evaluator's settings, as they were when every data set had it."""
PUBLISHED = {name for name in data.names() if ":" not in name}


@given(st.integers(0, 400), st.integers(1, 4), st.integers(2, 50), st.integers(0, 30))
def test_steps_counts_batches_of_two_or_more(images: int, epochs: int, batch: int, limit: int) -> None:
    order = list(range(images))
    batches = [order[start : start + batch] for _ in range(epochs) for start in range(0, images, batch)]
    usable = sum(len(part) > 1 for part in batches)
    assert Recipe(epochs=epochs, batch=batch, max_steps=limit).steps(images) == min(usable, limit or math.inf)


def test_tiers_differ_in_effort() -> None:
    effort = [Recipe.at(tier).steps(60_000) * Recipe.at(tier).batch for tier in ("smoke", "quick", "paper")]
    assert effort[0] < effort[1] / 50 < effort[2] / 100
    assert Recipe.at("paper") == Recipe() and Recipe.at("standard", lr=0.5).lr == 0.5
    check(EVALUATOR)


@pytest.mark.parametrize("tiers", [Recipe.tiers, EVALUATOR_TIERS])
def test_tiers_change_sizes_only(tiers: dict[str, dict[str, int]]) -> None:
    sizes = {option.name for option in options(Recipe) if option.size}
    assert all(set(changed) <= sizes for changed in tiers.values())


@pytest.mark.parametrize("make", [Recipe.at, partial(recipe_for, dataset="digits"), partial(recipe_for, dataset="lfw")])
def test_unknown_tier_is_refused(make: object) -> None:
    with pytest.raises(UnknownName) as caught:
        make("papier")  # type: ignore[operator]
    assert "'papier'" in str(caught.value) and "'paper'" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("epochs", 0), ("max_steps", -1), ("batch", 1), ("shift", -1), ("optimizer", "adam")],
        *[("lr", 0.0), ("lr", math.nan), ("warmup", 1.5), ("weight_decay", -0.1), ("label_smoothing", 1.0)],
    ],
)
def test_recipe_names_impossible_field(field: str, value: object) -> None:
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(Recipe(), **{field: value})
    assert field in str(caught.value) and str(value) in str(caught.value)


@pytest.mark.parametrize("check", [name for name in dir(testing.TeacherRecipeContract) if name.startswith("test_")])
@pytest.mark.parametrize("name", plugins.entries("teacher recipe"))
def test_recipe_contract(name: str, check: str) -> None:
    members = {"recipe": teachers.recipe_class(name)}
    getattr(type(f"Test_{name}", (testing.TeacherRecipeContract,), members)(), check)()


@pytest.mark.parametrize("name", plugins.entries("teacher recipe"))
def test_recipe_source_describes_the_class(name: str) -> None:
    assert registry.describe("teacher recipe", name) == describe(teachers.recipe_class(name))


@dataclasses.dataclass(frozen=True)
class Dim(Recipe):
    version = 3
    light: float = 0.5


def test_settings_name_every_recipe_except_standard() -> None:
    assert make_recipe("quick", {"lr": "0.5"}) == Recipe.at("quick", lr=0.5)
    assert Recipe().settings() == dataclasses.asdict(Recipe())
    known = {"light": 0.5, "recipe": __name__, "recipe_version": 3}
    assert Dim().settings() == dataclasses.asdict(Recipe()) | known
    with pytest.raises(UnknownName):
        make_recipe("quick", {"recipe": "standrad"})


@pytest.mark.parametrize(("tier", "epochs"), [("smoke", 2), ("quick", 60), ("standard", 60), ("paper", 45)])
@pytest.mark.parametrize("name", ["lfw-crop", "lfw-10-32px", "celeba-id-subset-25"])
def test_evaluator_of_people_trains_longer(name: str, tier: str, epochs: int) -> None:
    found, teacher = recipe_for(tier, name), make_recipe(tier, {"recipe": "faces"})
    assert isinstance(found, Faces) and found.settings()["recipe"] == "faces"
    assert found.epochs == epochs == math.ceil(1.5 * teacher.epochs)
    assert dataclasses.replace(found, epochs=teacher.epochs) == teacher


def test_facts_name_existing_evaluator_recipes() -> None:
    named = {name: evaluator for name in PUBLISHED if (evaluator := data.facts(name).evaluator) is not None}
    assert set(named) == {"lfw", "celeba-id"}
    for recipe, passes in named.values():
        assert issubclass(teachers.recipe_class(recipe), Recipe) and passes >= 1


@pytest.mark.parametrize("tier", TIERS)
def test_evaluator_of_other_sets_keeps_its_key(tier: str) -> None:
    others = [*(PUBLISHED - {"lfw", "celeba-id"}), "npz-mine", "mnist-32px"]
    assert {digest(recipe_for(tier, name).settings()) for name in others} == {KEYS[tier]}


@pytest.mark.thorough
def test_published_records_have_current_evaluators() -> None:
    found = set()
    for record in read_records(ROOT / "leaderboards"):
        spec = record.spec
        used, where = spec["evaluator"], spec["evaluator"]["data"]["dataset"]
        given = {name: str(value) for name, value in record.options.get("evaluator", {}).items()}
        network = given.pop("network", EVALUATOR)
        assert used["recipe"] == recipe_for(spec["tier"], where, given).settings() and used["arch"] == network
        found.add(where)
    assert found >= {"digits", "mnist", "fmnist", "cifar10-jpeg"}


def test_evaluator_options_change_their_fields_only() -> None:
    usual = recipe_for("quick", "celeba-id-subset")
    assert recipe_for("quick", "celeba-id-subset", {"lr": "0.5"}) == dataclasses.replace(usual, lr=0.5)
    assert usual.epochs == 60 and recipe_for("quick", "celeba-id-subset", {"turn": "3", "epochs": "7"}).epochs == 7
    plain = recipe_for("quick", "digits", {"flip": "true"})
    assert plain == dataclasses.replace(recipe_for("quick", "digits"), flip=True) and plain.max_steps == 600
    named = recipe_for("quick", "fmnist", {"recipe": "objects", "epochs": "12"})
    assert named == dataclasses.replace(make_recipe("quick", {"recipe": "objects"}), epochs=12)
    assert recipe_for("quick", "lfw", {"recipe": "standard"}) == Recipe.at("quick")


@pytest.mark.parametrize(
    ("given", "error", "values"),
    [
        ({"recipe": "standrad"}, UnknownName, ("'standrad'", "'standard'")),
        ({"epochs": "0"}, BadOption, ("--evaluator", "epochs", "0")),
        ({"turn": "3"}, UnknownName, ("--evaluator", "'turn'")),
        ({"lr": "much"}, BadOption, ("--evaluator.lr", "much")),
    ],
)
def test_evaluator_refuses_bad_option(given: dict[str, str], error: type[BenchError], values: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        recipe_for("quick", "digits", given)
    assert all(value in str(caught.value) for value in values)


NONE = {"flip": False, "turn": 0.0, "scale": 0.0, "move": 0.0, "light": 0.0, "erase": 0.0}


def pictures(n: int = 64) -> Tensor:
    return torch.randint(0, 256, (n, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def augment(images: Tensor, **given: float | bool) -> Tensor:
    return Faces(**{**NONE, **given}).augment(images, torch.Generator().manual_seed(1))  # type: ignore[arg-type]


def test_augment_draws_for_each_image() -> None:
    one = pictures(1).expand(40, -1, -1, -1)
    found = Faces().augment(one, torch.Generator().manual_seed(1))
    assert found.dtype == torch.uint8 and found.shape == one.shape
    assert len(found.flatten(1).unique(dim=0)) == 40


def test_augment_without_options_only_desaturates() -> None:
    images = pictures()
    found = augment(images).float()
    spread = [float(each.float().std(1).mean()) for each in (found, images)]
    assert 0.6 * spread[1] < spread[0] < 0.9 * spread[1]
    assert float((found.mean(1) - images.float().mean(1)).abs().max()) <= 1


@pytest.mark.parametrize(
    "given", [{"flip": True}, {"turn": 10.0}, {"scale": 0.2}, {"move": 0.2}, {"light": 0.3}, {"erase": 1.0}]
)
def test_augment_options_have_an_effect(given: dict[str, float]) -> None:
    assert not torch.equal(augment(pictures(), **given), augment(pictures()))


def test_augment_moves_at_most_as_declared() -> None:
    dot = torch.zeros(400, 1, 41, 41, dtype=torch.uint8)
    dot[:, :, 20, 20] = 255
    places = torch.arange(41.0) - 20
    found = augment(dot, move=0.1).float()
    along = (found.sum((1, 2)) * places).sum(1) / found.sum((1, 2, 3))
    assert 3.6 < float(along.abs().max()) < 4.6, "a tenth of 41 pixels"
    assert abs(float(along.mean())) < 0.5


def test_lightened_changes_brightness_and_contrast() -> None:
    image = torch.tensor([0.2, 0.4]).view(1, 1, 1, 2)
    brighter = lightened(image, torch.tensor([[0.5], [0.0]]), torch.zeros(1))
    stronger = lightened(image, torch.tensor([[0.0], [0.5]]), torch.zeros(1))
    assert torch.allclose(brighter.flatten(), torch.tensor([0.3, 0.6]))
    assert torch.allclose(stronger.flatten(), torch.tensor([0.15, 0.45]))
    colour = torch.tensor([0.0, 0.3, 0.6]).view(1, 3, 1, 1)
    assert torch.allclose(lightened(colour, torch.zeros(2, 1), torch.ones(1)), torch.full((1, 3, 1, 1), 0.3))


def test_erased_removes_rectangle_with_chance() -> None:
    images = torch.rand(2000, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    drawn = torch.rand(3, 2000, generator=torch.Generator().manual_seed(1))
    found = erased(images, drawn, 0.5)
    changed = (found != images).any(1)
    assert 0.45 < float(changed.flatten(1).any(1).float().mean()) < 0.55
    inside = changed[0 if bool(changed[0].any()) else int(changed.flatten(1).any(1).nonzero()[0])]
    rows, columns = inside.any(1).nonzero(), inside.any(0).nonzero()
    assert int(inside.sum()) == len(rows) * len(columns), "a rectangle"
    assert torch.equal(erased(images, drawn, 0.0), images)
