"""Teachers: training recipes, the loop, weight files, and the evaluator network that scores attacks."""

from __future__ import annotations

from bench.teachers.ensemble import fit_ensemble
from bench.teachers.pretrained import PretrainedWeights, find_pretrained, load_pretrained
from bench.teachers.recipe import make_recipe, recipe_class, recipe_for
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import accuracy, features, fit, predict
from bench.teachers.weights import load, load_user, save

__all__ = [
    "PretrainedWeights",
    "Recipe",
    "accuracy",
    "features",
    "find_pretrained",
    "fit",
    "fit_ensemble",
    "load",
    "load_pretrained",
    "load_user",
    "make_recipe",
    "predict",
    "recipe_class",
    "recipe_for",
    "save",
]
