"""Decide by attacks and a policy whether a finished model can be released (docs/assess.md).

    import bench

    found = bench.assess(scores=("members.csv", "others.csv"), policy="research")
    found.verdict.decision, found.verdict.reasons

The package can be called: `bench.assess(...)` is `bench.assess.front.assess(...)`, whose docstring has the arguments.
A scores file is assessed without torch.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.assess.schema import Assessment


class _Listener:
    """Sends notices to the logger, as the other functions of the Python interface do."""

    def step(self, stage: str, done: int, total: int) -> None:
        """As `bench.progress.Reporter`."""

    def notice(self, line: str) -> None:
        """As `bench.progress.Reporter`."""
        logging.getLogger("bench").info(line)


class _Room(ModuleType):
    """Makes this module callable: Python allows to assign a module's class (data model, "Customizing module attribute
    access")."""

    def __call__(self, *given: Any, **named: Any) -> Assessment:
        """Call `bench.assess.front.assess`; nothing is printed, notices go to the logger "bench"."""
        from bench.assess.front import assess
        from bench.progress import reporter

        token = reporter.set(_Listener())
        try:
            return assess(*given, **named)
        finally:
            reporter.reset(token)


sys.modules[__name__].__class__ = _Room
