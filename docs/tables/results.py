"""Tables of accuracy: results, all that was measured, headlines, classifiers, votes, ablations."""

from __future__ import annotations

import json
from statistics import mean, median

from bench.boards.board_cells import options
from bench.boards.selection import released
from bench.papers import comparison, printed_numbers
from bench.papers.effects import read
from bench.papers.reasons import reason, without_noise
from bench.papers.results import Result
from bench.privacy.budget import Budget
from bench.storage.options import Changed
from bench.storage.records import Record
from bench.validate import present
from docs.tables.boards import NETWORKS, Row, board, marked, names, of, older, own, records, release
from docs.tables.cells import (
    accounted,
    accuracy,
    claimed,
    control,
    printed,
    sized,
    spread,
    table,
    typed,
    with_seeds,
    without_empty,
)
from docs.tables.lines import ELSEWHERE, HEADLINES, LINES, SOUND, filled, given

ATTACKS = ("gmi", "mi-face", "ami")
FAR = 0.05
"""A shortfall beside print that wants a cause."""
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


def results(name: str) -> str:
    """The most telling releases on a data set."""
    rows = []
    for line in LINES:
        row = release(name, line.method, line.options, attack=ATTACKS[0])
        if row is not None:
            cells = [accuracy(row) + marked(row), claimed(row), accounted(row)]
            rows.append([line.label, row["variant"], *cells, *attacked(name, line.method, line.options)])
    return table(["method, options", "variant", "accuracy", "claimed", "proved, per private record", *ATTACKS], rows)


def attacked(name: str, method: str, options: Changed) -> list[str]:
    """The success of three attacks on the student, in percent; in brackets where an attack did not prove its power."""
    chosen = release(name, method, options, attack=ATTACKS[0])
    same = [] if chosen is None else of(name, method, options, chosen["variant"])
    rows = {row["attack"]: row for row in same if chosen is not None and older(row) == older(chosen)}
    values = []
    for attack in ATTACKS:
        row = rows.get(attack)
        share = f"{100 * float(row['attack_accuracy']):.0f}" if row is not None and row["attack_accuracy"] else ""
        values.append(f"({share})" if row is not None and row["power"] == "inconclusive" else share)
    return values


def headlines(name: str) -> str:
    """Every paper's headline cell beside the variants, as they are and with the ingredient that has no protection."""
    rows = []
    for line in HEADLINES:
        ours = {v: release(name, line.method, line.options, v) for v in ("printed", "working")}
        bare = {v: release(name, line.method, line.unprotected, v) for v in ("printed", "working")}
        told = next((row["reported_accuracy"] for row in ours.values() if row and row["reported_accuracy"]), "")
        rows.append([
            line.cell, f"{100 * float(told):.1f} %" if told else "",
            *(with_seeds(row) for row in ours.values()), line.ingredient, *(with_seeds(row) for row in bare.values()),
        ])  # fmt: skip
    heads = [
        "paper's cell",
        "prints",
        "printed",
        "working",
        "unprotected ingredient",
        "printed, with it",
        "working, with it",
    ]
    return table(heads, rows)


def measured(folder: str, name: str) -> str:
    """Every variant, setting and tier of the methods of a folder that ran on a data set."""
    rows = []
    for method in names("method", folder):
        mine = [row for row in board(name) if row["method"] == method]
        kinds = {
            (row["variant"], released(row), row["tier"] != "quick", *(row[key] for key in NETWORKS)): row
            for row in mine
        }
        for _, one in sorted(kinds.items()):
            row = release(name, method, own(one), one["variant"], **{key: one[key] for key in NETWORKS})
            if row is not None:
                runs = [records()[each] for each in row["runs"].split()]
                rows.append([
                    f"`{method}`", one["variant"], sized(row), accuracy(row) + control(runs) + marked(row),
                    str(len(runs)),
                    claimed(row), accounted(row), printed(row), verdict(row), elsewhere(row), minutes(runs),
                ])  # fmt: skip
    heads = ["name", "variant", "options", "accuracy", "seeds", "claimed", "accounted", "printed", "beside it"]
    return without_empty([*heads, "elsewhere", "minutes"], rows)


def minutes(runs: list[Record]) -> str:
    """What the release took: the median of the runs on a CPU; if none was on one, of those on a GPU, which is said."""
    here = [run for run in runs if run.provenance["device"].startswith("cpu")]
    took = median(run.provenance["seconds"]["release"] for run in here or runs) / 60
    return f"{took:.1f}" + ("" if here else ", GPU")


def elsewhere(row: Row) -> str:
    """What others measured of a method at the same claim, whose, and how far ours is from it, in points."""
    if not row["claim_unit"]:
        return ""
    claim, of = float(row["epsilon_claimed"]), (row["method"], row["dataset"])
    found = next(
        (told for (*who, at), told in ELSEWHERE.items() if (*who,) == of and abs(claim - at) < 0.02 * at), None
    )
    if found is None:
        return ""
    value, whose = found
    return f"{100 * value:.1f} ({whose}), {100 * (float(row['accuracy_mean']) - value):+.1f}"


def noiseless(folder: str, name: str) -> str:
    """What methods of a folder reach with `--epsilon inf`, beside what they reach at a claim, and what is printed."""
    rows = []
    for bare in board(name):
        method, result = bare["method"], Result.of(bare)
        if not result.has_no_noise or result.is_older or result.accuracy is None:
            continue
        if method not in names("method", folder) or own(bare).get("method"):
            continue
        noisy = [release(name, method, options, bare["variant"]) for options in CLAIMS.values()]
        if noisy[0] is not None and noisy[0]["claim_unit"]:  # else its noise is of another thing
            found = [with_seeds(row) + (", older version" if row and older(row) else "") for row in noisy]
            told = [
                f"{100 * float(row['reported_accuracy']):.1f}" if row and row["reported_accuracy"] else "-"
                for row in noisy
            ]
            rows.append([f"`{method}`", bare["variant"], with_seeds(bare), *found, " / ".join(told)])
    return table(["name", "variant", "without noise", *CLAIMS, "printed for these"], sorted(rows))


