"""Recipes as users write them, and plans, which cache the common parts of their cells and know variants."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bench import cli, registry
from bench.api import Method
from bench.cli.sweep import SettingsParser
from bench.config import plain
from bench.errors import BenchError
from bench.pipeline.attacks import attack_specs
from bench.pipeline.components import Components
from bench.pipeline.job import run_spec
from bench.pipeline.resolve import load_job
from bench.privacy import Budget
from bench.storage.specs import DataSpec, JsonObject, Spec, canonical, digest
from bench.sweeps.plan import Cell
from bench.sweeps.recipe import describe, read
from tests.sweeps.importable import planned, recipe

COMMANDS = [
    "run --method dpsd --epsilon 3 --method.sigma 2 --seeds 1",
    "run --method dpsd --variant printed --epsilon none --method.mode label --compile --seeds 1",
    "run --method no-defence --attack gmi --attack-variant printed --attack.lr 0.5 --teacher.lr 0.1 --seeds 1",
    "run --method no-defence --attack none --teacher-weights x.pt --teacher-normalise 0.1,0.3 --seeds 1",
    "audit release --method dpsd --canaries 50 --overfit --method.sigma 2 --seeds 1",
]


def test_settings_parser_parses_like_the_command() -> None:
    parser = SettingsParser()
    for command in [*COMMANDS, *reversed(COMMANDS)]:
        words = command.split()
        parsers = {"parser": None, "actions": None}
        assert vars(parser.parse(words)) | parsers == vars(cli.parse(words)) | parsers


def test_settings_parser_refuses_an_unknown_option() -> None:
    parser = SettingsParser()
    for words in ("run --method dpsd --epsilom 1", "run --method dgd --method.sigma 1", "run --method dpsd --tier x"):
        with pytest.raises(BenchError) as alone:
            cli.parse(words.split())
        with pytest.raises(BenchError) as planned:
            parser.parse(words.split())
        assert str(planned.value) == str(alone.value)


@pytest.mark.parametrize("method", ["dpsd", "pate", "dgd"])
def test_spec_hash_is_the_digest_of_its_plain_data(tmp_path: Path, method: str) -> None:
    settings, _ = SettingsParser()(f"run --method {method} --attack gmi --tier smoke --out {tmp_path}".split())
    made = load_job(settings)
    spec = run_spec(made, 3)
    parts: list[Spec] = [spec, spec.release, spec.release.teacher, spec.evaluator, *attack_specs(spec).values()]
    for part in parts:
        assert part.hash == digest(asdict(part)) and f"{part.text}\n" == canonical(asdict(part))
    assert spec.hash != run_spec(made, 4).hash and spec.hash == run_spec(load_job(settings), 3).hash
    assert spec.release.options == plain(made.method)


def test_plan_loads_common_parts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = 'method = ["dpsd", "dgd"]\nepsilon = [1, 2, 3]\nattack = "gmi"\n'
    path = recipe(tmp_path, grid, seeds="[0, 1, 2]")
    counted = {"loads": 0, "parsers": 0}

    def counting(name: str, function: object) -> object:
        def call(*given: object) -> object:
            counted[name] += 1
            return function(*given)  # type: ignore[operator]

        return call

    monkeypatch.setattr(Components, "material", counting("loads", Components.material))
    monkeypatch.setattr(cli, "parsers_for", counting("parsers", cli.parsers_for))
    cells = planned(path, tmp_path / "runs")
    assert counted == {"loads": 1, "parsers": 1} and len(cells) == 18
    assert len({cell.record for cell in cells}) == 18 and {cell.state for cell in cells} == {"ready"}
    for cell in (cells[0], cells[7], cells[17]):
        settings, _ = SettingsParser()(["run", *cell.arguments])
        alone = run_spec(load_job(settings), cell.seed)
        assert cell.record == tmp_path / "runs" / "records" / alone.hash
    assert len({cell.after for cell in cells}) == 3, "teacher and evaluator of each seed"


def test_plan_cell_without_data_set_uses_the_default(tmp_path: Path) -> None:
    path = tmp_path / "usual.toml"
    path.write_text('[defaults]\nmethod = "no-defence"\nepsilon = "none"\n[[grid]]\nteacher = "datalens"\n')
    assert len(planned(path, tmp_path / "runs", ["digits"])) == 1
    assert not planned(path, tmp_path / "runs", ["mnist"])


def test_plan_checks_a_budget_once_for_all_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = 'method = "dpsd"\nepsilon = [1, 2]\nattack = ["none", "gmi", "loss-threshold"]\n'
    checked: list[float | None] = []

    def check(components: Components, method: Method, budget: Budget, dataset: str, classes: int) -> None:
        checked.append(budget.epsilon)

    monkeypatch.setattr(Components, "check_method", check)
    path = recipe(tmp_path, lists, seeds="[0, 1]")
    cells = planned(path, tmp_path / "runs")
    assert checked == [1.0, 2.0] and len({cell.record for cell in cells}) == len(cells) == 12


def test_components_options_1_and_1_0_are_different() -> None:
    lookup = Components(caches=True)
    whole, broken = (lookup.settings_of(Setting(scale)) for scale in (1, 1.0))
    assert Setting(1) == Setting(1.0) and whole != broken and len({whole, broken}) == 2
    assert whole == JsonObject({"scale": 1}) == {"scale": 1.0} and whole.text == '{\n "scale": 1\n}'
    where = [lookup.spec(DataSpec, "digits", "f", split) for split in ("iid", "all", "iid")]
    assert where[0] is where[2] and where[0] != where[1]


@dataclass(frozen=True)
class Setting:
    """An option with equal values of different types."""

    scale: float


def test_plan_bad_setting_refuses_only_its_cells(tmp_path: Path) -> None:
    path = recipe(tmp_path, 'method = "dpsd"\nepsilon = [1, -1]', 'method = "nope"', seeds="[0, 1]")
    cells = planned(path, tmp_path / "runs")
    assert [cell.state for cell in cells] == ["ready"] * 2 + ["refused"] * 2 + ["planned"] * 2
    assert all("-1" in cell.reason for cell in cells[2:4])


TWO = ("printed", "working")


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    if not registry.variants("method", "dgd") == registry.variants("attack", "mi-face") == TWO:
        pytest.skip("dgd or mi-face has no variants")
    grids = 'variant = ["printed", "working"]', 'attack-variant = "printed"', 'variant = "own"'
    return planned(recipe(tmp_path, *grids, method='"dgd"', attack='"mi-face"'), tmp_path / "runs")


def spec(cell: Cell) -> Any:
    settings, _ = SettingsParser()(["run", *cell.arguments])
    return run_spec(load_job(settings), cell.seed)


def test_recipe_variants_are_separate_runs(cells: list[Cell]) -> None:
    assert [cell.state for cell in cells] == ["ready", "ready", "ready", "refused"], [cell.reason for cell in cells]
    assert "'own'" in cells[3].reason
    assert cells[0].name.endswith("variant=printed seed=0") and "attack-variant=printed" in cells[2].name
    found = [(one.release.variant, one.attack.variant) for one in map(spec, cells[:3])]
    assert found == [("printed", "working"), ("working", "working"), ("working", "printed")]
    assert len({cell.record for cell in cells[:3]}) == 3, "a run for each variant"
    assert len({cell.after for cell in cells[:3]}) == 1, "with the same teacher and evaluator"


def test_recipe_default_variant_by_name_is_the_same_run(cells: list[Cell]) -> None:
    settings, _ = SettingsParser()(["run", *cells[1].arguments])
    unnamed = load_job(replace(settings, variant=None))
    assert run_spec(unnamed, 0) == run_spec(load_job(settings), 0)


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
