"""The end-to-end audit: canaries in the teacher's training data, guessed from the released student.

Of m images of the attacker's part of split iid, each with a wrong label drawn once and for all, a fair coin per canary
decides whether the teacher is trained on it. Student, undefended teacher and a null teacher that saw no canary are
scored alike, and each must pay for its right guesses with epsilon (`bench.privacy.one_run`). The coins enter nothing
but the training data: canaries, labels, score, reference models and the number of guesses are fixed without them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import data, leaderboard, nets, registry, teachers
from bench.api import Teacher
from bench.config import plain
from bench.errors import BenchError, RunFailed
from bench.pipeline import steps
from bench.pipeline.job import Job, run_spec, shards_of
from bench.privacy.accountant import Overspent
from bench.privacy.one_run import CONFIDENCE, ceiling, comparable, correct_guesses, one_run_epsilon, refutes
from bench.seeds import derive
from bench.storage import provenance
from bench.storage.records import AUDIT, Audit, AuditSpec, AuditTeacherSpec, EnsembleSpec, ReleaseSpec
from bench.storage.store import Step, publish

Score = Literal["loss", "rmia"]
SCORES: tuple[Score, ...] = ("loss", "rmia")
RMIA_A = 0.3
OVERFIT: dict[str, Any] = {"epochs": 20, "max_steps": 0, "shift": 0, "flip": False, "weight_decay": 0.0}


@dataclass(frozen=True)
class CanaryGame:
    """What is played besides the settings of a run.

    Attributes:
        canaries: m, each inserted by its own fair coin.
        guesses: r of 1 to m, half on the highest scores, half on the lowest; None: m // 2.
        score: "loss", minus the loss at the canary's label; or "rmia", its probability over that of a reference model.
        overfit: train the teachers longer and without augmentation or decay, so that they memorise.
        confidence: of the bound.
    """

    canaries: int = 200
    guesses: int | None = None
    score: Score = "loss"
    overfit: bool = False
    confidence: float = CONFIDENCE

    @property
    def asked(self) -> int:
        """The number of guesses."""
        return self.canaries // 2 if self.guesses is None else self.guesses


@dataclass(frozen=True)
class Canaries:
    """m canaries: images uint8 (m, c, h, w), wrong labels (m,), and the coins (m,), true = in the training data."""

    images: Tensor
    labels: Tensor
    coins: Tensor

    def inserted(self, private: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The private part with the canaries whose coin says so."""
        images, labels = private
        return torch.cat([images, self.images[self.coins]]), torch.cat([labels, self.labels[self.coins]])


@dataclass(frozen=True)
class Finished:
    """An audit, the directory it was published in, and whether it was there already."""

    audit: Audit
    path: Path
    cached: bool


def check(job: Job, game: CanaryGame) -> None:
    """Raise BenchError, before anything is trained, if this game cannot be played."""
    s = job.settings
    if s.teacher_weights is not None:
        raise BenchError("--teacher-weights: an audit trains its own teacher, with canaries; leave it out")
    if s.split != "iid":
        raise BenchError(f"--split {s.split}: canaries come from the attacker's part of split iid; use --split iid")
    if not 2 <= game.canaries <= len(job.material.aux):
        raise BenchError(
            f"--canaries {game.canaries}: data set '{job.material.data.name}' has {len(job.material.aux)} images "
            "outside the private part; give 2 to that many"
        )
    if not 1 <= game.asked <= game.canaries:
        raise BenchError(f"--guesses {game.asked}: expected 1 to the number of canaries, {game.canaries}")
    if not 0 < game.confidence < 1:
        raise BenchError(f"--confidence {game.confidence}: expected a number between 0 and 1, such as 0.95")
    if game.score not in SCORES:
        raise BenchError(f"--score {game.score}: expected {' or '.join(SCORES)}")
    if ceiling(game.asked, game.canaries, s.budget.delta, game.confidence) <= 0:
        raise BenchError(
            f"{game.asked} guesses on {game.canaries} canaries at delta {s.budget.delta:g}: even if all are right the "
            "bound is 0; give more --canaries or --guesses, or a smaller --delta"
        )


