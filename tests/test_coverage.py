"""Which attacks ran on the recommended releases: constructed boards, known gaps, and the published boards."""

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Refused, Type
from wide_boards import boards_of, proved, write_boards

import bench
from bench import registry
from bench.boards.coverage import AttackKind, Cell, CoveredRelease, State, coverage, recommended
from bench.boards.gaps import GAPS, Gap, findings, gaps_without_board, read_gaps
from bench.boards.results import results
from bench.boards.selection import Constraints, candidates, choose, least_epsilon
from bench.boards.tables import Board, read_boards
from bench.errors import BenchError

HEADS = "dataset,tier,split,methods,kinds,reason"
LOSS = {"attack": "loss-threshold", "attack_variant": "printed", "access": "scores", "auc": 0.52, "teacher_auc": 0.61}
GMI = {"attack": "gmi", "attack_variant": "working", "access": "weights", "attack_accuracy": 0.4, "power": "pass",
       "teacher_attack_accuracy": 0.9}  # fmt: skip


def board_of(*rows: dict[str, Any], dataset: str = "fmnist") -> Board:
    (made,) = boards_of(rows, dataset)
    return made


def cells_of(*rows: dict[str, Any], dataset: str = "fmnist") -> dict[AttackKind, Cell]:
    """The cells of the only recommended release of a board."""
    (found,) = coverage(board_of(*rows, dataset=dataset))
    return {cell.kind: cell for cell in found.cells}


def write_gaps(folder: Path, *lines: str) -> Path:
    path = folder / GAPS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEADS, *lines]) + "\n", encoding="utf-8")
    return folder


def test_recommended_are_those_that_choose_names() -> None:
    """For every pair of limits, the first candidate of each place and the one of least epsilon are recommended."""
    epsilons, accuracies = (0.5, 1.0, 1.0005, 2.0, 4.0), (0.6, 0.7, 0.65, 0.9, 0.8)
    rows = [proved(f"m{n}", e, a) for n, (e, a) in enumerate(zip(epsilons, accuracies, strict=True))]
    boards = boards_of([*rows, proved("m9", 1.0, 0.99, flags="refuted"), proved("m8", 0.1, 0.99, tier="smoke")])
    named = set()
    for epsilon in (*epsilons, 0.7, 9.0):
        for accuracy in (0.0, *accuracies):
            for found in choose(boards, Constraints("example", epsilon, accuracy)).taken.values():
                named |= {found[0].row.method, least_epsilon(found).row.method}
    assert [each.row.method for each in recommended(candidates(boards))] == sorted(named) == ["m0", "m1", "m3"]


def test_recommended_within_each_place_and_unit() -> None:
    rows = [proved("a", 1.0, 0.9), proved("b", 2.0, 0.8), proved("c", 2.0, 0.8, unit="label"),
            proved("d", 2.0, 0.8, split="few"), proved("e", 2.0, 0.8, tier="paper")]  # fmt: skip
    assert sorted(each.row.method for each in recommended(candidates(boards_of(rows)))) == ["a", "c", "d", "e"]


def test_every_kind_has_a_cell_with_a_state() -> None:
    found = cells_of(proved("dp-sgd", 1.0, 0.9, **GMI), proved("dp-sgd", 1.0, 0.9, **LOSS, power="inconclusive"))
    assert list(found) == list(AttackKind)
    assert {kind: cell.state for kind, cell in found.items()} == {
        AttackKind.INVERSION: State.RAN, AttackKind.LOSS: State.RAN, AttackKind.REFERENCES: State.MISSING,
        AttackKind.QUANTILE: State.MISSING, AttackKind.LABEL_ONLY: State.MISSING,
        AttackKind.RELEASED: State.NOT_APPLICABLE, AttackKind.AUDIT: State.MISSING,
    }  # fmt: skip
    inverted, guessed = found[AttackKind.INVERSION], found[AttackKind.LOSS]
    assert (inverted.attack, inverted.value, inverted.teacher, inverted.power) == ("gmi", 0.4, 0.9, True)
    assert (guessed.metric, guessed.value, guessed.teacher, guessed.power) == ("auc", 0.52, 0.61, False)
    assert str(inverted).startswith("gmi 40.0 % / not measured") and "0.520 / not measured, no power" in str(guessed)


def test_strongest_attack_of_a_kind_is_shown() -> None:
    """Power first, then the score; the baseline attack that queries no target does not count as an inversion."""
    weak = proved("dp-sgd", 1.0, 0.9, **{**GMI, "attack": "mi-face", "attack_accuracy": 0.9, "power": "inconclusive"})
    found = cells_of(
        proved("dp-sgd", 1.0, 0.9, **GMI), weak, proved("dp-sgd", 1.0, 0.9, **GMI | {"attack": "random-guess"})
    )
    assert found[AttackKind.INVERSION].attack == "gmi"
    only = cells_of(proved("dp-sgd", 1.0, 0.9, **GMI | {"attack": "random-guess"}))
    assert only[AttackKind.INVERSION].state is State.MISSING
    lira = {**LOSS, "attack": "lira", "auc": 0.7, "power": "pass"}
    both = cells_of(
        proved("dp-sgd", 1.0, 0.9, **lira), proved("dp-sgd", 1.0, 0.9, **lira | {"attack": "rmia", "auc": 0.6})
    )
    assert both[AttackKind.REFERENCES].attack == "lira"


