"""The suspects of membership attacks, and the training of reference models."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import toy_job

from baselines.no_defence import NoDefence
from bench.api import MembershipResult, Release, Teacher
from bench.errors import BenchError
from bench.pipeline import challenge, run
from bench.pipeline.challenge import Challenge, ReferenceModels, halves, make_challenge
from bench.pipeline.job import Job, run_spec
from bench.pipeline.membership import first_suspects


def job(toy: Path, **changes: Any) -> Job:
    return toy_job(toy, **{"attack": "loss-threshold", **changes})


def rows_of(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def sides(found: Challenge, members: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The number of suspects of each class among members and among others."""
    among = found.members if members is None else members
    return [found.labels[side].bincount(minlength=10) for side in (among, ~among)]


def test_challenge_half_of_the_suspects_are_private(toy: Path) -> None:
    m = job(toy).material
    found = make_challenge(m)
    assert 60 <= len(found.labels) <= 80 and int(found.members.sum()) == len(found.labels) // 2
    assert rows_of(found.images[found.members]) <= rows_of(m.private[0])
    assert rows_of(found.images[~found.members]) <= rows_of(m.data.test_images)
    assert rows_of(found.population[0]) | rows_of(found.reserve[0]) == rows_of(m.aux)
    assert not rows_of(found.population[0]) & rows_of(found.reserve[0])
    order = found.members.float()
    assert 0.25 < float((order[1:] != order[:-1]).float().mean()) < 0.75, "members are shuffled"


def test_challenge_halves_have_the_same_classes(toy: Path) -> None:
    m = job(toy).material
    (images, labels), other = m.private, m.data
    # The private part has six records of class 0, the test part two of class 1
    kept = torch.cat([(labels == 0).nonzero().flatten()[:6], (labels != 0).nonzero().flatten()])
    seen = torch.cat([(other.test_labels == 1).nonzero().flatten()[:2], (other.test_labels != 1).nonzero().flatten()])
    data = replace(other, test_images=other.test_images[seen], test_labels=other.test_labels[seen])
    found = make_challenge(replace(m, private=(images[kept], labels[kept]), data=data))
    inside, outside = sides(found)
    assert torch.equal(inside, outside) and 0 < int(inside[1]) <= 2
    assert rows_of(found.images[~found.members]) <= rows_of(data.test_images)


def test_challenge_of_canaries_has_only_wrong_labels(toy: Path) -> None:
    clean, given = job(toy).material, job(toy, split="canaries").material
    found, rows = make_challenge(given), given.mislabelled
    assert rows is not None and 0 < len(rows) <= len(given.private[1]) // 20
    assert rows_of(found.images[found.members]) <= rows_of(given.private[0][rows])
    inside, outside = sides(found)
    assert torch.equal(inside, outside) and 0 < int(inside.sum()) <= len(rows)
    records = [*zip(*clean.private, strict=True), *zip(clean.data.test_images, clean.data.test_labels, strict=True)]
    true = {image.numpy().tobytes(): int(label) for image, label in records}
    suspects = zip(found.images, found.labels.tolist(), strict=True)
    assert all(true[image.numpy().tobytes()] != label for image, label in suspects), "every suspect has a wrong label"


def test_split_canaries_changes_only_their_labels(toy: Path) -> None:
    clean, given = job(toy).material, job(toy, split="canaries").material
    moved = (given.private[1] != clean.private[1]).nonzero().flatten()
    assert given.mislabelled is not None and torch.equal(moved, given.mislabelled) and clean.mislabelled is None
    assert torch.equal(given.private[0], clean.private[0])
    assert torch.equal(given.data.test_labels, clean.data.test_labels)


def test_challenge_mixes_images_sorted_by_class(toy: Path) -> None:
    m = job(toy).material
    assert m.aux_labels is not None
    order = m.aux_labels.argsort(stable=True)
    found = make_challenge(replace(m, aux=m.aux[order], aux_labels=m.aux_labels[order]))
    for images, labels in (found.population, found.reserve):
        assert len(images) == len(m.aux) // 2 and set(labels.tolist()) == set(range(m.data.classes))


