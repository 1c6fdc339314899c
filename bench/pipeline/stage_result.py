"""What a stage of a run leaves: numbers for the record, pictures to be drawn beside it, the time its steps took."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.pipeline.plots import Plots
from bench.storage.records import Status


@dataclass(frozen=True)
class StageResult:
    """What one stage leaves.

    Attributes:
        metrics, missing: as in a record.
        status, reason: "ok" and "", or why the whole run is something else: skipped, inconclusive.
        plots: drawn when the record is published.
        seconds: step to the seconds that making it took, cached or not.
    """

    metrics: dict[str, float | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    status: Status = "ok"
    reason: str = ""
    plots: Plots = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
