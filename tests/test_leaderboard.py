"""Rows of boards: which runs share one, and their columns and flags."""

import math
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from board_records import board, record, results, text
from hypothesis import example, given
from hypothesis import strategies as st

from bench import boards, registry
from bench.boards import Board
from bench.boards.attacked import attacks
from bench.boards.results import Result, references
from bench.boards.spec_keys import key_of
from bench.boards.tables import AttackRow, ReleaseRow, RunRow, columns
from bench.errors import BenchError
from bench.storage.records import Record
from bench.storage.specs import canonical


def test_board_has_three_tables_joined_by_release() -> None:
    found = board([record(0, 0.5), record(1, 0.6)])
    heads = [text.partition("\n")[0].split(",") for text in found.texts().values()]
    assert [tuple(head) for head in heads] == [columns(kind) for kind in (ReleaseRow, AttackRow, RunRow)]
    assert len(heads[0]) <= 22 and len(set(heads[0])) == len(heads[0])
    assert all("release" in head for head in heads), "the key that joins them"
    (release,) = found.releases
    assert {row.release for row in found.attacks} == {row.release for row in found.runs} == {release.release}


def test_attack_row_has_number_with_baselines() -> None:
    one = record(0, 0.5)
    one.metrics |= {"attack_accuracy.lo": 0.4, "attack_accuracy.hi": 0.6, "teacher_attack_accuracy": 0.9}
    one.metrics |= {"random_attack_accuracy": 0.1, "retrieval_accuracy": 0.3}
    (row,) = [row for row in board([one]).attacks if row.metric == "attack_accuracy"]
    assert (row.attack, row.variant, row.power) == ("gmi", "printed", "pass")
    assert (row.value, row.low, row.high) == (0.5, 0.4, 0.6)
    assert (row.teacher, row.untrained, row.public_images) == (0.9, 0.1, 0.3)


def test_skipped_attack_has_row_with_reason() -> None:
    one = record(0, 0.5, status="skipped")
    one.reason = "the attack needs four classes"
    one.metrics = {"accuracy": 0.5}
    (row,) = [row for row in board([one]).attacks if row.attack]
    assert (row.metric, row.value, row.reason) == ("", None, "the attack needs four classes")


def test_only_seeds_share_a_row() -> None:
    found = results([record(0, 0.5), record(1, 0.7), record(0, 0.1, sigma=2.0), record(0, 0.1, tier="paper")])
    assert len(found) == 3
    (row,) = [each for each in found if seeds(each) == [0, 1]]
    assert row.accuracy == pytest.approx(0.6) and row.deviation == pytest.approx(0.141421) and len(row.runs) == 2


LEAVES = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", '"seed":1,', 'x"seed', '\\"seed":2'])
NAMES = st.sampled_from(["seed", "a", '"seed":1,', 'x"seed'])
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2))
SPECS = st.dictionaries(NAMES, JSON, max_size=3)


@given(SPECS, SPECS)
@example({'x"seed': 1}, {'x"seed': 2})
@example({"a": {'x"seed': 1}}, {"a": {'x"seed': 2}})
@example({"a": '"seed":1,'}, {"a": ""})
@example({"seed": 1, "a": 2}, {"a": 2, "seed": {"a": 1}})
def test_row_key_equal_iff_specs_differ_only_in_seeds(one: Any, other: Any) -> None:
    same = canonical(boards.identity(one)) == canonical(boards.identity(other))
    assert (row_key(one) == row_key(other)) == same


@given(SPECS, st.integers(0, 99))
def test_row_key_ignores_seeds_only(spec: Any, number: int) -> None:
    assert row_key(reseeded(spec, number)) == row_key(spec)
    assert row_key(spec | {"new": number}) != row_key(spec)
    assert row_key(spec | {"new": number}) != row_key(spec | {"new": number + 1})


@given(SPECS)
@example({"seed": 1, "a": {"seed": 2, "b": 3}})
@example({"a": {"seed": 1}, 'x"seed': 2})
@example({"seed": {"a": 1}, "b": [{"seed": 1, "c": 2}]})
def test_key_of_text_equals_key_of_identity(spec: Any) -> None:
    assert key_of(spec, named=True) == key_of(boards.identity(spec)) == key_of(spec)


