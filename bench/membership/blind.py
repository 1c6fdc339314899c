"""The baseline without the model: test whether facts known before training separate members from non-members.

Das, Zhang, Tramer, "Blind Baselines Beat Membership Inference Attacks for Foundation Models", 2024: if members and
non-members come from different sources or times, a classifier that never sees the model separates them, and the success
of an attack is not evidence about the model. Logistic regression and gradient-boosted trees are cross-validated in five
folds; all records of a group are in one fold. For the p-value, membership is permuted 200 times among the units of each
fold with fixed out-of-fold scores. The larger AUC of the two classifiers is compared with that of each permutation. Its
interval is DeLong's, at half of the error for each of the two classifiers.

`matched` draws members and non-members that the classifier does not separate: pairs of one class with nearly the same
propensity score (Rosenbaum and Rubin, Biometrika 1983), within a caliper (Austin, Pharmaceutical Statistics 2011).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.metrics.membership.auc import area
from bench.seeds import derive

Floats = NDArray[np.float64]
FOLDS, SHUFFLES = 5, 200
MOST = 5000
"""Largest number of records of each set that the baseline uses, drawn at random."""
LEAST_AUC, LARGEST_P = 0.55, 0.01
"""The sets differ if the AUC is above the first number and p is below the second one."""
BONFERRONI = 0.975
"""Confidence of the interval of each of two classifiers, so that both hold at 95 %."""
CLUES = 3
CALIPER = 0.05
"""Largest difference of a pair's propensity scores on the logit scale, in standard deviations. Austin's 0.2 left sets
of 1,500 records separable (AUC 0.55 to 0.58 in five draws), 0.05 did not (0.47 to 0.53)."""


@dataclass(frozen=True)
class Facts:
    """Facts about records from before training.

    Attributes:
        names: names of the d features, as a reader knows them.
        values: (n, d) float64, finite.
        labels: (n,) int64 classes; None if they are not known. Each class becomes a feature.
        groups: (n,) text; None if the unit is the record.
    """

    names: tuple[str, ...]
    values: Floats
    labels: NDArray[np.int64] | None = None
    groups: NDArray[np.str_] | None = None


@dataclass(frozen=True)
class BlindBaseline:
    """The baseline without the model.

    Attributes:
        auc: cross-validated AUC of the better of two classifiers.
        low, high: its 95 % interval.
        p: permutation p-value.
        clues: the features that separate the sets best, the best first.
        features: number of features.
        method: the better classifier.
    """

    auc: float
    low: float
    high: float
    p: float
    clues: tuple[str, ...]
    features: int
    method: str

    @property
    def differs(self) -> bool:
        """Return whether the sets can be separated without the model."""
        return self.p < LARGEST_P and self.auc > LEAST_AUC


def compare(
    members: Facts, others: Facts, seed: int, step: Callable[[int], object] = lambda _: None
) -> BlindBaseline | None:
    """Test whether two sets can be separated without the model; None if there are no facts about the records.

    Args:
        seed: seed of the sample, the folds and the permutations.
        step: called with 1 after each of the `2 * FOLDS` trainings.
    """
    names, values, is_member, groups = _table(members, others, _sample(members, others, seed))
    if not names:
        return None
    fold = _folds(groups, seed)
    scores = _out_of_fold_scores(values, is_member, fold, step)
    areas = [_area(row, is_member) for row in scores]
    best = max(areas)
    p = _permutation_p(scores, is_member, groups, fold, best, seed)
    # Features that separate the sets best by themselves: those whose AUC is farthest from 0.5
    areas_alone = np.array([_area(column, is_member) for column in values.T])
    order = np.argsort(-np.abs(areas_alone - 0.5), kind="stable")[:CLUES]
    clues = [f"{names[place]} ({'larger' if areas_alone[place] > 0.5 else 'smaller'} in members)" for place in order]
    better = scores[int(np.argmax(areas))]
    _, low, high = area(np.sort(better[is_member]), np.sort(better[~is_member]), BONFERRONI)
    return BlindBaseline(
        auc=best,
        low=low,
        high=high,
        p=p,
        clues=tuple(clues),
        features=len(names),
        method=f"{('logistic regression', 'gradient-boosted trees')[int(np.argmax(areas))]}, {FOLDS} folds, "
        f"{SHUFFLES} exchanges of membership",
    )


def matched(members: Facts, others: Facts, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match members and non-members of one class with nearly the same out-of-fold score, one to one.

    Each class is matched in the order of the scores, which gives the largest number of pairs within the caliper.

    Args:
        members, others: facts without groups; at most 5,000 records of each, drawn at random, are matched.
        seed: as in `compare`.

    Returns:
        (p,) indices of members and (p,) of non-members, sorted: the i-th entries are not a pair.
    """
    rows = _sample(members, others, seed)
    names, values, is_member, groups = _table(members, others, rows)
    if not names:
        return rows[0], rows[1]
    scores = _out_of_fold_scores(values, is_member, _folds(groups, seed), lambda _: None)
    best = scores[int(np.argmax([_area(row, is_member) for row in scores]))]
    caliper = CALIPER * float(best.std())
    inside, outside = best[is_member], best[~is_member]
    labels = [
        np.zeros(len(chosen), np.int64) if side.labels is None else side.labels[chosen]
        for side, chosen in zip((members, others), rows, strict=True)
    ]
    pairs: list[tuple[int, int]] = []
    for label in np.intersect1d(labels[0], labels[1]):
        own, theirs = (np.flatnonzero(each == label) for each in labels)
        pairs += [(int(own[i]), int(theirs[j])) for i, j in pair_by_score(inside[own], outside[theirs], caliper)]
    chosen = np.array(pairs, np.int64).reshape(-1, 2)
    return np.sort(rows[0][chosen[:, 0]]), np.sort(rows[1][chosen[:, 1]])


