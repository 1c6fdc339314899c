"""Recipes as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.sweeps.recipe import describe, read


def write(folder: Path, text: str) -> Path:
    path = folder / "some.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_recipe_grid_is_every_combination_with_defaults(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        title = "Some"
        paper = "dpsd"
        table = "Table I"
        [defaults]
        teacher = "resnet34"
        epsilon = 10
        seeds = [0, 1]
        [[grid]]
        method = ["dpsd", "dgd"]
        dataset = ["mnist", "fmnist"]
        "method.sigma" = 2.5
        compile = true
        [[grid]]
        method = "rr"
        epsilon = [1, 2]
        seeds = [7]
        note = "labels"
        """,
    )
    recipe = read(path)
    assert (recipe.title, recipe.paper, recipe.table) == ("Some", "dpsd", "Table I")
    found = [dict(cell.options) for cell in recipe.cells]
    common = {"teacher": "resnet34", "epsilon": "10", "method.sigma": "2.5", "compile": "true"}
    assert found[:4] == [common | {"method": m, "dataset": d} for m in ("dpsd", "dgd") for d in ("mnist", "fmnist")]
    assert found[4:] == [{"teacher": "resnet34", "epsilon": e, "method": "rr"} for e in ("1", "2")]
    assert [cell.seeds for cell in recipe.cells] == [(0, 1)] * 4 + [(7,)] * 2
    assert [cell.note for cell in recipe.cells] == [""] * 4 + ["labels"] * 2
    assert describe(recipe.cells[4].options) == "rr teacher=resnet34 epsilon=1"


def test_recipe_number_keeps_all_digits(tmp_path: Path) -> None:
    path = write(tmp_path, "[[grid]]\nmethod = 'rr'\nepsilon = [1.23456789, 1.23456712, 2.0, 1e-5, inf]")
    assert [cell.get("epsilon") for cell in read(path).cells] == ["1.23456789", "1.23456712", "2", "1e-05", "inf"]


def test_recipe_cells_may_be_audits(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [defaults]
        command = "audit release"
        canaries = [40, 60]
        [[grid]]
        method = "dpsd"
        overfit = true
        "teacher.epochs" = 10
        "teacher.flip" = false
        [[grid]]
        method = "rr"
        overfit = false
        [[grid]]
        command = "run"
        method = "rr"
        canaries = 40
        overfit = false
        """,
    )
    cells = read(path).cells
    assert [cell.command for cell in cells] == ["audit release"] * 4 + ["run"]
    overfit = ["--overfit", "--teacher.epochs", "10", "--teacher.flip", "false"]
    assert cells[0].arguments == ["--canaries", "40", "--method", "dpsd", *overfit]
    assert cells[3].arguments == ["--canaries", "60", "--method", "rr"]
    assert cells[4].arguments == ["--canaries", "40", "--method", "rr"], "the same options, and another command"
    assert cells[2].name == "audit release: rr canaries=40 overfit=false" and cells[4].name[:3] == "rr "


def test_recipe_data_set_options_override_defaults(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [defaults]
        dataset = ["digits", "mnist"]
        student = "datalens"
        [dataset.mnist]
        student = "resnet18"
        "teacher.epochs" = 20
        [[grid]]
        method = "rr"
        [[grid]]
        method = "dpsd"
        student = "lenet"
        """,
    )
    cells = read(path).cells
    assert [cell.get("student") for cell in cells] == ["datalens", "resnet18", "lenet", "lenet"]
    assert [cell.get("teacher.epochs") for cell in cells] == ["", "20", "", "20"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("title = [", ""),
        ("titel = 'x'\n[[grid]]\nmethod = 'rr'", "'titel'"),
        ("title = 'x'", "[[grid]]"),
        ("[[grid]]\ndataset = 'mnist'", "dataset"),
        ("[[grid]]\nmethod = 'rr'\nmethod.sigma = 2", ""),
        ("[[grid]]\nattack.steps = 2\nmethod = 'rr'", '"attack.steps"'),
        ("[[grid]]\nmethod = 'rr'\nout = 'x'", "'out'"),
        ("[[grid]]\nmethod = 'rr'\nfresh = true", "'fresh'"),
        ("[[grid]]\nmethod = 'rr'\ndevice = 'cpu'", "--devices"),
        ("[[grid]]\nmethod = 'rr'\ndownload = true", "'download'"),
        ("[[grid]]\nmethod = 'rr'\nseeds = 3", "seeds is 3"),
        ("[[grid]]\nmethod = 'rr'\nepsilon = []", "epsilon"),
        ("[[grid]]\nmethod = 'rr'\nseeds = [-1]", "[-1]"),
        ("[[grid]]\nmethod = 'rr'\nepsilon = [[1]]", "epsilon is [1]"),
        ("[[grid]]\nmethod = 'rr'\n[[grid]]\nmethod = 'rr'", "rr"),
        ("[[grid]]\nmethod = 'rr'\nunit = 'label'\n[[grid]]\nunit = 'label'\nmethod = 'rr'", "rr"),
        ("[[grid]]\nmethod = 'rr'\nseeds = [1, 0, 1]", "[1, 0, 1]"),
        ("[[grid]]\nmethod = 'rr'\n[dataset.mnist]\nstudent = 'datalens'", "[dataset.mnist]"),
        ("[[grid]]\nmethod = 'rr'\ndataset = 'a'\n[dataset.a]\nout = 'x'", "'out'"),
        ("[[grid]]\nmethod = 'rr'\ndataset = 'a'\n[dataset.a]\nepsilon = [1, 2]", "epsilon is [1, 2]"),
        ("dataset = 'a'\n[[grid]]\nmethod = 'rr'", "[dataset.NAME]"),
        ("[[grid]]\nmethod = 'rr'\ncommand = 'audit'", "'audit'; expected 'run' or 'audit release'"),
        ("[[grid]]\nmethod = 'rr'\ncommand = ['run', 'audit release']", "expected 'run' or 'audit release'"),
        ("[defaults]\ncommand = 'audit release'\n" + "[[grid]]\nmethod = 'rr'\n" * 2, "audit release: rr"),
    ],
)
def test_recipe_mistake_names_the_file_and_the_key(tmp_path: Path, text: str, value: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BenchError) as error:
        read(path)
    line = str(error.value)
    assert value in line and "some.toml" in line and "\n" not in line


def test_recipe_file_missing_or_binary_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"no\.toml"):
        read(tmp_path / "no.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchError, match=r"b\.toml"):
        read(tmp_path / "b.toml")
