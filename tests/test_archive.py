"""`bench leaderboard --archive`: the boards as one file that verifies."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from bench import registry
from bench.boards.archive import SUMS, write_archive
from bench.cli import main
from bench.errors import BadOption


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published board of letters."""
    made = tmp_path_factory.mktemp("boards") / "leaderboards"
    for path in (registry.ROOT / "leaderboards").rglob("letters*"):
        place = made / path.relative_to(registry.ROOT / "leaderboards")
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, place)
    return made


def test_archive_is_the_same_again_and_its_sums_fit(boards: Path, tmp_path: Path) -> None:
    first, again = write_archive(tmp_path / "a.zip", boards), write_archive(tmp_path / "b.zip", boards)
    assert first == again and first.sha256 == hashlib.sha256((tmp_path / "a.zip").read_bytes()).hexdigest()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = archive.namelist()
        sums = dict(reversed(line.split("  ")) for line in archive.read(SUMS).decode().splitlines())
        assert sorted([*sums, SUMS]) == sorted(names) and len(names) == first.files
        for name, expected in sums.items():
            assert hashlib.sha256(archive.read(name)).hexdigest() == expected, name
        metadata = json.loads(archive.read(".zenodo.json"))
    assert metadata["upload_type"] == "dataset" and metadata["creators"]
    assert {"schema/record.json", "LICENSE", "CITATION.cff"} <= set(names)


def test_tables_of_an_archive_agree_with_its_records(boards: Path, tmp_path: Path) -> None:
    assert main(["leaderboard", "--archive", str(tmp_path / "a.zip"), "--boards", str(boards)]) == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "out")
    assert main(["leaderboard", "--check", "--boards", str(tmp_path / "out" / "leaderboards")]) == 0


def test_boards_that_differ_are_not_archived(boards: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(boards, tmp_path / "leaderboards")
    table = changed / "releases" / "letters.csv"
    table.write_text(table.read_text().replace("0.", "1.", 1))
    assert main(["leaderboard", "--archive", str(tmp_path / "a.zip"), "--boards", str(changed)]) == 1
    assert not (tmp_path / "a.zip").exists()


def test_bad_names_and_options(boards: Path, tmp_path: Path) -> None:
    with pytest.raises(BadOption):
        write_archive(tmp_path / "a.tar", boards)
    (tmp_path / "a.zip").touch()
    with pytest.raises(BadOption):
        write_archive(tmp_path / "a.zip", boards)
    assert main(["leaderboard", "--archive", str(tmp_path / "b.zip"), "--check"]) == 2
