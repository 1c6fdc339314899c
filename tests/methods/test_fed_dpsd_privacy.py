"""FedDPSD: cost of the responses, claims, budgets, the audit game, and options."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent
from methods_made import BOTH, MODES, convert_federation, fed

from bench.api import Shards
from bench.config import Variant
from bench.distillation.noisy_labels import FEWEST
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.testing import CLASSES, context, toy_teacher
from methods.fed_dpsd.fed_dpsd import FedDpsd
from methods.fed_dpsd.working import WorkingFedDpsd

READABLE = 0.5
"""The default of `max_noise`."""
FREE = Budget(None, solve="none")


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize("noise", ["server", "client"])
def test_data_mode_ledger_by_hand(noise: str, variant: Variant) -> None:
    """Another record or client moves one of the m rows of every image, another image all m rows of one."""
    given = {"iterations": "3"} if variant == "printed" else {"queries": "48"}
    release, clients = convert_federation(FREE, variant, noise_by=noise, clients="3", **given)
    assert sum(clients.queried) == 48 and clients.with_gradient == 0
    for unit in (Unit.EXAMPLE, Unit.CLIENT):
        (entry,) = release.ledger.entries(unit)
        assert (entry.event, entry.count) == (GaussianDpEvent(50.0), sum(clients.queried))
    (query,) = release.ledger.entries(Unit.QUERY)
    assert (query.event, query.count) == (GaussianDpEvent(100 / (2 * 3)), 1)


@pytest.mark.thorough
@BOTH
def test_label_mode_ledger_by_hand(variant: Variant) -> None:
    given = {"iterations": "6"} if variant == "printed" else {"queries": "96"}
    release, clients = convert_federation(FREE, variant, mode="label", k="2", clients="3", **given)
    assert sum(clients.queried) == 96 and clients.with_gradient == 0
    for unit in (Unit.EXAMPLE, Unit.CLIENT):
        (entry,) = release.ledger.entries(unit)
        assert (entry.count, entry.event.num_buckets) == (96, 2)
    (query,) = release.ledger.entries(Unit.QUERY)
    assert query.count == 3, "all clients answer for one image"
    assert account(release.ledger, Unit.QUERY, 1e-12).epsilon == pytest.approx(3.0, rel=1e-3)
    assert account(release.ledger, Unit.CLIENT, 1e-100).epsilon == pytest.approx(96.0, rel=1e-3)


def test_queries_are_limited_by_the_noise() -> None:
    budget = Budget(20.0, account="accounted", unit=Unit.CLIENT)
    found = {m: WorkingFedDpsd(clients=m).parameters(budget, "mnist", 10) for m in (1, 40, 80)}
    assert found[1].iterations == FEWEST < found[40].iterations < found[80].iterations < 51_200
    for m in (40, 80):
        assert found[m].sigma == pytest.approx(READABLE * m, rel=0.05)
    assert WorkingFedDpsd(queries=100).parameters(budget, "mnist", 10).iterations == 100


def test_client_noise_limit_is_on_the_mean() -> None:
    """It has to be the square root of their number smaller than the server's, and so buys fewer queries."""
    budget = Budget(1000.0, account="accounted", unit=Unit.CLIENT)
    found = WorkingFedDpsd(clients=25, noise_by="client").parameters(budget, "mnist", 10)
    assert FEWEST < found.iterations < 51_200 and found.sigma == pytest.approx(READABLE * 5, rel=0.05)


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize(("mode", "source"), [("data", "DPSD, Theorem 1"), ("label", "DPSD, Theorem 2")])
def test_claim_is_dpsds(mode: str, source: str, variant: Variant) -> None:
    release, _ = convert_federation(variant=variant, mode=mode, **({"iterations": "3"} if variant == "printed" else {}))
    assert release.claim is not None and release.claim.source == source and release.claim.unit == Unit.QUERY
    assert 9.99 < release.claim.epsilon <= 10
    assert release.solved["iterations"] == (3 if variant == "printed" else 48) and release.solved["beta"] == 5e-3
    assert ("answer_epsilon" in release.solved) == (mode == "label") and ("sigma" in release.solved) == (mode == "data")


def test_theorem_1_at_the_papers_settings() -> None:
    method = FedDpsd()
    parameters = method.parameters(FREE, "toy", 10)
    found = (method.clients, method.alpha, method.batch, parameters.sigma, parameters.iterations)
    assert found == (5, 0.5, 256, 100.0, 200)
    claim = method._mechanism(10).claim(replace(parameters, beta=1e-3), 1e-5)
    assert claim is not None and claim.epsilon == pytest.approx(0.0456, abs=1e-4)


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.EXAMPLE, Unit.QUERY])
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_data_mode_meets_an_accounted_budget(unit: Unit, target: float) -> None:
    method = FedDpsd()
    parameters = method.parameters(Budget(target, account="accounted", unit=unit), "toy", 10)
    spent = account(method._mechanism(10).ledger(parameters), unit, 1e-5).epsilon
    assert target * (1 - 1e-3) <= spent <= target


