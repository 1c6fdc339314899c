"""Published sets that are not available here, read from small files in their exact formats; and real ones."""

from __future__ import annotations

import bz2
import hashlib
import os
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import CIFAR100, SVHN

from bench import data
from bench.data import images as image_store
from bench.data.dataset import Decoding
from bench.data.faces import list_people
from bench.data.parts import remove_duplicates
from bench.errors import BenchError
from bench.pipeline.material import kept_in

ROOT = Path(__file__).resolve().parents[2]
ATTRIBUTES = ("Bald", "Black_Hair", "Blond_Hair", "Brown_Hair", "Male")


def refusal(name: str, root: Path) -> str:
    with pytest.raises(BenchError) as caught:
        data.load(name, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(file: Path, rng: np.random.Generator, size: tuple[int, int] = (64, 64)) -> None:
    """An image of noise; `size` is (width, height)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(file)


def md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


def test_cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    names = list(data.facts("cifar100").class_names)
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    for part, count in (("train", 200), ("test", 100)):
        pixels = np.arange(count, dtype=np.uint8)[:, None].repeat(3072, 1)
        content = {
            "data": pixels,
            "fine_labels": [number % 100 for number in range(count)],
            "coarse_labels": [0] * count,
        }
        (folder / part).write_bytes(pickle.dumps(content))
    monkeypatch.setattr(CIFAR100, "train_list", [["train", md5(folder / "train")]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", md5(folder / "test")]])
    monkeypatch.setattr(CIFAR100, "meta", CIFAR100.meta | {"md5": md5(folder / "meta")})
    found = data.load("cifar100", tmp_path)
    assert (found.name, found.shape, found.classes) == ("cifar100", (3, 32, 32), 100)
    assert len(found.train_labels) == 200 and found.test_labels.tolist() == list(range(100))
    assert data.facts("cifar100").candidates == 50
    (folder / "test").write_bytes(b"x")
    assert "its md5 is not the published one" in refusal("cifar100", tmp_path)
    (folder / "test").unlink()
    assert "'cifar100' not found" in refusal("cifar100", tmp_path)


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, sums = np.random.default_rng(0), {}
    for part, count in (("train", 20), ("test", 10)):
        file = tmp_path / f"{part}_32x32.mat"
        pixels = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        pixels[3, 7, 1, 4] = 99
        savemat(file, {"X": pixels, "y": (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]})
        sums[part] = ["", file.name, md5(file)]
    monkeypatch.setattr(SVHN, "split_list", sums)
    found = data.load("svhn", tmp_path)
    assert (found.name, found.shape, found.classes) == ("svhn", (3, 32, 32), 10)
    assert found.train_labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert found.train_images[4, 1, 3, 7] == 99
    (tmp_path / "test_32x32.mat").write_bytes(b"x")
    assert "is corrupt" in refusal("svhn", tmp_path)


def test_kmnist_lies_as_mnist_does(tmp_path: Path) -> None:
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = np.zeros((count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 10
        images[:, 0, 0] = np.arange(count)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels.tobytes())
    assert data.load("kmnist", tmp_path).test_images[:, 0, 0, 0].tolist() == list(range(10))


def test_usps_as_torchvision_has_it(tmp_path: Path) -> None:
    for file, count in (("usps.bz2", 20), ("usps.t.bz2", 10)):
        lines = [
            f"{number % 10 + 1} " + " ".join(f"{pixel + 1}:{-1 if pixel else 1}" for pixel in range(256))
            for number in range(count)
        ]
        (tmp_path / file).write_bytes(bz2.compress("\n".join(lines).encode()))
    found = data.load("usps", tmp_path)
    assert (found.name, found.shape, len(found.test_labels)) == ("usps", (1, 16, 16), 10)
    assert found.train_labels[:10].tolist() == list(range(10)) and found.train_images[0, 0, 0, :2].tolist() == [255, 0]
    (tmp_path / "usps.bz2").write_bytes(b"BZh9 no")
    assert "usps.bz2" in refusal("usps", tmp_path)


@pytest.mark.parametrize(("name", "side"), [("medmnist:pathmnist", 28), ("medmnist:pathmnist@64", 64)])
def test_medmnist_by_name_and_size(tmp_path: Path, name: str, side: int) -> None:
    file = tmp_path / "medmnist" / ("pathmnist.npz" if side == 28 else "pathmnist_64.npz")
    file.parent.mkdir()
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 18), ("val", 9), ("test", 9)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 9).astype(np.uint8)[:, None]
    np.savez(file, **arrays)
    found = data.load(name, tmp_path)
    assert found.name == ("medmnist-pathmnist" if side == 28 else "medmnist-pathmnist-64px")
    assert (found.shape, found.classes, len(found.train_labels)) == ((3, side, side), 9, 27)
    assert data.typed(found.name) == name and data.base_name(found.name) == "medmnist"
    assert "pneumoniamnist.npz under" in refusal("medmnist:pneumoniamnist", tmp_path)


def test_tiny_imagenet_as_published(tmp_path: Path) -> None:
    rng, tree = np.random.default_rng(0), tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        for number in range(6):
            put(tree / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", rng)
        (tree / "train" / wnid / f"{wnid}_boxes.txt").write_text("x\t0\t0\t9\t9\n")
    lines = []
    for number, wnid in enumerate(("n02", "n01", "n02")):
        put(tree / "val" / "images" / f"val_{number}.JPEG", rng)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62")
    (tree / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    found = data.load("tiny-imagenet", tmp_path)
    assert (found.name, found.shape, found.class_names) == ("tiny-imagenet-subset", (3, 64, 64), ("n01", "n02"))
    assert found.train_labels.tolist() == [0] * 6 + [1] * 6 and found.test_labels.tolist() == [1, 0, 1]
    assert data.load("tiny-imagenet@32", tmp_path).name == "tiny-imagenet-subset-32px"
    (tree / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\n")
    assert "val_annotations.txt is missing or corrupt" in refusal("tiny-imagenet", tmp_path)


def test_imagenet_folders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for wnid in ("n01440764", "n01443537"):
            for number in range(count):
                put(tmp_path / "imagenet" / part / wnid / f"{wnid}_{number}.JPEG", rng, (300, 250))
    found = data.load("imagenet", tmp_path)
    assert (found.name, found.shape) == ("imagenet-subset", (3, 224, 224))
    assert found.train_labels.tolist() == [0] * 4 + [1] * 4 and data.facts("imagenet").candidates == 300
    assert data.facts(data.load("imagenet@64", tmp_path).name).shape == (3, 64, 64)
    put(tmp_path / "imagenet" / "val" / "n9" / "x.JPEG", rng)
    assert "has 2 classes and" in refusal("imagenet", tmp_path)


def test_covidx_lists(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 3)):
        lines = []
        for number in range(count):
            file = f"scan {number}.png" if number == 1 else f"scan{number}.png"
            put(tmp_path / "covidx" / part / file, rng, (90, 70))
            kind = ("COVID-19", "normal", "pneumonia")[number % 3]
            lines.append(f"{part}{number // 2} {file} {kind} cohen")
        (tmp_path / "covidx" / f"{part}.txt").write_text("\n".join(lines))
    found = data.load("covidx", tmp_path)
    assert (found.shape, found.class_names) == ((1, 64, 64), ("COVID-19", "normal", "pneumonia"))
    assert found.train_people is not None and len(found.train_people.unique()) == 6
    shared = data.split(found, "identity")
    assert not set(found.train_people[shared.private].tolist()) & set(found.train_people[shared.aux].tolist())
    (tmp_path / "covidx" / "test.txt").write_text("p scan0.png normal\n")
    assert "line 1 of" in refusal("covidx", tmp_path)


def celeba(root: Path, images: int = 48, without: int | None = None) -> Path:
    """CelebA's files: image i shows person i % 6, has black, blond or brown hair by i % 3, and two where i % 6 is 2."""
    rng, folder = np.random.default_rng(0), root / "celeba"
    rows, people, parts = [], [], []
    for number in range(1, images + 1):
        file = f"{number:06}.jpg"
        if number != without:
            put(folder / "img_align_celeba" / file, rng, (178, 218))
        hair = [(-1, 1)[number % 3 == place or (place == 0 and number % 6 == 2)] for place in range(3)]
        rows.append(f"{file} " + " ".join(f"{mark:2}" for mark in (-1, *hair, 1 if number % 2 else -1)))
        people.append(f"{file} {number % 6}")
        parts.append(f"{file} {0 if number <= 30 else 1 if number <= 36 else 2}")
    (folder / "list_attr_celeba.txt").write_text(f"{images}\n{' '.join(ATTRIBUTES)} \n" + "\n".join(rows) + "\n")
    (folder / "identity_CelebA.txt").write_text("\n".join(people) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return root


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 images are all of CelebA."""
    from bench.data import faces as reader

    monkeypatch.setattr(reader, "ALL", 48)


@pytest.mark.usefixtures("whole")
def test_celeba_by_the_official_partition(tmp_path: Path) -> None:
    found = data.load("celeba-g", celeba(tmp_path))
    assert (found.name, found.shape, found.class_names) == ("celeba-g", (3, 64, 64), ("female", "male"))
    assert found.train_labels.tolist() == [number % 2 for number in range(1, 37)], "validation joins the training set"
    assert found.test_labels.tolist() == [number % 2 for number in range(37, 49)]
    hair = data.load("celeba-h", tmp_path)
    assert hair.class_names == ("black", "blond", "brown")
    assert hair.train_labels.tolist() == [number % 3 for number in range(1, 37) if number % 6 != 2]


@pytest.mark.usefixtures("whole")
def test_a_subset_of_celeba_is_named_so_and_split_by_its_pixels(tmp_path: Path) -> None:
    found = data.load("celeba-g", celeba(tmp_path, without=7))
    assert found.name == "celeba-g-subset" and len(found.train_labels) + len(found.test_labels) == 47
    assert found.test_labels.bincount().tolist() == [24 // 6, 23 // 6]
    for label in (0, 1):
        parts = (found.train_images[found.train_labels == label], found.test_images[found.test_labels == label])
        train, test = ([hashlib.sha256(image.numpy().tobytes()).digest() for image in images] for images in parts)
        assert max(test) < min(train)


def test_people_with_at_least_n_images_are_the_classes(tmp_path: Path) -> None:
    celeba(tmp_path, 51)  # persons 1, 2 and 3 have nine images, the others eight
    found = data.load("celeba-id:9", tmp_path)
    assert found.name == "celeba-id-subset-9" and found.class_names == ("person 1", "person 2", "person 3")
    assert len(found.test_labels) == 3 and found.outsiders is not None and len(found.outsiders) == 24
    assert "0 people have at least 20 images" in refusal("celeba-id", tmp_path)
    shared = data.split(found, "identity", public=True)
    assert shared.outside and len(shared.private) == 24 and shared.public is not None
    assert (len(shared.aux), len(shared.public)) == (12, 12) and data.aux_labels(found, shared) is None
    aux, public = data.aux_part(found, shared, lambda _: found), data.public_part(found, shared)
    assert public is not None
    shown = [{image.numpy().tobytes() for image in images} for images in (aux, public, found.train_images)]
    assert len(set().union(*shown)) == 48


def test_the_attacker_has_the_outsiders_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set's fingerprint does not know them, so that it cannot name what is kept of them."""
    monkeypatch.setattr(image_store, "LARGE", 1)
    keep = kept_in(tmp_path / "out")
    found = data.load("celeba-id:9", celeba(tmp_path, 51))
    shared = data.split(found, "identity", public=True)
    assert found.outsiders is not None and not bool((shared.aux.diff() == 1).all())
    others = replace(found, outsiders=255 - found.outsiders)
    before, after = (data.aux_part(each, shared, lambda _: found, keep) for each in (found, others))
    assert found.fingerprint == others.fingerprint and bool((before.int() + after.int() == 255).all())


def test_people_are_private_or_the_attackers(tmp_path: Path) -> None:
    found = data.load("celeba-g", celeba(tmp_path))
    shared, domain = data.split(found, "identity"), data.private_domain(found, data.split(found, "identity"))
    assert found.train_people is not None and domain.test_people is not None
    private, aux = (set(found.train_people[part].tolist()) for part in (shared.private, shared.aux))
    assert len(private) == 5 and len(aux) == 1 and not private & aux
    assert set(domain.test_people.tolist()) <= private and len(domain.test_labels) < len(found.test_labels)
    assert len(domain.train_labels) == len(found.train_labels), "the evaluator's images"


def test_who_is_shown_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    before = data.load("celeba-g", celeba(tmp_path)).fingerprint
    file = tmp_path / "celeba" / "identity_CelebA.txt"
    file.write_text(file.read_text().replace("000005.jpg 5", "000005.jpg 4"))
    assert data.load("celeba-g", tmp_path).fingerprint != before


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("list_attr_celeba.txt", "3\nMale\na.jpg 1\n", "it announces 3 lines"),
        ("list_attr_celeba.txt", "1\nBald\na.jpg 1\n", "it has no attribute Male"),
        ("list_attr_celeba.txt", "", "its first lines are not a count"),
        ("identity_CelebA.txt", "000001.jpg x\n", "its lines are not an image and a number"),
    ],
)
def test_corrupt_tables_of_celeba(tmp_path: Path, file: str, content: str, says: str) -> None:
    (celeba(tmp_path) / "celeba" / file).write_text(content)
    message = refusal("celeba-g", tmp_path)
    assert file in message and says in message


