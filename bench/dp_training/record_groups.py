"""Groups of private records, such as all records of a patient: the unit of group privacy.

Neighbouring data sets differ in all records of one group. The number of groups is public; an absent group keeps its
positions, as an absent record does for unit example. Of a group with more records than a public bound, those that come
first in a public random order of all positions are used in every step. The others are not used at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.api import Teacher
from bench.errors import BadData, BadOption
from bench.privacy import Budget, Unit

SEED = 2020
"""Seed of the public order of records."""


@dataclass(frozen=True)
class RecordGroups:
    """The records of each group that a private training uses.

    Attributes:
        records: (m,) int64 indices of the used records, group by group.
        sizes: (groups,) int64, number of used records of each group, at least 1.
        largest: bound on `sizes`, a public setting.
    """

    records: Tensor
    sizes: Tensor
    largest: int

    @classmethod
    def of(cls, groups: Tensor, largest: int) -> RecordGroups:
        """Choose at most `largest` records of each group.

        Args:
            groups: (n,) int64, number of the group of each record.

        >>> found = RecordGroups.of(torch.tensor([7, 3, 7, 7]), 2)
        >>> found.sizes.tolist(), found.records[0].item(), set(found.records[1:].tolist()) < {0, 2, 3}
        ([1, 2], 1, True)
        """
        order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(SEED))
        _, numbers, counts = groups[order].unique(return_inverse=True, return_counts=True)
        by_group = numbers.argsort(stable=True)
        rank = torch.arange(len(groups)) - (counts.cumsum(0) - counts)[numbers[by_group]]
        return cls(order[by_group][rank < largest], counts.clamp(max=largest), largest)

    def __len__(self) -> int:
        return len(self.sizes)

    def records_of(self, chosen: Tensor) -> Tensor:
        """Return the records of the groups (g,) int64 `chosen`, group by group."""
        sizes, starts = self.sizes[chosen], (self.sizes.cumsum(0) - self.sizes)[chosen]
        first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        within = torch.arange(len(first), device=sizes.device) - first
        return self.records[starts.repeat_interleave(sizes) + within]

    def to(self, device: torch.device) -> RecordGroups:
        """Return the same groups on another device."""
        return RecordGroups(self.records.to(device), self.sizes.to(device), self.largest)


def groups_of(teacher: Teacher, budget: Budget, largest: int) -> RecordGroups | None:
    """Return the groups of the private records for a budget of unit group; None for any other unit.

    Raises:
        BadData: the groups are unknown.
    """
    if budget.unit != Unit.GROUP:
        return None
    if teacher.groups is None:
        raise BadData(f"--unit group: data set '{teacher.dataset}' does not say which group a record belongs to")
    return RecordGroups.of(teacher.groups.cpu(), largest)


def refuse_unread_bound(given: int, usual: int, budget: Budget) -> None:
    """Refuse a bound on a group's records, `max_per_group`, that a budget of another unit does not read.

    Raises:
        BadOption: the bound is not the usual one, and the unit is not group.
    """
    if budget.unit != Unit.GROUP and given != usual:
        raise BadOption(
            f"--method.max_per_group {given} is read with --unit group only, and the unit is {budget.unit}; leave it "
            "out, or give --unit group"
        )


def group_means(rows: Mapping[str, Tensor], sizes: Tensor) -> dict[str, Tensor]:
    """Average the rows of each group, one record of every group at a time.

    The order of the additions is fixed, and a group's mean depends on its own rows only, also if others are NaN.

    Args:
        rows: {name: (m, *shape)}, group by group.
        sizes: (g,) int64 with sum m.

    Returns:
        {name: (g, *shape)}.
    """
    starts, found = sizes.cumsum(0) - sizes, {}
    places = [(sizes > place).nonzero().flatten() for place in range(1, int(sizes.max()) if len(sizes) else 0)]
    for name, row in rows.items():
        total = row[starts]
        for place, longer in enumerate(places, start=1):
            total[longer] += row[starts[longer] + place]
        found[name] = total / sizes.view(-1, *[1] * (row.ndim - 1))
    return found
