"""`bench choose` on constructed boards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wide_boards import boards_of, cells, execute, heads, spoil
from wide_boards import write_boards as write

from bench.boards import selection
from bench.boards.attacked import Inversion
from bench.boards.flags import UNTRUE
from bench.boards.selection import Constraints
from bench.boards.tables import ReleaseRow, read_boards
from bench.cli import choose, main
from bench.core.epsilon import PROTECTED
from bench.errors import BenchError


def proved(method: str, epsilon: float, accuracy: float, **more: Any) -> dict[str, Any]:
    nothing = {"epsilon_claimed": "", "claim_unit": ""}
    return cells(method, **{**nothing, "epsilon_accounted": epsilon, "accuracy_mean": accuracy, **more})


def test_candidates_exclude_the_split_with_canaries() -> None:
    rows = [proved("pate", 2.0, 0.93, dataset="mnist", split=split) for split in ("iid", "canaries", "few")]
    assert [found.place[2] for found in selection.candidates(boards_of(rows))] == ["iid", "few"]


def test_candidates_ignore_an_unused_teacher() -> None:
    """The teacher only served the attack's baseline: the row with more seeds remains. Votes differ in substance."""
    taught = {"options": '{"teacher": {"epochs": 12}}', "teacher": "datalens", "attack": "loss-threshold", "auc": 0.5}
    rows = [proved("dp-sgd", 8.0, 0.97, dataset="mnist", seeds="0", **taught)]
    rows += [proved("dp-sgd", 8.0, 0.96, dataset="mnist", teacher="resnet18", seeds="0 1 2")]
    (found,) = selection.candidates(boards_of(rows))
    assert (found.accuracy, found.name, len(found.attacked)) == (0.96, "dp-sgd (printed)", 1)
    for method in ("dpsd", "pate"):
        assert len(selection.candidates(boards_of([row | {"method": method} for row in rows]))) == 2


def test_candidates_do_not_count_failed_seeds() -> None:
    rows = [proved("dp-sgd", 8.0, 0.95, dataset="mnist", seeds="0 1 2 3 4", failed=3, accuracy_std=0.001)]
    (found,) = selection.candidates(boards_of(rows))
    assert found.spread == "sd 0.001, 2 seeds, 3 failed" and "no second seed" not in selection.missing_measurements(
        found
    )
    (found,) = selection.candidates(boards_of([rows[0] | {"failed": 4, "accuracy_std": ""}]))
    assert found.spread == "one seed, 4 failed" and "no second seed" in selection.missing_measurements(found)


def test_choose_excludes_a_delta_above_the_limit() -> None:
    rows = [proved("dp-sgd", 0.01, 0.99, dataset="mnist", delta=0.5), proved("gm-dp", 0.9, 0.94, dataset="mnist")]
    limits = selection.Constraints("example", 1.0, 0.0)
    choice = selection.choose(boards_of(rows), limits)
    assert [c.row.method for found in choice.taken.values() for c in found] == ["gm-dp"]
    reasons = [selection.objection(each, limits) for each in choice.excluded]
    assert reasons == ["accounted 0.01 at a delta of 0.5, above 0.0001"]
    assert len(selection.choose(boards_of(rows), selection.Constraints("example", 1.0, 0.0, 0.5)).excluded) == 0


@pytest.fixture
def boards(tmp_path: Path) -> Path:
    """Releases with good claims, with good accounted epsilons, and one that an audit refuted."""
    rows = [
        cells("dpsd", epsilon_accounted=7639.0, accuracy_mean=0.99, flags="claim!=accounted other-unit"),
        cells("dgd", claim_unit="example", accuracy_mean=0.98),
        proved("pate", 2.0, 0.93, attack="gmi", attack_variant="working", access="weights",
               attack_accuracy=0.4, teacher_attack_accuracy=0.9,
               accuracy_std=0.01, flags="public-data", power="pass",
               options='{"attack": {"steps": 9}, "budget": {"epsilon": 2.0}}'),
        proved("pate", 2.0, 0.93, attack="lira", attack_variant="printed", access="scores",
               auc=0.52, teacher_auc=0.61, power="inconclusive",
               options='{"budget": {"epsilon": 2.0}}', seeds="0"),
        proved("dp-sgd", 8.0, 0.96),
        proved("dp-teacher", 8.01, 0.97),
        proved("psg", 1.0, 0.97, flags="refuted"),
        proved("dp-merf", 1.0, 0.71),
        proved("alibi", 1.0, 0.97, unit="label", epsilon_claimed=1.0, claim_unit="label"),
        proved("gm-dp", 1.0, 0.97, tier="smoke"),
        proved("broken", 1.0, 0.97) | {"accuracy_mean": "", "epsilon_accounted": "", "failed": 2},
    ]  # fmt: skip
    return write(tmp_path / "boards", rows)


