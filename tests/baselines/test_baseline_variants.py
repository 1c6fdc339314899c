"""Settings of tier quick of the variant working, used for the boards, and golden values of the algorithms."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_runs import FREE as OWN_NOISE
from baseline_runs import teacher_for
from conftest import ROOT

from bench.config import configure, departures, options, parse, plain
from bench.privacy import Budget
from bench.registry import load
from bench.testing import SHAPE, context

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
    "sim-pe": SYNTHETIC | {"api": "drawings", "population": 40, "variations": 1},
    "rr-debiased": LABELS,
    "ts-adp": PRIVATE,
    "zcdp": PRIVATE,
}
SECOND_WAVE = ("acgan", "datalens", "dense", "dp-blsgd", "dpgen", "fedadi", "feddafl", "geddp", "gep", "infogan")
SECOND_WAVE += ("pate", "pate-gnmax", "private-features", "raw-images", "rgp", "scatter-cnn", "spectral-dp", "topagg")
SECOND_WAVE += ("dp-feta", "dpdm", "wgan", "dp-ntk", "dp-kernel", "private-drawings")
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
    "dp-kernel": (1, (0.062966, -0.001802, 0.093654, 0.031459), 0.725522),
    "dp-ntk": (1, (-0.008014, -0.087394, 0.007831, 0.035136), 0.725522),
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
    "sim-pe": (1, (-0.048423, -0.160159, 0.070503, -0.091856), 11.905551),
    "spectral-dp": (2, (0.315157, -0.171670, 0.253401, 0.159978), 3.434659),
    "topagg": (2, (0.169113, -0.457617, 0.161872, 0.192253), 7.726786),
    "wgan": (1, (-0.095517, 0.038356, -0.066162, 0.301404), None),
}
"""The version, the student's logits of one image, and the claim, with the noise of the options."""


