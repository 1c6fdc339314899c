"""Groups of a user's own records: read from arrays and folders, held out as a whole, and kept through the split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refuses
from data_made import refusal
from PIL import Image

from bench import data
from bench.data.dataset import Reading
from bench.data.groups import is_held_out, read_groups
from bench.errors import BadOption, NotFound
from bench.pipeline.material import Wanted, load_material

COUNT = 120
X = np.random.RandomState(0).randint(0, 256, (COUNT, 8, 8)).astype(np.uint8)
Y = np.arange(COUNT) % 3
GROUPS = np.array([f"patient {number // 4}" for number in range(COUNT)])


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path / "mine.npz", **arrays)
    return f"npz:{path / 'mine.npz'}"


def folder(path: Path) -> dict[str, str]:
    """Write 60 files in three classes, without parts; return the group of each."""
    found = {}
    for number in range(60):
        file = path / "abc"[number % 3] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(X[number]).resize((16, 16)).save(file)
        found[file.relative_to(path).as_posix()] = f"p{number // 4}"
    return found


def written(path: Path, groups: dict[str, str]) -> Path:
    path.write_text("path,group,age\n" + "".join(f"{file},{group},9\n" for file, group in groups.items()))
    return path


def test_groups_of_arrays_are_numbered_over_both_parts(tmp_path: Path) -> None:
    found = data.load(saved(tmp_path, **BOTH, groups_train=GROUPS, test_groups=GROUPS[::-1]))
    assert found.train_groups is not None and found.test_groups is not None
    assert torch.equal(found.train_groups, found.test_groups.flip(0)) and len(found.train_groups.unique()) == 30
    plain = data.load(saved(tmp_path, **BOTH))
    assert plain.train_groups is None and plain.fingerprint != found.fingerprint


@pytest.mark.parametrize("images", ["x", "x_train"])
def test_groups_without_a_test_part_are_held_out_as_a_whole(images: str, tmp_path: Path) -> None:
    found = data.load(saved(tmp_path, **{images: X, images.replace("x", "y"): Y, "groups": GROUPS}))
    train, test = (set(found.train_groups.tolist()), set(found.test_groups.tolist()))  # type: ignore[union-attr]
    held_out = sum(is_held_out(f"patient {number}") for number in range(30))
    assert not train & test and len(train) + len(test) == 30 and len(test) == held_out > 0


def test_from_arrays_takes_groups(tmp_path: Path) -> None:
    own = data.from_arrays(X, Y, X, Y, name="mine", groups=GROUPS, groups_test=np.arange(COUNT) + 500)
    found = data.load(own.save(tmp_path), reading=own.reading)
    assert found.train_groups is not None and len(found.train_groups.unique()) == 30


@pytest.mark.parametrize("given", [True, False], ids=["option", "in the folder"])
def test_groups_of_an_image_folder(given: bool, tmp_path: Path) -> None:
    path = tmp_path / "rooms"
    file = written(tmp_path / "who.csv" if given else path / "groups.csv", folder(path))
    found = data.load(f"imagefolder:{path}@16", reading=Reading(groups=file if given else None))
    assert found.train_groups is not None and found.test_groups is not None
    assert not set(found.train_groups.tolist()) & set(found.test_groups.tolist())
    assert len(torch.cat([found.train_groups, found.test_groups]).unique()) == 15


def test_split_keeps_each_record_with_its_group(tmp_path: Path) -> None:
    """Pixels tell the group, so that a record with another's group would show; some records are removed as copies."""
    images = np.repeat(np.arange(COUNT) // 4, 64).reshape(COUNT, 8, 8).astype(np.uint8) * 8
    images[:, 0, 0] = np.arange(COUNT)
    test = np.concatenate([images[:3], 255 - images[3:30]])
    name = saved(tmp_path, x_train=images, y_train=Y, x_test=test, y_test=Y[:30], train_groups=np.arange(COUNT) // 4,
                 test_groups=np.arange(30) + 100)  # fmt: skip
    for split in ("iid", "identity"):
        found = load_material(Wanted(name, split))
        assert found.private_groups is not None
        shown = found.private[0][:, 0, 7, 7].tolist()
        pairs = set(zip(shown, found.private_groups.tolist(), strict=True))
        assert len(pairs) == len(set(shown)) == len(found.private_groups.unique()) == found.counts["private_groups"]
    assert len(set(shown)) == 25 and not set(found.aux[:, 0, 7, 7].tolist()) & set(shown)


BOTH = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        (BOTH | {"train_groups": GROUPS}, "test_groups"),
        (BOTH | {"groups": GROUPS}, "train_groups"),
        ({"x": X, "y": Y, "groups": GROUPS[:9]}, "groups"),
        ({"x": X, "y": Y, "groups": Y / 2}, "float64"),
        ({"x": X, "y": Y, "groups": np.where(Y == 1, "", "a")}, "position 1"),
        ({"x": X, "y": Y, "groups": Y, "group": Y}, "group"),
    ],
)
def test_wrong_groups_of_arrays_are_refused(arrays: dict[str, Any], named: str, tmp_path: Path) -> None:
    refusal(saved(tmp_path, **arrays), named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("file,group\na/0.png,1\n", "path"),
        ("path,group\na/0.png,\n", "line 2"),
        ("path,group\na/0.png,1\na/0.png,2\n", "a/0.png"),
        ("path,group\na/0.png,1\n", "a/"),
    ],
)
def test_wrong_files_of_groups_are_refused(text: str, named: str, tmp_path: Path) -> None:
    folder(tmp_path / "rooms")
    (tmp_path / "rooms" / "groups.csv").write_text(text)
    refusal(f"imagefolder:{tmp_path / 'rooms'}", named)


def test_missing_file_of_groups_is_refused(tmp_path: Path) -> None:
    with refuses(NotFound, "none.csv"):
        read_groups(tmp_path / "none.csv", "data set 'mine'")
    folder(tmp_path / "rooms")
    with refuses(NotFound, "none.csv"):
        data.from_folder(tmp_path / "rooms", groups=tmp_path / "none.csv")


def test_option_for_other_data_sets_is_refused() -> None:
    refusal("digits", "--groups", error=BadOption, reading=Reading(groups=Path("who.csv")))
