"""Rows of the tables of accuracy: results, all that was measured, students, federations, ablations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from statistics import mean

from bench import registry
from bench.boards.results import Result
from bench.boards.tables import read_options
from bench.papers import comparison, printed_numbers
from bench.papers.effects import read
from bench.papers.reasons import reason, without_noise
from bench.papers.results import has_no_noise
from bench.privacy.budget import Budget
from bench.storage.records import Changed
from bench.validate import present
from docs.tables import boards
from docs.tables.boards import Line, attack_of, given, published_number, release, runs
from docs.tables.cells import with_seeds

ATTACKS = ("gmi", "mi-face", "ami")
FAR = 0.05
"""A shortfall below the published number that needs an explanation."""
CLAIMS: dict[str, Changed] = {"claimed 10": {}, "claimed 1": given(epsilon=1.0)}
EXPECTED = (
    ("mnist", "iid", "MNIST", 50_000),
    ("fmnist", "iid", "Fashion-MNIST", 50_000),
    ("fmnist", "full", "Fashion-MNIST, `--split full`", 60_000),
    ("cifar10-jpeg", "iid", "CIFAR-10, as JPEG", 41_667),
    ("celeba-g-subset", "iid", "CelebA, gender, a subset", 7_150),
    ("celeba-h-subset", "iid", "CelebA, hair, a subset", 4_084),
)
"""Data sets of docs/true-epsilon.md: board, split, name, private records."""
FEDERATIONS = ("fedavg", "feddf", "feddafl", "fedadi", "dense")


def results(name: str) -> dict[str, object]:
    """Return the most informative releases on a data set, and three attacks on each."""
    ran = [(line, release(name, line.method, line.options, attack=ATTACKS[0])) for line in boards.lines("results")]
    return {"rows": [(line, row, attacked(name, line.method, line.options)) for line, row in ran if row is not None]}


def attacked(name: str, method: str, changed: Changed) -> list[str]:
    """Return the success of three attacks on the student, in percent; in brackets without power."""
    chosen = release(name, method, changed, attack=ATTACKS[0])
    if chosen is None:
        return [""] * len(ATTACKS)
    same = boards.of(name, method, changed, chosen.release.variant)
    by_attack = {attack_of(each): each for each in same if each.is_older == chosen.is_older}
    shares = []
    for attack in ATTACKS:
        found = by_attack.get(attack)
        success = None if found is None else found.value("attack_accuracy")
        share = "" if success is None else f"{100 * success:.0f}"
        has_failed = found is not None and found.attack is not None and found.attack.power == "inconclusive"
        shares.append(f"({share})" if has_failed else share)
    return shares


def headlines(name: str) -> dict[str, object]:
    """Return every paper's headline cell next to the variants, with and without the unprotected ingredient."""
    rows = []
    for line in boards.lines("headlines"):
        printed, working, *unprotected = (
            release(name, line.method, changed, variant)
            for changed in (line.options, line.unprotected)
            for variant in ("printed", "working")
        )
        rows.append((line, first_published([printed, working]), printed, working, *unprotected))
    return {"rows": rows}


def first_published(found: Iterable[Result | None]) -> float | None:
    """Return the first published accuracy that one of the results is compared with."""
    numbers = (published_number(each) for each in found if each is not None)
    return next((number.value for number in numbers if number is not None), None)


def measured(folder: str, name: str) -> dict[str, object]:
    """Return every variant, setting and tier of the methods of a folder that ran on a data set."""
    rows = []
    for method in registry.entries("method", folder):
        kinds = {}
        for each in boards.board(name):
            row = each.release
            if row.method == method:
                names = tuple(getattr(row, key) for key in boards.NETWORKS)
                kinds[row.variant, each.release_setting, row.tier != "quick", *names] = each
        for _, one in sorted(kinds.items(), key=lambda kind: kind[0]):
            networks = {key: getattr(one.release, key) for key in boards.NETWORKS}
            found = release(name, method, boards.own(one), one.release.variant, **networks)
            if found is not None:
                rows.append((found, runs(found), verdict(found), elsewhere(found)))
    shown = {"printed": any(published_number(found) for found, *_ in rows), "elsewhere": any(row[3] for row in rows)}
    return {"rows": rows, "shown": shown | {"verdict": any(row[2] for row in rows)}}