@pytest.fixture(scope="module")
def published() -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Options of the published runs of tier quick, by method and version."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for file in (ROOT / "leaderboards" / "records").glob("*/*.jsonl"):
        for spec in (json.loads(line)["spec"] for line in file.read_bytes().splitlines()):
            release = spec["release"]
            if spec["tier"] == "quick":
                found.setdefault((release["method"], release["version"]), []).append(release["options"])
    return found


@pytest.mark.parametrize("name", GOLDEN)
def test_working_variant_at_quick_has_the_boards_options(name: str, published: Any) -> None:
    """Rows of the current version were made with these options, where newer ones have their default."""
    cls = load("method", name)
    rows = published.get((name, cls.version))
    if not rows:
        pytest.skip(f"no published run has version {cls.version}")
    assert plain(configure(cls, "quick", {}, "method")) in [plain(cls()) | row for row in rows]


@pytest.mark.parametrize("name", GOLDEN)
def test_variants_differ_only_by_departures(name: str) -> None:
    cls = load("method", name)
    assert configure(cls, "paper", {}, "method", "printed") == cls()
    changed = {option: value for departure in departures(cls) for option, value in departure.sets.items()}
    assert configure(cls, "quick", {}, "method", "working") == replace(
        configure(cls, "quick", {}, "method", "printed"), **changed
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_learning_rates_and_losses_are_not_sizes(name: str) -> None:
    assert not ALGORITHM & {option.name for option in options(load("method", name)) if option.size}


FEDERATION = (
    "clients=5 partition=dirichlet-balanced alpha=0.5 rounds=1 local_lr=0.01 local_momentum=0.9 local_batch=128"
)
PUBLISHED = {
    "acgan": "rate=2e-4 gan_batch=100 gan_steps=50000 latent=100",
    "dp-feta": "rounds=5 central_noise=5 central_records=6000 warm=2000 warm_batch=50 central_clip=0 clip=1",
    "dp-wrn": "network=wrn-16-4",
    "dpdm": "batch=4096 copies=32 steps=2100 width=32 blocks=2 rate=3e-4 average=0.999 unlabelled=0.1 network=unet",
    "dpgen": "levels=232 most=50 least=0.01 each=5 step=6.2e-6 candidates=256 queries=128 buffer=60000 average=0.999",
    "fedavg": FEDERATION,
    "feddf": f"{FEDERATION} steps=10000 batch=128 lr=1e-3 clip=5",
    "gs-wgan": "sigma=1.07 steps=20000 batch=32 critics=1000",
    "infogan": "rate=2e-4 rate_generator=1e-3 gan_batch=128 gan_steps=5000 latent=62 categories=10 numbers=2",
    "raw-images": "teachers=250 teacher_net=dgd-cnn teacher_lr=0.05 scale=40 query_count=1300 unlabelled=58700",
    "rgp": "rank=16",
    "spectral-dp": "ratio=0.5 block=8",
    "ts-adp": "scale=2 temperature=2 offset=1",
    "wgan": "rate=5e-5 clip=0.01 gan_batch=64 critic_steps=5",
}
"""Defaults that are the papers' or those of the authors' code."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_the_published_ones(name: str) -> None:
    method = load("method", name)()
    known = {option.name: option for option in options(type(method))}
    for option, text in (word.split("=") for word in PUBLISHED[name].split()):
        assert getattr(method, option) == parse(known[option], text, option)


TRAINING: dict[tuple[str, str], dict[str, Any]] = {
    ("dp-sgd", "mnist"): {"clipping": "flat"},
    ("dp-wrn", "cifar10"): {"batch": 4096, "views": 16, "augmentation": "crop-and-flip", "clip": 1.0, "rate": 2.0,
                            "momentum": 0.0, "decay": False, "average": 0.9999, "warm_up": "tensorflow",
                            "clipping": "flat"},
    ("dp-wrn", "mnist"): {"augmentation": "crop"},
    ("geddp", "mnist"): {"batch": 256, "steps": 100 * 60_000 // 256, "clip": 1.0,
                         "multiplier": pytest.approx(math.sqrt(9 / 7), abs=1e-3)},  # of Student's t, 9 degrees
    ("gep", "cifar10"): {"batch": 1000, "steps": 10_000, "weight_decay": 2e-4, "momentum": 0.9},
    ("gm-dp", "mnist"): {"clipping": "layer"},
    ("rgp", "cifar10"): {"batch": 1000, "steps": 20_000, "clip": 1.0, "momentum": 0.9, "weight_decay": 1e-4},
    ("spectral-dp", "mnist"): {"batch": 500, "steps": 3600, "clip": 0.5, "rate": 0.001, "momentum": 0.9,
                               "nesterov": True},
    ("ts-adp", "mnist"): {"clipping": "flat"},
    ("zcdp", "mnist"): {"clipping": "flat"},
}  # fmt: skip
"""Published settings of private training, by method and data set."""


@pytest.mark.parametrize(("name", "dataset"), TRAINING)
def test_training_has_the_published_settings(name: str, dataset: str) -> None:
    settings = load("method", name)().settings(dataset)
    expected = TRAINING[name, dataset]
    assert {option: getattr(settings, option) for option in expected} == expected


@pytest.mark.parametrize(
    ("name", "rates"),
    [("gep", {0: 0.1, 49: 0.1, 50: 0.01, 74: 0.01, 75: 0.001, 99: 0.001}),
     ("rgp", {0: 0.5, 29: 0.5, 30: 0.1, 59: 0.1, 60: 0.02, 79: 0.02, 80: 0.004})],
)  # fmt: skip
def test_rate_falls_as_published(name: str, rates: dict[int, float]) -> None:
    settings = load("method", name)().settings("cifar10")
    assert [settings.rate_at(step, 100) for step in rates] == pytest.approx(list(rates.values()))
    assert not load("method", "gep")(decay=True).settings("cifar10").falls


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
    teacher = teacher_for(method)
    _, expected, claimed = GOLDEN[name]
    release = method.convert(teacher, "datalens", Budget(10.0) if claimed is None else OWN_NOISE, context(5))
    with torch.no_grad():
        logits = release.student(torch.linspace(0, 1, 256).view(1, *SHAPE))[0]
    torch.testing.assert_close(logits, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert (release.claim is None) == (claimed is None)
    if release.claim is not None:
        assert release.claim.epsilon == pytest.approx(claimed, rel=1e-4)
