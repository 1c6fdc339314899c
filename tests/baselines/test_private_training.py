"""dp-sgd, ts-adp, gm-dp and zcdp: clipping, noise by step, claims, and the release."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import FREE, NO_NOISE, forbidden_teacher, is_normal, record_calls, refused, rng
from privately_trained import empty_batches, moved, network, split_like
from torch import Tensor

from baselines.dp_sgd import DpSgd
from baselines.gm_dp import GmDp
from baselines.ts_adp import TsAdp, fold, temper
from baselines.zcdp import Zcdp
from bench import nets
from bench.api import Release, Teacher
from bench.dp_training import clipping, dp_sgd, private_classifier
from bench.dp_training.accounting import DpSgdParameters
from bench.nets.classifiers.dp_sgd_nets import TemperedSigmoid
from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE

METHODS: dict[str, Any] = {"dp-sgd": DpSgd, "ts-adp": TsAdp, "gm-dp": GmDp, "zcdp": Zcdp}
every_method = pytest.mark.parametrize("name", METHODS)


def toy(n: int = 64) -> Teacher:
    return forbidden_teacher(n)


def convert(
    name: str, budget: Budget = FREE, teacher: Teacher | None = None, student: str = "datalens", **given: Any
) -> Release:
    return baseline_runs.convert(METHODS[name], budget, teacher or toy(), student, **given)


def answers(release: Release) -> Tensor:
    with torch.no_grad():
        return release.student(torch.rand(4, *SHAPE, generator=rng()))


@every_method
def test_network_depends_on_image_channels(name: str) -> None:
    expected = "tanh" if name == "ts-adp" else "relu"
    for shape, kind in (((3, 32, 32), "vgg"), ((1, 28, 28), "cnn")):
        assert METHODS[name]()._name(shape, "x") == f"{expected}-{kind}"
    release = convert(name)
    assert release.arch == f"{expected}-cnn" and release.generator is None
    assert float(release.student.mean) == 0 and float(release.student.std) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dp-sgd", "gm-dp", "zcdp"])
def test_student_network_can_be_trained(name: str) -> None:
    assert convert(name, network="student").arch == "datalens"
    assert convert(name, network="student", student="tanh-cnn").arch == "tanh-cnn"


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("dp-sgd", {"network": "resnet18"}, "resnet18.*tanh-cnn"),
        ("zcdp", {"network": "student", "student": "resnet18"}, "resnet18"),
        ("ts-adp", {"network": "student"}, "datalens.*tanh-cnn"),
        ("ts-adp", {"network": "tanh-vgg", "offset": "0"}, r"--method\.offset 0 .*tanh-vgg"),
        ("zcdp", {"epochs": "0", "steps": "900"}, r"exponential.*--method\.epochs"),
    ],
)
def test_untrainable_network_or_schedule_is_refused(name: str, given: dict[str, str], named: str) -> None:
    with refused(named):
        convert(name, **given)


@pytest.mark.parametrize("given", [{"network": "relu-cnn"}, {"network": "tanh-vgg", "offset": 0.0}])
def test_ts_adp_refuses_networks_before_training(given: dict[str, Any]) -> None:
    with refused("tanh-vgg"):
        TsAdp(**given).check(Budget(1.0), "mnist", 10)


@pytest.mark.parametrize("method", [DpSgd, TsAdp, GmDp])
@pytest.mark.parametrize(
    ("dataset", "records", "recipe", "sigma", "spent"),
    [
        ("mnist", 60_000, (512, 4680, 0.5), 1.068, 3.0),
        ("fmnist", 60_000, (2048, 1160, 4.0), 1.801, 3.0),
        ("cifar10", 50_000, (1024, 1440, 1.0), 1.315, 3.0),
    ],
)
def test_published_settings_have_the_published_epsilon(
    method: Any, dataset: str, records: int, recipe: tuple[int, int, float], sigma: float, spent: float
) -> None:
    settings = method().settings(dataset)
    assert (settings.batch, settings.steps, settings.rate) == recipe
    assert (settings.clip, settings.momentum, settings.decay, settings.views) == (0.1, 0.9, False, 1)
    if method is DpSgd:
        plan = DpSgdParameters(settings.batch / records, settings.steps, sigma)
        assert plan.claim(1e-5, "x").epsilon == pytest.approx(spent, rel=5e-3)


def test_default_settings_are_mnists_and_options_win() -> None:
    assert DpSgd().settings("digits") == DpSgd().settings("mnist")
    given = DpSgd(batch=7, steps=8, rate=0.25).settings("cifar10")
    assert (given.batch, given.steps, given.rate) == (7, 8, 0.25)
    plan = DpSgdParameters(512 / 60_000, 4680, DpSgd().multiplier)
    assert plan.claim(1e-5, "x").epsilon == pytest.approx(3.0, rel=0.01), "the default noise"


@every_method
def test_one_record_moves_weights_by_the_clipping_norm(name: str) -> None:
    """One record, sampled for certain, one step of rate 1, no noise: the whole by C, or each of 4 layers by C/2.

    C is 127/128 of the setting, the rest of which rounding errors are left.
    """
    given = {"steps": "1", "batch": "1", "rate": "1.0", "momentum": "0", "clip": "0.01"}
    parts = list(split_like(moved(convert(name, NO_NOISE, toy(1), **given)), network()).values())
    assert float(torch.cat(parts).norm()) == pytest.approx(0.01 * 127 / 128, rel=1e-3)
    layers = [float(torch.cat(pair).norm()) for pair in zip(parts[::2], parts[1::2], strict=True)]
    halves = [layer == pytest.approx(0.005 * 127 / 128, rel=1e-3) for layer in layers]
    assert len(layers) == 4 and (all(halves) if name == "gm-dp" else not all(halves))


def noise_alone(monkeypatch: pytest.MonkeyPatch, name: str, **given: str) -> list[Tensor]:
    """The movement of each layer's weights when every batch is empty: steps of rate 1, B = 8, C = 0.6, z = 1.5."""
    empty_batches(monkeypatch)
    fixed = {"batch": "8", "rate": "1.0", "momentum": "0", "clip": "0.6", "multiplier": "1.5"}
    return list(split_like(moved(convert(name, **fixed, **given)), network()).values())[::2]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dp-sgd", "ts-adp", "gm-dp"])
