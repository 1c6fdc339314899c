"""`bench reproduce`: a published run is run again and compared, and claims about published numbers are checked."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Refused, Type

from bench.boards.records import add, read_records
from bench.boards.reproduction import COLUMNS, Compared, find_run, number_of, read_claims
from bench.boards.tables import read_board
from bench.cli import main
from bench.storage.records import Record

RUN = "run --method label-protocol --dataset digits --tier quick --epsilon 1 --unit label --seeds 0,1 --device cpu"
LIST = ROOT / "leaderboards"


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of boards with one release of two seeds, and their records."""
    runs = tmp_path_factory.mktemp("published")
    assert main([*RUN.split(), "--out", str(runs)]) == 0
    add(runs / "leaderboards", [Record.read(path) for path in runs.glob("records/*/record.json")])
    return runs / "leaderboards"


def altered(boards: Path, folder: Path, **metrics: float) -> Path:
    """A copy of the boards whose records have other metrics."""
    for table in ("releases", "runs"):
        (folder / table).mkdir(parents=True)
        (folder / table / "digits.csv").write_bytes((boards / table / "digits.csv").read_bytes())
    records = folder / "records" / "digits"
    records.mkdir(parents=True)
    lines = (boards / "records" / "digits" / "label-protocol.jsonl").read_text().splitlines()
    plain = [json.loads(line) for line in lines]
    for each in plain:
        each["metrics"] |= metrics
    (records / "label-protocol.jsonl").write_text("".join(json.dumps(each) + "\n" for each in plain))
    return folder


