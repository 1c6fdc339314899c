"""`bench choose` on constructed boards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wide_boards import boards_of, cells, execute, heads, spoil
from wide_boards import write_boards as write

from bench.boards import selection
from bench.boards.attacked import Inversion
from bench.boards.selection import Constraints
from bench.boards.tables import ReleaseRow, read_boards
from bench.cli import choose, main
from bench.errors import BenchError


def proved(method: str, epsilon: float, accuracy: float, **more: Any) -> dict[str, Any]:
    nothing = {"epsilon_claimed": "", "claim_unit": ""}
    return cells(method, **{**nothing, "epsilon_accounted": epsilon, "accuracy_mean": accuracy, **more})


def test_a_student_that_was_taught_wrong_labels_is_no_candidate() -> None:
    rows = [proved("pate", 2.0, 0.93, dataset="mnist", split=split) for split in ("iid", "canaries", "few")]
    assert [found.place[2] for found in selection.candidates(boards_of(rows))] == ["iid", "few"]


def test_a_teacher_that_is_not_asked_makes_no_other_release() -> None:
    """The teacher only served the attack's baseline: the row with more seeds remains. Votes differ in substance."""
    taught = {"options": '{"teacher": {"epochs": 12}}', "teacher": "datalens", "attack": "loss-threshold", "auc": 0.5}
    rows = [proved("dp-sgd", 8.0, 0.97, dataset="mnist", seeds="0", **taught)]
    rows += [proved("dp-sgd", 8.0, 0.96, dataset="mnist", teacher="resnet18", seeds="0 1 2")]
    (found,) = selection.candidates(boards_of(rows))
    assert (found.accuracy, found.name, len(found.attacked)) == (0.96, "dp-sgd (printed)", 1)
    for method in ("dpsd", "pate"):
        assert len(selection.candidates(boards_of([row | {"method": method} for row in rows]))) == 2


def test_seeds_that_failed_are_no_seeds() -> None:
    rows = [proved("dp-sgd", 8.0, 0.95, dataset="mnist", seeds="0 1 2 3 4", failed=3, accuracy_std=0.001)]
    (found,) = selection.candidates(boards_of(rows))
    assert found.spread == "sd 0.001, 2 seeds, 3 failed" and "no second seed" not in selection.missing_measurements(
        found
    )
    (found,) = selection.candidates(boards_of([rows[0] | {"failed": 4, "accuracy_std": ""}]))
    assert found.spread == "one seed, 4 failed" and "no second seed" in selection.missing_measurements(found)


def test_a_large_delta_is_no_promise() -> None:
    rows = [proved("dp-sgd", 0.01, 0.99, dataset="mnist", delta=0.5), proved("gm-dp", 0.9, 0.94, dataset="mnist")]
    limits = selection.Constraints("example", 1.0, 0.0)
    choice = selection.choose(boards_of(rows), limits)
    assert [c.row.method for found in choice.taken.values() for c in found] == ["gm-dp"]
    reasons = [selection.objection(each, limits) for each in choice.excluded]
    assert reasons == ["accounted 0.01 at a delta of 0.5, above 0.0001"]
    assert len(selection.choose(boards_of(rows), selection.Constraints("example", 1.0, 0.0, 0.5)).excluded) == 0


@pytest.fixture
def boards(tmp_path: Path) -> Path:
    """Claims that look good, proofs that are, and what an audit refuted."""
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


def test_only_what_is_proved_is_chosen(boards: Path) -> None:
    limits = selection.Constraints("example", 8, 0.9)
    found = selection.choose(read_boards(boards), limits)
    assert {place: [c.row.method for c in each] for place, each in found.taken.items()} == {
        ("mnist", "quick", "iid"): ["dp-sgd", "pate"]
    }
    reasons = {candidate.row.method: selection.objection(candidate, limits) for candidate in found.excluded}
    assert reasons == {
        "dpsd": "claimed 10 per query, accounted 7639",
        "dgd": "claimed 10 per example, accounted infinite",
        "dp-teacher": "nothing claimed, accounted 8.01",
        "psg": "nothing claimed, refuted by an audit",
        "dp-merf": "accounted 1, accuracy 0.710 below 0.9",
        "alibi": "claimed 1 per label, accounted per label, not per example",
        "gm-dp": "tier smoke, whose numbers mean nothing",
        "broken": "no run of it was finished",
    }


