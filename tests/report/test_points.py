from __future__ import annotations

import pytest
from made import record

from bench.report.points import accounted, epsilons, grouped


def test_point_takes_seeds_of_one_row_first() -> None:
    alone = [record(seed=seed, accuracy=0.5 + seed / 10) for seed in (0, 1, 2)]
    attacked = [record(seed=seed, accuracy=0.9, attack="gmi", success=0.5) for seed in (0, 1)]
    (group,) = grouped([*attacked, *alone], attacks=False)
    assert group == alone, "the mean is the board's of the row with most seeds"
    (group,) = grouped([*attacked, *alone[:1]], attacks=False)
    assert group == attacked
    (group,) = grouped([*attacked, *alone[2:]], attacks=False)
    assert group == [*attacked, alone[2]], "what no other row has is taken from the one that has it"
    (group,) = grouped([attacked[0], alone[0]], attacks=False)
    assert group == alone[:1], "of as many seeds, the row without an attack"
    assert sorted(map(len, grouped([*attacked, *alone], attacks=True))) == [2, 3]


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
