"""DPGEN: pairs and levels by hand, the response's probabilities, and the ways in which private records leak."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import FREE, epsilon_of, is_normal, rng, synthesise
from dp_accounting import NonPrivateDpEvent
from scipy import stats
from torch import Tensor, nn

from baselines.dpgen.dpgen import Dpgen, Pairs, respond, responses, score_loss, wide_enough
from baselines.dpgen.score_network import DenseScore, InstanceNormPlus, RefineScore, langevin, noise_levels
from bench.api import Teacher
from bench.privacy import Budget, Unit
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_private


class Quarters(nn.Module):
    """An unprotected classifier of the toy records: the brightest quarter is the class."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, 8).flatten(1)


def toy(n: int = 80, seed: int = 0) -> Teacher:
    return Teacher(Quarters(), "datalens", SHAPE, CLASSES, "toy", toy_private(seed, n))


def smoke(**given: Any) -> Dpgen:
    return baseline_runs.smoke(Dpgen, None, **given)


def pairs(images: Tensor, epsilon: float, seed: int = 0, **given: Any) -> Pairs:
    made = smoke(**given)
    return made.pairs(images, epsilon, made.noise_levels(images.device), rng(seed), rng(seed + 1))


def test_levels_by_hand() -> None:
    torch.testing.assert_close(noise_levels(8.0, 1.0, 4), torch.tensor([8.0, 4.0, 2.0, 1.0]))
    assert noise_levels(8.0, 1.0, 1).tolist() == [1.0]
    published = noise_levels(50.0, 0.01, 232)
    assert published[0] == 50 and float(published[-1]) == pytest.approx(0.01)


def test_distant_response_gets_a_larger_level() -> None:
    """Levels 8, 4, 2, 1 reach 40, 20, 10, 5: at 5 the level drawn stays, at 6 it is 2 or more, at 99 the largest."""
    levels = torch.tensor([8.0, 4.0, 2.0, 1.0])
    drawn, distance = torch.tensor([3, 3, 3, 0, 1, 3, 2]), torch.tensor([5.0, 6.0, 21.0, 0.1, 6.0, 99.0, 11.0])
    assert wide_enough(levels, drawn, distance).tolist() == [3, 2, 0, 0, 1, 0, 1]


def test_loss_by_hand() -> None:
    """sigma = 2, x~ = 1, x_r = 5, s = 3: (2 * 3 - 4 / 2)^2 / 2 = 8; at s = 4 / 4 it is 0.

    It sums the pixels of an image, and is a mean over images.
    """
    noisy, answers, score = (torch.full((1, 1, 1, 3), value) for value in (1.0, 5.0, 3.0))
    sigma = torch.tensor([2.0])
    assert float(score_loss(score[..., :1], noisy[..., :1], answers[..., :1], sigma)) == 8
    assert float(score_loss(score, noisy, answers, sigma)) == 24
    both = torch.cat([score, torch.ones(1, 1, 1, 3)])
    assert float(score_loss(both, noisy.expand(2, 1, 1, 3), answers, sigma.expand(2))) == 12


def test_langevin_dynamics_by_hand() -> None:
    """The score of N(2, 1/4) is -(x - 2) / (1/4 + sigma^2): samples have its mean and deviation."""

    def score(x: Tensor, sigma: Tensor) -> Tensor:
        return (2 - x) / (0.25 + sigma[:, None, None, None].square())

    one = langevin(lambda x, sigma: 2 - x, torch.zeros(1, 1, 1, 1), torch.tensor([0.5]), 1, 1e-12, rng())
    assert float(one) == pytest.approx(0.25 * 2, abs=1e-4), "the last step goes sigma^2 s(x) from 0"
    levels = noise_levels(10.0, 0.05, 16)
    found = langevin(score, torch.zeros(4000, 1, 1, 1), levels, 60, 0.0004, rng()).flatten()
    assert float(found.mean()) == pytest.approx(2, abs=0.05) and 0.44 < float(found.std()) < 0.56


