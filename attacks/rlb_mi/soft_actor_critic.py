"""Soft actor-critic for many agents in parallel, each with separate networks.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018 (arXiv 1812.05905), with a learned temperature.
pi the policy, Q_1, Q_2 critics, Q^_1, Q^_2 their slow copies, e the temperature, s a state, a an action of k numbers in
(-1, 1), r a reward, s' the next state, g the discount, h the target entropy. Per update, of a batch of transitions:

1. y = r + g (min_i Q^_i(s', a') - e log pi(a'|s')), a' ~ pi(s'); y = r at the end of an episode.
2. Update Q_i to lower mean (Q_i(s, a) - y)^2.
3. Update pi to lower mean [e log pi(a~|s) - min_i Q_i(s, a~)], a~ ~ pi(s).
4. Update log e to lower -log e (mean log pi(a~|s) + h).
5. Q^_i <- tau Q_i + (1 - tau) Q^_i.

An action is tanh(m + sd n), n ~ N(0, I), drawn separately for every dimension of every action. log pi is the
mean over the k dimensions, and so is h: h = -1 is the usual -k of a sum.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from bench.gan.training import descend

LOG_SD = (-20.0, 2.0)
"""Bounds of the logarithm of a policy's standard deviation."""
OUTPUT = 3e-3
"""Bound of the uniform initial weights of the last layers."""


class Perceptrons(nn.Module):
    """`count` separate networks of two hidden ReLU layers: (count, n, inputs) to (count, n, outputs).

    Args:
        rng: draws the initial weights, uniform up to 1/sqrt(fan-in), in the last layer up to `OUTPUT`; on the networks'
            device.
    """

    def __init__(self, count: int, inputs: int, hidden: int, outputs: int, rng: torch.Generator) -> None:
        super().__init__()
        sizes = [(inputs, hidden, inputs**-0.5), (hidden, hidden, hidden**-0.5), (hidden, outputs, OUTPUT)]

        def uniform(rows: int, columns: int, bound: float) -> nn.Parameter:
            return nn.Parameter(
                bound * (2 * torch.rand(count, rows, columns, generator=rng, device=rng.device) - 1),
            )

        self.weights = nn.ParameterList([uniform(rows, columns, bound) for rows, columns, bound in sizes])
        self.biases = nn.ParameterList([uniform(1, columns, bound) for _, columns, bound in sizes])

    def forward(self, x: Tensor) -> Tensor:
        """Apply each network to its own n rows."""
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x if i == last else x.relu()
        return x