def row_key(spec: Any) -> str:
    return key_of(boards.identity(spec))


def seeds(result: Result) -> list[int]:
    return [run.seed for run in result.runs]


def reseeded(spec: Any, number: int) -> Any:
    """The same with another seed wherever there is one, and with a seed where there was none."""
    if not isinstance(spec, dict):
        return spec
    return {key: reseeded(value, number) for key, value in spec.items()} | {"seed": number}


def test_variants_have_separate_rows() -> None:
    old, printed, working = record(0, 0.5), record(1, 0.6), record(2, 0.9)
    for part in (old.spec["release"], old.spec["attack"], old.spec["attack"]["target"]):
        del part["variant"]
    for part in (working.spec["release"], working.spec["attack"]["target"]):
        part["variant"] = "working"
    other_attack = record(3, 0.5)
    other_attack.spec["attack"]["variant"] = "working"
    found = results([old, printed, working, other_attack])
    assert [(each.release.variant, each.attack and each.attack.variant, seeds(each)) for each in found] == [
        ("printed", "printed", [0, 1]),
        ("printed", "working", [3]),
        ("working", "printed", [2]),
    ]


def test_mixed_library_versions_are_flagged() -> None:
    same, other = [record(seed, 0.5) for seed in (0, 1, 2)], record(3, 0.5)
    for one in [*same, other]:
        one.provenance["versions"] = {"torch": "2.14.0", "numpy": "2.4.6"}
    assert results(same)[0].flags == {"claim!=accounted"}
    other.provenance["versions"] = {"torch": "2.15.0", "numpy": "2.4.6"}
    assert results([*same, other])[0].flags == {"claim!=accounted", "mixed-versions"}
    with_failure = results([*same, record(4, 0.0, status="failed")])
    assert with_failure[0].flags == {"claim!=accounted"}, "failed runs do not count"


def test_deviation_needs_all_of_several_seeds() -> None:
    assert results([record(0, 0.5)])[0].deviation is None
    found = [record(seed, 0.5) for seed in (0, 1, 2)]
    assert results(found)[0].numbers["attack_accuracy"].deviation == 0.0
    found[2].metrics["attack_accuracy"] = None
    (row,) = results(found)
    attacked = row.numbers["attack_accuracy"]
    assert attacked.value is attacked.deviation is None and row.deviation == 0.0


def test_seeded_noise_has_a_separate_row() -> None:
    seeded, system = record(1, 0.9), record(0, 0.5)
    seeded.spec["release"]["noise"] = "seeded"
    found = {each.runs[0].seed: each.flags for each in results([seeded, system])}
    assert found == {1: {"claim!=accounted", "seeded-noise"}, 0: {"claim!=accounted"}}


def test_failed_runs_are_not_averaged() -> None:
    (row,) = results([record(0, 0.5), record(1, 0.0, status="failed")])
    assert (len(row.finished), seeds(row), row.accuracy) == (1, [0, 1], 0.5)
    (row,) = results([record(1, 0.0, status="failed")])
    assert (row.finished, row.accuracy, row.claimed, row.seconds, row.flags) == ((), None, None, None, frozenset())


@pytest.mark.parametrize("power", ["inconclusive", "pass"])
def test_attack_without_power_is_inconclusive(power: str) -> None:
    (row,) = results([record(0, 0.5), record(1, 0.5, status="ok" if power == "pass" else power)])
    assert row.attack is not None and row.attack.power == power


@pytest.mark.parametrize("nats, value", [(2.56, 2.56), ("inf", math.inf), (None, None)])
def test_information_is_mean_over_known_seeds(nats: object, value: float | None) -> None:
    found = [record(seed, 0.5) for seed in (0, 1)]
    for one in found:
        one.privacy["information"] = {"nats": nats, "why": "gradients", "classes": 10}
    assert results(found)[0].information == value
    found[1].privacy["information"]["nats"] = None
    assert results(found)[0].information is None, "a mean over some seeds would be of another setting"


