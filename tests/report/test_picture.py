"""The picture of a board and the points of charts: positions of marks, chosen runs, and refused inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from made import record
from matplotlib.axes import Axes

from bench import cli
from bench.errors import BenchError
from bench.report.picture import compose, draw
from bench.report.points import accounted, epsilons, grouped
from bench.storage.records import Record

MADE = [
    record("dpsd", seed=0, accuracy=0.4, accounted=100.0, attack="gmi", success=0.7),
    record("dpsd", seed=1, accuracy=0.6, accounted=100.0, attack="gmi", success=0.9),
    record("dp-merf", accuracy=0.9, accounted=10.0),
    record("dgd", accuracy=0.3, attack="gmi", success=0.2, status="inconclusive"),
    record("no-defence", accuracy=0.99, claim="none"),
]


def marks(axes: Axes) -> list[tuple[float, float]]:
    return [(float(bar[0].get_xdata()[0]), float(bar[0].get_ydata()[0])) for bar in axes.containers]


def test_picture_marks_are_at_recorded_values() -> None:
    left, right = compose("made up", MADE, "gmi").axes
    assert sorted(marks(left))[:2] == [(10.0, 0.9), (100.0, pytest.approx(0.5))]
    endless = sorted(marks(left))[2:]
    assert [y for _, y in endless] == [0.3, 0.99] and all(x > 300 for x, _ in endless)
    assert left.get_xlim()[1] >= max(x for x, _ in endless)
    assert sorted(marks(right)) == [(0.2, 0.3), (pytest.approx(0.8), pytest.approx(0.5))]


def test_picture_attack_without_power_is_hollow() -> None:
    _, right = compose("made up", MADE, "gmi").axes
    faces = {round(float(bar[0].get_xdata()[0]), 6): bar[0].get_markerfacecolor() for bar in right.containers}
    assert faces[0.2] == "none" and faces[0.8] != "none"


def test_picture_bytes_do_not_depend_on_order(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", "made up", MADE, "gmi")
    draw(tmp_path / "b.png", "made up", MADE[::-1], "gmi")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_picture_without_runs_is_refused() -> None:
    with pytest.raises(BenchError, match="lira"):
        compose("made up", MADE, "lira")
    with pytest.raises(BenchError, match="client"):
        compose("made up", MADE, "gmi", "client")


def write(folder: Path, made: Record) -> None:
    path = folder / "records" / f"{made.hash}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(made.to_json())


def test_picture_command_draws_one_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for made in [*MADE, record("dpsd", dataset="mnist"), record("dpsd", accounted=3.0, tier="paper", attack="gmi")]:
        write(tmp_path, made)
    line = ["report", "--boards", str(tmp_path), "--picture", str(tmp_path / "new" / "r.png")]
    assert cli.main(line) == 2
    error = capsys.readouterr().err
    assert "digits, mnist" in error and "--dataset" in error
    assert cli.main([*line, "--dataset", "digits"]) == 0
    assert (tmp_path / "new" / "r.png").read_bytes().startswith(b"\x89PNG")
    assert f"{len(MADE)} runs" in capsys.readouterr().out


def test_point_takes_seeds_of_one_row_first() -> None:
    single = [record(seed=seed, accuracy=0.5 + seed / 10) for seed in (0, 1, 2)]
    attacked = [record(seed=seed, accuracy=0.9, attack="gmi", success=0.5) for seed in (0, 1)]
    (group,) = grouped([*attacked, *single], attacks=False)
    assert group == single, "the mean is the board's of the row with most seeds"
    (group,) = grouped([*attacked, *single[:1]], attacks=False)
    assert group == attacked
    (group,) = grouped([*attacked, *single[2:]], attacks=False)
    assert group == [*attacked, single[2]], "what no other row has is taken from the one that has it"
    (group,) = grouped([attacked[0], single[0]], attacks=False)
    assert group == single[:1], "of as many seeds, the row without an attack"
    assert sorted(map(len, grouped([*attacked, *single], attacks=True))) == [2, 3]


def test_point_prefers_runs_without_float32_noise() -> None:
    coarse = [record(seed=seed, accuracy=0.9) for seed in (0, 1, 2)]
    for each in coarse:
        del each.privacy["noise_version"]
    sound = record(seed=1, accuracy=0.4, attack="gmi", success=0.5)
    assert grouped([*coarse, sound], attacks=False) == [[sound]]
    assert grouped(coarse, attacks=False) == [coarse]


def test_point_has_largest_accounted_epsilon() -> None:
    runs = [record(seed=seed, accounted=epsilon, claim="none") for seed, epsilon in ((0, 3.0), (1, 3.5))]
    (panel,) = [panel for panel in epsilons(runs) if panel.unit == "example"]
    assert [point.x for point in panel.points] == [3.5]
    assert accounted(runs) == (3.5, "example")


@pytest.mark.parametrize("version", [1, 2])
def test_invalid_account_is_not_drawn(version: int) -> None:
    runs = [record("p3gm", version=version, accounted=3.0)]
    assert {panel.what for panel in epsilons(runs)} == ({"claimed"} if version == 1 else {"claimed", "accounted"})
    assert accounted(runs) == (None if version == 1 else (3.0, "example"))
