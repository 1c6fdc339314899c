"""Sets of faces in small files of their exact formats: CelebA by attribute and by person, and LFW."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from data_made import put, refusal

from bench import data
from bench.data import faces
from bench.data import images as image_store
from bench.data.dataset import Decoding
from bench.pipeline.material import kept_in

ATTRIBUTES = ("Bald", "Black_Hair", "Blond_Hair", "Brown_Hair", "Male")


def celeba(root: Path, images: int = 48, without: int | None = None) -> Path:
    """Write CelebA's files.

    Image i shows person i % 6. It has black, blond or brown hair by i % 3, and two colours where i % 6 is 2.
    """
    folder = root / "celeba"
    rows, people, parts = [], [], []
    for number in range(1, images + 1):
        file = f"{number:06}.jpg"
        if number != without:
            put(folder / "img_align_celeba" / file, size=(178, 218))
        hair = [(-1, 1)[number % 3 == place or (place == 0 and number % 6 == 2)] for place in range(3)]
        rows.append(f"{file} " + " ".join(f"{mark:2}" for mark in (-1, *hair, 1 if number % 2 else -1)))
        people.append(f"{file} {number % 6}")
        parts.append(f"{file} {0 if number <= 30 else 1 if number <= 36 else 2}")
    (folder / "list_attr_celeba.txt").write_text(f"{images}\n{' '.join(ATTRIBUTES)} \n" + "\n".join(rows) + "\n")
    (folder / "identity_CelebA.txt").write_text("\n".join(people) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return root


def test_celeba_official_partition_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faces, "ALL", 48)
    found = data.load("celeba-g", celeba(tmp_path))
    assert (found.name, found.shape, found.class_names) == ("celeba-g", (3, 64, 64), ("female", "male"))
    assert found.train_labels.tolist() == [number % 2 for number in range(1, 37)], "validation joins the training set"
    assert found.test_labels.tolist() == [number % 2 for number in range(37, 49)]
    hair = data.load("celeba-h", tmp_path)
    assert hair.class_names == ("black", "blond", "brown")
    assert hair.train_labels.tolist() == [number % 3 for number in range(1, 37) if number % 6 != 2]


def test_celeba_subset_is_split_by_pixel_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faces, "ALL", 48)
    found = data.load("celeba-g", celeba(tmp_path, without=7))
    assert found.name == "celeba-g-subset" and len(found.train_labels) + len(found.test_labels) == 47
    assert found.test_labels.bincount().tolist() == [24 // 6, 23 // 6]
    for label in (0, 1):
        parts = (found.train_images[found.train_labels == label], found.test_images[found.test_labels == label])
        train, test = ([hashlib.sha256(image.numpy().tobytes()).digest() for image in images] for images in parts)
        assert max(test) < min(train)


def test_celeba_people_are_classes_or_outsiders(tmp_path: Path) -> None:
    celeba(tmp_path, 51)  # persons 1, 2 and 3 have nine images, the others eight
    found = data.load("celeba-id:9", tmp_path)
    assert found.name == "celeba-id-subset-9" and found.class_names == ("person 1", "person 2", "person 3")
    assert len(found.test_labels) == 3 and found.outsiders is not None and len(found.outsiders) == 24
    refusal("celeba-id", 20, "0 people", root=tmp_path)
    shared = data.split(found, "identity", public=True)
    assert shared.outside and len(shared.private) == 24 and shared.public is not None
    assert (len(shared.aux), len(shared.public)) == (12, 12) and data.aux_labels(found, shared) is None
    aux, public = data.aux_part(found, shared, lambda _: found), data.public_part(found, shared)
    assert public is not None
    assert len({image.numpy().tobytes() for images in (aux, public, found.train_images) for image in images}) == 48


def test_kept_attackers_images_follow_outsiders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set's fingerprint does not cover outsiders, so it cannot identify a stored copy of them."""
    monkeypatch.setattr(image_store, "LARGE", 1)
    keep = kept_in(tmp_path / "out")
    found = data.load("celeba-id:9", celeba(tmp_path, 51))
    shared = data.split(found, "identity", public=True)
    assert found.outsiders is not None and not bool((shared.aux.diff() == 1).all())
    others = replace(found, outsiders=255 - found.outsiders)
    before, after = (data.aux_part(each, shared, lambda _: found, keep) for each in (found, others))
    assert found.fingerprint == others.fingerprint and bool((before.int() + after.int() == 255).all())


