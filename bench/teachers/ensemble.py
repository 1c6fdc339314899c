"""Train the members of an ensemble side by side, each on its own part of the private images and on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bench.api import Shards
from bench.errors import RunFailed
from bench.nets.ensemble import Ensemble, stacked
from bench.seeds import derive
from bench.teachers.augmentation import augmented

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
) -> None:
    """Train every member in place by cross-entropy on its part; they end on `device`, in eval mode, frozen.

    Adam with decoupled weight decay, the rate falling linearly to 0. A step draws as many images of each part, with
    replacement, so that parts may differ in size and no member's training depends on another one's part. A member whose
    part is empty stays as it was, buffers included. Members with fixed features are solved by ridge regression instead.

    Args:
        images: (n, c, h, w) uint8.
        labels: (n,) int64.
        parts: m arrays of indices into them, disjoint.
        shards: how to train them; its `ridge` counts over the mean squared length of a part's features.
        how: "stacked" trains equal networks as one (for accelerators), "in turn" lets them answer one after the other;
            "auto" stacks on an accelerator where it can. Same result but for rounding, and dropout draws.

    Raises:
        RunFailed: a loss became NaN or infinite.
    """
    if ensemble.fixed_features:
        _solve(ensemble.to(device), images, labels, parts, shards.ridge, device)
        advance(shards.steps)
        ensemble.eval().requires_grad_(False)
        return
    ensemble.to(device).train()
    members = [member for member in ensemble.members]
    stack = how == "stacked" or (how == "auto" and device.type != "cpu" and ensemble.is_stackable())
    draw = _Batches(images, labels, parts, shards, seed, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, "members"))
        train = _train_stacked if stack else _train_in_turn
        train(members, draw, shards, advance)
    ensemble.eval().requires_grad_(False)


def _solve(
    ensemble: Ensemble,
    images: Tensor,
    labels: Tensor,
    parts: Sequence[NDArray[np.int64]],
    ridge: float,
    device: torch.device,
) -> None:
    """Every member's linear layer: least squares to one-hot labels with penalty `ridge`, in closed form."""
    with torch.no_grad():
        seen = torch.cat([ensemble.features(part.to(device).float() / 255) for part in images.split(500)])
        wanted = F.one_hot(labels, ensemble.classes).to(device, seen.dtype) - 1 / ensemble.classes
        for member, part in zip(ensemble.members, parts, strict=True):
            if len(part) == 0:
                continue
            here = torch.from_numpy(np.asarray(part, dtype=np.int64)).to(device)
            head = member.get_submodule("body.head")
            assert isinstance(head, nn.Linear)
            head.weight.copy_(_ridge(seen[here], wanted[here], ridge).T)
            head.bias.fill_(1 / ensemble.classes)


def _ridge(a: Tensor, y: Tensor, ridge: float) -> Tensor:
    """(d, c) minimiser of |a w - y|^2 + ridge * mean(|a_i|^2) |w|^2, solved on the smaller side."""
    penalty = ridge * a.square().sum(1).mean()
    if len(a) <= a.shape[1]:
        gram = a @ a.T
        gram.diagonal().add_(penalty)
        return a.T @ torch.linalg.solve(gram, y)
    gram = a.T @ a
    gram.diagonal().add_(penalty)
    return torch.linalg.solve(gram, a.T @ y)


class _Batches:
    """Step by step (m, batch) images with labels, and the members' weights in the loss: 0 for an empty part."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        parts: Sequence[NDArray[np.int64]],
        shards: Shards,
        seed: int,
        device: torch.device,
    ) -> None:
        self.images, self.labels, self.device = images, labels, device
        self.batch, self.shift = shards.batch, shards.shift
        self.sizes = torch.tensor([len(part) for part in parts])
        self.order = torch.cat([torch.from_numpy(np.asarray(part, dtype=np.int64)) for part in parts])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.weight = (self.sizes > 0).float().to(device)
        self.rng = torch.Generator().manual_seed(derive(seed, "batches"))

    def __call__(self) -> tuple[Tensor, Tensor]:
        """(m, batch, c, h, w) float32 in [0, 1] and (m, batch) int64."""
        m = len(self.sizes)
        uniform = torch.rand(m, self.batch, generator=self.rng, dtype=torch.float64)
        within = (uniform * self.sizes[:, None]).long().clamp_max((self.sizes - 1).clamp_min(0)[:, None])
        chosen = self.order[(self.starts[:, None] + within).clamp_max(len(self.order) - 1).flatten()]
        x = augmented(self.images[chosen].to(self.device), self.shift, False, self.rng).float() / 255
        x, y = x.unflatten(0, (m, self.batch)), self.labels[chosen].to(self.device).unflatten(0, (m, self.batch))
        # An empty part has no records, nor may its member's buffers (BatchNorm) see those of another one.
        held = self.weight > 0
        return torch.where(held[:, None, None, None, None], x, 0.0), torch.where(held[:, None], y, 0)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Sum over members of the mean cross-entropy of each, so that no member's gradient knows of another's."""
        each = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="none").view_as(y).mean(1)
        return (each * self.weight).sum()


def _optimizer(
    parameters: Sequence[Tensor], shards: Shards
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(parameters, lr=shards.lr, weight_decay=shards.weight_decay)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / shards.steps)


def _train_in_turn(
    members: Sequence[nn.Module],
    draw: _Batches,
    shards: Shards,
    advance: Callable[[int], object],
) -> None:
    parameters = [
        p for member, size in zip(members, draw.sizes.tolist(), strict=True) if size for p in member.parameters()
    ]
    optimizer, schedule = _optimizer(parameters, shards)
    empty = [member for member, size in zip(members, draw.sizes.tolist(), strict=True) if not size]
    before = [{name: value.clone() for name, value in member.state_dict().items()} for member in empty]
    for _ in range(shards.steps):
        x, y = draw()
        loss = draw.loss(torch.stack([member(part) for member, part in zip(members, x, strict=True)]), y)
        _step(loss, optimizer, schedule)
        advance(1)
    for member, state in zip(empty, before, strict=True):
        member.load_state_dict(state)
    _require_finite(parameters)


def _train_stacked(
    members: Sequence[nn.Module],
    draw: _Batches,
    shards: Shards,
    advance: Callable[[int], object],
) -> None:
    parameters, buffers, call = stacked(members)
    optimizer, schedule = _optimizer(list(parameters.values()), shards)
    for _ in range(shards.steps):
        x, y = draw()
        _step(draw.loss(call(parameters, buffers, x), y), optimizer, schedule)
        advance(1)
    _require_finite(list(parameters.values()))
    with torch.no_grad():
        for j, size in enumerate(draw.sizes.tolist()):
            if size:
                own = {name: stack[j] for name, stack in (parameters | buffers).items()}
                members[j].load_state_dict(own)


def _step(loss: Tensor, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()


def _require_finite(parameters: Sequence[Tensor]) -> None:
    if not all(bool(p.isfinite().all()) for p in parameters):
        raise RunFailed("training the ensemble diverged: weights are no longer finite; lower its learning rate")
