"""RMIA: by hand, equal to a slow implementation, its population, and how a is tuned."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest
import torch
from membership_made import binary, draw, infer, split_in_half, table, world
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attacks import rmia
from attacks.rmia import Rmia, area, dominated
from bench.errors import RunFailed
from bench.membership.likelihood_ratios import marginal
from bench.testing import context

# RMIA


def test_rmia_by_hand() -> None:
    """a = 0.5: p(x) = 0.75 pbar + 0.25."""
    assert marginal(torch.tensor([0.2, 1.0]), 0.5).tolist() == pytest.approx([0.4, 1.0])
    ratio_x, ratio_z = torch.tensor([0.5, 1.0, 2.0, 4.1]), torch.tensor([1.0, 0.25, 2.0, 0.5])
    assert dominated(ratio_x, ratio_z, 1.0).tolist() == [0.5, 0.75, 1.0, 1.0]
    assert dominated(ratio_x, ratio_z, 2.0).tolist() == [0.25, 0.5, 0.75, 1.0]


def slow_rmia(px: Tensor, known_x: Tensor, members: Tensor, pz: Tensor, known_z: Tensor, gamma: float, a: float) -> Any:
    found = []
    for i in range(len(px)):
        outs = [float(known_x[j, i]) for j in range(len(members)) if not members[j, i]]
        ratio = float(px[i]) / (((1 + a) * sum(outs) / len(outs) + 1 - a) / 2)
        wins = 0
        for k in range(len(pz)):
            mean = float(known_z[:, k].sum()) / len(members)
            wins += ratio / (float(pz[k]) / (((1 + a) * mean + 1 - a) / 2)) >= gamma
        found.append(wins / len(pz))
    return found


@pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.3), (1.2, 0.0), (1.3, 1.0)])
def test_rmia_equals_a_slow_implementation(gamma: float, a: float) -> None:
    n, m = 15, 11
    members, known, own = split_in_half(6, n), 2 * draw(6, n + m), 2 * draw(n + m, seed=1)
    attack = Rmia(references=6, gamma=gamma, a=a, tune=False)
    found = infer(attack, own, known, members, m)
    p, q = own.sigmoid(), known.sigmoid()
    assert found.tolist() == pytest.approx(slow_rmia(p[:n], q[:, :n], members, p[n:], q[:, n:], gamma, a))
    assert len(found.unique()) > 4


def test_online_rmia_uses_all_references() -> None:
    n, m = 15, 11
    members, known, own = split_in_half(4, n), 2 * draw(4, n + m), 2 * draw(n + m, seed=1)
    found = infer(Rmia(mode="online", gamma=1.0), own, known, members, m)
    ratio = own.sigmoid() / known.sigmoid().mean(0)
    wanted = [sum(float(ratio[i]) >= float(r) for r in ratio[n:]) / m for i in range(n)]
    assert found.tolist() == pytest.approx(wanted)


def test_population_excludes_suspects() -> None:
    """Card 4.13. Population records that are suspects do not count, for any outputs of the models."""
    n, m = 8, 20
    members, known, own = split_in_half(4, n), 2 * draw(4, n + m), 2 * draw(n + m, seed=1)
    knowledge = world(known, members, m)
    images, labels = knowledge.population
    mixed = (torch.cat([images[:7], knowledge.images, images[7:]]), torch.cat([labels, knowledge.labels]))
    attack = Rmia(gamma=1.0)
    clean = attack.infer(table(binary(own)), knowledge, context()).scores
    assert torch.equal(
        attack.infer(
            table(binary(own)), dataclasses.replace(knowledge, load_population=lambda: mixed), context()
        ).scores,
        clean,
    )
    only = dataclasses.replace(knowledge, load_population=lambda: (knowledge.images, knowledge.labels))
    with pytest.raises(RunFailed, match=str(n)):
        attack.infer(table(binary(own)), only, context())


def test_rmia_without_population_has_a_skip_reason() -> None:
    assert "0" in (Rmia().skip_reason((1, 28, 28), 10, 0) or "")
    assert Rmia().skip_reason((1, 28, 28), 10, 1) is None
    assert Rmia(score="ratio").skip_reason((1, 28, 28), 10, 0) is None


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_share_is_a_step_function_of_the_ratio(mode: Literal["offline", "online"]) -> None:
    """For one target the population and gamma only add ties."""
    n, m = 300, 40
    members, known, own = split_in_half(4, n), 2 * draw(4, n + m), 2 * draw(n + m, seed=1)
    given: dict[str, Any] = {"mode": mode, "tune": False} if mode == "offline" else {"mode": mode}
    ratio = infer(Rmia(score="ratio", **given), own, known, members, m)
    order = ratio.argsort()
    assert len(ratio.unique()) == n
    for gamma in (1.0, 2.0):
        share = infer(Rmia(gamma=gamma, **given), own, known, members, m)
        assert bool((share[order].diff() >= 0).all()) and 2 < len(share.unique()) <= m + 1


def test_ratio_by_hand_uses_models_without_the_record() -> None:
    """Card B1: a mean over the models without the record, positive also where all probabilities are small."""
    members = split_in_half(4, 12)
    known, own = 3 * draw(4, 12) - 6, 3 * draw(12, seed=1) - 6
    found = infer(Rmia(score="ratio", tune=False, a=0.3), own, known, members)
    p, q = own.sigmoid(), known.sigmoid()
    pbar = torch.stack([q[~members[:, i], i].mean() for i in range(12)])
    assert float(p.max()) < 0.538, "where a proxy from models with the record would be negative"
    torch.testing.assert_close(found, (p / (0.65 * pbar + 0.35)).log(), rtol=1e-5, atol=1e-6)


def test_area_equals_roc_auc() -> None:
    scores, members = (4 * draw(200)).round(), draw(200, seed=1) > 0.3
    assert float(area(scores, members)) == pytest.approx(roc_auc_score(members, scores))


def test_tuned_a_equals_exhaustive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    n, m, count = 60, 40, 6
    members = split_in_half(count, n)
    known = draw(n + m) + 0.7 * draw(count, n + m, seed=1)
    known[:, :n] += 1.5 * members
    p = known.sigmoid()
    areas = []
    for a in rmia.GRID:
        found = []
        for i in range(count):
            others = [j for j in range(count) if j != i]
            scores = []
            for x in range(n):
                outs = [float(p[j, x]) for j in others if not members[j, x]][: count // 2 - 1]
                ratio = float(p[i, x]) / (((1 + a) * sum(outs) / len(outs) + 1 - a) / 2)
                ratios = p[i, n:] / (((1 + a) * p[others][:, n:].mean(0) + 1 - a) / 2)
                scores.append(float((ratio >= ratios).double().mean()))
            found.append(roc_auc_score(members[i], scores))
        areas.append(sum(found) / count)
    best = rmia.GRID[int(np.argmax(areas))]
    assert max(areas) - min(areas) > 0.01
    kept = Rmia(references=count, gamma=1.0, tune=False, a=best)
    assert kept._tuned(p[:, :n], p[:, n:], members) == best
    own = table(binary(draw(n + m, seed=9)))
    knowledge = world(known, members, m)
    assert torch.equal(
        dataclasses.replace(kept, tune=True, a=0.0).infer(own, knowledge, context()).scores,
        kept.infer(own, knowledge, context()).scores,
    )
