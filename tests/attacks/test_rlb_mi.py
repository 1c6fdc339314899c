from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from inversion_made import SHAPE, TINY_GAN
from inversion_made import target as target_of
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from attacks.rlb_mi.rlb_mi import RlbMi, keep_best
from attacks.rlb_mi.soft_actor_critic import Agents, Perceptrons, Replay, log_density
from bench.api import AttackResult, Target
from bench.testing import context

TINY = TINY_GAN | {"episodes": 6, "hidden": 8, "sac_batch": 4}


class Signs(nn.Module):
    """Four classes: the signs of z's first two numbers, which the stub generator writes into the first pixels."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = (4 * (x.flatten(1)[:, i] - 0.5) for i in (0, 1))
        return 3 * torch.stack([-a - b, -a + b, a - b, a + b], 1)


class Halves(nn.Module):
    """A stub generator: (z + 1) / 2."""

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.pad((z + 1) / 2, (0, 64 - z.shape[1])).view(-1, *SHAPE).clamp(0, 1)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RlbMi, "gan", lambda *_: (Halves(), None))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def agents(count: int = 2, size: int = 3, **changes: Any) -> Agents:
    settings = {"hidden": 8, "lr": 1e-2, "discount": 0.9, "slowness": 0.1, "entropy": -1.0, "rng": rng()}
    return Agents(count, size, **{**settings, **changes})


def run(seed: int = 0, **changes: Any) -> tuple[AttackResult, Target]:
    target = target_of(Signs(), "scores")
    return RlbMi(**{**TINY, **changes}).run(target, torch.rand(16, *SHAPE), context(seed)), target


def test_reward_by_hand() -> None:
    of_state = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.5, 0.0], [0.1, 0.0, 0.9]])
    of_action = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    found = RlbMi(state_weight=2, action_weight=3, margin_weight=8)._reward(
        of_state, of_action, torch.tensor([1, 0, 1])
    )
    floor = math.log(1e-7)
    expected = [
        2 * math.log(0.7) + 3 * math.log(0.25) + 8 * math.log(0.5),
        2 * math.log(0.5) + 3 * math.log(0.5) + 8 * floor,
        (2 + 3 + 8) * floor,
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_act_draws_noise_per_dimension() -> None:
    several = agents(2, 3)
    actions = several.act(torch.zeros(2, 4000, 3)).atanh()
    for drawn in actions:
        torch.testing.assert_close(drawn.T.cov(), torch.eye(3), atol=0.08, rtol=0)
        assert abs(float((drawn[:-1, 0] * drawn[1:, 0]).mean())) < 0.06
    assert abs(float((actions[0, :, 0] * actions[1, :, 0]).mean())) < 0.06


def test_log_density_is_that_of_a_tanh_normal() -> None:
    mean, log_sd, noise = (torch.randn(4, 5, generator=rng(i), dtype=torch.float64) for i in range(3))
    raw = mean + log_sd.exp() * noise
    squashed = TransformedDistribution(Normal(mean, log_sd.exp()), [TanhTransform(cache_size=1)])
    expected = Normal(mean, log_sd.exp()).log_prob(raw) - TanhTransform().log_abs_det_jacobian(raw, raw.tanh())
    torch.testing.assert_close(log_density(raw, noise, log_sd), expected.mean(-1))
    inside = raw.abs() < 3
    torch.testing.assert_close(squashed.log_prob(raw.tanh())[inside], expected[inside])
    assert log_density(torch.full((1, 2), 60.0), torch.zeros(1, 2), torch.zeros(1, 2)).isfinite().all()


def test_perceptrons_are_separate_networks() -> None:
    many, x = Perceptrons(3, 4, 5, 2, rng()), torch.randn(3, 7, 4, generator=rng(1))
    out = many(x)
    for i in range(3):
        hidden = x[i]
        for j, (weight, bias) in enumerate(zip(many.weights, many.biases, strict=True)):
            hidden = hidden @ weight[i] + bias[i]
            hidden = hidden if j == 2 else hidden.clamp(min=0)
        torch.testing.assert_close(out[i], hidden)
    assert not torch.equal(many.weights[0][0], many.weights[0][1])


def transitions(count: int = 2, n: int = 5, size: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    states, actions = (torch.randn(count, n, size, generator=rng(i)) for i in (1, 2))
    return states, actions.tanh(), torch.randn(count, n, generator=rng(3))


def parameters(several: Agents, agent: int, count: int = 2) -> list[Tensor]:
    critics = [p.detach().view(2, count, *p.shape[1:])[:, agent] for p in several.critics.parameters()]
    return (
        [p.detach()[agent] for p in several.policy.parameters()] + critics + [several.log_temperature[agent].detach()]
    )


def test_agents_learn_only_from_their_own_transitions() -> None:
    one, other = agents(), agents()
    states, actions, rewards = transitions()
    changed = rewards.clone()
    changed[1] += 50
    for _ in range(3):
        one.learn(states, actions, rewards)
        other.learn(states, actions, changed)
    assert all(torch.equal(a, b) for a, b in zip(parameters(one, 0), parameters(other, 0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(parameters(one, 1), parameters(other, 1), strict=True))


def test_critic_update_by_hand() -> None:
    """The gradient of the critics' loss, in Adam's first step only its sign; and the slow critics' update."""
    several = agents(1, 3, lr=1e-3)
    states, actions, rewards = transitions(1)
    rewards = rewards + 5
    before = [p.detach().clone() for p in several.critics.parameters()]
    slow = [p.clone() for p in several.slow.parameters()]
    several.learn(states, actions, rewards)
    last_bias = list(several.critics.biases)[-1].detach()
    torch.testing.assert_close(last_bias - before[-1], torch.full((2, 1, 1), 1e-3))
    for new, old, now in zip(several.critics.parameters(), slow, several.slow.parameters(), strict=True):
        torch.testing.assert_close(now, 0.1 * new.detach() + 0.9 * old)


