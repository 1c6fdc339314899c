"""Score sets with a known amount of leakage, and files of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def made_logits(n: int, shift: float, seed: int, classes: int = 3) -> tuple[Floats, NDArray[np.int64]]:
    """(n, classes) logits whose true class has N(1 + shift, 1), and (n,) labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) * 0.1
    logits[np.arange(n), labels] += rng.normal(1 + shift, 1, n)
    return logits, labels


def write_csv(path: Path, columns: dict[str, object]) -> Path:
    rows = zip(*(list(values) for values in columns.values()), strict=True)  # type: ignore[call-overload]
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_logits(path: Path, n: int, shift: float, seed: int, **columns: object) -> Path:
    logits, labels = made_logits(n, shift, seed)
    wide = {f"logit_{place}": logits[:, place] for place in range(logits.shape[1])}
    return write_csv(path, {"label": labels, **wide, **columns})
