"""Settings of tier quick of the variant working, used for the boards, and golden values of the algorithms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench import nets
from bench.api import Teacher
from bench.config import configure, departures, options, plain
from bench.privacy import Budget
from bench.registry import load
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

QUICK: dict[str, dict[str, Any]] = {
    "alibi": {"epochs": 3, "least_steps": 300, "batch": 256, "optimizer": "adam", "rate": 0.001,
              "weight_decay": 0.0, "schedule": "cosine", "warmup": 0.0},
    "dp-gan": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam", "network": "mlp",
               "steps": 2000, "critic_steps": 2, "batch": 512, "rate": 0.003, "rate_generator": 0.004,
               "beta1": 0.0, "latent": 16, "width": 64, "critic_width": 64, "average": 0.98},
    "dp-merf": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam", "features": 4000,
                "bandwidth": "public", "batch": 250, "steps": 160},
    "dp-sgd": {"network": "relu-cnn", "batch": 1024, "steps": 600, "rate": 8.0, "decay": True},
    "dp-sinkhorn": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam",
                    "steps": 4000, "iterations": 5, "width": 16, "rate": 0.001, "decay": True},
    "dp-teacher": {"batch": 1024, "steps": 600, "rate": 2.0, "decay": True, "mean": 0.0, "std": 1.0, "rounds": 40,
                   "images_per_round": 256, "generator_steps": 3, "student_steps": 30, "rate_generator": 0.001},
    "dp-wrn": {"network": "wrn-10-1", "batch": 512, "steps": 150, "views": 4, "chunk": 64},
    "fedavg": {"local_epochs": 40, "local_limit": 300},
    "feddf": {"local_epochs": 40, "local_limit": 300, "mean": "probabilities", "unlabelled": 10000, "steps": 1000},
    "g-pate": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam", "teachers": 0,
               "loss": "entropy", "steps": 250, "teacher_steps": 2, "batch": 32, "projected": 100, "clip": 0.01,
               "threshold": 0.0, "target_estimator": "mean", "network": "mlp", "start": "shared",
               "teacher_rate": 0.003, "rate": 0.004, "latent": 16},
    "gm-dp": {"network": "relu-cnn", "batch": 1024, "steps": 600, "rate": 8.0, "decay": True},
    "gs-wgan": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam",
                "mode": "certified", "critics": 100, "steps": 300, "warm": 0, "rate": 0.001, "generator": "dcgan",
                "width": 32, "critic_width": 16, "average": 0.98},
    "label-smoothing": {"epochs": 10, "max_steps": 1000, "batch": 64, "shift": 1},
    "lp-2st": {"epochs": 2, "least_steps": 300, "batch": 256, "optimizer": "adam", "rate": 0.001,
               "weight_decay": 0.0, "schedule": "cosine", "warmup": 0.0, "mixup": 0.0},
    "no-defence": {},
    "non-private-kd": {"rounds": 40, "images_per_round": 256, "generator_steps": 3, "student_steps": 30,
                       "student_batch": 128, "width": 32, "balance": 5.0,
                       "rate_generator": 0.001, "oversample": 4, "generator": "auto", "augment": True},
    "p3gm": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam", "mean": "paid",
             "scale": 0.0, "components": 10, "iterations": 5, "share": 0.5, "steps": 400, "warm": 1000},
    "pate-gan": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam", "steps": 150,
                 "teacher_steps": 1, "batch": 32, "votes": "gaussian", "target_estimator": "share",
                 "loss": "non-saturating", "explore": 1.0, "teacher_rate": 5e-05, "rate": 0.0002, "width": 256},
    "psg": {"images_per_class": 1, "iterations": 60, "batches": 1, "batch": 4096, "rate": 0.03,
            "optimiser": "adam", "decay": True, "replays": 30, "start": "black", "clamp": True, "width": 16,
            "depth": 1, "norm": False},
    "rr": {"epochs": 3, "least_steps": 300, "batch": 256, "optimizer": "adam", "rate": 0.001, "weight_decay": 0.0,
           "schedule": "cosine", "warmup": 0.0},
    "rr-debiased": {"epochs": 3, "least_steps": 300, "batch": 256, "optimizer": "adam", "rate": 0.001,
                    "schedule": "cosine"},
    "ts-adp": {"network": "tanh-cnn", "batch": 1024, "steps": 600, "rate": 8.0, "decay": True},
    "zcdp": {"network": "relu-cnn", "batch": 1024, "steps": 600, "clip": 0.1, "rate": 8.0, "momentum": 0.9,
             "decay": True, "k": 0.0905, "epochs": 10},
    "acgan": {"teachers": 0, "teacher_net": "shard-cnn", "teacher_steps": 120, "teacher_batch": 16, "teacher_lr": 0.003,
              "teacher_shift": 1, "unlabelled": 3000, "target_estimator": "posterior", "steps": 600, "batch": 64,
              "augment": True, "aggregation": "gaussian", "query_count": 1000, "gan_steps": 2000, "width": 16},
    "cluster-rr": {"epochs": 3, "least_steps": 300, "batch": 256, "optimizer": "adam", "rate": 0.001, "weight_decay":
                   0.0, "schedule": "cosine", "warmup": 0.0, "augment": False, "clusters": 300, "members": 40,
                   "features": "wavelets", "share": 0.8, "loss": "posterior"},
    "datalens": {"samples": 30000, "passes": 8, "student_batch": 128, "student_optimiser": "adam", "teachers": 0,
                 "steps": 150, "batch": 8, "beta": 0.0, "gamma": 0.1, "loss": "entropy", "rate": 0.005, "generator":
                 "mlp", "teacher": "perceptron", "teacher_width": 8},
    "dense": {"local_epochs": 40, "local_limit": 300, "start": "average", "optimizer": "adam", "lr": 0.001, "epochs":
              10, "synthesis": 64, "width": 16, "shift": 2, "flip": False, "batch": 64, "passes": 3,
              "mean": "probabilities"},
    "dp-blsgd": {"network": "relu-cnn", "batch": 1024, "steps": 300, "clip": 0.1, "rate": 16.0, "most_gradients": 2},
    "dpgen": {"samples": 8000, "passes": 12, "student_batch": 128, "student_optimiser": "adam", "buffer": 30000,
              "network": "dense", "width": 512, "levels": 10, "most": 3.0, "least": 0.2, "steps": 2500, "rate": 0.001,
              "mirrored": False, "step": 0.012},
    "fedadi": {"local_epochs": 40, "local_limit": 300, "start": "average", "optimizer": "adam", "lr": 0.001, "searches":
               6, "iterations": 60, "synthesis": 64, "tv": 0.01, "student_steps": 60, "batch": 64,
               "mean": "probabilities"},
    "feddafl": {"local_epochs": 40, "local_limit": 300, "start": "average", "steps": 200, "student_steps": 3, "batch":
                64, "generator": "auto", "width": 16, "augment": True, "mean": "probabilities"},
    "geddp": {"network": "relu-cnn", "batch": 128, "steps": 150, "denoise": "off"},
    "gep": {"network": "relu-cnn", "batch": 256, "steps": 200, "anchors": 256, "bases": 99, "every": 10},
    "infogan": {"teachers": 0, "teacher_net": "shard-cnn", "teacher_steps": 120, "teacher_batch": 16, "teacher_lr":
                0.003, "teacher_shift": 1, "unlabelled": 3000, "target_estimator": "posterior", "steps": 600, "batch":
                64, "augment": True, "aggregation": "gaussian", "query_count": 1000, "gan_steps": 1500, "width": 16},
    "label-protocol": {"epochs": 20, "batch": 0, "rate": 0.3, "network": "scatter-linear"},
    "pate": {"teachers": 0, "teacher_net": "scatter-linear", "unlabelled": 3000, "steps": 600, "batch": 64, "augment":
             True},
    "pate-gnmax": {"teachers": 0, "teacher_net": "scatter-linear", "unlabelled": 3000, "steps": 600, "batch": 64,
                   "augment": True, "query_count": 100, "answers": 50, "threshold": 0.6},
    "private-features": {},
    "raw-images": {"teachers": 0, "teacher_net": "shard-cnn", "teacher_steps": 120, "teacher_batch": 16, "teacher_lr":
                   0.003, "teacher_shift": 1, "unlabelled": 3000, "target_estimator": "posterior", "steps": 600,
                   "batch": 64, "augment": True, "aggregation": "gaussian", "query_count": 1000},
    "rgp": {"network": "relu-cnn", "batch": 1024, "steps": 300, "rank": 8, "head_scale": 1.0, "rate": 2.0},
    "scatter-cnn": {"steps": 500},
    "spectral-dp": {"network": "relu-cnn", "batch": 1024, "steps": 300, "rate": 2.0, "decay": True},
    "topagg": {"network": "relu-cnn", "batch": 128, "steps": 200, "aggregate": "mean", "kept": 0.05, "rate": 0.02,
               "momentum": 0.9, "decay": True},
    "wgan": {"teachers": 0, "teacher_net": "shard-cnn", "teacher_steps": 120, "teacher_batch": 16, "teacher_lr": 0.003,
             "teacher_shift": 1, "unlabelled": 3000, "target_estimator": "posterior", "steps": 600, "batch": 64,
             "augment": True, "aggregation": "gaussian", "query_count": 1000, "gan_steps": 500, "rate": 0.0005, "width":
             16},
}  # fmt: skip
"""Options of (working, quick) that are not the class' own; the rows of the boards have these values."""
ALGORITHM = {"optimiser", "optimizer", "rate", "loss", "votes", "generator", "mode", "clip", "decay"}