def test_identity_split_separates_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faces, "ALL", 48)  # the official test set has every person
    found = data.load("celeba-g", celeba(tmp_path))
    shared, domain = data.split(found, "identity"), data.private_domain(found, data.split(found, "identity"))
    assert found.train_groups is not None and domain.test_groups is not None
    private, aux = (set(found.train_groups[part].tolist()) for part in (shared.private, shared.aux))
    assert len(private) == 5 and len(aux) == 1 and not private & aux
    assert set(domain.test_groups.tolist()) <= private and len(domain.test_labels) < len(found.test_labels)
    assert len(domain.train_labels) == len(found.train_labels), "the evaluator's images"


def test_fingerprint_covers_people(tmp_path: Path) -> None:
    before = data.load("celeba-g", celeba(tmp_path)).fingerprint
    file = tmp_path / "celeba" / "identity_CelebA.txt"
    file.write_text(file.read_text().replace("000005.jpg 5", "000005.jpg 4"))
    assert data.load("celeba-g", tmp_path).fingerprint != before


@pytest.mark.parametrize(
    ("file", "content", "value"),
    [
        ("list_attr_celeba.txt", "3\nMale\na.jpg 1\n", "3"),
        ("list_attr_celeba.txt", "1\nBald\na.jpg 1\n", "Male"),
        ("list_attr_celeba.txt", "", "count"),
        ("identity_CelebA.txt", "000001.jpg x\n", "'x'"),
        ("identity_CelebA.txt", "\udcff", "utf-8"),
    ],
)
def test_celeba_corrupt_table_is_refused(tmp_path: Path, file: str, content: str, value: str) -> None:
    path = celeba(tmp_path) / "celeba" / file
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    refusal("celeba-g", path, value, root=tmp_path)


def test_lfw_folders_are_read(tmp_path: Path) -> None:
    tree = tmp_path / "lfw-py" / "lfw-deepfunneled"
    for name, count in (("Ann_A", 6), ("Bo_B", 7), ("Cy_C", 2)):
        for number in range(count):
            put(tree / name / f"{name}_{number + 1:04}.jpg", size=(250, 250))
    found = data.load("lfw:6", tmp_path)
    assert (found.name, found.shape, found.classes) == ("lfw-subset-6", (3, 64, 64), 2)
    assert found.outsiders is not None and len(found.outsiders) == 2 and len(found.test_labels) == 2
    assert "Ann" not in " ".join(found.class_names)


def test_list_people_caps_images_per_person(tmp_path: Path) -> None:
    counts = enumerate((70, 20, 3))
    files = {tmp_path / f"{person}_{n:04}.jpg": person for person, count in counts for n in range(count)}
    listed = faces.list_people("toy", tmp_path, files, 20, Decoding(64), 60)
    kept = [file for file, label in zip(listed.train.files, listed.train.labels, strict=True) if label == 0]
    assert len(kept) == 60 and len(listed.train.files) == 80
    assert [file.name for file in listed.outsiders] == ["2_0000.jpg", "2_0001.jpg", "2_0002.jpg"]
    backwards = dict(reversed(files.items()))
    assert faces.list_people("toy", tmp_path, backwards, 20, Decoding(64), 60).train == listed.train
    dropped = [int(file.stem[2:]) for file in set(files) - set(kept) - set(listed.outsiders) if files[file] == 0]
    assert max(dropped) - min(dropped) > 20, "chosen by hash, not from one end"
    assert len(faces.list_people("toy", tmp_path, files, 20, Decoding(64)).train.files) == 90


def test_cross_split_uses_all_images_of_other_set(tmp_path: Path) -> None:
    celeba(tmp_path, 51)
    found = data.load("celeba-id:9", tmp_path)
    shared = data.split(found, "cross")
    assert shared.aux_dataset == "lfw" and len(shared.private) == len(found.train_labels)
    aux = data.aux_part(found, shared, lambda _: data.load("celeba-id:9@32", tmp_path))
    assert aux.shape == (48, 3, 64, 64), "training images and outsiders"


@pytest.mark.thorough
def test_run_on_people_draws_no_image(tmp_path: Path) -> None:
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
