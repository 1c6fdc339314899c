"""Image files are decoded once into a shared array; no image is in two parts of a run."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Type, refuses
from data_made import refusal
from PIL import Image
from torch import Tensor

from bench import data
from bench.data import ImageData, Split
from bench.data import images as image_store
from bench.data.parts import Deduplicated, count_near_duplicates, remove_duplicates
from bench.errors import BadData
from bench.pipeline.material import Wanted, kept_in, load_material
from bench.storage.store import inspect

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import sys
from pathlib import Path
from bench.pipeline.material import Wanted, load_material
print(load_material(Wanted(sys.argv[1], "iid", out=Path(sys.argv[2]))).data.fingerprint)
"""


def noise(folder: Path, count: int, side: int = 24, seed: int = 0) -> Path:
    """`count` colour PNG files in two class folders."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        file = folder / "ab"[number % 2] / f"{number:04}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file)
    return folder


def start(folder: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOAD, f"imagefolder:{folder}@24", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def steps(out: Path) -> list[Path]:
    return list(out.glob("steps/decoded/[0-9a-f]*"))


def test_kept_images_equal_images_decoded_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"imagefolder:{noise(tmp_path / 'in', 40)}@16"
    plain, kept = data.load(name), data.load(name, keep=kept_in(tmp_path / "out"))
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("decoded again"))
    again = data.load(name, keep=kept_in(tmp_path / "out"))
    assert plain.fingerprint == kept.fingerprint == again.fingerprint
    assert len(steps(tmp_path / "out")) == 1 and inspect(steps(tmp_path / "out")[0])[0] == []


@pytest.mark.parametrize("change", ["content", "size", "one more"])
def test_changed_input_decodes_again(tmp_path: Path, change: str) -> None:
    folder, keep = noise(tmp_path / "in", 14), kept_in(tmp_path / "out")
    before = data.load(f"imagefolder:{folder}", keep=keep)
    if change == "content":
        Image.new("RGB", (24, 24), (1, 2, 3)).save(folder / "a" / "0000.png")
    elif change == "one more":
        Image.new("RGB", (24, 24), (1, 2, 3)).save(folder / "a" / "9999.png")
    after = data.load(f"imagefolder:{folder}@{16 if change == 'size' else 32}", keep=keep)
    assert after.fingerprint != before.fingerprint and len(steps(tmp_path / "out")) == 2


def test_writing_to_images_changes_no_file(tmp_path: Path) -> None:
    name, keep = f"imagefolder:{noise(tmp_path / 'in', 14)}", kept_in(tmp_path / "out")
    first = data.load(name, keep=keep)
    before = first.fingerprint
    first.train_images.zero_()
    assert data.load(name, keep=keep).fingerprint == before


def test_large_parts_are_kept_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"imagefolder:{noise(tmp_path / 'in', 60)}@24"
    small = load_material(Wanted(name, "iid"))
    monkeypatch.setattr(image_store, "LARGE", 1)
    large = load_material(Wanted(name, "iid", out=tmp_path / "out"))
    assert list((tmp_path / "out" / "steps" / "image-rows").glob("[0-9a-f]*"))
    for one, other in zip((*small.private, small.aux), (*large.private, large.aux), strict=True):
        assert torch.equal(one, other)
    again = load_material(Wanted(name, "iid", out=tmp_path / "other"))
    assert again.data.fingerprint == large.data.fingerprint


def test_large_part_is_identified_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_store, "LARGE", 1)
    name = f"imagefolder:{noise(tmp_path / 'in', 60)}@24"
    kept, gone = data.load(name, keep=kept_in(tmp_path / "out")), data.load(name)
    content = image_store.mapped_identity(kept.train_images)
    assert content is not None and content == image_store.mapped_identity(gone.train_images), (
        "whether or not the file is there"
    )
    assert content != image_store.mapped_identity(kept.train_images[1:])
    assert image_store.mapped_identity(kept.train_images.clone()) is None
    Image.new("RGB", (24, 24), (1, 2, 3)).save(tmp_path / "in" / "a" / "0000.png")
    assert data.load(name).fingerprint != kept.fingerprint == gone.fingerprint


def test_folders_of_equal_names_and_times_differ(tmp_path: Path) -> None:
    """Archives may be unpacked with equal modification times."""
    for seed, name in enumerate(("one", "two")):
        for file in noise(tmp_path / name, 40, seed=seed).rglob("*.png"):
            with Image.open(file) as image:
                image.save(file.with_suffix(".bmp"))
            file.unlink()
        for file in (tmp_path / name).rglob("*.bmp"):
            os.utime(file, (1, 1))
    keep = kept_in(tmp_path / "out")
    kept, fresh = ([data.load(f"imagefolder:{tmp_path / name}@24", keep=each).fingerprint for name in ("one", "two")]
                     for each in (keep, None))  # fmt: skip
    assert kept == fresh and len(set(fresh)) == 2


@pytest.mark.thorough
def test_killed_decoding_leaves_no_result(tmp_path: Path) -> None:
    folder, out = noise(tmp_path / "in", 1500, 96), tmp_path / "out"
    process = start(folder, out)
    until = time.monotonic() + 60
    while not list(out.glob("steps/decoded/.making-*/images.u8")) and time.monotonic() < until:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if steps(out):
        pytest.skip("the machine decoded everything before the kill")
    assert list(out.glob("steps/decoded/.making-*"))
    again = start(folder, out)
    printed, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert printed.strip() == data.load(f"imagefolder:{folder}@24").fingerprint
    assert len(steps(out)) == 1 and not list(out.glob("steps/decoded/.making-*"))


@pytest.mark.thorough
def test_concurrent_runs_decode_once(tmp_path: Path) -> None:
    folder, out = noise(tmp_path / "in", 400, 64), tmp_path / "out"
    both = [start(folder, out) for _ in range(2)]
    printed = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert printed[0][0] == printed[1][0] and len(steps(out)) == 1
    assert sum("decode images: 400 of 400" in errors for _, errors in printed) == 1


def spoil(folder: Path, count: int) -> list[Path]:
    """The first files made unreadable: empty, cut in half, or no image at all."""
    bad = sorted(folder.rglob("*.png"))[:count]
    for number, file in enumerate(bad):
        content = file.read_bytes()
        file.write_bytes([b"", content[: len(content) // 2], b"hello"][number % 3])
    return bad


def test_broken_files_are_named_in_one_line(tmp_path: Path) -> None:
    bad = spoil(noise(tmp_path, 60), 13)
    message = refusal(f"imagefolder:{tmp_path}", "13 of 60", "3 more", "--skip-broken")
    assert sum(str(file) in message for file in bad) == 10


def test_broken_files_are_left_out_on_request(tmp_path: Path) -> None:
    noise(tmp_path, 60)
    whole = data.load(f"imagefolder:{tmp_path}")
    bad = spoil(tmp_path, 4)
    found = data.load(f"imagefolder:{tmp_path}", skip_broken=True)
    assert set(found.left_out) == {file.relative_to(tmp_path).as_posix() for file in bad}
    assert len(found.train_labels) + len(found.test_labels) == 56
    kept = {image.numpy().tobytes() for image in torch.cat([found.train_images, found.test_images])}
    assert kept < {image.numpy().tobytes() for image in torch.cat([whole.train_images, whole.test_images])}


def test_class_of_broken_files_is_refused(tmp_path: Path) -> None:
    noise(tmp_path, 60)
    for file in (tmp_path / "b").iterdir():
        file.write_bytes(b"")
    refusal(f"imagefolder:{tmp_path}", "class 'b'", skip_broken=True)


def test_run_refuses_or_omits_broken_files(here: Path, typed: Type) -> None:
    (bad,) = spoil(noise(here / "in", 60), 1)
    command = "run --method no-defence --tier smoke --teacher datalens --size 16 --dataset"
    said = typed(command, f"imagefolder:{here / 'in'}")
    assert said.status == 2 and len(said.err.strip().splitlines()) <= 2 and str(bad) in said.err
    said = typed(command, f"imagefolder:{here / 'in'}", "--skip-broken")
    assert said.status == 0 and "a/0000.png" in said.err
    assert list((here / "runs" / "leaderboards" / "releases").glob("imagefolder-in-16px.csv"))


PARTS = ("test", "public", "aux", "private", "no")
"""The part that has another image like the private record."""


def make(total: int = 120, tests: int = 24, name: str = "npz-x") -> ImageData:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (total + tests, 1, 8, 8), generator=rng, dtype=torch.uint8)
    labels = torch.arange(total + tests) % 3
    return ImageData(name, images[:total], labels[:total], images[total:], labels[total:], ("a", "b", "c"))


def whole_split(private: int) -> Split:
    """A split with all records private and the attacker's images from another data set."""
    return Split("cross", torch.arange(private), torch.arange(0), "other")  # type: ignore[arg-type]


