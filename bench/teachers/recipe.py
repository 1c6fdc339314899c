"""Training recipes by name, for teachers and for the evaluator.

A recipe is a file `recipes/NAME.py`, or an entry point of the group `bench.teacher_recipes`.

The evaluator scores reconstructions. It has another architecture and seed than the teacher, and attacks cannot query
it. It is trained on the labelled training set of the run's classes; on splits where the attacker has other records of
these classes, on private and auxiliary images together. If the standard recipe is too weak, as with about 40 images per
person, the data set's facts name another recipe, with more passes than a teacher. A teacher that is trained for longer
than usual needs an evaluator that is, too: `--evaluator.NAME` sets its recipe, and `--evaluator NET` its network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from bench import data, plugins
from bench.config import configure, sizes
from bench.teachers.recipes.standard import KIND, Recipe

STANDARD = "standard"
EVALUATOR_TIERS: dict[str, dict[str, int]] = {
    "smoke": {"epochs": 1, "max_steps": 8, "batch": 64, "shift": 0},
    "quick": {"epochs": 10, "max_steps": 600, "batch": 64, "shift": 1},
    "paper": {"epochs": 20},
}
"""Options of the standard recipe for the evaluator, by tier."""


def recipe_class(name: str) -> type[Recipe]:
    """Return the recipe class called `name`. Raises BenchError for an unknown name."""
    entry = plugins.find(KIND, name)
    return plugins.class_of(entry, is_recipe, "one class that extends Recipe")


def is_recipe(cls: type) -> bool:
    """Return whether a class is a recipe. It is a named function because `plugins.class_of` caches by it."""
    return issubclass(cls, Recipe)


def make_recipe(tier: str, given: Mapping[str, str]) -> Recipe:
    """Build the recipe from the options `--teacher.NAME VALUE`.

    `--teacher.recipe` selects it, the others are its fields.

    Raises:
        BenchError: an unknown recipe or option, or an invalid value.
    """
    options = {name: text for name, text in given.items() if name != "recipe"}
    return configure(recipe_class(given.get("recipe", STANDARD)), tier, options, "teacher")


def recipe_for(tier: str, dataset: str, given: Mapping[str, str] | None = None) -> Recipe:
    """Return the training recipe of a data set's evaluator in a tier.

    Args:
        dataset: the name of its `ImageData`, to look up in `bench.data.facts`.
        given: the options of `--evaluator.NAME VALUE`, name to text. If `recipe` is given, that recipe has a teacher's
            number of passes; other options change their own fields only.

    Raises:
        BenchError: an unknown tier, recipe or option, or an invalid value.
    """
    options = dict(given or {})
    named = options.pop("recipe", None)
    if named is not None:
        usual = make_recipe(tier, {"recipe": named})
    elif (of_dataset := data.facts(dataset).evaluator) is not None:
        recipe, passes = of_dataset
        usual = make_recipe(tier, {"recipe": recipe})
        usual = replace(usual, epochs=math.ceil(passes * usual.epochs))
    else:
        usual = Recipe(**sizes(EVALUATOR_TIERS, tier))
    changed = configure(type(usual), tier, options, "evaluator")
    return replace(usual, **{name: getattr(changed, name) for name in options})