def test_layer_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """N(0, T (z C / B)^2) in all of them: for gm-dp z_g C_g = z sqrt(4) C / sqrt(4); a forgotten sqrt(4) is 0.5."""
    for layer in noise_alone(monkeypatch, name, steps="2")[1:3]:
        assert is_normal(layer, math.sqrt(2) * 1.5 * 0.6 / 8)


def test_step_noise_follows_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule step, k = 1/2 each pass, T = 3 in 3 passes: 1, 1/2, 1/4 of sigma_0; no noise is that of another pass."""
    drawn: list[tuple[float, Tensor]] = []
    add_noise = clipping.add_noise

    def spy(total: dict[str, Tensor], groups: Any, z: float, rng: torch.Generator) -> None:
        before = {name: t.clone() for name, t in total.items()}
        add_noise(total, groups, z, rng)
        drawn.append((z, torch.cat([(total[name] - before[name]).flatten() for name in total])))

    monkeypatch.setattr(clipping, "add_noise", spy)
    noise_alone(monkeypatch, "zcdp", steps="3", schedule="step", k="0.5", period="1", epochs="3")
    assert [z for z, _ in drawn] == [1.5, 0.75, 0.375]
    assert all(is_normal(noise, z * 0.6) for z, noise in drawn)


@every_method
def test_added_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    noises = record_calls(monkeypatch, clipping, "add_noise")
    samples = record_calls(monkeypatch, dp_sgd, "poisson_sample")
    release = convert(name, multiplier="2.5", batch="16", steps="5")
    drawn, sampled = [call.arguments[2] for call in noises], [call.arguments[1] for call in samples]
    entries = release.ledger.entries()
    written = [e.event.event.noise_multiplier for e in entries for _ in range(e.count)]
    assert sorted(drawn) == sorted(written) and len(drawn) == 5
    assert {e.event.sampling_probability for e in entries} == set(sampled) == {16 / 64}
    assert {e.unit for e in entries} == {Unit.EXAMPLE}
    assert max(drawn) == release.solved["sigma"] == 2.5
    assert len(set(drawn)) == (2 if name == "zcdp" else 1)


def test_gm_dp_has_the_ledger_of_dp_sgd() -> None:
    """One Poisson-sampled Gaussian a step, not one a layer."""
    flat_one, by_layer = (convert(name, multiplier="2.0", batch="16").ledger.to_json() for name in ("dp-sgd", "gm-dp"))
    assert flat_one == by_layer and len(by_layer) == 1 and by_layer[0]["count"] == 3


@pytest.mark.parametrize(
    ("arch", "scale", "temperature", "offset"),
    [
        ("tanh-cnn", 3.0, 1.0, 0.0),
        ("tanh-cnn", 1.0, 3.0, 0.5),
        ("tanh-cnn", 2.0, 2.0, 1.0),
        ("tanh-vgg", 3.0, 1.0, 1.5),
    ],
)
def test_folding_keeps_outputs_and_makes_tanh(arch: str, scale: float, temperature: float, offset: float) -> None:
    model, images = network(arch).eval(), torch.rand(6, *SHAPE)
    with torch.no_grad():
        plain = model(images)
        temper(model, scale, temperature, offset)
        before = model(images)
        fold(model, scale, temperature, offset)
        after = model(images)
        rebuilt = nets.build(arch, SHAPE, CLASSES)
        rebuilt.load_state_dict(model.state_dict())
        assert torch.equal(rebuilt.eval()(images), after)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)
    assert torch.allclose(plain, before, atol=1e-3) == ((scale, temperature, offset) == (2.0, 2.0, 1.0))
    constants = [(m.scale, m.temperature, m.offset) for m in model.modules() if isinstance(m, TemperedSigmoid)]
    assert constants and set(constants) == {(2.0, 2.0, 1.0)}


def test_ts_adp_releases_the_trained_function(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    images = torch.rand(4, *SHAPE, generator=rng())
    train = private_classifier.train

    def spy(network: nets.Classifier, *rest: Any) -> None:
        train(network, *rest)
        seen.extend({(m.scale, m.temperature, m.offset) for m in network.modules() if isinstance(m, TemperedSigmoid)})
        with torch.no_grad():
            seen.append(network(images))

    monkeypatch.setattr(private_classifier, "train", spy)
    release = convert("ts-adp", scale="3", temperature="1", offset="0.5", clip="1.0")
    constants, trained = seen
    assert constants == (3.0, 1.0, 0.5)
    torch.testing.assert_close(answers(release), trained, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({"multiplier": "2.0", "decay": "true"}, 8.0),
        ({"multiplier": "10.24", "decay": "true"}, 2.0),
        ({"multiplier": "10.24", "batch": "512", "decay": "true"}, 1.0),
        ({"multiplier": "10.24", "batch": "4096", "decay": "true"}, 4.0),
        ({"multiplier": "10.24"}, 8.0),
        ({"multiplier": "0", "decay": "true"}, 8.0),
    ],
)
def test_falling_rate_is_limited_by_noise(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], rate: float) -> None:
    """0.02 B / sigma, by hand, and with 2048 records if B is larger; a constant rate is the given one."""
    monkeypatch.setattr(private_classifier, "train", lambda *given: None)
    calls = record_calls(monkeypatch, private_classifier, "train")
    convert("dp-sgd", teacher=toy(2048), **{"batch": "1024", "rate": "8", **given})
    assert calls[0].arguments[3].rate == pytest.approx(rate)


def test_ts_adp_differs_from_dp_sgd_only_in_activation() -> None:
    """On the same network with the same seed they are one algorithm."""
    assert torch.equal(answers(convert("ts-adp")), answers(convert("dp-sgd", network="tanh-cnn")))


@every_method
@pytest.mark.slow
def test_noiseless_training_learns_digits(tmp_path: Path, name: str) -> None:
    settings = Settings(method=name, attack=None, out=tmp_path, budget=NO_NOISE, method_options=(("steps", "200"),))
    record = run.run(load_job(settings), 0).record
    assert record.metrics["accuracy"] >= 0.8, "a third of the steps of tier quick"  # type: ignore[operator]


def test_zcdp_release_claims_its_theorem() -> None:
    release = convert("zcdp", Budget(3.0))
    assert release.claim is not None and "Yu et al." in release.claim.source