def test_information_of_older_records_is_from_ledger() -> None:
    old, silent = record(0, 0.5), record(0, 0.5)
    rows_of_a_batch = {"name": "GaussianDpEvent", "noise_multiplier": 100 / (2 * 16)}
    one_row = {"name": "GaussianDpEvent", "noise_multiplier": 100 / 2}
    old.privacy["events"] = [
        {"event": rows_of_a_batch, "count": 200, "unit": "example",
         "why": "normalised gradients of a batch, a noise draw per row"},
        {"event": one_row, "count": 1, "unit": "query", "why": "one row's normalised gradient"},
    ]  # fmt: skip
    assert results([old])[0].information == pytest.approx(2.559987)
    old.privacy["events"][0]["why"] = "something else"
    assert results([old])[0].information is results([silent])[0].information is None


@pytest.mark.parametrize(
    ("claim", "accounted", "flags"),
    [
        ({}, {"example": (10.0, 1e-5)}, []),
        ({"disputed": "noise-too-small"}, {"example": (10.0, 1e-5)}, ["disputed:noise-too-small"]),
        ({"source": "DPDFD, Theorem 3"}, {"example": (10.0, 1e-5)}, ["disputed:noise-taken-without-its-bound"]),
        ({"unit": "label"}, {"example": ("inf", 1e-5)}, ["other-unit", "claim!=accounted"]),
        ({"unit": "label"}, {"example": ("inf", 1e-5), "label": (10.0, 1e-5)}, ["other-unit"]),
        ({"delta": 0.0}, {"example": (10.0, 1e-5)}, ["claim!=accounted"]),
        ({"delta": 0.0}, {"example": (10.0, 0.0)}, []),
        ({"delta": 0.0, "epsilon": "inf"}, {"example": ("inf", 1e-5)}, []),  # delta does not matter at infinity
    ],
)
def test_flags_of_claims(claim: dict[str, Any], accounted: dict[str, tuple[Any, float]], flags: list[str]) -> None:
    found = record(0, 0.5, accounted=10.0)
    found.privacy["claimed"] |= claim
    for unit, (epsilon, delta) in accounted.items():
        known = found.privacy["accounted_units"].get(unit, {})
        found.privacy["accounted_units"][unit] = known | {"epsilon": epsilon, "delta": delta}
    assert boards.flags(found) == flags


@pytest.mark.parametrize(("public", "flags"), [("0123456789abcdef", ["public-data"]), (None, [])])
def test_flags_public_data(public: str | None, flags: list[str]) -> None:
    found = record(0, 0.5, accounted=10.0)
    found.spec["release"]["public"] = public
    assert boards.flags(found) == flags


def member_record(lower: float, **changes: Any) -> Record:
    """A membership attack's record."""
    found = record(0, 0.5, **changes)
    found.spec["attack"]["options"] = {"reference_kind": changes.get("reference", "student")}
    found.metrics |= {"auc": 0.6, "tpr_at_1pct": 0.02, "membership_epsilon_lower": lower}
    return found


def test_flags_of_membership_attacks() -> None:
    assert boards.flags(member_record(9.0, accounted=10.0)) == []
    assert boards.flags(member_record(11.0, accounted=10.0)) == ["membership>accounted"]
    assert boards.flags(member_record(11.0, accounted=None)) == ["claim!=accounted"]
    assert boards.flags(member_record(9.0, accounted=10.0, reference="teacher")) == ["teacher-reference"]
    of_labels = member_record(9.0, accounted=None)
    of_labels.privacy["accounted"] = of_labels.privacy["accounted_units"]["label"] = {"epsilon": 1.0, "unit": "label"}
    assert "membership>accounted" not in boards.flags(of_labels), "an epsilon for labels does not cover members"
    (row,) = results([member_record(9.0, accounted=10.0)])
    assert (row.value("auc"), row.value("tpr_at_1pct")) == (0.6, 0.02)


@pytest.mark.parametrize(
    ("accuracy", "commonest", "is_at_chance"),
    [(0.14, 0.1, True), (0.16, 0.1, False), (0.63, 0.581, True), (0.64, 0.581, False), (0.70, 0.581, False),
     (0.299, 0.2, True), (0.301, 0.2, False)],
)  # fmt: skip
def test_flags_student_at_chance(accuracy: float, commonest: float, is_at_chance: bool) -> None:
    """0.581 + (1 - 0.581) / 8 = 0.633; of five equal classes both limits are 0.3."""
    for found in (member_record(9.0, accounted=10.0), record(0, accuracy, accounted=10.0)):
        found.metrics |= {"accuracy": accuracy, "times_chance": accuracy / commonest}
        assert boards.flags(found) == ["at-chance-level"] * is_at_chance