def test_choose_takes_only_accounted_releases(boards: Path) -> None:
    limits = selection.Constraints("example", 8, 0.9)
    found = selection.choose(read_boards(boards), limits)
    assert {place: [c.row.method for c in each] for place, each in found.taken.items()} == {
        ("mnist", "quick", "iid"): ["dp-sgd", "pate"]
    }
    reasons = {candidate.row.method: selection.objection(candidate, limits) for candidate in found.excluded}
    assert reasons == {
        "dpsd": "claimed 10 per query, accounted 7,639",
        "dgd": "claimed 10 per example, accounted infinite",
        "dp-teacher": "nothing claimed, accounted 8.01",
        "psg": "nothing claimed, refuted by an audit",
        "dp-merf": "accounted 1, accuracy 0.710 below 0.9",
        "alibi": "claimed 1 per label, accounted per label, not per example",
        "gm-dp": "tier smoke, whose numbers mean nothing",
        "broken": "no run of it was finished",
    }


def test_choose_excludes_a_release_refuted_in_any_row() -> None:
    attacked = {"attack": "gmi", "attack_variant": "working", "access": "weights", "flags": "refuted", "seeds": "0"}
    rows = [proved("psg", 1.0, 0.97, dataset="mnist", **more) for more in ({}, attacked)]
    assert not selection.choose(boards_of(rows), selection.Constraints("example", 8, 0.9)).taken


def test_choose_treats_variants_as_different_releases() -> None:
    rows = [
        proved("pate", 2.0, 0.9 + i / 100, dataset="mnist", variant=v) for i, v in enumerate(("printed", "working"))
    ]
    (found,) = selection.choose(boards_of(rows), selection.Constraints("example", 8, 0.0)).taken.values()
    assert [each.name for each in found] == ["pate (working)", "pate (printed)"]


