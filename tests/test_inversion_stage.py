"""The stage of inversion attacks: its judges, its reference images, and its power.

No network is trained. The class of an image is a number that is written into two of its pixels: one is read by
networks, the other by the judge of faces.
"""

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
from bench.metrics.retrieval import GATED_FROM
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


class Reader(nn.Module):
    """WithoutTarget the number of every image; its features are the first three pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return 9 * one_hot(read(x, SEEN), self.classes).float()

    def features(self, x: Tensor) -> Tensor:
        return x[:, 0, 0, :3]


class Zero(Reader):
    """Classifies every image as class 0."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(0 * x)


@dataclass(frozen=True)
class ByLabels:
    """Returns an image of the number that the target classifies as the class, for networks, the judge, or both."""

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
        """Return the (classes,) number that is written for each class."""
        return (target.labels(written(every, every)) == every.unsqueeze(1)).int().argmax(1)


class WithoutTarget(ByLabels):
    """Returns an image of every class without a query."""

    def numbers(self, target: Target, every: Tensor) -> Tensor:
        return every


class Observing(ByLabels):
    """Returns images of the predicted classes of victims, all with target 0."""

    access: ClassVar[Access] = "scores"
    observes: ClassVar[bool] = True

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        found = target.victim_scores().argmax(1)
        every = torch.arange(len(found))
        return AttackResult(written(found, found), 0 * found, 0 * found, every)


def inverted(
    given: Job, attack: ByLabels, teacher: type[Reader] = Reader, student: type[Reader] = Reader
) -> StageResult:
    classes = given.material.data.classes
    made: list[Any] = [Trained(None, kind(classes)) for kind in (teacher, Reader, student)]  # type: ignore[arg-type]
    return inversion.run_inversion(given, attack, run_spec(given, 0), Networks(made[0], made[1], None, made[2]))


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every class is a person, and a face judge is installed, which reads its own number."""

    def describe(images: Tensor, advance: Callable[[int], object]) -> Tensor:
        advance(len(images))
        return one_hot(read(images / 255, FACE), face_descriptor.LENGTH).float()

    monkeypatch.setattr(face_descriptor, "describe", describe)
    monkeypatch.setattr(face_descriptor, "absent", lambda: "")
    monkeypatch.setattr(face_judge, "has_people", lambda _: True)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip metrics that do not affect the status: likeness, distances between distributions, reference images."""
    monkeypatch.setattr(evaluation, "optional_measures", lambda *_: [])
    monkeypatch.setattr(inversion, "reference_metrics", lambda *_: {})


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("teacher", "student", "status", "p"),
    [(Reader, Zero, "ok", 1 / 120), (Zero, Reader, "inconclusive", 1.0)],
)
def test_inversion_power_is_tested_on_the_teacher(
    teacher: type[Reader], student: type[Reader], status: str, p: float, tmp_path: Path
) -> None:
    found = inverted(job(tmp_path, 5), ByLabels(), teacher, student)
    assert found.status == status and found.metrics["power_p_teacher"] == pytest.approx(p)
    assert found.metrics["teacher_attack_accuracy"] == (1.0 if teacher is Reader else 0.2)
    assert found.metrics["attack_accuracy"] == (1.0 if student is Reader else 0.2)
    assert bool(found.reason) == (teacher is Zero)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("has_judge", [False, True])
