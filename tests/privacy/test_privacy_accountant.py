from __future__ import annotations

import json
import math
from itertools import product
from unittest.mock import patch

import attr
import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from baselines.alibi import Alibi
from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Relation, Unit, _losses, randomised_response_event
from bench.privacy._bounds import gaussian_epsilon, response_losses
from bench.privacy.accountant import Accounted, EmptyLedger, Overspent, account, check_budget
from bench.privacy.limits import most_response_epsilon

DELTA = 1e-5
G, L, P, RR = dp.GaussianDpEvent, dp.LaplaceDpEvent, dp.PoissonSampledDpEvent, dp.RandomizedResponseDpEvent


def ledger_of(*spent, unit=Unit.EXAMPLE) -> Ledger:
    ledger = Ledger()
    for item in spent:
        event, count = item if isinstance(item, tuple) else (item, 1)
        ledger.spend(event, count=count, unit=unit)
    return ledger


def cost(*spent, delta: float = DELTA) -> float:
    return account(ledger_of(*spent), Unit.EXAMPLE, delta).epsilon


def coarse_cost(*spent) -> float:
    with patch.object(_losses, "FINEST_GRID", 1e-3):
        return cost(*spent)


def epsilon_of_losses(losses: np.ndarray, probabilities: np.ndarray, delta: float) -> float:
    """Bisection on the definition: delta(e) = sum of p (1 - exp(e - loss)) over losses above e."""
    low, high = 0.0, float(losses.max())
    for _ in range(200):
        middle = (low + high) / 2
        above = losses > middle
        spent = float(np.sum(probabilities[above] * -np.expm1(middle - losses[above])))
        low, high = (low, middle) if spent <= delta else (middle, high)
    return high


# Gaussians


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
def test_golden_gaussians(multiplier, count, golden, places):
    assert round(cost((G(multiplier), count)), places) == golden


def test_uses_with_every_record_in_the_sample_add_up():
    found, mu = cost((P(1.0, G(2.0)), 3), (P(1.0, G(2.0)), 3)), math.sqrt(6) / 2
    assert found == pytest.approx(5.544831, rel=1e-6)
    assert norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu) == pytest.approx(DELTA)


@given(mu=st.floats(1e-3, 1e4), delta=st.floats(1e-9, 0.5))
def test_closed_form_is_dp_accounting_s(mu, delta):
    assert gaussian_epsilon(mu, delta) == pytest.approx(dp.get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-9)


@given(mu=st.floats(0.05, 20), delta=st.floats(1e-9, 0.1))
def test_closed_form_inverts_the_formula_for_delta(mu, delta):
    found = gaussian_epsilon(mu, delta)
    back = norm.cdf(mu / 2 - found / mu) - math.exp(found + norm.logcdf(-mu / 2 - found / mu))
    assert back == pytest.approx(delta, rel=1e-5) if found > 0 else back <= delta


@pytest.mark.parametrize("mu", [1e6, 1e12, 1e100])
def test_closed_form_keeps_its_digits_for_huge_mu(mu):
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(mu * (mu / 2 - norm.ppf(DELTA)), rel=1e-9)
    assert gaussian_epsilon(mu, DELTA) >= mu * mu / 2


def test_closed_form_at_its_ends():
    assert gaussian_epsilon(0.0, DELTA) == 0.0
    assert gaussian_epsilon(1e-9, DELTA) == 0.0
    assert gaussian_epsilon(math.inf, DELTA) == math.inf
    assert gaussian_epsilon(1e200, DELTA) == math.inf


def test_different_gaussians_add_in_squares():
    assert cost(G(3.0), G(4.0)) == pytest.approx(cost(G(12 / 5)), rel=1e-12)
    assert cost(dp.SelfComposedDpEvent(dp.ComposedDpEvent([G(3.0), G(4.0)]), 4)) == pytest.approx(cost(G(6 / 5)))


@pytest.mark.parametrize("multiplier", [0.0, -1.0, 1e-200])
def test_no_noise_is_infinite(multiplier):
    assert cost(G(50.0), G(multiplier)) == math.inf
    assert cost(P(0.1, G(multiplier))) == math.inf
    assert cost(L(multiplier)) > 1e100


# The four traps of dp_accounting 0.6.0


def test_trap_the_count_of_randomised_response_is_not_ignored():
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
def test_trap_randomised_response_is_read_under_replacement(target):
    spent = account(ledger_of(randomised_response_event(target, 10)), Unit.EXAMPLE, DELTA)
    assert spent.relation is Relation.REPLACE_ONE
    assert spent.epsilon == pytest.approx(target, rel=1e-4)
    special = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(randomised_response_event(target, 10))
    assert special.get_epsilon(DELTA) < 0.9 * target