@pytest.mark.parametrize("wrong", [0.0, 0.2, -0.2])
def test_responses_have_the_claimed_probabilities(wrong: float) -> None:
    """e^epsilon / (e^epsilon + k - 1) for the true one and the rest evenly; 0.2 more or less is found."""
    n, k, epsilon = 40_000, 8, 1.5
    answer = respond(torch.full((n,), 5), k, epsilon, rng())
    kept = math.exp(epsilon + wrong) / (math.exp(epsilon + wrong) + k - 1)
    expected = [(kept if i == 5 else (1 - kept) / (k - 1)) * n for i in range(k)]
    fits = float(stats.chisquare(answer.bincount(minlength=k).numpy(), expected).pvalue) > 0.005
    assert fits == (wrong == 0)


def test_pairs_follow_the_algorithm() -> None:
    x, levels = torch.rand(40, 1, 4, 4, generator=rng(7)), torch.tensor([2.0, 0.5])
    made = responses(x, 20, math.inf, levels, rng(), rng(1))
    assert made.chosen.tolist() == list(range(20)) and torch.equal(made.answers, x[:20])
    z = ((made.noisy - x[:20]) / made.sigma[:, None, None, None]).flatten()
    assert is_normal(z, 1.0)
    assert set(made.sigma.tolist()) == {2.0, 0.5}
    without = responses(x, 20, 0.0, levels, rng(), rng(1))
    assert (without.chosen == torch.arange(20)).sum() < 5, "epsilon 0 answers with any of the forty"


def test_buffer_is_full_and_mirroring_is_optional() -> None:
    images, _ = toy_private(n=30)
    made = pairs(images, math.inf, buffer=64, mirrored=False)
    assert len(made.sigma) == 64 and made.noisy.shape == (64, *SHAPE)
    assert torch.equal(made.answers, images[made.chosen].float() / 255)
    mirrored = pairs(images, math.inf, buffer=64, mirrored=True)
    own = images[mirrored.chosen].float() / 255
    turned = [torch.equal(a, b.flip(2)) and not torch.equal(a, b) for a, b in zip(mirrored.answers, own, strict=True)]
    assert 15 < sum(turned) < 50


def test_dense_score_by_hand() -> None:
    """(d(x / (sigma^2 + 1/4)^(1/2), log sigma) - x) / sigma^2, d of three layers with ELU and a sigmoid at the end."""
    torch.manual_seed(0)
    made, x, sigma = DenseScore((1, 2, 2), 5), torch.rand(3, 1, 2, 2), torch.tensor([0.5, 1.0, 8.0])
    for found, image, s in zip(made(x, sigma), x.flatten(1), sigma.tolist(), strict=True):
        h = nn.functional.elu(made.first(image / math.sqrt(s * s + 0.25)) + made.level(torch.tensor([math.log(s)])))
        guess = made.last(nn.functional.elu(made.second(h))).sigmoid()
        torch.testing.assert_close(found.flatten(), (guess - image) / s**2)


def test_levels_depend_on_the_response() -> None:
    """All images are black except one: at level 0.01 a response is 0 or 1 away, and 1 needs level 0.5."""
    x = torch.zeros(40, 1, 3, 3)
    x[0] = 1.0
    made = responses(x, 40, 1.0, torch.tensor([0.5, 0.01]), rng(), rng(1))
    near = (made.answers - made.noisy).abs().flatten(1).amax(1) <= 0.05
    assert bool(near.any()) and not bool(near.all())
    assert set(made.sigma[~near].tolist()) == {0.5}


