"""Basis of a row of an inversion attack: its judges, its comparison images, and when it has no power.

No network is trained. The class of an image is a number that is written into two of its pixels: one is read by
networks, the other by the judge of faces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from bench import teachers
from bench.api import Access, AttackResult, Context, Target
from bench.core.verdict import SIGNIFICANCE
from bench.errors import RunFailed
from bench.metrics import face_descriptor
from bench.metrics.floors import GATED_FROM
from bench.pipeline import evaluation, face_judge, inversion, stages
from bench.pipeline.attacks import AttackTarget
from bench.pipeline.job import Job, run_spec
from bench.pipeline.material import Victims
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.pipeline.trained import Networks, StageResult, Trained

SEEN, FACE, TESTED = 0, 1, 2
"""Columns in the first row: the number that networks read, the judge's, and a pixel that is white in test images."""
SCALE = 4 / 255
"""Brightness of a pixel of number 1."""
PER_CLASS = 6


def written(seen: Tensor, faces: Tensor) -> Tensor:
    """(n, 1, 16, 16) float32 images of (n,) numbers."""
    images = torch.zeros(len(seen), 1, 16, 16)
    images[:, 0, 0, SEEN], images[:, 0, 0, FACE] = SCALE * seen, SCALE * faces
    return images


def read(images: Tensor, column: int) -> Tensor:
    """(n,) int64 numbers of images in [0, 1]."""
    return (images[:, 0, 0, column] / SCALE).round().long()


def job(out: Path, classes: int) -> Job:
    """Images of noise except for their first row, `PER_CLASS` of each class in either part."""
    labels, rng = np.arange(PER_CLASS * classes) % classes, np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        images = rng.integers(0, 256, (len(labels), 16, 16), dtype=np.uint8)
        images[:, 0] = 0
        images[:, 0, SEEN] = images[:, 0, FACE] = 4 * labels
        images[:, 0, TESTED] = 255 * (part == "test")
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    np.savez(out / "numbers.npz", **arrays)
    where = {"dataset": f"npz:{out}/numbers.npz", "out": out / "o"}
    return load_job(Settings("no-defence", "random-guess", teacher="datalens", tier="smoke", **where))  # type: ignore[arg-type]


class Reads(nn.Module):
    """Knows the number of every image; its features are the first three pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return 9 * one_hot(read(x, SEEN), self.classes).float()

    def features(self, x: Tensor) -> Tensor:
        return x[:, 0, 0, :3]


class Blind(Reads):
    """Takes every image for class 0."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(0 * x)


