"""Boards as files: publishing, what it refuses and replaces, and boards made by one process or several."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from board_records import record, results
from conftest import Refused, Type
from dp_accounting import GaussianDpEvent

from bench import boards
from bench.boards.publish import expected
from bench.boards.records import INSTALLED, boards_folder, migrate, own_folder
from bench.errors import BenchError
from bench.privacy import Ledger, Unit
from bench.privacy.accountant import account
from bench.storage.records import Record
from bench.storage.specs import digest


def save(item: Record, folder: Path) -> Path:
    path = folder / item.hash / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(item.to_json())
    return path.parent


def published(folder: Path, *records: Record, runs: str = "runs") -> Path:
    """The folder of boards with these records published."""
    boards.publish(folder / "leaderboards", [save(each, folder / runs) for each in records])
    return folder / "leaderboards"


def moved(record: Record, *place: str, value: Any) -> Record:
    """The record with another value in its spec, and the hash of that."""
    part = record.spec
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    record.hash = digest(record.spec)
    return record


def test_data_and_weights_of_users_are_named_by_hash() -> None:
    """Two archives of one file name, and two files of weights."""
    found = []
    for name, content, weights in (("npz-my", "1", None), ("npz-my", "2", None), ("digits", "1", "3" * 64)):
        one = record(0, 0.5)
        one.spec["release"]["teacher"]["data"] |= {"dataset": name, "fingerprint": content * 16}
        one = moved(one, "release", "teacher", "weights", value=weights)
        found += [result.release for result in results([one])]
    assert [row.split for row in found] == ["iid-11111111", "iid-22222222", "iid"]
    assert [row.teacher for row in found] == ["resnet18", "resnet18", "resnet18+weights-33333333"]


def test_differences_name_edited_and_missing_tables(tmp_path: Path) -> None:
    folder = published(tmp_path, record(0, 0.5), record(1, 0.5))
    assert boards.differences(folder) == []
    for table in ("releases", "attacks", "runs"):
        board = folder / table / "digits.csv"
        board.write_text(board.read_text().replace("0.5", "0.9"))
        assert boards.differences(folder) == [f"{board} is not what its records give"]
        board.unlink()
        assert boards.differences(folder) == [f"{board} is missing"]
        boards.rebuild(folder)
    (folder / "releases" / "mnist.csv").write_text("x\n")
    assert boards.differences(folder) == [f"{folder / 'releases' / 'mnist.csv'} has no records"]


def test_publish_names_replaced_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, other = record(0, 0.5), record(0, 0.75)
    first.metrics |= {"accuracy.lo": 0.4, "accuracy.hi": 0.6}
    other.metrics |= {"accuracy.lo": 0.7, "accuracy.hi": 0.8}
    folder = published(tmp_path, first, runs="one")
    published(tmp_path, first, runs="same")
    assert not capsys.readouterr().err
    published(tmp_path, other, runs="two")
    place = folder / "records" / "digits" / "dpsd.jsonl"
    line = capsys.readouterr().err
    assert all(value in line for value in (first.hash, str(place), "accuracy 0.5 ", "0.75")) and line.count("\n") == 1
    (kept,) = boards.read_records(folder)
    assert kept.metrics["accuracy"] == 0.75
    place.write_text(place.read_text() + "{\n")
    with pytest.raises(ValueError, match=r"dpsd\.jsonl, line 2"):
        boards.publish(folder, [tmp_path / "one" / first.hash])
    assert len(place.read_text().splitlines()) == 2, "nothing was lost"


@pytest.mark.parametrize(
    ("tier", "status", "git"),
    [
        ("smoke", "ok", {"clean": True}),
        ("quick", "failed", {"clean": True}),
        ("quick", "ok", {"clean": False, "commit": None}),
        ("quick", "ok", {}),
    ],
    ids=["smoke", "failed", "uncommitted", "unknown code"],
)
def test_publish_refuses_unusable_runs(tmp_path: Path, tier: str, status: str, git: dict[str, object]) -> None:
    """One bad run of several leaves the boards as they are."""
    bad = record(1, 0.5, status, tier=tier)
    bad.provenance["git"] = git
    with pytest.raises(BenchError, match=bad.hash):
        published(tmp_path, record(0, 0.5), bad)
    assert not (tmp_path / "leaderboards").exists()


def test_publish_reads_the_origin_of_every_step(tmp_path: Path) -> None:
    """Their devices are in a column, and uncommitted code of one step is refused."""
    known: dict[str, Any] = {"device": "NVIDIA H200", "git": {"clean": True, "commit": "1" * 40}}
    steps: dict[str, Any] = {"teacher 0123": known, "evaluator 4567": None, "release 89ab": {"device": "cpu"}}
    one = record(0, 0.5)
    one.provenance |= {"steps": steps}
    (row,) = pd.read_csv(published(tmp_path, one) / "runs" / "digits.csv").to_dict("records")
    assert row["device"] == "cpu (2 threads), cpu, NVIDIA H200"
    one.provenance |= {"steps": steps | {"teacher 0123": known | {"git": {"clean": False, "commit": "1" * 40}}}}
    with pytest.raises(BenchError, match="teacher 0123"):
        published(tmp_path, one, runs="more")


def proved() -> tuple[dict[str, Any], Record]:
    """An accounted epsilon of about 4.3, and a record that has it with its ledger."""
    ledger, found = Ledger(), record(0, 0.5, accounted=10.0)
    ledger.spend(GaussianDpEvent(1.0))
    epsilon = account(ledger, Unit.EXAMPLE, 1e-5).to_json()
    found.privacy |= {"events": ledger.to_json(), "accounted": epsilon, "accounted_units": {"example": epsilon}}
    found.metrics |= {"accuracy.lo": 0.4, "accuracy.hi": 0.6}
    return epsilon, found


@pytest.mark.parametrize(
    ("metrics", "privacy", "words"),
    [
        ({"accuracy": 0.7}, {}, r"accuracy of 0\.7"),
        ({"accuracy": 0.0}, {}, "accuracy of 0 "),
        ({"teacher_accuracy": 7.5}, {}, r"teacher_accuracy of 7\.5"),
        ({}, {"accounted_units": {"example": {"epsilon": 0.5}}}, r"example .*0\.5.* 4\.3"),
        ({}, {"accounted": {"epsilon": 9.0}}, r"example .*9\.0.* 4\.3"),
        ({}, {"events": []}, "per example"),
        ({}, {"accounted_units": {"example": {}, "query": {"unit": "query"}}}, "per query"),
        ({}, {"accounted_units": {"example": {"epsilon": 0.5, "version": "another accountant's"}}}, ""),
    ],
    ids=range(8),
)
def test_publish_refuses_contradicting_numbers(
    tmp_path: Path, metrics: dict[str, float], privacy: dict[str, Any], words: str
) -> None:
    folder = published(tmp_path, proved()[1])
    before = (folder / "releases" / "digits.csv").read_text()
    epsilon, changed = proved()
    changed.metrics |= metrics
    units = {unit: epsilon | given for unit, given in privacy.get("accounted_units", {"example": {}}).items()}
    whole = {"accounted": epsilon | privacy.get("accounted", {}), "accounted_units": units}
    changed.privacy |= privacy | whole
    with pytest.raises(BenchError, match=words) if words else nullcontext():
        published(tmp_path, changed, runs="more")
    assert (folder / "releases" / "digits.csv").read_text() == before or not words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.metrics.update(accuracy="0.9"), r"metrics\.accuracy: "),
        (lambda r: r.metrics.update(accuracy=True), r"metrics\.accuracy: "),
        (lambda r: r.options.update(method=3), r"options\.method: "),
        (lambda r: r.privacy.update(accounted="x"), r"privacy\.accounted: "),
        (lambda r: r.privacy["accounted"].update(epsilon=None), r"privacy\.accounted\.epsilon: "),
        (lambda r: r.privacy["accounted"].update(epsilon=-1.0), r"privacy\.accounted\.epsilon: "),
        (lambda r: r.privacy.update(accounted_units=[1]), "accounted_units"),
        (lambda r: r.privacy.pop("accounted"), r"privacy\.accounted: "),
        (lambda r: r.privacy.pop("accounted_units"), r"privacy\.accounted_units: "),
        (lambda r: r.privacy["claimed"].pop("unit"), r"privacy\.claimed\.unit: "),
        (lambda r: r.privacy["claimed"].update(unit=[]), r"privacy\.claimed\.unit: "),
        (lambda r: r.privacy["accounted"].update(delta="0"), r"privacy\.accounted\.delta: "),
        (lambda r: r.privacy.update(solved=[1]), r"privacy\.solved: "),
        (lambda r: r.privacy.update(events=[{"unit": "example"}]), r"privacy\.events\.0\.event: "),
        (lambda r: r.privacy.update(events="none"), r"privacy\.events: "),
        (lambda r: r.artifacts.update(plot=3), r"artifacts\.plot: "),
        (lambda r: r.missing.update(fid=3), r"missing\.fid: "),
        (lambda r: r.provenance.update(steps=[]), r"provenance\.steps: "),
    ],
)
def test_damaged_record_is_left_out_of_the_board(
    tmp_path: Path, change: Callable[[Record], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = record(0, 0.5), record(1, 0.6)
    change(bad)
    save(good, tmp_path / "records")
    with pytest.raises(ValueError, match=words):
        Record.read(save(bad, tmp_path / "records") / "record.json")
    board = boards.refresh(tmp_path, "digits").read_text()
    assert ": 1 " in capsys.readouterr().err and len(board.splitlines()) == 2
    with pytest.raises(BenchError, match=bad.hash):
        boards.publish(tmp_path / "boards", [tmp_path / "records" / bad.hash])


def test_publish_without_runs_rebuilds_tables(tmp_path: Path, typed: Type, refused: Refused) -> None:
    folder = tmp_path / "leaderboards"
    assert str(folder) in refused("leaderboard --publish --boards", folder)
    published(tmp_path, record(0, 0.5))
    (folder / "releases" / "digits.csv").write_text("spoiled")
    assert typed("leaderboard --publish --boards", folder).status == 0 and boards.differences(folder) == []


def test_leaderboard_prints_infinite_epsilon(tmp_path: Path, typed: Type) -> None:
    endless = record(0, 0.5, accounted=None)
    endless.metrics["reference_held_out_attack_accuracy"] = 0.95
    save(endless, tmp_path / "records")
    boards.refresh(tmp_path, "digits")
    printed = typed("leaderboard --out", tmp_path).out
    assert "accounted infinite per example" in " ".join(printed.split()) and "reference" not in printed
    assert max(map(len, printed.splitlines())) <= 120
    assert "gmi (printed) 50.0 %" in typed("leaderboard --attacks --out", tmp_path).out


def test_refresh_leaves_out_other_and_unreadable_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records of another data set, of an older version, and a folder of a record's name."""
    save(record(0, 0.5), tmp_path / "records")
    save(moved(record(1, 0.5), "release", "teacher", "data", "dataset", value="mnist"), tmp_path / "records")
    old = tmp_path / "records" / "0123456789abcdef" / "record.json"
    old.parent.mkdir()
    old.write_text('{"hash": "0123456789abcdef", "setting": "of an older version"}')
    (tmp_path / "records" / "123456789abcdef0" / "record.json").mkdir(parents=True)
    assert pd.read_csv(boards.refresh(tmp_path, "digits"), dtype=str)["seeds"].tolist() == ["0"]
    said = capsys.readouterr().err
    assert ": 2 " in said and (str(old) in said or "123456789abcdef0" in said)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Boards of two data sets in the format of a file a record, with reference images."""
    folder = tmp_path / "leaderboards" / "records"
    folder.mkdir(parents=True)
    for number in range(60):
        one = record(number % 4, number / 100, sigma=float(number // 4), split=("iid", "disjoint-a")[number % 2])
        one.metrics["reference_held_out_attack_accuracy"] = 0.9 + number / 1000
        one.metrics |= {"above_floor": 0.1} if number in (0, 4) else {}
        one.spec["release"]["teacher"]["data"]["dataset"] = ("digits", "mnist")[number // 4 % 2]
        one.hash = digest(one.spec)
        (folder / f"{one.hash}.json").write_text(one.to_json())
    return folder.parent


def test_migrated_records_give_the_same_boards(many: Path) -> None:
    before = {board.dataset: board for board in expected(many)}
    assert {name: len(board.runs) for name, board in before.items()} == {"digits": 32, "mnist": 28}
    assert all("above_floor" in {row.metric for row in board.attacks} for board in before.values())
    assert migrate(many) == (60, 0)
    assert {board.dataset: board for board in expected(many)} == before


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_differences_found_by_several_processes(many: Path) -> None:
    boards.rebuild(many)
    assert boards.differences(many, processes=2) == []
    table = many / "attacks" / "mnist.csv"
    table.write_text(table.read_text().replace("0.9", "0.8", 1))
    assert boards.differences(many, processes=2) == [f"{table} is not what its records give"]
    lines = (many / "records" / "mnist" / "dpsd.jsonl").read_bytes()
    (many / "records" / "digits" / "rr.jsonl").write_bytes(lines)
    for processes in (1, 2):
        with pytest.raises(ValueError, match=r"digits/rr\.jsonl, line 1"):
            boards.differences(many, processes)


def test_migrate_is_lossless_and_idempotent(many: Path, typed: Type) -> None:
    before = {path.stem: path.read_text() for path in (many / "records").glob("*.json")}
    assert "60 records and 0 audits" in typed("records migrate", many).out
    assert {record.hash: record.to_json() for record in boards.read_records(many)} == before
    files = {path: path.read_bytes() for path in (many / "records").rglob("*.json*")}
    assert {path.name for path in files} == {"dpsd.jsonl"} and len(files) == 2
    for content in files.values():
        hashes = [json.loads(line)["hash"] for line in content.splitlines()]
        assert hashes == sorted(hashes)
    assert typed("records migrate", many).status == 0
    assert {path: path.read_bytes() for path in (many / "records").rglob("*.json*")} == files


def test_migrate_with_damaged_file_changes_nothing(many: Path, refused: Refused) -> None:
    broken = sorted((many / "records").glob("*.json"))[30]
    broken.write_text(broken.read_text()[:-20])
    with pytest.raises(ValueError, match=broken.name):
        expected(many)
    assert broken.name in refused("records migrate", many)
    assert len(list((many / "records").glob("*.json"))) == 60 and not list((many / "records").rglob("*.jsonl"))
    refused("records migrate", many / "nowhere")


def test_killed_migration_is_completed_by_another(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {record.hash: record.to_json() for record in boards.read_records(many)}
    removed: list[Path] = []

    def killed(path: Path) -> None:
        if len(removed) == 20:
            raise KeyboardInterrupt
        removed.append(path)
        path.rename(path.with_suffix(".gone"))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            migrate(many)
    assert {record.hash: record.to_json() for record in boards.read_records(many)} == before
    assert migrate(many) == (40, 0)
    assert {record.hash: record.to_json() for record in boards.read_records(many)} == before


def test_publish_migrates_older_boards(many: Path, tmp_path: Path) -> None:
    boards.publish(many, [save(record(7, 0.5), tmp_path / "runs")])
    assert not list((many / "records").glob("*.json")) and len(boards.read_records(many)) == 61
    assert boards.differences(many) == []


PUBLISHER = """
import sys
from pathlib import Path
from bench import boards
boards.publish(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
"""


def test_concurrent_publishers_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "leaderboards"
    shares = [[save(record(4 * i + j, 0.5), tmp_path / "runs") for j in range(4)] for i in range(3)]
    started = [subprocess.Popen([sys.executable, "-c", PUBLISHER, folder, *share]) for share in shares]
    assert [each.wait() for each in started] == [0, 0, 0]
    assert sorted(boards.seed(each) for each in boards.read_records(folder)) == list(range(12))
    assert boards.differences(folder) == []


def test_killed_publisher_loses_nothing(tmp_path: Path) -> None:
    """The first process ends silently at its first new file; the published records are kept, and the lock is free."""
    folder = published(tmp_path, record(0, 0.5))
    before = boards.read_records(folder)
    kill = "import os\nfrom bench.storage import atomic_write\natomic_write.os.fsync = lambda _: os._exit(9)\n"
    more = save(record(1, 0.5), tmp_path / "runs")
    assert subprocess.run([sys.executable, "-c", kill + PUBLISHER, folder, more], check=False).returncode == 9
    assert boards.read_records(folder) == before and boards.differences(folder) == []
    boards.publish(folder, [more])
    assert len(boards.read_records(folder)) == 2 and boards.differences(folder) == []


@pytest.mark.parametrize("damage", [("0.5", '"half"'), ('"iid"', '"few"'), ('"privacy":{', '"privacy":{"more":1,')])
def test_check_names_a_damaged_line(tmp_path: Path, damage: tuple[str, str], refused: Refused) -> None:
    folder = published(tmp_path, record(0, 0.5))
    place = folder / "records" / "digits" / "dpsd.jsonl"
    place.write_text(place.read_text().replace(*damage))
    assert "dpsd.jsonl, line 1," in refused("leaderboard --check --boards", folder)


def test_publish_refuses_unsafe_file_names(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"\.\./outside"):
        published(tmp_path, moved(record(0, 0.5), "release", "method", value="../outside"))


def test_publish_writes_to_own_boards_by_default(here: Path, typed: Type) -> None:
    (here / "leaderboards").mkdir()
    run = save(record(0, 0.5), here / "runs" / "records")
    assert typed("leaderboard --publish", run)[:2] == (0, "wrote boards/releases/digits.csv\n")
    assert {path.parent.parent.name for path in here.rglob("*.csv")} == {"boards"}
    assert typed("leaderboard --check --boards boards").status == 0
    (here / "boards" / "releases" / "digits.csv").unlink()
    checked = typed("leaderboard --check --boards boards")
    assert checked.status == 1 and "--publish --boards boards" in checked.out


def test_boards_folder_needs_a_checkout(here: Path) -> None:
    (here / "leaderboards").mkdir()
    assert boards_folder(None) == INSTALLED and own_folder(None) is None
    (here / "bench" / "boards").mkdir(parents=True)
    assert boards_folder(None) == Path("leaderboards")
    (here / "boards" / "releases").mkdir(parents=True)
    assert own_folder(None) is None and own_folder(Path("mine")) == Path("mine")
    (here / "boards" / "releases" / "digits.csv").write_text("")
    assert own_folder(None) == Path("boards")
