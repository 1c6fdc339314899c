"""The teachers of `g_pate`: N independent discriminators, each with its weights and optimiser, evaluated in batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bench.gan.training import TeacherBatches

BLOCK = 250
"""Number of teachers that are trained and queried together; it bounds the memory."""


class Discriminators:
    """N networks D_i(x, y) of one architecture without shared weights; none depends on another's records.

    Args:
        networks: new networks without buffers that map (n, c, h, w) and (n, classes) to (n,) logits.
        rate, beta: learning rate and beta_1 of every Adam optimiser.
    """

    def __init__(self, networks: list[nn.Module], rate: float, beta: float) -> None:
        self.base, self.count = networks[0], len(networks)
        self.blocks = [_stacked(networks[at : at + BLOCK]) for at in range(0, self.count, BLOCK)]
        self.optimisers = [torch.optim.Adam(block.values(), lr=rate, betas=(beta, 0.999)) for block in self.blocks]

    def learn(self, batches: TeacherBatches, chosen: Tensor, u: Tensor, y: Tensor) -> None:
        """Take one step of every teacher on mean BCE(D_i(x), 1) + mean BCE(D_i(u), 0).

        Args:
            batches: the private records by teacher.
            chosen: (N, m) the real records of each teacher, from `TeacherBatches.draw`; ignored for empty parts.
            u: (n, c, h, w) generated images, the same for all teachers.
            y: (n, classes) their one-hot labels.
        """
        for at, rows in self._blocks():
            x, labels = batches.records(chosen[rows])
            has_records = batches.sizes[rows] > 0
            x, labels = (torch.where(has_records.view(-1, *[1] * (t.ndim - 1)), t, 0.0) for t in (x, labels))
            real = torch.where(has_records, F.softplus(-self._logits(at, x, labels, 0)).mean(1), 0.0)
            fake = F.softplus(self._logits(at, u, y, None)).mean(1)
            self.optimisers[at].zero_grad(set_to_none=True)
            (real + fake).sum().backward()
            self.optimisers[at].step()

    def directions(self, u: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Yield blocks (N', n, c, h, w) of minus the gradient in u of each teacher's L_G = mean BCE(D_i(u, y), 1)."""
        for at, rows in self._blocks():
            count = rows.stop - rows.start
            images = u.detach().expand(count, *u.shape).clone().requires_grad_()
            loss = F.softplus(-self._logits(at, images, y.expand(count, *y.shape), 0)).mean(1).sum()
            yield -torch.autograd.grad(loss, images)[0]

    def _blocks(self) -> Iterator[tuple[int, slice]]:
        """Yield the index of each block and the slice of its teachers."""
        for at in range(len(self.blocks)):
            yield at, slice(at * BLOCK, min((at + 1) * BLOCK, self.count))

    def _logits(self, at: int, x: Tensor, y: Tensor, teachers: int | None) -> Tensor:
        """Compute (N', n) logits of a block.

        Args:
            at: index of the block.
            x, y: images and one-hot labels.
            teachers: dimension of x and y that counts teachers; None = all teachers get the same x and y.
        """

        def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional_call(self.base, weights, (x, y))

        return vmap(one, in_dims=(0, teachers, teachers))(self.blocks[at], x, y)


def _stacked(networks: list[nn.Module]) -> dict[str, Tensor]:
    names = [name for name, _ in networks[0].named_parameters()]
    return {
        name: torch.stack([network.get_parameter(name).detach() for network in networks]).requires_grad_()
        for name in names
    }