def verdict(result: Result) -> str:
    """Return how far ours is from the published number, in points; with the reason if it is more than five
    points behind."""
    published = published_number(result)
    if published is None:
        return ""
    table = printed_numbers.table(published.paper, published.table)
    compared = comparison.compare(table, [result], lambda *_: True)
    line = next(each for each in compared if each.result is not None and each.entry.value == published.value)
    difference = present(line.difference, "difference from the published accuracy")
    controls = without_noise(boards.board(result.release.dataset))
    why = reason(line, controls) if difference < -FAR else None
    return f"{100 * difference:+.1f}" + ("" if why is None else f", {why}")


def elsewhere(result: Result) -> str:
    """Return the accuracy that others measured of a method at the same claim (elsewhere.csv), the source, and how far
    ours is from it, in points."""
    row, accuracy, claimed = result.release, result.accuracy, result.claimed
    for other in boards.read_rows(boards.ROOT / "docs" / "tables" / "elsewhere.csv"):
        at, value = float(other["epsilon"]), float(other["accuracy"])
        is_same = (other["method"], other["dataset"]) == (row.method, row.dataset)
        if is_same and accuracy is not None and claimed is not None and abs(claimed - at) < 0.02 * at:
            return f"{100 * value:.1f} ({other['source']}), {100 * (accuracy - value):+.1f}"
    return ""


def noiseless(name: str) -> dict[str, object]:
    """Return the accuracy of baselines with `--epsilon inf`, at a claim, and as published."""
    rows = []
    for bare in boards.board(name):
        method, variant = bare.release.method, bare.release.variant
        is_control = has_no_noise(bare) and not bare.is_older and bare.accuracy is not None
        if is_control and method in registry.entries("method", "baselines") and not boards.own(bare).get("method"):
            noisy = [release(name, method, changed, variant) for changed in CLAIMS.values()]
            if noisy[0] is not None and noisy[0].release.claimed_unit:  # else its noise is not for a claim
                published = [first_published([each]) for each in noisy]
                rows.append((method, variant, bare, noisy, published))
    return {"rows": sorted(rows, key=lambda row: (row[0], row[1], with_seeds(row[2]))), "claims": list(CLAIMS)}


def larger() -> dict[str, object]:
    """Return the papers' methods at a claimed 10, at two tiers; DPSD also with equally many labels."""
    methods: list[tuple[str, str, Changed, Changed]]
    methods = [(f"`{name}`", name, {}, {}) for name in registry.entries("method", "methods")]
    # At tier paper that many labels are usual
    methods.append(("`dpsd`, 51,200 labels", "dpsd", given(mode="label"), given(mode="label", queries=51_200)))
    rows = []
    for label, method, large, small in sorted(methods, key=lambda each: each[0]):
        wanted = [(name, *each) for name in ("mnist", "fmnist") for each in (("paper", large), ("quick", small))]
        rows.append((label, [release(name, method, changed, "working", tier=tier) for name, tier, changed in wanted]))
    return {"rows": rows}


CLASSIFIERS: tuple[tuple[str, str, Changed], ...] = (
    ("`private-features`", "private-features", {}),
    ("`patch-features`", "patch-features", {}),
    (
        "`patch-features`, `--method.wide true --method.patch_share 0.75`", "patch-features",
        {"wide": True, "patch_share": 0.75},
    ),
    (
        "`private-features` on EfficientNet-Lite0, pretrained on public photographs", "private-features",
        {"features": "timm:tf_efficientnet_lite0"},
    ),
    (
        "the same, `--method.whitening private`", "private-features",
        {"features": "timm:tf_efficientnet_lite0", "whitening": "private"},
    ),
)  # fmt: skip
"""Label, method and options of the classifiers that a table compares."""


