"""Golden values: the algorithms of the papers' methods have not moved since their results were published.

They were the same, bit for bit, before the printed and the working variants had files of their own. Whoever moves an
algorithm on purpose bumps its `version` and writes down the new values.
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
    "working": {"iterations": "2", "batch": "16", "student_steps": "5", "generator_steps": "10"},
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
        -0.05314,
        -0.06955,
        0.18568,
        -0.04929,
        0.512153,
        32.0323,
        0.05992,
        9.99944,
        18629.6,
    ],
    ("dpsd", "working", "data", "mnist"): [
        -0.04383,
        -0.06749,
        0.16307,
        -0.03486,
        0.215758,
        13.7243,
        0.05992,
        9.99944,
        18629.6,
    ],
    ("dpsd", "working", "label", "toy"): [-0.02027, -0.06867, 0.12105, -0.00915, 0.451022, 33.0185, 10, 10, 2560],
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
        -0.07130,
        -0.06623,
        0.22426,
        -0.07060,
        0.516432,
        31.9823,
        0.05992,
        9.99944,
        18629.6,
    ],
    ("dpdfd", "working", "", "mnist"): [
        -0.05815,
        -0.06134,
        0.20852,
        -0.06195,
        0.213223,
        13.8047,
        0.05992,
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
        -0.07322,
        0.08072,
        0.06609,
        -0.08042,
        0.490515,
        29.5569,
        0.05992,
        9.99944,
        18629.6,
    ],
    ("fed-dpsd", "working", "data", "mnist"): [
        -0.06329,
        0.07130,
        0.04097,
        -0.05573,
        0.199447,
        12.6839,
        0.05992,
        9.99944,
        18629.6,
    ],
    ("fed-dpsd", "working", "label", "toy"): [-0.00387, 0.02258, 0.00792, -0.02709, 0.492506, 29.1725, 0, 10, 2560],
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
