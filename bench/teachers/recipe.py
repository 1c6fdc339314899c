"""Teacher recipes by name: `recipes/NAME.py`, or an entry point of the group `bench.teacher_recipes`."""

from __future__ import annotations

from collections.abc import Mapping

from bench import plugins
from bench.config import configure
from bench.teachers.recipes.standard import KIND, Recipe

STANDARD = "standard"


def recipe_class(name: str) -> type[Recipe]:
    """Return the recipe class called `name`. Raises BenchError for an unknown name."""
    return plugins.class_of(plugins.find(KIND, name), _is_recipe, "one class that extends Recipe")


def make_recipe(tier: str, given: Mapping[str, str]) -> Recipe:
    """Build the recipe from the options `--teacher.NAME VALUE`.

    `--teacher.recipe` selects it, the others are its fields.

    Raises:
        BenchError: an unknown recipe or option, or an invalid value.
    """
    options = {name: text for name, text in given.items() if name != "recipe"}
    return configure(recipe_class(given.get("recipe", STANDARD)), tier, options, "teacher")


def _is_recipe(cls: type) -> bool:
    return issubclass(cls, Recipe)
