"""Models of every kind are loaded or refused; the data are tested; verdicts on trained models."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from assess_made import CLASSES, SHAPE, images, trained
from torch import nn

import bench
from bench.assess.models import Loaded, ModelGiven, check_normalisation, load_model, query
from bench.assess.pictures import find_copies
from bench.assess.records import ReadAs, read_records
from bench.cli import main
from bench.errors import BenchError
from bench.teachers.weights import save

LABELS = torch.arange(CLASSES)


def load(path: Path, **given: object) -> Loaded:
    return load_model(ModelGiven(path, **given), SHAPE, LABELS)  # type: ignore[arg-type]


def same_outputs(found: Loaded) -> bool:
    some = images(20, 5).images
    ours, theirs = query(found.module, some), query(trained(), some)
    return torch.allclose(ours.log_softmax(1), theirs.log_softmax(1), atol=1e-4)


def test_weights_of_a_classifier_and_of_its_body(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", trained())
    torch.save({"state_dict": {f"module.{k}": v for k, v in trained().body.state_dict().items()}}, tmp_path / "a.pt")
    whole = load(tmp_path / "a.safetensors", network="dense-cnn")
    bare = load(tmp_path / "a.pt", network="dense-cnn", normalise=(0.5, 0.5))
    assert same_outputs(whole) and same_outputs(bare)
    assert any("prefix 'module.'" in line for line in bare.said)
    assumed = load(tmp_path / "a.pt", network="dense-cnn")
    assert [each.is_assumed for each in (whole, bare, assumed)] == [False, False, True]


def test_programs_run_with_permission_only(tmp_path: Path) -> None:
    torch.jit.trace(trained(), torch.zeros(2, *SHAPE)).save(tmp_path / "a.pt")
    with pytest.raises(BenchError, match=r"TorchScript.*--trust-code"):
        load(tmp_path / "a.pt")
    assert same_outputs(load(tmp_path / "a.pt", trust_code=True))
    (tmp_path / "a.pt2").write_bytes(b"")
    with pytest.raises(BenchError, match=r"torch\.export.*--trust-code"):
        load(tmp_path / "a.pt2")


@pytest.mark.thorough
def test_exported_programs(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(trained().eval(), (torch.zeros(2, *SHAPE),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "a.pt2")
    assert same_outputs(load(tmp_path / "a.pt2", trust_code=True))


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was run')",)


@pytest.mark.parametrize("name", ["a.pkl", "a.joblib", "a.pt", "a.bin"])
def test_pickles_are_never_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(BenchError, match=name):
        load(tmp_path / name, network="dense-cnn")


def test_whole_modules_are_refused_by_name_of_their_code(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2), tmp_path / "a.pt")
    with pytest.raises(BenchError, match=r"Linear.*state dict"):
        load(tmp_path / "a.pt", network="dense-cnn")


def test_options_in_messages_are_those_of_this_command(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", nn.Linear(3, 2))
    with pytest.raises(BenchError) as found:
        load(tmp_path / "a.safetensors", network="dense-cnn")
    assert "--network" in str(found.value) and "--teacher" not in str(found.value)
    with pytest.raises(BenchError, match="--network NAME"):
        load(tmp_path / "a.safetensors")


@pytest.mark.parametrize("kind", ["logits", "probabilities", "numpy"])
def test_callables(kind: str) -> None:
    def model(x: torch.Tensor) -> object:
        logits = trained()(x)
        return {"logits": logits, "probabilities": logits.softmax(1), "numpy": logits.numpy()}[kind]

    found = load_model(ModelGiven(model), SHAPE, LABELS)
    assert same_outputs(found) and any("probabilities" in line for line in found.said) == (kind == "probabilities")


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (lambda x: x.flatten(1)[:, :1], "at least 2 classes"),
        (lambda x: x.flatten(1)[:, :2] * float("nan"), "NaN"),
        (lambda x: x.flatten(1)[:, :2], "2 outputs, and the largest label is 2"),
        (lambda x: x @ torch.zeros(3, 3), "--size and --channels"),
        (lambda x: "text", "fails"),
    ],
)
def test_models_that_do_not_fit(model: object, word: str) -> None:
    with pytest.raises(BenchError, match=word):
        load_model(ModelGiven(model), SHAPE, LABELS)  # type: ignore[arg-type]


def test_outputs_that_are_not_finite_are_counted() -> None:
    class Body(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :2] / (x.flatten(1)[:, :1] > 0.5).float()

    some = torch.full((10, *SHAPE), 255, dtype=torch.uint8)
    some[:3] = 0
    with pytest.raises(BenchError, match="3 of 10 images"):
        query(Body(), some)


@pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="the extra `onnx` is not installed")
def test_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx, which writes the file, is not installed")
    path = tmp_path / "a.onnx"
    options = {"input_names": ["x"], "output_names": ["y"], "dynamo": False}
    torch.onnx.export(
        trained(), (torch.zeros(2, *SHAPE),), path, dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, **options
    )
    assert same_outputs(load(path))
    with pytest.raises(BenchError, match=r"--size and --channels"):
        load_model(ModelGiven(path), (3, 8, 8), LABELS)
    torch.onnx.export(trained(), (torch.zeros(2, *SHAPE),), path, **options)
    with pytest.raises(BenchError, match="fixed batch size of 2"):
        load(path)
    path.write_bytes(b"text")
    with pytest.raises(BenchError, match="cannot be read as ONNX"):
        load(path)


def test_wrong_normalisation_is_named() -> None:
    data = images(150, 0)
    body = trained().body
    found = load_model(ModelGiven(lambda x: body((x - 0.5) / 0.5)), SHAPE, LABELS)
    assert check_normalisation(found, data.images, data.labels) == ""
    raw = load_model(ModelGiven(lambda x: body(x)), SHAPE, LABELS)
    with pytest.raises(BenchError, match=r"--normalise 0\.5,0\.5"):
        check_normalisation(raw, data.images, data.labels)
    given = load_model(ModelGiven(lambda x: body(x), normalise=(0.0, 1.0)), SHAPE, LABELS)
    assert "--normalise 0.5,0.5" in check_normalisation(given, data.images, data.labels), "named, and not refused"


def test_folders_and_archives_hold_the_same_images(tmp_path: Path) -> None:
    data = images(40, 0)
    folder = read_records(data.folder(tmp_path / "set"), ReadAs(size=8))
    archive = read_records(data.save(tmp_path / "a.npz"), ReadAs())
    order = np.argsort(archive.labels.numpy(), kind="stable")
    assert (folder.images == archive.images[torch.from_numpy(order)]).all() and folder.facts.shape == (40, 6)
    assert folder.class_names == ("class0", "class1", "class2")


def test_groups_of_folders_and_archives(tmp_path: Path) -> None:
    folder = images(40, 0).folder(tmp_path / "set")
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    table = tmp_path / "groups.csv"
    table.write_text("file,group\n" + "".join(f"{name},p{row // 2}\n" for row, name in enumerate(files)))
    found = read_records(folder, ReadAs(groups=table, size=8))
    assert found.groups is not None and found.groups.tolist() == [f"p{row // 2}" for row in range(40)]
    archive = images(40, 0).save(tmp_path / "a.npz", group=np.arange(40))
    assert read_records(archive, ReadAs()).groups is not None
    table.write_text("file,group\n" + "".join(f"{name},p\n" for name in files[1:]))
    with pytest.raises(BenchError, match=f"no group for 1 files.*{files[0]}"):
        read_records(folder, ReadAs(groups=table, size=8))


def test_bad_sets_are_refused(tmp_path: Path) -> None:
    members = read_records(images(40, 0).save(tmp_path / "m.npz"), ReadAs())
    few = images(29, 1).save(tmp_path / "few.npz")
    np.savez(tmp_path / "words.npz", images=images(40, 0).images[:, 0], labels=["a"] * 40)
    np.savez(tmp_path / "large.npz", images=np.zeros((40, 9, 9), np.uint8), labels=np.zeros(40, int))
    np.savez(tmp_path / "objects.npz", images=np.array([None] * 40), labels=np.zeros(40, int))
    named = images(40, 0).folder(tmp_path / "named")
    (named / "class9").mkdir()
    (named / "class9" / "a.png").write_bytes((next(named.rglob("*.png"))).read_bytes())
    known = read_records(images(40, 0).folder(tmp_path / "known"), ReadAs(size=8))
    cases = [
        (few, members, "29 images"),
        (tmp_path / "words.npz", members, "whole number"),
        (tmp_path / "large.npz", members, r"\(1, 9, 9\)"),
        (tmp_path / "objects.npz", members, "Python objects"),
        (tmp_path / "none", members, "no images"),
        (named, known, "class9"),
    ]
    for path, like, word in cases:
        with pytest.raises(BenchError, match=word):
            read_records(path, ReadAs(size=8), like)


def test_exact_and_near_copies_are_found(tmp_path: Path) -> None:
    members, others = images(60, 0), images(60, 1)
    others.images[:5] = members.images[10:15]
    others.images[5:9] = (members.images[20:24].int() + 3).clamp(0, 255).to(torch.uint8)
    sets = [
        read_records(data.save(tmp_path / f"{name}.npz"), ReadAs()) for name, data in (("m", members), ("o", others))
    ]
    found, kept = find_copies(*sets)
    assert found.exact == 5 and 1 <= found.near <= 4 and not kept[:5].any() and kept[9:].all()


def assess(tmp_path: Path, members: object, others: object, **options: object) -> bench.assess.schema.Assessment:
    save(tmp_path / "a.safetensors", trained())
    paths = [data.save(tmp_path / f"{name}.npz") for name, data in (("m", members), ("o", others))]  # type: ignore[attr-defined]
    return bench.assess(tmp_path / "a.safetensors", *paths, network="dense-cnn", **options)


def test_an_overfitted_model_is_not_released(tmp_path: Path) -> None:
    found = assess(tmp_path, images(150, 0), images(320, 1), attacks=["loss", "gap"])
    assert found.verdict.decision == "do not release" and found.attacks[0].has_power
    assert found.accuracy is not None and found.accuracy.members.value > found.accuracy.others.value
    assert found.blind is not None and not found.blind.differs
    assert {"members", "nonmembers", "model"} == set(found.hashes)


@pytest.mark.thorough
def test_an_interrupted_assessment_uses_finished_models_again(tmp_path: Path) -> None:
    found = assess(tmp_path, images(150, 0), images(320, 1), attacks=["loss"], report=tmp_path / "r")
    work = sorted((tmp_path / "r" / "work").rglob("*.safetensors"))
    times = [path.stat().st_mtime_ns for path in work]
    again = assess(tmp_path, images(150, 0), images(320, 1), attacks=["loss"], report=tmp_path / "r")
    assert [path.stat().st_mtime_ns for path in work] == times and len(work) == 1
    assert again.attacks == found.attacks and again.verdict == found.verdict


@pytest.mark.thorough
def test_a_bundle(tmp_path: Path) -> None:
    from tests.bundle.bundles import untrained_bundle

    found = load_model(ModelGiven(untrained_bundle(), is_bundle=True), (1, 16, 16), torch.arange(10))
    assert found.kind == "bundle" and found.classes == 10
    with pytest.raises(BenchError, match="no student"):
        load_model(ModelGiven(tmp_path, is_bundle=True), (1, 16, 16), torch.arange(10))
    sets = [tmp_path / f"{name}.npz" for name in "mo"]
    rng = np.random.default_rng(0)
    for path in sets:
        np.savez(path, images=rng.integers(0, 255, (60, 16, 16), np.uint8), labels=rng.integers(0, 10, 60))
    with pytest.raises(BenchError, match="chance level"):
        bench.assess(bundle=untrained_bundle(), members=sets[0], nonmembers=sets[1])


def test_brighter_non_members_give_cannot_tell(tmp_path: Path) -> None:
    found = assess(tmp_path, images(150, 0), images(150, 1, brighter=60), attacks=["loss"])
    assert found.verdict.decision == "cannot tell" and "brightness" in found.verdict.reasons[0]


def test_random_weights_are_refused_as_wrongly_loaded(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(64, CLASSES, generator=rng)
    paths = [images(150, seed).save(tmp_path / f"{seed}.npz") for seed in range(2)]
    with pytest.raises(BenchError, match="chance level"):
        bench.assess(lambda x: -(x.flatten(1) @ weights).abs(), *paths)


def test_command_on_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "a.safetensors", trained())
    paths = [str(images(n, seed).save(tmp_path / f"{seed}.npz")) for n, seed in ((150, 0), (320, 1))]
    words = ["assess", "--model", str(tmp_path / "a.safetensors"), "--network", "dense-cnn", "--attacks", "loss"]
    assert main([*words, "--members", paths[0], "--nonmembers", paths[1]]) == 1
    captured = capsys.readouterr()
    assert "do not release" in captured.out and "not tested: lira" not in captured.out
    assert captured.err.index("one attack can show") < captured.err.index("accuracy:")
    assert main([*words, "--members", paths[0]]) == 2
    assert main([*words, "--members", paths[0], "--nonmembers", paths[1], "--attacks", "losss"]) == 2
    assert main([*words, "--members", paths[0], "--nonmembers", paths[1], "--normalise", "1,0"]) == 2


@pytest.mark.thorough
def test_reference_models_strengthen_the_attack(tmp_path: Path) -> None:
    found = assess(tmp_path, images(150, 0), images(600, 1), references=4, epochs=10, attacks=["loss", "lira", "rmia"])
    by_name = {each.name: each for each in found.attacks}
    assert set(by_name) == {"loss", "lira", "rmia"} and by_name["lira"].auc.value > 0.6
    assert by_name["lira"].note.startswith("4 reference models") and by_name["lira"].others == 400


@pytest.mark.thorough
def test_a_folder_of_reference_models(tmp_path: Path) -> None:
    folder = tmp_path / "references"
    folder.mkdir()
    for seed in (7, 8):
        save(folder / f"{seed}.safetensors", trained(150, seed))
    found = assess(tmp_path, images(150, 0), images(320, 1), references=folder, attacks=["loss", "calibrated-loss"])
    assert [each.name for each in found.attacks] == ["loss", "calibrated-loss"]
    np.save(folder / "trained_on.npy", np.zeros((2, 3), bool))
    with pytest.raises(BenchError, match="--population"):
        assess(tmp_path, images(150, 0), images(320, 1), references=folder)


@pytest.mark.thorough
def test_scores_of_slow_attacks_are_kept_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attacks.label_only import LabelOnly

    calls = []
    infer = LabelOnly.infer
    monkeypatch.setattr(LabelOnly, "infer", lambda *given: calls.append(1) or infer(*given))
    members, others = images(60, 0).save(tmp_path / "m.npz"), images(60, 1).save(tmp_path / "n.npz")
    given = {"attacks": ["label-only"], "report": tmp_path / "r"}
    first = bench.assess(trained(), members, others, **given)
    assert len(calls) == 2  # on the model and on the control
    again = bench.assess(trained(), members, others, **given)
    assert len(calls) == 2 and again.attacks == first.attacks
    bench.assess(trained(seed=1), members, others, **given)
    assert len(calls) == 3  # another model, the same control
    bench.assess(trained(), members, images(60, 2).save(tmp_path / "o.npz"), **given)
    assert len(calls) == 5