@dataclass(frozen=True)
class Asks:
    """An image of the number that the target takes for the class, or of 0, for networks to read and the judge."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = ""
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "label"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {}

    seen: bool = True
    faces: bool = True

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        return None

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        numbers = torch.arange(target.classes)
        found = self.numbers(target, numbers)
        return AttackResult(written(found * self.seen, found * self.faces), numbers, torch.zeros_like(numbers))

    def numbers(self, target: Target, every: Tensor) -> Tensor:
        """(classes,) what is written for each class."""
        return (target.labels(written(every, every)) == every.unsqueeze(1)).int().argmax(1)


class Knows(Asks):
    """Needs no target."""

    def numbers(self, target: Target, every: Tensor) -> Tensor:
        return every


class Watches(Asks):
    """Images of what victims are answered with, all put down to class 0."""

    access: ClassVar[Access] = "scores"
    observes: ClassVar[bool] = True

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        found = target.victim_scores().argmax(1)
        every = torch.arange(len(found))
        return AttackResult(written(found, found), 0 * found, 0 * found, every)


def inverted(given: Job, attack: Asks, teacher: type[Reads] = Reads, student: type[Reads] = Reads) -> StageResult:
    classes = given.material.data.classes
    found: list[Any] = [Trained(None, kind(classes)) for kind in (teacher, Reads, student)]  # type: ignore[arg-type]
    return inversion.run_inversion(given, attack, run_spec(given, 0), Networks(found[0], found[1], None, found[2]))


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every class is a person, and a judge of faces is there, who reads its own number."""

    def describe(images: Tensor, advance: Callable[[int], object]) -> Tensor:
        advance(len(images))
        return one_hot(read(images / 255, FACE), face_descriptor.LENGTH).float()

    monkeypatch.setattr(face_descriptor, "describe", describe)
    monkeypatch.setattr(face_descriptor, "absent", lambda: "")
    monkeypatch.setattr(face_judge, "wanted", lambda _: True)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no gate reads is left out: likenesses, distances between distributions, reference images."""
    monkeypatch.setattr(evaluation, "_measures", lambda *_: [])
    monkeypatch.setattr(inversion, "reference_metrics", lambda *_: {})


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("teacher", "student", "status", "p"), [(Reads, Blind, "ok", 1 / 120), (Blind, Reads, "inconclusive", 1.0)]
)
def test_power_is_shown_on_the_teacher(
    teacher: type[Reads], student: type[Reads], status: str, p: float, tmp_path: Path
) -> None:
    found = inverted(job(tmp_path, 5), Asks(), teacher, student)
    assert found.status == status and found.metrics["power_p_teacher"] == pytest.approx(p)
    assert found.metrics["teacher_attack_accuracy"] == (1.0 if teacher is Reads else 0.2)
    assert found.metrics["attack_accuracy"] == (1.0 if student is Reads else 0.2)
    assert ("does not beat chance on the undefended teacher" in found.reason) == (teacher is Blind)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("seen", "faces"), [(True, False), (False, True)])
def test_without_a_judge_of_faces_the_evaluator_decides(seen: bool, faces: bool, tmp_path: Path) -> None:
    found = inverted(job(tmp_path, 5), Asks(seen, faces))
    assert found.status == ("ok" if seen else "inconclusive")
    assert found.metrics["power_p_teacher"] == pytest.approx(1 / 120 if seen else 1)


@pytest.mark.usefixtures("brief", "people")
@pytest.mark.parametrize(("seen", "faces"), [(True, False), (False, True)])
def test_where_classes_are_people_the_judge_of_faces_decides(seen: bool, faces: bool, tmp_path: Path) -> None:
    found = inverted(job(tmp_path, 5), Asks(seen, faces))
    assert found.status == ("ok" if faces else "inconclusive")
    assert found.metrics["power_p_teacher"] == pytest.approx(1 / 120 if faces else 1)
    assert found.metrics["teacher_attack_accuracy"] == (1.0 if seen else 0.2)
    assert found.metrics["teacher_judge_accuracy"] == (1.0 if faces else 0.2)
    gain = found.metrics["teacher_judge_accuracy"] - found.metrics["teacher_retrieval_judge_accuracy"]  # type: ignore[operator]
    assert found.metrics["teacher_above_floor"] == pytest.approx(gain)


@pytest.mark.usefixtures("brief", "people")
def test_it_decides_about_a_network_that_knows_nothing_too(tmp_path: Path) -> None:
    found = inverted(job(tmp_path, 5), Knows(seen=False))
    assert found.status == "inconclusive" and "beats chance on a network that knows nothing" in found.reason
    assert found.metrics["power_p_random"] == pytest.approx(1 / 120)
    assert found.metrics["random_attack_accuracy"] == 0.2


def with_aux(given: Job, seen: Tensor, faces: Tensor) -> Job:
    """The same with other images of the attacker's."""
    aux = (255 * written(seen, faces)).round().to(torch.uint8)
    return replace(given, material=replace(given.material, aux=aux))


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("classes", "leaked"), [(GATED_FROM, True), (GATED_FROM, False), (GATED_FROM - 1, True)])
def test_many_classes_need_more_than_public_images_show(classes: int, leaked: bool, tmp_path: Path) -> None:
    """The attacker has an image of every class already, or of none but 0."""
    public = torch.arange(classes) * leaked
    found = inverted(with_aux(job(tmp_path, classes), public, public), Asks())
    assert found.metrics["power_p_teacher"] < 0.001  # type: ignore[operator]
    p = found.metrics["teacher_floor_p"]
    if classes < GATED_FROM:
        assert p is None and found.status == "ok"
    elif leaked:
        assert p == 1.0 and found.status == "inconclusive"
        assert "no better on the undefended teacher than public images" in found.reason
    else:
        assert p is not None and p < SIGNIFICANCE and found.status == "ok" and not found.reason


@pytest.mark.usefixtures("brief", "people")
@pytest.mark.parametrize("leaked", [True, False])
def test_of_people_the_judge_of_faces_says_what_public_images_show(leaked: bool, tmp_path: Path) -> None:
    """Networks take the attacker's images for the people, the judge only where they have leaked."""
    public = torch.arange(GATED_FROM)
    found = inverted(with_aux(job(tmp_path, GATED_FROM), public, public * leaked), Asks())
    assert found.metrics["teacher_retrieval_accuracy"] == 1.0
    assert found.status == ("inconclusive" if leaked else "ok")


@pytest.mark.parametrize(("p", "enough"), [(None, True), (0.0499, True), (0.05, False), (0.8, False)])
def test_it_is_the_teacher_on_which_public_images_are_beaten(p: float | None, enough: bool) -> None:
    for student in (None, 0.001, 0.9):
        reason = inversion._too_weak({"teacher_floor_p": p, "floor_p": student, "random_floor_p": 0.9})
        assert (reason == "") == enough
    assert inversion._too_weak({}) == ""


@pytest.mark.parametrize(
    ("shown", "p", "enough"), [(0.25, None, True), (0.249, None, False), (0.04, 0.01, True), (0.9, 0.05, False)]
)
def test_where_public_images_are_no_test_the_teacher_must_be_shown(shown: float, p: float | None, enough: bool) -> None:
    metrics = {"teacher_attack_accuracy": shown, "teacher_floor_p": p, "attack_accuracy": 1 - shown}
    reason = inversion._too_weak(metrics)
    assert (reason == "") == enough
    assert enough or (reason.startswith("The attack is too weak") == (p is None))


