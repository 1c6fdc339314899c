from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from bench import data, plugins, registry, teachers, testing
from bench.boards import read_records
from bench.config import EVALUATOR, TIERS, describe, options
from bench.errors import BenchError
from bench.nets import check
from bench.storage.specs import digest
from bench.teachers import Recipe, recipe_for
from bench.teachers.recipe import EVALUATOR_TIERS
from bench.teachers.recipes.faces import Faces


@given(st.integers(0, 400), st.integers(1, 4), st.integers(2, 50), st.integers(0, 30))
def test_steps_by_counting(images: int, epochs: int, batch: int, limit: int) -> None:
    order = list(range(images))
    batches = [order[start : start + batch] for _ in range(epochs) for start in range(0, images, batch)]
    usable = sum(len(part) > 1 for part in batches)
    assert Recipe(epochs=epochs, batch=batch, max_steps=limit).steps(images) == min(usable, limit or math.inf)


@pytest.mark.parametrize("tier", ["smoke", "quick", "standard", "paper"])
def test_every_tier_exists_for_both(tier: str) -> None:
    assert Recipe.at(tier, lr=0.5).lr == 0.5
    assert recipe_for(tier, "digits").steps(1200) >= 8
    check(EVALUATOR)


def test_tiers_are_ordered_by_effort() -> None:
    seen = [Recipe.at(tier).steps(60_000) * Recipe.at(tier).batch for tier in ("smoke", "quick", "paper")]
    assert seen[0] < seen[1] / 50 < seen[2] / 100
    assert Recipe.at("paper") == Recipe()


def test_tiers_change_only_sizes() -> None:
    """Tiers of teacher and evaluator only change the amount of training."""
    sizes = {option.name for option in options(Recipe) if option.size}
    for tiers in (Recipe.tiers, EVALUATOR_TIERS):
        assert all(set(changed) <= sizes for changed in tiers.values())
    same = [{name: getattr(Recipe.at(tier), name) for name in ("optimizer", "lr", "warmup")} for tier in Recipe.tiers]
    assert all(each == same[0] for each in same)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["lfw-crop", "lfw-10-32px", "celeba-id-subset-25"])
def test_people_are_learnt_by_the_recipe_for_faces_with_half_as_many_passes_again(name: str, tier: str) -> None:
    found, teacher = recipe_for(tier, name), teachers.make_recipe(tier, {"recipe": "faces"})
    assert isinstance(found, Faces) and found.settings()["recipe"] == "faces"
    assert found.epochs == math.ceil(1.5 * teacher.epochs)
    assert dataclasses.replace(found, epochs=teacher.epochs) == teacher
    assert {"smoke": 2, "quick": 60, "standard": 60, "paper": 45}[tier] == found.epochs


def test_the_facts_name_recipes_that_exist() -> None:
    named = {name: data.facts(name).evaluator for name in data.names() if ":" not in name}
    assert {name for name, given in named.items() if given} == {"lfw", "celeba-id"}
    for recipe, passes in filter(None, named.values()):
        assert issubclass(teachers.recipe_class(recipe), Recipe) and passes >= 1


KEYS = {
    "smoke": "08d2a8aece8762a5",
    "quick": "4a09bd5d264d790f",
    "standard": "4a09bd5d264d790f",
    "paper": "28c75a5b3a2a7fd6",
}
"""Hashes of the standard evaluator's settings, as they were when every data set had it."""


@pytest.mark.parametrize("tier", TIERS)
def test_the_evaluators_of_all_other_data_sets_keep_their_keys(tier: str) -> None:
    others = [*({name for name in data.names() if ":" not in name} - {"lfw", "celeba-id"}), "npz-mine", "mnist-32px"]
    assert {digest(recipe_for(tier, name).settings()) for name in others} == {KEYS[tier]}