LABELS = {"epochs": 2, "least_steps": 5, "batch": 32}
SYNTHETIC = {"samples": 60, "passes": 2}
PRIVATE = {"batch": 30, "steps": 4}
FREE = {"rounds": 2, "images_per_round": 16, "student_steps": 2, "generator_steps": 2}
SMALL: dict[str, dict[str, Any]] = {
    "alibi": LABELS,
    "dp-gan": SYNTHETIC | {"steps": 4, "batch": 20, "latent": 8, "width": 8, "critic_width": 8},
    "dp-merf": SYNTHETIC | {"features": 64, "epochs": 2, "steps": 3, "batch": 16},
    "dp-sgd": PRIVATE,
    "dp-sinkhorn": SYNTHETIC | {"steps": 3, "batch": 8, "width": 4},
    "dp-teacher": FREE | {"steps": 3, "batch": 40},
    "fedavg": {"clients": 2, "local_epochs": 2, "local_batch": 16, "rounds": 2},
    "feddf": {"clients": 2, "local_epochs": 2, "local_batch": 16, "unlabelled": 32, "steps": 3, "batch": 16},
    "g-pate": SYNTHETIC
    | {"teachers": 3, "steps": 3, "teacher_steps": 2, "batch": 8, "projected": 6, "width": 8}
    | {"critic_width": 8, "latent": 8},
    "gm-dp": PRIVATE,
    "gs-wgan": SYNTHETIC
    | {"steps": 4, "critics": 3, "critic_steps": 1, "batch": 8, "width": 2, "critic_width": 4, "warm": 1},
    "label-smoothing": {"epochs": 1, "max_steps": 4, "batch": 32},
    "lp-2st": LABELS,
    "non-private-kd": FREE,
    "p3gm": SYNTHETIC | {"latent": 4, "hidden": 16, "iterations": 2, "steps": 3, "warm": 3, "batch": 40},
    "pate-gan": SYNTHETIC
    | {"teachers": 3, "steps": 3, "teacher_steps": 2, "batch": 8, "width": 16}
    | {"student_width": 16, "teacher_width": 4, "latent": 8},
    "psg": {"passes": 3, "iterations": 2, "batches": 2, "batch": 40, "width": 4, "replays": 1},
    "rr": LABELS,
    "rr-debiased": LABELS,
    "ts-adp": PRIVATE,
    "zcdp": PRIVATE,
}
SECOND_WAVE = ("acgan", "datalens", "dense", "dp-blsgd", "dpgen", "fedadi", "feddafl", "geddp", "gep", "infogan")
SECOND_WAVE += ("pate", "pate-gnmax", "private-features", "raw-images", "rgp", "scatter-cnn", "spectral-dp", "topagg")
SECOND_WAVE += ("wgan",)
SMALL |= {name: load("method", name).tiers["smoke"] for name in SECOND_WAVE}
SMALL["spectral-dp"] = SMALL["spectral-dp"] | {"batch": 32}  # of 64 records
GOLDEN: dict[str, tuple[int, tuple[float, ...], float | None]] = {
    "alibi": (2, (-0.077639, 0.069781, -0.086565, -0.041107), 1.0),
    "dp-gan": (1, (-0.000945, 0.17717, 0.08137, 0.074201), 4.205808),
    "dp-merf": (1, (-0.102202, -0.064204, 0.093677, 0.111935), 0.725522),
    "dp-sgd": (3, (0.104853, -0.075484, 0.075866, 0.097996), 4.981870),
    "dp-sinkhorn": (2, (-0.036529, -0.068811, -0.051422, -0.087499), 1.700643),
    "dp-teacher": (4, (-0.029718, 0.023123, 0.095312, -0.038664), 5.840844),
    "fedavg": (2, (-0.215113, -0.182488, 0.150933, -0.015079), None),
    "feddf": (3, (-0.050755, -0.002828, -0.067351, -0.053266), None),
    "g-pate": (2, (-0.014334, -0.062071, -0.035509, -0.086032), 0.828776),
    "gm-dp": (3, (0.116548, -0.08567, 0.082145, 0.087376), 4.981870),
    "gs-wgan": (3, (-0.010585, 0.01324, 0.040517, 0.030746), 6.065985),
    "label-smoothing": (1, (-0.105451, -0.180583, 0.051498, 0.067104), None),
    "lp-2st": (2, (-0.041959, 0.377147, 0.359203, -0.648144), 1.0),
    "non-private-kd": (1, (0.05923, -0.009417, 0.093703, 0.028586), None),
    "p3gm": (3, (0.179180, 0.129628, 0.331581, -0.206122), 4.141868),
    "pate-gan": (2, (-0.025467, -0.074197, -0.038444, -0.075112), 57.245163),
    "psg": (2, (-0.038992, -0.023165, 0.03187, -0.081513), 6.676961),
    "rr": (2, (-0.13586, 0.070351, -0.087026, -0.020317), 1.0),
    "rr-debiased": (1, (-0.032342, -0.121479, 0.13624, -0.202949), 1.0),
    "ts-adp": (3, (0.107099, -0.08519, 0.105218, 0.136033), 4.981870),
    "zcdp": (3, (0.080478, -0.078279, 0.069102, 0.09754), 1.437856),
    "acgan": (1, (-0.048677, -0.140945, -0.177919, 0.215057), None),
    "datalens": (2, (-0.035207, -0.093632, -0.036234, -0.089553), 0.415063),
    "dense": (3, (-0.055414, 0.036539, 0.007468, -0.041016), None),
    "dp-blsgd": (2, (0.180367, -0.678536, 0.652612, 0.200414), 13.689231),
    "dpgen": (1, (0.098988, -0.158304, 0.322851, -0.157297), 10.0),
    "fedadi": (4, (-0.039805, 0.020545, -0.021215, -0.063725), None),
    "feddafl": (3, (0.004159, 0.022684, 0.026249, -0.043789), None),
    "geddp": (1, (0.056941, -0.100207, 0.032167, 0.114862), 7.205806),
    "gep": (1, (0.049574, -0.057384, 0.030208, 0.127687), 5.705232),
    "infogan": (1, (-0.049779, 0.007997, 0.065105, 0.20199), None),
    "pate": (2, (0.056712, -0.034795, -0.090687, 0.210658), 0.401151),
    "pate-gnmax": (2, (0.051175, 0.240854, 0.248998, -0.113688), 0.353842),
    "private-features": (2, (0.464159, -0.286961, 0.376221, 0.938868), 0.211458),
    "raw-images": (1, (0.013031, -0.073899, 0.007847, 0.227537), None),
    "rgp": (2, (0.011633, 0.01752, 0.020255, 0.1079), 3.840613),
    "scatter-cnn": (1, (-0.173875, 0.173811, -0.099292, 0.080345), 5.856737),
    "spectral-dp": (2, (0.315157, -0.171670, 0.253401, 0.159978), 3.434659),
    "topagg": (2, (0.169113, -0.457617, 0.161872, 0.192253), 7.726786),
    "wgan": (1, (-0.095517, 0.038356, -0.066162, 0.301404), None),
}
"""The version, the student's logits of one image, and the claim, with the noise of the options."""


