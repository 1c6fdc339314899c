"""The network that judges reconstructions: another architecture and seed than the teacher, never shown to an attack.

It is trained on the whole training set of the run's classes with its labels: on splits whose attacker holds other
records of them, private and auxiliary images together. Where the standard recipe does not teach it the classes, as with
some forty images a person, the data set's facts name another one, by which it has more passes than a teacher. A teacher
that was trained for longer than usual wants an evaluator that was, too: `--evaluator.NAME` sets its recipe, and
`--evaluator NET` takes another network.
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
    """How the evaluator of a data set is trained in a tier.

    Args:
        dataset: the name of its `ImageData`, of which `bench.data.facts` knows what is to be known.
        given: what `--evaluator.NAME VALUE` asks for, name to text. A recipe that is named (`recipe`) has as many
            passes as a teacher's; the others change what they name, and leave the rest as it is without them.

    Raises:
        BenchError: an unknown tier, recipe or option, or a value it cannot have.
    """
    options = dict(given or {})
    named = options.pop("recipe", None)
    usual = _usual(tier, dataset) if named is None else make_recipe(tier, {"recipe": named})
    asked = configure(type(usual), tier, options, "evaluator")
    return replace(usual, **{name: getattr(asked, name) for name in options})


def _usual(tier: str, dataset: str) -> Recipe:
    """The recipe where nothing is asked for."""
    named = data.facts(dataset).evaluator
    if named is None:
        return Recipe(**sizes(_TIERS, tier))
    recipe, passes = make_recipe(tier, {"recipe": named[0]}), named[1]
    return replace(recipe, epochs=math.ceil(passes * recipe.epochs))
