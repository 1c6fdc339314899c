"""Parts of an assessment that an option adds: canaries, released synthetic images, and class inversion."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from assess_made import CLASSES, SHAPE, images, trained
from torch import Tensor

import bench
from bench import nets
from bench.assess import canaries
from bench.assess.canaries import read_canaries
from bench.assess.from_samples import BANDWIDTH, memorising_release
from bench.assess.inversion import InversionCase, has_gradients
from bench.assess.models import ModelGiven, load_model
from bench.assess.policy import INVERSION
from bench.assess.records import ReadAs, read_records
from bench.assess.schema import Assessment
from bench.cli import main
from bench.cli.assess import inversion_line
from bench.data import to_float
from bench.errors import BenchError, UnknownName
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit
from bench.teachers.weights import save

SIZED = ReadAs(size=8)


def insert(tmp_path: Path, data: Path, count: int = 200) -> Path:
    words = ["--data", str(data), "--count", str(count), "--out", str(tmp_path / "c"), "--seed", "3"]
    assert main(["canaries", "insert", *words]) == 0
    return tmp_path / "c"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return insert(tmp_path, images(400, 0).save(tmp_path / "data.npz"))


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, dict[str, bool]]:
    """Canaries in a folder of 200 images, and their coins by file."""
    made = insert(tmp_path, images(200, 0).folder(tmp_path / "data"), 80)
    with (made / "canaries" / "coins.csv").open(newline="") as stream:
        return made, {row["file"]: row["coin"] == "1" for row in csv.DictReader(stream)}


def test_inserted_canaries_have_wrong_labels_and_follow_coins(archive: Path) -> None:
    data = images(400, 0)
    with np.load(archive / "train.npz") as train, np.load(archive / "canaries.npz") as inserted:
        kept = {image.tobytes(): label for image, label in zip(train["images"], train["labels"], strict=True)}
        coins = inserted["coins"]
        assert len(train["labels"]) == 400 - int((~coins).sum()) and 70 <= int(coins.sum()) <= 130
        original = {image.numpy().tobytes(): int(label) for image, label in zip(data.images, data.labels, strict=True)}
        for image, label, coin in zip(inserted["images"], inserted["labels"], coins, strict=True):
            assert label != original[image.tobytes()] and 0 <= label < CLASSES
            assert kept.get(image.tobytes()) == (label if coin else None)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    data = images(100, 0).save(tmp_path / "data.npz")
    for count, word in ((49, "50 to 50"), (51, "50 to 50")):
        with pytest.raises(BenchError, match=word):
            canaries.insert(data, count, tmp_path / "new", 0)
    with pytest.raises(BenchError, match="exists"):
        canaries.insert(data, 50, tmp_path, 0)


@pytest.mark.thorough
def test_a_model_that_memorises_its_canaries_refutes_a_claim(tmp_path: Path, archive: Path) -> None:
    with np.load(archive / "train.npz") as train:
        x, y = torch.from_numpy(train["images"]), torch.from_numpy(train["labels"])
    torch.manual_seed(0)
    model = nets.build("dense-cnn", SHAPE, CLASSES)
    fit(model, x, y, Recipe(epochs=40, batch=32, shift=0, weight_decay=0), torch.device("cpu"), 0)
    save(tmp_path / "a.safetensors", model)
    others = images(320, 1).save(tmp_path / "others.npz")
    given = {"network": "dense-cnn", "attacks": ["loss"], "canaries": archive / "canaries.npz"}
    claim = "epsilon=1 delta=1e-5 unit=example"
    found = bench.assess(tmp_path / "a.safetensors", archive / "train.npz", others, claim=claim, **given)
    assert found.canaries is not None and found.canaries.guesses == 20 and found.canaries.correct >= 18
    assert (found.canaries.epsilon_lower_gaussian or 0) > found.canaries.epsilon_lower > 0.5
    assert found.claim is not None and found.claim.finding == "refuted" and "canaries" in found.claim.sentence
    untrained = nets.build("dense-cnn", SHAPE, CLASSES).eval()
    like = read_records(archive / "train.npz", ReadAs())
    nothing = canaries.audit(untrained, CLASSES, read_canaries(archive / "canaries.npz", like), 1e-5)
    assert nothing.epsilon_lower == 0
    with pytest.raises(BenchError, match="canaries insert"):
        read_canaries(others, like)


def test_canaries_are_inserted_into_folders_of_images(tmp_path: Path, folder: tuple[Path, dict[str, bool]]) -> None:
    made, coins = folder
    before = {path.read_bytes(): path.parent.name for path in (tmp_path / "data").rglob("*.png")}
    train = {path.read_bytes(): path.parent.name for path in (made / "train").rglob("*.png")}
    assert len(coins) == 80 and 25 <= sum(coins.values()) <= 55 and len(train) == 200 - 80 + sum(coins.values())
    for name, coin in coins.items():
        content = (made / "canaries" / name).read_bytes()
        label = name.split("/")[0]
        assert label != before[content] and train.get(content) == (label if coin else None)
    others = {content: label for content, label in train.items() if before[content] == label}
    assert len(others) == 120


def test_canaries_of_a_folder_are_assessed(tmp_path: Path, folder: tuple[Path, dict[str, bool]]) -> None:
    made, coins = folder
    ones = {content.read_bytes() for content in (made / "train").rglob("*.png")}
    inserted = read_canaries(made, read_records(made / "train", SIZED), SIZED)
    assert len(inserted.coins) == 80 and int(inserted.coins.sum()) == sum(coins.values())
    files = sorted((made / "canaries").rglob("*.png"), key=lambda path: path.relative_to(tmp_path).as_posix())
    assert [path.read_bytes() in ones for path in files] == inserted.coins.tolist()
    assert [int(path.parent.name[-1]) for path in files] == inserted.labels.tolist()
    (made / "canaries" / "coins.csv").write_text("file,coin\n")
    with pytest.raises(BenchError):
        read_canaries(made, read_records(made / "train", SIZED), SIZED)


N = 1500


def _saved(path: Path, pixels: Tensor) -> Path:
    np.savez(path, images=(pixels[:, 0] * 255).round().byte().numpy())
    return path


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return images(N, 0).save(folder / "members.npz"), images(2 * N, 1).save(folder / "others.npz")


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    released = memorising_release(images(N, 0).images, 2000, 3)
    return _saved(tmp_path_factory.mktemp("copying") / "s.npz", released)


def test_memorising_release_is_near_the_members() -> None:
    given = images(50, 0).images
    drawn = memorising_release(given, 4000, 0)
    assert drawn.shape == (4000, 1, 8, 8) and float(drawn.min()) >= 0 and float(drawn.max()) <= 1
    apart = torch.cdist(drawn.flatten(1), to_float(given).flatten(1)).min(1).values / 8
    assert 0.5 * BANDWIDTH < float(apart.mean()) < 1.05 * BANDWIDTH  # clamping to [0, 1] takes some of the noise
    assert torch.equal(drawn, memorising_release(given, 4000, 0))


@pytest.mark.thorough
def test_assess_samples_finds_a_release_that_memorises(sets: tuple[Path, Path], copying: Path, tmp_path: Path) -> None:
    found = bench.assess(samples=copying, members=sets[0], nonmembers=sets[1], report=tmp_path / "r")
    assert found.kind == "samples" and found.verdict.decision == "do not release"
    assert {attack.name for attack in found.attacks} == {"gan-leaks", "domias"}
    assert all(attack.auc.low > 0.8 and attack.has_power for attack in found.attacks)
    assert {path.name for path in (tmp_path / "r").iterdir()} >= {"report.html", "report.pdf", "assessment.json"}


@pytest.mark.thorough
def test_assess_samples_finds_nothing_in_images_of_other_records(sets: tuple[Path, Path], tmp_path: Path) -> None:
    other = _saved(tmp_path / "s.npz", memorising_release(images(N, 7).images, 2000, 3))
    found = bench.assess(samples=other, members=sets[0], nonmembers=sets[1])
    assert all(abs(attack.auc.value - 0.5) < 0.05 and attack.has_power for attack in found.attacks)
    assert found.verdict.decision in ("release", "cannot tell")


@pytest.mark.thorough
def test_assess_samples_reads_a_folder_and_returns_the_status(sets: tuple[Path, Path], tmp_path: Path) -> None:
    folder = images(N, 0).folder(tmp_path / "released")
    words = ["assess", "--samples", str(folder), "--members", str(sets[0]), "--nonmembers", str(sets[1]), "--size", "8"]
    assert main([*words, "--attacks", "gan-leaks"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"attacks": ["lira"]},
        {"samples": "missing"},
        {"scores": ("a.csv", "b.csv")},
        {"model": torch.nn.Flatten()},
        {"members": None},
    ],
    ids=str,
)
def test_assess_samples_refuses(sets: tuple[Path, Path], copying: Path, change: dict[str, object]) -> None:
    given: dict[str, object] = {"samples": copying, "members": sets[0], "nonmembers": sets[1]} | change
    with pytest.raises(UnknownName if "attacks" in change else BenchError):
        bench.assess(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((5, 8, 8), np.uint8)},
        {"images": np.zeros((50, 9, 9), np.uint8)},
        {"images": np.zeros((50, 3, 8, 8), np.uint8)},
        {"pictures": np.zeros((50, 8, 8), np.uint8)},
        {"images": np.full((50, 8, 8), np.nan, np.float32)},
    ],
    ids=("few", "size", "channels", "name", "nan"),
)
def test_assess_samples_refuses_archive(sets: tuple[Path, Path], tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(BenchError):
        bench.assess(samples=tmp_path / "s.npz", members=sets[0], nonmembers=sets[1])


LABELS = torch.arange(3)


def people(n: int, seed: int, classes: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """(n, 8, 8) uint8 images, each a random pattern of its class under noise, and (n,) labels."""
    patterns = np.random.default_rng(99).integers(0, 2, (classes, 8, 8))
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    values = 70 + 110 * patterns[labels] + rng.normal(0, 30, (n, 8, 8))
    return values.clip(0, 255).astype(np.uint8), labels


def assessed(tmp_path: Path, model: object, **options: object) -> Assessment:
    paths = []
    for seed in range(2):
        pixels, labels = people(320, seed)
        paths.append(tmp_path / f"{seed}.npz")
        np.savez(paths[-1], images=pixels, labels=labels)
    return bench.assess(model, *paths, attacks=["loss", INVERSION], **options)  # type: ignore[arg-type]


def fitted() -> torch.nn.Module:
    pixels, labels = (torch.from_numpy(each) for each in people(320, 0))
    torch.manual_seed(3)
    model = nets.build("dense-cnn", SHAPE, 8)
    fit(model, pixels[:, None], labels, Recipe(epochs=8, batch=64, shift=0), torch.device("cpu"), 0)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [(lambda x: trained()(x), True), (lambda x: trained()(x).numpy(), False), (lambda x: trained()(x).detach(), False)],
)
def test_gradients_are_found_by_trying(model: Callable[[Tensor], object], expected: bool) -> None:
    trained()  # loading a model turns gradients off, which its training needs
    assert has_gradients(load_model(ModelGiven(model), SHAPE, LABELS).module, SHAPE) == expected


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_time_limits_are_refused(minutes: float) -> None:
    with pytest.raises(BenchError, match="--inversion-minutes"):
        InversionCase(minutes=minutes)


def test_an_attack_on_membership_is_needed_too(tmp_path: Path) -> None:
    paths = [images(150, seed).save(tmp_path / f"{seed}.npz") for seed in range(2)]
    with pytest.raises(BenchError, match="--attacks"):
        bench.assess(trained(), *paths, attacks=[INVERSION])


def test_three_classes_are_too_few(tmp_path: Path) -> None:
    paths = [images(150, seed).save(tmp_path / f"{seed}.npz") for seed in range(2)]
    found = bench.assess(trained(), *paths, attacks=["loss", INVERSION])
    assert found.inversion is None
    assert next(each.reason for each in found.not_tested if each.name == INVERSION).startswith(
        "needs at least 4 classes"
    )


@pytest.mark.thorough
def test_private_classes_are_reconstructed_unlike_public_ones(tmp_path: Path) -> None:
    model = fitted()
    private = assessed(tmp_path, model, private_classes=True)
    assert private.inversion is not None and private.inversion.has_power
    assert private.inversion.gain.low > 0.2 and private.verdict.decision == "do not release"
    public = assessed(tmp_path, model)
    assert public.inversion is not None and not public.inversion.has_power and public.inversion.gain.high <= 0.1
    assert "--private-classes" in inversion_line(public.inversion)
    assert public.verdict.decision != "do not release"


@pytest.mark.thorough
def test_inversion_that_is_left_out_or_impossible_is_listed(tmp_path: Path) -> None:
    model = fitted()
    late = assessed(tmp_path, model, inversion_minutes=1e-9)
    left_out = assessed(tmp_path, model, inversion=False)
    no_gradients = assessed(tmp_path, lambda x: model(x).detach())
    for found, word in ((late, "--inversion-minutes"), (left_out, "left out"), (no_gradients, "needs gradients")):
        assert found.inversion is None
        assert word in next(each.reason for each in found.not_tested if each.name == INVERSION)
