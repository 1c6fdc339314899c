"""The papers' methods: registration, defaults, refused options and budgets, progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench import registry
from bench.config import Variant, configure
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dgd.dgd import Dgd
from methods.dgd.working import DgdWorking
from methods.dp_dfd.dp_dfd import DpDfd
from methods.dp_dfd.working import DpDfdWorking
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpdfd.working import WorkingDpdfd
from methods.dpsd.dpsd import Dpsd
from methods.dpsd.working import WorkingDpsd
from methods.fed_dpsd.fed_dpsd import FedDpsd
from methods.fed_dpsd.working import WorkingFedDpsd

LOOP = "choose=0.5 evolve=1 evolve=nan rounds=-1 student_steps=-1 gamma_s=0 "
"""Out of range for every `working` variant that shares the loop."""
REFUSED: dict[type[Any], str] = {
    Dgd: "step_size=0 teachers=0 code_epsilon=-1 synthetic=0",
    DgdWorking: "evolve=1 choose=0.5 teachers=-1 rounds=-1 early=1.5 energy=-1",
    DpDfd: "stages=0 batch=1 lr=0 answer_epsilon=0 threshold=1 alpha=-1 beta=nan ce_weight=-0.1",
    DpDfdWorking: LOOP + "queries=-1 answer_epsilon=0 threshold=1 threshold=-0.1",
    Dpdfd: "norm_bound=0 gamma=-0.1 gamma_g=0 iterations=0 direct_iterations=0 teachers=-1 teacher_steps=0",
    WorkingDpdfd: LOOP + "queries=0 norm_bound=0 sigma=-1 batch=0 direct_iterations=0 shared=0 shared=51201"
    " teachers=-1 teacher_steps=0",
    Dpsd: "iterations=0 k=-1 batch=0 gamma_s=0 sigma=-1 answer_epsilon=0",
    WorkingDpsd: LOOP + "queries=0 copies=0 evolve=-0.1 k=-1 beta=-0.1 sigma=-1 answer_epsilon=0",
    FedDpsd: "clients=0 k=-1 alpha=0 answer_epsilon=0 beta=-0.1 client_steps=0",
    WorkingFedDpsd: LOOP + "queries=0 sigma=-1 clients=0 k=-1 alpha=0 answer_epsilon=0 beta=-0.1 client_steps=0",
}
CONTRADICTORY: list[tuple[type[Any], dict[str, Any], str]] = [
    (Dgd, {"synthetic": 40, "queries": 40}, "synthetic"),
    (Dpdfd, {"data": "private", "teachers": 3}, "teachers"),
    (WorkingDpdfd, {"data": "private", "teachers": 3}, "teachers"),
    (WorkingDpdfd, {"shared": 4, "teachers": 3}, "shared"),
    (WorkingDpdfd, {"shared": 4, "gradient_at": "student"}, "shared"),
    (WorkingDpdfd, {"shared": 4, "reading": "printed"}, "shared"),
    (WorkingDpsd, {"copies": 2, "reading": "printed"}, "copies"),
]
"""Method, options, and an option in the message."""
ACCOUNTED = Budget(3.0, account="accounted")
QUERY = Budget(3.0, account="accounted", unit=Unit.QUERY)
CLIENT, STEPS = Budget(3.0, unit=Unit.CLIENT), Budget(1.0, solve="steps")
UNREACHABLE: list[tuple[Any, Budget, str]] = [
    (Dgd(), ACCOUNTED, "--variant working"),
    (Dgd(images="private"), ACCOUNTED, "--variant working"),
    (Dgd(), CLIENT, "--unit client"),
    (Dgd(synthetic=40, teachers=3), Budget(40.0, solve="steps"), "--method.queries"),
    (DgdWorking(prior="baseline"), ACCOUNTED, "--method.prior"),
    (DgdWorking(), CLIENT, "--unit client"),
    (DpDfd(), ACCOUNTED, "--variant working"),
    (DpDfd(responses="soft"), ACCOUNTED, "--method.responses onehot"),
    (DpDfd(responses="soft"), QUERY, "--method.responses onehot"),
    (DpDfd(), STEPS, "--solve sigma"),
    (DpDfd(), CLIENT, "--unit client"),
    (DpDfd(stages=50, queries=49), Budget(1.0), "49"),
    (DpDfdWorking(), STEPS, "--solve sigma"),
    (DpDfdWorking(), CLIENT, "--unit client"),
    (DpDfdWorking(answer_epsilon=5.0, queries=100), Budget(1.0, account="accounted", solve="steps"), "--solve steps"),
    (Dpsd(k=11), Budget(10.0), "--method.k 11"),
    (Dpsd(k=1), Budget(10.0), "--method.k 1"),
    (WorkingDpsd(k=11), Budget(10.0), "--method.k 11"),
    (WorkingDpsd(k=1, mode="label"), Budget(10.0), "--method.k 1"),
    (Dpdfd(data="private"), ACCOUNTED, "--method.data private"),
    (WorkingDpdfd(data="private"), ACCOUNTED, "--method.data private"),
    (Dpdfd(data="private"), QUERY, "--method.data private"),
    *[(Dpdfd(data="private"), Budget(10.0, unit=unit), "--unit example") for unit in (Unit.QUERY, Unit.CLIENT)],
    *[(WorkingDpdfd(data="private"), Budget(10.0, unit=unit), "--unit example") for unit in (Unit.QUERY, Unit.CLIENT)],
    (Dpdfd(teachers=7), Budget(10.0), "--method.teachers 7"),
    (WorkingDpdfd(teachers=7), Budget(10.0), "--method.teachers 7"),
    *[
        (cls(prior="nothing-such"), Budget(10.0), "nothing-such")
        for cls in (DgdWorking, DpDfdWorking, WorkingDpdfd, WorkingDpsd, WorkingFedDpsd)
    ],
]
"""Method, budget, and a value in the message."""


@pytest.mark.parametrize(("cls", "option"), [(cls, option) for cls in REFUSED for option in REFUSED[cls].split()])
def test_option_out_of_range_is_refused(cls: type[Any], option: str) -> None:
    name, text = option.split("=")
    value = type(getattr(cls(), name))(text)
    with pytest.raises(ValueError, match=rf"\b{name} is {value}"):
        cls(**{name: value})


@pytest.mark.parametrize(("cls", "given", "name"), CONTRADICTORY)
def test_contradictory_options_are_refused(cls: type[Any], given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        cls(**given)


@pytest.mark.parametrize(("method", "budget", "value"), UNREACHABLE)
def test_unreachable_budget_is_refused_by_check(method: Any, budget: Budget, value: str) -> None:
    with pytest.raises(BenchError, match=value) as refused:
        method.check(budget, "mnist", 10)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "budget"),
    [
        *[(cls(prior="generator"), Budget(10.0)) for cls in (DpDfdWorking, WorkingDpdfd, WorkingDpsd, WorkingFedDpsd)],
        *[(cls(teachers=7), Budget(10.0, account="accounted")) for cls in (Dpdfd, WorkingDpdfd)],
        *[(cls(data="private"), Budget(8.0)) for cls in (Dpdfd, WorkingDpdfd)],
    ],
)
def test_reachable_budget_passes_check(method: Any, budget: Budget) -> None:
    method.check(budget, "mnist", 10)


def test_refused_option_is_named_with_its_flag() -> None:
    with pytest.raises(BenchError, match="iterations is 0") as refused:
        configure(Dpdfd, "smoke", {"iterations": "0"}, "method", "printed")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["dgd", "dp-dfd", "dpdfd", "dpsd", "fed-dpsd"])
def test_both_variants_are_registered(name: str) -> None:
    assert registry.variants("method", name) == ("printed", "working")
    printed, working = (registry.load("method", name, variant) for variant in ("printed", "working"))
    assert printed in REFUSED and working in REFUSED and printed is not working is registry.load("method", name)


@pytest.mark.parametrize(("epsilon", "beta"), [(0.5, 1e-3), (1.0, 1e-3), (1.1, 5e-3), (10.0, 5e-3)])
@pytest.mark.parametrize("cls", [Dpsd, FedDpsd])
def test_beta_defaults_to_the_papers(cls: type[Any], epsilon: float, beta: float) -> None:
    assert cls().parameters(Budget(epsilon), "mnist", 10).beta == beta
    assert cls(beta=0.2).parameters(Budget(epsilon), "mnist", 10).beta == 0.2


@pytest.mark.parametrize("method", [WorkingDpsd(), WorkingDpsd(mode="label"), WorkingFedDpsd(mode="label")])
def test_k_defaults_to_all_classes(method: Any) -> None:
    for dataset, classes in (("hundred", 100), ("mnist", 10), ("x", 2)):
        assert method.parameters(Budget(10.0), dataset, classes).k == classes
    assert replace(method, k=2).parameters(Budget(10.0), "mnist", 10).k == 2


@pytest.mark.parametrize("name", ["dgd", "dp-dfd"])
@pytest.mark.parametrize("variant", ["printed", "working"])
def test_convert_reports_complete_progress(name: str, variant: Variant) -> None:
    totals: dict[str, int] = {}
    done: dict[str, int] = {}

    @contextmanager
    def track(stage: str, total: int) -> Iterator[Callable[[int], None]]:
        totals[stage], done[stage] = total, 0
        yield lambda n: done.update({stage: done[stage] + n})

    given = {"beta": "0"} if name == "dp-dfd" and variant == "printed" else {}
    method: Any = configure(registry.load("method", name, variant), "smoke", given, "method", variant)
    torch.manual_seed(0)
    members = Ensemble.build(["shard-cnn"], 3, SHAPE, CLASSES, range(3)).eval().requires_grad_(False)
    teacher = replace(toy_teacher(), ensemble=members)
    method.convert(teacher, "datalens", Budget(10.0), replace(context(), track=track))
    assert totals == done and min(done.values()) > 0
    assert name == "dgd" or len(totals) == (2 if variant == "printed" else 1)


@pytest.mark.parametrize("budget", [Budget(10.0), Budget(10.0, account="accounted")], ids=lambda budget: budget.account)
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("dpsd", {}),
        ("dpsd", {"mode": "label", "queries": "891"}),
        ("dpdfd", {}),
        ("dp-dfd", {"amount": "891"}),
        ("fed-dpsd", {}),
        ("fed-dpsd", {"mode": "label", "queries": "891"}),
    ],
    ids=str,
)
def test_more_copies_than_queries_are_refused_by_check(name: str, given: dict[str, str], budget: Budget) -> None:
    """A budget may permit far fewer responses than requested: one image's copies would exceed all of them."""

    def method(copies: int) -> Any:
        return configure(
            registry.load("method", name, "working"), "quick", given | {"copies": str(copies)}, "method", "working"
        )

    with pytest.raises(BenchError, match=r"--method\.copies 30000") as refused:
        method(30_000).check(budget, "mnist", 10)
    most = int(re.findall(r"\d+", str(refused.value))[1])
    method(most).check(budget, "mnist", 10)
    with pytest.raises(BenchError, match=str(most)):
        method(most + 1).check(budget, "mnist", 10)
