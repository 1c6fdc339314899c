"""dp-sgd, ts-adp, gm-dp and zcdp: clipping, noise by step, claims, and the release."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import FREE, NO_NOISE, flat, forbidden_teacher, record_calls
from scipy import stats
from torch import Tensor

from baselines.dp_sgd import DpSgd
from baselines.gm_dp import GmDp
from baselines.ts_adp import TsAdp, fold, temper
from baselines.zcdp import Zcdp
from bench import nets
from bench.api import Release, Teacher
from bench.dp_training import clipping, dp_sgd, private_classifier
from bench.dp_training.accounting import DpSgdParameters
from bench.errors import BenchError
from bench.nets.classifiers.dp_sgd_nets import TemperedSigmoid
from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget, Unit
from bench.privacy.accountant import check_budget
from bench.testing import CLASSES, SHAPE

METHODS: dict[str, Any] = {"dp-sgd": DpSgd, "ts-adp": TsAdp, "gm-dp": GmDp, "zcdp": Zcdp}
every_method = pytest.mark.parametrize("name", METHODS)


def toy(n: int = 64, dataset: str = "toy") -> Teacher:
    return forbidden_teacher(n, dataset=dataset)


def convert(
    name: str,
    budget: Budget = FREE,
    teacher: Teacher | None = None,
    seed: int = 0,
    student: str = "datalens",
    **given: str,
) -> Release:
    return baseline_runs.convert(METHODS[name], budget, teacher or toy(), student, seed, **given)


def answers(release: Release) -> Tensor:
    with torch.no_grad():
        return release.student(torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)))


def untrained(arch: str, seed: int = 0) -> nets.Classifier:
    """The network that `convert` starts from."""
    torch.manual_seed(seed)
    return nets.build(arch, SHAPE, CLASSES)


@every_method
def test_release_is_the_trained_network(name: str) -> None:
    release = convert(name)
    assert release.arch == ("tanh-cnn" if name == "ts-adp" else "relu-cnn") and release.generator is None
    rebuilt = nets.build(release.arch, SHAPE, CLASSES)
    rebuilt.load_state_dict(release.student.state_dict())
    images = torch.rand(5, *SHAPE)
    assert torch.equal(rebuilt.eval()(images), release.student(images))
    assert float(release.student.mean) == 0 and float(release.student.std) == 1  # type: ignore[arg-type]


@every_method
def test_network_depends_on_image_channels(name: str) -> None:
    expected = "tanh" if name == "ts-adp" else "relu"
    assert METHODS[name]()._name((3, 32, 32), "x") == f"{expected}-vgg"
    assert METHODS[name]()._name((1, 28, 28), "x") == f"{expected}-cnn"


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
    with pytest.raises(BenchError, match=named) as caught:
        convert(name, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [{"network": "relu-cnn"}, {"network": "tanh-vgg", "offset": 0.0}])
def test_ts_adp_refuses_networks_before_training(given: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="tanh-vgg"):
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


def test_default_multiplier_is_epsilon_3_on_mnist() -> None:
    plan = DpSgdParameters(512 / 60_000, 4680, DpSgd().multiplier)
    assert plan.claim(1e-5, "x").epsilon == pytest.approx(3.0, rel=0.01)


def test_only_gm_dp_clips_by_layer() -> None:
    assert {name: method().settings("mnist").clipping for name, method in METHODS.items()} == {
        "dp-sgd": "flat",
        "ts-adp": "flat",
        "gm-dp": "layer",
        "zcdp": "flat",
    }


@pytest.mark.parametrize(("name", "by_layer"), [("dp-sgd", False), ("gm-dp", True), ("ts-adp", False), ("zcdp", False)])
def test_one_record_moves_weights_by_the_clipping_norm(name: str, by_layer: bool) -> None:
    """One record, sampled for certain, one step of rate 1, no noise: the whole by C, or each of 4 layers by C/2.

    C is 127/128 of the setting, the rest of which rounding errors are left.
    """
    given = {"steps": "1", "batch": "1", "rate": "1.0", "momentum": "0", "clip": "0.01"}
    release = convert(name, NO_NOISE, toy(1), **given)
    moved = flat(release.student) - flat(untrained(release.arch))
    assert float(moved.norm()) == pytest.approx(0.01 * 127 / 128, rel=1e-3)
    sizes = [p.numel() for p in release.student.parameters()]
    weights = moved.split([a + b for a, b in zip(sizes[::2], sizes[1::2], strict=True)])
    assert len(weights) == 4
    halves = [float(layer.norm()) == pytest.approx(0.005 * 127 / 128, rel=1e-3) for layer in weights]
    assert all(halves) if by_layer else not all(halves)


def noise_alone(monkeypatch: pytest.MonkeyPatch, name: str, **given: str) -> list[Tensor]:
    """The movement of each layer's weights when every batch is empty: steps of rate 1, B = 8, C = 0.6, z = 1.5."""
    monkeypatch.setattr(dp_sgd, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))
    fixed = {"batch": "8", "rate": "1.0", "momentum": "0", "clip": "0.6", "multiplier": "1.5"}
    release = convert(name, **fixed, **given)
    moved = flat(release.student) - flat(untrained(release.arch))
    return list(moved.split([p.numel() for p in release.student.parameters()]))[::2]


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1.0, 0.5, 2.0, math.sqrt(2)])
@pytest.mark.parametrize("name", ["dp-sgd", "ts-adp", "gm-dp"])
def test_layer_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch, name: str, scale: float) -> None:
    """N(0, T (z C / B)^2) in all of them: for gm-dp z_g C_g = z sqrt(4) C / sqrt(4); a forgotten sqrt(4) is 0.5."""
    layers = noise_alone(monkeypatch, name, steps="2")
    std = math.sqrt(2) * 1.5 * 0.6 / 8
    for layer in layers[1:3]:
        p = stats.kstest(layer.double().numpy(), stats.norm(0, scale * std).cdf).pvalue
        assert p > 0.01 if scale == 1.0 else p < 1e-6


