"""`bench show` and `bench run --help` of plug-ins with variants, and `bench doctor` of a machine with devices."""

from __future__ import annotations

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


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """What `bench ...` prints, with the attacks above installed."""
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


def test_variants_and_departures_are_listed(say) -> None:  # type: ignore[no-untyped-def]
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
        "     worth: 12.5 % on digits, three seeds",
        "2. More of [brackets].",
        "     worth: not measured",
    ):
        assert line in shown, line
    printed = say("show", "shown", "--variant", "printed")
    assert "shown         variant printed" in printed and "departures" not in printed and "[working" not in printed


def test_a_working_variant_of_its_own_is_shown_with_its_own_options(say) -> None:  # type: ignore[no-untyped-def]
    assert "images" in say("show", "parts") and "1. Another algorithm." in say("show", "parts")
    assert "images" not in say("show", "parts", "--variant", "printed")
    assert main(["show", "parts", "--variant", "own"]) == 2


def test_networks_recipes_and_priors_are_shown(say) -> None:  # type: ignore[no-untyped-def]
    network = say("show", "strided-cnn")
    assert "(network in bench/nets/classifiers/)" in network and "--teacher strided-cnn" in network
    recipe = say("show", "faces")
    for line in (
        "faces  (teacher recipe in bench/teachers/recipes/)",
        "  typed  --teacher.recipe faces",
        "options  (--teacher.NAME VALUE)",
        "epochs               int = 30  (a size)  [smoke 1, quick 40]",
        "faces  (prior in bench/priors/kinds/)",
    ):
        assert line in recipe, line


def test_names_with_an_argument_or_a_size_and_networks_of_libraries_are_shown(say) -> None:  # type: ignore[no-untyped-def]
    assert say("show", "celeba-id:25@32").startswith("celeba-id  (data set)")
    assert say("show", "digits@32").startswith("digits  (data set)")
    assert main(["show", "digits@3"]) == 2 and main(["show", "digits:3"]) == 2
    assert "(network of timm)" in say("show", "vit_tiny_patch16_224")
    network = say("show", "tv:resnet18")
    assert "(network of torchvision)" in network and "small:tv:resnet18 has a stem" in network


def test_what_own_images_must_be_is_shown(say) -> None:  # type: ignore[no-untyped-def]
    for name in ("npz", "npz:there.npz"):
        shown = say("show", name)
        assert shown.startswith("npz:PATH  (data set, read by path)") and "floats in [0, 1]" in shown
    assert "central square" in say("show", "imagefolder")
    assert "only tensors are read" in say("show", "pt") and main(["show", "zip"]) == 2


def test_what_has_no_claim_says_so(say) -> None:  # type: ignore[no-untyped-def]
    assert "  claimed       nothing\n" in say("show", "class-moments")


def test_a_name_of_a_method_and_of_a_network_is_shown_for_both(say) -> None:  # type: ignore[no-untyped-def]
    shown = say("show", "datalens")
    assert shown.index("datalens  (method in baselines/") < shown.index("datalens  (network in ")


def test_a_part_of_another_distribution_says_where_it_is_from(
    say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    other = tmp_path / "other"
    other.mkdir()
    install(other, "[bench.networks]\ntheirs = their_net\n", their_net="")
    monkeypatch.syspath_prepend(other)
    assert "from their_net" in say("show", "theirs")


def test_a_plugin_of_another_distribution_says_where_it_is_from(
    say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    other = tmp_path / "other"
    other.mkdir()
    install(other, "[bench.methods]\ntheir-rule = baselines.no_defence:NoDefence\n")
    monkeypatch.syspath_prepend(other)
    assert say("show", "their-rule").startswith("their-rule  (method from baselines.no_defence:NoDefence, version 1)")


def test_test_sets_that_were_looked_at_are_named(say) -> None:  # type: ignore[no-untyped-def]
    line = "  looked at     the test set of mnist: settings of the questions and of the committee were chosen; "
    assert f"{line}the test set of digits: " in say("show", "dpsd")
    for other in (("dpsd", "--variant", "printed"), ("pate",), ("gmi",)):
        assert "looked at " not in say("show", *other)


def test_help_of_a_run_shows_the_values_of_the_variant(say) -> None:  # type: ignore[no-untyped-def]
    run = ("run", "--method", "no-defence", "--attack", "shown")
    assert "Learning rate. [0.5; paper 1.0]" in say(*run, "--help")
    assert "Learning rate. [1.0]" in say(*run, "--attack-variant", "printed", "--help")
    assert "search. [2; paper 100]" in say(*run, "--tier", "smoke", "--help")


def test_help_of_a_run_shows_the_options_of_the_teacher_s_recipe(say) -> None:  # type: ignore[no-untyped-def]
    shown = say("run", "--method", "no-defence", "--teacher", "resnet18", "--help")
    assert "--teacher.recipe" in shown and "[standard]" in shown and "--teacher.epochs" in shown
    assert main(["run", "--method", "no-defence", "--teacher.recipe", "standrad"]) == 2


def test_help_of_a_run_shows_the_options_of_the_evaluator_of_its_data_set(say) -> None:  # type: ignore[no-untyped-def]
    run = ("run", "--method", "no-defence", "--attack", "shown")
    assert "--evaluator.recipe" in say(*run, "--help") and "--evaluator.turn" not in say(*run, "--help")
    assert "--evaluator.turn" in say(*run, "--dataset", "lfw:10", "--help")
    assert "--evaluator." not in say("run", "--method", "no-defence", "--help")


def test_one_way_to_ask_for_many_teachers(say) -> None:  # type: ignore[no-untyped-def]
    assert main(["run", "--method", "dgd", "--teachers", "4"]) == 2
    assert "--teachers" not in say("run", "--help")
    assert "--method.teachers" in say("run", "--method", "dgd", "--help")


def test_doctor_lists_the_driver_s_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path / "gpus")
    monkeypatch.setattr(doctor, "_ask_driver", lambda: [])
    assert "no NVIDIA device" in say("doctor")
    for number in (0, 1):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H{number}00\nIRQ: 7\n", encoding="utf-8")
    shown = say("doctor")
    assert "cuda:0         NVIDIA H000" in shown and "cuda:1         NVIDIA H100" in shown
    assert "torch is not asked" in shown


def test_doctor_looks_at_files_and_says_what_is_missing(tmp_path: Path, say) -> None:  # type: ignore[no-untyped-def]
    shown = say("doctor", "--data-root", str(tmp_path))
    assert "digits         found" in shown and "mnist          missing: blocks --dataset mnist; no" in shown
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{part}-ubyte").touch()
    assert "mnist          found" in say("doctor", "--data-root", str(tmp_path))


def test_a_data_set_says_who_judges_its_reconstructions(say) -> None:  # type: ignore[no-untyped-def]
    shown = say("show", "lfw")
    assert "by the recipe faces, with 1.5 times a teacher's passes" in shown and "dlib's descriptor of faces" in shown
    shown = say("show", "digits")
    assert "evaluator  by the standard recipe" in shown and "dlib" not in shown
