"""Every plug-in that touches private data, run on neighbouring data sets with the same recorded seed, step by step.

The second run gets the first one's responses, so that any difference before a mechanism is due to one record: it
must stay within the sensitivity in the ledger. Faults that this test finds: test_neighbours_found.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from neighbours import (
    MISSING,
    MOMENTS,
    OWN,
    compare,
    differing,
    empty_parts,
    held,
    method,
    only_record,
    records,
    sensitivities,
    teachers,
    unmoved,
    violations,
    with_another,
    with_another_label,
    without,
)

from baselines.dp_blsgd import dominating_mu, sampled_epsilon
from bench import registry
from bench.api import Shards, Teacher
from bench.config import Variant, configure
from bench.distillation.class_moments import noisy_moments
from bench.distillation.class_moments.class_images import cosine_basis
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.budget import Solve
from bench.privacy.ledger import Entry
from bench.privacy.witness import Trace, Witness
from bench.teachers import ensemble as training
from bench.testing import CLASSES, context

Options = dict[str, Any]
Case = tuple[str, Options] | tuple[str, Options, Variant]
"""A plug-in with options, and its variant if that is not the default one."""


def cases(name: str, usual: Options, *changes: Options) -> list[tuple[str, Options]]:
    """A plug-in with its usual options, and with each of some changes to them."""
    return [(name, usual | each) for each in changes or ({},)]


B: Options = {"batch": 20}
SAMPLED: list[tuple[str, Options]] = [
    *cases("dp-sgd", B, {}, {"gradients": "func", "clip": 1e-3}, {"network": "student"}),
    *cases("dp-sgd", B, {"network": "student", "gradients": "func"}, {"views": 2}, {"gradients": "layers"}),
    *((name, B) for name in ("ts-adp", "gm-dp", "zcdp", "scatter-cnn")),
    *cases("dp-wrn", B, {}, {"chunk": 3, "augmentation": "crop-and-flip"}),
    *cases("dp-teacher", B, {"conversion": "none"}),
    *cases("dp-teacher", {"teacher": "private-features", "conversion": "transcribe"}, {}, {"moments_share": 0.3}),
    *cases("dp-gan", B, {"network": "dcgan"}, {"network": "mlp"}),
    *cases("dpdm", {"batch": 40, "steps": 4}, {}, {"side": "full", "network": "unet", "width": 4}),
    *cases("dp-feta", {"central_records": 40}, {"batch": 40}, {"steps": 0, "central_clip": 0.3}),
    *cases("dp-sinkhorn", B, {}, {"clipping": "image"}),
    *cases("psg", B, {"replays": 1, "optimiser": "sgd", "norm": True}, {"replays": 2}),
    *cases("p3gm", B, {"mean": "half", "components": 2}, {}, {"mean": "noisy", "components": 1}),
    *cases("class-moments", {}, {}, {"second_moments": "per-class"}),
    *cases("private-features", {}, {}, {"whitened": "maps"}, {"whitening": "public", "mirrored": "yes"}),
    *cases("private-drawings", {}, {}, {"class_weight": 1.0}),
    *cases("patch-features", {"whitening": "none"}, {}, {"features": "patches"}),
    *cases("gep", B, {}, {"residual": False, "images": "prior"}),
    *cases("rgp", B, {}, {"carriers": "left", "head_scale": 1.0}),
    *cases("spectral-dp", B, {}, {"ratio": 1.0, "block": 1}),
    *cases("topagg", B, {}, {"clip": 1e9, "aggregate": "mean", "kept": 0.2}),
    *cases("geddp", B, {}, {"clip": 1e-3, "block": 8, "denoise": "blocks"}),
]
"""A record is left out of the Poisson samples; elsewhere it is replaced, as the number of records is public."""

SAME_ACCOUNT = {"gradients", "network", "norm", "mirrored", "ratio", "block", "denoise", "chunk", "augmentation"}
"""Options that no account reads, and with which no case sets one that it does."""
MLP_GAN = ("dp-gan", {"batch": 20, "network": "mlp"})
BUDGETED = [case for case in SAMPLED if case == MLP_GAN or not case[1].keys() & SAME_ACCOUNT]
"""One case per account, as solving the budget takes 15 seconds."""

LEFT_OUT: list[tuple[str, Options]] = [
    *((name, {}) for name in ("dp-merf", "dp-ntk", "dp-kernel")),
    *cases("sim-pe", {"sigma": 1.0}, {}, {"api": "drawings", "embedding": "pixels", "steps": 2}),
    *cases("gs-wgan", {"critics": 4, "steps": 12}, {}, {"warm": 2, "generator": "resnet"}),
    *cases("gs-wgan", {"critics": 4, "steps": 12, "generator": "resnet"}, {"clipping": "image"}, {"mode": "published"}),
    *cases("pate-gan", {"steps": 8, "teacher_steps": 5, "teacher_rate": 0.1},
           {"teachers": 4, "votes": "laplace"}, {"teachers": 40, "votes": "gaussian"}),
    *cases("datalens", {"steps": 8, "sigma": 30.0}, {"teachers": 4, "teacher_steps": 5, "rate": 0.05},
           {"teachers": 40, "teacher": "perceptron", "clip": 1e9, "rate": 0.1}),
    *cases("g-pate", {"steps": 6, "teacher_steps": 3, "teacher_rate": 0.1},
           {"teachers": 4, "network": "dcgan"}, {"teachers": 40, "network": "mlp"},
           {"teachers": 4, "threshold": 0.4, "scale": 1.0}, {"teachers": 30, "critic_width": 32}),
]  # fmt: skip
"""A record is left out of everything."""

ENSEMBLES: list[Case] = [
    ("class-moments", {"teachers": 13, "teacher_steps": 2}),
    ("class-moments", {"teachers": 13, "teacher_steps": 2, "second_moments": "per-class", "query_count": 40}),
    ("dpdfd", {"teachers": 6}, "printed"),
    ("dpdfd", {"teachers": 6, "bound": "clip"}, "printed"),
    ("dpdfd", {"teachers": 6, "teacher_nets": "shard-cnn"}),
    ("dpdfd", {"teachers": 6, "teacher_nets": "shard-cnn", "bound": "clip", "committee": 1}),
    ("dgd", {"teachers": 13}),
    ("dgd", {"teachers": 13, "aggregation": "laplace"}),
    ("pate", {"images": "strokes", "teachers": 13, "query_count": 20}),
    ("pate", {"teachers": 13, "query_count": 20}),
    ("pate-gnmax", {"teachers": 13, "query_count": 20, "responses": 8}),
    *[("fed-dpsd", {"clients": 3, **given}, "printed") for given in ({}, {"noise_by": "client"}, {"mode": "label"})],
    *[
        ("fed-dpsd", {"clients": 3, **given}, "working")
        for given in ({}, {"noise_by": "client", "committee": 1}, {"mode": "label", "committee": 1})
    ],
]
"""A record is left out of the part of its teacher; the number of records, and what a prior was made of, stay.