class Agents:
    """`count` agents, each of which learns only from its own transitions.

    Args:
        size: k, length of a state and of an action.
        hidden: width of the two hidden layers.
        lr: Adam's learning rate, for all networks and for log e.
        discount, slowness, entropy: g, tau and h.
        rng: on the device of the networks; the only source of randomness.
    """

    def __init__(
        self,
        count: int,
        size: int,
        *,
        hidden: int,
        lr: float,
        discount: float,
        slowness: float,
        entropy: float,
        rng: torch.Generator,
    ) -> None:
        self.policy = Perceptrons(count, size, hidden, 2 * size, rng)
        self.critics = Perceptrons(2 * count, 2 * size, hidden, 1, rng)
        self.slow = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.zeros(count, device=rng.device))
        self._adams = {
            module: torch.optim.Adam(parameters, lr=lr)
            for module, parameters in (
                ("policy", list(self.policy.parameters())),
                ("critics", list(self.critics.parameters())),
                ("temperature", [self.log_temperature]),
            )
        }
        self._count, self._rng = count, rng
        self._discount, self._slowness, self._entropy = discount, slowness, entropy

    @torch.no_grad()
    def act(self, states: Tensor) -> Tensor:
        """Draw (count, n, k) actions in (-1, 1) from the policies at (count, n, k) states."""
        return self._sample(states)[0]

    def learn(
        self, states: Tensor, actions: Tensor, rewards: Tensor, next_states: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Update every agent once on its own n transitions.

        Args:
            states, actions: (count, n, k). rewards: (count, n).
            next_states: (count, n, k) next states, and (count, n), 1 where the episode continues and 0 where it ended;
                None if all ended.
        """
        # 1 and 2: the critics
        goal = rewards if next_states is None else rewards + self._discount * self._future(*next_states)
        values = self._values(self.critics, states, actions)
        descend(self._adams["critics"], (values - goal).square().mean(2).sum())
        # 3: the policy, with the updated critics
        sampled, log_pi = self._sample(states)
        temperature = self.log_temperature.detach().exp().unsqueeze(1)
        value = self._values(self.critics, states, sampled).amin(0)
        descend(self._adams["policy"], (temperature * log_pi - value).mean(1).sum())
        # 4: the temperature
        surplus = log_pi.detach().mean(1) + self._entropy
        descend(self._adams["temperature"], -(self.log_temperature * surplus).sum())
        # 5: the slow critics
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, self._slowness)

    @torch.no_grad()
    def _future(self, states: Tensor, goes_on: Tensor) -> Tensor:
        """Return the term that step 1 adds to the reward, without the discount, (count, n)."""
        actions, log_pi = self._sample(states)
        value = self._values(self.slow, states, actions).amin(0)
        return goes_on * (value - self.log_temperature.exp().unsqueeze(1) * log_pi)

    def _sample(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return (count, n, k) actions and (count, n) log pi, differentiable in the policies' weights."""
        mean, log_sd = self.policy(states).chunk(2, -1)
        log_sd = log_sd.clamp(*LOG_SD)
        noise = torch.randn(mean.shape, generator=self._rng, device=mean.device)
        raw = mean + log_sd.exp() * noise
        return raw.tanh(), log_density(raw, noise, log_sd)

    def _values(self, critics: Perceptrons, states: Tensor, actions: Tensor) -> Tensor:
        """Return the values of both critics, (2, count, n)."""
        pairs = torch.cat([states, actions], -1)
        return critics(pairs.repeat(2, 1, 1)).view(2, self._count, -1)


def log_density(raw: Tensor, noise: Tensor, log_sd: Tensor) -> Tensor:
    """Return the log density of tanh(raw), raw = mean + exp(log_sd) noise, as the mean over the last dimension.

    log N(noise) - log_sd - log(1 - tanh(raw)^2), in a form of the last term that does not overflow.
    """
    normal = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_sd
    return (normal - 2 * (math.log(2) - raw - softplus(-2 * raw))).mean(-1)


class Replay:
    """Replay memory: the last `capacity` transitions of every agent; all agents add theirs at the same time.

    Args:
        device: device of the stored tensors.
    """

    def __init__(self, count: int, capacity: int, size: int, device: torch.device) -> None:
        self._states = torch.empty(count, capacity, size, device=device)
        self._actions = torch.empty(count, capacity, size, device=device)
        self._rewards = torch.empty(count, capacity, device=device)
        self._goes_on = torch.empty(capacity, device=device)
        self._agents = torch.arange(count, device=device).unsqueeze(1)
        self._capacity, self._added = capacity, 0

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    def add(self, states: Tensor, actions: Tensor, rewards: Tensor, goes_on: bool) -> None:
        """Store one transition of each agent, (count, k), (count, k), (count,), in place of the oldest if full."""
        place = self._added % self._capacity
        self._states[:, place], self._actions[:, place], self._rewards[:, place] = states, actions, rewards
        self._goes_on[place] = float(goes_on)
        self._added += 1

    def draw(self, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw n transitions per agent, with replacement: states, actions, rewards, 1 where the episode continues."""
        picks = torch.randint(len(self), (len(self._agents), n), generator=rng, device=rng.device)
        where = (self._agents, picks)
        return self._states[where], self._actions[where], self._rewards[where], self._goes_on[picks]