def write_claims(folder: Path, *lines: tuple[object, ...]) -> None:
    with (folder / "claims.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([COLUMNS, *lines])


def test_run_is_reproduced_by_any_of_its_keys(boards: Path, here: Path, typed: Type) -> None:
    run = next(row for row in read_board(boards, "digits").runs if row.seed == 0)
    for key in (run.run, run.release[:6], run.evaluation):
        found = typed("reproduce", key, "--device cpu --boards", boards)
        assert found.status == 0 and found.out.count("  holds") == 3 and "DIFFERS" not in found.out
        assert find_run(boards, key).hash == run.run
    assert find_run(boards, run.release, seed=1).hash != run.run


def test_other_numbers_are_not_reproduced(boards: Path, here: Path, typed: Type) -> None:
    forged = altered(boards, here / "forged", **{"accuracy": 0.5, "accuracy.lo": 0.49, "accuracy.hi": 0.51})
    run = read_board(boards, "digits").runs[0]
    found = typed("reproduce", run.run, "--device cpu --boards", forged)
    assert found.status == 1 and found.out.count("DIFFERS") == 1


@pytest.mark.parametrize(("low", "high", "status"), [(0.7, 1.0, 0), (0.0, 0.3, 1)])
def test_claim_holds_within_its_limits(
    boards: Path, here: Path, typed: Type, low: float, high: float, status: int
) -> None:
    run = read_board(boards, "digits").runs[0].run
    folder = altered(boards, here / "claimed")
    write_claims(folder, ("C1", "digits", run, "accuracy", low, high, "a student learns"))
    assert typed("reproduce --list --boards", folder).out.startswith("C1 ")
    assert typed("reproduce C1 --device cpu --boards", folder).status == status


def test_claims_are_no_board(boards: Path, here: Path, typed: Type) -> None:
    """The file of claims is next to the tables; printing the boards must not rebuild it as one of an older version."""
    folder = shutil.copytree(boards, here / "leaderboards")
    write_claims(folder, ("C1", "digits", "0" * 16, "accuracy", 0.0, 1.0, "a sentence"))
    before = sorted(path.relative_to(here) for path in here.rglob("*"))
    assert typed("leaderboard --out", here).status == 0
    assert sorted(path.relative_to(here) for path in here.rglob("*")) == before


def test_all_claims_are_run_again_and_counted(boards: Path, here: Path, typed: Type) -> None:
    """Three claims of two runs: two hold, one does not; a run that is missing does not stop the others."""
    first, second = (row.run for row in read_board(boards, "digits").runs)
    folder = altered(boards, here / "claimed")
    lines = [("C1", "digits", first, "accuracy", 0.7, 1.0, "a student learns"),
             ("C2", "digits", first, "epsilon_accounted", 0.5, 1.5, "it is accounted at 1"),
             ("C3", "digits", second, "accuracy", 0.0, 0.3, "a student does not learn")]  # fmt: skip
    write_claims(folder, *lines)
    found = typed("reproduce --all --device cpu --boards", folder)
    assert found.status == 1
    assert found.out.splitlines()[-3:] == [
        "reproduced: 1 of 2 runs, C1 C2", "NOT reproduced: 1 of 2 runs, C3", "not run: 0 of 2 runs",
    ]  # fmt: skip
    write_claims(folder, *lines[:2], ("C4", "digits", "0" * 16, "accuracy", 0.0, 1.0, "no such run"))
    found = typed("reproduce --all --device cpu --boards", folder)
    assert found.status == 1 and found.out.splitlines()[-1] == "not run: 1 of 2 runs, C4"
    write_claims(folder, *lines[:2])
    assert typed("reproduce --all --device cpu --boards", folder).status == 0


@pytest.mark.parametrize(
    ("one", "two", "tolerance", "holds"),
    [(0.90, 0.92, 0.03, True), (0.90, 0.94, 0.03, False), (float("inf"), float("inf"), 0.0, True),
     (float("inf"), 5.0, 0.0, False)],
)  # fmt: skip
def test_numbers_agree_within_their_tolerance(one: float, two: float, tolerance: float, holds: bool) -> None:
    assert Compared("accuracy", one, two, tolerance).holds == Compared("accuracy", two, one, tolerance).holds == holds


@pytest.mark.parametrize("name", ["", "C99", "abc", "xyzxyz", "fffffffffff", "--seed x 000000"])
def test_unknown_names_are_refused(name: str, here: Path, refused: Refused) -> None:
    refused("reproduce", name, "--boards", LIST)


def test_other_seed_is_refused(boards: Path, here: Path, refused: Refused) -> None:
    release = read_board(boards, "digits").releases[0].release
    assert "0, 1" in refused("reproduce", release, "--seed 7 --boards", boards)


@pytest.mark.parametrize(
    "line", [("C1",), ("C1", "digits", "run", "accuracy", "low", "1", "x"), ("C1", "digits", "", "accuracy", 0, 1, "x")]
)
def test_damaged_claims_are_refused(line: tuple[object, ...], boards: Path, here: Path, refused: Refused) -> None:
    folder = altered(boards, here / "claimed")
    write_claims(folder, line)
    assert "line 2" in refused("reproduce --list --boards", folder)
    write_claims(folder, *2 * [("C1", "digits", "run", "accuracy", 0, 1, "x")])
    assert "C1" in refused("reproduce --list --boards", folder)


def test_every_published_claim_holds_in_its_record() -> None:
    claims = read_claims(LIST)
    wanted = {claim.run for claim in claims}
    found = {
        record.hash: record
        for name in sorted({claim.dataset for claim in claims})
        for record in read_records(LIST, name)
        if record.hash in wanted
    }
    assert len(claims) >= 20
    for claim in claims:
        value = number_of(found[claim.run], claim.metric)
        assert value is not None and claim.low <= value <= claim.high, (claim.name, value)


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the repeated runs, which several claims share."""
    return tmp_path_factory.mktemp("repeated")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [claim.name for claim in read_claims(LIST) if claim.dataset == "digits"])
def test_claims_on_digits_are_reproduced(name: str, repeated: Path, typed: Type) -> None:
    found = typed("reproduce", name, "--device cpu --boards", LIST, "--out", repeated)
    assert found.status == 0, found.out + found.err


def test_epsilons_are_read_with_infinity() -> None:
    wanted = [record for record in read_records(LIST, "digits") if record.spec["release"]["method"] == "fedavg"]
    assert {number_of(record, "epsilon_accounted") for record in wanted} == {float("inf")}
