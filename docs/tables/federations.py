"""The table of one-shot federations: what is distilled, by network and data set, beside DPSD's Table V."""

from __future__ import annotations

from docs.tables.boards import Row, release
from docs.tables.cells import table, with_seeds
from docs.tables.lines import given

FEDERATIONS = ("fedavg", "feddf", "feddafl", "fedadi", "dense")
LOGITS = {name: ("working", {"mean": "logits"}) for name in FEDERATIONS} | {"feddf": ("printed", {})}
"""By which variant and options a federation distils the mean of its clients' logits, as published."""


def federations(name: str) -> str:
    """A row for each federation on a data set; `fedavg` distils nothing."""
    rows = []
    for method in FEDERATIONS:
        usual = _row(name, method, "printed" if method == "fedavg" else "working", {}, "datalens")
        logits = None if method == "fedavg" else _row(name, method, *LOGITS[method], "datalens")
        own = _row(name, method, "printed" if method == "fedavg" else "working", {}, "dense-cnn")
        told = next((row["reported_accuracy"] for row in (usual, own) if row and row["reported_accuracy"]), "")
        printed = f"{100 * float(told):.1f} %" if told else ""
        rows.append([f"`{method}`", *(with_seeds(row) for row in (logits, usual, own)), printed])
    heads = ["", "`datalens`, mean of logits", "`datalens`, mean of probabilities", "`dense-cnn`, the same", "printed"]
    return table(heads, rows)


def _row(name: str, method: str, variant: str, options: dict[str, str], student: str) -> Row | None:
    return release(name, method, given(epsilon=None, solve="none", **options), variant, tier="quick", student=student)