def test_a_refutation_in_the_row_of_another_attack_counts() -> None:
    rows = [
        proved("psg", 1.0, 0.97, dataset="mnist"),
        proved(
            "psg",
            1.0,
            0.97,
            dataset="mnist",
            attack="gmi",
            attack_variant="working",
            access="weights",
            flags="refuted",
            seeds="0",
        ),
    ]
    assert not selection.choose(boards_of(rows), selection.Constraints("example", 8, 0.9)).taken


def test_variants_are_different_releases() -> None:
    rows = [
        proved("pate", 2.0, 0.9 + i / 100, dataset="mnist", variant=v) for i, v in enumerate(("printed", "working"))
    ]
    (found,) = selection.choose(boards_of(rows), selection.Constraints("example", 8, 0.0)).taken.values()
    assert [each.name for each in found] == ["pate (working)", "pate (printed)"]


def test_a_label_promise_is_chosen_for_labels_alone(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(choose, "--unit", "label", "--max-epsilon", 2, "--boards", boards, "--all") == 0
    said = capsys.readouterr().out
    assert "take alibi (printed): the only row" in said
    assert "pate (printed) epsilon=2.0: nothing claimed, accounted per example, not per label" in said


def test_what_is_chosen_is_shown_with_its_cost_and_its_attacks(
    boards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(choose, "--max-epsilon", 8, "--min-accuracy", 0.9, "--boards", boards, "--all") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.index("dp-sgd") < said.index("pate (printed) epsilon=2.0")
    assert "take dp-sgd (printed): the most accurate of 2 whose accounted epsilon per example is at most 8" in said
    for words in ("0.9600", "12", "cpu", "not attacked", "gmi (working) 40.0 % (teacher 90.0 %)",
                  "AUC 0.520 (teacher 0.610), inconclusive"):  # fmt: skip
        assert all(word in said for word in words.split()), words
    assert "excluded" in said and "dpsd (printed): claimed 10 per query, accounted 7639" in said


def test_where_an_accuracy_is_asked_for_the_least_epsilon_that_has_it_is_named_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [proved("gep", 7.0, 0.99), proved("pate", 0.5, 0.91), proved("rgp", 0.5, 0.93), proved("dp-sgd", 0.1, 0.6)]
    boards = write(tmp_path / "boards", rows)
    for asked, told in (
        ("0.9", "or rgp (printed): the least epsilon, 0.5 at a delta of 1e-05, with an accuracy of 0.9300"),
        ("0.98", ""),
        ("0", ""),
    ):
        assert execute(choose, "--max-epsilon", 8, "--min-accuracy", asked, "--boards", boards) == 0
        answer = capsys.readouterr().out.splitlines()
        assert any(line.startswith("take gep") for line in answer)
        assert [line for line in answer if line.startswith("or ")] == ([told] if told else [])


def test_a_promise_of_the_same_epsilon_is_no_other_one_but_by_its_delta() -> None:
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


def test_what_only_its_delta_keeps_out_is_the_nearest(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--max-epsilon", 8, "--min-accuracy", 0.9, "--max-delta", 1e-6)
    assert execute(choose, *asked, "--boards", boards) == 0
    said = capsys.readouterr().out
    assert "no row of the boards has a proved epsilon of at most 8 per example at a delta of at most 1e-06, and" in said
    assert "nearest: at a delta of 1e-05, above 1e-06: dp-sgd (printed) on mnist (quick, iid)" in said
    assert "and 1 more" in said and said.count("nearest") == 1


def test_nothing_qualifies(boards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(choose, "--max-epsilon", 1, "--min-accuracy", 0.9, "--boards", boards) == 0
    said = capsys.readouterr().out
    assert (
        "nearest: most accurate within epsilon 1: dp-merf (printed) on mnist (quick, iid): accuracy 0.710, accounted 1"
        in said
    )
    assert "nearest: least epsilon with accuracy 0.9: pate (printed) epsilon=2.0" in said
    assert execute(choose, "--unit", "client", "--max-epsilon", 1, "--boards", boards) == 0
    assert "no row is accounted per client with a finite and valid epsilon; a row has one" in capsys.readouterr().out
    assert execute(choose, "--max-epsilon", 0.1, "--min-accuracy", 0.999, "--boards", boards) == 0
    assert "neither limit is met by any; least epsilon of all: " in capsys.readouterr().out


def test_what_has_no_finite_epsilon_is_near_to_none() -> None:
    rows, wish = [cells("no-defence", accuracy_mean=0.99) | {"dataset": "mnist"}], Constraints("example", 1.0, 0.9)
    (said,) = selection.choose(boards_of(rows), wish).nearest
    assert said == "no row is accounted per example with a finite and valid epsilon"
    huge = proved("dp-merf", 1e300, 0.95) | {"dataset": "mnist"}
    assert "least epsilon with accuracy 0.9: dp-merf" in selection.choose(boards_of([*rows, huge]), wish).nearest[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-epsilon", "inf"], "--max-epsilon inf"),
        (["--max-epsilon", "0"], "--max-epsilon 0.0"),
        (["--max-epsilon", "nan"], "--max-epsilon nan"),
        (["--max-epsilon", "8", "--min-accuracy", "90"], "--min-accuracy 90.0"),
        (["--max-epsilon", "8", "--dataset", "svhn"], "there is mnist"),
        (["--max-epsilon", "8", "--boards", "nowhere"], "no board in nowhere; run from the project's directory"),
    ],
)
def test_choose_refuses_in_one_line(boards: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(BenchError) as caught:
        execute(choose, "--boards", boards, *arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_where_own_boards_lie_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs" / "leaderboards" / "releases").mkdir(parents=True)
    with pytest.raises(BenchError, match=r"no board in .*runs; give .*runs/leaderboards$"):
        execute(choose, "--max-epsilon", 8, "--boards", tmp_path / "runs")


def test_the_command_of_a_choice_says_its_claim_and_all_that_is_not_usual() -> None:
    given = {"options": '{"budget": {"epsilon": 1.0, "unit": "label"}, "method": {"rounds": 2}}'}
    row = proved(
        "rr", 1.0, 0.9, dataset="celeba-g-subset", split="few", student="dense-cnn", teacher="resnet34", **given
    )
    ((release,),) = [board.releases for board in boards_of([row])]
    assert choose._command(release) == (
        "bench run --method rr --variant printed --dataset celeba-g --teacher resnet34 --epsilon 1 --unit label "
        "--method.rounds 2 --student dense-cnn --split few --noise os"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not a CSV file"),
        ("method,kind\ndpsd,methods\n", "no column release"),
        (heads(ReleaseRow) + "a,b\n", "line 2: 2 cells, expected 22"),
        (heads(ReleaseRow).replace("tier,split", "split,tier"), "expected the columns release, tier"),
    ],
)
def test_a_file_that_is_no_board_is_one_line_and_status_2(
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
        (("epsilon_accounted", "lots"), "line 2: epsilon_accounted is 'lots', not a number"),
        (("epsilon_accounted", "-1"), "line 2: epsilon_accounted is '-1', which is below 0"),
        (("accuracy", "nan"), "line 2: accuracy is 'nan', not a number"),
        (("version", "first"), "line 2: version is 'first', not a number"),
        (("tier", "huge"), "line 2: tier is 'huge', none of smoke, quick, standard, paper"),
        (("options", '{"method": 1}'), "cell of options is damaged"),
    ],
)
def test_a_damaged_cell_of_a_board_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str], words: str
) -> None:
    write(tmp_path, [cells("dpsd", version=1, epsilon_accounted=1.0)])
    spoil(tmp_path / "releases" / "mnist.csv", *wrong)
    for command in (["choose", "--max-epsilon", "8"], ["papers", "compare", "--paper", "dpsd", "--table", "Table I"]):
        assert main([*command, "--boards", str(tmp_path)]) == 2
        said = capsys.readouterr()
        assert words in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize(
    "typed",
    [[], ["--max-epsilon", "ten"], ["--max-epsilon", "-1"], ["--max-epsilon", "8", "--unit", "person"],
     ["--max-epsilon", "8", "--min-accuracy", "nan"], ["--max-epsilon", "8", "--dataset", "svhn"]],
)  # fmt: skip
def test_bad_limits_as_typed_are_one_line_and_status_2(
    boards: Path, capsys: pytest.CaptureFixture[str], typed: list[str]
) -> None:
    assert main(["choose", "--boards", str(boards), *typed]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("bench: error: ") and said.err.count("\n") == 1 and not said.out


def test_the_answer_as_typed_says_cost_risks_and_what_was_not_measured(
    boards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["--max-epsilon", "5", "--min-accuracy", "0.9", "--unit", "example", "--boards", str(boards), "--all"]
    assert main(["choose", *typed]) == 0
    said = capsys.readouterr().out
    answer = said[said.index("take pate") :].splitlines()
    told: dict[str, list[str]] = {}
    for line in filter(None, answer[1:]):
        told.setdefault(line[:16].strip() or list(told)[-1], []).append(line[16:])
    assert answer[0].endswith("the only row whose accounted epsilon per example is at most 5")
    assert told == {
        "accuracy": ["0.9300 (sd 0.010, 2 seeds)"],
        "protects": ["one record of the teacher's private training set: epsilon 2, delta 1e-05, add-or-remove",
            "one release; every other one of the same records adds to it",
        ],
        "command": ["bench run --method pate --variant printed --dataset mnist --epsilon 2 --noise os"],
        "cost": ["12 s on cpu"],
        "attacks": ["gmi (working) 40.0 % (teacher 90.0 %)", "lira (printed) AUC 0.520 (teacher 0.610), inconclusive"],
        "audited": ["no"],
        "risks": ["public-data: The method had unlabelled public images of the private data's own distribution. No "
                  "epsilon charges for them, and a method without them has a harder task."],
        "not measured": [
            "no attack with proved power that guesses members", "no audit",
            "nothing at the papers' size (this is tier quick)", "nothing on a GPU",
        ],
    }  # fmt: skip


def test_a_cost_that_no_one_recorded_is_said() -> None:
    told = []
    for seconds, device in ((12.4, "cpu (2 threads)"), ("", "cpu (2 threads)"), (12.4, ""), ("", "")):
        (found,) = selection.candidates(
            boards_of([proved("dp-sgd", 8.0, 0.97, dataset="mnist", seconds=seconds, device=device)])
        )
        told.append(choose._cost(found))
    assert told == ["12 s on cpu (2 threads)", "on cpu (2 threads)", "12 s", "not recorded"]


def test_the_strongest_inversion_is_the_one_that_gains_most_on_public_images_by_the_most_independent_judge() -> None:
    def row(attack: str, success: float, floor: float, **more: Any) -> dict[str, Any]:
        scores = {"attack_accuracy": success, "teacher_attack_accuracy": 0.9, "retrieval_accuracy": floor}
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
    assert strongest(row("ami", 0.99, 0.0) | {"retrieval_accuracy": ""}, high) == strongest(high), "a floor nobody has"
    assert strongest(row("gmi", 0.8, 0.1) | {"power": "fail"}) is None
    assert strongest(proved("pate", 2.0, 0.93, dataset="mnist", attack="lira", auc=0.6, power="pass")) is None


def lacks(method: str = "pate", **more: Any) -> list[str]:
    (found,) = selection.candidates(boards_of([proved(method, 2.0, 0.93, dataset="mnist", **more)]))
    return selection.missing_measurements(found)


def test_what_is_lacking_is_what_nobody_measured() -> None:
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


def test_a_test_set_that_was_looked_at_is_said_of_the_variant_that_it_concerns() -> None:
    seen = "no unseen test set: on this one "
    assert lacks("dpsd", variant="working")[-1] == seen + "settings of the questions and of the committee were chosen"
    assert lacks("alibi", variant="working")[-1] == seen + "the uniform prior of the first steps was switched off"
    for method, variant in (("dpsd", "printed"), ("private-features", "own"), ("not-installed", "own")):
        assert not lacks(method, variant=variant)[-1].startswith(seen)


@pytest.mark.parametrize("claim", [0.1, 1.0, 8.0])
def test_no_claim_however_small_is_ever_taken(claim: float) -> None:
    rows = [
        cells("unproved", dataset="mnist", epsilon_claimed=claim, claim_unit="example", accuracy_mean=0.99),
        cells("other-unit", dataset="mnist", epsilon_claimed=claim, unit="query", epsilon_accounted=0.5),
        proved("account-mended", 1.0, 0.99, dataset="mnist", epsilon_claimed=claim, flags="account-mended"),
        proved("float32", 1.0, 0.99, dataset="mnist", flags="float32-noise seeded-noise"),
        proved("proved", 8.0, 0.5, dataset="mnist"),
    ]
    limits = selection.Constraints("example", 8.0, 0.0)
    found = selection.choose(boards_of(rows), limits)
    assert [[each.row.method for each in place] for place in found.taken.values()] == [["proved"]]
    assert (
        "the account of its version was not true"
        in {each.row.method: selection.objection(each, limits) for each in found.excluded}["account-mended"]
    )


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
def test_choose_prints_25_lines_of_the_published_boards(capsys: pytest.CaptureFixture[str], typed: list[str]) -> None:
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


def test_own_rows_are_marked_and_make_no_published_row(
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
