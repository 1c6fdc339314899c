"""What a run prints, as the README shows it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast
from unittest.mock import patch

from rich.console import Console

from bench import progress
from bench.cli import result
from bench.pipeline.run import Outcome
from docs.tables.boards import records, release


def demo() -> str:
    """What a run of dpsd and gmi on digits ends with, by its record."""
    row = release("digits", "dpsd", {}, attack="gmi")
    if row is None or row["attack"] != "gmi":
        raise KeyError("the run of `bench run --method dpsd --attack gmi` is on no board")
    record, out = records()[row["runs"].split()[0]], Path("runs")
    console = Console(file=io.StringIO(), width=result.WIDEST, highlight=False)
    with patch.object(progress, "out", console):
        result.show(Outcome(record, out / "records" / record.hash, cached=False), out, result.WIDEST)
    lines = [line.rstrip() for line in cast(io.StringIO, console.file).getvalue().strip().splitlines()]
    return "\n".join(["```", *lines, "```"])
