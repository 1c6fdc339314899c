"""Audits of releases and of mechanisms: empirical lower bounds on epsilon, as `bench audit` computes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.config import STUDENT
from bench.data.own import OwnDataset
from bench.errors import BadOption, plugin_errors
from bench.interface.process import Progress, preserve_process_state
from bench.interface.result import html_table, text_table
from bench.interface.running import Arguments
from bench.interface.values import Options

if TYPE_CHECKING:
    from bench.pipeline.canary_audit import AuditOutcome
    from bench.pipeline.canary_game import CanaryGame
    from bench.pipeline.settings import Settings
    from bench.privacy.audit import DistinguishingGame, MechanismAudit
    from bench.privacy.reconstruction import ReconstructionAudit, ReconstructionGame


@dataclass(frozen=True)
class AuditLine:
    """Guesses from one network.

    Attributes:
        epsilon_lower: lower bound on its epsilon per example, >= 0, at the confidence of the audit.
        correct, guesses: number of correct guesses, and of all guesses.
        accuracy: accuracy on the test set, in [0, 1].
        memorised_inserted, memorised_left_out: share of the inserted canaries, and of those left out, that it
            predicts with their wrong label; None without such canaries.
    """

    epsilon_lower: float
    correct: int
    guesses: int
    accuracy: float
    memorised_inserted: float | None
    memorised_left_out: float | None


@dataclass(frozen=True, repr=False)
class AuditResult:
    """A finished audit of a release.

    Attributes:
        verdict: "refuted" or "not refuted"; the latter proves nothing.
        reasons: sentences that explain the verdict.
        student, teacher, null: guesses from the released student, from the unprotected teacher, and from a teacher
            that was trained without canaries.
        ceiling: the largest bound that this audit can report: if every guess were correct.
        delta: the delta of the bounds.
        has_power: whether the bound on the unprotected teacher is above 0.
        path: the directory of the audit.
        is_cached: whether the audit was read from the cache.
    """

    verdict: str
    reasons: tuple[str, ...]
    student: AuditLine
    teacher: AuditLine
    null: AuditLine
    ceiling: float
    delta: float
    has_power: bool
    path: Path
    is_cached: bool

    def rows(self) -> list[tuple[str, str]]:
        """Return name and value of the main numbers."""
        lines = (("student", self.student), ("teacher", self.teacher), ("teacher without canaries", self.null))
        found = [
            (f"epsilon of the {name}, at least", f"{line.epsilon_lower:.2f} ({line.correct} of {line.guesses} correct)")
            for name, line in lines
        ]
        return [*found, ("largest bound possible", f"{self.ceiling:.2f}"), ("verdict", self.verdict)]

    def __repr__(self) -> str:
        return text_table("audit of a release", self.rows())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table("audit of a release", self.rows())


def audit(
    method: str | type[Any] | object,
    dataset: str | OwnDataset = "digits",
    *,
    canaries: int = 200,
    guesses: int | None = None,
    score: Literal["loss", "rmia"] = "loss",
    overfit: bool = False,
    confidence: float = 0.95,
    epsilon: float | None = 10.0,
    delta: float = 1e-5,
    account: Literal["claimed", "accounted"] = "claimed",
    solve: Literal["sigma", "steps"] = "sigma",
    unit: str = "example",
    seed: int = 0,
    teacher: str = "resnet18",
    student: str = STUDENT,
    tier: str = "quick",
    variant: str | None = None,
    method_options: Options | None = None,
    teacher_options: Options | None = None,
    pretrained: str | os.PathLike[str] | None = None,
    noise: Literal["seeded", "os"] | None = None,
    device: str = "auto",
    devices: int = 1,
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    compile: bool = False,
    data_root: str | os.PathLike[str] | None = None,
    download: bool = False,
    skip_broken: bool = False,
    fit: Literal["crop", "pad", "stretch"] = "crop",
    pixel_range: tuple[float, float] | None = None,
    out: str | os.PathLike[str] = "runs",
    fresh: bool = False,
    progress: Progress | None = None,
) -> AuditResult:
    """Train a teacher with canaries, convert it, and guess from the student which canaries were used.

    The same as `bench audit release` (Steinke, Nasr and Jagielski, NeurIPS 2023). Finished steps are kept in `out`.

    Args:
        canaries: number of mislabelled images, each inserted by a fair coin; at least 2, at most the number of images
            outside of the private part.
        guesses: number of canaries that are guessed, half of them those with the highest scores; None = half the
            canaries.
        score: "loss", or "rmia" for the likelihood ratio to a reference model.
        overfit: train the teacher longer and without augmentation, so that it memorises.
        confidence: confidence of the bounds, in (0, 1).
        teacher: the name of a network, which the audit trains.
        method, dataset, epsilon, delta, account, solve, unit, seed, student, tier, variant: as for `bench.run`.
        method_options, teacher_options, pretrained, noise, device, devices, precision, compile: as for `bench.run`.
        data_root, download, skip_broken, fit, pixel_range, out, fresh, progress: as for `bench.run`.

    Returns:
        Lower bounds on the epsilon per example of student and teacher, and the verdict on the claimed and accounted
        epsilon.

    Raises:
        BenchError: bad input, or an audit that is impossible with these data.
        RunFailed: a step failed; no result is stored.
    """
    if not isinstance(teacher, str):
        raise BadOption("teacher is a value; an audit trains its own teacher, with canaries: give the network by name")
    arguments = Arguments(
        method=method, dataset=dataset, epsilon=epsilon, delta=delta, account=account, solve=solve, unit=unit,
        seed=seed, teacher=teacher, student=student, tier=tier, variant=variant, method_options=method_options,
        teacher_options=teacher_options, pretrained=pretrained, noise=noise, device=device, devices=devices,
        precision=precision, compile=compile, data_root=data_root, download=download, skip_broken=skip_broken,
        fit=fit, pixel_range=pixel_range, out=out, fresh=fresh,
    )  # fmt: skip
    with preserve_process_state(progress):
        from bench.pipeline.canary_game import CanaryGame

        game = CanaryGame(canaries, guesses, score, overfit, confidence)
        (outcome,) = audit_seeds(arguments.to_settings(), game, [seed])
    found = outcome.audit
    return AuditResult(
        verdict=found.verdict,
        reasons=tuple(found.reasons),
        student=AuditLine(**found.lines["student"]),
        teacher=AuditLine(**found.lines["teacher"]),
        null=AuditLine(**found.lines["null"]),
        ceiling=found.ceiling,
        delta=found.delta,
        has_power=found.powerful,
        path=outcome.path,
        is_cached=outcome.cached,
    )


def audit_seeds(settings: Settings, game: CanaryGame, seeds: Sequence[int]) -> Iterator[AuditOutcome]:
    """Yield the audit of each seed, made unless it is cached. Raises BenchError and RunFailed as `audit`."""
    from bench.pipeline import canary_audit, canary_game
    from bench.pipeline.resolve import load_job

    with closing(load_job(settings)) as job:
        canary_game.check(job, game)
        for seed in seeds:
            yield canary_audit.run(job, game, seed)


def audit_mechanism(settings: Settings, plays: int | None, seed: int) -> tuple[DistinguishingGame, MechanismAudit]:
    """Play the distinguishing game on a method's own mechanism, on its worst inputs, as `bench audit mechanism`.

    Args:
        settings: method, options, budget and data set.
        plays: number of plays in each of the two worlds; None = the number that the game suggests.

    Raises:
        BadOption: a method without such a mechanism.
        BenchError: other bad input.
    """
    from bench.pipeline.run import run_errors
    from bench.privacy.audit import audit as play

    game = game_of(settings)
    with run_errors():
        return game, play(game, plays, seed)


def reconstruct(
    settings: Settings, candidates: int, trials: int, steps: int | None, seed: int
) -> tuple[ReconstructionGame, ReconstructionAudit]:
    """Play the game of an informed adversary on a method's own mechanism, as `bench audit reconstruction`.

    Args:
        settings: method, options, budget and data set.
        candidates: number of equally likely records, one of which is in the data.
        trials: number of plays.
        steps: number of releases of one play; None = as many as the method makes.

    Raises:
        BadOption: a method without such a game.
        BenchError: other bad input.
    """
    from bench.pipeline.run import run_errors
    from bench.privacy.reconstruction import audit_reconstruction

    make = game_of(settings).reconstruction
    if make is None:
        raise BadOption(
            f"--method {settings.method} releases no noisy sum of clipped gradients, from which an informed adversary "
            "could reconstruct a record; use a method of private training, such as dp-sgd, or `bench audit mechanism`"
        )
    with run_errors():
        game = make(steps)
        return game, audit_reconstruction(game, candidates, trials, seed)


def game_of(settings: Settings) -> DistinguishingGame:
    """Return the distinguishing game of a method. Raises BadOption and BenchError as `audit_mechanism`."""
    from bench import data
    from bench.api import AuditableMethod, refuse_groups
    from bench.pipeline.components import Components
    from bench.privacy.audit import DistinguishingGame

    method, _ = Components().plugin("method", settings.method, settings.variant, settings.tier, settings.method_options)
    if not isinstance(method, AuditableMethod):
        raise BadOption(
            f"--method {settings.method} defines no mechanism that can be audited; use `bench audit release`"
        )
    refuse_groups(method, settings.budget, settings.method)
    data.check(settings.dataset)
    images = data.load(
        *(settings.dataset, settings.data_root, settings.download, settings.skip_broken), reading=settings.reading
    )
    with plugin_errors(f"method '{settings.method}'"):
        method.check(settings.budget, images.name, images.classes)
        game = method.game(settings.budget, images.name, images.classes)
        if not isinstance(game, DistinguishingGame):
            raise TypeError(f"its `game` gives {game!r}; expected a DistinguishingGame")
    return game
