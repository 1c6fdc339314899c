"""What an end-to-end audit reads of a network: a score for every canary, and what the bound says of its promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench import teachers
from bench.pipeline.canary_game import Canaries
from bench.privacy.one_run import comparable, refutes
from bench.storage.records import Verdict

RMIA_A = 0.3


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


def verdict(bound: float, delta: float, privacy: dict[str, Any]) -> tuple[Verdict, list[str]]:
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