@pytest.mark.parametrize("most", [7, 20, 10_000])
def test_first_suspects_have_equal_classes_on_both_sides(toy: Path, most: int) -> None:
    found = make_challenge(job(toy).material)
    some = first_suspects(found, most)
    inside, outside = (found.labels[some.rows[side]].bincount(minlength=10) for side in (some.members, ~some.members))
    assert torch.equal(inside, outside) and int(inside.sum()) == min(most, int(found.members.sum()))
    assert torch.equal(some.members, found.members[some.rows])


def test_halves_have_every_suspect_in_half_of_the_rows() -> None:
    found = halves(6, 500)
    assert found.shape == (6, 500) and found.sum(0).eq(3).all()
    assert 200 < int(found[0].sum()) < 300
    for count in (0, 1, 3):
        with pytest.raises(ValueError, match=str(count)):
            halves(count, 10)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, str]]:
    """Private images and split of every teacher that is to be trained; the training itself raises StopIteration."""
    found: list[tuple[torch.Tensor, str]] = []

    def train_teacher(job: Job, spec: Any) -> Any:
        found.append((job.material.private[0], spec.data.split))
        raise StopIteration

    monkeypatch.setattr(challenge, "train_teacher", train_teacher)
    return found


def train_references(given: Job, of: Challenge) -> None:
    knowledge = ReferenceModels(given, run_spec(given, 0).release, of, "scores").knowledge("teacher")
    with pytest.raises(StopIteration):
        knowledge.references(2, "teacher")


def test_references_train_on_their_half_and_the_reserve(toy: Path, trainings: list[tuple[torch.Tensor, str]]) -> None:
    given = job(toy, out=toy / "seen")
    found = make_challenge(given.material)
    train_references(given, found)
    mask, images = halves(2, len(found.labels))[0], trainings[0][0]
    room = len(given.material.private[0]) - len(found.labels) // 2
    assert rows_of(images) == rows_of(found.images[mask]) | rows_of(found.reserve[0][:room])
    assert not rows_of(images) & rows_of(found.images[~mask]) and not rows_of(images) & rows_of(found.population[0])


def test_references_are_as_large_as_the_target(toy: Path, trainings: list[tuple[torch.Tensor, str]]) -> None:
    given = job(toy, out=toy / "sizes")
    small = replace(given, material=replace(given.material, private=tuple(x[:50] for x in given.material.private)))
    many, few = make_challenge(given.material), make_challenge(small.material)
    for one, of in ((given, many), (small, few), (small, few)):
        train_references(one, of)
    sizes, splits = [len(images) for images, _ in trainings], [split for _, split in trainings]
    suspects = int(halves(2, len(few.labels))[0].sum())
    room = len(small.material.private[0]) - len(few.labels) // 2
    assert sizes[1] == suspects + min(room, len(few.reserve[0])) <= 50 + len(few.labels) // 4
    assert splits[0] != splits[1] == splits[2], "references are stored by their suspects"


@pytest.mark.parametrize("method", ["dp-sgd", "pate"])
def test_student_references_have_separate_seeds(toy: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """With the target's seed they would have its privacy noise, which is secret."""
    given = job(toy, method=method, out=toy / "seeds")
    seen: list[Any] = []

    def release(job: Job, spec: Any, *_: Any) -> Any:
        seen.append(spec)
        if len(seen) == 2:
            raise StopIteration
        return SimpleNamespace(step=SimpleNamespace(seconds=0.0), network=torch.nn.Identity())

    monkeypatch.setattr(challenge, "make_release", release)
    spec = run_spec(given, 0)
    models = ReferenceModels(given, spec.release, make_challenge(given.material), "scores")
    with pytest.raises(StopIteration):
        models.knowledge("student").references(2, "student")
    assert len({spec.release.seed, *(each.seed for each in seen)}) == 3
    if method == "pate":
        assert [each.ensemble.seed for each in seen] == [each.seed for each in seen]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["no-defence", "label-smoothing", "pate"])