def larger() -> str:
    """The papers' methods at a claimed 10, at tier paper and quick, each as it is and DPSD with as many labels."""
    labels: Changed = {"method": {"mode": "label"}}
    many: Changed = {"method": {"mode": "label", "questions": 51200}}  # at tier paper so many are usual
    asked = [(f"`{name}`", name, {}, {}) for name in names("method", "methods")]
    asked.append(("`dpsd`, 51,200 labels", "dpsd", filled(labels), filled(many)))
    rows = []
    for told, method, large, small in sorted(asked):
        cells = [
            with_seeds(release(name, method, options, "working", tier=tier))
            for name in ("mnist", "fmnist")
            for tier, options in (("paper", filled(large)), ("quick", filled(small)))
        ]
        rows.append([told, *cells])
    return table(["at a claimed 10", "MNIST, paper", "quick", "Fashion-MNIST, paper", "quick"], rows)


def verdict(row: Row) -> str:
    """How far ours is from the number printed, in points; the code of the reason where it is more than five behind."""
    if not row["reported_accuracy"]:
        return ""
    paper, name = row["reported_source"].split(" ", 1)
    published = float(row["reported_accuracy"])
    (line, *_) = [
        line
        for line in comparison.compare(printed_numbers.table(paper, name), [Result.of(row)], lambda *_: True)
        if line.result is not None and line.entry.value == published
    ]
    points = f"{100 * present(line.difference, 'difference from the published accuracy'):+.1f}"
    controls = without_noise(map(Result.of, board(row["dataset"])))
    why = reason(line, controls) if line.difference < -FAR else None
    return points if why is None else f"{points}, {why.code}"


def classifiers() -> str:
    """What `private-features` reaches at three proved epsilons."""
    rows = []
    for name, split, label, count in EXPECTED:
        ran = [(options(r["options"]), r) for r in board(name, split) if r["method"] == "private-features"]
        best = {
            held["budget"].get("epsilon", Budget().epsilon): with_seeds(row) + (", older version" if older(row) else "")
            for held, row in sorted(ran, key=lambda each: (not older(each[1]), len(each[1]["seeds"].split())))
            if not held["method"]
        }
        rows.append([label, f"{count:,}", *(best[epsilon] for epsilon in (1.0, 3.0, 8.0))])
    return table(["data", "records", "epsilon 1", "epsilon 3", "epsilon 8"], rows)


def students() -> str:
    """Students that a private classifier taught without any data: what each is, reaches, and took."""
    rows = []
    for name, split, label, _ in EXPECTED:
        for row in board(name, split):
            told = options(row["options"])["method"] if row["method"] == "dp-teacher" else {}
            if told.get("conversion") != "transcribe":
                continue
            others = {key: value for key, value in told.items() if key not in ("conversion", "teacher")}
            took = mean(records()[each].provenance["seconds"]["release"] for each in row["runs"].split()) / 60
            rows.append([
                label, f"`{row['student']}`", typed(filled({"method": others, "budget": {}, "attack": {}})),
                f"{float(row['epsilon_accounted']):.3g}", with_seeds(row) + (", older version" if older(row) else ""),
                f"{took:.0f}",
            ])  # fmt: skip
    return table(["data", "student", "options", "epsilon, proved", "accuracy", "minutes of one core"], rows)


def votes() -> str:
    """A student of moments and votes beside its control, which asks no teacher and has the same budget."""
    rows = []
    for name, teachers, epsilon in (("digits", 40, 8.0), ("digits", 40, 2.0), ("mnist", 50, 8.0), ("mnist", 50, 1.0)):
        row = release(name, "class-moments", given(teachers=teachers, epsilon=epsilon, **SOUND))
        if row is None:
            raise KeyError(f"class-moments with {teachers} teachers is not on {name}")
        alone = mean(records()[each].metrics["control_accuracy"] for each in row["runs"].split())
        rows.append([name, str(teachers), f"{epsilon:g}", with_seeds(row), f"{100 * alone:.1f} %"])
    return table(["data set", "teachers", "epsilon, proved", "with their votes", "control, no teacher asked"], rows)


def ablations(method: str) -> str:
    """The student's mean accuracy at each setting of an ablation, per data set, of the newest version there."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    mine = [row for row in read() if row["method"] == method]
    for row in sorted(mine, key=by_mode):
        options = typed(filled(json.loads(row["options"]))) or "as it is"
        by_version = found.setdefault(options, {}).setdefault(row["dataset"], {})
        by_version.setdefault(int(row["version"]), []).append(float(row["accuracy"]))
    sets = sorted({dataset for by_set in found.values() for dataset in by_set})
    rows = []
    for options, by_set in found.items():
        newest = {dataset: max(by_version) for dataset, by_version in by_set.items()}
        cells = [spread(by_set[dataset][newest[dataset]]) if dataset in newest else "" for dataset in sets]
        rows.append([options, ", ".join(map(str, sorted(set(newest.values())))), *cells])
    return table(["options", "version", *sets], rows)


def by_mode(row: dict[str, str]) -> tuple[bool, int, str]:
    """Where a row of ablations stands: data mode first, in each mode what leaves least out."""
    options = json.loads(row["options"])
    return options["method"].get("mode") == "label", len(options["method"]) + len(options["budget"]), row["options"]