def classifiers() -> dict[str, object]:
    """Return the accuracy of classifiers on fixed features at three accounted epsilons; None where none was run."""
    rows = []
    for name, split, label, count in EXPECTED:
        for setting, method, options in CLASSIFIERS:
            mine = [each for each in boards.board(name, split) if each.release.method == method]
            best = {
                each.options["budget"].get("epsilon", Budget().epsilon): each
                for each in sorted(mine, key=lambda each: (not each.is_older, len(each.runs)))
                if each.options["method"] == options
            }
            if best:
                rows.append((label, count, setting, [best.get(epsilon) for epsilon in (1.0, 3.0, 8.0)]))
    return {"rows": rows}


def students() -> dict[str, object]:
    """Return students that a private classifier taught without any data: options, accuracy, minutes."""
    rows = []
    for name, split, label, _ in EXPECTED:
        for each in boards.board(name, split):
            known = each.options["method"] if each.release.method == "dp-teacher" else {}
            if known.get("conversion") == "transcribe":
                others = {key: value for key, value in known.items() if key not in ("conversion", "teacher")}
                minutes = mean(run.provenance["seconds"]["release"] for run in runs(each)) / 60
                rows.append((label, each, boards.filled({"method": others}), minutes))
    return {"rows": rows}


def votes() -> dict[str, object]:
    """Return a student of moments and votes next to its baseline without the teacher, at the same budget."""
    rows = []
    for name, teachers, epsilon in (("digits", 40, 8.0), ("digits", 40, 2.0), ("mnist", 50, 8.0), ("mnist", 50, 1.0)):
        sound = given(teachers=teachers, epsilon=epsilon, account="accounted")
        label = f"class-moments, {teachers} teachers"
        row = boards.needed(name, Line(label, "class-moments", sound))
        rows.append((name, teachers, epsilon, row, mean(run.metrics["control_accuracy"] for run in runs(row))))
    return {"rows": rows}


def federations(name: str) -> dict[str, object]:
    """Return a row for each one-shot federation on a data set, by the distilled mean and by the network.

    `fedavg` distils nothing; the published `feddf`, which distils the mean of logits, is variant `printed`.
    """
    rows = []
    for method in FEDERATIONS:
        plain = "printed" if method == "fedavg" else "working"
        logits = {"feddf": ("printed", {})}.get(method, ("working", {"mean": "logits"}))
        wanted = [(*logits, "datalens"), (plain, {}, "datalens"), (plain, {}, "dense-cnn")]
        cells = [
            release(name, method, given(epsilon=None, solve="none", **more), variant, tier="quick", student=student)
            for variant, more, student in wanted
        ]
        first = None if method == "fedavg" else cells[0]
        rows.append((method, [first, *cells[1:]], first_published(cells[1:])))
    return {"rows": rows}


def ablations(method: str) -> dict[str, object]:
    """Return the student's accuracies at each setting of an ablation, per data set, of the newest version there.

    Data mode comes first, and in each mode the setting with the fewest changes.
    """
    found: dict[str, dict[str, dict[int, list[float]]]] = {}

    def order(row: dict[str, str]) -> tuple[bool, int, str]:
        changed = json.loads(row["options"])
        return changed["method"].get("mode") == "label", len(changed["method"]) + len(changed["budget"]), row["options"]

    for row in sorted((row for row in read() if row["method"] == method), key=order):
        by_version = found.setdefault(row["options"], {}).setdefault(row["dataset"], {})
        by_version.setdefault(int(row["version"]), []).append(float(row["accuracy"]))
    sets = sorted({dataset for by_set in found.values() for dataset in by_set})
    rows = []
    for changed, by_set in found.items():
        newest = {dataset: max(by_version) for dataset, by_version in by_set.items()}
        cells = [by_set[dataset][newest[dataset]] if dataset in newest else [] for dataset in sets]
        rows.append((boards.filled(read_options(changed)), sorted(set(newest.values())), cells))
    return {"rows": rows, "sets": sets}
