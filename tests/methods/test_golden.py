"""Golden values: the algorithms of the papers' methods have not changed since their results were published.

Those of the printed variants were the same, bit for bit, before the working ones were in separate files. Those of the
working variants hold the whole loop of `bench/distillation/transcription/loop.py` at 64 queries in 3 rounds: the
prior's images (shapes on toy, the pen on mnist), their children, the choice among them, the readings and the student's
steps.
All are in double precision, in which they do not depend on the processor.
A deliberate change of an algorithm requires a new `version` and new values here.
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
    "working": {"queries": "64", "rounds": "3", "student_steps": "12", "committee": "1"},
}
GOLDEN: dict[tuple[str, Variant, str, str], list[float]] = {
    ("dpsd", "printed", "data", "toy"): [
        -9.7e-05, -0.000979, 0.003209, 0.00052, 0.489429, 27.367493, 0.073387, 9.999446, 18629.608834,
    ],
    ("dpsd", "printed", "label", "toy"): [
        0.01555, -0.024628, 0.049765, -0.024005, 0.480887, 28.425132, 10.0, 10.0, 480.0,
    ],
    ("dpsd", "working", "data", "toy"): [
        0.004215, -0.250216, 0.665872, -0.212396, 0.317339, 31.202868, 0.08474, 9.999439, 18629.589083,
    ],
    ("dpsd", "working", "data", "mnist"): [
        0.16384, -0.214677, 0.268158, -0.19978, 0.325308, 24.93081, 0.08474, 9.999439, 18629.589083,
    ],
    ("dpsd", "working", "label", "toy"): [
        0.058208, -0.264113, 0.581531, -0.221606, 0.325627, 29.809124, 10.0, 10.0, 640.0,
    ],
    ("dpdfd", "printed", "", "toy"): [
        0.000283, -0.000225, 0.003734, -0.001091, 0.480121, 32.115259, 0.073387, 9.999446, 288425.32263,
    ],
    ("dpdfd", "working", "", "toy"): [
        -0.009275, -0.198064, 0.372782, -0.051332, 0.426677, 34.448956, 0.08474, 9.999439, 18629.589083,
    ],
    ("dpdfd", "working", "", "mnist"): [
        0.234725, -0.309976, 0.386929, -0.29391, 0.308915, 22.580431, 0.08474, 9.999439, 18629.589083,
    ],
    ("fed-dpsd", "printed", "data", "toy"): [
        -0.001756, 0.000367, -0.000235, 0.002394, 0.484761, 31.562657, 0.073387, 9.999446, 18629.608834,
    ],
    ("fed-dpsd", "printed", "label", "toy"): [
        0.017867, 0.011942, 0.017031, -0.035282, 0.483347, 31.257002, 10.0, 10.0, 480.0,
    ],
    ("fed-dpsd", "working", "data", "toy"): [
        -0.031588, -0.015353, 0.043246, 0.030259, 0.194292, 16.527329, 0.08474, 9.999439, 18629.589083,
    ],
    ("fed-dpsd", "working", "data", "mnist"): [
        -0.022307, -0.008995, 0.026158, 0.023317, 0.269425, 22.335371, 0.08474, 9.999439, 18629.589083,
    ],
    ("fed-dpsd", "working", "label", "toy"): [
        -0.126184, 0.037136, -0.045834, 0.108445, 0.193459, 20.100894, 10.0, 10.0, 640.0,
    ],
}  # fmt: skip
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


@pytest.mark.usefixtures("double_precision", "usual_draws")
@pytest.mark.parametrize("case", GOLDEN, ids=" ".join)
def test_golden_releases_are_unchanged(case: tuple[str, Variant, str, str]) -> None:
    assert measured(convert(*case)) == pytest.approx(GOLDEN[case], rel=1e-5, abs=1e-5)
