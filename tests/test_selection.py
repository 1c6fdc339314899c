"""Which rows of a board are one release, and which of them represents it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wide_boards import boards_of

from bench.boards.selection import Candidate, Constraints, candidates, choose, missing_measurements, objection


def row(epsilon: float | str = 2.0, accuracy: float = 0.9, **more: Any) -> dict[str, Any]:
    """A row of a board, of one method; fields that are not given are empty."""
    usual = {
        "dataset": "mnist", "tier": "quick", "split": "iid", "method": "pate", "variant": "printed",
        "kind": "baselines", "teacher": "resnet18", "student": "datalens", "accuracy_mean": accuracy,
        "epsilon_accounted": epsilon, "unit": "example", "delta": 1e-5, "seeds": "0 1", "failed": 0,
    }  # fmt: skip
    return usual | more


def one(*rows: dict[str, Any]) -> Candidate:
    (found,) = candidates(boards_of(rows))
    return found


def test_claim_never_replaces_account() -> None:
    claimed = {"epsilon_claimed": 1.0, "claim_unit": "example"}
    assert one(row("", **claimed)).epsilon is None and one(row(0.0, **claimed)).epsilon == 0.0
    limits = Constraints("example", 8.0, 0.0)
    (excluded,) = choose(boards_of([row("", **claimed)]), limits).excluded
    assert objection(excluded, limits) == "no run of it was finished"


def test_tiers_are_separate_releases() -> None:
    quick, paper = row(accuracy=0.8), row(accuracy=0.9, tier="paper", seeds="0")
    assert [(each.place[1], each.accuracy) for each in candidates(boards_of([quick, paper]))] == [
        ("quick", 0.8),
        ("paper", 0.9),
    ]


def test_best_membership_has_largest_auc_with_power() -> None:
    def guessed(attack: str, auc: float | str, power: str = "pass") -> dict[str, Any]:
        return row(attack=attack, auc=auc, teacher_auc=0.7, power=power)

    rows = [guessed("lira", 0.52), guessed("rmia", 0.55), guessed("shadow", 0.9, "inconclusive"), guessed("gmi", "")]
    shown = one(*rows).best_membership
    assert shown is not None and (shown.any.attack, shown.value("auc")) == ("rmia", 0.55)
    assert one(rows[2]).best_membership is None and one(row()).best_membership is None


def test_older_attack_is_marked_but_not_its_release() -> None:
    new = row(attack="gmi", attack_variant="printed", attack_accuracy=0.4, power="pass")
    (attacked,) = one(new).attacked
    old = replace(attacked, rows={name: replace(each, version=0) for name, each in attacked.rows.items()})
    assert (str(attacked), str(old)) == ("gmi (printed) 40.0 %", "gmi (printed) 40.0 %, older version")
    assert one(new).flags == frozenset() and one(new | {"version": "0"}).flags == {"older-version"}


def test_audit_of_any_row_applies_to_release() -> None:
    """The representing row has more seeds, and the audit was of another row."""
    most, few = row(seeds="1 2"), {"attack": "gmi", "seeds": "0"}
    blind = row(epsilon_audited=0.0, audited_teacher=0.0, **few)
    shows = row(epsilon_audited=0.4, audited_teacher=2.3, **few)
    assert one(most).row.epsilon_lower is None and "no audit" in missing_measurements(one(most))
    assert "no audit that finds anything on the unprotected teacher" in missing_measurements(one(most, blind))
    found = one(most, blind, shows)
    assert found.row.seeds == "1 2" and found.row.epsilon_lower == 0.4
    assert not any("audit" in each for each in missing_measurements(found))