@pytest.mark.thorough
def test_the_evaluators_of_the_published_records_are_those_of_today() -> None:
    seen = set()
    for record in read_records(ROOT / "leaderboards"):
        spec = record.spec
        used, where = spec["evaluator"], spec["evaluator"]["data"]["dataset"]
        asked = {name: str(value) for name, value in record.options.get("evaluator", {}).items()}
        network = asked.pop("network", EVALUATOR)
        assert used["recipe"] == recipe_for(spec["tier"], where, asked).settings() and used["arch"] == network
        seen.add(where)
    assert seen >= {"digits", "mnist", "fmnist", "cifar10-jpeg"}


def test_what_is_asked_of_an_evaluator_changes_that_alone() -> None:
    usual = recipe_for("quick", "celeba-id-subset")
    assert recipe_for("quick", "celeba-id-subset", {"lr": "0.5"}) == dataclasses.replace(usual, lr=0.5)
    assert usual.epochs == 60 and recipe_for("quick", "celeba-id-subset", {"turn": "3", "epochs": "7"}).epochs == 7
    plain = recipe_for("quick", "digits", {"flip": "true"})
    assert plain == dataclasses.replace(recipe_for("quick", "digits"), flip=True) and plain.max_steps == 600
    named = recipe_for("quick", "fmnist", {"recipe": "objects", "epochs": "12"})
    assert named == dataclasses.replace(teachers.make_recipe("quick", {"recipe": "objects"}), epochs=12)
    assert recipe_for("quick", "lfw", {"recipe": "standard"}) == Recipe.at("quick")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"recipe": "standrad"}, r"no teacher recipe called 'standrad'\. Did you mean 'standard'"),
        ({"epochs": "0"}, r"--evaluator: epochs is 0; expected at least 1"),
        ({"turn": "3"}, r"no option of --evaluator called 'turn'"),
        ({"lr": "much"}, r"--evaluator\.lr much: expected a number"),
    ],
)
def test_what_an_evaluator_cannot_have_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        recipe_for("quick", "digits", given)


def test_unknown_tier() -> None:
    for make in (Recipe.at, partial(recipe_for, dataset="digits"), partial(recipe_for, dataset="lfw")):
        with pytest.raises(BenchError, match=r"no tier called 'papier'\. Did you mean 'paper'"):
            make("papier")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("epochs", 0), ("max_steps", -1), ("batch", 1), ("shift", -1), ("optimizer", "adam")],
        *[("lr", 0.0), ("lr", math.nan), ("warmup", 1.5), ("weight_decay", -0.1), ("label_smoothing", 1.0)],
    ],
)
def test_impossible_values_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is .*; expected"):
        dataclasses.replace(Recipe(), **{field: value})


@pytest.mark.parametrize("check", [name for name in dir(testing.TeacherRecipeContract) if name.startswith("test_")])
@pytest.mark.parametrize("name", plugins.entries("teacher recipe"))
def test_contract(name: str, check: str) -> None:
    members = {"recipe": teachers.recipe_class(name)}
    getattr(type(f"Test_{name}", (testing.TeacherRecipeContract,), members)(), check)()


@pytest.mark.parametrize("name", plugins.entries("teacher recipe"))
def test_the_source_tells_what_the_class_does(name: str) -> None:
    assert registry.describe("teacher recipe", name) == describe(teachers.recipe_class(name))


def test_a_recipe_is_chosen_by_name_and_the_standard_one_is_not_named_in_records() -> None:
    assert teachers.make_recipe("quick", {"lr": "0.5"}) == Recipe.at("quick", lr=0.5)
    assert Recipe().settings() == dataclasses.asdict(Recipe())
    with pytest.raises(BenchError, match=r"no teacher recipe called 'standrad'\. Did you mean 'standard'"):
        teachers.make_recipe("quick", {"recipe": "standrad"})


@dataclasses.dataclass(frozen=True)
class Dim(Recipe):
    version = 3
    light: float = 0.5

    def loss(self, ask, images, labels, generator):  # type: ignore[no-untyped-def]
        return super().loss(ask, self.light * images, labels, generator)


def test_another_recipe_is_named_in_records() -> None:
    known = {"light": 0.5, "recipe": __name__, "recipe_version": 3}
    assert Dim().settings() == dataclasses.asdict(Recipe()) | known