def test_choose_by_label_excludes_other_units(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(choose, "--unit", "label", "--max-epsilon", 2, "--boards", boards, "--all") == 0
    said = capsys.readouterr().out
    assert "take alibi (printed): " in said
    (excluded,) = [line for line in said.splitlines() if "pate (printed) epsilon=2.0: " in line]
    assert "per example" in excluded and "per label" in excluded


def test_choose_all_prints_cost_and_attacks(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(choose, "--max-epsilon", 8, "--min-accuracy", 0.9, "--boards", boards, "--all") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.index("dp-sgd") < said.index("pate (printed) epsilon=2.0")
    assert "take dp-sgd (printed): the most accurate of 2 whose" in said
    for words in ("0.9600", "12", "cpu", "not attacked", "gmi (working) 40.0 % (teacher 90.0 %)",
                  "AUC 0.520 (teacher 0.610), inconclusive"):  # fmt: skip
        assert all(word in said for word in words.split()), words
    assert "dpsd (printed): claimed 10 per query, accounted 7,639" in said


def test_choose_with_accuracy_also_names_the_least_epsilon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [proved("gep", 7.0, 0.99), proved("pate", 0.5, 0.91), proved("rgp", 0.5, 0.93), proved("dp-sgd", 0.1, 0.6)]
    boards = write(tmp_path / "boards", rows)
    for accuracy, count in (("0.9", 1), ("0.98", 0), ("0", 0)):
        assert execute(choose, "--max-epsilon", 8, "--min-accuracy", accuracy, "--boards", boards) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("take gep") for line in lines)
        least = [line for line in lines if line.startswith("or ")]
        assert len(least) == count
        assert all(value in line for line in least for value in ("rgp (printed)", " 0.5 ", "1e-05", "0.9300"))


def test_least_epsilon_compares_delta_of_equal_epsilons() -> None:
    """At a budget of 1 the search for the noise ends at 0.9994, 0.9996 or 1."""
    rows = [cells(name, epsilon_accounted=epsilon, accuracy_mean=accuracy, delta=delta) | {"dataset": "mnist"}
            for name, epsilon, accuracy, delta in (("gep", 1.0, 0.9, 1e-5), ("rgp", 0.9994, 0.8, 1e-5))]  # fmt: skip
    assert least(rows) == "gep"
    rows.append(cells("alibi", epsilon_accounted=0.9996, accuracy_mean=0.7, delta=0.0) | {"dataset": "mnist"})
    assert least(rows) == "alibi"
    rows.append(cells("dp-sgd", epsilon_accounted=0.99, accuracy_mean=0.6, delta=1e-5) | {"dataset": "mnist"})
    assert least(rows) == "dp-sgd"


def least(rows: list[dict[str, Any]]) -> str:
    (found,) = selection.choose(boards_of(rows), Constraints("example", 8.0, 0.5)).taken.values()
    return selection.least_epsilon(found).row.method


def test_nearest_is_the_one_excluded_only_by_delta(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--max-epsilon", 8, "--min-accuracy", 0.9, "--max-delta", 1e-6)
    assert execute(choose, *limits, "--boards", boards) == 0
    said = capsys.readouterr().out
    (nearest,) = [line for line in said.splitlines() if line.startswith("nearest: ")]
    assert all(value in nearest for value in ("1e-05", "1e-06", "dp-sgd (printed) on mnist (quick, iid)"))
    assert "and 1 more" in said


def test_nearest_if_nothing_qualifies(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(choose, "--max-epsilon", 1, "--min-accuracy", 0.9, "--boards", boards) == 0
    said = capsys.readouterr().out
    accurate, private = [line for line in said.splitlines() if line.startswith("nearest: ")]
    assert all(value in accurate for value in ("dp-merf (printed) on mnist (quick, iid)", "0.710", "epsilon 1"))
    assert "pate (printed) epsilon=2.0" in private and "accuracy 0.9" in private
    assert execute(choose, "--unit", "client", "--max-epsilon", 1, "--boards", boards) == 0
    assert "no row is accounted per client with a finite and valid epsilon; a row has one" in capsys.readouterr().out
    assert execute(choose, "--max-epsilon", 0.1, "--min-accuracy", 0.999, "--boards", boards) == 0
    assert "least epsilon of all: " in capsys.readouterr().out


def test_nearest_needs_a_finite_epsilon() -> None:
    rows, wish = [cells("no-defence", accuracy_mean=0.99) | {"dataset": "mnist"}], Constraints("example", 1.0, 0.9)
    (said,) = selection.choose(boards_of(rows), wish).nearest
    assert said == "no row is accounted per example with a finite and valid epsilon"
    huge = proved("dp-merf", 1e300, 0.95) | {"dataset": "mnist"}
    assert "least epsilon with accuracy 0.9: dp-merf" in selection.choose(boards_of([*rows, huge]), wish).nearest[0]


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("", "--max-epsilon"),
        ("--max-epsilon ten", "ten"),
        ("--max-epsilon inf", "--max-epsilon inf"),
        ("--max-epsilon 0", "--max-epsilon 0.0"),
        ("--max-epsilon -1", "--max-epsilon -1.0"),
        ("--max-epsilon nan", "--max-epsilon nan"),
        ("--max-epsilon 8 --unit person", "person"),
        ("--max-epsilon 8 --max-delta 1", "--max-delta 1.0"),
        ("--max-epsilon 8 --min-accuracy 90", "--min-accuracy 90.0"),
        ("--max-epsilon 8 --min-accuracy nan", "--min-accuracy nan"),
        ("--max-epsilon 8 --dataset svhn", "mnist"),
        ("--max-epsilon 8 --boards nowhere", "nowhere"),
    ],
)
def test_choose_refuses_bad_limits(boards: Path, capsys: pytest.CaptureFixture[str], typed: str, value: str) -> None:
    assert main(["choose", "--boards", str(boards), *typed.split()]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("bench: error: ") and value in said.err
    assert said.err.count("\n") == 1 and not said.out


def test_choose_names_the_boards_below_a_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "leaderboards" / "releases").mkdir(parents=True)
    with pytest.raises(BenchError, match="runs/leaderboards"):
        execute(choose, "--max-epsilon", 8, "--boards", tmp_path / "runs")


def test_command_of_a_choice_has_all_changed_options() -> None:
    given = {"options": '{"budget": {"epsilon": 1.0, "unit": "label"}, "method": {"rounds": 2}}'}
    row = proved(
        "rr", 1.0, 0.9, dataset="celeba-g-subset", split="few", student="dense-cnn", teacher="resnet34", **given
    )
    ((release,),) = [board.releases for board in boards_of([row])]
    assert choose.describe_command(release) == (
        "bench run --method rr --variant printed --dataset celeba-g --teacher resnet34 --epsilon 1 --unit label "
        "--method.rounds 2 --student dense-cnn --split few --noise os"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "mnist.csv"),
        ("method,kind\ndpsd,methods\n", "release"),
        (heads(ReleaseRow) + "a,b\n", "line 2"),
        (heads(ReleaseRow).replace("tier,split", "split,tier"), "release, tier"),
    ],
)
def test_file_that_is_not_a_board_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases" / "mnist.csv").write_text(content)
    assert main(["choose", "--max-epsilon", "8", "--boards", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert words in said.err and "mnist.csv" in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("epsilon_accounted", "lots"), "line 2: epsilon_accounted is 'lots'"),
        (("epsilon_accounted", "-1"), "line 2: epsilon_accounted is '-1'"),
        (("accuracy", "nan"), "line 2: accuracy is 'nan'"),
        (("version", "first"), "line 2: version is 'first'"),
        (("tier", "huge"), "line 2: tier is 'huge'"),
        (("options", '{"method": 1}'), "options"),
    ],
)
def test_damaged_cell_of_a_board_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str], words: str
) -> None:
    write(tmp_path, [cells("dpsd", version=1, epsilon_accounted=1.0)])
    spoil(tmp_path / "releases" / "mnist.csv", *wrong)
    for command in (["choose", "--max-epsilon", "8"], ["papers", "compare", "--paper", "dpsd", "--table", "Table I"]):
        assert main([*command, "--boards", str(tmp_path)]) == 2
        said = capsys.readouterr()
        assert words in said.err and said.err.count("\n") == 1 and not said.out


