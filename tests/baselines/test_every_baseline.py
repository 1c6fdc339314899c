"""Behaviour that all baselines share: refused options and budgets, guarantees, unused inputs, and learning."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import baseline_runs as runs
import numpy as np
import pytest
import teacher_gans_made
import torch
from baseline_runs import FREE, NO_NOISE, accuracy, convert, epsilon_of, refused, renyi_epsilon, smoke, teacher_for
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from teacher_gans_made import teachers_after

from bench import nets, registry
from bench.api import Release, Teacher
from bench.config import options, parse
from bench.dp_training import clipped_sums
from bench.errors import BenchError, BudgetError
from bench.privacy import Budget, Unit
from bench.privacy.accountant import check_budget
from bench.privacy.audit import audit
from bench.privacy.information import of_ledger
from bench.testing import CLASSES, SHAPE, toy_private, toy_teacher

BASELINES = {
    name: registry.load("method", name)
    for name in registry.entries("method")
    if registry.load("method", name).__module__.startswith("baselines.")
}
WITHOUT_GUARANTEE = [name for name, cls in BASELINES.items() if cls.unit == "none" and name != "class-moments"]
PRIVATE = [name for name in BASELINES if name not in (*WITHOUT_GUARANTEE, "dpgen")]
FEDERATED = ["dense", "fedadi", "fedavg", "feddafl", "feddf"]
LABEL_PRIVATE = [name for name, cls in BASELINES.items() if cls.unit == "label"]
EMBEDDINGS = ["dp-kernel", "dp-merf", "dp-ntk"]
TEACHER_GANS = ["datalens", "g-pate", "pate-gan"]

DP_SGD = "std=0 batch=-1 steps=-1 clip=0 rate=-1 momentum=1"
GENERATOR = "passes=0 samples=0 student_batch=0"
DIFFUSION = (
    "width=0 width=6 resolutions=0 blocks=0 batch=0 copies=0 denoisings=0 multiplier=-1 multiplier=inf average=1 "
    "unlabelled=-0.1 unlabelled=1.1 rate=0 clip=0 clip=1e-25 network=vit side=quarter"
)
FEDERATION = (
    "clients=0 rounds=0 local_epochs=0 local_limit=-1 local_batch=1 alpha=0 local_lr=0 "
    "local_momentum=1 partition=even weighting=median"
)
LABELS = "label_epsilon=0 batch=1 epochs=0 rate=0 warmup=1 momentum=0 drop=-1 weight_decay=-1"
REFUSED = {
    "acgan": "rate=0 fooling=bold",
    "alibi": f"{LABELS} uniform=1.5",
    "class-moments": "teachers=-1 query_count=0 teacher_lr=0 teacher_steps=0 prior_logit=0 moments_share=0 "
    "moments_share=1 moments_share=nan steps=0 images=0",
    "cluster-rr": "clusters=0 members=0 components=0 share=0 share=1 tau=0.6",
    "datalens": f"{GENERATOR} teachers=-1 steps=0 sigma=-1 rate=0 aggregate=median loss=hinge kept=0 "
    "kept=1.5 beta=-0.1 sigma=nan width=3 gamma=0 clip=0 teacher=tree generator=vae",
    "dense": f"{FEDERATION} epochs=0 synthesis=1 batch=1 lr=0 temperature=0 bn=-1",
    "dp-blsgd": "shrink=1 shrink=0 loss_bound=0 search=0 trials=0 momentum=0.9 most_gradients=0 turn=2",
    "dp-feta": f"{GENERATOR} {DIFFUSION} steps=-1 rounds=0 central_records=0 central_noise=-1 central_noise=inf "
    "central_clip=-0.1 central_clip=1.1 warm=-1 warm_batch=0 warm_rate=0",
    "dp-gan": f"{GENERATOR} steps=0 batch=0 critic_steps=0 clip=0 multiplier=-1 rate=0 rate_generator=0 "
    "beta1=1 latent=0 width=3 critic_width=0 average=1",
    "dp-kernel": f"{GENERATOR} features=3 features=0 sigma=-1 batch=1 steps=0 rate=0",
    "dp-merf": f"{GENERATOR} features=3 features=0 length=-1 sigma=-1 sigma=inf batch=1 epochs=0 steps=0 "
    "latent=0 hidden=0 rate=0 decay=0",
    "dp-ntk": f"{GENERATOR} width=-1 sigma=-1 batch=1 epochs=0 steps=0 rate=0 decay=0",
    "dp-sgd": DP_SGD,
    "dp-sinkhorn": f"{GENERATOR} batch=1 steps=0 clip=0 clip=1e-25 sigma=-1 debias=1.5 linear=nan "
    "regularisation=0 clipping=row width=0",
    "dp-teacher": "std=0 batch=0 clip=-1 rounds=0",
    "dp-wrn": "std=0 batch=0 steps=-1 clip=0 rate=0 momentum=1 views=0 chunk=257 average=1 augmentation=blur",
    "dpdm": f"{GENERATOR} {DIFFUSION} steps=0",
    "dpgen": f"{GENERATOR} candidates=1 queries=0 queries=300 response=-1 buffer=0 levels=0 width=1 "
    "most=0.001 least=0 average=1 rate=0 step=0 each=0",
    "fedadi": f"{FEDERATION} searches=0 synthesis=1 batch=1 lr=0 temperature=0 adi=-1",
    "fedavg": FEDERATION,
    "feddafl": f"{FEDERATION} steps=0 batch=1 lr=0 student_steps=0 balance=-1",
    "feddf": f"{FEDERATION} unlabelled=0 lr=0 clip=0 batch=1 steps=-1",
    "g-pate": f"{GENERATOR} teachers=-1 steps=0 teacher_steps=0 batch=0 projected=0 bins=1 clip=0 "
    "threshold=-0.1 threshold_noise=0 scale=-1 scale=nan responses=0 responses=1.1 "
    "target_estimator=mode loss=hinge network=vit start=warm rate=0 teacher_rate=0 "
    "latent=0 width=7 critic_width=5 responses=0.5,threshold=0 "
    "diagnostic=true,target_estimator=mean",
    "geddp": "block=0 codes=0 quant=0 clip=0 batch=-1 multiplier=-1",
    "gep": "bases=0 anchors=0 every=0 residual_clip=1e-25 parts=0",
    "gm-dp": DP_SGD,
    "gs-wgan": f"{GENERATOR} critics=0 steps=0 batch=0 critic_steps=0 latent=0 critic_width=0 width=3 "
    "warm=-1 sigma=-0.1 penalty=-1 clip=1e-25 rate=0 average=1",
    "infogan": "categories=1 information=-1",
    "label-protocol": "epochs=0 batch=-1 clip=0 rate=0 momentum=1",
    "label-smoothing": "smoothing=1 smoothing=-1 batch=1 warmup=1.5",
    "lp-2st": f"{LABELS} share=1 temperature=-0.1 mixup=-0.5",
    "non-private-kd": "rounds=0 rate_student=0",
    "p3gm": f"{GENERATOR} latent=0 components=0 iterations=0 steps=0 batch=0 scale=-1 warm=-1 share=1 "
    "noise_mean=-1 noise_steps=inf clip=0 clip=1e-25 rate=0",
    "pate": "query_count=0 scale=-1 sure=1.1 batch=1 teachers=-1 target_estimator=posterior,diagnostic=true",
    "pate-gan": f"{GENERATOR} teachers=0 steps=0 scale=-1 rate=0 votes=cauchy target_estimator=mean "
    "loss=hinge explore=-0.1 scale=nan width=0",
    "pate-gnmax": "responses=17,query_count=16 threshold_noise=0 threshold=-0.1",
    "patch-features": "steps=-1 patch_share=1 whitening=private features=wavelets",
    "private-drawings": f"{GENERATOR} drawn=0 rounds=0 choose=0.5 evolve=-0.1 evolve=1 class_weight=-1 confidence=1 "
    "confidence=-0.1 confidence=nan steps=-1 multiplier=-1 typical=maybe classifier=dp-sgd",
    "private-features": "share=1 share=0 kappa=0 steps=-1 clip=0 momentum=1",
    "psg": "passes=-1 momentum=1 images_per_class=3 images_per_class=0 batches=0 outer=-1 replays=-1 std=0 "
    "clip=0 rate=0 rate_network=0 width=0",
    "raw-images": "query_count=0 scale=-1",
    "rgp": "rank=0 warm_up=0 power_iterations=0 head_scale=0",
    "rr": f"{LABELS} mixup=-1",
    "rr-debiased": LABELS,
    "sim-pe": f"{GENERATOR} population=0 steps=0 variations=-1 sigma=-1 sigma=inf threshold=-1 threshold=nan "
    "first_degree=1.1 last_degree=-0.1 components=0 characters= api=network embedding=inception",
    "spectral-dp": "ratio=-0.1 ratio=1.1 block=0 clip=0",
    "topagg": "kept=0 kept=1.1 beta=-0.1 aggregate=median clip=0 kept=nan rate=-1 momentum=1",
    "ts-adp": f"{DP_SGD} scale=0 temperature=-1",
    "wgan": "clip=0 critic_steps=0",
    "zcdp": f"{DP_SGD} k=-0.1 k=1.1,schedule=step period=-1 epochs=-1 final=0 final=1.5",
}
"""Values that each baseline refuses, also in combination."""


@pytest.mark.parametrize(
    ("name", "values"), [(name, values) for name, given in REFUSED.items() for values in given.split()]
)
def test_option_out_of_range_is_refused(name: str, values: str) -> None:
    known = {option.name: option for option in options(BASELINES[name])}
    pairs = [value.split("=") for value in values.split(",")]
    with pytest.raises((ValueError, BenchError), match=pairs[0][0]):
        BASELINES[name](**{option: _typed(known[option], text) for option, text in pairs})


def _typed(option: Any, text: str) -> Any:
    return float(text) if text in ("nan", "inf") else parse(option, text, option.name)


@pytest.mark.parametrize(
    ("name", "given", "budget"),
    [
        *((name, {}, Budget(unit=Unit.CLIENT)) for name in BASELINES if name not in FEDERATED),
        *((name, {}, Budget(unit=Unit.LABEL)) for name in BASELINES if name not in LABEL_PRIVATE),
        *((name, {}, Budget(unit=Unit.QUERY)) for name in PRIVATE if not name.startswith("pate-gn") and name != "pate"),
        *((name, {}, Budget(3.0, account="accounted")) for name in (*WITHOUT_GUARANTEE, *LABEL_PRIVATE, "dpgen")),
        *((name, {}, Budget(100.0, account="accounted")) for name in ("acgan", "infogan", "raw-images", "wgan")),
        *((name, {}, Budget(1.0, solve="steps")) for name in (*LABEL_PRIVATE, "class-moments", *EMBEDDINGS, "dpgen")),
        *((name, {}, Budget(0.5, solve="none")) for name in LABEL_PRIVATE if name != "cluster-rr"),
        *((name, {}, Budget(0.001, solve="steps")) for name in ("pate", "pate-gnmax")),
        *((name, {"images": "private"}, Budget(3.0, account="accounted")) for name in ("pate", "pate-gnmax")),
        ("pate", {}, Budget(unit=Unit.QUERY, account="accounted", solve="steps")),
        ("pate-gnmax", {}, Budget(unit=Unit.QUERY, account="accounted", solve="steps")),
        ("class-moments", {"teachers": 3}, Budget(unit=Unit.QUERY, solve="steps")),
        ("class-moments", {"teachers": 3}, Budget(unit=Unit.CLIENT)),
        ("class-moments", {"teachers": 3}, Budget(0.001, solve="steps")),
        ("cluster-rr", {}, Budget(30.0)),
        ("dpgen", {}, Budget(40.0)),
    ],
)
def test_budget_that_cannot_be_met_is_refused(name: str, given: dict[str, Any], budget: Budget) -> None:
    with refused():
        smoke(name, **given).check(budget, "toy", CLASSES)


@pytest.mark.parametrize("name", WITHOUT_GUARANTEE)
def test_budget_without_guarantee_is_accepted(name: str) -> None:
    method = smoke(name)
    with pytest.raises(BudgetError):
        method.check(Budget(3.0, account="accounted"), "mnist", 10)
    for fine in (Budget(3.0), Budget(math.inf, account="accounted"), Budget(None, solve="none", account="accounted")):
        method.check(fine, "mnist", 10)


@pytest.mark.parametrize(
    "name",
    ["dense", "dp-blsgd", "dp-sgd", "dp-teacher", "gep", "gm-dp", "label-protocol", "psg", "rgp", "ts-adp", "zcdp",
     "dp-wrn"],
)  # fmt: skip
def test_unknown_network_is_refused_before_training(name: str) -> None:
    option = "client_nets" if name == "dense" else "network"
    with refused("no-such-net"):
        smoke(name, **{option: "no-such-net"}).check(NO_NOISE, "mnist", 10)


@cache
def released(name: str, budget: Budget, teacher: Teacher | None = None) -> Release:
    """A smoke run at a budget, by default with a teacher that must not be queried if it is not needed."""
    return convert(name, budget, teacher, **({"threshold": 0.1} if name == "pate-gnmax" else {}))


@pytest.mark.parametrize("name", PRIVATE)
def test_infinite_budget_adds_no_noise(name: str) -> None:
    release = released(name, Budget(math.inf, unit=Unit.LABEL) if name in LABEL_PRIVATE else NO_NOISE)
    unit = Unit.LABEL if name in LABEL_PRIVATE else Unit.EXAMPLE
    assert math.isinf(epsilon_of(release.ledger, unit))
    assert any(entry.event == NonPrivateDpEvent() for entry in release.ledger.entries(unit))
    assert release.claim is None or math.isinf(release.claim.epsilon)
    noises = ("sigma", "scale", "multiplier", "moments_multiplier", "gradients")
    assert all(release.solved[noise] == 0 for noise in noises if noise in release.solved)


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("name", PRIVATE)
def test_finite_budget_is_met_and_nearly_spent(name: str, against: Any) -> None:
    unit = Unit.LABEL if name in LABEL_PRIVATE else Unit.EXAMPLE
    budget = Budget(3.0, account=against, unit=unit)
    release = released(name, budget)
    check_budget(release.ledger, release.claim, budget)
    accounted = epsilon_of(release.ledger, unit)
    claimed = accounted if release.claim is None else release.claim.epsilon
    assert 0.94 * 3.0 < (claimed if against == "claimed" else accounted) <= 3.0 * (1 + 1e-9)
    assert release.claim is None or release.claim.unit == unit


@pytest.mark.parametrize(
    "name",
    [*EMBEDDINGS, "dp-blsgd", "dp-feta", "dp-gan", "dp-sgd", "dp-sinkhorn", "dp-teacher", "dp-wrn", "dpdm", "geddp",
     "gm-dp", "private-drawings", "private-features", "psg", "rgp", "scatter-cnn", "sim-pe", "spectral-dp", "topagg",
     "ts-adp"],
)  # fmt: skip
def test_undisputed_claim_equals_the_account(name: str) -> None:
    release = released(name, Budget(3.0))
    assert release.claim is not None and not release.claim.disputed
    assert release.claim.epsilon == epsilon_of(release.ledger)
    assert getattr(BASELINES[name], "source", "") in release.claim.source


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["geddp", "rgp", "spectral-dp", "topagg"])
def test_coded_gradient_is_a_sampled_gaussian(name: str) -> None:
    """T Poisson-sampled Gaussians, whose epsilon is below the Renyi accountant's and not far from it."""
    steps = 20 if name == "geddp" else 50
    release = convert(name, FREE, runs.forbidden_teacher(64), multiplier=2.5, batch=16, steps=steps)
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    event = PoissonSampledDpEvent(16 / 64, GaussianDpEvent(2.5))
    assert entry.count == steps and entry.event == event
    bound = renyi_epsilon(event, steps)
    assert 0.6 * bound < epsilon_of(release.ledger) <= bound


