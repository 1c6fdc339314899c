"""Golden values: the algorithms of the papers' methods have not moved since their results were published.

Those of the printed variants were the same, bit for bit, before the working ones had files of their own. Those of the
working variants hold the whole loop of `bench/distillation/transcription.py` at 64 questions in 3 rounds: the prior's
images (shapes on toy, the pen on mnist), their children, the choice among them, the readings and the student's steps.
Whoever moves an algorithm on purpose bumps its `version` and writes down the new values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench import registry
from bench.api import Release
from bench.config import Variant, configure
from bench.nets import Ensemble
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.testing import CLASSES, SHAPE, context, toy_teacher

SIZES: dict[str, dict[str, str]] = {
    "printed": {"iterations": "3", "batch": "16", "gamma_s": "0.001", "gamma_g": "0.01"},
    "working": {"questions": "64", "rounds": "3", "student_steps": "12", "committee": "1"},
}
GOLDEN: dict[tuple[str, Variant, str, str], list[float]] = {
    ("dpsd", "printed", "data", "toy"): [
        -0.00305,
        -0.00364,
        0.00775,
        -0.00182,
        0.510493,
        27.7137,
        0.0733866,
        9.99945,
        18629.6,
    ],
    ("dpsd", "printed", "label", "toy"): [0.00247, -0.02033, -0.02648, 0.02456, 0.515617, 27.3157, 10, 10, 480],
    ("dpsd", "working", "data", "toy"): [
        -0.21467,
        -0.27168,
        0.82053,
        -0.23882,
        0.23256,
        20.799,
        0.0847396,
        9.99944,
        18629.6,
    ],
    ("dpsd", "working", "data", "mnist"): [
        0.00393,
        -0.21058,
        0.20807,
        0.14585,
        0.300569,
        24.9998,
        0.0847396,
        9.99944,
        18629.6,
    ],
    ("dpsd", "working", "label", "toy"): [-0.24505, -0.28389, 0.86901, -0.25285, 0.232533, 21.1449, 10, 10, 640],
    ("dpdfd", "printed", "", "toy"): [
        -0.00370,
        -0.00348,
        0.00876,
        -0.00215,
        0.526119,
        27.9193,
        0.0733866,
        9.99945,
        288425,
    ],
    ("dpdfd", "working", "", "toy"): [
        -0.24528,
        -0.28398,
        0.86955,
        -0.25300,
        0.233201,
        20.9974,
        0.0847396,
        9.99944,
        18629.6,
    ],
    ("dpdfd", "working", "", "mnist"): [
        0.03032,
        -0.18041,
        0.15988,
        0.10277,
        0.30772,
        24.9436,
        0.0847396,
        9.99944,
        18629.6,
    ],
    ("fed-dpsd", "printed", "data", "toy"): [
        -0.00579,
        0.00199,
        0.00242,
        -0.00133,
        0.510953,
        30.0423,
        0.0733866,
        9.99945,
        18629.6,
    ],
    ("fed-dpsd", "printed", "label", "toy"): [0.00862, 0.02826, -0.04855, -0.02604, 0.493398, 30.6501, 0, 10, 480],
    ("fed-dpsd", "working", "data", "toy"): [
        -0.019368,
        0.024622,
        0.001415,
        -0.01235,
        0.182743,
        17.73649,
        0.08474,
        9.999439,
        18629.589083,
    ],
    ("fed-dpsd", "working", "data", "mnist"): [
        -0.015385,
        0.018522,
        -0.002176,
        -0.015441,
        0.234794,
        21.087405,
        0.08474,
        9.999439,
        18629.589083,
    ],
    ("fed-dpsd", "working", "label", "toy"): [-0.25766, 0.38327, 0.18129, -0.35069, 0.190822, 17.7476, 10, 10, 640],
}
"""Name, variant, mode, data set to: the student's four logits for a grey image, mean and total variance of the
synthetic images, the solved sigma (or the answers' epsilon), the claimed epsilon, and the accounted one per record."""


def convert(name: str, variant: Variant, mode: str, dataset: str) -> Release:
    given = SIZES[variant] | ({"mode": mode} if mode else {})
    method: Any = configure(registry.load("method", name, variant), "paper", given, "method", variant)
    toy = replace(toy_teacher(), dataset=dataset)
    if "teacher_ensemble" in method.needs:
        clients = Ensemble.build(["shard-cnn"], 5, SHAPE, CLASSES, range(5)).eval().requires_grad_(False)
        toy = replace(toy, ensemble=clients)
    torch.manual_seed(0)
    return method.convert(toy, "datalens", Budget(10.0), context())


def measured(release: Release) -> list[float]:
    with torch.no_grad():
        logits = release.student(torch.full((1, *SHAPE), 0.5))[0].tolist()
    noise = release.solved.get("sigma", release.solved.get("answer_epsilon", 0.0))
    assert release.claim is not None and release.synthetic is not None
    shown = release.synthetic.double()
    return [
        *logits,
        shown.mean().item(),
        shown.var(0).sum().item(),
        noise,
        release.claim.epsilon,
        account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon,
    ]


@pytest.mark.parametrize("case", GOLDEN, ids=" ".join)
def test_the_algorithm_is_what_it_was(case: tuple[str, Variant, str, str]) -> None:
    assert measured(convert(*case)) == pytest.approx(GOLDEN[case], rel=1e-4, abs=1e-4)