def draw(job: Job, game: CanaryGame, seed: int) -> Canaries:
    """The canaries: the first of the attacker's images in the order of split iid's hash, and this seed's coins.

    Raises:
        BenchError: the private part lacks a class that the attacker's part has.
    """
    s = job.settings
    images = data.load(s.dataset, s.data_root, False)
    if images.classes != job.material.data.classes:
        raise BenchError(f"data set '{images.name}': split iid leaves a class without private images; give more images")
    aux = data.split(images, "iid").aux.tolist()
    order = sorted(aux, key=lambda index: hashlib.sha256(f"{images.name}:{index}".encode()).digest())
    chosen = torch.tensor(order[: game.canaries])
    fixed = torch.Generator().manual_seed(derive("audit-labels", images.name))
    moved = torch.randint(1, images.classes, (len(order),), generator=fixed)[: game.canaries]
    coins = torch.Generator().manual_seed(derive(seed, "audit-coins"))
    inserted = torch.rand(game.canaries, generator=coins) < 0.5
    return Canaries(images.train_images[chosen], (images.train_labels[chosen] + moved) % images.classes, inserted)


def audit_spec(job: Job, game: CanaryGame, seed: int) -> AuditSpec:
    """The spec of an audit with one seed, which the coins and all trainings depend on."""
    release = run_spec(job, seed).release
    teacher = release.teacher
    recipe = plain(_recipe(job, game))
    audited = AuditTeacherSpec(teacher.data, teacher.arch, None, recipe, seed, canaries=game.canaries, coins=seed)
    return AuditSpec(job.settings.tier, release, audited, game.score, game.asked, game.confidence)


def teachers_of(spec: AuditSpec) -> dict[str, AuditTeacherSpec]:
    """The teachers that an audit trains, by their names in its provenance; audits may have all of them in common."""
    unaware = replace(spec.teacher, canaries=0, coins=0)
    found = {"teacher": spec.teacher, "null_teacher": unaware}
    if spec.score == "rmia":
        found["reference_teacher"] = replace(unaware, seed=derive(spec.teacher.seed, "audit-reference"))
    return found


def release_of(spec: AuditSpec, teacher: AuditTeacherSpec) -> ReleaseSpec:
    """The release made of one of an audit's teachers, by way of an ensemble that is trained on what the teacher was."""
    ensemble = spec.release.ensemble
    if ensemble is not None:
        ensemble = replace(ensemble, seed=teacher.seed, canaries=teacher.canaries, coins=teacher.coins)
    return replace(spec.release, teacher=teacher, seed=teacher.seed, ensemble=ensemble, kind="audit-release")


def _recipe(job: Job, game: CanaryGame) -> teachers.Recipe:
    return replace(job.recipe, **OVERFIT) if game.overfit else job.recipe


def run(job: Job, game: CanaryGame, seed: int) -> Finished:
    """Play the game once and publish `audits/HASH/audit.json`; trains nothing that is there already.

    Raises:
        BenchError: the game cannot be played.
        RunFailed: a step failed; nothing is published.
    """
    check(job, game)
    spec = audit_spec(job, game, seed)
    final = job.store.root / "audits" / spec.hash
    if not job.settings.fresh and (known := published(final)) is not None:
        return Finished(known, final, cached=True)
    with _failing():
        audit = _play(job, game, spec, draw(job, game, seed))
    with job.store.exclusive(final) as work:
        (work / AUDIT).write_text(audit.to_json(), encoding="utf-8")
        publish(work, final)
    board = job.material.data.name
    if (job.store.root / "leaderboards" / f"{board}.csv").exists():
        leaderboard.refresh(job.store.root, board)
    return Finished(audit, final, cached=False)