def test_remove_duplicates_without_any_changes_nothing() -> None:
    given = make()
    shared = data.split(given, "iid", public=True)
    found = remove_duplicates(given, shared)
    assert found.data is given and found.split is shared and found.removed == {}


def test_duplicate_stays_in_first_part_that_has_it() -> None:
    given = make()
    shared = data.split(given, "iid", public=True)
    assert shared.public is not None
    private, aux, public = shared.private.tolist(), shared.aux.tolist(), shared.public.tolist()
    given.train_images[private[:2]] = given.test_images[:2]
    given.train_images[aux[0]] = given.train_images[private[3]]
    given.train_images[aux[1]] = given.test_images[5]
    given.train_images[aux[2]] = given.train_images[public[0]]
    given.train_images[public[1]] = given.test_images[6]
    given.train_images[private[4]] = given.train_images[public[2]]
    given.train_images[private[6]] = given.train_images[private[5]]
    found = remove_duplicates(given, shared)
    assert found.removed == {"private": 4, "aux": 2, "public": 1}
    images = found.data.train_images
    gone = {private[row] for row in (0, 1, 3, 4)}
    assert torch.equal(images[found.split.private], given.train_images[[row for row in private if row not in gone]])
    assert torch.equal(found.data.test_images, given.test_images)
    assert found.split.public is not None and len(images) == 120 - 4
    parts = [images[found.split.private], images[found.split.aux], images[found.split.public], found.data.test_images]
    distinct = {image.numpy().tobytes() for part in parts for image in part}
    assert len(distinct) == sum(map(len, parts)) - 1, "the copy within the private part stays"


