"""The best releases: the most accurate one of each kind within an accounted epsilon."""

from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Refused, Type
from wide_boards import boards_of, proved, write_boards

import bench
from bench import plugins
from bench.boards.best import EPSILONS, OF_IMAGES, OF_STUDENTS, Kind, best_releases
from bench.boards.installed import installed_version
from bench.boards.tables import read_boards


def row(method: str, epsilon: float, accuracy: float, **more: Any) -> dict[str, Any]:
    version = installed_version("method", method, None)
    return proved(method, epsilon, accuracy, **{"variant": "working", "version": version} | more)


ROWS = [
    row("dp-sgd", 0.9, 0.80), row("private-features", 2.9, 0.95), row("gep", 7.9, 0.90), row("dp-teacher", 3.0, 0.85),
    row("dp-merf", 10.0, 0.70),
]  # fmt: skip


def named(*rows: dict[str, Any]) -> dict[tuple[Kind, float], str]:
    """The methods of the best releases of a board, by kind and limit."""
    (board,) = boards_of(rows, "fmnist")
    return {(each.kind, each.limit): each.release.row.method for each in best_releases(board)}


def test_most_accurate_release_within_each_limit() -> None:
    found = named(*ROWS)
    assert [found[Kind.NETWORK, limit] for limit in EPSILONS] == ["dp-sgd", *3 * ["private-features"]]
    assert [found.get((Kind.STUDENT, limit)) for limit in EPSILONS] == [None, *3 * ["dp-teacher"]]
    assert [found.get((Kind.IMAGES, limit)) for limit in EPSILONS] == [None, None, None, "dp-merf"]


@pytest.mark.parametrize(
    "other",
    [
        {"flags": "refuted"}, {"tier": "smoke"}, {"variant": "printed"}, {"split": "full"}, {"unit": "label"},
        {"epsilon_accounted": 10.01}, {"delta": 0.01}, {"version": 0},
    ],
)  # fmt: skip
def test_other_releases_do_not_count(other: dict[str, Any]) -> None:
    assert named(*ROWS, row("zcdp", 0.5, 0.99))[Kind.NETWORK, 1.0] == "zcdp"
    assert named(*ROWS, row("zcdp", 0.5, 0.99) | other) == named(*ROWS)


def test_public_weights_are_their_own_kind() -> None:
    found = named(*ROWS, row("private-features", 0.5, 0.99, flags="weights:resnet18@0123abcd"))
    assert found[Kind.PUBLIC, 1.0] == "private-features" and found[Kind.NETWORK, 1.0] == "dp-sgd"


def test_methods_of_a_kind_are_installed() -> None:
    assert set(plugins.entries("method")) >= OF_STUDENTS | OF_IMAGES and not OF_STUDENTS & OF_IMAGES


def test_command_and_python_list_the_same_releases(tmp_path: Path, typed: Type, refused: Refused) -> None:
    folder = write_boards(tmp_path, ROWS, dataset="fmnist")
    table = bench.leaderboard(table="best", boards=folder)
    assert len(table) == 8 and set(table.attacks) == {"not attacked"} and (table.epsilon <= table.within).all()
    printed = typed("leaderboard --best --boards", folder).out
    assert printed.count("not attacked") == 8 and all(name in printed for name in table.kind)
    refused("leaderboard --best --check")
    refused("leaderboard --best --coverage")


def test_published_table_is_small() -> None:
    found = [(each.dataset, kind) for each in read_boards(ROOT / "leaderboards") for kind in kinds(each)]
    assert 15 <= len(found) <= 40


def kinds(board: Any) -> set[Kind]:
    return {each.kind for each in best_releases(board)}