Of 13 teachers one has a single record, without which it stays untrained: its votes change.
"""

LABELS: list[tuple[str, Options]] = [
    *((name, {}) for name in ("rr", "rr-debiased", "lp-2st")),
    *cases("alibi", {}, {}, {"noise": "gaussian"}),
    *cases("cluster-rr", {}, {}, {"loss": "debiased", "features": "pixels"}),
    *cases("label-protocol", {}, {"batch": 20}, {"network": "student"}),
]
"""A record's label is replaced."""

FAR: Options = {"steps": 6, "multiplier": 3.0, "rate": 50.0, "loss_bound": 1.0}
"""Steps so long that a record's loss goes from the bound to nothing, or from nothing to the bound."""

SEARCHES: list[tuple[str, Options]] = [
    ("dp-blsgd", {"batch": 20, **FAR}),
    ("dp-blsgd", {"batch": 40, **FAR, "turn": 1.0, "gamma": 1.0}),
]
"""A record is removed from the Poisson samples; the ledger contains Gaussians inside of sampled events."""

WITHOUT_ACCOUNT = {
    *("fedavg", "feddf", "dense", "fedadi", "feddafl", "label-smoothing", "dpgen"),
    *("acgan", "wgan", "infogan", "raw-images"),
}
"""They train on private records and have no account."""


ELSEWHERE = {("dgd", "printed")}
"""Variants that have a separate test."""


UNCHANGED = "the record changes no input: the test cannot fail"


def ledger_of(entry: Entry) -> Ledger:
    ledger = Ledger()
    ledger.spend(entry.event, count=entry.count, why=entry.why)
    return ledger


def name_of(case: Case) -> str:
    return " ".join([case[0], *(f"{key}={value}" for key, value in case[1].items()), *case[2:]])