def test_releases_on_pretrained_weights_are_ranked_apart(tmp_path: Path) -> None:
    """Also from the same method on other weights, which a table of options does not show."""
    marked = [{"flags": f"public-data weights:resnet18@{digit * 12}"} for digit in "01"]
    rows = [proved("private-features", 1.0, 0.99 - i / 100, **each) for i, each in enumerate(marked)]
    boards = read_boards(write(tmp_path, [proved("dp-sgd", 1.0, 0.9), *rows]))
    found = selection.choose(boards, selection.Constraints("example", 1, 0.0))
    assert {place[2]: [c.row.accuracy for c in each] for place, each in found.taken.items()} == {
        "iid": [0.9],
        "iid, public weights": [0.99, 0.98],
    }


def test_recommendation_has_cost_risks_and_gaps(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["--max-epsilon", "5", "--min-accuracy", "0.9", "--unit", "example", "--boards", str(boards), "--all"]
    assert main(["choose", *typed]) == 0
    said = capsys.readouterr().out
    answer = said[said.index("take pate") :].splitlines()
    parts: dict[str, list[str]] = {}
    for line in filter(None, answer[1:]):
        parts.setdefault(line[:16].strip() or list(parts)[-1], []).append(line[16:])
    assert "per example" in answer[0] and answer[0].endswith(" 5")
    assert parts.pop("protects")[0] == f"{PROTECTED['example']}: epsilon 2, delta 1e-05, add-or-remove"
    (risk,) = parts.pop("risks")
    assert risk.startswith("public-data: ")
    assert parts == {
        "accuracy": ["0.9300 (sd 0.010, 2 seeds)"],
        "command": ["bench run --method pate --variant printed --dataset mnist --epsilon 2 --noise os"],
        "cost": ["12 s on cpu"],
        "attacks": ["gmi (working) 40.0 % (teacher 90.0 %)", "lira (printed) AUC 0.520 (teacher 0.610), inconclusive"],
        "audited": ["no"],
        "not measured": [
            "no attack with proved power that guesses members", "no audit",
            "nothing at the papers' size (this is tier quick)", "nothing on a GPU",
        ],
    }  # fmt: skip


def test_cost_has_the_recorded_parts() -> None:
    parts = []
    for seconds, device in ((12.4, "cpu (2 threads)"), ("", "cpu (2 threads)"), (12.4, ""), ("", "")):
        (found,) = selection.candidates(
            boards_of([proved("dp-sgd", 8.0, 0.97, dataset="mnist", seconds=seconds, device=device)])
        )
        parts.append(choose.describe_cost(found))
    assert parts == ["12 s on cpu (2 threads)", "on cpu (2 threads)", "12 s", "not recorded"]


def test_strongest_inversion_gains_most_on_public_images() -> None:
    def row(attack: str, success: float, baseline: float, **more: Any) -> dict[str, Any]:
        scores = {"attack_accuracy": success, "teacher_attack_accuracy": 0.9, "retrieval_accuracy": baseline}
        return proved("pate", 2.0, 0.93, dataset="mnist", attack=attack, power="pass", **scores, **more)

    def strongest(*rows: dict[str, Any]) -> Inversion | None:
        (found,) = selection.candidates(boards_of(rows))
        return found.strongest

    high, gaining = row("gmi", 0.8, 0.9), row("pca-mi", 0.5, 0.2)
    assert strongest(high, gaining) == Inversion("pca-mi", 0.5, 0.9, 0.2, "evaluator")
    assert str(strongest(high)) == "gmi 80.0 % (public images 90.0 %)"
    judged = row("vmi", 0.9, 0.1, judge_accuracy=0.12, teacher_judge_accuracy=0.3, retrieval_judge_accuracy=0.11)
    assert strongest(judged) == Inversion("vmi", 0.12, 0.3, 0.11, "judge of faces")
    assert str(strongest(judged)) == "vmi 12.0 % by the judge of faces (public images 11.0 %)"
    assert strongest(judged, gaining) == strongest(gaining)
    assert strongest(row("ami", 0.99, 0.0) | {"retrieval_accuracy": ""}, high) == strongest(high)
    assert strongest(row("gmi", 0.8, 0.1) | {"power": "fail"}) is None
    assert strongest(proved("pate", 2.0, 0.93, dataset="mnist", attack="lira", auc=0.6, power="pass")) is None


def lacks(method: str = "pate", **more: Any) -> list[str]:
    (found,) = selection.candidates(boards_of([proved(method, 2.0, 0.93, dataset="mnist", **more)]))
    return selection.missing_measurements(found)


def test_lacking_lists_missing_measurements() -> None:
    usual = ["no attack that reconstructs records", "no attack that guesses members", "no audit"]
    small = ["nothing at the papers' size (this is tier quick)", "nothing on a GPU"]
    assert lacks() == usual + small
    assert lacks(seeds="3") == [*usual, "no second seed", *small]
    assert lacks(tier="paper", device="cuda (H200)") == usual
    assert lacks(tier="paper", device="cpu (1 threads) | cuda (H200)") == usual, "one of its runs was on a GPU"
    assert lacks(attack="lira", auc=0.5, power="inconclusive")[:2] == [
        "no attack that reconstructs records", "no attack with proved power that guesses members",
    ]  # fmt: skip
    assert lacks(attack="gmi", attack_accuracy=0.0, power="pass")[0] == "no attack that guesses members"
    assert lacks(epsilon_audited=0.0, audited_teacher=2.3)[2:] == small
    assert lacks(epsilon_audited=0.0, audited_teacher=0.0)[2:] != small


def test_tuning_on_a_test_set_is_stated_for_its_variant_only() -> None:
    seen = "no unseen test set: on this one "
    assert lacks("dpsd", variant="working")[-1] == seen + "settings of the queries and of the committee were chosen"
    assert lacks("alibi", variant="working")[-1] == seen + "the uniform prior of the first steps was switched off"
    for method, variant in (("dpsd", "printed"), ("private-features", "own"), ("not-installed", "own")):
        assert lacks(method, variant=variant) == lacks()


@pytest.mark.parametrize("claim", [0.1, 1.0, 8.0])
def test_choose_ignores_claims_and_wrong_accounts(claim: float) -> None:
    rows = [
        cells("unproved", dataset="mnist", epsilon_claimed=claim, claim_unit="example", accuracy_mean=0.99),
        cells("other-unit", dataset="mnist", epsilon_claimed=claim, unit="query", epsilon_accounted=0.5),
        proved("account-corrected", 1.0, 0.99, dataset="mnist", epsilon_claimed=claim, flags="account-corrected"),
        proved("float32", 1.0, 0.99, dataset="mnist", flags="float32-noise seeded-noise"),
        proved("proved", 8.0, 0.5, dataset="mnist"),
    ]
    limits = selection.Constraints("example", 8.0, 0.0)
    found = selection.choose(boards_of(rows), limits)
    assert [[each.row.method for each in place] for place in found.taken.values()] == [["proved"]]
    reasons = {each.row.method: selection.objection(each, limits) for each in found.excluded}
    assert UNTRUE["account-corrected"] in reasons["account-corrected"]


def test_flags_of_older_boards_have_their_present_names(tmp_path: Path) -> None:
    boards = write(tmp_path, [proved("p3gm", 1.0, 0.99, flags="account-mended relation-mended seeded-noise")])
    ((row,),) = [board.releases for board in read_boards(boards)]
    assert row.flags == "account-corrected relation-corrected seeded-noise"


SHIPPED = Path(__file__).parents[2] / "leaderboards"
LIMITS = [
    ["--max-epsilon", "8"],
    ["--max-epsilon", "8", "--dataset", "mnist", "--min-accuracy", "0.9"],
    ["--max-epsilon", "8", "--dataset", "fmnist"],
    ["--max-epsilon", "1e-9"],
]


def expect_brief(typed: list[str], boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", *typed, "--boards", str(boards)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25 and "--all" in lines[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("typed", LIMITS, ids=" ".join)
def test_choose_prints_25_lines_of_published_boards(capsys: pytest.CaptureFixture[str], typed: list[str]) -> None:
    expect_brief(typed, SHIPPED, capsys)


@pytest.fixture(scope="module")
def many_places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boards of many data sets, tiers and splits, whose releases have several attacks and flags."""
    boards = tmp_path_factory.mktemp("boards")
    usual = {"attack_variant": "printed", "access": "scores", "auc": 0.5, "teacher_auc": 0.6, "power": "pass"}
    usual |= {"flags": "public-data seeded-noise weak-judge", "attack": "lira"}
    places = [(tier, split) for tier in ("quick", "paper") for split in ("iid", "few", "full", "disjoint-low")]
    for name in ("mnist", "fmnist"):
        many = [
            proved("pate", 2.0, 0.95, tier=tier, split=split, delta=f"1e-{delta}", **usual | {"attack": attack})
            for tier, split in places[: None if name == "mnist" else 1]
            for delta in range(5, 12)
            for attack in ("lira", "rmia", "shadow", "quantile")
        ]
        write(boards, many, name)
    for number in range(20):
        write(boards, [proved("pate", 2.0, 0.95, **usual)], f"npz-{number}")
    return boards


@pytest.mark.parametrize("typed", LIMITS, ids=" ".join)
def test_choose_prints_at_most_25_lines(
    many_places: Path, capsys: pytest.CaptureFixture[str], typed: list[str]
) -> None:
    expect_brief(typed, many_places, capsys)


def test_choose_counts_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [proved("gep", 7.0, 0.9, delta=f"1e-{5 + i}") for i in range(8)] + [proved("rgp", 99.0, 0.99)]
    boards = write(tmp_path / "published", rows)
    assert execute(choose, "--max-epsilon", 8, "--boards", boards) == 0
    brief = capsys.readouterr().out.splitlines()
    assert brief[-1].startswith("4 more rows, of which 1 do not qualify")
    assert execute(choose, "--max-epsilon", 8, "--boards", boards, "--all") == 0
    assert sum("gep (printed)" in line for line in capsys.readouterr().out.splitlines()) == 9


def test_own_rows_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same setting, published and run by the user, is two rows; without own boards there is one."""
    published = write(tmp_path / "published", [proved("gep", 7.0, 0.9)])
    monkeypatch.chdir(tmp_path)
    typed = ["--max-epsilon", "8", "--boards", str(published)]
    assert main(["choose", *typed]) == 0
    assert "yours" not in capsys.readouterr().out
    write(tmp_path / "boards", [proved("gep", 7.0, 0.95)])
    for own in ([], ["--own", "boards"]):
        assert main(["choose", *typed, *own]) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head == f"boards: published {published} (1 releases), yours boards (1 releases)"
        rows = [line.split()[-1] for line in lines if line.strip().startswith("gep")]
        assert rows == ["yours", "published"]
        assert any(line.startswith("take gep (printed) (yours): the most accurate of 2") for line in lines)