def with_record(like: str, name: str = "iid") -> tuple[ImageData, Split, int]:
    """A data set one of whose private records is a copy of an image of a part, its split, and the record's row."""
    given = make(400, name="npz-mine")
    shared = data.split(given, name, public=True)
    assert shared.public is not None
    row = int(shared.private[4])
    given.train_images[row] = {
        "test": given.test_images[3],
        "public": given.train_images[shared.public[1]],
        "aux": given.train_images[shared.aux[2]],
        "private": given.train_images[shared.private[9]],
        "no": 255 - given.train_images[row],
    }[like]
    return given, shared, row


def without_record(given: ImageData, shared: Split, row: int) -> Deduplicated:
    """Remove duplicates without the record; all others keep their positions."""
    return remove_duplicates(given, replace(shared, private=shared.private[shared.private != row]))


def private_part(found: Deduplicated) -> tuple[Tensor, Tensor]:
    return data.private_part(found.data, found.split)


@pytest.mark.parametrize("like", PARTS)
def test_private_record_changes_no_other_part(like: str) -> None:
    """The private parts with and without the record differ at most in the record."""
    given, shared, row = with_record(like)
    one, other = remove_duplicates(given, shared), without_record(given, shared, row)
    assert torch.equal(one.data.test_images, other.data.test_images)
    assert torch.equal(one.data.test_labels, other.data.test_labels)
    for part in ("aux", "public"):
        assert torch.equal(*(each.data.train_images[getattr(each.split, part)] for each in (one, other)))
    assert {**one.removed, "private": 0} == {**other.removed, "private": 0}
    (images, labels), (left, left_labels) = private_part(one), private_part(other)
    if like in ("private", "no"):
        rest = torch.arange(len(images)) != 4
        assert torch.equal(images[4], given.train_images[row])
        images, labels = images[rest], labels[rest]
    assert torch.equal(images, left) and torch.equal(labels, left_labels)