@pytest.mark.parametrize("name", WITHOUT_GUARANTEE)
@pytest.mark.parametrize("budget", [Budget(10.0), NO_NOISE, FREE], ids=["finite", "infinite", "none"])
def test_release_without_guarantee_has_no_claim(name: str, budget: Budget) -> None:
    release = released(name, budget)
    assert release.claim is None
    unprotected = [entry for entry in release.ledger.entries() if entry.event == NonPrivateDpEvent()]
    units = {Unit.EXAMPLE, *([Unit.CLIENT] if name in FEDERATED else [])}
    units |= {Unit.QUERY} if name in ("no-defence", "non-private-kd") else set()
    for unit in units:
        assert math.isinf(epsilon_of(release.ledger, unit))
    assert {entry.unit for entry in unprotected} >= units and all(entry.why for entry in unprotected)
    assert math.isinf(of_ledger(release.ledger, CLASSES).nats or 0)


@pytest.mark.parametrize("name", [name for name, cls in BASELINES.items() if "teacher" not in cls().needs])
def test_unneeded_teacher_is_not_queried(name: str) -> None:
    """`released` has a teacher that must not be queried; a real one gives the same student."""
    budget = Budget(3.0, unit=Unit.LABEL if name in LABEL_PRIVATE else Unit.EXAMPLE)
    real = teacher_for(smoke(name), model=toy_teacher().model)
    images = torch.rand(3, *SHAPE)
    assert torch.equal(released(name, budget).student(images), released(name, budget, real).student(images))


