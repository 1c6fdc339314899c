"""Rows of the tables of accuracy: results, all that was measured, students, federations, ablations."""

from __future__ import annotations

import json
from statistics import mean

from bench import registry
from bench.boards.board_cells import options
from bench.boards.wide import released
from bench.papers import comparison, printed_numbers
from bench.papers.effects import read
from bench.papers.reasons import reason, without_noise
from bench.papers.results import Result
from bench.privacy.budget import Budget
from bench.storage.options import Changed
from bench.validate import present
from docs.tables import boards
from docs.tables.boards import Line, Row, given, release, runs
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
    """The most telling releases on a data set, and three attacks on each."""
    ran = [(line, release(name, line.method, line.options, attack=ATTACKS[0])) for line in boards.lines("results")]
    return {"rows": [(line, row, attacked(name, line.method, line.options)) for line, row in ran if row is not None]}


def attacked(name: str, method: str, changed: Changed) -> list[str]:
    """The success of three attacks on the student, in percent; in brackets where an attack did not prove its power."""
    chosen = release(name, method, changed, attack=ATTACKS[0])
    same = [] if chosen is None else boards.of(name, method, changed, chosen["variant"])
    rows = {row["attack"]: row for row in same if chosen is not None and boards.older(row) == boards.older(chosen)}
    values = []
    for attack in ATTACKS:
        row = rows.get(attack)
        share = f"{100 * float(row['attack_accuracy']):.0f}" if row is not None and row["attack_accuracy"] else ""
        values.append(f"({share})" if row is not None and row["power"] == "inconclusive" else share)
    return values


def headlines(name: str) -> dict[str, object]:
    """Every paper's headline cell next to the variants, as they are and with the ingredient that has no protection."""
    rows = []
    for line in boards.lines("headlines"):
        printed, working, *bare = (
            release(name, line.method, changed, variant)
            for changed in (line.options, line.unprotected)
            for variant in ("printed", "working")
        )
        known = next((row["reported_accuracy"] for row in (printed, working) if row and row["reported_accuracy"]), "")
        rows.append((line, known, printed, working, *bare))
    return {"rows": rows}


def measured(folder: str, name: str) -> dict[str, object]:
    """Every variant, setting and tier of the methods of a folder that ran on a data set."""
    rows = []
    for method in registry.entries("method", folder):
        kinds = {
            (row["variant"], released(row), row["tier"] != "quick", *(row[key] for key in boards.NETWORKS)): row
            for row in boards.board(name)
            if row["method"] == method
        }
        for _, one in sorted(kinds.items()):
            row = release(name, method, boards.own(one), one["variant"], **{key: one[key] for key in boards.NETWORKS})
            if row is not None:
                rows.append((row, runs(row), verdict(row), elsewhere(row)))
    shown = {"printed": any(row["reported_accuracy"] for row, *_ in rows), "elsewhere": any(row[3] for row in rows)}
    return {"rows": rows, "shown": shown | {"verdict": any(row[2] for row in rows)}}


def verdict(row: Row) -> str:
    """How far ours is from the number printed, in points; the code of the reason where it is more than five behind."""
    if not row["reported_accuracy"]:
        return ""
    paper, name = row["reported_source"].split(" ", 1)
    published = float(row["reported_accuracy"])
    compared = comparison.compare(printed_numbers.table(paper, name), [Result.of(row)], lambda *_: True)
    line = next(each for each in compared if each.result is not None and each.entry.value == published)
    points = f"{100 * present(line.difference, 'difference from the published accuracy'):+.1f}"
    controls = without_noise(map(Result.of, boards.board(row["dataset"])))
    why = reason(line, controls) if line.difference < -FAR else None
    return points if why is None else f"{points}, {why.code}"


def elsewhere(row: Row) -> str:
    """The accuracy that others measured of a method at the same claim (elsewhere.csv), whose, and how far ours is from
    it, in points."""
    for other in boards.read_rows(boards.ROOT / "docs" / "tables" / "elsewhere.csv") if row["claim_unit"] else ():
        at, value, ours = (float(each) for each in (other["epsilon"], other["accuracy"], row["accuracy_mean"]))
        same = (other["method"], other["dataset"]) == (row["method"], row["dataset"])
        if same and abs(float(row["epsilon_claimed"]) - at) < 0.02 * at:
            return f"{100 * value:.1f} ({other['source']}), {100 * (ours - value):+.1f}"
    return ""


def noiseless(name: str) -> dict[str, object]:
    """Accuracy of baselines with `--epsilon inf`, next to what they reach at a claim, and what is printed."""
    rows = []
    for bare in boards.board(name):
        method, result = bare["method"], Result.of(bare)
        is_control = result.has_no_noise and not result.is_older and result.accuracy is not None
        if is_control and method in registry.entries("method", "baselines") and not boards.own(bare).get("method"):
            noisy = [release(name, method, changed, bare["variant"]) for changed in CLAIMS.values()]
            if noisy[0] is not None and noisy[0]["claim_unit"]:  # else its noise is of another thing
                rows.append((method, bare["variant"], bare, noisy))
    return {"rows": sorted(rows, key=lambda row: (row[0], row[1], with_seeds(row[2]))), "claims": list(CLAIMS)}


