"""Can this model be released? A verdict on a finished model that a reviewer can check (docs/assess.md).

    import bench

    found = bench.assess(scores=("members.csv", "others.csv"), policy="research")
    found.verdict.decision, found.verdict.reasons

The package can be called: `bench.assess(...)` is `bench.assess.front.assess(...)`, whose docstring has the arguments.
A scores file is assessed without torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.assess.schema import Assessment


class _Room(ModuleType):
    """This package as a function; a module's class may be assigned (Python data model, "Customizing module attribute
    access")."""

    def __call__(self, *given: Any, **named: Any) -> Assessment:
        from bench.assess.front import assess

        return assess(*given, **named)


sys.modules[__name__].__class__ = _Room