def test_student_references_are_converted_and_stored(toy: Path, method: str) -> None:
    given = job(toy, method=method, out=toy / "students")
    spec = run_spec(given, 0)
    models = ReferenceModels(given, spec.release, make_challenge(given.material), "scores")
    assert models.seconds == {}, "no model was requested yet"
    knowledge = models.knowledge("student")
    first, second = knowledge.references(2, "student")
    assert torch.equal(first.members, ~second.members) and first.target.access == "scores"
    assert not torch.equal(first.target.scores(knowledge.images), second.target.scores(knowledge.images))
    made = list((toy / "students" / "steps" / "release").glob("[0-9a-f]*"))
    assert len(made) >= 2 and models.seconds["references"] > 0
    before, again = models.seconds, knowledge.references(2, "student")
    assert models.seconds == before, "an existing model is not counted twice"
    assert torch.equal(again[0].target.scores(knowledge.images), first.target.scores(knowledge.images))


@pytest.mark.thorough
def test_membership_run_has_metrics_and_a_picture(toy: Path) -> None:
    given = job(toy, out=toy / "whole")
    outcome = run.run(given, 0)
    record = outcome.record
    assert record.status in ("ok", "inconclusive")
    for prefix in ("", "teacher_", "random_"):
        for name in ("auc", "tpr_at_1pct", "tpr_at_01pct", "balanced_accuracy"):
            low, value, high = (record.metrics[f"{prefix}{name}{end}"] for end in (".lo", "", ".hi"))
            assert 0 <= low <= value <= high <= 1  # type: ignore[operator]
        assert record.metrics[f"{prefix}membership_epsilon_lower"] >= 0  # type: ignore[operator]
    assert record.metrics["auc"] == record.metrics["teacher_auc"], "no-defence releases the teacher"
    labels = given.material.data.test_labels
    commonest = float(labels.bincount().max()) / len(labels)
    assert record.metrics["times_chance"] == pytest.approx(record.metrics["accuracy"] / commonest)
    assert "0.1 %" in record.missing["tpr_at_01pct"] and "1 %" in record.missing["tpr_at_1pct"]
    assert (outcome.path / record.artifacts["roc"]).stat().st_size > 1000


@pytest.mark.thorough
def test_membership_converted_references_have_no_gain(toy: Path) -> None:
    found = {}
    for kind in ("teacher", "student"):
        given = job(toy, attack="rmia", attack_options={"reference_kind": kind, "references": "4"}, out=toy / "gains")
        found[kind] = run.run(given, 0).record
    by_teachers, by_students = found["teacher"], found["student"]
    assert by_teachers.metrics["auc_gain"] is not None and "auc_gain" not in by_teachers.missing
    assert by_students.metrics["auc_gain"] is None and "converted" in by_students.missing["auc_gain"]
    assert by_students.metrics["teacher_auc_gain"] == by_teachers.metrics["teacher_auc_gain"]


@pytest.mark.parametrize("attack", ["rmia", "lira", "shadow", "quantile"])
def test_membership_without_labels_is_skipped(toy: Path, attack: str) -> None:
    given = job(toy, attack=attack, split="disjoint-low", out=toy / "disjoint")
    assert "--split iid" in str(given.attack_skip_reason)
    if attack == "rmia":
        record = run.run(given, 0).record
        assert record.status == "skipped" and "--split iid" in record.reason


@pytest.mark.parametrize("attack", ["loss-threshold", "label-only"])
def test_membership_by_loss_needs_no_labels(toy: Path, attack: str) -> None:
    record = run.run(job(toy, attack=attack, split="disjoint-low", out=toy / f"bare-{attack}"), 0).record
    assert record.status in ("ok", "inconclusive") and record.metrics["auc"] is not None
    assert record.metrics["teacher_auc_gain"] is None and "no records" in record.missing["teacher_auc_gain"]


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ["gan-leaks", "domias", "moment-tracing"])
def test_release_membership_needs_no_labels(toy: Path, attack: str) -> None:
    given = job(toy, method="dp-merf", attack=attack, split="disjoint-low", out=toy / f"drawn-{attack}")
    found = make_challenge(given.material)
    assert found.population[1].eq(-1).all() and len(found.population[0]) == len(given.material.aux)
    assert not len(found.reserve[0])
    record = run.run(given, 0).record
    assert record.status in ("ok", "inconclusive") and record.metrics["auc"] is not None


