"""Parse a claimed epsilon, and test whether the scores of attacks refute it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from bench.assess.epsilon import p_value
from bench.assess.numbers import Scored
from bench.assess.schema import Canaries, Claim, Finding
from bench.core.verdict import is_significant
from bench.errors import BenchError
from bench.escape import visible
from bench.privacy.one_run import p_value as one_run_p

EXPECTED = 'expected "epsilon=3 delta=1e-5 unit=example", unit example or group'
UNITS = {"example": "record", "record": "record", "group": "group", "client": "group"}
"""Unit of a claim to the unit of an assessment that can refute the claim."""


@dataclass(frozen=True)
class Stated:
    """A stated claim: (epsilon, delta)-differential privacy for a unit."""

    epsilon: float
    delta: float
    unit: str


def read_claim(text: str) -> Stated:
    """Parse a claim of three NAME=VALUE pairs. Raises BenchError for another text."""
    pairs = dict(re.findall(r"([a-z]+)=(\S+)", text))
    if len(pairs) != 3 or set(pairs) != {"epsilon", "delta", "unit"} or len(text.split()) != 3:
        raise BenchError(f"--claim '{visible(text)}': {EXPECTED}")
    try:
        epsilon, delta = float(pairs["epsilon"]), float(pairs["delta"])
    except ValueError:
        raise BenchError(f"--claim '{visible(text)}': epsilon and delta must be numbers; {EXPECTED}") from None
    if not (0 <= epsilon < float("inf") and 0 <= delta < 1) or pairs["unit"] not in UNITS:
        raise BenchError(f"--claim '{visible(text)}': epsilon 0 or more, delta from 0 to below 1; {EXPECTED}")
    return Stated(epsilon, delta, pairs["unit"])


def check_claim(stated: Stated, unit: str, attacks: list[Scored], canaries: Canaries | None = None) -> Claim:
    """Test whether the scores of attacks refute a claim.

    The p-value is the smallest error probability at which the lower bound at the claim's delta, corrected for all
    thresholds and attacks, exceeds the claimed epsilon.

    A claim per example is tested by the canaries, if there are any: their coins make the test valid without assumptions
    about the records.

    Args:
        unit: unit of the scores, "record" or "group".
        attacks: at least one.
    """
    said = f"epsilon {stated.epsilon:g} at delta {stated.delta:g} per {stated.unit}"
    if canaries is not None and UNITS[stated.unit] == "record":
        p = one_run_p(stated.epsilon, canaries.guesses, canaries.correct, canaries.canaries, stated.delta)
        return _tested(stated, said, p, f"{canaries.correct} of {canaries.guesses} right guesses on canaries")
    if UNITS[stated.unit] != unit:
        sentence = f"The claim, {said}, speaks of another unit than these scores, which are per {unit}."
        return _claim(stated, "not comparable", None, sentence)
    p = min(
        p_value(stated.epsilon, np.sort(each.members), np.sort(each.others), stated.delta, len(attacks))
        for each in attacks
    )
    return _tested(stated, said, p, "the lower bound")


def _tested(stated: Stated, said: str, p: float, by: str) -> Claim:
    if is_significant(p):
        sentence = f"Claim refuted: {said} is contradicted by {by}, p = {p:.2g}."
        return _claim(stated, "refuted", p, sentence)
    sentence = f"The claim, {said}, is not refuted (p = {p:.2g}); attacks never verify a claim."
    return _claim(stated, "not refuted", p, sentence)


def _claim(stated: Stated, finding: Finding, p: float | None, sentence: str) -> Claim:
    return Claim(epsilon=stated.epsilon, delta=stated.delta, unit=stated.unit, finding=finding, p=p, sentence=sentence)
