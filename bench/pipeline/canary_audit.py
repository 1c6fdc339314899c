"""The end-to-end audit: canaries in the teacher's training data, guessed from the released student.

Of m images of the attacker's part of split iid, each with a fixed wrong label, a fair coin per canary decides whether
the teacher is trained on it. The student, the undefended teacher and a null teacher trained without canaries are scored
in the same way, and each correct guess counts as evidence for epsilon (`bench.privacy.one_run`). The coins only affect
the training data: canaries, labels, score, reference models and the number of guesses do not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bench import boards, registry, teachers
from bench.core import records
from bench.core.privacy import Account
from bench.core.records import AuditCanaries, AuditedPrivacy, AuditLine, AuditRecord, Provenance
from bench.nets import Classifier
from bench.pipeline.canary_game import Canaries, CanaryGame, check, draw, log_probability, scores, verdict
from bench.pipeline.job import Job, run_spec
from bench.pipeline.run import failing
from bench.pipeline.stages import make_release, only_asked, train_ensemble, train_teacher
from bench.pipeline.trained import Trained
from bench.privacy.one_run import ceiling, correct_guesses, one_run_epsilon
from bench.seeds import derive
from bench.storage import provenance
from bench.storage.provenance import Followed
from bench.storage.records import AUDIT, Audit
from bench.storage.specs import AuditSpec, AuditTeacherSpec, ReleaseSpec, canonical, json_form
from bench.storage.store import publish
from bench.validate import instance

GUESTS = 2
"""Version of audits that assign canaries to holders separately. In version 1, with holders drawn by label, a canary
also moved other records (`bench.data.partition.with_guests`), which no ledger accounts for."""
SOURCE = "aux of iid, in hash order"
"""The file name of the canaries."""
OVERFIT: dict[str, Any] = {"epochs": 20, "max_steps": 0, "shift": 0, "flip": False, "weight_decay": 0.0}


@dataclass(frozen=True)
class AuditOutcome:
    """An audit, the directory it was published in, and whether it was published before."""

    audit: Audit
    path: Path
    cached: bool


def audit_spec(job: Job, game: CanaryGame, seed: int) -> AuditSpec:
    """Return the spec of an audit with one seed, on which the coins and all trainings depend."""
    release = run_spec(job, seed).release
    teacher = release.teacher
    recipe = _overfitted(job, game).recipe.settings()
    audited = AuditTeacherSpec(teacher.data, teacher.arch, None, recipe, seed, canaries=game.canaries, coins=seed)
    version = GUESTS if _by_labels(release) else 1
    return AuditSpec(job.settings.tier, release, audited, game.score, game.asked, game.confidence, version=version)


def _by_labels(release: ReleaseSpec) -> bool:
    """Whether the labels of all records decide who holds a record: in an ensemble's parts or a federation's clients."""
    held = release.options if release.ensemble is None else release.ensemble.shards
    return held.get("partition", "hash") != "hash"


def teachers_of(spec: AuditSpec) -> dict[str, AuditTeacherSpec]:
    """Return the teachers that an audit trains, by their names in its provenance; audits can share all of them."""
    unaware = replace(spec.teacher, canaries=0, coins=0)
    found = {"teacher": spec.teacher, "null_teacher": unaware}
    if spec.score == "rmia":
        found["reference_teacher"] = replace(unaware, seed=derive(spec.teacher.seed, "audit-reference"))
    return found


def release_of(spec: AuditSpec, teacher: AuditTeacherSpec) -> ReleaseSpec:
    """Return the release made from one of an audit's teachers; its ensemble is trained on the teacher's records."""
    ensemble, guests = spec.release.ensemble, bool(teacher.canaries) and _by_labels(spec.release)
    kind = "audit-release"
    if ensemble is not None:
        version = GUESTS if guests else ensemble.version
        ensemble = replace(ensemble, seed=teacher.seed, canaries=teacher.canaries, coins=teacher.coins, version=version)
    elif guests:
        kind += f"-{GUESTS}"
    return replace(spec.release, teacher=teacher, seed=teacher.seed, ensemble=ensemble, kind=kind)


def _overfitted(job: Job, game: CanaryGame) -> Job:
    return replace(job, recipe=replace(job.recipe, **OVERFIT)) if game.overfit else job


def run(job: Job, game: CanaryGame, seed: int) -> AuditOutcome:
    """Play the game once and publish `audits/HASH/audit.json`; steps that exist are not trained again.

    Raises:
        BenchError: the game cannot be played with these settings.
        RunFailed: a step failed; nothing is published.
    """
    check(job, game)
    spec = audit_spec(job, game, seed)
    final = job.store.root / "audits" / spec.hash
    if not job.settings.fresh and (known := published(final)) is not None:
        return AuditOutcome(known, final, cached=True)
    with failing(), job.following() as made:
        audit = _play(job, game, spec, draw(job, game, seed), made)
    with job.store.exclusive(final) as work:
        (work / AUDIT).write_text(canonical(audit.to_plain()), encoding="utf-8")
        publish(work, final)
    board = job.material.data.name
    if (job.store.root / "leaderboards" / "releases" / f"{board}.csv").exists():
        boards.refresh(job.store.root, board)
    return AuditOutcome(Audit.of(audit), final, cached=False)


def prepare_shared(job: Job, game: CanaryGame, seed: int, only: str | None = None) -> None:
    """Train the teachers that audits with the same canaries share, unless they exist.

    Args:
        only: the name of one of `teachers_of`, to make only that one.

    Raises:
        BenchError: the game cannot be played, or has no teacher of that name.
        RunFailed: a teacher could not be trained.
    """
    check(job, game)
    wanted = only_asked(teachers_of(audit_spec(job, game, seed)), only)
    with failing(), job.following():
        training = _Training(_overfitted(job, game), draw(job, game, seed))
        for name, teacher in wanted.items():
            training.teacher(name, teacher)


def published(final: Path) -> Audit | None:
    """Read the audit in a directory; None if no readable one is there."""
    try:
        return Audit.read(final / AUDIT)
    except (OSError, ValueError):
        return None


class _Training:
    """Teachers and releases of one audit, with or without canaries; records the seconds that each took."""

    def __init__(self, job: Job, canaries: Canaries) -> None:
        self._job, self._canaries = job, canaries
        self.seconds: dict[str, float] = {}

    def teacher(self, name: str, spec: AuditTeacherSpec) -> Trained[Classifier]:
        """Train a teacher of `teachers_of` on the private part, with the inserted canaries or with none of them."""
        trained = train_teacher(self._given(spec), spec)
        self.seconds[name] = trained.step.seconds
        return trained

    def release(self, name: str, teacher: Trained[Classifier], spec: ReleaseSpec) -> Trained[Classifier]:
        """Make the method's student of a teacher; a method that needs private data gets the teacher's training data."""
        job = self._given(instance(spec.teacher, AuditTeacherSpec, "teacher of an audit"))
        ensemble = train_ensemble(job, spec.ensemble)
        if ensemble is not None:
            self.seconds[f"{name}_ensemble"] = ensemble.step.seconds
        student = make_release(job, spec, teacher.network, ensemble)
        self.seconds[name] = student.step.seconds
        return student

    def _given(self, teacher: AuditTeacherSpec) -> Job:
        """Return the job whose private part is the training data of a teacher."""
        if not teacher.canaries:
            return self._job
        m = self._job.material
        private, canaries = self._canaries.inserted(m.private), int(self._canaries.coins.sum())
        return replace(self._job, material=replace(m, private=private, canaries=canaries))


def _play(job: Job, game: CanaryGame, spec: AuditSpec, canaries: Canaries, made: Followed) -> AuditRecord:
    """Train and convert with and without canaries, guess them from each network, and compare with the claims."""
    training, of = _Training(_overfitted(job, game), canaries), teachers_of(spec)
    teacher = training.teacher("teacher", of["teacher"])
    student = training.release("release", teacher, release_of(spec, of["teacher"]))
    null = training.teacher("null_teacher", of["null_teacher"])
    audited = {"student": student, "teacher": teacher, "null": null}
    references: dict[str, Classifier | None] = dict.fromkeys(audited)
    if spec.score == "rmia":
        reference = training.teacher("reference_teacher", of["reference_teacher"])
        of_student = training.release("reference_release", reference, release_of(spec, of["reference_teacher"]))
        references = {"student": of_student.network, "teacher": reference.network, "null": reference.network}
    lines = {name: _line(job, each, references[name], canaries, spec) for name, each in audited.items()}
    found = provenance.collect(registry.ROOT, made, training.seconds)
    return _audit(job, spec, canaries, lines, student.account, found)


def _line(
    job: Job, audited: Trained[Classifier], reference: Classifier | None, canaries: Canaries, spec: AuditSpec
) -> AuditLine:
    """Return guesses from one network, their bound, and the share of canaries predicted with their wrong label."""
    likely = log_probability(audited.network, canaries, job.device)
    outside = None if reference is None else log_probability(reference, canaries, job.device)
    coins = canaries.coins.numpy()
    correct, delta = correct_guesses(scores(likely, outside), coins, spec.guesses), job.settings.budget.delta
    answers = teachers.predict(audited.network, canaries.images, job.device).argmax(1) == canaries.labels
    return AuditLine(
        correct=correct,
        guesses=spec.guesses,
        epsilon_lower=one_run_epsilon(spec.guesses, correct, len(coins), delta, spec.confidence),
        accuracy=audited.result.accuracy,
        memorised_inserted=_share(answers[canaries.coins]),
        memorised_left_out=_share(answers[~canaries.coins]),
    )


def _share(answers: Tensor) -> float | None:
    """Return the share of true values of (m,) bool; None if m = 0, for example when all of a few coins agree."""
    return float(answers.double().mean()) if len(answers) else None


def _audit(
    job: Job,
    spec: AuditSpec,
    canaries: Canaries,
    lines: dict[str, AuditLine],
    account: Account,
    made: dict[str, Any],
) -> AuditRecord:
    delta, number = job.settings.budget.delta, len(canaries.coins)
    bound, proved = lines["student"].epsilon_lower, account.accounted_units
    found, reasons = verdict(bound, delta, account.claimed, proved.get("example"))
    inserted = int(canaries.coins.sum())
    return AuditRecord(
        hash=spec.hash,
        verdict=found,
        reasons=reasons,
        spec=records.AuditSpec.model_validate_json(spec.text),
        canaries=AuditCanaries.model_validate({"number": number, "inserted": inserted, "from": SOURCE}),
        ceiling=ceiling(spec.guesses, number, delta, spec.confidence),
        delta=delta,
        lines=lines,
        powerful=lines["teacher"].epsilon_lower > 0,
        privacy=AuditedPrivacy(claimed=account.claimed, accounted=account.accounted, accounted_units=proved),
        provenance=Provenance.model_validate(json_form(made)),
    )
