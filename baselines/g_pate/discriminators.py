"""The teachers of `g_pate`: N discriminators side by side, each with weights and an Adam of its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bench.gan.training import TeacherBatches

BLOCK = 250
"""Teachers that are trained and asked together, which bounds the memory."""


class Discriminators:
    """N networks D_i(x, y) of one kind; nothing is shared, and nothing of one ever depends on another's records.

    Args:
        networks: fresh ones of equal architecture, without buffers, (n, c, h, w) and (n, classes) to (n,) logits.
        rate, beta: of every Adam: learning rate and beta_1.
    """

    def __init__(self, networks: list[nn.Module], rate: float, beta: float) -> None:
        self.base, self.count = networks[0], len(networks)
        self.blocks = [_stacked(networks[at : at + BLOCK]) for at in range(0, self.count, BLOCK)]
        self.optimisers = [torch.optim.Adam(block.values(), lr=rate, betas=(beta, 0.999)) for block in self.blocks]

    def learn(self, batches: TeacherBatches, chosen: Tensor, u: Tensor, y: Tensor) -> None:
        """One step of every teacher on mean BCE(D_i(x), 1) + mean BCE(D_i(u), 0).

        Args:
            chosen: (N, m) the real records of each teacher, from `TeacherBatches.draw`; those of empty parts are not
                looked at.
            u: (n, c, h, w) generated images, the same for all.
            y: (n, classes) their labels.
        """
        for at, rows in self._rows():
            x, labels = batches.records(chosen[rows])
            held = batches.sizes[rows] > 0
            x, labels = (torch.where(held.view(-1, *[1] * (seen.ndim - 1)), seen, 0.0) for seen in (x, labels))
            real = torch.where(held, F.softplus(-self._ask(at, x, labels, 0)).mean(1), 0.0)
            fake = F.softplus(self._ask(at, u, y, None)).mean(1)
            self.optimisers[at].zero_grad(set_to_none=True)
            (real + fake).sum().backward()
            self.optimisers[at].step()

    def directions(self, u: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Blocks of (N', n, c, h, w): minus the gradient in u of each teacher's L_G = mean BCE(D_i(u, y), 1)."""
        for at, rows in self._rows():
            count = rows.stop - rows.start
            images = u.detach().expand(count, *u.shape).clone().requires_grad_()
            loss = F.softplus(-self._ask(at, images, y.expand(count, *y.shape), 0)).mean(1).sum()
            yield -torch.autograd.grad(loss, images)[0]

    def _rows(self) -> Iterator[tuple[int, slice]]:
        for at in range(len(self.blocks)):
            yield at, slice(at * BLOCK, min((at + 1) * BLOCK, self.count))

    def _ask(self, at: int, x: Tensor, y: Tensor, teachers: int | None) -> Tensor:
        """(N', n) logits of a block; `teachers` is the dimension of the images that counts teachers, None = shared."""

        def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional_call(self.base, weights, (x, y))

        return vmap(one, in_dims=(0, teachers, teachers))(self.blocks[at], x, y)


def _stacked(networks: list[nn.Module]) -> dict[str, Tensor]:
    names = [name for name, _ in networks[0].named_parameters()]
    return {
        name: torch.stack([network.get_parameter(name).detach() for network in networks]).requires_grad_()
        for name in names
    }
