"""What a run prints, as the README shows it."""

from __future__ import annotations

import io
from typing import cast
from unittest.mock import patch

from rich.console import Console

from bench import progress
from bench.cli import result
from bench.pipeline.run import Outcome
from bench.pipeline.settings import Settings
from docs.tables.boards import records, release

DEMO = (" gmi on", " attack accuracy", " retrieval  ", " above floor")
"""How the lines of the attack begin that the README shows."""


def demo() -> str:
    """What a run of dpsd and gmi on digits ends with, by its record; most numbers of the attack are left out."""
    row = release("digits", "dpsd", {}, attack="gmi")
    if row is None or row["attack"] != "gmi":
        raise KeyError("the run of `bench run --method dpsd --attack gmi` is on no board")
    record, settings = records()[row["runs"].split()[0]], Settings("dpsd", "gmi")
    console = Console(file=io.StringIO(), width=120, highlight=False)
    with patch.object(result, "out", console), patch.object(progress, "out", console):
        result.show(Outcome(record, settings.out / "records" / record.hash, cached=False), settings)
    lines = [line.rstrip() for line in cast(io.StringIO, console.file).getvalue().strip().splitlines()]
    starts = (" gmi on", " no target asked", "power gate", "record ")
    attack, others, gate, paths = (next(at for at, line in enumerate(lines) if line.startswith(s)) for s in starts)
    some = [line for line in lines[attack:others] if line.startswith(DEMO)]
    return "\n".join(["```", *lines[:attack], *some, " ...", *lines[gate:paths], "```"])
