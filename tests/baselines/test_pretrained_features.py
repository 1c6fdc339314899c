"""`private-features` on a pretrained timm network: run, release, tuned parameters, refused input, separate ranking."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import baseline_runs
import pytest
import timm
import torch
from baseline_runs import accuracy, epsilon_of, forbidden_teacher, rng
from conftest import write_toy
from safetensors.torch import save_file

import bench
from baselines.private_features import PrivateFeatures
from bench import bundle, nets, teachers
from bench.api import Release
from bench.boards import flags
from bench.boards.flags import pretrained_source
from bench.cli import main
from bench.dp_training.accounting import calibrate
from bench.dp_training.backbone_tuning import TunedParameters, add_lora, tuned_names
from bench.dp_training.games import RECORDS, SAMPLING
from bench.dp_training.per_sample_gradients import FuncGradients
from bench.errors import BadWeights, NotFound
from bench.nets.backbone import PART, BackboneLinear, BackboneName
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.pipeline.run import run
from bench.pipeline.settings import Settings
from bench.privacy import Budget
from bench.privacy.accountant import check_budget
from bench.storage.store import load_tensors
from bench.teachers.pretrained import find_pretrained
from bench.testing import CLASSES, SHAPE, toy_private
from bench.validate import instance

CNN, VIT = BackboneName("test_efficientnet", 32), BackboneName("test_vit", 32)
OPTIONS = (("features", f"timm:{CNN.timm}"), ("image_size", "32"))


def pretrained(name: BackboneName, shape: tuple[int, int, int] = SHAPE) -> nets.Classifier:
    """A network whose random weights stand for pretrained ones."""
    torch.manual_seed(3)
    return nets.build(str(name), shape, CLASSES).eval().requires_grad_(False)


def convert(name: BackboneName, budget: Budget, **given: Any) -> Release:
    teacher, given = forbidden_teacher(200, pretrained=pretrained(name)), {"image_size": name.size} | given
    return baseline_runs.convert(PrivateFeatures, budget, teacher, variant=None, features=f"timm:{name.timm}", **given)


def write_weights(folder: Path, name: BackboneName = CNN, seed: int = 0, **more: torch.Tensor) -> Path:
    """A file of random weights as timm writes them, with a classification layer of 7 classes."""
    torch.manual_seed(seed)
    state = timm.create_model(name.timm, num_classes=7).state_dict() | more
    save_file(state, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def settings(folder: Path, **changes: Any) -> Settings:
    usual = Settings(
        "private-features", None, f"npz:{folder}/toy.npz", tier="smoke", device="cpu", out=folder / "runs",
        budget=Budget(8.0), method_options=OPTIONS, pretrained=folder / "weights.safetensors",
    )  # fmt: skip
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("name", "whitening", "epsilon", "steps"), [(CNN, "none", 8.0, 30), (VIT, "private", math.inf, 120)], ids=str
)
def test_head_on_pretrained_features_learns_toy(name: BackboneName, whitening: str, epsilon: float, steps: int) -> None:
    """Rows of a transformer with random weights are nearly equal, so that they need whitening, and no noise on it."""
    release = convert(name, Budget(epsilon), steps=steps, whitening=whitening)
    assert accuracy(release, 200, 1) > 0.9
    given = pretrained(name).state_dict()
    kept = [key for key in given if not key.startswith("body.head.")]
    assert all(torch.equal(release.student.state_dict()[key], given[key]) for key in kept)
    nets.build(release.arch, SHAPE, CLASSES).load_state_dict(release.student.state_dict())


def test_features_depend_on_one_image_only() -> None:
    """Also in training mode, in which batch normalisation would use the batch; grey is three equal channels."""
    images, colour = torch.rand(PART + 3, *SHAPE), pretrained(CNN, (3, *SHAPE[1:]))
    network = pretrained(CNN).train()
    with torch.no_grad():
        together = network.features(images)
        single = torch.cat([network.features(images[i : i + 1]) for i in (0, PART, PART + 2)])
        assert torch.allclose(together[[0, PART, PART + 2]], single, atol=1e-4)
        assert torch.allclose(together, colour.features(images.expand(-1, 3, -1, -1)), atol=1e-4)
    assert torch.allclose(together.norm(dim=1), torch.tensor(together.shape[1] ** 0.5))


@pytest.mark.parametrize(("name", "what"), [(CNN, "bias"), (VIT, "bias"), (VIT, "lora")], ids=str)
def test_tuning_changes_only_its_parameters(name: BackboneName, what: Any) -> None:
    budget = Budget(8.0, account="accounted")
    release = convert(name, budget, tune=what, batch=50, steps=2)
    check_budget(release.ledger, release.claim, budget)
    (entry,) = release.ledger.entries()
    assert entry.count == 2 and entry.event.sampling_probability == 50 / 200
    before, after = pretrained(name).state_dict(), release.student.state_dict()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    end = ".bias" if what == "bias" else ".weight"
    assert before.keys() == after.keys() and changed - {"body.head.weight", "body.head.bias"}
    assert all(key.endswith(end) for key in changed - {"body.head.weight", "body.head.bias"})
    nets.build(release.arch, SHAPE, CLASSES).load_state_dict(after)


@pytest.mark.parametrize(("name", "what"), [(CNN, "bias"), (VIT, "lora")], ids=str)
def test_per_sample_gradients_are_those_of_autograd(name: BackboneName, what: Any) -> None:
    network = pretrained(name)
    backbone = instance(network.body, BackboneLinear, "body").backbone
    if what == "lora":
        layers = add_lora(backbone, 2, rng())
        for layer in layers.values():
            torch.nn.init.normal_(layer.up, std=0.1)
    names = [f"body.trunk.1.{each}" for each in tuned_names(backbone, what)]
    tuned = TunedParameters(network.requires_grad_(False), [*names, "body.head.weight"])
    images, labels = (part[:3] for part in toy_private())
    images = images.float() / 255
    rows = FuncGradients(tuned, 1)(images, labels)  # type: ignore[arg-type]
    parameters = dict(tuned.named_parameters())
    for record in range(3):
        loss = torch.nn.functional.cross_entropy(network(images[record : record + 1]), labels[record : record + 1])
        single = torch.autograd.grad(loss, list(parameters.values()))
        found = [rows[key][record] for key in parameters]
        assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, single, strict=True))


def test_tuning_game_is_one_noisy_gradient() -> None:
    method = PrivateFeatures(features=f"timm:{VIT.timm}", tune="lora", steps=1)
    budget = Budget(3.0)
    parameters = calibrate(method._tuning().settings.parameters(RECORDS), budget)
    assert epsilon_of(parameters.ledger()) == pytest.approx(3.0, abs=0.01)
    expected = epsilon_of(replace(parameters, sampling=SAMPLING, steps=1).ledger())
    game = method.game(budget, "mnist", CLASSES)
    assert game.claimed == game.accounted == pytest.approx(expected), "a step in which half of the records are sampled"


@pytest.mark.thorough
def test_audit_uses_given_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and the function make one audit, whose release states the source of its weights."""
    write_toy(tmp_path, 200)
    weights, data = write_weights(tmp_path), f"npz:{tmp_path}/toy.npz"
    words = ["audit", "release", "--method", "private-features", "--dataset", data, "--out", str(tmp_path / "runs")]
    words += [*("--tier", "smoke", "--teacher", "datalens", "--device", "cpu", "--canaries", "20")]
    words += [word for name, value in OPTIONS for word in (f"--method.{name}", value)]
    assert main([*words, "--pretrained", str(tmp_path / "none.safetensors")]) == 2
    assert "--pretrained" in capsys.readouterr().err
    assert main([*words, "--pretrained", str(weights)]) == 0
    found = bench.audit(
        "private-features", data, canaries=20, tier="smoke", teacher="datalens", device="cpu", out=tmp_path / "runs",
        method_options=dict(OPTIONS), pretrained=weights,
    )  # fmt: skip
    assert found.is_cached
    record = json.loads((found.path / "audit.json").read_text())
    source = pretrained_source(record["spec"]["release"]["public"])
    assert source is not None and source.network == CNN.timm


