"""The network that judges reconstructions: another architecture and seed than any target, never shown to an attack.

It is trained on the whole training set of the run's classes with its labels: on splits whose attacker holds other
records of them, private and auxiliary images together. Where the standard recipe does not teach it the classes, as with
some forty images a person, the data set's facts name another one, by which it has more passes than a teacher.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from bench import data
from bench.config import sizes
from bench.teachers.recipe import make_recipe
from bench.teachers.recipes.standard import Recipe

EVALUATOR = "evaluator-cnn"

_TIERS: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 1, "max_steps": 8, "batch": 64, "shift": 0},
    "quick": {"epochs": 10, "max_steps": 600, "batch": 64, "shift": 1},
    "paper": {"epochs": 20},
}


def recipe_for(tier: str, dataset: str) -> Recipe:
    """How the evaluator of a data set is trained in a tier.

    Args:
        dataset: the name of its `ImageData`, of which `bench.data.facts` knows what is to be known.

    Raises:
        BenchError: an unknown tier.
    """
    named = data.facts(dataset).evaluator
    if named is None:
        return Recipe(**sizes(_TIERS, tier))
    recipe, passes = make_recipe(tier, {"recipe": named[0]}), named[1]
    return replace(recipe, epochs=math.ceil(passes * recipe.epochs))
