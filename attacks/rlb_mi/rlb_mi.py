"""RLB-MI: a reinforcement learning agent finds latents of a GAN that the target is confident of.

Han, Choi, Lee, Kim, "Reinforcement Learning-Based Black-Box Model Inversion Attacks", CVPR 2023 (arXiv 2304.04625).
G generator, y the attacked class, p(x) the target's probabilities of image x, s a state, a an action, alpha a weight.

0. Train G on the attacker's images (`bench/gan/gan_prior.py`). Every class has a separate soft actor-critic agent.
1. An episode starts at s ~ N(0, I). In each of its steps a ~ pi(s) in (-1, 1)^k, s' = alpha s + (1 - alpha) a, and
   r = w1 log p_y(G(s')) + w2 log p_y(G(a)) + w3 log max(1e-7, p_y(G(s')) - max_(j != y) p_j(G(s'))).
2. Store the transition (s, a, r, s'), and update the agent once on 256 stored ones.
3. After the episode draw a new s ~ N(0, I), let the agent act once, and query p_y of the image of s'. The result is the
   image with the largest p_y of all episodes.

With alpha = 0 and one step per episode, the authors' commands, s' = a. Both images are then the same (queried and
counted once), there is no next state, and the task is a bandit, in which the discount and the slow critics have no
effect.

Queries of an agent in an episode: one for the image of step 3, and two per step, or one per step with alpha = 0, where
both images are the same. With the defaults, one step and alpha = 0, these are two queries.

Differs from the paper:
- Noise is drawn for every dimension of every action. The authors' code draws one number for all dimensions, and for the
  whole batch in an update, so the policy explores a line.
- log pi is the mean over dimensions, as in the authors' code; so is the target entropy here: -1, not -100, which a mean
  cannot reach.
- The policy's loss uses the smaller of both critics, as in soft actor-critic.
- All logarithms have the floor 1e-7, so that a probability that rounds to 0 gives a finite reward.
- Several draws, each with one agent per class, and from each agent the `images_per_class` best test images of different
  episodes; the paper has one of each. The images of a converged agent differ little.
- Agents of all classes and draws train in parallel, with separate networks and replay memories.
- G is the GAN that several attacks here share; it is in evaluation mode.
- Variant `working` trains G and the agents with larger learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.rlb_mi.soft_actor_critic import Agents, Replay
from bench.api import Access, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
from bench.validate import at_least, at_most, below, between, inside, positive

FLOOR = 1e-7
"""Smallest argument of a logarithm in the reward."""
CHUNK = 1000
"""Images per forward pass."""

Query = Callable[[Tensor], Tensor]
"""(n, latent) latents -> the target's (n, classes) probabilities for their images."""