def test_wrong_labels_do_not_depend_on_removed_duplicates() -> None:
    """Which labels are wrong under split canaries is decided before duplicates are removed."""
    given, shared, row = with_record("test", "canaries")
    unique = make(400, name="npz-mine")
    unique.train_images[row] = 255 - unique.train_images[row]  # no copy: it stays
    whole, whole_labels = private_part(remove_duplicates(unique, shared))
    found = remove_duplicates(given, shared)
    images, labels = private_part(found)
    rest = torch.arange(len(whole)) != 4
    assert torch.equal(images, whole[rest]) and torch.equal(labels, whole_labels[rest])
    wrong = data.mislabelled(found.data, found.split)
    assert wrong is not None and bool((labels[wrong] != found.data.train_labels[found.split.private][wrong]).all())


def test_part_of_duplicates_only_is_refused() -> None:
    given = make()
    shared = data.split(given, "iid")
    for part in (shared.private, shared.aux):
        given.train_images[part] = given.test_images[0]
        with refuses(BadData, "npz-x", "'iid'"):
            remove_duplicates(given, shared)
    with refuses(BadData, "'other'"):
        remove_duplicates(given, whole_split(120), other=given.test_images[:1])


def test_duplicates_in_another_data_set_are_removed() -> None:
    given = make()
    others = torch.cat([given.train_images[:2], given.test_images[:1], 255 - given.train_images[:4]])
    found = remove_duplicates(given, whole_split(120), other=others)
    assert found.other is not None and len(found.other) == 6 and found.removed == {"private": 2, "aux": 1}
    assert torch.equal(found.data.train_images[found.split.private], given.train_images[2:])


def test_material_with_duplicate_keeps_other_parts(tmp_path: Path) -> None:
    """Counts and measurements of the test set are the same for every private record that is a duplicate."""
    found = {}
    for like in ("test", "no"):
        given, _, _ = with_record(like)
        file = tmp_path / like / "mine.npz"
        file.parent.mkdir()
        keys = ("train_images", "train_labels", "test_images", "test_labels")
        np.savez(file, **{key: getattr(given, key).squeeze().numpy() for key in keys})
        found[like] = load_material(Wanted(f"npz:{file}", "iid"))
    one, other = found["test"], found["no"]
    assert torch.equal(one.data.test_images, other.data.test_images)
    assert torch.equal(one.aux, other.aux) and one.aux_fingerprint == other.aux_fingerprint
    assert one.data.fingerprint != other.data.fingerprint
    assert all(one.counts[part] == other.counts[part] for part in ("test", "aux"))
    assert len(other.private[0]) - len(one.private[0]) == one.counts["copies_removed"]["private"] == 1


def test_near_duplicates_are_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, pixels in enumerate(rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)):
        smooth = Image.fromarray(pixels).resize((48, 48), Image.Resampling.BICUBIC)
        for label in ("a", "b") if number in (3, 4) else ("ab"[number % 2],):
            file = tmp_path / ("test" if number < 10 else "train") / label / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            smooth.save(file, quality=95)
    for number in (3, 4):  # encoded again, these test images are in the training set as well
        with Image.open(tmp_path / "test" / "a" / f"{number}.jpg") as image:
            image.save(tmp_path / "train" / "a" / f"again{number}.jpg", quality=80)
    found = data.load(f"imagefolder:{tmp_path}@48")
    assert count_near_duplicates(found, whole_split(len(found.train_labels))) == {"test": 4}
    assert count_near_duplicates(make(), data.split(make(), "iid")) is None, "arrays have no difference hashes"
