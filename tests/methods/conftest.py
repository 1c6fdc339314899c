"""What tests of methods share."""

from __future__ import annotations

import pytest

from bench.distillation import image_source


@pytest.fixture(autouse=True)
def brief_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators that learn from the student take two small steps a round instead of thirty."""
    monkeypatch.setattr(image_source, "STEPS", 2)
    monkeypatch.setattr(image_source, "BATCH", 16)
