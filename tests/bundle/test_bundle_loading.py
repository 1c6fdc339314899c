"""The card's five lines, as printed, in a process that has neither this package nor its plug-ins."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bundles import bundle_of, found, untrained_bundle

from bench import nets
from bench.bundle import Failed, library, load, network
from bench.bundle.card import _constant
from bench.bundle.library import library_call
from bench.bundle.schema import Model
from bench.errors import BenchError

ISOLATED = """
import sys
for name in ("bench", "methods", "baselines", "attacks"):
    sys.modules[name] = None
"""
REPORT = """
torch.manual_seed(0)
queried = torch.rand(3, *images.shape[1:])
print(tuple(logits.shape), float(logits.sum()))
"""


def snippet(text: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(code.splitlines()) <= 5
    return code


def run_isolated(code: str, folder: Path) -> str:
    """What code prints in an isolated process without this package, run in `folder`."""
    command = [sys.executable, "-I", "-c", ISOLATED + code + REPORT]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["resnet18"])
def test_card_code_loads_the_student_without_this_package(kind: str) -> None:
    folder = bundle_of(kind)
    said = run_isolated(snippet((folder / "README.md").read_text(encoding="utf-8")), folder)
    student, shape = load(folder), found(kind).result.input.shape
    expected = student(torch.zeros(1, *shape))
    assert said.startswith("(1, 10) ")
    assert float(said.split()[-1]) == pytest.approx(float(expected.sum()), abs=1e-3)


@pytest.mark.thorough
def test_load_returns_the_released_student() -> None:
    for kind in ("resnet18", "dp-merf"):
        run = found(kind)
        released = network.rebuild(run, network.student_input(run, False))
        images = torch.rand(4, 1, 16, 16)
        assert torch.equal(load(bundle_of(kind))(images), released(images))
    assert load(bundle_of("dp-merf")).std.item() == 1.0, "a student that sees pixels keeps its own normalisation"


GREY, COLOUR = (1, 16, 16), (3, 32, 32)
LONG = {("wavelet-cnn", GREY), ("wavelet-linear-mirrored", GREY)}
SHORT = {("datalens", COLOUR)}
"""Larger variants of `wavelet-linear` are tested among the slow tests; so is colour, with one exception."""
PROGRAMS = [
    pytest.param(arch, shape, marks=pytest.mark.slow if case in LONG or (shape == COLOUR and case not in SHORT) else ())
    for case in itertools.product(nets.own_names(), (GREY, COLOUR))
    for arch, shape in [case]
]


@pytest.mark.thorough
@pytest.mark.parametrize(("arch", "shape"), PROGRAMS, ids=str)
def test_write_program_has_the_networks_outputs(tmp_path: Path, arch: str, shape: tuple[int, int, int]) -> None:
    model = nets.build(arch, shape, 5).eval().requires_grad_(False)
    assert network.write_program(tmp_path / "student.pt2", model, shape)
    assert library_call(arch, model, shape, 5) is None
    again = torch.export.load(tmp_path / "student.pt2").module()
    for count in (1, 7):
        images = torch.rand(count, *shape)
        assert torch.allclose(again(images), model(images), atol=1e-5)


@pytest.mark.parametrize(
    ("arch", "shape", "arguments"),
    [
        ("resnet18", (1, 16, 16), {"num_classes": 4, "in_chans": 1}),
        ("vit_tiny_patch16_224", (3, 32, 32), {"num_classes": 4, "in_chans": 3, "img_size": 32, "patch_size": 4}),
        ("tv:resnet18", (3, 32, 32), {"num_classes": 4}),
    ],
)
def test_library_call_takes_the_weights(arch: str, shape: tuple[int, int, int], arguments: dict[str, object]) -> None:
    model = nets.build(arch, shape, 4).eval()
    call = library_call(arch, model, shape, 4)
    assert call is not None and call.arguments.to_json() == arguments
    assert call.function == ("torchvision.models.get_model" if arch.startswith("tv:") else "timm.create_model")


@pytest.mark.thorough
def test_library_call_of_another_network_is_none(tmp_path: Path) -> None:
    model = nets.build("tv:resnet18", (1, 32, 32), 4).eval().requires_grad_(False)
    assert library_call("tv:resnet18", model, (1, 32, 32), 4) is None
    assert network.write_program(tmp_path / "student.pt2", model, (1, 32, 32))


def test_card_code_of_an_own_network_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = untrained_bundle()
    monkeypatch.chdir(folder)
    scope: dict[str, torch.Tensor] = {}
    exec(snippet((folder / "README.md").read_text(encoding="utf-8")), scope)
    assert scope["logits"].shape == (1, 10)


@pytest.mark.thorough
def test_torch_export_load_runs_code_of_a_program(tmp_path: Path) -> None:
    """Why a bundle holds no program: torch evaluates the text of a symbol when it reads one."""
    model = nets.build("relu-cnn", (1, 16, 16), 5).eval().requires_grad_(False)
    assert network.write_program(tmp_path / "honest.pt2", model, (1, 16, 16))
    mark = tmp_path / "code was run"
    code = f"[__import__('pathlib').Path({str(mark)!r}).touch(), Symbol("
    with zipfile.ZipFile(tmp_path / "honest.pt2") as honest, zipfile.ZipFile(tmp_path / "forged.pt2", "w") as forged:
        for name in honest.namelist():
            found = re.sub(rb"Symbol\(('s\d+'[^)]*)\)", code.encode() + rb"\1)][1]", honest.read(name), count=1)
            forged.writestr(name, found if name.endswith("models/model.json") else honest.read(name))
    torch.export.load(tmp_path / "forged.pt2")
    assert mark.exists()


def test_card_normalisation_by_channel_broadcasts(tmp_path: Path) -> None:
    model = nets.build("resnet18", (3, 32, 32), 10).eval().requires_grad_(False)
    model.mean, model.std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))
    assert library_call("resnet18", model, (3, 32, 32), 10) is not None
    assert torch.equal(eval(_constant([0.1, 0.2, 0.3]), {"torch": torch}), torch.tensor([0.1, 0.2, 0.3])[:, None, None])


@pytest.mark.thorough
def test_student_input_of_an_older_release() -> None:
    run = found("dpsd data")
    old = replace(run, result=replace(run.result, input=None))
    assert network.student_input(old, False) == run.result.input
    assert library.library_call("datalens", load(bundle_of("dpsd data")), (1, 16, 16), 10) is None


def test_check_student_refuses_huge_images() -> None:
    content = (untrained_bundle() / "model.json").read_text(encoding="utf-8")
    made = Model.model_validate_json(content)
    huge = made.model_copy(update={"input": made.input.model_copy(update={"shape": (1, 10**7, 10**7)})})
    with pytest.raises(Failed, match=r"\[1, 10000000, 10000000\]"):
        network.check_student(load(untrained_bundle()), huge)


@pytest.mark.parametrize("file", ["model.json", "student.safetensors"])
def test_load_refuses_a_damaged_bundle(tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(untrained_bundle(), tmp_path / "bundle")
    (folder / file).write_bytes(b"{")
    with pytest.raises(BenchError, match=file):
        load(folder)
