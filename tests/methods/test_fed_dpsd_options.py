"""Options of federated DPSD: all run, all change the student, and impossible ones are refused."""

from __future__ import annotations

import pytest
import torch
from fed_dpsd_made import BOTH, convert, smoke

from bench.api import Shards
from bench.config import Variant
from bench.privacy import Budget
from bench.testing import context, toy_teacher
from methods.fed_dpsd.fed_dpsd import FedDpsd


def test_clients_may_have_different_networks() -> None:
    given = {"client_nets": "shard-cnn, dgd-cnn", "clients": "3"}
    release, clients = convert(**given)
    bodies = [type(member.get_submodule("body")).__name__ for member in clients.members]
    assert bodies == ["ShardNet", "DgdNet", "ShardNet"]
    assert release.student is not None and clients.asked == [16, 16, 16]


@BOTH
def test_shards_follow_the_options(variant: Variant) -> None:
    given = {"clients": "7", "alpha": "0.2", "client_steps": "9"}
    found = smoke(variant, client_nets="a, b", **given).shards("ignored", "toy")
    assert found == Shards(7, ("a", "b"), "dirichlet-balanced", 0.2, 9, 128, 2e-3)


def test_paper_defaults_of_the_federation() -> None:
    found = FedDpsd().shards("resnet34", "mnist")
    assert (found.count, found.partition, found.alpha) == (5, "dirichlet-balanced", 0.5)


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize(("mode", "noise"), [("data", "server"), ("data", "client"), ("label", "server")])
def test_options_run_within_their_claim(variant: Variant, mode: str, noise: str) -> None:
    release, _ = convert(variant=variant, mode=mode, noise_by=noise)
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())
    assert release.claim is not None and release.claim.epsilon <= 10


def test_convert_without_clients_is_refused() -> None:
    with pytest.raises(RuntimeError, match="teacher_ensemble"):
        smoke().convert(toy_teacher(), "datalens", Budget(10.0), context())