def test_every_plug_in_with_private_data_has_a_case() -> None:
    """And every variant with own code. One teacher's responses may all change with a record, as its ledger says."""
    listed: list[Case] = [*SAMPLED, *SEARCHES, *LEFT_OUT, *ENSEMBLES, *LABELS]
    here = {(case[0], registry.choose_variant("method", case[0], *case[2:] or [None])) for case in listed} | ELSEWHERE
    names = {name for name, _ in here} | WITHOUT_ACCOUNT
    for name, entry in registry.entries("method").items():
        for variant in (None,) if entry.working is None else (None, *registry.variants("method", name)):
            needs = configure(registry.load("method", name, variant), "smoke", {}, "plugin", variant).needs
            has_case = name in names if variant is None else (name, variant) in here
            assert has_case or not needs & {"private_data", "teacher_ensemble"}, f"{name}, {variant}: add it to a list"


def replaced() -> tuple[Teacher, Teacher]:
    """The records, and the same with one replaced."""
    return held(records()), held(with_another(records()))


@pytest.mark.thorough
@pytest.mark.parametrize("case", SAMPLED, ids=name_of)
def test_replaced_record_of_poisson_samples(case: tuple[str, Options]) -> None:
    trace, first = compare(method(*case), *replaced())
    assert any(step.difference for step in trace.protected()), UNCHANGED
    assert not violations(trace, first.ledger, twice=True)


GROUPED = [
    *cases("dp-sgd", {"batch": 5}, {}, {"max_per_group": 2, "gradients": "func"}, {"views": 2}),
    *cases("private-features", {}, {}, {"whitened": "maps", "max_per_group": 3}),
    *cases("private-features", {"whitening": "public", "mirrored": "yes"}),
]


@pytest.mark.thorough
@pytest.mark.parametrize("case", GROUPED, ids=name_of)
def test_replaced_group_of_records(case: tuple[str, Options]) -> None:
    """All records of group 7 of 12 are replaced."""
    groups, private = torch.arange(60) % 12, records()
    pair = [replace(held(given), groups=groups) for given in (private, with_another(private, groups == 7))]
    trace, first = compare(method(*case), pair[0], pair[1], budget=replace(OWN, unit=Unit.GROUP), missing=7)
    assert any(step.difference for step in trace.protected()), UNCHANGED
    assert not violations(trace, first.ledger, Unit.GROUP, twice=True)
    assert not first.ledger.entries(Unit.EXAMPLE)


@pytest.mark.thorough
@pytest.mark.parametrize("solve", ["sigma", "steps"])
@pytest.mark.parametrize("case", BUDGETED, ids=name_of)
def test_replaced_record_within_a_solved_budget(case: tuple[str, Options], solve: Solve) -> None:
    """The solved parameters are used: for a budget of 1.5 times the cost of the method's own settings."""
    if solve == "steps" and (case[0] == "class-moments" or case[1].get("steps") == 0):
        with pytest.raises(BenchError):
            method(*case).convert(held(records()), "datalens", Budget(9.0, solve=solve), context())
        return
    own = method(*case).convert(held(records()), "datalens", OWN, context()).ledger
    budget = Budget(1.5 * account(own, Unit.EXAMPLE, OWN.delta).epsilon, solve=solve, account="accounted")
    trace, first = compare(method(*case), *replaced(), budget=budget)
    assert any(step.difference for step in trace.protected()), UNCHANGED
    assert not violations(trace, first.ledger, twice=True)


@pytest.mark.thorough
@pytest.mark.parametrize("case", SEARCHES, ids=name_of)
def test_replaced_record_of_line_searches(case: tuple[str, Options]) -> None:
    """Gradients as the ledger has them; queries of the sparse vector technique by eps_s / 4 of their noise."""
    trace, first = compare(method(*case), *replaced())
    gradients, searches = first.ledger.entries(Unit.EXAMPLE)
    epsilon = first.solved["search_epsilon"]
    mu = dominating_mu(sampled_epsilon(epsilon, first.solved["sampling"]))
    assert [reach for _, reach, _ in sensitivities([searches])] == [pytest.approx(mu)]
    queries = [step for step in trace.protected() if step.kind == "laplace"]
    assert any(step.difference for step in queries) and all(step.sampled or not step.difference for step in queries)
    assert 0.9 * epsilon / 4 <= max(step.difference or 0.0 for step in queries) <= epsilon / 4
    trace.steps = [step for step in trace.steps if step.kind == "gaussian"]
    assert not violations(trace, ledger_of(gradients), twice=True)