@pytest.mark.parametrize(
    ("dataset", "row", "refused"),
    [
        ("fmnist", proved("dpsd", 1.0, 0.9), set()),
        ("fmnist", proved("dp-sgd", 1.0, 0.9), {"released"}),
        ("fmnist", proved("dp-sgd", 1.0, 0.9, split="full"), {"references", "quantile", "released", "audit"}),
        ("fmnist", proved("dpsd", 1.0, 0.9, split="few"), {"audit"}),
        ("digits", proved("dpsd", 1.0, 0.9), {"quantile"}),
        ("digits", proved("dpsd", 1.0, 0.9, split="few"), {"quantile", "audit"}),
        ("celeba-g", proved("dpsd", 1.0, 0.9), {"inversion"}),
        ("lfw", proved("dpsd", 1.0, 0.9, split="identity"), {"references", "quantile", "audit"}),
        ("fmnist", proved("alibi", 1.0, 0.9, unit="label"),
         {"loss", "references", "quantile", "label-only", "released"}),
        ("fmnist", proved("not-installed", 1.0, 0.9), set()),
    ],
)  # fmt: skip
def test_kinds_that_do_not_apply_have_a_reason(dataset: str, row: dict[str, Any], refused: set[str]) -> None:
    found = cells_of(row, dataset=dataset)
    assert {str(kind) for kind, cell in found.items() if cell.state is State.NOT_APPLICABLE} == refused
    assert all(bool(cell.reason) == (kind in refused) for kind, cell in found.items())


def test_population_limit_is_that_of_the_attack() -> None:
    """569 records are too few for `quantile` by its own rule."""
    quantile = registry.load("attack", "quantile")()
    (found,) = coverage(board_of(proved("dpsd", 1.0, 0.9, split="few"), dataset="digits"))
    assert "569" in next(cell.reason for cell in found.cells if cell.kind is AttackKind.QUANTILE)
    assert quantile.skip_reason((1, 8, 8), 10, 569) and quantile.skip_reason((1, 8, 8), 10, 1000) is None


def test_void_split_needs_no_membership_attack() -> None:
    """Where a classifier without a model finds members, membership attacks do not apply, on that split only."""

    def with_blind(low: float) -> Board:
        board = board_of(proved("dp-sgd", 1.0, 0.9, **LOSS), proved("dp-sgd", 1.0, 0.9, split="few"))
        row = next(each for each in board.attacks if each.metric == "auc")
        board.attacks.append(replace(row, metric="blind_auc", value=low + 0.02, low=low, high=low + 0.04))
        return board

    def states(board: Board) -> list[State]:
        return [cell.state for each in coverage(board) for cell in each.cells if cell.kind is AttackKind.LABEL_ONLY]

    assert states(with_blind(0.49)) == [State.MISSING, State.MISSING]
    assert sorted(states(with_blind(0.51))) == [State.NOT_APPLICABLE, State.MISSING]
    (ran,) = [cell for each in coverage(with_blind(0.51)) for cell in each.cells if cell.state is State.RAN]
    assert (ran.baseline, ran.baseline_of) == (0.53, "no model")


def test_findings_name_unlisted_and_closed_gaps() -> None:
    board = board_of(proved("dp-sgd", 1.0, 0.9, **GMI))
    place = ("fmnist", "quick", "iid")
    gaps = [Gap(place, "dp-sgd", kind, "no time", 2) for kind in AttackKind if kind not in ("inversion", "released")]
    assert findings(board, gaps) == []
    (unlisted,) = findings(board, gaps[1:])
    assert "dp-sgd" in unlisted and "loss" in unlisted and "quantile" not in unlisted
    for closed in (Gap(place, "dp-sgd", AttackKind.INVERSION, "no time", 7), Gap(place, "gep", AttackKind.LOSS, "x", 7),
                   Gap(("fmnist", "paper", "iid"), "dp-sgd", AttackKind.LOSS, "no time", 7)):  # fmt: skip
        (line,) = findings(board, [*gaps, closed])
        assert "line 7" in line and closed.method in line and closed.kind in line
    elsewhere = Gap(("usps", "quick", "iid"), "dp-sgd", AttackKind.LOSS, "no time", 9)
    assert findings(board, [*gaps, elsewhere]) == []
    assert len(gaps_without_board([*gaps, elsewhere], ["fmnist"])) == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dataset,tier\n", "columns"),
        ("", "CSV"),
        (f"{HEADS}\nfmnist,quick,iid,dp-sgd,loss,\n", "line 2"),
        (f"{HEADS}\nfmnist,quick,iid,dp-sgd,loss\n", "line 2"),
        (f"{HEADS}\nfmnist,quick,iid,dp-sgd,loss,no time\nfmnist,quick,iid,gep,los,no time\n", "line 3"),
    ],
)
def test_damaged_gaps_are_refused(tmp_path: Path, text: str, named: str) -> None:
    write_gaps(tmp_path).joinpath(GAPS).write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=named):
        read_gaps(tmp_path)


