"""From information to accuracy: Fano's bound against every estimator, and the printed numbers that it excludes."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT
from information_made import mutual_information

from bench import boards, registry
from bench.errors import BenchError
from bench.papers import information, printed_numbers
from bench.privacy.information import (
    even_accuracy,
    fano,
    gaussian_capacity,
    laplace_capacity,
    most_accuracy,
    most_chance,
    needed,
    response_capacity,
    selective_capacity,
)


def best_guess(joint: np.ndarray, c: int) -> float:
    """The largest accuracy of any estimator: for each answer, the best of all c^c ways to name the classes."""
    permutations = list(itertools.permutations(range(c)))
    guesses = list(itertools.product(range(c), repeat=c))
    right = np.array([[sum(a == b for a, b in zip(g, p, strict=True)) / c for p in permutations] for g in guesses])
    return float((right @ joint).max(0).sum())


def answers_about_names(c: int) -> list[np.ndarray]:
    """Return tables of (permutation, response): all, one or some names revealed, with or without noise; and random
    ones."""
    permutations, rng = list(itertools.permutations(range(c))), np.random.default_rng(0)
    size = len(permutations)
    tables = [
        np.eye(size),
        np.full((size, 1), 1.0),
        np.array([[float(p[0] == n) for n in range(c)] for p in permutations]),
    ]
    tables += [share * np.eye(size) + (1 - share) / size for share in (0.1, 0.5, 0.9, 0.99)]
    tables += [
        rng.dirichlet(np.full(letters, sharp), size)
        for letters in (2, 3, 6)
        for sharp in (0.02, 0.1, 1)
        for _ in range(60)
    ]
    return [rows / size for rows in tables]


@pytest.mark.parametrize("c", [2, 3])
def test_needed_bounds_every_estimator(c):
    for joint in answers_about_names(c):
        nats, accuracy = mutual_information(joint), best_guess(joint, c)
        assert needed(accuracy, c) <= nats + 1e-9
        assert accuracy <= most_accuracy(max(nats, 0.0) + 1e-9, c) + 1e-9


def test_needed_of_all_names_is_log_factorial():
    """Naming all of three classes takes log 3! nats, not 3 log 3."""
    assert mutual_information(np.eye(6) / 6) == pytest.approx(needed(1.0, 3)) == pytest.approx(math.log(6))
    assert needed(1.0, 3) < 3 * (math.log(3) - fano(1.0, 3))


@pytest.mark.parametrize("accuracy", [0.5, 0.6, 0.9, 1.0])
def test_needed_of_two_classes_is_one_noisy_bit(accuracy):
    """The bit names the first class, and is right with this probability."""
    joint = np.array([[accuracy, 1 - accuracy], [1 - accuracy, accuracy]]) / 2
    assert best_guess(joint, 2) == pytest.approx(accuracy)
    assert needed(accuracy, 2) == pytest.approx(mutual_information(joint), abs=1e-12)


def test_needed_is_at_least_the_simpler_bounds():
    for c, accuracy in itertools.product((2, 3, 10, 100), np.linspace(0, 1, 101)):
        found = needed(float(accuracy), c)
        if accuracy > 1 / c:
            assert found >= math.lgamma(c + 1) - c * fano(float(accuracy), c) - 1e-12
            assert found >= math.log(c) - fano(float(accuracy), c) - 1e-12
        assert 0 <= found <= math.lgamma(c + 1) + 1e-9


@pytest.mark.parametrize("c", [2, 3, 10, 1000])
def test_most_accuracy_is_the_inverse_of_needed(c):
    for accuracy in (1 / c + 0.2, 0.75, 0.9, 0.99):
        assert most_accuracy(needed(accuracy, c), c) == pytest.approx(accuracy, abs=1e-7)
    found = [most_accuracy(share * math.lgamma(c + 1), c) for share in np.linspace(0, 1.1, 30)]
    assert found == sorted(found) and found[0] == pytest.approx(1 / c) and found[-1] == 1.0


def test_even_accuracy_is_the_smallest_consistent():
    shares, rng = np.array([0.05, 0.15, 0.8]), np.random.default_rng(1)
    each = rng.uniform(size=(2000, 3))
    for accuracies in each:
        assert even_accuracy(float(shares @ accuracies), 0.05, 3) <= accuracies.mean() + 1e-12
    assert even_accuracy(0.95, 0.05, 3) == pytest.approx(2 / 3), "all errors in the smallest class"


@pytest.mark.parametrize("c", [2, 3])
def test_most_chance_bounds_every_estimator(c):
    permutations = list(itertools.permutations(range(c)))
    guesses = list(itertools.product(range(c), repeat=c))
    tight = 0
    for joint, accuracy in itertools.product(answers_about_names(c), (1 / c, 2 / c, 1.0)):
        hit = [[sum(map(int.__eq__, g, p)) >= c * accuracy - 1e-9 for p in permutations] for g in guesses]
        luck = float((np.array(hit) @ joint).max(0).sum())
        allowed = most_chance(min(accuracy, 1.0), max(0.0, mutual_information(joint)) + 1e-9, c)
        assert luck <= allowed + 1e-9
        tight += luck > allowed - 1e-4 and allowed < 1
    assert tight, "some answer attains it"


BAD = {
    gaussian_capacity: [(-1.0,), (math.nan,), (1.0, -1)],
    laplace_capacity: [(-0.1, 3)],
    response_capacity: [(-1.0, 2), (math.nan, 2), (1.0, 0)],
    selective_capacity: [(1.0, 1)],
    needed: [(1.1, 10), (math.nan, 10), (0.5, 1)],
    most_accuracy: [(-1.0, 10), (math.nan, 10)],
    most_chance: [(0.5, -1.0, 10)],
}


@pytest.mark.parametrize(("function", "given"), [(function, given) for function in BAD for given in BAD[function]])
def test_information_refuses_values_out_of_range(function, given):
    with pytest.raises(BenchError):
        function(*given)


def test_capacity_without_noise_is_infinite():
    for noise in (0.0, 5e-324, 1e-200):
        assert gaussian_capacity(noise) == gaussian_capacity(noise, 10) == math.inf
    assert gaussian_capacity(math.inf, 10) == 0 and response_capacity(800.0, 3) == pytest.approx(math.log(3))


def test_information_of_dpsds_published_settings():
    assert 200 * 256 * gaussian_capacity(100.0) == pytest.approx(2.56, rel=1e-12)
    assert 200 * 256 * gaussian_capacity(100.0, 10) == pytest.approx(2.5599872, rel=1e-9)
    at_once = 10 * math.log(10) - 10 * fano(0.9785, 10) - (10 * math.log(10) - math.lgamma(11))
    assert at_once == pytest.approx(13.5938, abs=5e-5)
    assert needed(0.9785, 10) == pytest.approx(13.7449, abs=5e-5)
    assert most_accuracy(2.56, 10) == pytest.approx(0.59647, abs=5e-6)
    assert most_chance(0.9785, 2.56, 10) == pytest.approx(0.203, abs=5e-4)


KINDS = dict.fromkeys(["dpsd", "dpdfd", "dp-dfd", "fed-dpsd", "dgd"], "finite")
KINDS |= dict.fromkeys(["pate", "pate-gnmax", "pate-gan", "g-pate", "datalens"], "finite")
KINDS |= dict.fromkeys(["alibi", "lp-2st", "rr", "rr-debiased", "no-defence", "fedavg", "feddf"], "infinite")
KINDS |= dict.fromkeys(["label-smoothing", "non-private-kd", "cluster-rr", "label-protocol", "dense"], "infinite")
KINDS |= dict.fromkeys(["fedadi", "feddafl", "dpgen", "acgan", "wgan", "infogan", "raw-images"], "infinite")
"""Return the method records' bounds at finite noise; others have no bound."""


