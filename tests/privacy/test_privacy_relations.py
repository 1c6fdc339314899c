"""Neighbours of each unit: replaced and removed records, and what a ledger of one relation proves for the other."""

from __future__ import annotations

import json
import math

import dp_accounting as dp
import pytest
from accountant_made import DELTA, RR, G, L, P, coarse_cost, cost, ledger_of
from dp_accounting.pld import PLDAccountant

from baselines.alibi import Alibi
from bench.errors import BenchError
from bench.privacy import Ledger, Relation, Unit, randomised_response_event
from bench.privacy.accountant import account


@pytest.mark.thorough
@pytest.mark.parametrize("unit", {unit.relation: unit for unit in Unit}.values())
@pytest.mark.parametrize("other", [[], [randomised_response_event(1e-6, 10)]])
def test_sample_of_all_records_equals_the_limit_of_samples(unit, other):
    """A replaced record changes the sum by twice as much, sampled or not."""
    whole = account(ledger_of(P(1.0, G(2.0)), *other, unit=unit), unit, DELTA).epsilon
    nearly = account(ledger_of(P(1 - 1e-12, G(2.0)), *other, unit=unit), unit, DELTA).epsilon
    assert whole == pytest.approx(nearly, rel=2e-3)
    twice = unit.relation is Relation.REPLACE_ONE or bool(other)
    plain = account(ledger_of(G(1.0 if twice else 2.0), *other, unit=unit), unit, DELTA).epsilon
    assert whole == plain


@pytest.mark.thorough
def test_sampled_gaussian_with_responses_uses_replacement():
    event = P(0.05, G(1.0))
    reference = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, 1e-3).compose(event, 100).get_epsilon(DELTA)
    found = coarse_cost((event, 100), randomised_response_event(1e-6, 10))
    assert found == pytest.approx(reference, rel=2e-3)
    assert found > 1.3 * coarse_cost((event, 100))
    replaced = account(ledger_of((event, 100), unit=Unit.LABEL), Unit.LABEL, DELTA)
    assert replaced.epsilon == pytest.approx(reference, rel=2e-3)


RELATIONS = [
    (Unit.EXAMPLE, Relation.ADD_OR_REMOVE_ONE),
    (Unit.CLIENT, Relation.ADD_OR_REMOVE_ONE),
    (Unit.LABEL, Relation.REPLACE_ONE),
    (Unit.QUERY, Relation.REPLACE_ONE),
]


@pytest.mark.parametrize("unit, relation", RELATIONS)
@pytest.mark.parametrize("event", [G(2.0), L(2.0), P(0.1, G(2.0)), dp.NonPrivateDpEvent(), dp.NoOpDpEvent()])
def test_account_relation_follows_the_unit(unit, relation, event):
    spent = account(ledger_of(event, unit=unit), unit, DELTA)
    assert spent.relation is relation
    assert spent.to_json()["relation"] == str(relation)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_alibi_ledger_is_for_a_replaced_label(noise):
    spent = account(Alibi(noise=noise)._ledger(2.0), Unit.LABEL, DELTA)
    assert spent.relation is Relation.REPLACE_ONE
    assert spent.epsilon == pytest.approx(1.0 if noise == "laplace" else cost(G(math.sqrt(2))))


def test_entry_relation_restricts_the_account() -> None:
    narrow = {"relation": Relation.ADD_OR_REMOVE_ONE}
    ledger, plain = Ledger(), ledger_of(RR(0.5, 10))
    ledger.spend(RR(0.5, 10), **narrow)
    spent = account(ledger, Unit.EXAMPLE, DELTA)
    assert spent.relation is Relation.ADD_OR_REMOVE_ONE and spent.epsilon == account(plain, Unit.EXAMPLE, DELTA).epsilon
    kept = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    assert kept.entries() == ledger.entries() and "relation" not in plain.to_json()[0]
    for unit, second in ((Unit.EXAMPLE, RR(0.5, 4)), (Unit.LABEL, dp.NoOpDpEvent())):
        mixed = Ledger()
        mixed.spend(RR(0.5, 10), unit=unit, **narrow)
        mixed.spend(second, unit=unit)
        found = account(mixed, unit, DELTA)
        assert math.isinf(found.epsilon) and found.note
    for relation in ("swap", None, 3, ["replace"]):
        with pytest.raises(BenchError, match="add-or-remove or replace"):
            Ledger.from_json([plain.to_json()[0] | {"relation": relation}])


@pytest.mark.parametrize("unit", [unit for unit, _ in RELATIONS])
def test_responses_are_accounted_under_replacement(unit):
    assert account(ledger_of(RR(0.5, 10), unit=unit), unit, DELTA).relation is Relation.REPLACE_ONE


@pytest.mark.parametrize("event", [G(2.0), L(2.0)])
def test_plain_noise_is_not_doubled_for_labels(event):
    assert account(ledger_of(event, unit=Unit.LABEL), Unit.LABEL, DELTA).epsilon == cost(event)