@pytest.mark.parametrize(("seen", "faces"), [(True, False), (False, True)])
def test_inversion_of_people_uses_the_face_judge_if_any(
    seen: bool, faces: bool, has_judge: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if has_judge:
        request.getfixturevalue("people")
    found = inverted(job(tmp_path, 5), ByLabels(seen, faces))
    succeeds = faces if has_judge else seen
    assert found.status == ("ok" if succeeds else "inconclusive")
    assert found.metrics["power_p_teacher"] == pytest.approx(1 / 120 if succeeds else 1)
    if has_judge:
        assert found.metrics["teacher_attack_accuracy"] == (1.0 if seen else 0.2)
        assert found.metrics["teacher_judge_accuracy"] == (1.0 if faces else 0.2)
        gain = found.metrics["teacher_judge_accuracy"] - found.metrics["teacher_retrieval_judge_accuracy"]  # type: ignore[operator]
        assert found.metrics["teacher_above_floor"] == pytest.approx(gain)


@pytest.mark.usefixtures("brief", "people")
def test_inversion_success_on_random_net_is_inconclusive(tmp_path: Path) -> None:
    found = inverted(job(tmp_path, 5), WithoutTarget(seen=False))
    assert found.status == "inconclusive" and found.reason and found.metrics["random_attack_accuracy"] == 0.2
    assert found.metrics["power_p_random"] == pytest.approx(1 / 120)


@pytest.mark.usefixtures("brief", "people")
def test_inversion_of_victims_scores_the_victims_classes(tmp_path: Path) -> None:
    found = inverted(job(tmp_path, 5), Observing())
    scores = ("attack_accuracy", "target_accuracy", "judge_accuracy", "teacher_judge_accuracy")
    assert found.status == "ok" and {found.metrics[key] for key in scores} == {1.0}


def with_aux(given: Job, seen: Tensor, faces: Tensor) -> Job:
    """The same with other images of the attacker's."""
    aux = (255 * written(seen, faces)).round().to(torch.uint8)
    return replace(given, material=replace(given.material, aux=aux))


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("classes", "has_leaked"), [(GATED_FROM, True), (GATED_FROM, False), (GATED_FROM - 1, True)])
def test_inversion_with_many_classes_must_beat_retrieval(classes: int, has_leaked: bool, tmp_path: Path) -> None:
    """The attacker has an image of every class, or only of class 0."""
    public = torch.arange(classes) * has_leaked
    found = inverted(with_aux(job(tmp_path, classes), public, public), ByLabels())
    assert found.metrics["power_p_teacher"] < 0.001  # type: ignore[operator]
    p = found.metrics["teacher_floor_p"]
    if classes < GATED_FROM:
        assert p is None and found.status == "ok"
    elif has_leaked:
        assert p == 1.0 and found.status == "inconclusive"
    else:
        assert p is not None and p < SIGNIFICANCE and found.status == "ok" and not found.reason


@pytest.mark.usefixtures("brief", "people")
@pytest.mark.parametrize("has_leaked", [True, False])
def test_inversion_of_people_compares_by_the_face_judge(has_leaked: bool, tmp_path: Path) -> None:
    """Networks recognise the attacker's images as the people; the judge does so only if they have leaked."""
    public = torch.arange(GATED_FROM)
    found = inverted(with_aux(job(tmp_path, GATED_FROM), public, public * has_leaked), ByLabels())
    assert found.metrics["teacher_retrieval_accuracy"] == 1.0
    assert found.status == ("inconclusive" if has_leaked else "ok")


@pytest.mark.parametrize(
    ("p", "shown", "is_strong"),
    [(0.05, 0.04, True), (0.0501, 0.9, False), (0.8, 0.9, False), (None, 0.25, True), (None, 0.249, False)],
)
def test_weakness_is_decided_by_the_teacher(p: float | None, shown: float, is_strong: bool) -> None:
    """By the test against retrieval, or with few classes, by the share of images that show their class."""
    metrics = {"teacher_attack_accuracy": shown, "teacher_floor_p": p, "attack_accuracy": 1 - shown}
    for student in (None, 0.001, 0.9):
        reason = inversion.weakness(metrics | {"floor_p": student, "random_floor_p": 0.9})
        assert (reason == "") == is_strong and (is_strong or ("p = " in reason) == (p is not None))
    assert inversion.weakness({}) == ""