@pytest.mark.parametrize(
    ("name", "split", "accuracy", "is_at_chance"),
    [
        *(("mnist", "iid", accuracy, is_at_chance) for accuracy, is_at_chance in ((0.149, 1), (0.151, 0), (0.0, 1))),
        *(("mnist", "disjoint-low", accuracy, is_at_chance) for accuracy, is_at_chance in ((0.29, 1), (0.31, 0))),
        ("npz-own", "iid", 0.1, False),
    ],
)
def test_chance_of_older_records_assumes_equal_classes(
    name: str, split: str, accuracy: float, is_at_chance: bool
) -> None:
    found = member_record(9.0, accounted=10.0)
    found.metrics["accuracy"] = accuracy
    found.spec["release"]["teacher"]["data"] |= {"dataset": name, "split": split}
    assert boards.flags(found) == ["at-chance-level"] * is_at_chance


@pytest.mark.parametrize(
    ("metrics", "flags"),
    [
        ({}, []),
        ({"judge_accuracy": None}, ["no-judge"]),
        ({"judge_accuracy": 0.4}, []),
        ({"evaluator_accuracy": 0.79, "teacher_accuracy.lo": 0.8}, ["weak-judge"]),
        ({"evaluator_accuracy": 0.81, "teacher_accuracy.lo": 0.8}, []),
        ({"evaluator_accuracy": None, "teacher_accuracy.lo": 0.8}, []),
        ({"evaluator_accuracy": 0.79}, []),
        ({"evaluator_accuracy": 0.79, "teacher_accuracy.lo": 0.8, "judge_accuracy": 0.5}, []),
    ],
)
def test_flags_of_judges(metrics: dict[str, float | None], flags: list[str]) -> None:
    found = record(0, 0.5, accounted=10.0)
    found.metrics |= metrics
    assert boards.flags(found) == flags
    del found.metrics["attack_accuracy"]
    assert "weak-judge" not in boards.flags(found), "nothing was judged"


def test_newer_metrics_appear_only_where_measured() -> None:
    old, new = record(0, 0.5), record(1, 0.5, tier="paper")
    new.metrics |= {"retrieval_accuracy": 0.19, "teacher_retrieval_accuracy": 0.2, "above_floor": 0.27}
    paper, quick = results([old, new])
    retrieval = "retrieval_accuracy"
    assert (paper.value(retrieval), paper.on_teacher(retrieval), paper.value("above_floor")) == (0.19, 0.2, 0.27)
    assert quick.value("above_floor") is None
    assert "gap_auc" not in {row.metric for row in board([old, new]).attacks}


def test_inversion_is_shown_by_the_judge_of_faces() -> None:
    found = record(0, 0.5, accounted=10.0)
    found.metrics |= {"judge_accuracy": 0.4, "retrieval_judge_accuracy": 0.19}
    found.metrics |= {"reference_held_out_judge_accuracy": 0.98, "reference_held_out_attack_accuracy": 0.9}
    rows = [row for row in board([found]).attacks if row.metric == "judge_accuracy"]
    assert sorted((row.value, row.release.startswith("reference/")) for row in rows) == [(0.4, False), (0.98, True)]
    ((attacked,),) = attacks(board([found])).values()
    assert (attacked.value("attack_accuracy"), attacked.public("judge_accuracy")) == (0.5, 0.19)
    assert all(number in str(attacked) for number in ("50.0 %", "40.0 %", "19.0 %"))


def test_references_by_tier_split_kind_and_attack() -> None:
    records = [record(0, 0.5), record(1, 0.5), record(0, 0.5, tier="paper")]
    for each in records:
        each.metrics |= {"reference_held_out_attack_accuracy": 0.98, "reference_held_out_knn_distance": 3.0}
        each.metrics |= {"reference_prior_attack_accuracy": 0.1}
    found = references(board(records))
    places = [(each.tier, each.kind, each.attack, each.numbers["attack_accuracy"]) for each in found]
    kinds = [("held_out", "", 0.98), ("prior", "gmi", 0.1)]
    assert places == [(tier, *kind) for tier in ("paper", "quick") for kind in kinds]
    assert [each.numbers.get("knn_distance") for each in found] == [3.0, None] * 2


