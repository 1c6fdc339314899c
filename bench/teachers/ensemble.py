"""Training of an ensemble: all members in parallel, each only on its own part of the private images.

With several ranks (parallel processes), each rank trains a share of the members from the first step to the last. It
draws the batches of all members and uses those of its share, so that every member receives the same batches as in one
process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bench.api import Shards
from bench.data.affine import augmented
from bench.errors import RunFailed
from bench.nets.ensemble import Ensemble, stacked
from bench.ranks import Rank, Ranks
from bench.seeds import derive
from bench.teachers.shared_batches import share
from bench.validate import instance

How = Literal["auto", "stacked", "in turn"]


def fit_ensemble(
    ensemble: Ensemble,
    images: Tensor,
    labels: Tensor,
    parts: Sequence[NDArray[np.int64]],
    shards: Shards,
    *,
    device: torch.device,
    seed: int,
    advance: Callable[[int], object] = lambda _steps: None,
    how: How = "auto",
    ranks: Ranks | None = None,
) -> None:
    """Train every member in place by cross-entropy on its part; they end on `device`, in eval mode, frozen.

    Adam with decoupled weight decay, the rate falling linearly to 0. A step draws the same number of images from each
    part, with replacement, so that parts may differ in size and no member's training depends on another part. A member
    with an empty part is not changed, buffers included. Members with fixed features are solved by ridge regression
    instead.

    Args:
        images: (n, c, h, w) uint8.
        labels: (n,) int64.
        parts: m disjoint arrays of indices into them.
        shards: training settings; its `ridge` is relative to the mean squared length of a part's features.
        how: "stacked" trains equal networks as one (for accelerators), "in turn" evaluates them one after the other;
            "auto" stacks on an accelerator if possible. The result is the same except for rounding and dropout draws.
        ranks: divide the members among these; the result is the same except for rounding, and for random draws inside
            the members. Members with fixed features are solved in this process.

    Raises:
        BenchError: members that cannot be sent to the ranks' processes.
        RunFailed: a loss became NaN or infinite, or a rank was lost.
    """
    if ensemble.fixed_features:
        solve_fixed_features(ensemble.to(device), images, labels, parts, shards.ridge, device)
        advance(shards.steps)
        ensemble.eval().requires_grad_(False)
        return
    if ranks is None:
        given = EnsembleTraining(ensemble, images, labels, parts, shards, seed, how)
        train_share(given, range(len(parts)), device, derive(seed, "members"), advance)
    else:
        given = EnsembleTraining(ensemble.cpu(), images.cpu(), labels.cpu(), parts, shards, seed, how)
        for states in ranks.run(train_members, [given] * ranks.count, advance):
            for j, state in states.items():
                ensemble.members[j].load_state_dict(state)
        ensemble.to(device)
    ensemble.eval().requires_grad_(False)


@dataclass(frozen=True)
class EnsembleTraining:
    """The inputs of `fit_ensemble`, sent to the ranks."""

    ensemble: Ensemble
    images: Tensor
    labels: Tensor
    parts: Sequence[NDArray[np.int64]]
    shards: Shards
    seed: int
    how: How


def train_members(rank: Rank, given: EnsembleTraining) -> dict[int, dict[str, Tensor]]:
    """Train this rank's share of the members; return {member number: state on the CPU}."""
    own = share(len(given.parts), rank.index, rank.count)
    seed = derive(given.seed, "members", rank.index) if rank.index else derive(given.seed, "members")
    train_share(given, own, rank.device, seed, rank.advance)
    return {j: {name: value.cpu() for name, value in given.ensemble.members[j].state_dict().items()} for j in own}


def train_share(
    given: EnsembleTraining, own: range, device: torch.device, seed: int, advance: Callable[[int], object]
) -> None:
    """Train the members with numbers `own` in place, on `device`; `seed` is for random draws inside the members."""
    draw = MemberBatches(given.images, given.labels, given.parts, given.shards, given.seed, device, own)
    given.ensemble.to(device).train()
    members = [given.ensemble.members[j] for j in own]
    if not draw.sizes.any():  # no members in this share, or none with records
        return
    stack = given.how == "stacked" or (given.how == "auto" and device.type != "cpu" and given.ensemble.is_stackable())
    train = train_stacked if stack else train_in_turn
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        train(members, draw, given.shards, advance)


def solve_fixed_features(
    ensemble: Ensemble,
    images: Tensor,
    labels: Tensor,
    parts: Sequence[NDArray[np.int64]],
    ridge: float,
    device: torch.device,
) -> None:
    """Solve every member's linear layer in closed form: least squares to one-hot labels with penalty `ridge`.

    The features of each part are computed separately, so that a record affects no other teacher, even if a kernel's
    rounding depends on the batch size.
    """
    with torch.no_grad():
        for member, part in zip(ensemble.members, parts, strict=True):
            if len(part) == 0:
                continue
            rows = torch.from_numpy(np.asarray(part, dtype=np.int64)).to(images.device)
            features = torch.cat([ensemble.features(x.to(device).float() / 255) for x in images[rows].split(500)])
            targets = F.one_hot(labels[rows], ensemble.classes).to(device, features.dtype) - 1 / ensemble.classes
            head = instance(member.get_submodule("body.head"), nn.Linear, "head of a member")
            head.weight.copy_(ridge_regression(features, targets, ridge).T)
            head.bias.fill_(1 / ensemble.classes)