def test_records_accuracy_is_within_their_information():
    seen: dict[str, Counter[str]] = {}
    for record in boards.read_records(ROOT / "leaderboards"):
        method, found = record.spec["release"]["method"], boards.information(record)
        # There is no bound for a generator trained on the unprotected teacher, nor for direct training
        saw_teacher = method in ("dp-dfd", "dgd") and record.spec["release"]["version"] < 2
        saw_teacher |= method in ("dp-dfd", "dgd") and record.spec["release"]["variant"] == "printed"
        saw_teacher |= record.options["method"].get("discriminator") == "teacher"
        saw_teacher |= record.options["method"].get("data") == "private"
        saw_teacher |= record.options["method"].get("prior") == "baseline"
        if saw_teacher:
            assert found.nats is not None and math.isinf(found.nats)
        elif record.spec["release"]["budget"]["epsilon"] != "inf":
            kind = "unknown" if found.nats is None else "infinite" if math.isinf(found.nats) else "finite"
            seen.setdefault(method, Counter())[kind] += 1
        if (most := found.most_accuracy) is not None and (accuracy := record.metrics.get("accuracy")) is not None:
            assert accuracy <= most + 0.05, f"{record.hash}: the test set's classes are not quite even"
    assert seen.keys() <= registry.entries("method").keys()
    assert {method: set(kinds) for method, kinds in seen.items()} == {
        method: {KINDS.get(method, "unknown")} for method in seen
    }


def test_published_number_is_flagged_if_excluded():
    for entry in printed_numbers.load():
        assert (information.ISSUE in entry.issues) == information.exceeds(entry), entry
    flagged = [entry for entry in printed_numbers.load() if information.exceeds(entry)]
    assert len(flagged) == 18 and {entry.method for entry in flagged} == {"dpsd"}
    assert {entry.unit for entry in flagged} == {"data"} and {entry.paper for entry in flagged} == {"dpsd"}
    assert {entry.dataset for entry in flagged} == {"mnist", "fmnist", "cifar10"}


def test_numbers_without_settings_are_not_flagged():
    for entry in printed_numbers.load():
        free = entry.unit == "label" or entry.paper != "dpsd" or entry.epsilon is None or entry.method != "dpsd"
        if free or {"data=private", "discriminator=teacher"} & set(entry.ablation.split()):
            assert information.carried(entry) is None and not information.exceeds(entry)
    judged = [entry for entry in printed_numbers.load() if information.has_bound(entry)]
    assert [entry.value for entry in judged if not information.exceeds(entry)] == [0.2919, 0.2726]


@pytest.mark.data
@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fmnist", "FashionMNIST")])
def test_smallest_shares_are_those_of_the_test_sets(name, folder, data_root):
    labels = np.frombuffer((data_root / folder / "raw" / "t10k-labels-idx1-ubyte").read_bytes()[8:], dtype=np.uint8)
    assert np.bincount(labels, minlength=10).min() / len(labels) == information.SMALLEST_SHARES[name]
