"""What several releases of the same records promise together: less than each by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.privacy import Ledger, Unit, accountant
from bench.storage.records import Record

OF_RECORDS = (Unit.EXAMPLE, Unit.LABEL, Unit.CLIENT)
"""Units of which all releases see the same; a synthetic image is asked about by one of them."""


def together(records: Sequence[Record]) -> list[str]:
    """A line for each unit with a finite epsilon; none of one release, or of noise that whoever has the seed can draw.

    The ledgers add up, whatever the seeds: each release is another look at the same records.
    """
    released = [record for record in records if record.status != "failed"]
    if len(released) < 2 or any(record.spec["release"]["noise"] != "os" for record in released):
        return []
    ledger = Ledger.from_json([entry for record in released for entry in record.privacy["events"]])
    delta, lines = released[0].spec["release"]["budget"]["delta"], []
    for unit in OF_RECORDS:
        if ledger.entries(unit) and math.isfinite(epsilon := accountant.account(ledger, unit, delta).epsilon):
            lines.append(
                f"together: who sees all {len(released)} students has an epsilon of {epsilon:.4g} per {unit} at delta "
                f"{delta:g}, as they are of the same records; release one"
            )
    return lines
