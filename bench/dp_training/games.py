"""Distinguishing games of private training: what an audit needs to call the very function that training calls.

A world is a data set with a record or without it. The number of records is public, so that both worlds have as many
places: an absent record is in no sample, and its values are NaN, which every clipped sum counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bench import validate
from bench.api import Context
from bench.privacy import Ledger, Unit
from bench.privacy.accountant import Accounted, account
from bench.privacy.audit import DistinguishingGame, Play
from bench.privacy.ledger import Entry
from bench.privacy.noise import Noise

PLAYS = 4000
"""What a game suggests whose play costs about a millisecond."""
SAMPLING = 0.5
"""q of a played step: as often with a record as without it, so that a sample that is none shows."""
RECORDS = 50_000
"""Private records that noise is calibrated for in a game, where the real number is not known."""


class PlayedNoise(Noise):
    """Privacy noise from an audit's generator; records from number `present` on are in no sample."""

    present: int | None = None

    @classmethod
    def drawing(cls, generator: torch.Generator, present: int | None = None) -> PlayedNoise:
        """A source on the generator; None = all records are present."""
        noise = validate.instance(cls.of(generator), PlayedNoise, "the source of a play")
        noise.present = present
        return noise

    def sample(self, records: int, probability: float) -> Tensor:
        """As `Noise.sample`, of the records that are present."""
        drawn = super().sample(records, probability)
        return drawn if self.present is None else drawn[drawn < self.present]


@dataclass(frozen=True)
class PlayedContext(Context):
    """A context whose privacy noise is an audit's; all else is seeded, and so the same in every play.

    Attributes:
        source: of all privacy noise.
    """

    source: Noise | None = None

    def privacy_noise(self, name: str) -> Noise:
        """The audit's."""
        return validate.present(self.source, "source of the audit's noise")


class _NothingKept:
    """Artifacts that are made whenever they are asked for."""

    def get(self, kind: str, key: dict[str, Any], make: Any) -> Any:
        return make()


@contextmanager
def _silent(stage: str, total: int) -> Iterator[Any]:
    yield lambda done: None


def played_context(generator: torch.Generator, present: int | None = None) -> PlayedContext:
    """The context of plays: on the CPU, without a progress bar; `present` as of `PlayedNoise`."""
    source = PlayedNoise.drawing(generator, present)
    return PlayedContext(torch.device("cpu"), 0, _silent, _NothingKept(), source=source)


def accounted_game(
    play: Play,
    ledger: Ledger,
    delta: float,
    describe: str,
    unit: Unit = Unit.EXAMPLE,
    claimed: float | None = None,
    plays: int = PLAYS,
) -> DistinguishingGame:
    """A game that is held to what the accountant proves of one play, at every delta.

    Args:
        ledger: of one play.
        claimed: the epsilon that the paper says a play costs; None = claim and account are one number.
    """
    entries = ledger.entries(unit)
    proved = _accounted(entries, unit, delta)
    held, said = proved.delta if proved.finite else 0.0, proved.epsilon if claimed is None else claimed

    def curve(delta: float) -> float:
        return _accounted(entries, unit, delta).epsilon

    return DistinguishingGame(play, said, proved.epsilon, held, describe, curve, plays)


@lru_cache(maxsize=1024)
def _accounted(entries: tuple[Entry, ...], unit: Unit, delta: float) -> Accounted:
    """What is proved of these entries; a sampled Gaussian takes half a second at each delta."""
    ledger = Ledger()
    for entry in entries:
        ledger.spend(entry.event, count=entry.count, unit=unit, why=entry.why, relation=entry.relation)
    return account(ledger, unit, delta)
