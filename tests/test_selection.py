"""Which rows of a board are one release, which releases are chosen, and the gate of today on each record."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from made import record
from wide_boards import boards_of, cells, proved, write_boards

from bench import boards
from bench.boards.attacked import Inversion
from bench.boards.flags import UNTRUE, flags, standing
from bench.boards.selection import (
    Candidate,
    Choice,
    Constraints,
    candidates,
    choose,
    least_epsilon,
    missing_measurements,
    objection,
)
from bench.boards.tables import read_boards
from bench.metrics.levels import LEAST_AUC
from bench.metrics.membership import membership, membership_power
from bench.storage.records import Record

Row = dict[str, Any]


def one(*rows: Row) -> Candidate:
    (found,) = candidates(boards_of(rows))
    return found


def chosen(*rows: Row, epsilon: float = 8.0, accuracy: float = 0.0, **delta: float) -> Choice:
    return choose(boards_of(rows), Constraints("example", epsilon, accuracy, **delta))


def names(choice: Choice) -> list[str]:
    """The releases that qualify, best first; they are in one place at most."""
    return [each.name for found in choice.taken.values() for each in found]


def test_candidates_exclude_the_split_with_canaries() -> None:
    rows = [proved(split=split) for split in ("iid", "canaries", "few")]
    assert [found.place[2] for found in candidates(boards_of(rows))] == ["iid", "few"]


def test_candidates_ignore_an_unused_teacher() -> None:
    """The teacher only served the attack's baseline: the row with more seeds remains. Votes differ in substance."""
    taught = {"options": '{"teacher": {"epochs": 12}}', "teacher": "datalens", "attack": "loss-threshold", "auc": 0.5}
    rows = [proved("dp-sgd", 8.0, 0.97, seeds="0", **taught), proved("dp-sgd", 8.0, 0.96, seeds="0 1 2")]
    found = one(*rows)
    assert (found.accuracy, found.name, len(found.attacked)) == (0.96, "dp-sgd (printed)", 1)
    for method in ("dpsd", "pate"):
        assert len(candidates(boards_of([row | {"method": method} for row in rows]))) == 2


def test_candidates_do_not_count_failed_seeds() -> None:
    row = proved("dp-sgd", seeds="0 1 2 3 4", failed=3, accuracy_std=0.001)
    several, single = one(row), one(row | {"failed": 4, "accuracy_std": ""})
    assert (several.spread, single.spread) == ("sd 0.001, 2 seeds, 3 failed", "one seed, 4 failed")
    assert ["no second seed" in missing_measurements(each) for each in (several, single)] == [False, True]


def test_tiers_are_separate_releases() -> None:
    found = candidates(boards_of([proved(accuracy=0.8), proved(accuracy=0.9, tier="paper", seeds="0")]))
    assert [(each.place[1], each.accuracy) for each in found] == [("quick", 0.8), ("paper", 0.9)]


def test_choose_excludes_a_delta_above_the_limit() -> None:
    rows = [proved("dp-sgd", 0.01, 0.99, delta=0.5), proved("gm-dp", 0.9, 0.94)]
    choice, limits = chosen(*rows, epsilon=1.0), Constraints("example", 1.0, 0.0)
    assert names(choice) == ["gm-dp (printed)"]
    assert [objection(each, limits) for each in choice.excluded] == ["accounted 0.01 at a delta of 0.5, above 0.0001"]
    assert not chosen(*rows, epsilon=1.0, delta=0.5).excluded


def test_choose_excludes_a_release_refuted_in_any_row() -> None:
    attacked = {"attack": "gmi", "attack_variant": "working", "access": "weights", "flags": "refuted", "seeds": "0"}
    assert not chosen(proved("psg", 1.0), proved("psg", 1.0, **attacked)).taken


def test_choose_treats_variants_as_different_releases() -> None:
    rows = [proved(accuracy=0.9, variant="printed"), proved(accuracy=0.91, variant="working")]
    assert names(chosen(*rows)) == ["pate (working)", "pate (printed)"]