def begin(job: Job, game: CanaryGame, seed: int) -> None:
    """Make what audits with the same canaries share, their teachers, unless it is there.

    Raises:
        BenchError: the game cannot be played.
        RunFailed: a teacher could not be trained.
    """
    check(job, game)
    spec = audit_spec(job, game, seed)
    with _failing():
        pipeline = _Pipeline(job, game, spec, draw(job, game, seed))
        for name in teachers_of(spec):
            pipeline.teacher(name)


def published(final: Path) -> Audit | None:
    """The audit in a directory; None if there is none that can be read."""
    try:
        return Audit.read(final / AUDIT)
    except (OSError, ValueError):
        return None


@contextmanager
def _failing() -> Iterator[None]:
    """What goes wrong in a step is a RunFailed of one line."""
    try:
        yield
    except (Overspent, RuntimeError, ArithmeticError, ValueError) as error:
        raise RunFailed(f"{type(error).__name__}: {error}".splitlines()[0]) from error


@dataclass(frozen=True)
class Made:
    """A network with the step it came from."""

    step: Step
    network: nets.Classifier


class _Pipeline:
    """Teacher and release of one audit, with or without canaries; remembers the seconds of what it made."""

    def __init__(self, job: Job, game: CanaryGame, spec: AuditSpec, canaries: Canaries) -> None:
        self.job, self.spec, self.recipe, self.canaries = job, spec, _recipe(job, game), canaries
        self.seconds: dict[str, float] = {}

    def teacher(self, name: str) -> tuple[Made, AuditTeacherSpec]:
        """A teacher of `teachers_of`, trained on the private part, with the inserted canaries or with none of them."""
        spec, material = teachers_of(self.spec)[name], self.job.material
        if spec.canaries:
            material = replace(material, private=self.canaries.inserted(material.private))
        step, network = steps.teacher(self.job.store, spec, self.recipe, material, None, self.job.context)
        self.seconds[name] = step.seconds
        return Made(step, network), spec

    def student(self, name: str, teacher: Made, of: AuditTeacherSpec) -> Made:
        """The method's student of a teacher; a method that needs the private data gets those the teacher had."""
        job, m, spec = self.job, self.job.material, release_of(self.spec, of)
        private = self.canaries.inserted(m.private) if of.canaries else m.private
        given = private if "private_data" in job.method.needs else None
        members = self._members(name, spec.ensemble, replace(m, private=private))
        shown = Teacher(teacher.network, of.arch, m.data.shape, m.data.classes, m.data.name, given, members, m.public)
        step, network = steps.release(job.store, spec, job.method, job.settings.budget, shown, m, job.context)
        self.seconds[name] = step.seconds
        return Made(step, network)

    def _members(self, name: str, spec: EnsembleSpec | None, material: steps.Material) -> nets.Ensemble | None:
        """The ensemble of a method that asks for one."""
        shards = shards_of(self.job)
        if spec is None or shards is None:
            return None
        step, members = steps.ensemble(self.job.store, spec, shards, material, self.job.context)
        self.seconds[f"{name}_ensemble"] = step.seconds
        return members


def _play(job: Job, game: CanaryGame, spec: AuditSpec, canaries: Canaries) -> Audit:
    pipeline = _Pipeline(job, game, spec, canaries)
    teacher, taught = pipeline.teacher("teacher")
    student = pipeline.student("release", teacher, taught)
    null, _ = pipeline.teacher("null_teacher")
    made = {"student": student, "teacher": teacher, "null": null}
    references: dict[str, nn.Module | None] = dict.fromkeys(made)
    if spec.score == "rmia":
        reference, unaware = pipeline.teacher("reference_teacher")
        of_student = pipeline.student("reference_release", reference, unaware)
        references = {"student": of_student.network, "teacher": reference.network, "null": reference.network}
    delta = job.settings.budget.delta
    lines = {name: _line(of, references[name], canaries, spec, delta, job.device) for name, of in made.items()}
    privacy = student.step.json("result.json")["privacy"]
    verdict, reasons = judge(lines["student"]["epsilon_lower"], delta, privacy)
    return Audit(
        spec.hash,
        verdict,
        reasons,
        asdict(spec),
        {"number": len(canaries.coins), "inserted": int(canaries.coins.sum()), "from": "aux of iid, in hash order"},
        ceiling(spec.guesses, len(canaries.coins), delta, spec.confidence),
        delta,
        lines,
        lines["teacher"]["epsilon_lower"] > 0,
        {name: privacy[name] for name in ("claimed", "accounted", "accounted_units")},
        provenance.collect(registry.ROOT, job.device, job.settings.precision, pipeline.seconds),
    )