def test_gaps_of_a_line_are_one_for_each_method_and_kind(tmp_path: Path) -> None:
    assert read_gaps(tmp_path) is None
    found = read_gaps(write_gaps(tmp_path, 'fmnist,quick,iid,dp-sgd gep,loss audit,"a, b"'))
    assert [(gap.method, gap.kind, gap.reason, gap.line) for gap in found or ()] == [
        (method, kind, "a, b", 2) for method in ("dp-sgd", "gep") for kind in (AttackKind.LOSS, AttackKind.AUDIT)
    ]


def test_coverage_command_prints_no_empty_cell(tmp_path: Path, typed: Type) -> None:
    folder = write_boards(tmp_path, [proved("dp-sgd", 1.0, 0.9, **GMI)], dataset="fmnist")
    write_gaps(folder, "fmnist,quick,iid,dp-sgd,loss,no time for it")
    said = " ".join(typed("leaderboard --coverage --boards", folder).out.split())
    for words in ("gmi 40.0 % / not measured", "no time for it", "not attacked yet, and no reason is listed",
                  "neither images nor a generator are released"):  # fmt: skip
        assert all(word in said for word in words.split()), words


def test_missing_attacks_are_printed_as_commands(tmp_path: Path, typed: Type) -> None:
    folder = write_boards(tmp_path, [proved("dp-sgd", 1.0, 0.9, **GMI)], dataset="fmnist")
    lines = typed("leaderboard --coverage --commands --boards", folder).out.splitlines()
    attacks = [line.rpartition("--attack ")[2] for line in lines if line.startswith("bench run --method dp-sgd")]
    assert attacks == ["loss-threshold", "rmia", "quantile", "label-only"]
    audits = [line for line in lines if line.startswith("bench audit release --method dp-sgd")]
    assert len(audits) == 1 and len(lines) == 5
    assert all("--dataset fmnist" in line and line.count("--seeds 0") == 1 for line in lines)
    assert "--coverage" in typed("leaderboard --commands").err


@pytest.mark.parametrize("more", ["--check", "--publish", "--attacks"])
def test_coverage_command_refuses_other_actions(more: str, refused: Refused) -> None:
    assert "--coverage" in refused("leaderboard --coverage", more)
    assert "usps" in refused("leaderboard --coverage --dataset usps --boards", ROOT / "leaderboards")


def test_python_table_has_a_row_for_each_kind(tmp_path: Path) -> None:
    folder = write_boards(tmp_path, [proved("dp-sgd", 1.0, 0.9, **GMI)], dataset="fmnist")
    found = bench.leaderboard("fmnist", table="coverage", boards=folder)
    assert list(found["kind"]) == list(AttackKind) and set(found["state"]) == set(State)
    assert found.loc[found["kind"] == "inversion", "value"].item() == 0.4
    assert found.loc[found["state"] != "ran", "reason"].str.len().min() > 0


@pytest.fixture(scope="module")
def published() -> list[CoveredRelease]:
    """The coverage of the published boards."""
    return [each for board in read_boards(ROOT / "leaderboards") for each in coverage(board)]


def test_published_gaps_are_exactly_the_missing_attacks() -> None:
    gaps = read_gaps(ROOT / "leaderboards")
    assert gaps is not None and gaps
    assert [line for board in read_boards(ROOT / "leaderboards") for line in findings(board, gaps)] == []


def test_releases_on_the_line_of_the_figure_are_covered(
    published: list[CoveredRelease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    frontier = importlib.import_module("frontier")
    covered = {(each.release.row.dataset, each.release.row.method, each.release.epsilon) for each in published}
    for board in (each for each in read_boards(ROOT / "leaderboards") if each.dataset in ("mnist", "fmnist")):
        settings = frontier.measured(results(board))
        best = frontier.frontier(each for each in settings if each[1] <= frontier.SMALL and each[2] >= frontier.LOWEST)
        assert best and {(board.dataset, method, epsilon) for method, epsilon, _ in best} <= covered


def test_coverage_needs_no_torch() -> None:
    code = (
        "import sys\nfrom bench.boards.tables import read_boards\nfrom bench.boards.coverage import coverage\n"
        "from pathlib import Path\nassert [coverage(board) for board in read_boards(Path('leaderboards'))]\n"
        "assert not {'torch', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
