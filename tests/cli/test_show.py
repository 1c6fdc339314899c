"""`bench show` and `bench run --help` of plug-ins with variants, and `bench doctor` of a machine with devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from distributions import install

from bench.cli import doctor, main

ATTACK = '''"""An attack.

Differs from the paper: in nothing.
"""
from dataclasses import dataclass
from typing import ClassVar

from bench.config import Departure, Size


@dataclass(frozen=True)
class Printed:
    version: ClassVar[int] = 3
    reference: ClassVar[str] = "A paper, Algorithm 1"
    goal: ClassVar[str] = "inversion"
    access: ClassVar[str] = "label"
    tiers: ClassVar = {"smoke": {"steps": 2}}
    departures: ClassVar = (
        Departure("Another rate.", "With the printed one it diverges.", {"rate": 0.5}, "12.5 % on digits, three seeds"),
        Departure("More of [brackets].", "Without them nothing is seen."),
    )

    steps: Size[int] = 100
    """Steps of the search."""
    rate: float = 1.0
    """Learning rate."""

    def skip_reason(self, shape, classes, aux):
        return None

    def run(self, target, aux, ctx):
        raise NotImplementedError
'''
WORKING = """from dataclasses import dataclass
from typing import ClassVar

from bench.config import Departure
from shown_attack import Printed


@dataclass(frozen=True)
class Working(Printed):
    departures: ClassVar = (Departure("Another algorithm.", "The printed one learns nothing."),)
    images: int = 7
    \"\"\"Images.\"\"\"