def test_trap_pure_mechanisms_are_reported_with_delta_zero():
    tiny = account(ledger_of((L(20.0), 3)), Unit.EXAMPLE, 1e-300)
    assert tiny.epsilon == pytest.approx(0.15, rel=1e-12)
    assert (tiny.delta, tiny.accountant) == (0.0, "pure-sum")
    responses = account(ledger_of((randomised_response_event(2.0, 10), 3)), Unit.EXAMPLE, 1e-15)
    assert responses.epsilon == pytest.approx(6.0, rel=1e-12)
    assert responses.delta == 0.0


# Randomised response


@pytest.mark.parametrize("each, counts", [(0.7, {2: 3}), (0.7, {10: 4}), (1.5, {2: 2, 5: 2}), (3.0, {3: 1})])
def test_losses_of_randomised_response_by_enumeration(each, counts):
    singles = []
    for choices, count in counts.items():
        kept = math.exp(each) / (math.exp(each) + choices - 1)
        flipped = 1 / (math.exp(each) + choices - 1)
        singles += [((-1, flipped), (0, 1 - kept - flipped), (1, kept))] * count
    expected = np.zeros(2 * len(singles) + 1)
    for outcome in product(*singles):
        expected[sum(loss for loss, _ in outcome) + len(singles)] += math.prod(p for _, p in outcome)
    first, found = response_losses(each, counts)
    assert first == -len(singles)
    np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("each, choices, count", [(0.05, 10, 400), (0.5, 2, 60), (1.0, 3, 200)])
def test_many_responses_match_dp_accounting_composed_one_by_one(each, choices, count):
    event = randomised_response_event(each, choices)
    reference = pld.from_randomized_response(event.noise_parameter, choices).self_compose(count)
    upper = reference.get_epsilon_for_delta(DELTA)
    found = cost((event, count))
    assert upper - 1e-4 * count <= found <= upper + 1e-6
    first, probabilities = response_losses(each, {choices: count})
    exact = epsilon_of_losses((first + np.arange(len(probabilities))) * each, probabilities, DELTA)
    assert found == pytest.approx(exact, abs=1e-5)


def test_responses_over_different_choices_share_one_grid():
    spent = [(randomised_response_event(1.0, choices), 100) for choices in (2, 3, 10)]
    assert cost(spent[0]) < cost(*spent) < sum(cost(each) for each in spent)
    assert cost(*spent) < 300


def test_a_coarse_grid_only_ever_rounds_up():
    groups = [(0.33, {10: 20}), (0.47, {3: 20})]
    (first, p), (second, q) = (response_losses(each, counts) for each, counts in groups)
    losses = (0.33 * (first + np.arange(len(p))))[:, None] + (0.47 * (second + np.arange(len(q))))[None, :]
    exact = epsilon_of_losses(losses.ravel(), np.outer(p, q).ravel(), DELTA)
    spent = [(randomised_response_event(each, k), n) for each, counts in groups for k, n in counts.items()]
    assert exact <= cost(*spent) <= exact + 3e-4
    with patch.object(_losses, "FINEST_GRID", 0.05):
        assert exact <= cost(*spent) <= exact + 0.1


@pytest.mark.parametrize("each, count", [(1.0, 40_000), (10.0, 5_000), (20.0, 50), (0.001, 10_000_000)])
def test_huge_response_ledgers_stay_cheap_and_below_the_pure_sum(each, count):
    spent = account(ledger_of((randomised_response_event(each, 10), count)), Unit.EXAMPLE, DELTA)
    mean = each * count * (math.exp(each) - 1) / (math.exp(each) + 9)
    assert mean * (1 - 1e-9) <= spent.epsilon <= each * count * (1 + 1e-9)


def test_answers_that_say_nothing_cost_nothing_and_answers_that_say_all_cost_all():
    assert cost(RR(1.0, 10), RR(0.0, 1)) == 0.0
    assert cost(RR(0.0, 2)) == math.inf


@pytest.mark.parametrize("noise, choices", [(1e-10, 2), (1e-12, 10), (5e-324, 3)])
def test_answers_that_flip_less_often_than_random_numbers_can_are_infinite_with_a_reason(noise, choices):
    spent = account(ledger_of(RR(noise, choices)), Unit.EXAMPLE, DELTA)
    assert spent.epsilon == math.inf
    assert "2^-32" in spent.note
    least = randomised_response_event(most_response_epsilon(choices), choices)
    assert cost(least) == pytest.approx(most_response_epsilon(choices), rel=1e-9)