@pytest.mark.thorough
@pytest.mark.parametrize("case", LEFT_OUT, ids=name_of)
def test_removed_record(case: tuple[str, Options]) -> None:
    trace, first = compare(method(*case), held(records()), held(without(records())), absent=True)
    rows = case[0] in ("pate-gan", "g-pate", "datalens")
    assert any(step.difference for step in trace.protected()), UNCHANGED
    assert not (rows and unmoved(trace, first.ledger)), UNCHANGED
    assert not violations(trace, first.ledger, rows=rows)


def with_teachers(plugin: Any) -> tuple[Teacher, Teacher, int]:
    """All teachers, the same without one record of one teacher, and the record's number."""
    shards = plugin.shards("shard-cnn", "toy")
    missing = only_record(shards, records())
    whole, reduced = teachers(shards, records()), teachers(shards, records(), missing=missing)
    assert differing(whole, reduced) == 1
    return held(records(), whole), held(records(), reduced), missing


@pytest.mark.thorough
@pytest.mark.parametrize("case", ENSEMBLES, ids=name_of)
def test_removed_record_of_one_of_many_teachers(case: Case) -> None:
    *pair, missing = with_teachers(method(*case))
    trace, first = compare(method(*case), *pair, missing=missing)
    assert unmoved(trace, first.ledger) <= {MOMENTS}, UNCHANGED
    assert not violations(trace, first.ledger, rows=True)


@pytest.mark.parametrize("aggregation", ["laplace", "gaussian"])
def test_removed_record_of_dgd_as_published(aggregation: str) -> None:
    """Its unprotected baseline has no guarantee: both runs have the same one, and the votes' part must hold."""
    plugin = method("dgd", {"teachers": "13", "queries": "20", "aggregation": aggregation}, "printed")
    *pair, missing = with_teachers(plugin)
    trace, first = compare(plugin, *pair, missing=missing)
    votes, baseline = first.ledger.entries(Unit.EXAMPLE)
    assert "baseline" in baseline.why and not unmoved(trace, ledger_of(votes)), UNCHANGED
    assert not violations(trace, ledger_of(votes), rows=True)


@pytest.mark.thorough
@pytest.mark.parametrize("case", LABELS, ids=name_of)
def test_replaced_label(case: tuple[str, Options]) -> None:
    trace, first = compare(method(*case), held(records()), held(with_another_label(records())))
    assert any(step.difference for step in trace.steps), UNCHANGED
    if case[0] == "alibi":
        # Its ledger has the two coordinates of a one-hot vector one by one.
        allowed = {"laplace": 2.0, "gaussian": 2**0.5}[trace.steps[0].kind]
        assert all((step.difference or 0) * step.scale == pytest.approx(allowed) for step in trace.steps)
    elif case[0] == "cluster-rr":
        counts, responses = trace.steps
        assert (counts.kind, responses.kind, responses.difference) == ("laplace", "response", 1)
        assert (counts.difference or 0) * counts.scale == pytest.approx(2), "two counts of a histogram"
    elif case[0] == "label-protocol":
        assert not violations(trace, first.ledger, Unit.LABEL)
        assert 0 < sum((step.difference or 0) > 0 for step in trace.steps) <= first.ledger.entries(Unit.LABEL)[0].count
    else:
        assert sum(step.difference or 0 for step in trace.steps) == 1


@pytest.mark.parametrize("pooled", [False, True])
def test_removed_record_of_class_moments(pooled: bool) -> None:
    trace, basis = Trace(MISSING), cosine_basis((1, 16, 16), 12)
    for pair in (records(), without(records())):
        noisy_moments.noisy_moments(*pair, CLASSES, basis, 1.0, Witness(trace, 1), 0.7, pooled)
        trace.start_second_run()
    (step,) = trace.steps
    assert step.difference is not None and 0.5 < step.difference <= 1 + 1e-9


@pytest.mark.parametrize(
    "arch", ["shard-cnn", "datalens", "scatter-linear", pytest.param("resnet10t", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("how", ["in turn", "stacked"])
def test_removed_record_changes_one_teacher(monkeypatch, arch: str, how: str) -> None:
    """With empty parts, BatchNorm, dropout and moved images; record 6 is the only one of its part, 0 is not."""
    monkeypatch.setattr(training.fit_ensemble, "__kwdefaults__", training.fit_ensemble.__kwdefaults__ | {"how": how})
    few = records(7)
    shards = Shards(6, (arch,), steps=2, batch=4, shift=1)
    assert empty_parts(shards, few) >= 2
    whole = teachers(shards, few)
    assert [differing(whole, teachers(shards, without(few, missing))) for missing in (6, 0)] == [1, 1]
