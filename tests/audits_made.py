"""Builds audits of toy releases for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.pipeline.job import Job
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings


def job(place: Path, method: str = "no-defence", **changes: Any) -> Job:
    settings = Settings(method, None, f"npz:{place}/toy.npz", teacher="datalens", tier="smoke")
    return load_job(replace(settings, **{"out": place / "runs", **changes}))


CLAIM = {"epsilon": 1.0, "delta": 1e-5, "unit": "example", "source": "Theorem 1"}
ACCOUNTED = {"epsilon": 3.0, "delta": 1e-5, "unit": "example", "relation": "add-or-remove"}
ACCOUNTED |= {"accountant": "pld", "version": "2"}