def test_board_bytes_do_not_depend_on_order() -> None:
    records = [record(s, s / 10, sigma=v) for s in range(5) for v in (1.0, 2.0, 3.0)]
    before = text(records)
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert text(records) == before


def written(folder: Path, found: Board) -> Path:
    """The folder with the tables of a board."""
    for table, content in found.texts().items():
        (folder / table).mkdir()
        (folder / table / "digits.csv").write_text(content, encoding="utf-8")
    return folder


def test_tables_round_trip(tmp_path: Path) -> None:
    made = [record(s, s / 7, sigma=v, tier=t) for s in range(3) for v in (1.0, 1e-7) for t in ("quick", "paper")]
    made += [record(4, 0.3, accounted=None), record(0, 0.1, "failed", sigma=3.0)]
    for number, each in enumerate(made):
        words = ('a "quoted" word, and a comma', "two\nlines", "plain", "")[number % 4]
        each.options = {"method": {words: 1}} if words else {}
    made[0].metrics["reference_held_out_attack_accuracy"] = 0.95
    assert boards.read_boards(written(tmp_path, board(made))) == [board(made)]


def test_pandas_reads_and_joins_tables(tmp_path: Path) -> None:
    written(tmp_path, board([record(0, 0.5), record(1, 0.7)]))
    releases, attacks = boards.read_releases(tmp_path), boards.read_attacks(tmp_path)
    plain = pd.read_csv(tmp_path / "releases" / "digits.csv")
    assert releases["accuracy"].tolist() == plain["accuracy"].tolist() == [0.6]
    joined = attacks.merge(releases, on="release", suffixes=("_attack", ""))
    found = joined.set_index("metric").loc["attack_accuracy"]
    assert (found["method"], found["value"], found["accuracy"]) == ("dpsd", 0.5, 0.6)
    assert releases["dataset"].tolist() == ["digits"] and len(joined) == len(attacks)
    with pytest.raises(BenchError, match="releases"):
        boards.read_releases(tmp_path / "releases")


def test_flags_of_noise_and_wrong_accounts() -> None:
    def found(**release: Any) -> list[str]:
        made = record(0, 0.5)
        made.privacy["accounted_units"]["example"] = {"epsilon": 7639.0}
        made.privacy["claimed"] = None
        made.privacy |= release.pop("privacy", {})
        made.spec["release"] |= release
        return boards.flags(made)

    assert found() == []
    assert found(noise="seeded") == ["seeded-noise"]
    assert found(method="p3gm", version=1) == ["older-version", "account-corrected"]
    assert "account-corrected" not in found(method="p3gm", version=2)
    now = registry.describe("method", "p3gm", "working").facts["version"]
    assert found(method="p3gm", version=now) == []
    old = record(0, 0.5)
    old.privacy.pop("noise_version")
    assert "float32-noise" in boards.flags(old)
    nothing = found(noise="seeded", privacy={"accounted_units": {"example": {"epsilon": "inf"}}})
    assert nothing == [], "where nothing is proved, noise matters to no one"
    units = {"example": {"epsilon": "inf"}, "query": {"epsilon": 2.0}}
    assert found(noise="seeded", privacy={"accounted_units": units}) == ["seeded-noise"]


def test_flags_older_versions_of_plugins() -> None:
    def is_older(part: str, **changes: Any) -> bool:
        made = record(0, 0.5)
        made.spec[part] |= changes
        return "older-version" in boards.flags(made)

    def now(kind: str, name: str, variant: Any) -> int:
        return registry.describe(kind, name, variant).facts["version"]

    newest, printed = now("method", "dpsd", "working"), now("method", "dpsd", "printed")
    assert is_older("release", method="dpsd", variant="working", version=newest - 1)
    assert not is_older("release", method="dpsd", variant="working", version=newest)
    assert printed < newest and not is_older("release", method="dpsd", variant="printed", version=printed)
    assert is_older("attack", attack="gmi", variant="working", version=now("attack", "gmi", "working") - 1)
    assert not is_older("release", method="not-installed", version=0), "nothing is known of it"