def ridge_regression(a: Tensor, y: Tensor, ridge: float) -> Tensor:
    """Return the (d, c) minimiser of |a w - y|^2 + ridge * mean(|a_i|^2) |w|^2, solved on the smaller side."""
    penalty = ridge * a.square().sum(1).mean()
    if len(a) <= a.shape[1]:
        gram = a @ a.T
        gram.diagonal().add_(penalty)
        return a.T @ torch.linalg.solve(gram, y)
    gram = a.T @ a
    gram.diagonal().add_(penalty)
    return torch.linalg.solve(gram, a.T @ y)


class MemberBatches:
    """Draws (m, batch) images with labels for each step, and computes the members' loss, without those of empty parts.

    Batches are drawn for all members, and returned for the m members with numbers `own`.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        parts: Sequence[NDArray[np.int64]],
        shards: Shards,
        seed: int,
        device: torch.device,
        own: range,
    ) -> None:
        self.images, self.labels, self.device, self.own = images, labels, device, own
        self.batch, self.shift = shards.batch, shards.shift
        self.every = torch.tensor([len(part) for part in parts])
        self.sizes = self.every[own.start : own.stop]
        self.order = torch.cat([torch.from_numpy(np.asarray(part, dtype=np.int64)) for part in parts])
        self.starts = self.every.cumsum(0) - self.every
        self.weight = (self.sizes > 0).float().to(device)
        self.rng = torch.Generator().manual_seed(derive(seed, "batches"))

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return (m, batch, c, h, w) float32 images in [0, 1] and (m, batch) int64 labels."""
        m, here = len(self.every), slice(self.own.start, self.own.stop)
        uniform = torch.rand(m, self.batch, generator=self.rng, dtype=torch.float64)
        within = (uniform * self.every[:, None]).long().clamp_max((self.every - 1).clamp_min(0)[:, None])
        chosen = self.order[(self.starts[:, None] + within).clamp_max(len(self.order) - 1).flatten()]
        x = augmented(self.images[chosen].to(self.device), self.shift, False, self.rng).float() / 255
        y = self.labels[chosen].to(self.device)
        x, y = (each.unflatten(0, (m, self.batch))[here] for each in (x, y))
        # An empty part has no records; its member's buffers (BatchNorm) must not see another part's either.
        has_records = self.weight > 0
        return torch.where(has_records[:, None, None, None, None], x, 0.0), torch.where(has_records[:, None], y, 0)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the members' mean cross-entropies, so that their gradients are independent."""
        each = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="none").view_as(y).mean(1)
        return (each * self.weight).sum()


def make_optimizer(
    parameters: Sequence[Tensor], shards: Shards
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return AdamW and its schedule, which falls linearly to 0."""
    optimizer = torch.optim.AdamW(parameters, lr=shards.lr, weight_decay=shards.weight_decay)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / shards.steps)


def train_in_turn(
    members: Sequence[nn.Module],
    draw: MemberBatches,
    shards: Shards,
    advance: Callable[[int], object],
) -> None:
    """Train all members by one optimiser; in each step the members are evaluated one after the other."""
    parameters = [
        p for member, size in zip(members, draw.sizes.tolist(), strict=True) if size for p in member.parameters()
    ]
    optimizer, schedule = make_optimizer(parameters, shards)
    empty = [member for member, size in zip(members, draw.sizes.tolist(), strict=True) if not size]
    before = [{name: value.clone() for name, value in member.state_dict().items()} for member in empty]
    for _ in range(shards.steps):
        x, y = draw()
        loss = draw.loss(torch.stack([member(part) for member, part in zip(members, x, strict=True)]), y)
        optimizer_step(loss, optimizer, schedule)
        advance(1)
    for member, state in zip(empty, before, strict=True):
        member.load_state_dict(state)
    require_finite(parameters)


def train_stacked(
    members: Sequence[nn.Module],
    draw: MemberBatches,
    shards: Shards,
    advance: Callable[[int], object],
) -> None:
    """Train members of one architecture as one network with stacked parameters."""
    parameters, buffers, call = stacked(members)
    optimizer, schedule = make_optimizer(list(parameters.values()), shards)
    for _ in range(shards.steps):
        x, y = draw()
        optimizer_step(draw.loss(call(parameters, buffers, x), y), optimizer, schedule)
        advance(1)
    require_finite(list(parameters.values()))
    with torch.no_grad():
        for j, size in enumerate(draw.sizes.tolist()):
            if size:
                own = {name: stack[j] for name, stack in (parameters | buffers).items()}
                members[j].load_state_dict(own)


def optimizer_step(
    loss: Tensor, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler
) -> None:
    """Take one step of the optimiser and of its schedule on a scalar loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()


def require_finite(parameters: Sequence[Tensor]) -> None:
    """Raise RunFailed if a parameter is NaN or infinite."""
    if not all(bool(p.isfinite().all()) for p in parameters):
        raise RunFailed("training the ensemble diverged: weights are no longer finite; lower its learning rate")