INPUTS = {"private_data": "private", "public_data": "public", "teacher_ensemble": "ensemble"}
"""Needs of a method, and the teacher's attribute that meets each."""
NEEDS = [(name, need, {}) for name, cls in BASELINES.items() for need in INPUTS if need in cls().needs]
NEEDS += [("pate", "private_data", {"images": "private"}), ("class-moments", "teacher_ensemble", {"teachers": 3})]


@pytest.mark.parametrize(("name", "need", "given"), NEEDS)
def test_missing_input_is_an_error(name: str, need: str, given: dict[str, Any]) -> None:
    teacher = teacher_for(smoke(name, **given), **{INPUTS[need]: None})
    with pytest.raises(RuntimeError, match=need):
        convert(name, NO_NOISE, teacher, **given)


@pytest.mark.parametrize("name", TEACHER_GANS)
def test_more_teachers_than_records_are_refused(name: str) -> None:
    with pytest.raises(BenchError, match="9 teachers for 8"):
        convert(name, Budget(1.0), runs.forbidden_teacher(8), teachers=9)


@pytest.mark.parametrize("name", ["datalens", "g-pate"])
def test_default_number_of_teachers_depends_on_the_data_set(name: str) -> None:
    method = BASELINES[name](teachers=0)
    with pytest.raises(BenchError, match="48 teachers for 47"):
        method.check_data(SHAPE, 47, "digits")
    method.check_data(SHAPE, 48, "digits")
    with pytest.raises(BenchError, match="1000 teachers for 999"):
        method.check_data(SHAPE, 999, "mnist")