# Everything else


@pytest.mark.parametrize("count", [1, 20, 1000])
def test_laplace_lies_between_dp_accounting_and_the_pure_sum(count):
    spent = account(ledger_of((L(20.0), count)), Unit.EXAMPLE, DELTA)
    assert spent.relation is Relation.ADD_OR_REMOVE_ONE
    reference = pld.from_laplace_mechanism(20.0).self_compose(count).get_epsilon_for_delta(DELTA)
    assert spent.epsilon == pytest.approx(reference, rel=2e-3)
    assert spent.epsilon <= count / 20 + 1e-12


@pytest.mark.parametrize("rate, multiplier, steps", [(0.02, 2.0, 10_000), (0.00853, 1.372, 4680), (0.5, 3.0, 2)])
def test_poisson_sampled_gaussians_match_the_pld_accountant(rate, multiplier, steps):
    event = P(rate, G(multiplier))
    reference = PLDAccountant().compose(event, steps).get_epsilon(DELTA)
    assert cost((event, steps)) == pytest.approx(reference, rel=1e-3)


def test_two_gaussians_on_one_sample_are_one():
    both = P(0.05, dp.ComposedDpEvent([G(3.0), dp.SelfComposedDpEvent(G(4.0), 1)]))
    assert cost((both, 50)) == pytest.approx(cost((P(0.05, G(12 / 5)), 50)), rel=1e-9)


def test_sampling_at_its_ends():
    assert cost(P(1.0, G(2.0))) == cost(G(2.0))
    assert cost(G(2.0), P(0.0, G(0.1))) == cost(G(2.0))
    assert cost(P(0.3, dp.NoOpDpEvent())) == 0.0
    assert cost(P(0.3, G(2.0))) < cost(G(2.0))
    assert cost(P(0.9, P(1.0, G(2.0)))) == cost(P(0.9, G(2.0)))


@pytest.mark.parametrize("unit", {unit.relation: unit for unit in Unit}.values())
@pytest.mark.parametrize("beside", [[], [randomised_response_event(1e-6, 10)]])
def test_a_sample_of_everybody_costs_what_the_largest_samples_do(unit, beside):
    """Replaced, one record moves the sum twice as far whether it was sampled or not."""
    whole = account(ledger_of(P(1.0, G(2.0)), *beside, unit=unit), unit, DELTA).epsilon
    nearly = account(ledger_of(P(1 - 1e-12, G(2.0)), *beside, unit=unit), unit, DELTA).epsilon
    assert whole == pytest.approx(nearly, rel=2e-3)
    twice = unit.relation is Relation.REPLACE_ONE or bool(beside)
    plain = account(ledger_of(G(1.0 if twice else 2.0), *beside, unit=unit), unit, DELTA).epsilon
    assert whole == plain


def test_sampled_gaussians_beside_responses_are_read_under_replacement():
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
def test_a_label_and_an_answer_are_replaced_and_a_record_and_a_client_are_not(unit, relation, event):
    spent = account(ledger_of(event, unit=unit), unit, DELTA)
    assert spent.relation is relation
    assert spent.to_json()["relation"] == str(relation)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_alibi_protects_a_label_that_is_replaced(noise):
    spent = account(Alibi(noise=noise)._ledger(2.0), Unit.LABEL, DELTA)
    assert spent.relation is Relation.REPLACE_ONE
    assert spent.epsilon == pytest.approx(1.0 if noise == "laplace" else cost(G(math.sqrt(2))))


def test_an_entry_may_say_that_its_responses_are_of_a_unit_left_out() -> None:
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
        assert math.isinf(found.epsilon) and "left out alone, some of one that is replaced" in found.note
    for relation in ("swap", None, 3, ["replace"]):
        with pytest.raises(
            BenchError, match=r"entry 0 of the ledger has relation .*; expected add-or-remove or replace"
        ):
            Ledger.from_json([plain.to_json()[0] | {"relation": relation}])


@pytest.mark.parametrize("unit", [unit for unit, _ in RELATIONS])
def test_randomised_responses_speak_of_replacement_whatever_the_unit(unit):
    assert account(ledger_of(RR(0.5, 10), unit=unit), unit, DELTA).relation is Relation.REPLACE_ONE


@pytest.mark.parametrize("event", [G(2.0), L(2.0)])
def test_plain_noise_is_relative_to_the_neighbours_of_its_unit(event):
    assert account(ledger_of(event, unit=Unit.LABEL), Unit.LABEL, DELTA).epsilon == cost(event)