def test_lfw_as_torchvision_has_it(tmp_path: Path) -> None:
    rng, tree = np.random.default_rng(0), tmp_path / "lfw-py" / "lfw-deepfunneled"
    for name, count in (("Ann_A", 6), ("Bo_B", 7), ("Cy_C", 2)):
        for number in range(count):
            put(tree / name / f"{name}_{number + 1:04}.jpg", rng, (250, 250))
    found = data.load("lfw:6", tmp_path)
    assert (found.name, found.shape, found.classes) == ("lfw-subset-6", (3, 64, 64), 2)
    assert found.outsiders is not None and len(found.outsiders) == 2 and len(found.test_labels) == 2
    assert "Ann" not in " ".join(found.class_names)


def test_of_a_person_with_many_images_sixty_are_kept_by_no_order_of_theirs_and_the_rest_is_nobodys(
    tmp_path: Path,
) -> None:
    files = {
        tmp_path / f"{person}_{n:04}.jpg": person for person, count in enumerate((70, 20, 3)) for n in range(count)
    }
    look = Decoding(64, box=None)
    listed = list_people("toy", tmp_path, files, 20, look, 60)
    assert listed.outsiders is not None
    kept = [file for file, label in zip(listed.train.files, listed.train.labels, strict=True) if label == 0]
    assert len(kept) == 60 and len(listed.train.files) == 80
    assert [file.name for file in listed.outsiders] == ["2_0000.jpg", "2_0001.jpg", "2_0002.jpg"]
    backwards = dict(reversed(files.items()))
    assert list_people("toy", tmp_path, backwards, 20, look, 60).train == listed.train
    dropped = [int(file.stem[2:]) for file in set(files) - set(kept) - set(listed.outsiders) if files[file] == 0]
    assert max(dropped) - min(dropped) > 20, "not one end of them"
    assert len(list_people("toy", tmp_path, files, 20, look).train.files) == 90


