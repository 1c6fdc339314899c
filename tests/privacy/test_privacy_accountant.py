"""The accountant: golden values, dp_accounting's own results where it is right, and known faults where it is not."""

from __future__ import annotations

import json
import math

import attr
import dp_accounting as dp
import numpy as np
import pytest
from accountant_made import DELTA, RR, G, L, P, coarse_cost, cost, epsilon_of_losses, ledger_of
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from baselines.alibi import Alibi
from bench.errors import BenchError
from bench.privacy import Ledger, Relation, Unit, randomised_response_event
from bench.privacy._bounds import gaussian_epsilon, response_losses
from bench.privacy.accountant import EmptyLedger, account


@pytest.mark.parametrize(
    "multiplier, count, golden, places",
    [
        (100 / (2 * math.sqrt(256)), 200, 28.84, 2),
        (100 / (2 * math.sqrt(256)), 40_000, 2319.98, 2),
        (100 / (2 * 256), 200, 2929, 0),
        (240 / 2, 1000, 0.981, 3),
        (32 / 2, 1000, 9.852, 3),
        (75 / 2, 100, 0.994, 3),
    ],
)
def test_account_of_gaussians_golden(multiplier, count, golden, places):
    assert round(cost((G(multiplier), count)), places) == golden


def test_account_of_full_samples_adds_mu_squared():
    found, mu = cost((P(1.0, G(2.0)), 3), (P(1.0, G(2.0)), 3)), math.sqrt(6) / 2
    assert found == pytest.approx(5.544831, rel=1e-6)
    assert norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu) == pytest.approx(DELTA)


@given(mu=st.floats(1e-3, 1e4), delta=st.floats(1e-9, 0.5))
def test_closed_form_is_dp_accountings(mu, delta):
    assert gaussian_epsilon(mu, delta) == pytest.approx(dp.get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-9)


def test_closed_form_is_exact_for_extreme_mu():
    assert gaussian_epsilon(0.0, DELTA) == gaussian_epsilon(1e-9, DELTA) == 0.0
    assert gaussian_epsilon(math.inf, DELTA) == gaussian_epsilon(1e200, DELTA) == math.inf
    for mu in (1e6, 1e12, 1e100):
        assert mu * mu / 2 <= gaussian_epsilon(mu, DELTA) == pytest.approx(mu * (mu / 2 - norm.ppf(DELTA)), rel=1e-9)


def test_account_of_gaussians_adds_mu_squared():
    assert cost(G(3.0), G(4.0)) == pytest.approx(cost(G(12 / 5)), rel=1e-12)
    assert cost(dp.SelfComposedDpEvent(dp.ComposedDpEvent([G(3.0), G(4.0)]), 4)) == pytest.approx(cost(G(6 / 5)))


@pytest.mark.parametrize("multiplier", [0.0, -1.0, 1e-200])
def test_account_without_noise_is_infinite(multiplier):
    assert cost(G(50.0), G(multiplier)) == math.inf
    assert cost(P(0.1, G(multiplier))) == math.inf
    assert cost(L(multiplier)) > 1e100


def test_trap_count_of_a_composed_response_is_used():
    five = cost(dp.SelfComposedDpEvent(RR(0.3, 10), 5))
    one = math.log((1 - 0.3 + 0.03) / 0.03)
    assert one == pytest.approx(3.19, abs=0.005)
    assert five == pytest.approx(15.96, abs=0.005)
    assert five == pytest.approx(cost((RR(0.3, 10), 5)), rel=1e-12)
    assert five == pytest.approx(cost(dp.ComposedDpEvent([RR(0.3, 10)] * 5)), rel=1e-12)


def test_trap_replacement_does_not_double_a_gaussian():
    doubled = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE).compose(G(2.0)).get_epsilon(DELTA)
    right = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(G(2.0)).get_epsilon(DELTA)
    assert doubled > 2 * right
    assert cost(G(2.0)) == pytest.approx(right, abs=1e-4)
    harmless = cost(G(2.0), randomised_response_event(1e-6, 10))
    assert harmless == pytest.approx(cost(G(2.0)), abs=1e-3)


@pytest.mark.parametrize("target", [1.0, 8.0])
def test_trap_response_is_accounted_under_replacement(target):
    spent = account(ledger_of(randomised_response_event(target, 10)), Unit.EXAMPLE, DELTA)
    assert spent.relation is Relation.REPLACE_ONE
    assert spent.epsilon == pytest.approx(target, rel=1e-4)
    special = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(randomised_response_event(target, 10))
    assert special.get_epsilon(DELTA) < 0.9 * target


def test_trap_pure_mechanisms_have_delta_zero():
    tiny = account(ledger_of((L(20.0), 3)), Unit.EXAMPLE, 1e-300)
    assert tiny.epsilon == pytest.approx(0.15, rel=1e-12)
    assert (tiny.delta, tiny.accountant) == (0.0, "pure-sum")
    responses = account(ledger_of((randomised_response_event(2.0, 10), 3)), Unit.EXAMPLE, 1e-15)
    assert responses.epsilon == pytest.approx(6.0, rel=1e-12)
    assert responses.delta == 0.0


@pytest.mark.parametrize("count", [1, 20, 1000])
def test_account_of_laplace_is_below_the_pure_sum(count):
    spent = account(ledger_of((L(20.0), count)), Unit.EXAMPLE, DELTA)
    assert spent.relation is Relation.ADD_OR_REMOVE_ONE
    reference = pld.from_laplace_mechanism(20.0).self_compose(count).get_epsilon_for_delta(DELTA)
    assert spent.epsilon == pytest.approx(reference, rel=2e-3)
    assert spent.epsilon <= count / 20 + 1e-12