@pytest.mark.parametrize("claim", [0.1, 1.0, 8.0])
def test_choose_ignores_claims_and_wrong_accounts(claim: float) -> None:
    choice = chosen(
        cells("unproved", epsilon_claimed=claim, claim_unit="example", accuracy_mean=0.99),
        cells("other-unit", epsilon_claimed=claim, unit="query", epsilon_accounted=0.5),
        proved("account-corrected", 1.0, 0.99, epsilon_claimed=claim, flags="account-corrected"),
        proved("float32", 1.0, 0.99, flags="float32-noise seeded-noise"),
        proved("proved", 8.0, 0.5),
    )
    assert names(choice) == ["proved (printed)"]
    reasons = {each.row.method: objection(each, Constraints("example", 8.0, 0.0)) for each in choice.excluded}
    assert UNTRUE["account-corrected"] in reasons["account-corrected"]


def test_claim_never_replaces_account() -> None:
    claimed = {"epsilon_claimed": 1.0, "claim_unit": "example"}
    assert one(proved(epsilon="", **claimed)).epsilon is None and one(proved(epsilon=0.0, **claimed)).epsilon == 0.0
    (excluded,) = chosen(proved(epsilon="", **claimed)).excluded
    assert objection(excluded, Constraints("example", 8.0, 0.0)) == "no run of it was finished"


def test_releases_on_pretrained_weights_are_ranked_apart(tmp_path: Path) -> None:
    """Also from the same method on other weights, which a table of options does not show."""
    marked = [f"public-data weights:resnet18@{digit * 12}" for digit in "01"]
    rows = [proved("private-features", 1.0, 0.99 - i / 100, flags=flags) for i, flags in enumerate(marked)]
    boards = read_boards(write_boards(tmp_path, [proved("dp-sgd", 1.0, 0.9), *rows]))
    found = choose(boards, Constraints("example", 1, 0.0)).taken
    accuracies = {place[2]: [c.row.accuracy for c in each] for place, each in found.items()}
    assert accuracies == {"iid": [0.9], "iid, public weights": [0.99, 0.98]}


def test_least_epsilon_compares_delta_of_equal_epsilons() -> None:
    """At a budget of 1 the search for the noise ends at 0.9994, 0.9996 or 1."""
    rows = [proved("gep", 1.0, 0.9), proved("rgp", 0.9994, 0.8)]
    for more, expected in (
        ([], "gep"),
        ([proved("alibi", 0.9996, 0.7, delta=0.0)], "alibi"),
        ([proved("dp-sgd", 0.99, 0.6)], "dp-sgd"),
    ):
        rows += more
        (found,) = chosen(*rows, accuracy=0.5).taken.values()
        assert least_epsilon(found).row.method == expected


def test_nearest_needs_a_finite_epsilon() -> None:
    endless, huge = cells("no-defence", accuracy_mean=0.99), proved("dp-merf", 1e300, 0.95)
    (said,) = chosen(endless, epsilon=1.0, accuracy=0.9).nearest
    assert said == "no row is accounted per example with a finite and valid epsilon"
    (said, *_) = chosen(endless, huge, epsilon=1.0, accuracy=0.9).nearest
    assert "least epsilon with accuracy 0.9: dp-merf" in said


def test_strongest_inversion_gains_most_on_public_images() -> None:
    def row(attack: str, success: float, baseline: float | str, **more: Any) -> Row:
        scores = {"attack_accuracy": success, "teacher_attack_accuracy": 0.9, "retrieval_accuracy": baseline}
        return proved(attack=attack, **{"power": "pass"} | scores | more)

    high, gaining = row("gmi", 0.8, 0.9), row("pca-mi", 0.5, 0.2)
    judged = row("vmi", 0.9, 0.1, judge_accuracy=0.12, teacher_judge_accuracy=0.3, retrieval_judge_accuracy=0.11)
    for rows, expected in (
        ([high, gaining], Inversion("pca-mi", 0.5, 0.9, 0.2, "evaluator")),
        ([judged], Inversion("vmi", 0.12, 0.3, 0.11, "judge of faces")),
        ([judged, gaining], one(gaining).strongest),
        ([row("ami", 0.99, ""), high], one(high).strongest),
        ([row("gmi", 0.8, 0.1, power="fail")], None),
        ([proved(attack="lira", auc=0.6, power="pass")], None),
    ):
        assert one(*rows).strongest == expected
    assert str(one(high).strongest) == "gmi 80.0 % (public images 90.0 %)"
    assert str(one(judged).strongest) == "vmi 12.0 % by the judge of faces (public images 11.0 %)"