@pytest.mark.parametrize(("wrong", "fits"), [(1.0, True), (2.0, False), (0.5, False), (4.0, False)])
def test_step_noise_follows_the_schedule(monkeypatch: pytest.MonkeyPatch, wrong: float, fits: bool) -> None:
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
    for t, (_, noise) in enumerate(drawn):
        std = 1.5 * 0.5**t * 0.6 * wrong
        p = stats.kstest(noise.double().numpy(), stats.norm(0, std).cdf).pvalue
        assert p > 0.01 if fits else p < 1e-6


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
    network, images = untrained(arch).eval(), torch.rand(6, *SHAPE)
    with torch.no_grad():
        plain = network(images)
        temper(network, scale, temperature, offset)
        before = network(images)
        fold(network, scale, temperature, offset)
        after = network(images)
        rebuilt = nets.build(arch, SHAPE, CLASSES)
        rebuilt.load_state_dict(network.state_dict())
        assert torch.equal(rebuilt.eval()(images), after)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)
    assert torch.allclose(plain, before, atol=1e-3) == ((scale, temperature, offset) == (2.0, 2.0, 1.0))
    constants = [(m.scale, m.temperature, m.offset) for m in network.modules() if isinstance(m, TemperedSigmoid)]
    assert constants and set(constants) == {(2.0, 2.0, 1.0)}


def test_ts_adp_releases_the_trained_function(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
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
    seen: list[float] = []

    def spy(network: nets.Classifier, name: str, private: Any, settings: Any, *rest: Any) -> None:
        seen.append(settings.rate)

    monkeypatch.setattr(private_classifier, "train", spy)
    convert("dp-sgd", teacher=toy(2048), **{"batch": "1024", "rate": "8", **given})
    assert seen == [pytest.approx(rate)]


def test_default_activation_is_tanh() -> None:
    x = torch.linspace(-4, 4, 33)
    method = TsAdp()
    phi = TemperedSigmoid(method.scale, method.temperature, method.offset)
    torch.testing.assert_close(phi(x), x.tanh(), rtol=1e-5, atol=1e-6)


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
    for against in ("claimed", "accounted"):
        budget = Budget(3.0, account=against)  # type: ignore[arg-type]
        release = convert("zcdp", budget)
        assert release.claim is not None and "Yu et al." in release.claim.source
        check_budget(release.ledger, release.claim, budget)