def test_the_evaluator_learns_the_training_images_and_the_teacher_the_private_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(teachers, "fit", lambda _model, images, labels, *_: taught.append((images, labels)))
    given = job(tmp_path, 5)
    spec, m = run_spec(given, 0), given.material
    stages.train_evaluator(given, spec.evaluator)
    stages.train_teacher(given, spec.release.teacher)
    expected = [(m.data.train_images, m.data.train_labels), m.private]
    for found, wanted in zip(taught, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert not found[0][:, 0, 0, TESTED].any()
    assert len(m.private[0]) < len(m.data.train_images) == PER_CLASS * 5


@pytest.mark.usefixtures("people")
def test_the_judge_of_faces_knows_people_by_their_private_images(tmp_path: Path) -> None:
    """Neither test images nor the attacker's show them here: networks and the judge read another number there."""
    given = job(tmp_path, 5)
    m, nobody = given.material, torch.zeros_like
    data = replace(m.data, test_images=nobody(m.data.test_images), train_images=nobody(m.data.train_images))
    judge = face_judge.find(replace(given, material=replace(m, data=data, aux=nobody(m.aux))))
    assert judge is not None
    assert torch.equal(judge.means, one_hot(torch.arange(5), face_descriptor.LENGTH).double())


def test_what_is_aimed_at_is_the_class_of_the_victim() -> None:
    victims = Victims(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([2, 0, 1, 1]), torch.arange(4) < 2)
    nothing = torch.zeros(5, dtype=torch.int64)
    found = AttackResult(torch.zeros(5, 1, 2, 2), nothing, nothing, victims=torch.tensor([3, 0, 0, 1, 2]))
    assert evaluation.aimed(found, victims).targets.tolist() == [1, 2, 2, 0, 1]
    assert evaluation.aimed(found, None).targets.tolist() == [0] * 5


@pytest.mark.usefixtures("brief", "people")
def test_everybody_judges_reconstructions_by_the_class_of_the_victim(tmp_path: Path) -> None:
    found = inverted(job(tmp_path, 5), Watches())
    assert found.status == "ok"
    for key in ("attack_accuracy", "target_accuracy", "judge_accuracy", "teacher_judge_accuracy"):
        assert found.metrics[key] == 1.0


@pytest.mark.parametrize("fact", ["attack_accuracy", "judge_accuracy", "auc", "no_metric"])
def test_an_attack_has_no_say_in_what_the_bench_measures(fact: str) -> None:
    """A number of another stage, such as `auc`, would make of the run what it is not."""
    classes = torch.arange(3)
    found = AttackResult(torch.zeros(3, 1, 2, 2), classes, classes, facts={"without_start": 0.5})
    scored = evaluation.Scored({"attack_accuracy": 0.1}, {}, torch.eye(3))
    played = inversion._Played(found, scored, None, 7, 1.0)
    assert played.metrics() == {"attack_accuracy": 0.1, "without_start": 0.5}
    found.facts = {fact: 1.0}
    with pytest.raises(RunFailed, match=f"says '{fact}' of itself"):
        played.metrics()


@pytest.mark.parametrize(("tested", "distance"), [(False, 0.0), (True, 1.0)])
def test_the_distance_is_that_to_private_images(tested: bool, distance: float, tmp_path: Path) -> None:
    """Copies of private images are at no distance, copies of test images as far as the white pixel makes them."""
    given, classes = job(tmp_path, 5), torch.arange(5)
    judge = inversion.make_judge(given, run_spec(given, 0), Reads(5))  # type: ignore[arg-type]
    images = written(classes, classes)
    images[:, 0, 0, TESTED] = float(tested)
    found = AttackResult(images, classes, torch.zeros_like(classes))
    scored = evaluation.score(found, judge, None, None, ["knn_distance", "knn_gap"])
    assert scored.metrics["knn_distance"] == pytest.approx(distance, abs=1e-9)
    assert scored.metrics["knn_gap"] == pytest.approx(1 - 2 * distance, abs=1e-9)


@pytest.mark.parametrize(("change", "played"), [(0.0, ["teacher", "teacher", "random"]), (1e-7, None)])
def test_a_student_that_is_the_teacher_is_attacked_with_it(change: float, played: list[str] | None) -> None:
    networks = {name: nn.Linear(2, 2) for name in ("student", "teacher", "random")}
    networks["student"].load_state_dict(networks["teacher"].state_dict())
    with torch.no_grad():
        networks["student"].bias += change
    targets = [AttackTarget(name, name, network) for name, network in networks.items()]  # type: ignore[arg-type]
    found = inversion._played_once(targets)
    assert [target.spec for target in found] == (played or list(networks))
    assert [target.name for target in found] == list(networks)
    assert [target.network for target in found] == list(networks.values())


def test_networks_without_weights_are_not_taken_for_each_other() -> None:
    targets = [AttackTarget(name, name, Reads(3)) for name in ("student", "teacher", "random")]  # type: ignore[arg-type]
    assert inversion._played_once(targets) == targets