def test_best_membership_has_largest_auc_with_power() -> None:
    def guessed(attack: str, auc: float | str, power: str = "pass") -> Row:
        return proved(attack=attack, auc=auc, teacher_auc=0.7, power=power)

    rows = [guessed("lira", 0.52), guessed("rmia", 0.55), guessed("shadow", 0.9, "inconclusive"), guessed("gmi", "")]
    shown = one(*rows).best_membership
    assert shown is not None and (shown.any.attack, shown.value("auc")) == ("rmia", 0.55)
    assert one(rows[2]).best_membership is None and one(proved()).best_membership is None


def test_older_attack_is_marked_but_not_its_release() -> None:
    new = proved(attack="gmi", attack_variant="printed", attack_accuracy=0.4, power="pass")
    (attacked,) = one(new).attacked
    old = replace(attacked, rows={name: replace(each, version=0) for name, each in attacked.rows.items()})
    assert (str(attacked), str(old)) == ("gmi (printed) 40.0 %", "gmi (printed) 40.0 %, older version")
    assert one(new).flags == frozenset() and one(new | {"version": "0"}).flags == {"older-version"}


def test_audit_of_any_row_applies_to_release() -> None:
    """The representing row has more seeds, and the audit was of another row."""
    most, few = proved(seeds="1 2"), {"attack": "gmi", "seeds": "0"}
    blind = proved(epsilon_audited=0.0, audited_teacher=0.0, **few)
    shows = proved(epsilon_audited=0.4, audited_teacher=2.3, **few)
    assert one(most).row.epsilon_lower is None and "no audit" in missing_measurements(one(most))
    assert "no audit that finds anything on the unprotected teacher" in missing_measurements(one(most, blind))
    found = one(most, blind, shows)
    assert (found.row.seeds, found.row.epsilon_lower) == ("1 2", 0.4)
    assert not any("audit" in each for each in missing_measurements(found))


def gaps(method: str = "pate", **more: Any) -> list[str]:
    return missing_measurements(one(proved(method, **more)))


def test_missing_measurements_are_listed() -> None:
    usual = ["no attack that reconstructs records", "no attack that guesses members", "no audit"]
    small = ["nothing at the papers' size (this is tier quick)", "nothing on a GPU"]
    assert gaps() == usual + small and gaps(seeds="3") == [*usual, "no second seed", *small]
    for device in ("cuda (H200)", "cpu (1 threads) | cuda (H200)"):
        assert gaps(tier="paper", device=device) == usual, "one of its runs was on a GPU"
    weak = "no attack with proved power that guesses members"
    assert gaps(attack="lira", auc=0.5, power="inconclusive")[:2] == [usual[0], weak]
    assert gaps(attack="gmi", attack_accuracy=0.0, power="pass")[0] == usual[1]
    for teacher, is_audited in ((2.3, True), (0.0, False)):
        assert (gaps(epsilon_audited=0.0, audited_teacher=teacher)[2:] == small) == is_audited


def test_tuning_on_a_test_set_is_stated_for_its_variant_only() -> None:
    seen = "no unseen test set: on this one "
    assert gaps("dpsd", variant="working")[0] == seen + "settings of the queries and of the committee were chosen"
    assert gaps("alibi", variant="working")[0] == seen + "the uniform prior of the first steps was switched off"
    for method, variant in (("dpsd", "printed"), ("private-features", "own"), ("not-installed", "own")):
        assert gaps(method, variant=variant) == gaps()


def test_flags_of_older_boards_have_their_present_names(tmp_path: Path) -> None:
    boards = write_boards(tmp_path, [proved("p3gm", flags="account-mended relation-mended seeded-noise")])
    ((row,),) = [board.releases for board in read_boards(boards)]
    assert row.flags == "account-corrected relation-corrected seeded-noise"


def told_apart(**numbers: float) -> Record:
    found = record(attack="lira", auc=0.55)
    found.metrics |= {"teacher_auc": 0.7, "teacher_auc.lo": 0.65, "random_auc.lo": 0.45}
    found.metrics |= {key.replace("_lo", ".lo"): value for key, value in numbers.items()}
    return found


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ({}, "pass"),
        ({"teacher_auc": 0.59}, "inconclusive"),
        ({"teacher_auc_lo": 0.5}, "inconclusive"),
        ({"random_auc_lo": 0.51}, "inconclusive"),
        ({"memorising_auc": 0.9, "memorising_auc_lo": 0.8, "teacher_auc": 0.5}, "pass"),
        ({"memorising_auc": 0.55, "memorising_auc_lo": 0.51}, "inconclusive"),
    ],
)
def test_membership_power_needs_strength_on_teacher(numbers: dict[str, float], wanted: str) -> None:
    found = told_apart(**numbers)
    assert standing(found) == wanted
    assert {row.power for row in boards.build([found]).attacks if row.attack} == {wanted}


