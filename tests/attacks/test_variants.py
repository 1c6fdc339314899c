"""Options of every attack at variant `working` and tier quick; a changed value would change the published rows."""

from __future__ import annotations

from typing import Any

import pytest

from bench import registry
from bench.config import configure, departures, options, plain

GAN = {"gan_lr": 1e-3, "n_critic": 2}
SHORT = {"gan_steps": 400, "width": 16}
TEACHERS = {"reference_kind": "teacher"}
WORKING: dict[str, dict[str, Any]] = {
    "ami": {"lr": 1e-3},
    "base": TEACHERS,
    "brep-mi": GAN,
    "dafl": {"lr": 3e-3},
    "domias": {"density": "knn"},
    "duci": TEACHERS,
    "eigen-gan": {},
    "deepinversion": {"lr": 0.1, "bn_weight": 0.03, "tv_weight": 0.01},
    "gan-leaks": {"space": "whitened", "calibration": "aux"},
    "gmi": {**GAN, "lr": 0.05},
    "ked-mi": {**GAN, "lr": 0.1},
    "label-only": {},
    "lira": {**TEACHERS, "mode": "offline", "variance": "fixed"},
    "lokt": {"gan_lr": 1e-3, "n_critic": 2, "surrogate_lr": 0.02},
    "lomma": {**GAN, "student_lr": 0.05},
    "loss-threshold": {},
    "moment-tracing": {},
    "mi-face": {"start": "noise", "loss": "cross-entropy", "process": "median-sharpen"}
    | {"draws": 5, "images_per_class": 2},
    "pca-mi": {},
    "plg-mi": GAN,
    "if-gmi": {**GAN, "lr": 0.05, "centred": True, "mirror": "colour"},
    "ppa": {**GAN, "lr": 0.05, "centred": True, "mirror": "colour"},
    "quantile": {},
    "random-guess": {},
    "ramia": {**TEACHERS, "mirror": False, "vertical": False, "shift": 1, "rotation": 10.0},
    "rlb-mi": {**GAN, "sac_lr": 1e-2},
    "rmia": {**TEACHERS, "score": "ratio"},
    "shadow": {**TEACHERS, "features": "statistics", "per_class": False, "hidden": 0},
    "vmi": {**GAN, "family": "diagonal", "optimiser": "adam", "lr": 0.05},
}
"""The options that departures set."""
QUICK: dict[str, dict[str, Any]] = {
    "ami": {"width": 32, "epochs": 200, "max_steps": 2000, "decoder_batch": 32},
    "base": {},
    "brep-mi": {**SHORT, "sphere_points": 16, "patience": 15, "query_cap": 600, "start_cap": 2560}
    | {"draws": 2, "images_per_class": 4},
    "dafl": {"steps": 150, "gen_batch": 32, "width": 16, "draws": 2, "images_per_class": 10, "pool": 500},
    "deepinversion": {"iterations": 150, "draws": 2, "images_per_class": 4},
    "domias": {"samples": 5000},
    "duci": {},
    "eigen-gan": {},
    "gan-leaks": {"samples": 5000, "steps": 150},
    "gmi": {**SHORT, "iterations": 50, "images_per_class": 4},
    "ked-mi": {**SHORT, "kernels": 16, "kernel_length": 8, "iterations": 100, "images_per_class": 4},
    "label-only": {},
    "lira": {"references": 4},
    "lokt": {"warm_up": 100, "iterations": 400, "gan_batch": 64, "latent": 64, "width": 8}
    | {"surrogates": "datalens,shard-cnn,dgd-cnn", "surrogate_images": 200, "surrogate_steps": 300}
    | {"surrogate_batch": 64, "steps": 60, "images_per_class": 4},
    "lomma": {**SHORT, "students": "datalens,shard-cnn,shard-cnn", "student_steps": 200}
    | {"iterations": 50, "images_per_class": 4},
    "loss-threshold": {},
    "mi-face": {"iterations": 200},
    "moment-tracing": {"samples": 5000},
    "pca-mi": {},
    "plg-mi": {"top_n": 20, "gan_steps": 200, "gan_batch": 32, "latent": 64, "width": 8}
    | {"iterations": 30, "images_per_class": 2},
    "if-gmi": {
        **SHORT,
        "latents": 1000,
        "candidates_per_class": 8,
        "steps": 40,
        "layer_steps": 15,
        "transformations": 20,
    }
    | {"draws": 5, "images_per_class": 4},
    "ppa": {**SHORT, "latents": 1000, "candidates_per_class": 8, "steps": 40, "transformations": 20, "draws": 5}
    | {"images_per_class": 4},
    "quantile": {},
    "ramia": {},
    "random-guess": {"images_per_class": 4},
    "rlb-mi": {**SHORT, "episodes": 300, "hidden": 64, "sac_batch": 32, "draws": 2, "images_per_class": 4},
    "rmia": {},
    "shadow": {"references": 4, "steps": 500},
    "vmi": {**SHORT, "iterations": 80, "samples": 4, "images_per_class": 4, "batch": 200},
}
"""The sizes of tier quick."""
PRINTED = {"episode_steps", "first_bn", "holdout", "jitter", "n_critic", "ref_batch", "truncate"}
"""Numbers that are not sizes although they are whole or small: another value is another algorithm."""


@pytest.mark.parametrize("name", registry.entries("attack"))
def test_working_variant_sets_the_options_of_the_table(name: str) -> None:
    cls = registry.load("attack", name)
    printed = plain(configure(cls, "paper", {}, "attack", "printed"))
    assert printed == {option.name: option.default for option in options(cls)}
    assert plain(configure(cls, "paper", {}, "attack")) == printed | WORKING[name]
    assert plain(configure(cls, "quick", {}, "attack")) == printed | WORKING[name] | QUICK[name]
    assert bool(departures(cls)) == bool(WORKING[name])


@pytest.mark.parametrize("name", registry.entries("attack"))
def test_algorithmic_options_are_not_sizes(name: str) -> None:
    sizes = {option.name for option in options(registry.load("attack", name)) if option.size}
    assert not sizes & PRINTED
    assert not {size for size in sizes if size.endswith(("lr", "weight", "loss", "clip"))}