@pytest.mark.parametrize("name", QUICK)
def test_working_variant_at_quick_has_the_boards_options(name: str) -> None:
    cls = load("method", name)
    own, quick = plain(cls()), plain(configure(cls, "quick", {}, "method"))
    assert {option: value for option, value in quick.items() if value != own[option]} == QUICK[name]


@pytest.mark.parametrize("name", QUICK)
def test_variants_differ_only_by_departures(name: str) -> None:
    cls = load("method", name)
    assert configure(cls, "paper", {}, "method", "printed") == cls()
    changed = {option: value for departure in departures(cls) for option, value in departure.sets.items()}
    assert configure(cls, "quick", {}, "method", "working") == replace(
        configure(cls, "quick", {}, "method", "printed"), **changed
    )


@pytest.mark.parametrize("name", QUICK)
def test_learning_rates_and_losses_are_not_sizes(name: str) -> None:
    assert not ALGORITHM & {option.name for option in options(load("method", name)) if option.size}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values_have_the_current_version(name: str) -> None:
    """Without this test, only the thorough tests would notice a new version."""
    assert load("method", name).version == GOLDEN[name][0]


@pytest.mark.thorough
@pytest.mark.usefixtures("double_precision", "usual_draws")
@pytest.mark.parametrize("name", GOLDEN)
def test_outputs_match_golden_values(name: str) -> None:
    given = {option: str(value) for option, value in SMALL[name].items()}
    if name == "psg":
        given["depth"] = "1"
    method = configure(load("method", name), "quick", given, "method")
    torch.manual_seed(3)
    teacher = _teacher(method)
    _, expected, claimed = GOLDEN[name]
    budget = Budget(10.0) if claimed is None else Budget(None, solve="none")
    release = method.convert(teacher, "datalens", budget, context(5))
    with torch.no_grad():
        logits = release.student(torch.linspace(0, 1, 256).view(1, *SHAPE))[0]
    torch.testing.assert_close(logits, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert (release.claim is None) == (claimed is None)
    if release.claim is not None:
        assert release.claim.epsilon == pytest.approx(claimed, rel=1e-4)


def _teacher(method: Any) -> Teacher:
    """The toy teacher with what the method needs besides."""
    toy = replace(toy_teacher(), private=toy_private())
    if "public_data" in method.needs:
        toy = replace(toy, public=toy_private(seed=1)[0])
    if "teacher_ensemble" in method.needs:
        shards = method.shards(toy.arch, toy.dataset)
        members = nets.Ensemble.build(shards.archs, shards.count, SHAPE, CLASSES, range(shards.count))
        toy = replace(toy, ensemble=members.eval().requires_grad_(False))
    return toy