@pytest.mark.parametrize("extra", [(randomised_response_event(0.1, 10), 50), (L(10.0), 50)])
def test_mixed_composition_is_no_worse_than_adding_and_no_better_than_either(extra):
    gaussian = (G(10.0), 50)
    mixed = cost(gaussian, extra)
    assert max(cost(gaussian), cost(extra)) < mixed
    assert mixed <= cost(gaussian, delta=DELTA / 2) + cost(extra, delta=DELTA / 2) + 1e-3


def test_mixed_composition_against_a_fine_convolution():
    mu, each, count = 0.5, 0.25, 8
    x = np.linspace(-9, 9, 4001)
    gaussian = norm.pdf(x) * (x[1] - x[0])
    first, probabilities = response_losses(each, {4: count})
    losses = (mu * x + mu * mu / 2)[:, None] + ((first + np.arange(len(probabilities))) * each)[None, :]
    exact = epsilon_of_losses(losses.ravel(), np.outer(gaussian, probabilities).ravel(), DELTA)
    found = cost(G(1 / mu), (randomised_response_event(each, 4), count))
    assert exact - 1e-3 <= found <= exact + 2e-3


def test_epsilons_around_the_range_of_floats_grow_evenly():
    found = [cost((randomised_response_event(10.0, 10), count), delta=0.5) for count in range(68, 78)]
    assert np.all(np.diff(found) == pytest.approx(10.0, abs=0.1))


def test_huge_mixed_ledgers_stay_finite():
    assert 2.5e6 < cost((G(0.01), 500), (randomised_response_event(1.0, 10), 1000), (L(0.1), 100)) < 2.6e6
    assert 40 < cost((P(0.5, G(0.3)), 20)) < cost((G(0.3), 20))


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
    ],
)
def test_what_is_not_understood_is_infinite(event, nested):
    event = dp.ComposedDpEvent([G(50.0), dp.SelfComposedDpEvent(event, 2)]) if nested else event
    spent = account(ledger_of(G(50.0), event), Unit.EXAMPLE, DELTA)
    assert spent.epsilon == math.inf
    assert not spent.finite


def test_an_event_class_of_somebody_else_is_infinite():
    @attr.s(frozen=True, auto_attribs=True)
    class MyDpEvent(dp.DpEvent):
        strength: float

    assert cost(MyDpEvent(1.0)) == math.inf


def test_an_empty_ledger_is_refused_even_when_other_units_have_entries():
    with pytest.raises(EmptyLedger, match="example"):
        account(Ledger(), Unit.EXAMPLE, DELTA)
    with pytest.raises(EmptyLedger):
        account(ledger_of(G(1.0), unit=Unit.QUERY), Unit.EXAMPLE, DELTA)


def test_units_are_never_mixed():
    ledger = ledger_of(G(16.0), unit=Unit.QUERY)
    ledger.spend(dp.NonPrivateDpEvent())
    assert account(ledger, Unit.QUERY, DELTA).epsilon == cost(G(16.0))
    assert account(ledger, Unit.EXAMPLE, DELTA).epsilon == math.inf


def test_using_nothing_must_be_said_and_then_costs_nothing():
    spent = account(ledger_of(dp.NoOpDpEvent()), Unit.EXAMPLE, DELTA)
    assert (spent.epsilon, spent.delta, spent.finite) == (0.0, 0.0, True)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_bad_delta_is_refused(delta):
    with pytest.raises(BenchError, match="delta"):
        cost(G(1.0), delta=delta)


SOME_EVENTS = st.sampled_from([G(8.0), G(25.0), P(0.02, G(1.5)), L(30.0), RR(0.9, 10), RR(0.95, 2)])
SPENT = st.lists(st.tuples(SOME_EVENTS, st.integers(1, 30)), min_size=1, max_size=3)


@settings(max_examples=12, deadline=None)
@given(spent=SPENT, data=st.data())
def test_order_is_irrelevant(spent, data):
    shuffled = data.draw(st.permutations(spent))
    split = [(event, 1) for event, count in shuffled for _ in range(count)]
    assert coarse_cost(*shuffled) == coarse_cost(*spent) == coarse_cost(*split)


@settings(max_examples=12, deadline=None)
@given(spent=SPENT, more=st.tuples(SOME_EVENTS, st.integers(1, 30)))
def test_more_uses_never_cost_less(spent, more):
    assert coarse_cost(*spent, more) >= coarse_cost(*spent) * (1 - 1e-3) - 5e-3