def test_client_noise_has_the_same_ledger() -> None:
    budget = Budget(2.0, account="accounted", unit=Unit.CLIENT)
    sigmas = {FedDpsd(noise_by=noise).parameters(budget, "toy", 10).sigma for noise in ("server", "client")}  # type: ignore[arg-type]
    assert len(sigmas) == 1


@pytest.mark.thorough
def test_client_and_example_have_the_same_epsilon() -> None:
    for mode, variant in itertools.product(MODES, ("printed", "working")):
        release, _ = convert_federation(FREE, variant, mode=mode)
        costs = {account(release.ledger, unit, 1e-5).epsilon for unit in (Unit.CLIENT, Unit.EXAMPLE)}
        assert len(costs) == 1


@pytest.mark.parametrize(("unit", "least"), [(Unit.CLIENT, 2 * (1 - 1e-2)), (Unit.QUERY, 0.0)])
def test_label_mode_meets_an_accounted_budget(unit: Unit, least: float) -> None:
    method = fed(mode="label", clients="3")
    parameters = method.parameters(Budget(2.0, account="accounted", unit=unit), "toy", CLASSES)
    assert least <= account(method._mechanism(CLASSES).ledger(parameters), unit, 1e-5).epsilon <= 2


def test_label_mode_solves_the_batches_per_client() -> None:
    method, budget = FedDpsd(mode="label", batch=4), Budget(20.0, account="accounted", solve="steps", unit=Unit.CLIENT)
    per_example = method.parameters(replace(budget, unit=Unit.EXAMPLE), "toy", 10).iterations
    assert method.parameters(budget, "toy", 10).iterations == per_example > 1


@BOTH
def test_audit_cost_is_that_of_one_client(variant: Variant) -> None:
    """Gaussian noise of sigma beta on a row that moves by 2 beta."""
    one, five = (fed(variant, clients=m, sigma="4").game(FREE, "mnist", 10) for m in ("1", "5"))
    ledger = Ledger()
    ledger.spend(GaussianDpEvent(2.0), unit=Unit.QUERY)
    assert one.accounted == five.accounted == pytest.approx(account(ledger, Unit.QUERY, 1e-5).epsilon)


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "tight"), [("data", 0.3), ("label", 0.8)])
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("variant", [FedDpsd, WorkingFedDpsd])
def test_audit_plays_one_clients_response(mode: Any, tight: float, clients: int, variant: Any) -> None:
    """It is a fifth of the ledger's cost of all 5 clients' responses to an image."""
    method = variant(mode=mode, clients=clients, sigma=4.0, answer_epsilon=2.0)
    game = replace(method.game(FREE, "mnist", 10), claimed=math.inf)
    found = audit(game, 20_000)
    assert tight * game.accounted < found.lower_bound <= game.accounted and found.verdict == "not refuted"
    assert audit(replace(game, accounted=found.lower_bound / 2), 20_000).verdict == "accountant refuted"


def test_clients_may_have_different_networks() -> None:
    given = {"client_nets": "shard-cnn, dgd-cnn", "clients": "3"}
    release, clients = convert_federation(**given)
    bodies = [type(member.get_submodule("body")).__name__ for member in clients.members]
    assert bodies == ["ShardNet", "DgdNet", "ShardNet"]
    assert release.student is not None and clients.queried == [16, 16, 16]


@BOTH
def test_shards_follow_the_options(variant: Variant) -> None:
    given = {"clients": "7", "alpha": "0.2", "client_steps": "9"}
    found = fed(variant, client_nets="a, b", **given).shards("ignored", "toy")
    assert found == Shards(7, ("a", "b"), "dirichlet-balanced", 0.2, 9, 128, 2e-3)


def test_paper_defaults_of_the_federation() -> None:
    found = FedDpsd().shards("resnet34", "mnist")
    assert (found.count, found.partition, found.alpha) == (5, "dirichlet-balanced", 0.5)


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize(("mode", "noise"), [("data", "server"), ("data", "client"), ("label", "server")])
def test_options_run_within_their_claim(variant: Variant, mode: str, noise: str) -> None:
    release, _ = convert_federation(variant=variant, mode=mode, noise_by=noise)
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())
    assert release.claim is not None and release.claim.epsilon <= 10


def test_convert_without_clients_is_refused() -> None:
    with pytest.raises(RuntimeError, match="teacher_ensemble"):
        fed().convert(toy_teacher(), "datalens", Budget(10.0), context())
