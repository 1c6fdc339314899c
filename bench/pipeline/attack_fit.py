"""Whether an attack can say anything about the data of a run, and which one to take instead."""

from __future__ import annotations

from dataclasses import replace

from bench import registry
from bench.errors import BenchError, Incompatible
from bench.metrics.power import FEWEST
from bench.pipeline.job import Job

INSTEAD = ("gmi", "mi-face", "pca-mi", "rmia", "lira", "loss-threshold", "label-only")
"""Attacks that are proposed in the place of one that does not fit, the preferred first."""


def unfit(job: Job) -> str | None:
    """Why the attack of a run cannot end in a result: it does not apply, or its power cannot be tested; None if it can.

    An attack that queries nothing has no power by design and is a baseline of the others.
    """
    if job.attack is None or job.unplayable is not None:
        return job.unplayable
    classes = job.material.data.classes
    if job.goal == "inversion" and classes < FEWEST and not job.attack.is_null:  # type: ignore[union-attr]
        return (
            f"{classes} classes are too few for an inversion, whose success is tested class by class; expected "
            f"{FEWEST} or more"
        )
    return None


def instead(job: Job) -> str | None:
    """An attack that fits the data of a run with its usual options, if possible of the same goal; None without one."""
    fitting = [name for name in INSTEAD if name in registry.entries("attack") and _fits(job, name)]
    goal = job.goal
    return min(fitting, key=lambda name: registry.load("attack", name).goal != goal, default=None)


def _fits(job: Job, name: str) -> bool:
    settings = replace(job.settings, attack=name, attack_variant=None, attack_options=())
    try:
        attack, variant = job.lookup.plugin("attack", name, None, settings.tier, ())
        return unfit(replace(job, settings=settings, attack=attack, attack_variant=variant)) is None
    except BenchError:  # an attack that cannot be set up here is none to propose
        return False


def refuse_unfit(job: Job) -> None:
    """Raise BenchError for an attack that cannot end in a result, with the one to take instead."""
    reason = unfit(job)
    if reason is None:
        return
    other = instead(job)
    advice = f"give --attack {other}" if other else "leave --attack out"
    raise Incompatible(
        f"--attack {job.settings.attack}: {reason}; {advice}, or --unfit-attack record to run it all the same"
    )