@settings(max_examples=25, deadline=None)
@given(multiplier=st.floats(0.05, 200), factor=st.floats(1.01, 10), count=st.integers(1, 2000))
def test_more_noise_or_a_larger_delta_never_costs_more(multiplier, factor, count):
    assert cost((G(multiplier * factor), count)) <= cost((G(multiplier), count))
    assert cost((G(multiplier), count), delta=DELTA * factor) <= cost((G(multiplier), count))


@settings(max_examples=8, deadline=None)
@given(each=st.floats(0.01, 3), factor=st.floats(1.05, 3), count=st.integers(1, 200))
def test_weaker_answers_never_cost_more(each, factor, count):
    weak, strong = (randomised_response_event(epsilon, 10) for epsilon in (each, each * factor))
    assert cost((weak, count)) <= cost((strong, count)) + 1e-6
    assert cost((weak, count)) <= count * each + 1e-9


# Reports and budgets


def test_accounted_json_is_strict_json():
    plain = json.loads(json.dumps(account(ledger_of(G(2.0)), Unit.EXAMPLE, DELTA).to_json(), allow_nan=False))
    assert plain["epsilon"] == cost(G(2.0))
    assert isinstance(plain["epsilon"], float)
    assert (plain["unit"], plain["relation"], plain["delta"]) == ("example", "add-or-remove", DELTA)
    assert plain["accountant"] == "gaussian-closed-form"
    assert "dp-accounting 0." in plain["version"]
    infinite = account(ledger_of(dp.NonPrivateDpEvent()), Unit.EXAMPLE, DELTA).to_json()
    assert json.dumps(infinite, allow_nan=False)
    assert infinite["epsilon"] == "inf"
    assert "NonPrivateDpEvent" in infinite["note"]
    assert "note" not in plain
    assert isinstance(account(ledger_of(G(2.0)), Unit.EXAMPLE, DELTA), Accounted)


def claim(value: float, delta: float = DELTA) -> Claim:
    return Claim(value, delta, Unit.QUERY, "DPSD, Theorem 1")


def test_a_claim_within_its_budget_passes_whatever_the_ledger_proves():
    check_budget(ledger_of(dp.NonPrivateDpEvent()), claim(10.0), Budget(epsilon=10.0))
    check_budget(ledger_of(dp.NonPrivateDpEvent()), claim(10.0 * (1 + 1e-12)), Budget(epsilon=10.0))


@pytest.mark.parametrize("bad", [claim(10.001), claim(math.inf), claim(1.0, delta=1e-3)])
def test_a_claim_over_its_budget_raises(bad):
    with pytest.raises(Overspent, match="Theorem 1") as caught:
        check_budget(ledger_of(G(100.0)), bad, Budget(epsilon=10.0))
    assert "\n" not in str(caught.value)


def test_an_accounted_budget_reads_the_ledger_and_not_the_claim():
    accounted = Budget(epsilon=10.0, account="accounted")
    check_budget(ledger_of((G(16.0), 1000)), claim(math.inf), accounted)
    with pytest.raises(Overspent, match=r"28\.8"):
        check_budget(ledger_of((G(100 / 32), 200)), claim(0.05), accounted)


def test_an_infinite_account_names_the_event():
    ledger = ledger_of(G(16.0))
    ledger.spend(dp.NonPrivateDpEvent(), why="the generator saw the teacher's gradients")
    with pytest.raises(Overspent, match=r"NonPrivateDpEvent.*teacher's gradients") as caught:
        check_budget(ledger, None, Budget(epsilon=10.0, account="accounted"))
    assert "\n" not in str(caught.value)
    with pytest.raises(Overspent, match="noise is too small"):
        check_budget(ledger_of(G(1e-200)), None, Budget(epsilon=10.0, account="accounted"))


def test_an_accounted_budget_reads_its_own_unit():
    budget = Budget(epsilon=10.0, account="accounted", unit=Unit.QUERY)
    check_budget(ledger_of(G(16.0), unit=Unit.QUERY), None, budget)
    with pytest.raises(EmptyLedger):
        check_budget(ledger_of(G(16.0)), None, budget)


def test_no_budget_and_an_infinite_one_refuse_nothing():
    ledger = ledger_of(dp.NonPrivateDpEvent())
    check_budget(ledger, claim(math.inf), Budget(epsilon=None, solve="none"))
    check_budget(ledger, None, Budget(epsilon=math.inf, account="accounted"))
    check_budget(ledger, None, Budget(epsilon=1.0))
