"""DP-SGD over two processes: the same ledger, sample, noise and weights as in one, and noise that is added once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from shared_parts import records
from torch import Tensor, nn

from baselines.dp_sgd import DpSgd
from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.dp_training import clipped_sums, dp_sgd
from bench.dp_training.clipped_sums import owned
from bench.dp_training.clipping import poisson_sample
from bench.dp_training.dp_sgd import NoisyGradients, train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.nets import Classifier
from bench.privacy import Budget
from bench.ranks import Ranks
from bench.testing import CLASSES, SHAPE, context, toy_private

N = 90
PLAIN = DpSgdSettings(
    batch=30, steps=4, multiplier=0.0, clip=0.3, clipping="flat", rate=0.5, momentum=0.9, chunk=7, average=0.5
)


def network() -> Classifier:
    torch.manual_seed(0)
    return nets.build("tanh-cnn", (1, 12, 12), 3)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


def trained(settings: DpSgdSettings, ranks: Ranks | None, **changes: Any) -> Tensor:
    model = network()
    ctx = replace(context(0), ranks=ranks, **changes)
    train(model, "tanh-cnn", records(N), settings, settings.parameters(N), ctx, "training")
    return flat(model)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [{}, {"clipping": "layer"}, {"views": 2, "gradients": "func"}, {"batch": N}, {"batch": 1}],
    ids=["flat", "layer", "views", "all records", "few records"],
)
def test_dp_sgd_without_noise_equals_one_process(ranks: Ranks, changes: dict[str, Any]) -> None:
    settings = replace(PLAIN, **changes)
    single, shared = trained(settings, None), trained(settings, ranks)
    assert (single - flat(network())).norm() > 1e-2, "the weights have changed"
    torch.testing.assert_close(shared, single, rtol=0, atol=1e-6)


def assert_same(shared: Tensor, single: Tensor, settings: DpSgdSettings) -> None:
    """Except a few sums that are rounded to the next step of the noise's grid, 2^-10 of its scale."""
    step = 2.0**-10 * settings.multiplier * settings.clip / settings.batch * settings.rate / (1 - settings.momentum)
    off = (shared - single).abs()
    assert float((off > 1e-6).double().mean()) < 1e-3 and float(off.max()) < settings.steps * step


@pytest.mark.thorough
def test_dp_sgd_with_noise_equals_one_process(ranks: Ranks) -> None:
    settings = replace(PLAIN, multiplier=0.7)
    single, shared = trained(settings, None), trained(settings, ranks)
    assert_same(shared, single, settings)
    assert (single - trained(PLAIN, None)).norm() > 1, "the noise moves the weights"


FREE = Budget(None, solve="none")


def convert(ranks: Ranks | None, **given: str) -> Release:
    torch.manual_seed(0)
    method = configure(DpSgd, "smoke", {"steps": "3", "batch": "20", **given}, "method")
    teacher = Teacher(nn.Identity(), "datalens", SHAPE, CLASSES, "toy", toy_private(n=64))
    made: Release = method.convert(teacher, "datalens", FREE, replace(context(0), ranks=ranks))
    return made


@pytest.mark.thorough
def test_dp_sgd_release_equals_that_of_one_process(ranks: Ranks) -> None:
    single, shared = convert(None), convert(ranks)
    assert shared.ledger.to_json() == single.ledger.to_json() and len(single.ledger.entries()) == 1
    assert shared.claim == single.claim and shared.solved == single.solved
    assert_same(flat(shared.student), flat(single.student), DpSgd(steps=3, batch=20).settings("mnist"))


@pytest.mark.thorough
@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_dp_sgd_noise_is_added_once_at_full_scale(ranks: Ranks, monkeypatch: pytest.MonkeyPatch, noise: Any) -> None:
    """No record is sampled, so that only noise moves the weights, with deviation z C / (q n)."""
    monkeypatch.setattr(dp_sgd, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))
    settings = replace(PLAIN, steps=1, multiplier=2.0, rate=1.0, momentum=0.0, average=0.0)
    moved = (trained(settings, ranks, noise=noise) - flat(network())) / (2.0 * settings.clip / settings.batch)
    assert stats.kstest(moved.numpy(), "norm").pvalue > 1e-3
    assert float(moved.square().sum()) == pytest.approx(len(moved), rel=6 * math.sqrt(2 / len(moved)))


@pytest.mark.thorough
def test_dp_sgd_sampled_record_is_on_exactly_one_rank(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of all ranks, identified by their first pixel, are one draw over all records."""
    given, drawn, run = list[list[list[int]]](), list[list[int]](), Ranks.run

    def watched_run(self: Ranks, function: Any, shares: Any, *rest: Any, **named: Any) -> Any:
        if function is clipped_sums.clipped_sum:
            given.append([share.images[:, 0, 0, 0].tolist() for share in shares])
        return run(self, function, shares, *rest, **named)

    def watched_sample(n: int, q: float, source: Any) -> Tensor:
        drawn.append((found := poisson_sample(n, q, source)).tolist())
        return found

    monkeypatch.setattr(Ranks, "run", watched_run)
    monkeypatch.setattr(dp_sgd, "poisson_sample", watched_sample)
    trained(replace(PLAIN, steps=12), ranks)
    assert len(drawn) == len(given) == 12
    for (ours, theirs), sample in zip(given, drawn, strict=True):
        assert sorted(ours + theirs) == sample and not set(theirs) & set(ours)
    source = context(0).privacy_noise("training/sampling")
    assert drawn == [poisson_sample(N, 30 / N, source).tolist() for _ in range(12)], "the draws of one process"


def test_owned_shares_of_poisson_samples_are_poisson() -> None:
    """Each record is in its rank's share with probability q, independently of the other ranks' shares."""
    source, n, q, draws, count = torch.Generator().manual_seed(1), 60, 0.2, 3000, 3
    seen, sizes = torch.zeros(n), torch.zeros(draws, count)
    for draw in range(draws):
        chosen = poisson_sample(n, q, source)
        for rank in range(count):
            share = owned(chosen, rank, count)
            assert (share % count == rank).all()
            seen[share] += 1
            sizes[draw, rank] = len(share)
    squares = (seen - q * draws).square() / (q * (1 - q) * draws)
    assert stats.chi2.sf(float(squares.sum()), n) > 1e-3 and stats.chi2.cdf(float(squares.sum()), n) > 1e-3
    for rank in range(count):
        assert stats.ttest_1samp(sizes[:, rank].numpy(), q * n / count).pvalue > 1e-3
        assert float(sizes[:, rank].var()) == pytest.approx(q * (1 - q) * n / count, rel=0.15)
        assert stats.pearsonr(sizes[:, rank].numpy(), sizes[:, (rank + 1) % count].numpy()).pvalue > 1e-3


@pytest.mark.thorough
def test_noisy_gradients_one_by_one_equal_one_process(ranks: Ranks) -> None:
    """The line search moves the weights freely between steps."""
    found = []
    for by in (None, ranks):
        model = network()
        noisy = NoisyGradients(model, "tanh-cnn", records(N), PLAIN, replace(context(0), ranks=by), "search")
        first = noisy(0, 1.0, 0.3)
        with torch.no_grad():
            for name, weight in noisy.weights.items():
                weight.sub_(0.1 * first[name])
        found.append(noisy(1, 1.0, 0.3))
        noisy.close("search")
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=0, atol=1e-6)