def larger() -> dict[str, object]:
    """The papers' methods at a claimed 10, at tier paper and quick, each as it is and DPSD with as many labels."""
    methods: list[tuple[str, str, Changed, Changed]]
    methods = [(f"`{name}`", name, {}, {}) for name in registry.entries("method", "methods")]
    # At tier paper that many labels are usual
    methods.append(("`dpsd`, 51,200 labels", "dpsd", given(mode="label"), given(mode="label", questions=51_200)))
    rows = []
    for label, method, large, small in sorted(methods, key=lambda each: each[0]):
        wanted = [(name, *each) for name in ("mnist", "fmnist") for each in (("paper", large), ("quick", small))]
        rows.append((label, [release(name, method, changed, "working", tier=tier) for name, tier, changed in wanted]))
    return {"rows": rows}


def classifiers() -> dict[str, object]:
    """The accuracy of `private-features` at three proved epsilons."""
    rows = []
    for name, split, label, count in EXPECTED:
        mine = [row for row in boards.board(name, split) if row["method"] == "private-features"]
        best = {
            held["budget"].get("epsilon", Budget().epsilon): row
            for row in sorted(mine, key=lambda row: (not boards.older(row), boards.seeds(row)))
            if not (held := options(row["options"]))["method"]
        }
        rows.append((label, count, [best[epsilon] for epsilon in (1.0, 3.0, 8.0)]))
    return {"rows": rows}


def students() -> dict[str, object]:
    """Students that a private classifier taught without any data: what each is, reaches, and took."""
    rows = []
    for name, split, label, _ in EXPECTED:
        for row in boards.board(name, split):
            known = options(row["options"])["method"] if row["method"] == "dp-teacher" else {}
            if known.get("conversion") == "transcribe":
                others = {key: value for key, value in known.items() if key not in ("conversion", "teacher")}
                took = mean(run.provenance["seconds"]["release"] for run in runs(row)) / 60
                rows.append((label, row, boards.filled({"method": others}), took))
    return {"rows": rows}


def votes() -> dict[str, object]:
    """A student of moments and votes next to its control, which queries no teacher and has the same budget."""
    rows = []
    for name, teachers, epsilon in (("digits", 40, 8.0), ("digits", 40, 2.0), ("mnist", 50, 8.0), ("mnist", 50, 1.0)):
        sound = given(teachers=teachers, epsilon=epsilon, account="accounted")
        label = f"class-moments, {teachers} teachers"
        row = boards.needed(name, Line(label, "class-moments", sound))
        rows.append((name, teachers, epsilon, row, mean(run.metrics["control_accuracy"] for run in runs(row))))
    return {"rows": rows}


def federations(name: str) -> dict[str, object]:
    """A row for each one-shot federation on a data set, by the mean that is distilled and by the network. `fedavg`
    distils nothing, and of `feddf` it is variant `printed` that distils the mean of logits, as published."""
    rows = []
    for method in FEDERATIONS:
        plain = "printed" if method == "fedavg" else "working"
        logits = {"feddf": ("printed", {})}.get(method, ("working", {"mean": "logits"}))
        wanted = [(*logits, "datalens"), (plain, {}, "datalens"), (plain, {}, "dense-cnn")]
        cells = [
            release(name, method, given(epsilon=None, solve="none", **more), variant, tier="quick", student=student)
            for variant, more, student in wanted
        ]
        known = next((row["reported_accuracy"] for row in cells[1:] if row and row["reported_accuracy"]), "")
        rows.append((method, [None if method == "fedavg" else cells[0], *cells[1:]], known))
    return {"rows": rows}


def ablations(method: str) -> dict[str, object]:
    """The student's accuracies at each setting of an ablation, per data set, of the newest version there."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in sorted((row for row in read() if row["method"] == method), key=_by_mode):
        by_version = found.setdefault(row["options"], {}).setdefault(row["dataset"], {})
        by_version.setdefault(int(row["version"]), []).append(float(row["accuracy"]))
    sets = sorted({dataset for by_set in found.values() for dataset in by_set})
    rows = []
    for changed, by_set in found.items():
        newest = {dataset: max(by_version) for dataset, by_version in by_set.items()}
        cells = [by_set[dataset][newest[dataset]] if dataset in newest else [] for dataset in sets]
        rows.append((boards.filled(json.loads(changed)), sorted(set(newest.values())), cells))
    return {"rows": rows, "sets": sets}


def _by_mode(row: dict[str, str]) -> tuple[bool, int, str]:
    """Where a row of ablations is: data mode first, in each mode the setting that leaves least out."""
    changed = json.loads(row["options"])
    return changed["method"].get("mode") == "label", len(changed["method"]) + len(changed["budget"]), row["options"]