def test_cross_takes_training_images_and_outsiders_of_the_other_set(tmp_path: Path) -> None:
    celeba(tmp_path, 51)
    found = data.load("celeba-id:9", tmp_path)
    shared = data.split(found, "cross")
    assert shared.aux_dataset == "lfw" and len(shared.private) == len(found.train_labels)
    aux = data.aux_part(found, shared, lambda _: data.load("celeba-id:9@32", tmp_path))
    assert aux.shape == (48, 3, 64, 64)


def test_face_sets_are_of_people_and_no_others() -> None:
    people = {name for name in data.names() if ":" not in name and data.facts(name).of_people}
    assert people == {"celeba-g", "celeba-h", "celeba-id", "lfw"}
    assert all(data.facts(name).prior == "faces" for name in people)


@pytest.fixture(scope="session")
def unpacked(data_root: Path) -> Path:
    """The archives of real data, unpacked once into an ignored folder."""
    folder = ROOT / "build" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for archive in ("celeba", "lfw-64", "tiny-imagenet-32", "covid-xray-128"):
        with FileLock(folder / f".{archive}.lock"):
            if (folder / archive).is_dir():
                continue
            if not (data_root / f"{archive}.tar.xz").is_file():
                pytest.skip(f"no {archive}.tar.xz in {data_root}")
            work = folder / f".{archive}-{os.getpid()}"
            with tarfile.open(data_root / f"{archive}.tar.xz") as opened:
                opened.extractall(work, filter="data")
            (work / archive).rename(folder / archive)
            work.rmdir()
    return folder


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "called", "classes", "train", "test", "outsiders"),
    [
        ("celeba-g", "celeba-g-subset", 2, 8579, 1714, None),
        ("celeba-h", "celeba-h-subset", 3, 4900, 979, None),
        ("celeba-id", "celeba-id-subset", 201, 4245, 996, 10_701),
        ("celeba-id:25", "celeba-id-subset-25", 125, 2919, 692, 12_331),
        ("lfw", "lfw-crop", 62, 1745, 410, 10_210),
        ("lfw:10", "lfw-crop-10", 158, 2820, 636, 8909),
        ("tiny-imagenet", "tiny-imagenet-subset-32px", 200, 20_000, 5000, None),
        ("covid-xray", "covid-xray", 3, 938, 186, None),
    ],
)
def test_counts_of_real_files(
    unpacked: Path, name: str, called: str, classes: int, train: int, test: int, outsiders: int | None
) -> None:
    found = data.load(name, unpacked)
    assert (found.name, found.classes, len(found.train_labels), len(found.test_labels)) == (
        called,
        classes,
        train,
        test,
    )
    assert (None if found.outsiders is None else len(found.outsiders)) == outsiders
    assert data.facts(called).shape == found.shape and data.typed(called) == name.replace("net", "net@32")
    removed = remove_duplicates(found, data.split(found, "iid")).removed
    assert removed == {"celeba-id": {"aux": 3}, "celeba-id:25": {"aux": 2}}.get(name, {})