def _line(
    made: Made, reference: nn.Module | None, canaries: Canaries, spec: AuditSpec, delta: float, device: torch.device
) -> dict[str, Any]:
    """One target: guesses, bound, and how many canaries it answers with the label that was taught."""
    likely = log_probability(made.network, canaries, device)
    outside = None if reference is None else log_probability(reference, canaries, device)
    coins = canaries.coins.numpy()
    correct = correct_guesses(scores(likely, outside), coins, spec.guesses)
    answers = teachers.predict(made.network, canaries.images, device).argmax(1) == canaries.labels
    return {
        "correct": correct,
        "guesses": spec.guesses,
        "epsilon_lower": one_run_epsilon(spec.guesses, correct, len(coins), delta, spec.confidence),
        "accuracy": made.step.json("result.json")["accuracy"],
        "memorised_inserted": float(answers[canaries.coins].double().mean()),
        "memorised_left_out": float(answers[~canaries.coins].double().mean()),
    }


def log_probability(network: nn.Module, canaries: Canaries, device: torch.device) -> NDArray[np.float64]:
    """(m,) log of the probability that the network gives to each canary's label: minus its loss."""
    logits = teachers.predict(network, canaries.images, device).double()
    return logits.log_softmax(1).gather(1, canaries.labels[:, None]).squeeze(1).numpy()


def scores(likely: NDArray[np.float64], outside: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """(m,) membership scores from log-probabilities of the target and, for RMIA, of a reference that saw no canary.

    RMIA (Zarifzadeh, Liu, Shokri, ICML 2024), offline with one reference: R(x) = p(x | target) / p(x) with p(x) = ((1 +
    a) p(x | reference) + 1 - a) / 2, a = 0.3. Its score, the share of population images z with R(x) > gamma R(z), rises
    with R(x) and with nothing else of x; guesses depend on ranks alone, so R(x) itself is returned.
    """
    if outside is None:
        return likely
    return likely - np.log(((1 + RMIA_A) * np.exp(outside) + 1 - RMIA_A) / 2)


def judge(bound: float, delta: float, privacy: dict[str, Any]) -> tuple[Literal["refuted", "not refuted"], list[str]]:
    """The verdict on a release's numbers, and a sentence for each.

    The audit adds or removes one private example. A claim per query is therefore not refuted by a bound above it: only
    the accounted number per example is held against the bound then.

    Args:
        bound: the student's lower bound, per example.
        delta: at which it holds.
        privacy: "claimed" and "accounted_units" as in a record.
    """
    numbers = {"claimed": privacy["claimed"], "accounted": privacy["accounted_units"].get("example")}
    reasons = []
    for name, found in numbers.items():
        why = comparable(found, delta)
        if found is None or why is not None:
            reasons.append(f"{name}: not comparable, {why}; the bound {bound:.3g} is per example")
        elif refutes(bound, delta, found):
            reasons.append(f"{name}: REFUTED, the bound {bound:.3g} is above {found['epsilon']:.4g} per example")
        else:
            reasons.append(f"{name}: not refuted, the bound {bound:.3g} is at most {found['epsilon']:.4g} per example")
    refuted = any(refutes(bound, delta, found) for found in numbers.values())
    return "refuted" if refuted else "not refuted", reasons
