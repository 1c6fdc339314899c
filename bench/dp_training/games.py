"""Parts of the distinguishing games of private training; an audit calls the same functions as training.

The two worlds are data sets with and without one record. The number of records is public, so both worlds have the same
number of positions: an absent record is never sampled, and its values are NaN, which every clipped sum counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from bench import validate
from bench.api import Context
from bench.privacy import Ledger, Unit
from bench.privacy.accountant import Accounted, account
from bench.privacy.audit import DistinguishingGame, Play
from bench.privacy.ledger import Entry
from bench.privacy.noise import Noise

Artifact = TypeVar("Artifact")

PLAYS = 4000
"""Suggested number of plays for a game whose play takes about a millisecond."""
SAMPLING = 0.5
"""Sampling rate q of a step in a game. At 1/2 the record is in half of the samples, so an audit detects a step that
does not sample."""
GROUP = 3
"""Number of records of a group in a game for unit group."""
RECORDS = 50_000
"""Number of private records for which a game calibrates the noise, because an audit reads no data set."""


class PlayedNoise(Noise):
    """Privacy noise drawn from an audit's generator; records with indices from `present` on are never sampled."""

    present: int | None = None

    @classmethod
    def drawing(cls, generator: torch.Generator, present: int | None = None) -> PlayedNoise:
        """Return a noise source on the generator.

        Args:
            present: number of records that are present; None = all.
        """
        noise = validate.instance(cls.of(generator), PlayedNoise, "the source of a play")
        noise.present = present
        return noise

    def sample(self, records: int, probability: float) -> Tensor:
        """Draw a Poisson sample as `Noise.sample`, restricted to the present records."""
        drawn = super().sample(records, probability)
        return drawn if self.present is None else drawn[drawn < self.present]


@dataclass(frozen=True)
class PlayedContext(Context):
    """A context whose privacy noise comes from an audit; all other randomness is seeded and the same in every play.

    Attributes:
        source: the source of all privacy noise.
    """

    source: Noise | None = None

    def privacy_noise(self, name: str) -> Noise:
        """Return the audit's noise source."""
        return validate.present(self.source, "source of the audit's noise")


class NoCache:
    """An artifact store that caches nothing."""

    def get(self, kind: str, key: dict[str, object], make: Callable[[], Artifact]) -> Artifact:
        """Make the artifact."""
        return make()


def played_context(generator: torch.Generator, present: int | None = None) -> PlayedContext:
    """Return the context of plays: on the CPU, without a progress bar; `present` as in `PlayedNoise`."""
    source = PlayedNoise.drawing(generator, present)
    unseen = nullcontext(lambda _done: None)
    return PlayedContext(torch.device("cpu"), 0, lambda _stage, _total: unseen, NoCache(), source=source)


def accounted_game(
    play: Play,
    ledger: Ledger,
    delta: float,
    describe: str,
    unit: Unit = Unit.EXAMPLE,
    claimed: float | None = None,
    plays: int = PLAYS,
) -> DistinguishingGame:
    """Build a game whose audit is compared with the accounted epsilon of one play, at every delta.

    Args:
        ledger: the ledger of one play.
        claimed: the epsilon of a play according to the paper; None = the accounted epsilon.
    """
    entries = ledger.entries(unit)
    accounted = _accounted(entries, unit, delta)
    game_delta = accounted.delta if accounted.finite else 0.0
    claim = accounted.epsilon if claimed is None else claimed

    def curve(delta: float) -> float:
        return _accounted(entries, unit, delta).epsilon

    return DistinguishingGame(play, claim, accounted.epsilon, game_delta, describe, curve, plays)


@lru_cache(maxsize=1024)
def _accounted(entries: tuple[Entry, ...], unit: Unit, delta: float) -> Accounted:
    """Account these entries; cached, as a sampled Gaussian takes half a second at each delta."""
    ledger = Ledger()
    for entry in entries:
        ledger.spend(entry.event, count=entry.count, unit=unit, why=entry.why, relation=entry.relation)
    return account(ledger, unit, delta)