@pytest.mark.data
def test_real_usps(data_root: Path) -> None:
    if not (data_root / "usps.npz").is_file():
        pytest.skip(f"no usps.npz in {data_root}")
    found = data.load("usps", data_root)
    assert (found.name, len(found.train_labels), len(found.test_labels)) == ("usps-npz", 7291, 2007)
    assert found.train_labels.bincount().tolist()[:2] == [1194, 1005]


@pytest.mark.thorough
@pytest.mark.data
def test_existing_boards_data_have_no_copies(data_root: Path) -> None:
    for name, fingerprint in (("mnist", "93d0715524ec166c"), ("fmnist", "1948f7be84680ae1")):
        if data.dataset(name).missing(data_root):
            continue
        found = data.load(name, data_root)
        shared = data.split(found, "iid")
        assert found.fingerprint == fingerprint and remove_duplicates(found, shared).removed == {}
    assert torch.equal(shared.private, data.split(found, "iid").private)


@pytest.mark.thorough
def test_a_run_on_people_draws_no_image_and_says_what_it_used(tmp_path: Path) -> None:
    from bench.pipeline import run
    from bench.pipeline.resolve import load_job
    from bench.pipeline.settings import Settings

    settings = Settings(
        "no-defence", "random-guess", "celeba-g@16", "identity", celeba(tmp_path, 96), teacher="datalens", tier="smoke"
    )
    outcome = run.run(load_job(replace(settings, out=tmp_path / "runs")), 0)
    assert outcome.record.artifacts == {} and not list((tmp_path / "runs").rglob("*.png"))
    assert outcome.record.spec["release"]["teacher"]["data"]["dataset"] == "celeba-g-subset-16px"
    counted = outcome.record.provenance["images"]
    assert {"private", "aux", "test"} <= set(counted) and sum(counted[part] for part in ("private", "aux")) == 80
    assert (tmp_path / "runs" / "leaderboards" / "releases" / "celeba-g-subset-16px.csv").exists()
