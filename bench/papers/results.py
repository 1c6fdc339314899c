"""Results of ours: rows of boards, as they are compared with published numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from bench import registry
from bench.boards.board_cells import Row, blank, number, options
from bench.boards.flags import UNTRUE
from bench.boards.needs import needs
from bench.boards.release_command import command
from bench.config import STUDENT, TIERS, Variant
from bench.errors import BenchError
from bench.storage.options import GROUPS, Changed


@dataclass(frozen=True)
class Result:
    """One setting of a method with one attack or none, over its seeds.

    Attributes:
        setting: what differs from the defaults, in words; `options` has it as group to option to value.
        claimed, claim_unit: the paper's epsilon for these settings, infinity included, and its unit; None for no claim.
        accounted, unit: of the accountant; None where no run was finished.
        information: upper bound in nats on what all responses carry; None where it is not known.
        accuracy, deviation: mean and standard deviation over seeds, of shares in [0, 1].
        teacher_accuracy: of the undefended teacher.
        seeds: number of finished runs.
        seed_names, runs: the seeds and the hashes of all runs, joined by spaces.
    """

    dataset: str
    tier: str
    split: str
    method: str
    variant: str
    teacher: str
    student: str
    attack: str
    setting: str
    options: Changed
    claimed: float | None
    claim_unit: str
    accounted: float | None
    unit: str
    information: float | None
    accuracy: float | None
    deviation: float | None
    teacher_accuracy: float | None
    seeds: int
    seed_names: str
    runs: str
    flags: frozenset[str]

    @classmethod
    def of(cls, row: Row, dataset: str = "") -> Result:
        """Read a row with a board's columns; empty cells are None, NaN or "". Default data set: its own."""
        text = {name: str(blank(row.get(column))) for name, column in TEXTS.items()}
        numbers = {name: number(row.get(column)) for name, column in NUMBERS.items()}
        flags = frozenset(str(blank(row.get("flags"))).split())
        given = options(str(blank(row.get("options"))))
        seeds = len(text["seed_names"].split()) - int(number(row.get("failed")) or 0)
        text["dataset"] = dataset or text["dataset"]
        return cls(**text, **numbers, options=given, seeds=seeds, flags=flags)  # type: ignore[arg-type]

    @property
    def preference(self) -> tuple[Any, ...]:
        """Of several results of a variant the smallest is compared: largest tier, fewest options, today's version, an
        account that holds, the usual student, most seeds, no attack. Accuracy plays no part."""
        changed = sum(len(self.options[group]) for group in GROUPS if group != "attack")
        return (
            -TIERS.index(self.tier), changed, self.is_older, not self.flags.isdisjoint(UNTRUE),
            self.student != STUDENT, -self.seeds, bool(self.attack), str(self.options), self.runs,
        )  # fmt: skip

    @property
    def is_older(self) -> bool:
        """Whether the method or the attack has changed since."""
        return "older-version" in self.flags

    @property
    def has_no_noise(self) -> bool:
        """Whether it was run with `--epsilon inf`."""
        epsilon = self.options["budget"].get("epsilon")
        return epsilon is not None and math.isinf(float(epsilon))

    @property
    def never_has_noise(self) -> bool:
        """Whether it was run with `--epsilon none` by a method that has no noise for a budget to decide."""
        budget = self.options["budget"]
        return "epsilon" in budget and budget["epsilon"] is None and not noise_options(self.method, self.variant)

    @property
    def needs_teacher(self) -> bool:
        """Whether the method queries the undefended teacher; False for one that is not installed."""
        found = needs(self.method, cast(Variant, self.variant), self.tier, self.options["method"])
        return "teacher" in (found or ())

    def key_without_noise(self, *but: str) -> object:
        """All that the accuracy depends on, except the budget, a noise given instead of one, and the attack.

        Args:
            but: further attributes that are left out.
        """
        noise = noise_options(self.method, self.variant)
        own = {
            group: sorted((name, value) for name, value in held.items() if group != "method" or name not in noise)
            for group, held in self.options.items()
            if group not in ("budget", "attack", "evaluator")
        }
        same = ("dataset", "method", "variant", "tier", "split", "teacher", "student")
        return (*(getattr(self, name) for name in same if name not in but), str(sorted(own.items())))

    def command(self, dataset: str, budget: Mapping[str, Any], tier: str = "") -> str:
        """The command that makes the release again on a data set, at another budget or tier."""
        return command(
            method=self.method, variant=self.variant, tier=tier or self.tier, teacher=self.teacher,
            options=self.options, dataset=dataset, budget=budget,
        )  # fmt: skip


_SAME = ("dataset", "tier", "split", "method", "variant", "teacher", "student", "attack", "setting", "claim_unit")
TEXTS = {name: name for name in (*_SAME, "unit", "runs")} | {"seed_names": "seeds"}
NUMBERS = {
    "claimed": "epsilon_claimed",
    "accounted": "epsilon_accounted",
    "information": "information",
    "accuracy": "accuracy_mean",
    "deviation": "accuracy_std",
    "teacher_accuracy": "teacher_accuracy",
}
"""Attribute of `Result` to a board's column, of text and of numbers."""


def read_results(rows: Iterable[Row], tier: str | None = None) -> list[Result]:
    """The rows of boards, of one tier; None = of all except smoke, whose numbers mean nothing.

    Args:
        rows: with "dataset" in each.
    """
    return [Result.of(row) for row in rows if row["tier"] == tier or (tier is None and row["tier"] != TIERS[0])]


@cache
def noise_options(method: str, variant: str) -> frozenset[str]:
    """The options of a method that a budget decides, such as sigma; none of one that is not installed."""
    try:
        return frozenset(o.name for o in registry.describe("method", method, variant).options if o.solved)
    except BenchError:
        return frozenset()
