"""How the network in training is asked and moved: by this process alone, or by ranks that share every batch out.

Over ranks the leader draws the batches, computes the loss of all answers, and steps; every rank carries out the network
on its share, forwards and backwards, and the gradients of all are added. Batch normalisation sees the whole batch
(`WholeBatchStatistics`), so that all is as in one process but for rounding, and for what the network itself draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from bench.errors import Incompatible
from bench.ranks import Link, Ranks, WholeBatchStatistics, flat, shares, unflat
from bench.seeds import derive

ASK, MOVE = "ask", "move"
"""Answer a share of a batch; turn the answers' gradients into those of the weights."""


class Asked(Protocol):
    """A network in training."""

    def __call__(self, images: Tensor) -> Tensor:
        """(n, c, h, w) float32 in [0, 1] to (n, classes) float32 logits."""
        ...

    def backward(self, loss: Tensor) -> None:
        """The gradient of a loss of logits that were asked for, in the weights' `grad`."""
        ...

    def close(self) -> None:
        """The training is over."""
        ...


class Alone:
    """By this process.

    Args:
        autocast: compute in bfloat16 where torch considers it safe.
    """

    def __init__(self, model: nn.Module, device: torch.device, autocast: bool) -> None:
        self.model, self.device, self.autocast = model, device, autocast

    def __call__(self, images: Tensor) -> Tensor:
        """As `Asked`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return self.model(images).float()

    def backward(self, loss: Tensor) -> None:
        """As `Asked`."""
        loss.backward()

    def close(self) -> None:
        """Nothing was begun."""


class Shared:
    """By all ranks; the model is the leader's.

    Args:
        seed: of what the network draws itself; the leader's is set by the caller.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, seed: int, autocast: bool) -> None:
        self.own, self.ranks = Alone(model, ranks.devices[0], autocast), ranks
        self.weights = _trained(model)
        self.answers: list[tuple[Tensor, Tensor]] = []
        """Of each time that the network was asked: the leader's logits with their graph, and all logits without."""
        self.sizes: list[list[int]] = []
        ranks.serve(serve_network, model, seed, autocast)

    def __call__(self, images: Tensor) -> Tensor:
        """As `Asked`. Raises BenchError for images that a gradient is wanted of: that would end at other ranks."""
        if images.requires_grad:
            raise Incompatible(
                f"--devices {self.ranks.count}: the teacher's recipe asks for gradients of images; use one"
            )
        sizes = shares(len(images), self.ranks.count)
        helpers = [rank for rank, size in enumerate(sizes) if rank and size]
        first, parts = not self.answers, images.split(sizes)
        if first:
            self.ranks.order("weights")
            self.ranks.broadcast(flat(self.weights))
        self.ranks.order(ASK, helpers)
        for rank in helpers:
            self.ranks.give(rank, [parts[rank]])
        with self.ranks.watched(), whole_batch(bool(helpers)):
            mine = self.own(parts[0])
        theirs = [self.ranks.take(rank)[0] for rank in helpers]
        every = torch.cat([mine.detach(), *theirs]).requires_grad_()
        self.answers.append((mine, every))
        self.sizes.append(sizes)
        return every

    def backward(self, loss: Tensor) -> None:
        """As `Asked`: to the logits here, from there to the weights on every rank."""
        loss.backward()
        wanted = [
            (torch.zeros_like(every) if every.grad is None else every.grad).split(sizes)
            for (_, every), sizes in zip(self.answers, self.sizes, strict=True)
        ]
        self.ranks.order(MOVE)
        for rank in range(1, self.ranks.count):
            self.ranks.give(rank, [parts[rank] for parts in wanted if len(parts[rank])])
        with self.ranks.watched():
            torch.autograd.backward([mine for mine, _ in self.answers], [parts[0] for parts in wanted])
        total = _gradient(self.weights)
        self.ranks.gather_sum(total)
        for weight, found in zip(self.weights, unflat(total, self.weights), strict=True):
            weight.grad = found
        self.answers, self.sizes = [], []

    def close(self) -> None:
        """The helpers are free for the next training."""
        self.ranks.dismiss()


def serve_network(link: Link, model: nn.Module, seed: int, autocast: bool) -> None:
    """A helper's side."""
    asked, weights = Alone(model.to(link.device).train(), link.device, autocast), _trained(model)
    torch.manual_seed(derive(seed, "rank", link.rank))  # its dropout must not be the leader's
    numbers, answers = flat(weights), list[Tensor]()
    for order in link.orders():
        if order == ASK:
            with whole_batch(True):
                answers.append(asked(link.take()[0]))
            link.give([answers[-1].detach()])
        elif order == MOVE:
            gradients = link.take()
            if answers:
                torch.autograd.backward(answers, gradients)
            link.add(_gradient(weights))
            answers = []
        else:
            link.copy(numbers)
            with torch.no_grad():
                for weight, given in zip(weights, unflat(numbers, weights), strict=True):
                    weight.copy_(given)
                    weight.grad = None


def whole_batch(shared: bool) -> AbstractContextManager[object]:
    """Where a batch is shared out, its batch normalisation is of all of it."""
    return WholeBatchStatistics() if shared else nullcontext()


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _gradient(weights: Sequence[nn.Parameter]) -> Tensor:
    """Of all weights, one after the other; 0 of those that nothing was asked of."""
    return flat([torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights])
