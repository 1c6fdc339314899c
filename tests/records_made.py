"""Parts of constructed records with all fields that a file needs."""

from typing import Any

from bench.privacy import Budget

BUDGET = Budget().to_json()


def accounted(epsilon: float | str = 8.0, unit: str = "example", **more: Any) -> dict[str, Any]:
    """An accounted epsilon as a record holds it."""
    how = {"relation": "add-or-remove", "accountant": "pld", "version": "1"}
    return {"epsilon": epsilon, "delta": 1e-5, "unit": unit} | how | more


def privacy(found: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The privacy report of a record; `found` is its accounted epsilon."""
    one = accounted() if found is None else found
    report = {"claimed": None, "accounted": one, "accounted_units": {one["unit"]: one}, "audited": None}
    return report | {"events": [], "noise": "seeded", "solved": {}} | more


def audit_line(correct: int, epsilon_lower: float = 0.0) -> dict[str, Any]:
    """The line of a network in an audit with 100 guesses."""
    shares = {"accuracy": 0.5, "memorised_inserted": 0.5, "memorised_left_out": 0.5}
    return {"correct": correct, "guesses": 100, "epsilon_lower": epsilon_lower} | shares


CANARIES = {"number": 200, "inserted": 100, "from": "aux of iid, in hash order"}
"""The canaries of an audit."""

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "unit": "example", "source": "Theorem 1"}
ACCOUNTED = accounted(3.0)
"""An epsilon that an audit may refute, and one that it must not."""
