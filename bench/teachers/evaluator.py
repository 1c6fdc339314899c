"""The evaluator, which scores reconstructions: of another architecture and seed, and hidden from attacks.

It is trained on the labelled training set of the run's classes; on splits where the attacker has other records of these
classes, on private and auxiliary images together. If the standard recipe is too weak, as with about 40 images per
person, the data set's facts name another recipe, with more passes than a teacher. A teacher that is trained for longer
than usual needs an evaluator that is, too: `--evaluator.NAME` sets its recipe, and `--evaluator NET` its network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench import data
from bench.config import configure, sizes
from bench.teachers.recipe import make_recipe
from bench.teachers.recipes.standard import Recipe

_TIERS: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 1, "max_steps": 8, "batch": 64, "shift": 0},
    "quick": {"epochs": 10, "max_steps": 600, "batch": 64, "shift": 1},
    "paper": {"epochs": 20},
}


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
    usual = _usual(tier, dataset) if named is None else make_recipe(tier, {"recipe": named})
    asked = configure(type(usual), tier, options, "evaluator")
    return replace(usual, **{name: getattr(asked, name) for name in options})


def _usual(tier: str, dataset: str) -> Recipe:
    """Return the default recipe, used without options."""
    named = data.facts(dataset).evaluator
    if named is None:
        return Recipe(**sizes(_TIERS, tier))
    recipe, passes = make_recipe(tier, {"recipe": named[0]}), named[1]
    return replace(recipe, epochs=math.ceil(passes * recipe.epochs))