"""


Say = Callable[..., str]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """A function that returns the output of `bench ...`, with the attacks above installed."""
    points = "[bench.attacks]\nshown = shown_attack\nparts = shown_attack\nparts.working = shown_working\n"
    install(tmp_path, points, shown_attack=ATTACK, shown_working=WORKING)
    monkeypatch.syspath_prepend(tmp_path)

    def said(*arguments: str) -> str:
        try:
            assert main(list(arguments)) == 0
        except SystemExit as ended:
            assert not ended.code
        return capsys.readouterr().out

    return said


def test_list_names_plugins_of_one_or_all_kinds(say: Say) -> None:
    listed, methods = say("list"), say("list", "methods")
    assert all(
        f"  {name} " in listed for name in ("dpsd", "no-defence", "gmi", "digits", "imagefolder:PATH", "tv:NAME")
    )
    assert "  dpsd " in methods and "  gmi " not in methods


def test_show_lists_variants_and_changes(say: Say) -> None:
    shown = say("show", "shown")
    for line in (
        "variants      printed, working (default)",
        "shown         variant working; for the other one, `bench show shown --variant printed`",
        "Differs from the paper: in nothing.",
        "steps                int = 100  (a size)  [smoke 2]",
        "rate                 float = 1.0  [working 0.5]",
        "1. Another rate.",
        "     sets: rate=0.5",
        "     why: With the printed one it diverges.",
        "     effect: 12.5 % on digits, three seeds",
        "2. More of [brackets].",
        "     effect: not measured",
    ):
        assert line in shown, line
    printed = say("show", "shown", "--variant", "printed")
    assert (
        "shown         variant printed" in printed
        and "[bold]changes" not in printed
        and "1. Another" not in printed
        and "[working" not in printed
    )


def test_show_has_the_options_of_a_separate_working_file(say: Say) -> None:
    assert "images" in say("show", "parts") and "1. Another algorithm." in say("show", "parts")
    assert "images" not in say("show", "parts", "--variant", "printed")
    assert main(["show", "parts", "--variant", "own"]) == 2


def test_show_of_a_network_a_recipe_and_a_prior(say: Say) -> None:
    network = say("show", "strided-cnn")
    assert "(network in bench/nets/classifiers/)" in network and "--teacher strided-cnn" in network
    recipe = say("show", "faces")
    for line in (
        "faces  (teacher recipe in bench/teachers/recipes/)",
        "  option  --teacher.recipe faces",
        "options  (--teacher.NAME VALUE)",
        "epochs               int = 30  (a size)  [smoke 1, quick 40]",
        "faces  (prior in bench/priors/kinds/)",
    ):
        assert line in recipe, line


def test_show_accepts_sizes_arguments_and_library_networks(say: Say) -> None:
    assert say("show", "celeba-id:25@32").startswith("celeba-id  (data set)")
    assert say("show", "digits@32").startswith("digits  (data set)")
    assert main(["show", "digits@3"]) == 2 and main(["show", "digits:3"]) == 2
    assert "(network of timm)" in say("show", "vit_tiny_patch16_224")
    network = say("show", "tv:resnet18")
    assert "(network of torchvision)" in network and "small:tv:resnet18 has a stem" in network


def test_show_of_own_images_has_their_requirements(say: Say) -> None:
    for name in ("npz", "npz:there.npz"):
        shown = say("show", name)
        assert shown.startswith("npz:PATH  (data set, read by path)") and "floats in [0, 1]" in shown
    assert "central square" in say("show", "imagefolder")
    assert "only tensors are read" in say("show", "pt") and main(["show", "zip"]) == 2


def test_show_of_a_method_without_claim(say: Say) -> None:
    assert "  claimed       nothing\n" in say("show", "class-moments")


def test_show_of_a_name_of_two_kinds_has_both(say: Say) -> None:
    shown = say("show", "datalens")
    assert shown.index("datalens  (method in baselines/") < shown.index("datalens  (network in ")


def test_show_names_the_module_of_an_installed_plugin(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[bench.networks]\ntheirs = their_net\n[bench.methods]\ntheir-rule = baselines.no_defence:NoDefence\n"
    (tmp_path / "other").mkdir()
    install(tmp_path / "other", points, their_net="")
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert "from their_net" in say("show", "theirs")
    assert say("show", "their-rule").startswith("their-rule  (method from baselines.no_defence:NoDefence, version 1)")


def test_show_names_test_sets_used_for_tuning(say: Say) -> None:
    line = "  tuned on      the test set of mnist: "
    assert line in (shown := say("show", "dpsd")) and "; the test set of digits: " in shown
    for other in (("dpsd", "--variant", "printed"), ("pate",), ("gmi",)):
        assert "tuned on " not in say("show", *other)


def test_run_help_has_defaults_of_variant_and_tier(say: Say) -> None:
    run = ("run", "--method", "no-defence", "--attack", "shown")
    assert "Learning rate. [0.5; paper 1.0]" in say(*run, "--help")
    assert "Learning rate. [1.0]" in say(*run, "--attack-variant", "printed", "--help")
    assert "--attack.rate" not in say("run", "--help") and "--epsilon" in say("run", "--help")
    assert "search. [2; paper 100]" in say(*run, "--tier", "smoke", "--help")


def test_run_help_has_options_of_the_teacher_recipe(say: Say) -> None:
    shown = say("run", "--method", "no-defence", "--teacher", "resnet18", "--help")
    assert "--teacher.recipe" in shown and "[standard]" in shown and "--teacher.epochs" in shown
    assert main(["run", "--method", "no-defence", "--teacher.recipe", "standrad"]) == 2


def test_run_help_has_options_of_the_evaluator(say: Say) -> None:
    run = ("run", "--method", "no-defence", "--attack", "shown")
    assert "--evaluator.recipe" in say(*run, "--help") and "--evaluator.turn" not in say(*run, "--help")
    assert "--evaluator.turn" in say(*run, "--dataset", "lfw:10", "--help")
    assert "--evaluator." not in say("run", "--method", "no-defence", "--help")


def test_number_of_teachers_is_an_option_of_the_method(say: Say) -> None:
    assert main(["run", "--method", "dgd", "--teachers", "4"]) == 2
    assert "--teachers" not in say("run", "--help")
    assert "--method.teachers" in say("run", "--method", "dgd", "--help")


def test_doctor_lists_the_devices_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path / "gpus")
    monkeypatch.setattr(doctor, "query_driver", lambda: [])
    assert "cuda:0" not in say("doctor")
    for number in (0, 1):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H{number}00\nIRQ: 7\n", encoding="utf-8")
    shown = say("doctor")
    assert "cuda:0         NVIDIA H000" in shown and "cuda:1         NVIDIA H100" in shown


def test_doctor_finds_data_sets_by_their_files(tmp_path: Path, say: Say) -> None:
    shown = say("doctor", "--data-root", str(tmp_path))
    assert "digits         found" in shown and "mnist          missing: blocks --dataset mnist; no" in shown
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{part}-ubyte").touch()
    assert "mnist          found" in say("doctor", "--data-root", str(tmp_path))


def test_show_of_a_data_set_has_its_evaluator(say: Say) -> None:
    shown = say("show", "lfw")
    assert "recipe faces" in shown and "1.5" in shown and "dlib" in shown
    shown = say("show", "digits")
    assert "standard recipe" in shown and "dlib" not in shown