def test_future_by_hand() -> None:
    several = agents(1, 3)
    with torch.no_grad():
        for critics in (several.slow,):
            for p in critics.parameters():
                p.zero_()
            critics.biases[-1].copy_(torch.tensor([4.0, -2.0]).view(2, 1, 1))
        several.log_temperature.fill_(math.log(0.5))
    states = transitions(1)[0]
    state = several._rng.get_state()
    _, log_pi = several._sample(states)
    several._rng.set_state(state)
    goes_on = torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0]])
    expected = goes_on * (-2 - 0.5 * log_pi.detach())
    torch.testing.assert_close(several._future(states, goes_on), expected)


def set_critic(critics: Perceptrons, number: int, slope: float, height: float) -> None:
    """Make Q(s, a) of a critic of one agent with states and actions of 3 numbers `height` + `slope` (1 + a_1)."""
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter[number] = 0
        critics.weights[0][number, 3, 0] = critics.biases[0][number, 0, 0] = critics.weights[1][number, 0, 0] = 1
        critics.weights[2][number, 0, 0] = slope
        critics.biases[2][number] = height


@pytest.mark.parametrize("pessimist", [0, 1])
@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_policy_follows_the_smaller_critic(pessimist: int, slope: float) -> None:
    """The other critic, by far the larger, likes the opposite actions."""
    several = agents(1, 3, lr=1e-3)
    set_critic(several.critics, pessimist, slope, -5.0)
    set_critic(several.critics, 1 - pessimist, -slope, 5.0)
    with torch.no_grad():
        several.log_temperature.fill_(-20.0)
    before = several.policy.biases[-1].detach().clone()
    several.learn(*transitions(1))
    moved = several.policy.biases[-1].detach() - before
    assert float(moved[0, 0, 0]) == pytest.approx(slope * 1e-3, rel=1e-3)