def test_own_weights_changed_during_the_run_are_refused(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.run(job(toy, out=toy / "written"), 0)
    weights = toy / "mine.safetensors"
    weights.write_bytes(min((toy / "written" / "steps" / "teacher").glob("[0-9a-f]*/model.safetensors")).read_bytes())
    given = job(toy, teacher_weights=weights, out=toy / "changed")
    weights.write_bytes(weights.read_bytes() + b" ")  # after its hash was taken
    monkeypatch.setattr("bench.teachers.load_user", lambda *_: None)
    with pytest.raises(BenchError, match=r"mine\.safetensors"):
        run.run(given, 0)
    assert not list((toy / "changed" / "steps" / "teacher").glob("[0-9a-f]*"))


@pytest.mark.thorough
def test_membership_of_own_weights_has_no_gain(toy: Path) -> None:
    """The recipe of a user's weights is unknown."""
    trained = run.run(job(toy, out=toy / "trained"), 0)
    assert trained.record.metrics["teacher_auc_gain"] is not None
    weights = min((toy / "trained" / "steps" / "teacher").glob("[0-9a-f]*/model.safetensors"))
    record = run.run(job(toy, teacher_weights=weights, out=toy / "own"), 0).record
    assert record.status in ("ok", "inconclusive") and record.metrics["teacher_auc"] is not None
    assert record.metrics["teacher_auc_gain"] is None and "weights" in record.missing["teacher_auc_gain"]


def test_student_with_nan_outputs_fails_the_run(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arg-max of NaN is class 0: the accuracy would be the share of that class."""
    no_defence = NoDefence.convert

    def diverge(self: NoDefence, teacher: Teacher, *given: Any) -> Release:
        found = no_defence(self, teacher, *given)
        broken = copy.deepcopy(found.student)
        for parameter in broken.parameters():
            parameter.data.mul_(math.nan)
        return replace(found, student=broken)

    monkeypatch.setattr(NoDefence, "convert", diverge)
    with pytest.raises(run.RunFailed, match=r"\d+ of \d+"):
        run.run(job(toy, attack="label-only", out=toy / "diverged"), 0)


def test_membership_scores_of_wrong_shape_fail_the_run(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = job(toy, out=toy / "bad")
    wrong = MembershipResult(torch.full((3,), float("nan")))
    monkeypatch.setattr(type(given.attack), "infer", lambda *_: wrong)
    with pytest.raises(run.RunFailed, match=r"\d+ suspects"):
        run.run(given, 0)


def test_inversion_of_class_without_records_is_skipped(toy: Path) -> None:
    given = job(toy, attack="gmi", out=toy / "incomplete")
    assert given.attack_skip_reason is None
    images, labels = given.material.private
    kept = labels != 3
    incomplete = replace(given, material=replace(given.material, private=(images[kept], labels[kept])))
    assert str(incomplete.attack_skip_reason).startswith("1 of 4 classes")
    assert given.needs_evaluator and not incomplete.needs_evaluator
    record = run.run(incomplete, 0).record
    assert record.status == "skipped" and record.metrics.get("evaluator_accuracy") is None
    assert not (toy / "incomplete" / "steps" / "evaluator").exists(), "an evaluator was trained without use"


def test_membership_facts_are_metrics_of_every_target(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = job(toy, out=toy / "facts")
    scores = torch.arange(len(make_challenge(given.material).labels)).double()
    found = MembershipResult(scores, {"used_share_tpr": 0.75}, {"used_share": "not estimable"})
    monkeypatch.setattr(type(given.attack), "infer", lambda *_: found)
    record = run.run(given, 0).record
    for prefix in ("", "teacher_", "random_", "unaware_"):
        assert record.metrics[f"{prefix}used_share_tpr"] == 0.75
        assert record.metrics[f"{prefix}used_share"] is None
        assert record.missing[f"{prefix}used_share"] == "not estimable"


def test_membership_facts_not_finite_fail_the_run(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = job(toy, out=toy / "strange")
    scores = torch.arange(len(make_challenge(given.material).labels)).double()
    found = MembershipResult(scores, {"used_share": float("nan")})
    monkeypatch.setattr(type(given.attack), "infer", lambda *_: found)
    with pytest.raises(run.RunFailed, match="used_share"):
        run.run(given, 0)
