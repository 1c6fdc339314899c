"""The end-to-end audit on toy images: canaries, the training data of each network, its lines and its record."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import toy_job
from conftest import toy_job as job
from records_made import ACCOUNTED, CLAIM
from torch import nn

from bench import data, registry, teachers
from bench.core.privacy import Account, AccountedRecord, ClaimRecord
from bench.core.records import AuditLine, Provenance
from bench.errors import BenchError
from bench.pipeline import canary_audit, canary_game, run, stages
from bench.pipeline.canary_game import Canaries, CanaryGame, check, draw, scores
from bench.pipeline.job import Job, run_spec
from bench.pipeline.trained import Trained
from bench.privacy import Budget
from bench.privacy.one_run import ceiling
from bench.storage.provenance import GitState, Origin, StepLog
from bench.storage.records import AUDIT, Audit
from bench.teachers import federated

TOY_IMAGES = 360


def test_draw_canaries_are_mislabelled_and_not_private(toy: Path) -> None:
    given = job(toy)
    drawn = draw(given, CanaryGame(60), 0)
    images = data.load(given.settings.dataset, None, False)
    private = {image.numpy().tobytes() for image in given.material.private[0]}
    records = zip(images.train_images, images.train_labels.tolist(), strict=True)
    true = {image.numpy().tobytes(): label for image, label in records}
    keys = [image.numpy().tobytes() for image in drawn.images]
    assert len(set(keys)) == 60 and not private & set(keys)
    assert all(true[key] != label for key, label in zip(keys, drawn.labels.tolist(), strict=True))
    assert drawn.labels.unique().tolist() == [0, 1, 2, 3]
    tosses = torch.stack([draw(given, CanaryGame(60), seed).coins for seed in range(40)]).double()
    assert abs(float(tosses.mean()) - 0.5) < 4 * 0.5 / (60 * 40) ** 0.5
    assert float(tosses.mean(0).max()) < 0.9 and float(tosses.sum(1).std()) > 1, "independent coins, not a fixed half"


def test_draw_seed_changes_only_the_coins(toy: Path) -> None:
    given = job(toy)
    a, b, few = (draw(given, CanaryGame(m), seed) for m, seed in ((60, 0), (60, 1), (20, 0)))
    assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and not torch.equal(a.coins, b.coins)
    assert torch.equal(few.images, a.images[:20]) and torch.equal(few.labels, a.labels[:20])


def test_canaries_inserted_have_a_true_coin() -> None:
    images = torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1)
    canaries = Canaries(images, torch.tensor([5, 6, 7]), torch.tensor([True, False, True]))
    with_them = canaries.inserted((torch.full((1, 1, 1, 1), 9, dtype=torch.uint8), torch.tensor([0])))
    assert with_them[0].flatten().tolist() == [9, 0, 2] and with_them[1].tolist() == [0, 5, 7]


def test_audit_trains_teachers_with_and_without_canaries(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    true_fit = stages.teachers.fit

    def spy(model: Any, images: torch.Tensor, *rest: Any, **more: Any) -> None:
        sizes.append(len(images))
        true_fit(model, images, *rest, **more)

    monkeypatch.setattr(stages.teachers, "fit", spy)
    given = job(toy, out=toy / "sizes")
    found = canary_audit.run(given, CanaryGame(40, 20, "rmia"), 3).audit
    n = len(given.material.private[0])
    assert sizes == [n + found.canaries["inserted"], n, n]
    assert 0 < found.canaries["inserted"] < 40


@pytest.mark.thorough
def test_audit_is_recorded_and_cached(toy: Path) -> None:
    given = job(toy, "dpsd")
    first = canary_audit.run(given, CanaryGame(40), 0)
    again = canary_audit.run(given, CanaryGame(40), 0)
    assert not first.cached and again.cached and again.audit.to_json() == first.audit.to_json()
    found = Audit.read(first.path / AUDIT)
    assert set(found.lines) == {"student", "teacher", "null"} and found.verdict == "not refuted"
    assert all(0 <= line["epsilon_lower"] <= found.ceiling for line in found.lines.values())
    assert all(line["guesses"] == 20 for line in found.lines.values())
    assert found.spec["teacher"]["canaries"] == 40 and found.privacy["claimed"]["unit"] == "query"
    assert any("per query" in reason for reason in found.reasons)


def test_audit_spec_hash_covers_every_setting(toy: Path) -> None:
    usual = CanaryGame(40)
    games = [CanaryGame(41), CanaryGame(40, 21), CanaryGame(40, score="rmia"), CanaryGame(40, overfit=True)]
    games += [CanaryGame(40, confidence=0.9), usual]
    given = job(toy)
    specs = {canary_audit.audit_spec(given, game, 0).hash for game in games}
    assert len(specs | {canary_audit.audit_spec(given, usual, 1).hash}) == 7


@pytest.mark.thorough
def test_audit_detects_a_memorising_teacher(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_audit, "OVERFIT_EPOCHS", 40)
    given = job(toy, tier="quick", teacher_options=(("batch", "16"),), out=toy / "caught")
    found = canary_audit.run(given, CanaryGame(60, 40, overfit=True), 0).audit
    student, teacher, null = (found.lines[name] for name in ("student", "teacher", "null"))
    assert found.powerful and teacher["epsilon_lower"] > 0.5
    assert student["epsilon_lower"] == teacher["epsilon_lower"], "no-defence releases the teacher"
    assert null["epsilon_lower"] == 0


@pytest.mark.parametrize(
    ("game", "words"),
    [
        (CanaryGame(61), ["--canaries 61", "60 images"]),
        (CanaryGame(1), ["--canaries 1"]),
        (CanaryGame(10, 11), ["--guesses 11", "10"]),
        (CanaryGame(10, 0), ["--guesses 0"]),
        (CanaryGame(40, 4), ["4 guesses", "40 canaries"]),
        (CanaryGame(40, confidence=1.0), ["--confidence 1.0"]),
        (CanaryGame(40, score="guess"), ["--score guess", "rmia"]),  # type: ignore[arg-type]
    ],
)
def test_check_impossible_game_is_refused(toy: Path, game: CanaryGame, words: list[str]) -> None:
    with pytest.raises(BenchError) as caught:
        canary_audit.run(job(toy), game, 0)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words)


def test_check_five_guesses_at_99_percent_are_refused(toy: Path) -> None:
    """All 5 right by chance: 1/32, below 5 % and above 1 %."""
    check(job(toy), CanaryGame(8, 5))
    with pytest.raises(BenchError, match="5 guesses on 8 canaries"):
        check(job(toy), CanaryGame(8, 5, confidence=0.99))


@pytest.mark.parametrize(("delta", "confidence", "bound"), [(1e-3, 0.95, 1.204202), (1e-5, 0.99, 0.899089)])
def test_audit_line_bound_uses_delta_and_confidence(toy: Path, delta: float, confidence: float, bound: float) -> None:
    """19 right of 20 guesses on 40 canaries: P[at least 19 right] <= 1 - confidence, with 2 * 40 delta in it."""
    given, game = job(toy, budget=Budget(delta=delta)), CanaryGame(40, confidence=confidence)
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(10)).eval()
    result = {"correct": 1, "tested": 2, "accuracy": 0.5}
    audited = Trained(cast("Any", SimpleNamespace(json=lambda _: result)), cast("Any", network))
    spec, canaries = canary_audit.audit_spec(given, game, 0), draw(given, game, 0)
    with patch.object(canary_audit, "correct_guesses", return_value=19):
        line = canary_audit.audit_line(given, audited, None, canaries, spec)
    assert (line.correct, line.guesses) == (19, 20) and line.epsilon_lower == pytest.approx(bound, abs=1e-6)
    q = 1 / (1 + math.exp(-line.epsilon_lower))
    tail = [sum(math.comb(20, k) * q**k * (1 - q) ** (20 - k) for k in range(v, 21)) for v in range(20)]
    worst = max((tail[19 - i] - tail[19]) / i for i in range(1, 20))
    assert tail[19] + 2 * 40 * delta * worst == pytest.approx(1 - confidence, rel=1e-6)


def test_check_other_split_or_own_teacher_is_refused(toy: Path) -> None:
    weights = toy / "w.safetensors"
    weights.write_bytes(b"")
    for changes, option in (({"split": "disjoint-low"}, "--split disjoint-low"),
                            ({"teacher_weights": weights}, "--teacher-weights")):  # fmt: skip
        with pytest.raises(BenchError, match=option):
            check(job(toy, **changes), CanaryGame(40))


def test_rmia_scores_are_relative_to_a_reference() -> None:
    target, outside = np.log([0.9, 0.9, 0.1]), np.log([0.9, 0.1, 0.1])
    found = scores(target, outside)
    assert found[1] > found[0] > found[2]
    assert found[0] == pytest.approx(np.log(0.9 / ((1.3 * 0.9 + 0.7) / 2)))
    assert np.array_equal(scores(target, None), target)


@pytest.mark.parametrize(
    ("bound", "claim", "proved", "word"),
    [
        (2.0, CLAIM, ACCOUNTED, "refuted"),
        (0.9, CLAIM, ACCOUNTED, "not refuted"),
        (2.0, CLAIM | {"unit": "query"}, ACCOUNTED, "not refuted"),
        (3.5, CLAIM | {"unit": "query"}, ACCOUNTED, "refuted"),
        (9.0, None, None, "not refuted"),
    ],
)
def test_verdict_compares_only_bounds_per_example(bound: float, claim: Any, proved: Any, word: str) -> None:
    claimed = claim and ClaimRecord.model_validate(claim)
    found, reasons = canary_game.verdict(bound, 1e-5, claimed, proved and AccountedRecord.model_validate(proved))
    assert found == word
    if claim and claim["unit"] == "query" and word == "not refuted":
        assert "per query" in " ".join(reasons) and "bound 2 " in " ".join(reasons)


def record_parts(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[set[int]]]:
    """Replace the module's `with_guests` by one that records each holder's part."""
    seen: list[list[set[int]]] = []
    divide = module.with_guests

    def spy(*given: Any) -> Any:
        parts = divide(*given)
        seen.append([set(part.tolist()) for part in parts])
        return parts

    monkeypatch.setattr(module, "with_guests", spy)
    return seen


def check_moved(seen: list[list[set[int]]], records: int, inserted: int) -> None:
    """Require that the inserted canaries are the only difference between the parts of an audit and of a plain run."""
    audited, plain = seen
    canaries = [{record for record in part if record >= records} for part in audited]
    assert [part - extra for part, extra in zip(audited, canaries, strict=True)] == plain
    assert sum(map(len, canaries)) == inserted and all(canaries)


@pytest.mark.thorough
def test_audit_canaries_do_not_move_records_of_an_ensemble(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, game = record_parts(stages, monkeypatch), CanaryGame(40, 20)
    given = job(toy, "fed-dpsd", method_options=(("clients", "2"),), out=toy / "clients")
    inserted = canary_audit.run(given, game, 0).audit.canaries["inserted"]
    assert stages.train_ensemble(given, run_spec(given, 0).release.ensemble) is not None
    check_moved(seen, len(given.material.private[0]), inserted)
    spec = canary_audit.audit_spec(given, game, 0)
    teachers = canary_audit.teachers_of(spec)
    ensembles = [canary_audit.release_of(spec, teachers[name]).ensemble for name in ("teacher", "null_teacher")]
    assert [spec.version, *(each and each.version for each in ensembles)] == [2, 2, 1]
    for other in (job(toy, "dgd"), job(toy)):
        assert canary_audit.audit_spec(other, game, 0).version == 1


@pytest.mark.parametrize(
    "method",
    ["feddf", *(pytest.param(m, marks=pytest.mark.thorough) for m in ("fedavg", "dense", "fedadi", "feddafl"))],
)
def test_audit_canaries_do_not_move_records_of_clients(toy: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    seen, game = record_parts(federated, monkeypatch), CanaryGame(40, 20)
    given = job(toy, method, method_options=(("clients", "2"),), out=toy / method)
    inserted = canary_audit.run(given, game, 0).audit.canaries["inserted"]
    run.run(given, 0)
    check_moved(seen, len(given.material.private[0]), inserted)
    spec = canary_audit.audit_spec(given, game, 0)
    teachers = canary_audit.teachers_of(spec)
    kinds = [canary_audit.release_of(spec, teachers[name]).kind for name in ("teacher", "null_teacher")]
    assert spec.version == 2 and kinds == ["audit-release-2", "audit-release"], "steps of older audits are not reused"
    hashed = job(toy, method, method_options=(("clients", "2"), ("partition", "hash")))
    assert canary_audit.audit_spec(hashed, game, 0).version == 1


def test_audit_spec_keeps_the_plain_release(toy: Path) -> None:
    given = job(toy)
    spec = canary_audit.audit_spec(given, CanaryGame(40), 0)
    assert asdict(spec.release) == asdict(run_spec(given, 0).release)
    assert spec.teacher != spec.release.teacher and spec.teacher.kind == "audit-teacher"
    assert "no-defence" in registry.entries("method")


PROVED = AccountedRecord.model_validate(ACCOUNTED)
ACCOUNT = Account(claimed=None, accounted=PROVED, accounted_units={"example": PROVED}, audited=None, events=[])


def line_of(bound: float) -> AuditLine:
    shares = {"accuracy": 0.5, "memorised_inserted": None, "memorised_left_out": None}
    return AuditLine(correct=10, guesses=20, epsilon_lower=bound, **shares)


@pytest.fixture(scope="module")
def plain_job(toy: Path) -> Job:
    return toy_job(toy)


def line_of_network(plain_job: Job, canaries: Canaries, game: CanaryGame) -> AuditLine:
    """The line of a network whose predictions are replaced."""
    audited = cast("Trained[Any]", SimpleNamespace(network=None, result=SimpleNamespace(accuracy=0.5)))
    return canary_audit.audit_line(plain_job, audited, None, canaries, canary_audit.audit_spec(plain_job, game, 0))


@pytest.mark.parametrize(("student", "teacher", "powerful"), [(0.0, 0.5, True), (0.5, 0.0, False), (0.0, 0.0, False)])
def test_audit_power_is_bound_on_teacher(plain_job: Job, student: float, teacher: float, powerful: bool) -> None:
    game = CanaryGame(40)
    lines = {name: line_of(bound) for name, bound in (("student", student), ("teacher", teacher), ("null", 0.0))}
    spec = canary_audit.audit_spec(plain_job, game, 0)
    made = canary_audit.make_audit(plain_job, spec, draw(plain_job, game, 0), lines, ACCOUNT, Provenance())
    assert made.powerful == powerful


def test_memorised_canaries_reach_the_ceiling(plain_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    game = CanaryGame(40, 20)
    canaries = draw(plain_job, game, 0)
    answers = torch.where(canaries.coins, canaries.labels, (canaries.labels + 1) % 4)
    monkeypatch.setattr(teachers, "predict", lambda *_: nn.functional.one_hot(answers, 4).float())
    found = line_of_network(plain_job, canaries, game)
    assert (found.memorised_inserted, found.memorised_left_out) == (1.0, 0.0)
    assert found.correct == 20 and found.epsilon_lower == ceiling(20, 40, plain_job.settings.budget.delta)


@pytest.mark.parametrize("fell", [False, True])
def test_equal_coins_leave_one_share_unknown(plain_job: Job, monkeypatch: pytest.MonkeyPatch, fell: bool) -> None:
    game = CanaryGame(6, 6)
    canaries = replace(draw(plain_job, game, 0), coins=torch.full((6,), fell))
    monkeypatch.setattr(teachers, "predict", lambda *_: nn.functional.one_hot(canaries.labels, 4).float())
    found = line_of_network(plain_job, canaries, game)
    assert (found.memorised_inserted, found.memorised_left_out) == ((1.0, None) if fell else (None, 1.0))


def test_reference_network_is_of_the_same_kind(plain_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are their names here; the reference teacher saw no canary, and was converted as the audited one."""

    class Named:
        def __init__(self, *given: Any) -> None:
            self.seconds: dict[str, float] = {}

        def teacher(self, name: str, spec: Any) -> Any:
            return SimpleNamespace(network=name)

        def release(self, name: str, teacher: Any, spec: Any) -> Any:
            return SimpleNamespace(network=f"{name} of {teacher.network}", account=ACCOUNT)

    compared = {}

    def line(job: Job, audited: Any, reference: Any, *rest: Any) -> AuditLine:
        compared[audited.network] = reference
        return line_of(0.0)

    monkeypatch.setattr(canary_audit, "AuditTraining", Named)
    monkeypatch.setattr(canary_audit, "audit_line", line)
    game = CanaryGame(40, score="rmia")
    made = StepLog(Origin(GitState()))
    canary_audit.play(plain_job, game, canary_audit.audit_spec(plain_job, game, 0), draw(plain_job, game, 0), made)
    teachers = dict.fromkeys(("teacher", "null_teacher"), "reference_teacher")
    assert compared == teachers | {"release of teacher": "reference_release of reference_teacher"}