@pytest.mark.parametrize(("entropy", "direction"), [(100.0, 1), (-100.0, -1)])
def test_temperature_follows_the_target_entropy(entropy: float, direction: int) -> None:
    several = agents(entropy=entropy)
    several.learn(*transitions())
    torch.testing.assert_close(several.log_temperature.detach(), torch.full((2,), direction * 1e-2))


@pytest.mark.thorough
def test_agents_solve_different_bandits() -> None:
    several, goals = agents(2, 2, hidden=16), torch.tensor([[0.6, -0.4], [-0.7, 0.2]])
    replay, draws = Replay(2, 400, 2, torch.device("cpu")), rng(4)
    for _ in range(400):
        state = torch.randn(2, 2, generator=draws)
        action = several.act(state.unsqueeze(1)).squeeze(1)
        replay.add(state, action, -20 * (action - goals).square().sum(1), False)
        if len(replay) >= 16:
            several.learn(*replay.draw(16, draws)[:3])
    actions = several.act(torch.randn(2, 200, 2, generator=draws)).mean(1)
    assert (actions - goals).abs().max() < 0.25


def test_replay_keeps_the_last_transitions() -> None:
    replay = Replay(2, 3, 1, torch.device("cpu"))
    for i in range(5):
        value = torch.tensor([i, 10.0 + i])
        replay.add(value.unsqueeze(1), -value.unsqueeze(1), 100 + value, goes_on=i % 2 == 1)
        assert len(replay) == min(i + 1, 3)
    states, actions, rewards, goes_on = replay.draw(100, rng())
    assert states.shape == (2, 100, 1) and rewards.shape == goes_on.shape == (2, 100)
    assert set(states[0].flatten().tolist()) == {2, 3, 4} and set(states[1].flatten().tolist()) == {12, 13, 14}
    assert torch.equal(actions, -states) and torch.equal(rewards, 100 + states.squeeze(2))
    assert torch.equal(goes_on, states.squeeze(2) % 10 % 2)
    assert not torch.equal(states[0] + 10, states[1]), "each agent draws its own"


def test_keep_best_by_hand() -> None:
    best, highest = torch.zeros(2, 2, 1), torch.full((2, 2), -math.inf)
    for values in ([0.1, 0.9], [0.3, 0.2], [0.2, 0.5]):
        confidence = torch.tensor(values).unsqueeze(1)
        best, highest = keep_best(best, highest, 10 * confidence, confidence)
    torch.testing.assert_close(highest, torch.tensor([[0.3, 0.2], [0.9, 0.5]]))
    torch.testing.assert_close(best.squeeze(2), 10 * highest)


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(("changes", "queries"), [({}, 2), ({"alpha": 0.5}, 3), ({"episode_steps": 2}, 3)])
def test_queries_are_counted(changes: dict[str, Any], queries: int) -> None:
    assert run(**changes)[1].queries == queries * TINY["episodes"] * 8


@pytest.mark.usefixtures("stub")
def test_attack_returns_the_best_test_images() -> None:
    result, target = run()
    assert result.images.shape == (24, *SHAPE) and result.images.dtype == torch.float32
    assert not result.images.requires_grad
    assert (result.draws * 4 + result.targets).bincount().tolist() == [3] * 8
    confidence = target.scores(result.images).gather(1, result.targets.unsqueeze(1)).view(8, 3)
    assert (confidence.diff(dim=1) <= 0).all()
    assert len(result.images.flatten(1).unique(dim=0)) == 24
    assert torch.equal(result.images, run()[0].images) and not torch.equal(result.images, run(1)[0].images)


@pytest.mark.thorough
@pytest.mark.usefixtures("stub")
def test_trained_agents_find_more_confident_images() -> None:
    def worst(**changes: Any) -> Tensor:
        result, target = run(episodes=160, images_per_class=20, hidden=16, **changes)
        return target.scores(result.images).gather(1, result.targets.unsqueeze(1)).log().mean()

    idle, taught = worst(sac_lr=1e-12), worst(sac_lr=1e-2, sac_batch=16)
    assert taught > 0.05 * idle