@dataclass(frozen=True)
class RlbMi(GanPrior):
    """Black-box inversion by reinforcement learning; the defaults are the authors'."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Han et al., CVPR 2023, arXiv 2304.04625"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "scores"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            **SMOKE,
            "episodes": 8,
            "hidden": 8,
            "sac_batch": 4,
            "draws": 2,
            "images_per_class": 2,
        },
        "quick": {
            **QUICK,
            "episodes": 300,
            "hidden": 64,
            "sac_batch": 32,
            "draws": 2,
            "images_per_class": 4,
        },
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        SHORT_TRAINING,
        Departure(
            what="the agents' learning rate is 1e-2, not 5e-4",
            why="tier quick has 300 episodes, the authors 40,000",
            sets={"sac_lr": 1e-2},
        ),
    )

    episodes: Size[int] = 40_000
    """Training episodes of each agent, each with a test image."""
    episode_steps: int = 1
    """Actions of an agent in an episode."""
    alpha: float = 0.0
    """alpha, weight of the old state in the new one; 0 = the action is the new state."""
    state_weight: float = 2.0
    """w1, weight of the confidence in the new state's image."""
    action_weight: float = 2.0
    """w2, weight of the confidence in the action's image."""
    margin_weight: float = 8.0
    """w3, weight of the margin between the attacked class and the next one in confidence."""
    hidden: Size[int] = 256
    """Width of the two hidden layers of policies and critics."""
    sac_lr: float = 5e-4
    """Adam's learning rate for policies, critics and temperature."""
    sac_batch: Size[int] = 256
    """Transitions per update; training starts when that many are stored."""
    discount: float = 0.99
    """Discount of the value of the next state."""
    tau: float = 0.01
    """tau, weight of the critics in each update of the slow critics."""
    entropy: float = -1.0
    """Target entropy of the policy per dimension."""
    memory: Size[int] = 1_000_000
    """Capacity of each agent's replay memory, in transitions."""
    draws: Size[int] = 5
    """Agents per class, from different seeds (the paper: 1)."""
    images_per_class: Size[int] = 20
    """Number of best test images returned per agent (the paper: 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "episode_steps", "hidden", "sac_batch", "draws", "images_per_class")
        at_least(self, self.images_per_class, "episodes")
        at_least(self, self.sac_batch, "memory")
        at_least(self, 0, "state_weight", "action_weight", "margin_weight", "alpha")
        below(self, 1, "alpha")
        positive(self, "sac_lr", "tau")
        at_most(self, 1, "tau")
        between(self, 0, 1, "discount")
        inside(self, -math.inf, math.inf, "entropy")

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class."""
        generator, _ = self.gan(aux, ctx)

        @torch.no_grad()
        def query(z: Tensor) -> Tensor:
            with ctx.precision():
                return torch.cat([target.scores(generator(part)).float() for part in z.split(CHUNK)])

        labels = torch.arange(target.classes, device=ctx.device).repeat(self.draws)
        z = self._search(labels, query, ctx).flatten(0, 1)
        with torch.no_grad():
            images = torch.cat([generator(part) for part in z.split(CHUNK)])
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(target.classes * self.images_per_class)
        return AttackResult(images, labels.repeat_interleave(self.images_per_class), draws)

    def _search(self, labels: Tensor, query: Query, ctx: Context) -> Tensor:
        """Train one agent per label; return their best latents, (agents, images_per_class, latent)."""
        rng, count = ctx.generator("rlb-mi"), len(labels)
        agents = Agents(
            count,
            self.latent,
            hidden=self.hidden,
            lr=self.sac_lr,
            discount=self.discount,
            slowness=self.tau,
            entropy=self.entropy,
            rng=rng,
        )
        replay = Replay(count, min(self.memory, self.episodes * self.episode_steps), self.latent, ctx.device)
        best = torch.zeros(count, self.images_per_class, self.latent, device=ctx.device)
        highest = torch.full((count, self.images_per_class), -math.inf, device=ctx.device)
        with ctx.track("RLB-MI: episodes", self.episodes) as advance:
            for _ in range(self.episodes):
                self._episode(agents, replay, labels, query, rng)
                z = self._test(agents, count, rng)
                confidence = query(z).gather(1, labels.unsqueeze(1))
                best, highest = keep_best(best, highest, z, confidence)
                advance(1)
        return best

    def _episode(self, agents: Agents, replay: Replay, labels: Tensor, query: Query, rng: torch.Generator) -> None:
        """Run steps 1 and 2 of one episode of all agents."""
        state = torch.randn(len(labels), self.latent, generator=rng, device=rng.device)
        for step in range(self.episode_steps):
            action = agents.act(state.unsqueeze(1)).squeeze(1)
            following = self._next(state, action)
            of_state = query(following)
            of_action = of_state if self.alpha == 0 else query(action)
            replay.add(state, action, self._reward(of_state, of_action, labels), step + 1 < self.episode_steps)
            state = following
            if len(replay) >= self.sac_batch:
                states, actions, rewards, goes_on = replay.draw(self.sac_batch, rng)
                next_states = (self._next(states, actions), goes_on) if self.episode_steps > 1 else None
                agents.learn(states, actions, rewards, next_states)

    def _test(self, agents: Agents, count: int, rng: torch.Generator) -> Tensor:
        """Return the latents of step 3, (agents, latent)."""
        state = torch.randn(count, self.latent, generator=rng, device=rng.device)
        return self._next(state, agents.act(state.unsqueeze(1)).squeeze(1))

    def _next(self, state: Tensor, action: Tensor) -> Tensor:
        """Return s', (..., latent)."""
        return self.alpha * state + (1 - self.alpha) * action

    def _reward(self, of_state: Tensor, of_action: Tensor, labels: Tensor) -> Tensor:
        """Return r, (n,), from the (n, classes) probabilities of both images."""
        mine = labels.unsqueeze(1)
        p_state, p_action = (p.gather(1, mine).squeeze(1) for p in (of_state, of_action))
        lead = p_state - of_state.scatter(1, mine, -math.inf).amax(1)
        weighted = (
            (self.state_weight, p_state),
            (self.action_weight, p_action),
            (self.margin_weight, lead),
        )
        return torch.stack([w * value.clamp(min=FLOOR).log() for w, value in weighted]).sum(0)


def keep_best(best: Tensor, highest: Tensor, z: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images_per_class best of the stored latents and a new one, in descending order.

    Args:
        best: (agents, m, latent) stored latents. highest: (agents, m) their confidences, minus infinity if there is
            none yet. z: (agents, latent). confidence: (agents, 1).
    """
    highest, order = torch.cat([highest, confidence], 1).topk(best.shape[1], 1)
    every = torch.cat([best, z.unsqueeze(1)], 1)
    return every.gather(1, order.unsqueeze(2).expand(-1, -1, every.shape[2])), highest
