"""`bench show` and `bench run --help` of plug-ins with variants, and `bench doctor` of a machine with devices."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Refused, Type
from distributions import install

from bench.cli import doctor

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
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Type) -> Say:
    """A function that returns the output of `bench ...`, with the attacks above installed."""
    points = "[bench.attacks]\nshown = shown_attack\nparts = shown_attack\nparts.working = shown_working\n"
    install(tmp_path, points, shown_attack=ATTACK, shown_working=WORKING)
    monkeypatch.syspath_prepend(tmp_path)

    def said(*words: object) -> str:
        status, out, _ = typed(*words)
        assert status == 0
        return out

    return said


def test_list_names_plugins_of_one_or_all_kinds(say: Say) -> None:
    listed, methods = say("list"), say("list methods")
    names = ("dpsd", "no-defence", "gmi", "digits", "imagefolder:PATH", "tv:NAME")
    assert [name for name in names if f"  {name} " not in listed] == []
    assert "  dpsd " in methods and "  gmi " not in methods


def test_show_lists_variants_and_changes(say: Say) -> None:
    shown = say("show shown")
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
    printed = say("show shown --variant printed")
    assert "shown         variant printed" in printed
    assert [text for text in ("[bold]changes", "1. Another", "[working") if text in printed] == []


def test_show_has_the_options_of_a_separate_working_file(say: Say, refused: Refused) -> None:
    working, printed = say("show parts"), say("show parts --variant printed")
    assert "images" in working and "1. Another algorithm." in working and "images" not in printed
    refused("show parts --variant own")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("strided-cnn", ["(network in bench/nets/classifiers/)", "--teacher strided-cnn"]),
        ("faces", ["faces  (teacher recipe in bench/teachers/recipes/)", "  option  --teacher.recipe faces",
                   "options  (--teacher.NAME VALUE)", "faces  (prior in bench/priors/kinds/)",
                   "epochs               int = 30  (a size)  [smoke 1, quick 40]"]),
        ("celeba-id:25@32", ["celeba-id  (data set)"]),
        ("digits@32", ["digits  (data set)"]),
        ("vit_tiny_patch16_224", ["(network of timm)"]),
        ("tv:resnet18", ["(network of torchvision)", "small:tv:resnet18 has a stem"]),
        ("npz", ["npz:PATH  (data set, read by path)", "floats in [0, 1]"]),
        ("npz:there.npz", ["npz:PATH  (data set, read by path)", "floats in [0, 1]"]),
        ("imagefolder", ["central square"]),
        ("pt", ["only tensors are read"]),
        ("class-moments", ["  claimed       nothing\n"]),
        ("lfw", ["recipe faces", "1.5", "dlib"]),
        ("digits", ["standard recipe"]),
    ],
)  # fmt: skip
def test_show_has_the_facts_of_each_kind(say: Say, name: str, texts: list[str]) -> None:
    shown = say("show", name)
    assert [text for text in texts if text not in shown] == []
    assert name != "digits" or "dlib" not in shown


@pytest.mark.parametrize("name", ["digits@3", "digits:3", "zip"])
def test_show_refuses_unknown_names(refused: Refused, name: str) -> None:
    refused("show", name)


def test_show_of_a_name_of_two_kinds_has_both(say: Say) -> None:
    shown = say("show datalens")
    assert shown.index("datalens  (method in baselines/") < shown.index("datalens  (network in ")


def test_show_names_the_module_of_an_installed_plugin(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[bench.networks]\ntheirs = their_net\n[bench.methods]\ntheir-rule = baselines.no_defence:NoDefence\n"
    (tmp_path / "other").mkdir()
    install(tmp_path / "other", points, their_net="")
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert "from their_net" in say("show theirs")
    assert say("show their-rule").startswith("their-rule  (method from baselines.no_defence:NoDefence, version 1)")


def test_show_names_test_sets_used_for_tuning(say: Say) -> None:
    shown = say("show dpsd")
    assert "  tuned on      the test set of mnist: " in shown and "; the test set of digits: " in shown
    for other in ("dpsd --variant printed", "pate", "gmi"):
        assert "tuned on " not in say("show", other)


@pytest.mark.parametrize(
    ("options", "texts", "others"),
    [
        ("", ["--epsilon"], ["--attack.rate", "--teachers"]),
        ("--method no-defence --attack shown", ["Learning rate. [0.5; paper 1.0]", "--evaluator.recipe"],
         ["--evaluator.turn"]),
        ("--method no-defence --attack shown --attack-variant printed", ["Learning rate. [1.0]"], []),
        ("--method no-defence --attack shown --tier smoke", ["search. [2; paper 100]"], []),
        ("--method no-defence --attack shown --dataset lfw:10", ["--evaluator.turn"], []),
        ("--method no-defence", [], ["--evaluator."]),
        ("--method no-defence --teacher resnet18", ["--teacher.recipe", "[standard]", "--teacher.epochs"], []),
        ("--method dgd", ["--method.teachers"], []),
    ],
)  # fmt: skip
def test_run_help_has_options_and_defaults(say: Say, options: str, texts: list[str], others: list[str]) -> None:
    shown = say("run", options, "--help")
    assert [text for text in texts if text not in shown] == [] and [text for text in others if text in shown] == []


@pytest.mark.parametrize("options", ["no-defence --teacher.recipe standrad", "dgd --teachers 4"])
def test_run_refuses_an_unknown_recipe_or_option(refused: Refused, options: str) -> None:
    refused("run --method", options)


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


def test_doctor_finds_data_sets_by_their_files(tmp_path: Path, say: Say, typed: Type) -> None:
    shown = say("doctor --data-root", tmp_path)
    assert "digits         found" in shown and "mnist          missing: blocks --dataset mnist; no" in shown
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{part}-ubyte").touch()
    assert "mnist          found" in say("doctor --data-root", tmp_path)
    missing = typed("doctor --data-root", tmp_path / "nowhere")
    assert missing.status == 2 and f"--data-root {tmp_path / 'nowhere'}" in missing.err
