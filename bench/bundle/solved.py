"""Which of the parameters that a budget determined are public: those that are in the ledger's own events.

A method may put anything among its `solved` parameters, so that the list says what may leave, not what may not.
"""

from __future__ import annotations

import math
from typing import Any

from bench import registry

PUBLIC = {
    "sigma": "noise of every step or answer; a Gaussian's multiplier in the ledger",
    "multiplier": "noise over the joint sensitivity of a step; the ledger's multiplier",
    "scale": "noise of the votes or labels; a Laplace's or Gaussian's parameter in the ledger",
    "threshold_scale": "noise of the count that is held against the threshold; an event of its own",
    "moments_multiplier": "noise of the class moments; an event of its own",
    "moment_multiplier": "noise of the features' second moment; an event of its own",
    "answer_epsilon": "one randomised response; its event",
    "label_epsilon": "one label's randomised response; its event",
    "k": "candidates of a randomised response; its event",
    "iterations": "batches, or questions, asked about: in the ledger, or (dp-blsgd) a function of its releases",
    "queries": "questions, fixed before any vote was seen; a count in the ledger",
    "answers": "answers at most, fixed before any vote was seen; a count in the ledger",
    "steps": "noisy steps; a count in the ledger",
    "uses": "steps of the most used critic, by a schedule drawn apart from the data; a count in the ledger",
    "sampling": "chance of a record to be in a batch; the sampled event's, and 1 / the public number of records",
}
"""Name to where the ledger has it."""

WITHHELD = {
    "answered": "queries that passed the threshold: a function of the teachers' votes",
    "data_dependent_epsilon_diagnostic": "a function of the votes, without noise",
    "mean_candidates": "mean size of the candidate sets: a function of private images by way of the first model",
    "bandwidth": "in no event, and on some data sets a constant that its authors took from the private data",
    "beta": "in no event: it cancels in the mechanism",
    "norm_bound": "in no event: it cancels in the mechanism",
    "threshold": "in no event; a setting",
    "stages": "in no event; a setting",
    "rounds": "in no event; a setting",
    "factor": "in no event by itself; the multipliers are",
    "share": "in no event; a setting",
    "resampling": "in no event by itself; the response's epsilon is, of which it is made",
    "search_epsilon": "in no event by itself; the Gaussian above it is",
    "response_epsilon": "in no event: the response protects nothing",
    "clusters": "in no event; a function of the images, which label privacy leaves unprotected",
}
"""What shipped methods solve for besides, and why it stays in the laboratory."""


def public(method: str, solved: dict[str, Any]) -> dict[str, float]:
    """Those of the solved parameters that may leave; of a third party's method none, as no one here has read it."""
    known = registry.entries("method")
    if method not in known or known[method].file is None:
        return {}
    kept = {name: solved[name] for name in PUBLIC if name in solved}
    return {name: float(value) for name, value in kept.items() if math.isfinite(value)}
