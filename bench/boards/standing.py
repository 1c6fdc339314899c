"""What today's power gate says of a record, from the numbers that it holds.

Gates have become stricter, and a record keeps the verdict of its day. What a record has no number for is not asked.
"""

from __future__ import annotations

from typing import Literal

from bench.metrics.floors import ALPHA
from bench.metrics.levels import LEAST_AUC, strong_enough
from bench.storage.records import Record

Standing = Literal["pass", "inconclusive", ""]


def standing(record: Record) -> Standing:
    """Whether the attack of a record has shown its power; "" where none was scored."""
    if not {"attack_accuracy", "auc"} & set(record.metrics):
        return "inconclusive" if record.status == "inconclusive" else ""
    shown = record.status == "ok" and (_told_apart if "auc" in record.metrics else _reconstructed)(record.metrics)
    return "pass" if shown else "inconclusive"


def _told_apart(metrics: dict[str, float | None]) -> bool:
    """As `bench.metrics.membership.membership_power`."""
    bare = "memorising_" if "memorising_auc" in metrics else "teacher_"
    auc, low, random = (metrics.get(key) for key in (f"{bare}auc", f"{bare}auc.lo", "random_auc.lo"))
    gain = metrics.get("teacher_auc_gain.lo")
    return not (
        (gain is not None and gain <= 0)
        or (auc is not None and auc < LEAST_AUC)
        or (low is not None and low <= 0.5)
        or (random is not None and random > 0.5)
    )


def _reconstructed(metrics: dict[str, float | None]) -> bool:
    """As `bench.metrics.power.power`, without p-value for fewer than four classes, and `inversion_stage`: the test
    against retrieval, or what the attack must show where there is none."""
    p, of_classes = metrics.get("teacher_floor_p"), metrics.get("power_p_teacher", 0.0)
    return of_classes is not None and (strong_enough(metrics) if p is None else p < ALPHA)
