"""The tool that plants faults into source code."""

from __future__ import annotations

import pytest
from mutation import planted_in_source

from bench.privacy import mechanisms


class Base:
    def doubled(self, value: int) -> int:
        return 2 * value


class Derived(Base):
    def doubled(self, value: int) -> int:
        return super().doubled(value) + 1


def test_planted_in_source_changes_every_importer_and_is_undone() -> None:
    from bench.privacy.mechanisms import flip_probability as imported

    right = float(imported(1.0, 2))
    with planted_in_source(mechanisms.flip_probability, "math.exp(-epsilon)", "math.exp(epsilon)"):
        assert float(imported(1.0, 2)) != right
    assert float(imported(1.0, 2)) == right


def test_planted_in_source_keeps_closures() -> None:
    with planted_in_source(Derived.doubled, "+ 1", "+ 2"):
        assert Derived().doubled(3) == 8
    assert Derived().doubled(3) == 7


@pytest.mark.parametrize("old", ["not there", "epsilon"])
def test_planted_in_source_fragment_not_once_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match="occurs"), planted_in_source(mechanisms.flip_probability, old, "x"):
        pass