@pytest.mark.parametrize("network", [RefineScore, DenseScore])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 7, 10)])
def test_networks_return_scores(network: Any, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    made, x = network(shape, 8), torch.rand(3, *shape)
    found = made(x, torch.tensor([0.1, 1.0, 10.0]))
    assert found.shape == x.shape and bool(found.isfinite().all())
    torch.testing.assert_close(made(x[1:2], torch.tensor([1.0])), found[1:2], msg="images do not mix")


def test_instance_norm_plus_by_hand() -> None:
    """Channel means 1 and 3 have variance 2: -1 / 2^(1/2) and its opposite are added to the normalised -1 and 1."""
    x = torch.tensor([[[[0.0, 2.0]], [[2.0, 4.0]]]])
    h = math.sqrt(0.5)
    expected = torch.tensor([[[[-1 - h, 1 - h]], [[h - 1, h + 1]]]])
    torch.testing.assert_close(InstanceNormPlus(2)(x), expected, atol=1e-3, rtol=0)


def test_buffer_has_the_records_themselves() -> None:
    """The alphabet of the response is the private records: a neighbour has probability 0 of this answer."""
    images, _ = toy_private(n=30)
    record = images[4].float() / 255
    seen = (pairs(given, 1.0, buffer=400, mirrored=False).answers for given in (images, images[torch.arange(30) != 4]))
    with_it, without_it = (int((found == record).flatten(1).all(1).sum()) for found in seen)
    assert with_it > 0 and without_it == 0


def test_noisy_images_are_nearly_the_records() -> None:
    """At epsilon 0 a response does not depend on the record; x~ at a level of 0.01 equals it, to a hundredth."""
    images, _ = toy_private(n=30)
    x = images.float() / 255
    made = responses(x, 20, 0.0, torch.tensor([0.01]), rng(), rng(1))
    assert float((made.noisy - x[:20]).abs().max()) < 0.06
    nearest = torch.cdist(made.noisy.flatten(1), x.flatten(1)).argmin(1)
    assert nearest.tolist() == list(range(20))


def test_claim_ignores_repeated_responses() -> None:
    private = toy_private(n=30)
    many = pairs(private[0], 3.0, buffer=900)
    assert int(many.chosen.bincount(minlength=30).min()) > 10
    for buffer in (16, 900):
        made = synthesise(smoke(buffer=buffer), Budget(3.0), private)
        assert (made.claim.epsilon, made.claim.delta) == (3.0, 0.0) and made.claim.disputed == "answers-are-the-records"
        assert [entry.event for entry in made.ledger.entries(Unit.EXAMPLE)] == [NonPrivateDpEvent()] * 2
        assert math.isinf(epsilon_of(made.ledger))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0])
def test_audit_refutes_the_claim(epsilon: float) -> None:
    game = Dpgen(candidates=16, queries=8).game(Budget(epsilon), "digits", 10)
    found = audit(game, plays=20_000)
    assert game.delta == 0 and game.claimed == epsilon
    assert found.verdict == "refuted" and found.lower_bound > epsilon + 1


def test_labels_are_those_of_the_unprotected_teacher() -> None:
    made = smoke().synthesise(*toy_private(n=30), toy(), Budget(1.0), context())
    images, labels = made.draw(40, rng())
    assert torch.equal(labels, Quarters()(images).argmax(1)) and float(images.min()) >= 0 and float(images.max()) <= 1


def nearest(method: Dpgen, n: int = 60) -> float:
    """Mean distance per pixel of drawn images to the nearest private one."""
    torch.manual_seed(0)
    private = toy(n)
    assert private.private is not None
    made = method.synthesise(*private.private, private, Budget(math.inf), context())
    drawn, _ = made.draw(50, rng())
    real = private.private[0].float().flatten(1) / 255
    return float(torch.cdist(drawn.flatten(1), real).amin(1).mean()) / math.sqrt(real.shape[1])


@pytest.mark.thorough
def test_noiseless_samples_resemble_private_images() -> None:
    trained = smoke(steps=400, width=128, levels=10, batch=64, buffer=1000, average=0.98)
    assert nearest(trained) < 0.12 < 0.2 < nearest(replace(trained, steps=1))


def test_budget_is_the_epsilon_of_a_response() -> None:
    assert Dpgen().epsilon(Budget(2.0)) == 2.0 and Dpgen(response=3.0).epsilon(FREE) == 3.0
    assert Dpgen(response=3.0).epsilon(Budget(2.0, solve="none")) == 3.0