@pytest.mark.parametrize("name", FEDERATED)
def test_federated_student_with_batch_norm_is_rebuilt(name: str) -> None:
    release = convert(name, NO_NOISE, student="evaluator-cnn", rounds=2)
    assert release.arch == "evaluator-cnn" and not release.student.training
    nets.build(release.arch, SHAPE, CLASSES).load_state_dict(release.student.state_dict())
    assert torch.equal(release.student.mean, torch.full((1, 1, 1, 1), 0.5)), "public constants are not trained"
    assert (release.synthetic is None) == (name == "fedavg")
    if release.synthetic is not None:
        assert 0 <= float(release.synthetic.min()) <= float(release.synthetic.max()) <= 1


BY_STEPS: dict[str, Any] = {"steps": 25, "batch": 40, "clip": 1.0, "rate": 0.5, "momentum": 0.5}
GEP: dict[str, Any] = BY_STEPS | {"residual_clip": 1.0}
B_GEP: dict[str, Any] = BY_STEPS | {"residual": False, "bases": 60, "anchors": 64}
RGP: dict[str, Any] = BY_STEPS | {"steps": 40, "rate": 2.0, "head_scale": 1, "rank": 4, "decay": True}


@pytest.mark.parametrize(
    ("name", "given", "least"),
    [
        *(pytest.param(name, BY_STEPS, 0.95, marks=pytest.mark.thorough) for name in ("dp-sgd", "ts-adp", "gm-dp")),
        pytest.param("zcdp", BY_STEPS, 0.95, marks=pytest.mark.thorough),
        pytest.param("gep", GEP, 0.95, marks=pytest.mark.thorough),
        pytest.param("gep", B_GEP, 0.95, marks=pytest.mark.thorough),
        pytest.param("rgp", RGP | {"carriers": "both"}, 0.9, marks=pytest.mark.thorough),
        pytest.param("rgp", RGP | {"carriers": "left"}, 0.9, marks=pytest.mark.thorough),
        pytest.param("spectral-dp", BY_STEPS, 0.9, marks=pytest.mark.thorough),
        pytest.param("dp-blsgd", {"steps": 25, "batch": 40, "rate": 2.0}, 0.9, marks=pytest.mark.thorough),
        pytest.param("geddp", BY_STEPS | {"rate": 0.3}, 0.9, marks=pytest.mark.slow),
        pytest.param("topagg", {"steps": 25, "batch": 40, "rate": 0.003}, 0.9, marks=pytest.mark.slow),
        pytest.param(
            "topagg", {"steps": 25, "batch": 40, "rate": 0.03, "aggregate": "mean"}, 0.9, marks=pytest.mark.slow
        ),
    ],
)
def test_private_training_learns_only_without_much_noise(name: str, given: dict[str, Any], least: float) -> None:
    teacher = teacher_for(smoke(name, **given))
    assert accuracy(convert(name, NO_NOISE, teacher, **given)) > least
    assert accuracy(convert(name, FREE, teacher, multiplier=300, **given)) < 0.7


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("dense", {"epochs": 4, "generator_steps": 20, "synthesis": 32, "start": "average", "width": 16}),
        ("fedadi", {"iterations": 20, "student_steps": 10, "synthesis": 32}),
        ("feddafl", {"steps": 20, "width": 8}),
    ],
)
def test_federated_student_learns_from_trained_clients(name: str, given: dict[str, Any]) -> None:
    clients = {"local_epochs": 10, "alpha": 100, "local_lr": 0.05}
    release = convert(name, NO_NOISE, runs.forbidden_teacher(200), "shard-cnn", variant=None, **clients, **given)
    assert accuracy(release, 200, seed=9) >= 0.8


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEACHER_GANS)
def test_audit_refutes_only_a_third_of_the_account(name: str) -> None:
    given: dict[str, Any] = {"steps": 1, "batch": 1}
    given |= {"projected": 1, "network": "mlp"} if name == "g-pate" else {}
    given |= {"teachers": 6, "kept": 0.01} if name == "datalens" else {}
    game = smoke(name, **given).game(Budget(4.0), "toy", CLASSES)
    assert game.accounted <= game.claimed <= 4.0
    assert audit(game, 60_000).verdict == "not refuted"
    assert audit(replace(game, claimed=game.accounted / 3), 60_000).verdict == "refuted"


