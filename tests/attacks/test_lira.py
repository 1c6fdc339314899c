"""LiRA: equal to a slow implementation, the likelihood ratio with known distributions, and edge cases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from membership_made import binary, draw, split_in_half, table, world
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attacks.lira import Lira, log_density
from attacks.loss_threshold import LossThreshold
from bench.api import AttackerKnowledge, Target
from bench.membership.confidences import query_probabilities, scaled_confidence
from bench.testing import context

# LiRA


def gaussian_world(count: int, n: int = 30) -> tuple[Target, AttackerKnowledge, Tensor, dict[str, Tensor]]:
    """Confidences of known normals: (target, knowledge, target's phi, the parameters)."""
    truth = {
        "mu_out": draw(n, seed=1),
        "s_out": draw(n, seed=2).abs() + 0.5,
        "mu_in": 2 + draw(n, seed=3),
        "s_in": draw(n, seed=4).abs() + 0.5,
    }
    members = split_in_half(count, n, seed=5)
    z = draw(count, n, seed=6)
    known = torch.where(members, truth["mu_in"] + truth["s_in"] * z, truth["mu_out"] + truth["s_out"] * z)
    phi = draw(n, seed=7) + 1
    return table(binary(phi)), world(known, members), phi, truth


def slow_lira(phi: Tensor, known: Tensor, members: Tensor, variance: str, centre: str, mode: str) -> list[float]:
    """LiRA suspect by suspect, the densities by scipy."""
    middle: Callable[..., Any] = np.mean if centre == "mean" else np.median
    n = members.shape[1]
    ins = [known[members[:, i], i].numpy() for i in range(n)]
    outs = [known[~members[:, i], i].numpy() for i in range(n)]
    found = []
    for i in range(n):
        normals = []
        for side in (ins, outs):
            if variance == "per-example":
                s = np.std(side[i])
            else:
                s = np.std(np.concatenate(side))
            normals.append(stats.norm(middle(side[i]), s))
        x = float(phi[i])
        if mode == "online":
            found.append(normals[0].logpdf(x) - normals[1].logpdf(x))
        else:
            found.append(normals[1].cdf(x) if mode == "cdf" else -normals[1].logpdf(x))
    return found


def known_of(knowledge: AttackerKnowledge, count: int) -> tuple[Tensor, Tensor]:
    references = knowledge.references(count, "teacher")
    phi = [
        scaled_confidence(query_probabilities(r.target, knowledge.images, 512), knowledge.labels) for r in references
    ]
    return torch.stack(phi), torch.stack([r.members for r in references])


@pytest.mark.parametrize("centre", ["mean", "median"])
@pytest.mark.parametrize("variance", ["per-example", "fixed"])
def test_lira_equals_a_slow_implementation(variance: Any, centre: Any) -> None:
    target, knowledge, phi, _ = gaussian_world(8, 12)
    known, members = known_of(knowledge, 8)
    plain = Lira(references=8, variance=variance, centre=centre)
    online = plain.infer(target, knowledge, context()).scores
    assert online.tolist() == pytest.approx(slow_lira(phi, known, members, variance, centre, "online"), rel=1e-4)
    cdf = dataclasses.replace(plain, mode="offline").infer(target, knowledge, context()).scores
    wanted = slow_lira(phi, known, members, variance, centre, "cdf")
    assert stats.norm.cdf(cdf.numpy()).tolist() == pytest.approx(wanted, rel=1e-4)
    pdf = dataclasses.replace(plain, mode="offline", tail="pdf").infer(target, knowledge, context()).scores
    assert pdf.tolist() == pytest.approx(slow_lira(phi, known, members, variance, centre, "pdf"), rel=1e-4)


def test_online_score_is_the_true_log_likelihood_ratio() -> None:
    """With 4000 models the fitted normals are the true ones up to some 2 %."""
    target, knowledge, phi, t = gaussian_world(4000)
    found = Lira(references=4000, views="none").infer(target, knowledge, context()).scores
    wanted = log_density(phi, t["mu_in"], t["s_in"]) - log_density(phi, t["mu_out"], t["s_out"])
    assert wanted.abs().max() > 3
    assert float(((found - wanted).abs() / (1 + wanted.abs())).max()) < 0.15
    assert float(((found - wanted).abs() / (1 + wanted.abs())).mean()) < 0.04


def test_lira_beats_the_loss_threshold() -> None:
    """Targets drawn from the world: hard and easy suspects mislead the loss, not the ratio."""
    n, count = 900, 64
    members, member = split_in_half(count, n, 1), torch.arange(n) % 2 == 0
    easy, gain = 3 * draw(n, seed=2), 1.5
    known = easy + 0.7 * draw(count, n, seed=3) + gain * members
    target = table(binary(easy + 0.7 * draw(n, seed=4) + gain * member))
    areas = {
        name: roc_auc_score(member, attack.infer(target, world(known, members), context()).scores)
        for name, attack in {
            "loss": LossThreshold(),
            "offline": Lira(references=count, views="none", mode="offline"),
            "online": Lira(references=count, views="none"),
        }.items()
    }
    best = stats.norm.cdf(gain / (0.7 * math.sqrt(2)))
    assert areas["loss"] < 0.7
    assert areas["online"] == pytest.approx(best, abs=0.03)
    assert areas["offline"] == pytest.approx(best, abs=0.03)


def test_offline_tails_differ_below_the_mean() -> None:
    """Card 4.12. A confidence far below OUT's mean does not indicate membership, but the density treats it so."""
    members = split_in_half(6, 3)
    known = draw(6, 3).clamp(-1, 1)
    target, knowledge = table(binary(torch.tensor([-9.0, 0.0, 9.0]))), world(known, members)
    offline = Lira(references=6, variance="fixed", mode="offline")
    cdf = offline.infer(target, knowledge, context()).scores
    pdf = dataclasses.replace(offline, tail="pdf").infer(target, knowledge, context()).scores
    assert cdf.argsort().tolist() == [0, 1, 2]
    assert pdf.argmin() == 1


def test_lira_is_finite_if_all_models_agree() -> None:
    members = split_in_half(4, 6)
    for mode in ("online", "offline"):
        lira = Lira(references=4, mode=mode)  # type: ignore[arg-type]
        found = lira.infer(table(binary(draw(6))), world(torch.full((4, 6), 200.0), members), context())
        assert bool(found.scores.isfinite().all())