@pytest.mark.parametrize("rate, multiplier, steps", [(0.02, 2.0, 10_000), (0.00853, 1.372, 4680), (0.5, 3.0, 2)])
def test_account_of_sampled_gaussians_is_dp_accountings(rate, multiplier, steps):
    event = P(rate, G(multiplier))
    reference = PLDAccountant().compose(event, steps).get_epsilon(DELTA)
    assert cost((event, steps)) == pytest.approx(reference, rel=1e-3)


def test_two_gaussians_on_one_sample_are_one():
    both = P(0.05, dp.ComposedDpEvent([G(3.0), dp.SelfComposedDpEvent(G(4.0), 1)]))
    assert cost((both, 50)) == pytest.approx(cost((P(0.05, G(12 / 5)), 50)), rel=1e-9)


def test_account_of_sampling_at_both_ends():
    assert cost(P(1.0, G(2.0))) == cost(G(2.0))
    assert cost(G(2.0), P(0.0, G(0.1))) == cost(G(2.0))
    assert cost(P(0.3, dp.NoOpDpEvent())) == 0.0
    assert cost(P(0.3, G(2.0))) < cost(G(2.0))
    assert cost(P(0.9, P(1.0, G(2.0)))) == cost(P(0.9, G(2.0)))


@pytest.mark.parametrize("extra", [(randomised_response_event(0.1, 10), 50), (L(10.0), 50)])
def test_mixed_composition_is_between_max_and_sum(extra):
    gaussian = (G(10.0), 50)
    mixed = cost(gaussian, extra)
    assert max(cost(gaussian), cost(extra)) < mixed
    assert mixed <= cost(gaussian, delta=DELTA / 2) + cost(extra, delta=DELTA / 2) + 1e-3


def test_mixed_composition_matches_a_convolution():
    mu, each, count = 0.5, 0.25, 8
    x = np.linspace(-9, 9, 4001)
    gaussian = norm.pdf(x) * (x[1] - x[0])
    first, probabilities = response_losses(each, {4: count})
    losses = (mu * x + mu * mu / 2)[:, None] + ((first + np.arange(len(probabilities))) * each)[None, :]
    exact = epsilon_of_losses(losses.ravel(), np.outer(gaussian, probabilities).ravel(), DELTA)
    found = cost(G(1 / mu), (randomised_response_event(each, 4), count))
    assert exact - 1e-3 <= found <= exact + 2e-3


@pytest.mark.thorough
def test_account_of_huge_mixed_ledgers_is_finite():
    assert 2.5e6 < cost((G(0.01), 500), (randomised_response_event(1.0, 10), 1000), (L(0.1), 100)) < 2.6e6
    assert 40 < cost((P(0.5, G(0.3)), 20)) < cost((G(0.3), 20))


@attr.s(frozen=True, auto_attribs=True)
class UserDpEvent(dp.DpEvent):
    strength: float


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "event",
    [
        dp.NonPrivateDpEvent(),
        dp.UnsupportedDpEvent(),
        dp.ZCDpEvent(0.1),
        dp.SampledWithReplacementDpEvent(10, 2, G(1.0)),
        P(0.1, L(1.0)),
        P(0.1, P(0.1, G(1.0))),
        P(1.5, G(1.0)),
        RR(1.5, 3),
        UserDpEvent(1.0),
    ],
)
def test_account_of_an_unknown_event_is_infinite(event, nested):
    event = dp.ComposedDpEvent([G(50.0), dp.SelfComposedDpEvent(event, 2)]) if nested else event
    spent = account(ledger_of(G(50.0), event), Unit.EXAMPLE, DELTA)
    assert spent.epsilon == math.inf
    assert not spent.finite


def test_account_without_an_entry_of_the_unit_is_refused():
    with pytest.raises(EmptyLedger, match="example"):
        account(Ledger(), Unit.EXAMPLE, DELTA)
    with pytest.raises(EmptyLedger):
        account(ledger_of(G(1.0), unit=Unit.QUERY), Unit.EXAMPLE, DELTA)


def test_account_never_mixes_units():
    ledger = ledger_of(G(16.0), unit=Unit.QUERY)
    ledger.spend(dp.NonPrivateDpEvent())
    assert account(ledger, Unit.QUERY, DELTA).epsilon == cost(G(16.0))
    assert account(ledger, Unit.EXAMPLE, DELTA).epsilon == math.inf


def test_account_of_a_no_op_is_zero():
    spent = account(ledger_of(dp.NoOpDpEvent()), Unit.EXAMPLE, DELTA)
    assert (spent.epsilon, spent.delta, spent.finite) == (0.0, 0.0, True)


SOME_EVENTS = st.sampled_from([G(8.0), G(25.0), P(0.02, G(1.5)), L(30.0), RR(0.9, 10), RR(0.95, 2)])
SPENT = st.lists(st.tuples(SOME_EVENTS, st.integers(1, 30)), min_size=1, max_size=3)


@settings(max_examples=12, deadline=None)
@given(spent=SPENT, data=st.data())
def test_account_does_not_depend_on_order(spent, data):
    shuffled = data.draw(st.permutations(spent))
    split = [(event, 1) for event, count in shuffled for _ in range(count)]
    assert coarse_cost(*shuffled) == coarse_cost(*spent) == coarse_cost(*split)


@settings(max_examples=12, deadline=None)
@given(spent=SPENT, more=st.tuples(SOME_EVENTS, st.integers(1, 30)))
def test_account_of_more_uses_is_not_smaller(spent, more):
    assert coarse_cost(*spent, more) >= coarse_cost(*spent) * (1 - 1e-3) - 5e-3


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
