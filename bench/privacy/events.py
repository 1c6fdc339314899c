"""The commonest events of a ledger. dp_accounting, which brings scipy along, is imported when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def gaussian_event(multiplier: float) -> DpEvent:
    """Gaussian noise of so many sensitivities; without any, an unprotected use.

    >>> gaussian_event(2.0), gaussian_event(0.0)
    (GaussianDpEvent(noise_multiplier=2.0), NonPrivateDpEvent())
    """
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(multiplier) if multiplier > 0 else unprotected_event()


def laplace_event(multiplier: float) -> DpEvent:
    """Laplace noise whose scale is so many sensitivities; without any, an unprotected use."""
    from dp_accounting import LaplaceDpEvent

    return LaplaceDpEvent(multiplier) if multiplier > 0 else unprotected_event()


def unprotected_event() -> DpEvent:
    """A use of which nothing can be proved."""
    from dp_accounting import NonPrivateDpEvent

    return NonPrivateDpEvent()