def test_evaluator_trains_on_all_and_teacher_on_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(teachers, "fit", lambda _model, images, labels, *_: trained.append((images, labels)))
    given = job(tmp_path, 5)
    spec, m = run_spec(given, 0), given.material
    stages.train_evaluator(given, spec.evaluator)
    stages.train_teacher(given, spec.release.teacher)
    expected = [(m.data.train_images, m.data.train_labels), m.private]
    for found, wanted in zip(trained, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert not found[0][:, 0, 0, TESTED].any()
    assert len(m.private[0]) < len(m.data.train_images) == PER_CLASS * 5


@pytest.mark.usefixtures("people")
def test_face_judge_means_are_of_private_images(tmp_path: Path) -> None:
    """Neither test images nor the attacker's images show the people here."""
    given = job(tmp_path, 5)
    m, blank = given.material, torch.zeros_like
    data = replace(m.data, test_images=blank(m.data.test_images), train_images=blank(m.data.train_images))
    judge = face_judge.make_face_judge(replace(given, material=replace(m, data=data, aux=blank(m.aux))))
    assert judge is not None
    assert torch.equal(judge.means, one_hot(torch.arange(5), face_descriptor.LENGTH).double())


def test_aimed_uses_the_class_of_the_victim() -> None:
    victims = Victims(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([2, 0, 1, 1]), torch.arange(4) < 2)
    nothing = torch.zeros(5, dtype=torch.int64)
    found = AttackResult(torch.zeros(5, 1, 2, 2), nothing, nothing, victims=torch.tensor([3, 0, 0, 1, 2]))
    assert evaluation.with_intended_classes(found, victims).targets.tolist() == [1, 2, 2, 0, 1]
    assert evaluation.with_intended_classes(found, None).targets.tolist() == [0] * 5


@pytest.mark.parametrize("fact", ["attack_accuracy", "judge_accuracy", "auc", "no_metric"])
def test_inversion_fact_named_like_a_metric_fails_the_run(fact: str) -> None:
    """A metric of another stage, such as `auc`, would be shown as a result of that stage."""
    classes = torch.arange(3)
    found = AttackResult(torch.zeros(3, 1, 2, 2), classes, classes, facts={"without_start": 0.5})
    scored = evaluation.Scored({"attack_accuracy": 0.1}, {}, torch.eye(3))
    played = inversion.InvertedTarget(found, scored, None, 7, 1.0)
    assert played.metrics() == {"attack_accuracy": 0.1, "without_start": 0.5}
    found.facts = {fact: 1.0}
    with pytest.raises(RunFailed, match=f"'{fact}'"):
        played.metrics()


@pytest.mark.parametrize(("tested", "distance"), [(False, 0.0), (True, 1.0)])
def test_knn_distance_is_to_private_images(tested: bool, distance: float, tmp_path: Path) -> None:
    """Copies of private images have distance 0, copies of test images that of the white pixel."""
    given, classes = job(tmp_path, 5), torch.arange(5)
    scorer = inversion.make_scorer(given, run_spec(given, 0), Reader(5))  # type: ignore[arg-type]
    images = written(classes, classes)
    images[:, 0, 0, TESTED] = float(tested)
    found = AttackResult(images, classes, torch.zeros_like(classes))
    scored = evaluation.score(found, scorer, None, None, ["knn_distance", "knn_gap"])
    assert scored.metrics["knn_distance"] == pytest.approx(distance, abs=1e-9)
    assert scored.metrics["knn_gap"] == pytest.approx(1 - 2 * distance, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "played"),
    [(0.0, ["teacher", "teacher", "random"]), (1e-7, None), (None, None)],
    ids=["equal", "other", "without weights"],
)
def test_student_equal_to_teacher_shares_its_step(change: float | None, played: list[str] | None) -> None:
    kinds = ("student", "teacher", "random")
    networks = {name: Reader(3) if change is None else nn.Linear(2, 2) for name in kinds}
    networks["student"].load_state_dict(networks["teacher"].state_dict())
    if change:
        networks["student"].bias.data += change  # type: ignore[operator, union-attr]
    targets = [AttackTarget(name, name, network) for name, network in networks.items()]  # type: ignore[arg-type]
    found = inversion.share_identical_student(targets)
    assert [target.spec for target in found] == (played or [*kinds])
    assert [(target.name, target.network) for target in found] == [*networks.items()]