def pair_by_score(members: Floats, others: Floats, caliper: float) -> list[tuple[int, int]]:
    """Pair (n,) and (m,) scores that differ by at most the caliper, one to one; return the indices of each pair.

    Both sets are walked through in the order of their scores, which gives the largest number of pairs.
    """
    own, theirs = np.argsort(members, kind="stable"), np.argsort(others, kind="stable")
    pairs = []
    i = j = 0
    while i < len(own) and j < len(theirs):
        apart = members[own[i]] - others[theirs[j]]
        if abs(apart) <= caliper:
            pairs.append((int(own[i]), int(theirs[j])))
            i, j = i + 1, j + 1
        elif apart < 0:
            i += 1
        else:
            j += 1
    return pairs


def _sample(members: Facts, others: Facts, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the indices of the records of both sets that the baseline uses."""
    rng = np.random.default_rng(derive(seed, "blind", "sample"))
    inside, outside = (
        np.sort(rng.permutation(len(side.values))[:MOST]) if len(side.values) > MOST else np.arange(len(side.values))
        for side in (members, others)
    )
    return inside, outside


def _out_of_fold_scores(
    values: Floats, is_member: NDArray[np.bool_], fold: NDArray[np.int64], step: Callable[[int], object]
) -> Floats:
    """Return (2, n) scores by the linear and the tree classifier, each trained on the folds without the record."""
    scores = np.zeros((2, len(values)))
    for k in range(FOLDS):
        for number, model in enumerate(make_classifiers()):
            model.fit(values[fold != k], is_member[fold != k])
            scores[number, fold == k] = model.decision_function(values[fold == k])
            step(1)
    return scores


def _table(
    members: Facts, others: Facts, rows: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[list[str], Floats, NDArray[np.bool_], NDArray[Any]]:
    """Return names and values of all features that are not constant, membership (bool), and group numbers."""
    sides = list(zip((members, others), rows, strict=True))
    values = np.concatenate([side.values[chosen] for side, chosen in sides])
    names = list(members.names)
    if members.labels is not None and others.labels is not None:
        labels = np.concatenate([side.labels[chosen] for side, chosen in sides if side.labels is not None])
        classes = np.unique(labels)
        values = np.column_stack([values, labels[:, None] == classes])
        names += [f"class {number}" for number in classes]
    is_member = np.repeat([True, False], [len(chosen) for chosen in rows])
    if members.groups is not None and others.groups is not None:
        text = np.concatenate([side.groups[chosen] for side, chosen in sides if side.groups is not None])
        groups = np.unique(text, return_inverse=True)[1]
    else:
        groups = np.arange(len(is_member))
    varies = values.std(0) > 0
    return [name for name, keep in zip(names, varies, strict=True) if keep], values[:, varies], is_member, groups


def _folds(groups: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """Assign a fold to each record; all records of a group are in one fold."""
    count = int(groups.max()) + 1
    order = np.random.default_rng(derive(seed, "blind", "folds")).permutation(count)
    return (order % FOLDS)[groups]


def make_classifiers() -> tuple[Any, Any]:
    """Build logistic regression on standardised features, and gradient-boosted trees; both untrained."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return (
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=500)),
        HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=8, random_state=0, early_stopping=False),
    )


def _area(scores: Floats, is_member: NDArray[np.bool_]) -> float:
    """Return the AUC over all folds; ties count half."""
    from scipy.stats import rankdata

    n = int(is_member.sum())
    m = len(is_member) - n
    return float((rankdata(scores)[is_member].sum() - n * (n + 1) / 2) / (n * m))


def _permutation_p(
    scores: Floats, is_member: NDArray[np.bool_], groups: NDArray[Any], fold: NDArray[np.int64], best: float, seed: int
) -> float:
    """Return the p-value by permuting membership among the units of each fold: (1 + hits) / (1 + permutations)."""
    from scipy.stats import rankdata

    ranks = np.stack([rankdata(row) for row in scores])
    rng = np.random.default_rng(derive(seed, "blind", "exchanges"))
    first = np.unique(groups, return_index=True)[1]
    of_unit, fold_of_unit = is_member[first], fold[first]
    hits = 0
    for _ in range(SHUFFLES):
        exchanged = of_unit.copy()
        for k in range(FOLDS):
            here = np.flatnonzero(fold_of_unit == k)
            exchanged[here] = of_unit[rng.permutation(here)]
        chosen = exchanged[groups]
        n = int(chosen.sum())
        m = len(chosen) - n
        areas = (ranks[:, chosen].sum(1) - n * (n + 1) / 2) / (n * m)
        hits += bool(areas.max() >= best)
    return (1 + hits) / (1 + SHUFFLES)