@pytest.mark.thorough
def test_run_states_the_source_of_its_weights(tmp_path: Path) -> None:
    """In its spec, in the flags of its row, and on the card of its bundle; other weights are another run."""
    write_toy(tmp_path, 240)
    write_weights(tmp_path)
    given = load_job(settings(tmp_path))
    first = run(given, 0)
    source = given.pretrained
    assert source is not None and first.record.spec["release"]["public"] == source.source
    assert {"public-data", f"weights:{CNN.timm}@{source.sha256[:12]}"} <= set(flags(first.record))
    folder = tmp_path / "bundle"
    bundle.export(bundle.find(first.record.hash, tmp_path / "runs"), folder, allow_seeded=True)
    assert source.sha256 in (folder / "README.md").read_text(encoding="utf-8")
    bundle.verify(folder)
    assert bundle.load(folder)(torch.rand(2, *given.material.data.shape)).shape == (2, given.material.data.classes)
    write_weights(tmp_path, seed=1)
    assert run_spec(load_job(settings(tmp_path)), 0).release.public != source.source


@pytest.mark.parametrize(
    ("changes", "word"),
    [("--method.features timm:no_such_network", "no_such_network"),
     ("--method.features timm:resnet18.no_such_tag", "no_such_tag"),
     ("--method.features timm:", "timm:"),
     ("--method.features wavelets", "wavelets"),
     ("--method.features auto", "--pretrained"),
     ("--method.features timm:resnet18", "resnet18"),
     ("--method.image_size 16", "16"),
     ("--method.features timm:test_vit --method.image_size 33", "33"),
     ("--method.tune lora", "lora"),
     ("--pretrained absent.safetensors", "absent.safetensors"),
     ("--pretrained toy.npz", "toy.npz"),
     ("--method.tune bias --unit label", "label")],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, changes: str, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toy(tmp_path, 240)
    write_weights(tmp_path)
    monkeypatch.chdir(tmp_path)
    typed = {"--method": "private-features", "--dataset": "npz:toy.npz", "--tier": "smoke", "--device": "cpu"}
    typed |= {f"--method.{name}": value for name, value in OPTIONS} | {"--pretrained": "weights.safetensors"}
    typed |= dict(zip(changes.split()[::2], changes.split()[1::2], strict=True))
    if typed["--method.features"] == "auto":
        del typed["--method.image_size"]
    assert main(["run", *(word for pair in typed.items() for word in pair)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("bench: error:") for line in said].count(True) == 1 and word in said[-1]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cached weights of torch or of the Hugging Face Hub."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)


@pytest.mark.usefixtures("empty_cache")
def test_missing_weights_name_the_ways_to_bring_them(tmp_path: Path) -> None:
    write_toy(tmp_path, 240)
    with pytest.raises(NotFound, match="--pretrained FILE"):
        load_job(settings(tmp_path, pretrained=None))


@pytest.mark.usefixtures("empty_cache")
def test_cached_weights_of_timm_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = BackboneName("resnet18.tv_in1k", 32)
    url = timm.get_pretrained_cfg(name.timm).url
    file = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    file.touch()
    assert find_pretrained(name, None) == file
    hub = tmp_path / "model.safetensors"
    hub.touch()
    cache = {("timm/resnet18.tv_in1k", "model.safetensors"): str(hub)}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *file: cache.get(file))
    assert find_pretrained(name, None) == hub
    assert find_pretrained(name, tmp_path / "model.safetensors") == hub


def test_loaded_features_are_those_of_timm(tmp_path: Path) -> None:
    """At the network's own size; the position embedding is resampled for another one, as timm does."""
    own = BackboneName(VIT.timm, 160)
    file = write_weights(tmp_path, VIT)
    state = load_tensors(file)
    for name in (own, replace(own, size=96)):
        network = nets.build(str(name), (3, name.size, name.size), CLASSES).eval()
        teachers.load_pretrained(file, network, name)
        given = {"state_dict": copy.deepcopy(state), "num_classes": 7}
        make = partial(timm.create_model, name.timm, pretrained=True, pretrained_cfg_overlay=given)
        theirs = make(img_size=name.size, num_classes=7).eval()
        theirs.reset_classifier(0)
        x = torch.rand(2, 3, name.size, name.size)
        with torch.no_grad():
            ours = network.features(x)
            config = theirs.pretrained_cfg
            mean, std = (torch.tensor(config[key]).view(-1, 1, 1) for key in ("mean", "std"))
            expected = theirs((x - mean) / std)
        assert torch.allclose(ours, torch.nn.functional.normalize(expected) * expected.shape[1] ** 0.5, atol=1e-3)


@pytest.mark.parametrize("fault", ["name", "shape", "nan", "pickle"])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, fault: str) -> None:
    file, network = write_weights(tmp_path), pretrained(CNN)
    state = load_tensors(file)
    first = next(key for key in state if key.endswith(".weight"))
    if fault == "name":
        state["other.weight"] = state.pop(first)
    elif fault == "shape":
        state[first] = state[first][:1].clone()
    elif fault == "nan":
        state[first] = state[first] * torch.nan
    save_file(state, file)
    if fault == "pickle":
        file = tmp_path / "weights.pt"
        torch.save(network, file)
    with pytest.raises(BadWeights, match=str(file)):
        teachers.load_pretrained(file, network, CNN)
