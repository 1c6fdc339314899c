"""The end-to-end audit: canaries in the teacher's training data, guessed from the released student.

Of m images of the attacker's part of split iid, each with a fixed wrong label, a fair coin per canary decides whether
the teacher is trained on it. The student, the undefended teacher and a null teacher trained without canaries are scored
in the same way, and each correct guess counts as evidence for epsilon (`bench.privacy.one_run`). The coins only affect
the training data: canaries, labels, score, reference models and the number of guesses do not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from bench import boards, registry, teachers
from bench.core import records
from bench.core.privacy import Account
from bench.core.records import AuditCanaries, AuditedPrivacy, AuditLine, AuditRecord, Provenance
from bench.nets import Classifier
from bench.pipeline.canary_game import Canaries, CanaryGame, check, draw, log_probability, scores, verdict
from bench.pipeline.job import Job, run_spec
from bench.pipeline.run import run_errors
from bench.pipeline.stages import make_release, select_steps, train_ensemble, train_teacher
from bench.pipeline.trained import Trained
from bench.privacy.one_run import ceiling, correct_guesses, one_run_epsilon
from bench.seeds import derive
from bench.storage import provenance
from bench.storage.provenance import StepLog
from bench.storage.records import AUDIT, Audit
from bench.storage.specs import AuditSpec, AuditTeacherSpec, ReleaseSpec, canonical
from bench.storage.store import publish
from bench.validate import instance

SEPARATE_HOLDERS = 2
"""Version of audits that assign canaries to holders separately; a holder is a teacher of an ensemble or a client. In
version 1, if labels decided the holder, a canary also moved other records to other holders
(`bench.data.partition.with_guests`), which no ledger accounts for."""
SOURCE = "aux of iid, in hash order"
"""The images that are used as canaries, as records describe them."""
OVERFIT_EPOCHS = 20
"""Epochs of teachers that should memorise their records, for `CanaryGame.overfit`."""


@dataclass(frozen=True)
class AuditOutcome:
    """An audit, the directory it was published in, and whether it was published before."""

    audit: Audit
    path: Path
    cached: bool


def audit_spec(job: Job, game: CanaryGame, seed: int) -> AuditSpec:
    """Return the spec of an audit with one seed, on which the coins and all trainings depend."""
    release = run_spec(job, seed).release
    teacher = AuditTeacherSpec(
        release.teacher.data,
        release.teacher.arch,
        weights=None,
        recipe=with_overfitting(job, game).recipe.settings(),
        seed=seed,
        canaries=game.canaries,
        coins=seed,
    )
    version = SEPARATE_HOLDERS if has_holders_by_label(release) else 1
    return AuditSpec(
        job.settings.tier, release, teacher, game.score, game.guess_count, game.confidence, version=version
    )


def has_holders_by_label(release: ReleaseSpec) -> bool:
    """Whether labels decide which teacher of an ensemble, or which client of a federation, has a record."""
    options = release.options if release.ensemble is None else release.ensemble.shards
    return options.get("partition", "hash") != "hash"


def teachers_of(spec: AuditSpec) -> dict[str, AuditTeacherSpec]:
    """Return the teachers that an audit trains, by their names in its provenance; audits can share all of them."""
    without_canaries = replace(spec.teacher, canaries=0, coins=0)
    specs = {"teacher": spec.teacher, "null_teacher": without_canaries}
    if spec.score == "rmia":
        specs["reference_teacher"] = replace(without_canaries, seed=derive(spec.teacher.seed, "audit-reference"))
    return specs


def release_of(spec: AuditSpec, teacher: AuditTeacherSpec) -> ReleaseSpec:
    """Return the release made from one of an audit's teachers; its ensemble is trained on the teacher's records."""
    ensemble, kind = spec.release.ensemble, "audit-release"
    has_separate_holders = bool(teacher.canaries) and has_holders_by_label(spec.release)
    if ensemble is not None:
        ensemble = replace(
            ensemble,
            seed=teacher.seed,
            canaries=teacher.canaries,
            coins=teacher.coins,
            version=SEPARATE_HOLDERS if has_separate_holders else ensemble.version,
        )
    elif has_separate_holders:
        kind += f"-{SEPARATE_HOLDERS}"
    return replace(spec.release, teacher=teacher, seed=teacher.seed, ensemble=ensemble, kind=kind)


def with_overfitting(job: Job, game: CanaryGame) -> Job:
    """Return the job, with a recipe that makes teachers memorise their records if the game has `overfit`."""
    if not game.overfit:
        return job
    recipe = replace(job.recipe, epochs=OVERFIT_EPOCHS, max_steps=0, shift=0, flip=False, weight_decay=0.0)
    return replace(job, recipe=recipe)


def run(job: Job, game: CanaryGame, seed: int) -> AuditOutcome:
    """Play the game once and publish `audits/HASH/audit.json`; steps that exist are not trained again.

    Raises:
        BenchError: the game cannot be played with these settings.
        RunFailed: a step failed; nothing is published.
    """
    check(job, game)
    spec = audit_spec(job, game, seed)
    folder = job.store.root / "audits" / spec.hash
    if not job.settings.fresh and (known := published(folder)) is not None:
        return AuditOutcome(known, folder, cached=True)
    with run_errors(), job.log_steps() as log:
        audit = play(job, game, spec, draw(job, game, seed), log)
    with job.store.exclusive(folder) as work:
        (work / AUDIT).write_text(canonical(audit.to_plain()), encoding="utf-8")
        publish(work, folder)
    board = job.material.data.name
    if (job.store.root / "leaderboards" / "releases" / f"{board}.csv").exists():
        boards.refresh(job.store.root, board)
    return AuditOutcome(Audit.of(audit), folder, cached=False)


def prepare_shared(job: Job, game: CanaryGame, seed: int, only: str | None = None) -> None:
    """Train the teachers that audits with the same canaries share, unless they exist.

    Args:
        only: the name of one of `teachers_of`, to make only that one.

    Raises:
        BenchError: the game cannot be played, or has no teacher of that name.
        RunFailed: a teacher could not be trained.
    """
    check(job, game)
    selected = select_steps(teachers_of(audit_spec(job, game, seed)), only)
    with run_errors(), job.log_steps():
        training = AuditTraining(with_overfitting(job, game), draw(job, game, seed))
        for name, teacher in selected.items():
            training.teacher(name, teacher)


def published(folder: Path) -> Audit | None:
    """Read the audit in a directory; None if no readable one is there."""
    try:
        return Audit.read(folder / AUDIT)
    except (OSError, ValueError):
        return None


class AuditTraining:
    """Teachers and releases of one audit, with or without canaries; records the seconds that each took."""

    def __init__(self, job: Job, canaries: Canaries) -> None:
        self._job, self._canaries = job, canaries
        self.seconds: dict[str, float] = {}

    def teacher(self, name: str, spec: AuditTeacherSpec) -> Trained[Classifier]:
        """Train a teacher of `teachers_of` on the private part, with the inserted canaries or with none of them."""
        trained = train_teacher(self._job_of(spec), spec)
        self.seconds[name] = trained.step.seconds
        return trained

    def release(self, name: str, teacher: Trained[Classifier], spec: ReleaseSpec) -> Trained[Classifier]:
        """Make the method's student of a teacher; a method that needs private data gets the teacher's training data."""
        job = self._job_of(instance(spec.teacher, AuditTeacherSpec, "teacher of an audit"))
        ensemble = train_ensemble(job, spec.ensemble)
        if ensemble is not None:
            self.seconds[f"{name}_ensemble"] = ensemble.step.seconds
        student = make_release(job, spec, teacher.network, ensemble)
        self.seconds[name] = student.step.seconds
        return student

    def _job_of(self, teacher: AuditTeacherSpec) -> Job:
        """Return the job whose private part is the training data of a teacher."""
        if not teacher.canaries:
            return self._job
        m = self._job.material
        private, inserted = self._canaries.inserted(m.private), int(self._canaries.coins.sum())
        return replace(self._job, material=replace(m, private=private, canaries=inserted))


def play(job: Job, game: CanaryGame, spec: AuditSpec, canaries: Canaries, log: StepLog) -> AuditRecord:
    """Train and convert with and without canaries, guess them from each network, and compare with the claims."""
    training, specs = AuditTraining(with_overfitting(job, game), canaries), teachers_of(spec)
    teacher = training.teacher("teacher", specs["teacher"])
    student = training.release("release", teacher, release_of(spec, specs["teacher"]))
    null = training.teacher("null_teacher", specs["null_teacher"])
    audited = {"student": student, "teacher": teacher, "null": null}
    references: dict[str, Classifier | None] = dict.fromkeys(audited)
    if spec.score == "rmia":
        reference = training.teacher("reference_teacher", specs["reference_teacher"])
        converted = training.release("reference_release", reference, release_of(spec, specs["reference_teacher"]))
        references = {"student": converted.network, "teacher": reference.network, "null": reference.network}
    lines = {name: audit_line(job, each, references[name], canaries, spec) for name, each in audited.items()}
    origin = provenance.collect(registry.ROOT, log, training.seconds)
    return make_audit(job, spec, canaries, lines, student.account, origin)


def audit_line(
    job: Job, audited: Trained[Classifier], reference: Classifier | None, canaries: Canaries, spec: AuditSpec
) -> AuditLine:
    """Return guesses from one network, their bound, and the share of canaries predicted with their wrong label."""
    target = log_probability(audited.network, canaries, job.device)
    outside = None if reference is None else log_probability(reference, canaries, job.device)
    coins, delta = canaries.coins.numpy(), job.settings.budget.delta
    correct = correct_guesses(scores(target, outside), coins, spec.guesses)
    memorised = teachers.predict(audited.network, canaries.images, job.device).argmax(1) == canaries.labels
    return AuditLine(
        correct=correct,
        guesses=spec.guesses,
        epsilon_lower=one_run_epsilon(spec.guesses, correct, len(coins), delta, spec.confidence),
        accuracy=audited.result.accuracy,
        memorised_inserted=_share(memorised[canaries.coins]),
        memorised_left_out=_share(memorised[~canaries.coins]),
    )


def _share(flags: Tensor) -> float | None:
    """Return the share of true values of (m,) bool; None if m = 0, for example when all of a few coins agree."""
    return float(flags.double().mean()) if len(flags) else None


def make_audit(
    job: Job,
    spec: AuditSpec,
    canaries: Canaries,
    lines: dict[str, AuditLine],
    account: Account,
    origin: Provenance,
) -> AuditRecord:
    """Build the record of an audit: compare the student's bound with the claimed and accounted epsilon."""
    delta, number = job.settings.budget.delta, len(canaries.coins)
    bound, accounted = lines["student"].epsilon_lower, account.accounted_units
    found, reasons = verdict(bound, delta, account.claimed, accounted.get("example"))
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
        privacy=AuditedPrivacy(claimed=account.claimed, accounted=account.accounted, accounted_units=accounted),
        provenance=origin,
    )
