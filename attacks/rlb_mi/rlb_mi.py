"""RLB-MI: an agent learns by reinforcement which latents of a GAN the target is confident of.

Han, Choi, Lee, Kim, "Reinforcement Learning-Based Black-Box Model Inversion Attacks", CVPR 2023 (arXiv 2304.04625).
G generator, y the class aimed at, p(x) the target's probabilities of image x, s a state, a an action, alpha a share.

0. Train G on the attacker's images (`bench/gan/gan_prior.py`). One soft actor-critic for each class.
1. An episode starts at s ~ N(0, I). In each of its steps a ~ pi(s) in (-1, 1)^k, s' = alpha s + (1 - alpha) a, and
   r = w1 log p_y(G(s')) + w2 log p_y(G(a)) + w3 log max(1e-7, p_y(G(s')) - max_(j != y) p_j(G(s'))).
2. Keep the transition (s, a, r, s'), and make one update of the agent from 256 kept ones.
3. After the episode draw a fresh s ~ N(0, I), let the agent act from it once, and ask for p_y of the image of s'. The
   image with the largest p_y of all episodes is the result.

With alpha = 0 and one step per episode, the authors' commands, s' = a: both images are the same (they are asked about
once and counted once), no state follows, and the task is a bandit, to which the discount and the slow critics add
nothing.

Queries: 2 per episode and agent at these settings (one step and the test), else 2 per step and 1 for the test; with
alpha 0 the action is the state, and 1 per step.

Differs from the paper:
- Noise is drawn for every dimension of every action. The authors' code draws one number for all dimensions, and for the
  whole batch in an update, so the policy explores a line.
- log pi is the mean over dimensions, as in the authors' code, but the target entropy is too: -1, not -100, which no
  mean can reach.
- The policy's loss has the smaller of both critics, as in soft actor-critic.
- All logarithms have the floor 1e-7, so that a probability that rounds to 0 gives a finite reward.
- Several draws, each with an agent of its own for each class, and from each agent the `images_per_class` best test
  images of different episodes; the paper's own is one of each. A settled agent's images differ little.
- Agents of all classes and draws learn side by side, with networks and memories of their own.
- G is the plain GAN shared by the attacks here; it is in evaluation mode.
- Variant `working` trains G and the agents by larger steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attacks.rlb_mi.soft_actor_critic import Agents, Replay
from bench.api import Access, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
from bench.validate import at_least, at_most, below, between, inside, positive

FLOOR = 1e-7
"""The least argument of a logarithm in the reward."""
PART = 1000
"""Images put through the networks at once."""

Ask = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RlbMi(GanPrior):
    """Black-box inversion by reinforcement learning; the defaults are the authors'."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Han et al., CVPR 2023, arXiv 2304.04625"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "scores"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
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
            what="the agents learn by larger steps, 1e-2 for 5e-4",
            why="tier quick has 300 episodes for the authors' 40,000",
            sets={"sac_lr": 1e-2},
        ),
    )

    episodes: Size[int] = 40_000
    """Episodes of each agent."""
    episode_steps: int = 1
    """Steps of an episode."""
    alpha: float = 0.0
    """alpha, the share of the old state in the new one."""
    state_weight: float = 2.0
    """w1, the weight of the confidence in the image of the new state."""
    action_weight: float = 2.0
    """w2, the weight of the confidence in the image of the action."""
    margin_weight: float = 8.0
    """w3, the weight of the lead over the next class."""
    hidden: Size[int] = 256
    """Width of the two hidden layers of policies and critics."""
    sac_lr: float = 5e-4
    """Adam's step size of policies, critics and temperature."""
    sac_batch: Size[int] = 256
    """Transitions in an update; learning starts when so many are kept."""
    discount: float = 0.99
    """Discount of the value of the next state."""
    tau: float = 0.01
    """Share by which the slow critics follow in each update."""
    entropy: float = -1.0
    """Target entropy of the policy per dimension."""
    memory: Size[int] = 1_000_000
    """Transitions kept of each agent, the last ones."""
    draws: Size[int] = 5
    """Agents for each class, from seeds of their own (the paper's own: 1)."""
    images_per_class: Size[int] = 20
    """Test images brought back from each agent, the best ones (the paper's own: 1)."""

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
        """Bring back `draws` x `images_per_class` images of every class."""
        generator, _ = self.gan(aux, ctx)

        @torch.no_grad()
        def ask(z: Tensor) -> Tensor:
            with ctx.precision():
                return torch.cat([target.scores(generator(part)).float() for part in z.split(PART)])

        labels = torch.arange(target.classes, device=ctx.device).repeat(self.draws)
        z = self._search(labels, ask, ctx).flatten(0, 1)
        with torch.no_grad():
            images = torch.cat([generator(part) for part in z.split(PART)])
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(target.classes * self.images_per_class)
        return AttackResult(images, labels.repeat_interleave(self.images_per_class), draws)

    def _search(self, labels: Tensor, ask: Ask, ctx: Context) -> Tensor:
        """(agents, images_per_class, latent): of each agent, aimed at the class in (agents,), the best latents."""
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
                self._episode(agents, replay, labels, ask, rng)
                z = self._test(agents, count, rng)
                confidence = ask(z).gather(1, labels.unsqueeze(1))
                best, highest = keep_best(best, highest, z, confidence)
                advance(1)
        return best

    def _episode(self, agents: Agents, replay: Replay, labels: Tensor, ask: Ask, rng: torch.Generator) -> None:
        """Steps 1 and 2 of one episode of all agents."""
        state = torch.randn(len(labels), self.latent, generator=rng, device=rng.device)
        for step in range(self.episode_steps):
            action = agents.act(state.unsqueeze(1)).squeeze(1)
            following = self._next(state, action)
            of_state = ask(following)
            of_action = of_state if self.alpha == 0 else ask(action)
            replay.add(state, action, self._reward(of_state, of_action, labels), step + 1 < self.episode_steps)
            state = following
            if len(replay) >= self.sac_batch:
                self._learn(agents, replay, rng)

    def _learn(self, agents: Agents, replay: Replay, rng: torch.Generator) -> None:
        states, actions, rewards, goes_on = replay.draw(self.sac_batch, rng)
        following = (self._next(states, actions), goes_on) if self.episode_steps > 1 else None
        agents.learn(states, actions, rewards, following)

    def _test(self, agents: Agents, count: int, rng: torch.Generator) -> Tensor:
        """(agents, latent): the latents of step 3."""
        state = torch.randn(count, self.latent, generator=rng, device=rng.device)
        return self._next(state, agents.act(state.unsqueeze(1)).squeeze(1))

    def _next(self, state: Tensor, action: Tensor) -> Tensor:
        """s', (..., latent)."""
        return self.alpha * state + (1 - self.alpha) * action

    def _reward(self, of_state: Tensor, of_action: Tensor, labels: Tensor) -> Tensor:
        """(n,) r, from the probabilities (n, classes) of both images."""
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
    """The images_per_class best of those kept and a new one, the best first.

    Args:
        best: (agents, m, latent) kept latents. highest: (agents, m) their confidences, minus infinity where there is
            none yet. z: (agents, latent). confidence: (agents, 1).
    """
    highest, order = torch.cat([highest, confidence], 1).topk(best.shape[1], 1)
    every = torch.cat([best, z.unsqueeze(1)], 1)
    return every.gather(1, order.unsqueeze(2).expand(-1, -1, every.shape[2])), highest
