"""Clipping of a linear layer's gradient over all records of a group, without forming any group's gradient.

The terms of a group's gradient are t_i u_i^T, with u_i the row of record i and t_i a vector of as many numbers as there
are classes. Its squared norm is

    |sum_i t_i u_i^T|^2 = sum_ij <t_i, t_j> <u_i, u_j>,

where i and j are records of the group. The products <u_i, u_j> are computed once, as rows do not change.

Sensitivity. Let each |t_i u_i^T| be at most C. All terms of a group are scaled by min(1, C / norm of their sum), a
number of this group only, so that the sum over all groups changes by a norm of at most C if a group is removed.

Precision. The norm is computed in float64 from the float32 rows and terms: of at most 256 records, each of a norm of at
most C, its square has an error of at most 2^16 C^2 2^-50. Sums of terms are formed in float32 over chunks of at most
256 records. A chunk contains whole groups, so that a removed group changes one chunk, and each of its terms is at most
C: the allowance of `linear_head` for two such sums is that for single records. Without whole groups in a chunk, or with
longer terms that cancel one another, it would not be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.dp_training.clipping import MOST_CHUNK


@dataclass(frozen=True)
class GroupProducts:
    """Products between the rows of each group's records.

    Attributes:
        count: number of groups.
        chunks: numbers of records of the chunks, each of at most 256 and of whole groups.
        products: a matrix (m, m) float64 for each chunk of m records: <u_i, u_j> if i and j are in one group, else 0.
        members: (m,) int64 for each chunk, the position of each record's group in the chunk.
    """

    count: int
    chunks: list[int]
    products: list[Tensor]
    members: list[Tensor]

    @classmethod
    def of(cls, rows: Tensor, sizes: Tensor) -> GroupProducts:
        """Compute the products of (n, d) rows, group by group, of `sizes` records each, at most 256."""
        together = whole_groups(sizes.tolist())
        chunks = [sum(each) for each in together]
        products, members = [], []
        for part, each in zip(rows.split(chunks), together, strict=True):
            exact, counts = part.double(), torch.tensor(each, device=rows.device)
            member = torch.arange(len(each), device=rows.device).repeat_interleave(counts)
            products.append((exact @ exact.T).masked_fill(member[:, None] != member, 0.0))
            members.append(member)
        return cls(len(sizes), chunks, products, members)

    def clipped(self, chunk: int, terms: Tensor, bound: float) -> Tensor:
        """Scale the terms of each group so that the norm of its gradient is at most `bound`.

        Args:
            chunk: position of the chunk.
            terms: (m, classes) float32, finite; the rows t_i of the module's text, 0 for an absent record.

        Returns:
            (m, classes) float32.
        """
        exact, member = terms.double(), self.members[chunk]
        squares = ((exact @ exact.T) * self.products[chunk]).sum(1)
        norms = squares.new_zeros(int(member[-1]) + 1).index_add(0, member, squares).clamp_min(0.0).sqrt()
        factor = (bound / norms.clamp_min(1e-30)).clamp(max=1.0)
        return (exact * factor[member][:, None]).to(terms.dtype)


def whole_groups(sizes: list[int]) -> list[list[int]]:
    """Divide groups, in their order, into chunks of at most 256 records; return the sizes in each chunk.

    >>> whole_groups([200, 56, 1, 256])
    [[200, 56], [1], [256]]
    """
    chunks: list[list[int]] = []
    for size in sizes:
        if not chunks or sum(chunks[-1]) + size > MOST_CHUNK:
            chunks.append([])
        chunks[-1].append(size)
    return chunks