def test_standing_equals_membership_power() -> None:
    """The gate returns reasons and imports libraries; its conditions are duplicated, and this test compares both."""
    made, seen = membership(torch.arange(8.0), torch.arange(8) > 3), set()
    for auc, low, random, gain in product((0.55, LEAST_AUC, 0.65), (0.5, 0.51), (0.49, 0.51), (-0.01, 0.0, 0.01)):
        teacher, net = replace(made, auc=auc, auc_low=low), replace(made, auc_low=random)
        found = told_apart(teacher_auc=auc, teacher_auc_lo=low, random_auc_lo=random, teacher_auc_gain_lo=gain)
        passed = membership_power(teacher, net, gain).passed
        assert (standing(found) == "pass") == passed
        seen.add(passed)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("p", "numbers", "wanted"),
    [
        (0.001, {}, "pass"),
        (None, {}, "inconclusive"),
        (0.001, {"teacher_floor_p": 1.0}, "inconclusive"),
        (0.001, {"teacher_floor_p": 0.0501}, "inconclusive"),
        (0.001, {"teacher_floor_p": 0.01}, "pass"),
        (0.001, {"teacher_attack_accuracy": 0.25}, "pass"),
        (0.001, {"teacher_attack_accuracy": 0.24}, "inconclusive"),
        (0.001, {"teacher_attack_accuracy": 0.24, "teacher_floor_p": 0.01}, "pass"),
        (0.001, {"teacher_attack_accuracy": 0.9, "teacher_judge_accuracy": 0.2}, "inconclusive"),
        (0.001, {"teacher_attack_accuracy": 0.9, "teacher_judge_accuracy": 0.0}, "inconclusive"),
    ],
)
def test_inversion_power_needs_classes_and_strength(p: float | None, numbers: dict[str, Any], wanted: str) -> None:
    found = record(attack="gmi")
    found.metrics |= {"power_p_teacher": p} | numbers
    assert standing(found) == wanted
    found.metrics |= {"floor_p": 0.01}
    assert ("retrieval" in flags(found)) == (wanted != "pass")


def test_standing_never_improves_a_verdict() -> None:
    assert standing(record()) == "" and standing(record(attack="gmi", status="inconclusive")) == "inconclusive"
    assert standing(record(attack="gmi", status="failed")) == ""


def test_published_records_pass_todays_test() -> None:
    seen: Counter[str] = Counter()
    for found in boards.read_records(ROOT / "leaderboards"):
        metrics = found.metrics
        if standing(found) == "pass":
            bare = metrics.get("memorising_auc", metrics.get("teacher_auc"))
            assert (bare is None or bare >= 0.6) and (metrics.get("teacher_floor_p") or 0.0) <= 0.05
        seen[standing(found)] += 1
    assert min(seen["pass"], seen["inconclusive"]) > 200


def test_older_version_is_not_recommended() -> None:
    """The older one is better, has more seeds, and a flag that is not the newer one's."""
    accounts = {"accounted": 1.0, "claim_unit": "example", "variant": "working"}
    old = [record("gs-wgan", seed, 0.9, version=2, **accounts) for seed in (0, 1)]
    new = record("gs-wgan", 0, 0.4, **accounts)
    new.privacy["noise_version"] = 1
    board, limits = boards.build([*old, new]), Constraints("example", 1.0, 0.0)
    assert sorted(each.row.version for each in candidates([board])) == [2, new.spec["release"]["version"]]
    found = choose([board], limits)
    assert [each.accuracy for (taken,) in found.taken.values() for each in [taken]] == [0.4]
    (older,) = found.excluded
    assert objection(older, limits) == "made by version 2 of gs-wgan, which has changed since: run it again"


def test_release_epsilon_is_largest_of_seeds() -> None:
    found = boards.build([record("dp-merf", seed, 0.5, accounted=value) for seed, value in enumerate((1.0, 3.0, 2.0))])
    assert [row.epsilon_accounted for row in found.releases] == [3.0]
