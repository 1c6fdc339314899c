"""The most common ledger events. dp_accounting, which needs scipy, is imported only when an event is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def gaussian_event(multiplier: float) -> DpEvent:
    """Return the event of Gaussian noise with this multiplier of the sensitivity; for 0, of an unprotected use.

    >>> gaussian_event(2.0), gaussian_event(0.0)
    (GaussianDpEvent(noise_multiplier=2.0), NonPrivateDpEvent())
    """
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(multiplier) if multiplier > 0 else unprotected_event()


def laplace_event(multiplier: float) -> DpEvent:
    """Return the event of Laplace noise with this scale over the sensitivity; for 0, of an unprotected use."""
    from dp_accounting import LaplaceDpEvent

    return LaplaceDpEvent(multiplier) if multiplier > 0 else unprotected_event()


def unprotected_event() -> DpEvent:
    """Return the event of an unprotected use, whose epsilon is infinite."""
    from dp_accounting import NonPrivateDpEvent

    return NonPrivateDpEvent()
