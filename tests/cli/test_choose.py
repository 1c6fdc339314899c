"""`bench choose` on constructed boards."""

from pathlib import Path

import pytest
from conftest import ROOT, Refused, Type
from wide_boards import boards_of, cells, heads, proved, spoil
from wide_boards import write_boards as write

from bench.boards import selection
from bench.boards.tables import ReleaseRow, read_boards
from bench.cli import choose
from bench.core.epsilon import PROTECTED


@pytest.fixture
def boards(tmp_path: Path) -> Path:
    """Releases with good claims, with good accounted epsilons, and one that an audit refuted."""
    rows = [
        cells("dpsd", epsilon_accounted=7639.0, accuracy_mean=0.99, flags="claim!=accounted other-unit"),
        cells("dgd", claim_unit="example", accuracy_mean=0.98),
        proved(attack="gmi", attack_variant="working", access="weights", attack_accuracy=0.4,
               teacher_attack_accuracy=0.9, accuracy_std=0.01, flags="public-data", power="pass",
               options='{"attack": {"steps": 9}, "budget": {"epsilon": 2.0}}'),
        proved(attack="lira", attack_variant="printed", access="scores", auc=0.52, teacher_auc=0.61,
               power="inconclusive", options='{"budget": {"epsilon": 2.0}}', seeds="0"),
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
    taken = {place: [each.row.method for each in of] for place, of in found.taken.items()}
    assert taken == {("mnist", "quick", "iid"): ["dp-sgd", "pate"]}
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


def test_choose_by_label_excludes_other_units(boards: Path, typed: Type) -> None:
    said = typed("choose --unit label --max-epsilon 2 --all --boards", boards).out
    assert "take alibi (printed): " in said
    (excluded,) = [line for line in said.splitlines() if "pate (printed) epsilon=2.0: " in line]
    assert "per example" in excluded and "per label" in excluded


def test_choose_all_prints_cost_and_attacks(boards: Path, typed: Type) -> None:
    said = " ".join(typed("choose --max-epsilon 8 --min-accuracy 0.9 --all --boards", boards).out.split())
    assert said.index("dp-sgd") < said.index("pate (printed) epsilon=2.0")
    assert "take dp-sgd (printed): the most accurate of 2 whose" in said
    for words in ("0.9600", "12", "cpu", "not attacked", "gmi (working) 40.0 % (teacher 90.0 %)",
                  "AUC 0.520 (teacher 0.610), inconclusive"):  # fmt: skip
        assert all(word in said for word in words.split()), words
    assert "dpsd (printed): claimed 10 per query, accounted 7,639" in said


@pytest.mark.parametrize(("accuracy", "count"), [(0.9, 1), (0.98, 0), (0, 0)])
def test_choose_with_accuracy_also_names_the_least_epsilon(
    tmp_path: Path, typed: Type, accuracy: float, count: int
) -> None:
    rows = [proved("gep", 7.0, 0.99), proved("pate", 0.5, 0.91), proved("rgp", 0.5, 0.93), proved("dp-sgd", 0.1, 0.6)]
    said = typed(f"choose --max-epsilon 8 --min-accuracy {accuracy} --boards", write(tmp_path / "boards", rows))
    lines = said.out.splitlines()
    assert any(line.startswith("take gep") for line in lines)
    least = [line for line in lines if line.startswith("or ")]
    assert len(least) == count
    assert all(value in line for line in least for value in ("rgp (printed)", " 0.5 ", "1e-05", "0.9300"))


def test_nearest_is_the_one_excluded_only_by_delta(boards: Path, typed: Type) -> None:
    said = typed("choose --max-epsilon 8 --min-accuracy 0.9 --max-delta 1e-6 --boards", boards).out
    (nearest,) = [line for line in said.splitlines() if line.startswith("nearest: ")]
    assert all(value in nearest for value in ("1e-05", "1e-06", "dp-sgd (printed) on mnist (quick, iid)"))
    assert "and 1 more" in said


def test_nearest_if_nothing_qualifies(boards: Path, typed: Type) -> None:
    said = typed("choose --max-epsilon 1 --min-accuracy 0.9 --boards", boards).out
    accurate, private = [line for line in said.splitlines() if line.startswith("nearest: ")]
    assert all(value in accurate for value in ("dp-merf (printed) on mnist (quick, iid)", "0.710", "epsilon 1"))
    assert "pate (printed) epsilon=2.0" in private and "accuracy 0.9" in private
    said = typed("choose --unit client --max-epsilon 1 --boards", boards).out
    assert "no row is accounted per client with a finite and valid epsilon; a row has one" in said
    said = typed("choose --max-epsilon 0.1 --min-accuracy 0.999 --boards", boards).out
    assert "least epsilon of all: " in said


@pytest.mark.parametrize(
    ("limits", "value"),
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
def test_choose_refuses_bad_limits(boards: Path, refused: Refused, limits: str, value: str) -> None:
    assert value in refused("choose --boards", boards, limits)


def test_choose_names_the_boards_below_a_folder_of_runs(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "runs" / "leaderboards" / "releases").mkdir(parents=True)
    assert "runs/leaderboards" in refused("choose --max-epsilon 8 --boards", tmp_path / "runs")


def test_command_of_a_choice_has_all_changed_options() -> None:
    given = {"options": '{"budget": {"epsilon": 1.0, "unit": "label"}, "method": {"rounds": 2}}', "split": "few"}
    row = proved("rr", dataset="celeba-g-subset", student="dense-cnn", teacher="resnet34", **given)
    ((release,),) = [board.releases for board in boards_of([row])]
    assert choose.describe_command(release) == (
        "bench run --method rr --variant printed --dataset celeba-g --teacher resnet34 --epsilon 1 --unit label "
        "--student dense-cnn --split few --method.rounds 2 --noise os"
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
def test_file_that_is_not_a_board_is_refused(tmp_path: Path, refused: Refused, content: str, words: str) -> None:
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases" / "mnist.csv").write_text(content)
    error = refused("choose --max-epsilon 8 --boards", tmp_path)
    assert words in error and "mnist.csv" in error


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [
        ("epsilon_accounted", "lots", "line 2: epsilon_accounted is 'lots'"),
        ("epsilon_accounted", "-1", "line 2: epsilon_accounted is '-1'"),
        ("accuracy", "nan", "line 2: accuracy is 'nan'"),
        ("version", "first", "line 2: version is 'first'"),
        ("tier", "huge", "line 2: tier is 'huge'"),
        ("options", '{"method": 1}', "options"),
    ],
)
def test_damaged_cell_of_a_board_is_refused(
    tmp_path: Path, refused: Refused, column: str, text: str, words: str
) -> None:
    write(tmp_path, [cells("dpsd", version=1, epsilon_accounted=1.0)])
    spoil(tmp_path / "releases" / "mnist.csv", column, text)
    for command in ("choose --max-epsilon 8", "papers compare --paper dpsd --table 'Table I'"):
        assert words in refused(command, "--boards", tmp_path)


def test_recommendation_has_cost_risks_and_gaps(boards: Path, typed: Type) -> None:
    said = typed("choose --max-epsilon 5 --min-accuracy 0.9 --unit example --all --boards", boards).out
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


@pytest.mark.parametrize(
    ("seconds", "device", "cost"),
    [(12.4, "cpu", "12 s on cpu"), ("", "cpu", "on cpu"), (12.4, "", "12 s"), ("", "", "not recorded")],
)
def test_cost_has_the_recorded_parts(seconds: float | str, device: str, cost: str) -> None:
    (found,) = selection.candidates(boards_of([proved(seconds=seconds, device=device)]))
    assert choose.describe_cost(found) == cost


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


@pytest.mark.parametrize("shipped", [pytest.param(True, marks=pytest.mark.thorough), False], ids=["shipped", "many"])
@pytest.mark.parametrize(
    "limits",
    ["8", "8 --dataset mnist --min-accuracy 0.9", "8 --dataset fmnist", "1e-9"],
    ids=lambda limits: limits.split()[-1],
)
def test_choose_prints_at_most_25_lines(many_places: Path, typed: Type, limits: str, shipped: bool) -> None:
    said = typed("choose --max-epsilon", limits, "--boards", ROOT / "leaderboards" if shipped else many_places)
    lines = said.out.splitlines()
    assert said.status == 0 and len(lines) <= 25 and "--all" in lines[-1]


def test_choose_counts_what_it_leaves_out(tmp_path: Path, typed: Type) -> None:
    rows = [proved("gep", 7.0, 0.9, delta=f"1e-{5 + i}") for i in range(8)] + [proved("rgp", 99.0, 0.99)]
    boards = write(tmp_path / "published", rows)
    brief = typed("choose --max-epsilon 8 --boards", boards).out.splitlines()
    assert brief[-1].startswith("4 more rows, of which 1 do not qualify")
    whole = typed("choose --max-epsilon 8 --all --boards", boards).out.splitlines()
    assert sum("gep (printed)" in line for line in whole) == 9


def test_own_rows_are_marked(here: Path, typed: Type) -> None:
    """The same setting, published and run by the user, is two rows; without own boards there is one."""
    published = write(here / "published", [proved("gep", 7.0, 0.9)])
    assert "yours" not in typed("choose --max-epsilon 8 --boards", published).out
    write(here / "boards", [proved("gep", 7.0, 0.95)])
    for own in ("", "--own boards"):
        head, *lines = typed("choose --max-epsilon 8 --boards", published, own).out.splitlines()
        assert head == f"boards: published {published} (1 releases), yours boards (1 releases)"
        assert [line.split()[-1] for line in lines if line.strip().startswith("gep")] == ["yours", "published"]
        assert any(line.startswith("take gep (printed) (yours): the most accurate of 2") for line in lines)