@pytest.mark.parametrize(("name", "count"), [("rr", 1), ("lp-2st", 3)])
def test_too_few_records_are_refused(name: str, count: int) -> None:
    with refused():
        convert(name, Budget(2.0), runs.forbidden_teacher(count))


def test_every_record_is_used_by_dp_sgd() -> None:
    images = torch.rand(3, *SHAPE)
    for name in ("dp-sgd", "ts-adp", "gm-dp", "zcdp"):
        one, other = (convert(name, FREE, runs.forbidden_teacher(n)).student(images) for n in (64, 65))
        assert not torch.equal(one, other)


@pytest.mark.parametrize("case", teacher_gans_made.OPTIONS)
@pytest.mark.parametrize("change", ["pixels", "label", "removed"])
def test_record_changes_only_the_teacher_of_its_part(change: str, case: str) -> None:
    images, labels = toy_private()
    parts = [np.arange(30), np.arange(30, 50), np.arange(50, 80)]
    other, others, shorter = images.clone(), labels.clone(), list(parts)
    if change == "pixels":
        other[31] = 255 - other[31]
    elif change == "label":
        others[31] = (others[31] + 1) % CLASSES
    else:
        shorter[1] = np.delete(parts[1], 1)
    one = teachers_after(case, 6, parts, images, labels, batch="16")
    two = teachers_after(case, 6, shorter, other, others, batch="16")
    assert [torch.equal(a, b) for a, b in zip(one, two, strict=True)] == [True, False, True]


@pytest.mark.parametrize("case", teacher_gans_made.OPTIONS)
def test_empty_part_uses_only_generated_images(case: str) -> None:
    images, labels = toy_private()
    parts = [np.arange(80), np.arange(0), np.arange(0)]
    one, two = (teachers_after(case, 1, parts, seen, labels) for seen in (images, 255 - images))
    assert not torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert one[1].isfinite().all()


@pytest.mark.parametrize("name", ["geddp", "topagg"])
def test_discontinuous_codes_are_computed_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding of a gradient depends on its position in a batch and could change a code or a vote."""
    calls = runs.record_calls(monkeypatch, clipped_sums, "add_clipped")
    convert(name, steps=2, batch=16)
    sizes = [len(row) for call in calls for row in call.arguments[1].values()]
    assert len(sizes) > 10 and set(sizes) == {1}
