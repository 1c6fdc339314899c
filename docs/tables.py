"""The tables of results in docs/, from leaderboards/ and from nothing else.

    python docs/tables.py            # writes them again
    python docs/tables.py --check    # fails if one of them is not what the boards and records say

A table stands between `<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bench import leaderboard, registry
from bench.leaderboard import printed_information, reported
from bench.metrics.table import metrics
from bench.storage.options import BUDGET, Changed
from bench.storage.records import Record

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(r"(<!-- table (\w+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
ATTACKS = ("gmi", "mi-face", "ami")
TARGETS = {"data": ("dpsd", {}), "label": ("dpsd", {"method": {"mode": "label"}}), "teacher": ("no-defence", {})}
"""Targets of the matrix of attacks: method and options."""
REMEMBERING = {"epochs": 12}
"""Options of the teachers of recipes/membership.toml."""


def given(**options: Any) -> Changed:
    """Options as records hold them, group to option to value."""
    found: Changed = {"method": {}, "budget": {}}
    for name, value in options.items():
        found["budget" if name in BUDGET else "method"][name] = value
    return filled(found)


def filled(options: Changed) -> Changed:
    """The groups that hold any."""
    return {group: held for group, held in options.items() if held}


SOUND: dict[str, Any] = {"account": "accounted"}
LABEL = given(epsilon=1.0, unit="label", **SOUND)
NONE = given(epsilon="inf", solve="none")


@dataclass(frozen=True)
class Line:
    """A row of the tables of results: its label, a method, and its options; one that did not run on a data set is left
    out there."""

    label: str
    method: str
    options: Changed = field(default_factory=dict)


LINES = (
    Line("no-defence", "no-defence"),
    *(
        Line(f"class-moments, {n} teachers, `--epsilon {e:g}`", "class-moments", given(teachers=n, epsilon=e, **SOUND))
        for n, e in ((40, 8.0), (40, 2.0), (50, 8.0), (50, 1.0))
    ),
    *(Line(f"class-moments, `--epsilon {e:g}`", "class-moments", given(epsilon=e, **SOUND)) for e in (8.0, 2.0, 1.0)),
    *(Line(f"private-features, `--epsilon {e:g}`", "private-features", given(epsilon=e)) for e in (8.0, 3.0, 1.0)),
    *(Line(f"scatter-cnn, `--epsilon {e:g}`", "scatter-cnn", given(epsilon=e)) for e in (8.0, 3.0, 1.0)),
    Line("dp-dfd", "dp-dfd"),
    Line("dpsd, label mode", "dpsd", given(mode="label")),
    Line("dpdfd", "dpdfd"),
    Line("fed-dpsd", "fed-dpsd"),
    Line("fed-dpsd, label mode", "fed-dpsd", given(mode="label")),
    Line("dpsd, label mode, 51,200 questions", "dpsd", given(mode="label", questions=51_200)),
    Line("dpsd (the default)", "dpsd"),
    Line("dpsd, beta 1e-3", "dpsd", given(beta=1e-3)),
    Line("dgd", "dgd"),
    *(
        Line(name, name)
        for name in ("ts-adp", "dp-sgd", "gm-dp", "zcdp", "dp-teacher", "dp-merf", "p3gm", "psg", "dp-gan")
    ),
    *(Line(name, name) for name in ("rgp", "dp-blsgd", "spectral-dp", "topagg", "geddp", "dpgen")),
    Line("dp-sinkhorn", "dp-sinkhorn"),
    *(
        Line(f"{name}, `--account accounted`", name, given(**SOUND))
        for name in ("gep", "gs-wgan", "datalens", "pate", "pate-gnmax", "pate-gan", "g-pate")
    ),
    *(Line(f"{m}, `--epsilon 1 --unit label`", m, LABEL) for m in ("alibi", "lp-2st", "rr-debiased", "rr")),
    *(Line(name, name, NONE) for name in ("non-private-kd", "label-smoothing", "fedavg", "feddf")),
    *(Line(name, name, NONE) for name in ("raw-images", "acgan", "wgan", "infogan")),
)
Row = dict[str, str]


@dataclass(frozen=True)
class Headline:
    """A paper's headline cell: its method and options, and the unprotected ingredient that the paper itself names."""

    cell: str
    method: str
    options: Changed = field(default_factory=dict)
    ingredient: str = ""
    unprotected: Changed = field(default_factory=dict)


HEADLINES = (
    Headline("DPSD, Table I", "dpsd", {}, "the generator learns from the teacher", given(discriminator="teacher")),
    Headline(
        "DPSD, Table VI, label mode", "dpsd", given(mode="label"), "the same",
        given(mode="label", discriminator="teacher"),
    ),
    Headline("DPDFD, Table 1", "dpdfd", {}, "Table 4: trained on the private images", given(data="private")),
    Headline("DP-DFD, Table I", "dp-dfd", {}, "the teacher's own vectors as answers", given(answers="soft")),
    Headline("DGD, Table I", "dgd", {}, "the teachers' votes without noise", NONE),
)  # fmt: skip


@cache
def board(name: str) -> list[Row]:
    """The releases of a committed board; reference images are none."""
    rows = reported.boards(ROOT / "leaderboards")
    return [row for row in rows if row["dataset"] == name and row["kind"] != "reference"]


@cache
def records() -> dict[str, Record]:
    """Every committed record by its hash."""
    return {r.hash: r for r in leaderboard.read((ROOT / "leaderboards" / "records").glob("*.json"))}


def names(kind: str, folder: str) -> list[str]:
    """What the registry has of a kind in a folder, by name."""
    return list(registry.entries(kind, folder))


def attacks(goal: str) -> list[str]:
    """The attacks with a goal, by name."""
    return [name for name in registry.entries("attack") if registry.load("attack", name).goal == goal]


def of(name: str, method: str, options: Changed | None, variant: str | None = None) -> list[Row]:
    """The rows of a board with a method, exactly these options of its own, and a variant, or any."""
    rows = [row for row in board(name) if row["method"] == method and variant in (None, row["variant"])]
    return [row for row in rows if own(row) == options]


def own(row: Row) -> Changed:
    """The options of a row but the attack's."""
    return filled(reported.options(row["options"]) | {"attack": {}})


def release(name: str, method: str, options: Changed | None, variant: str | None = None) -> Row | None:
    """The row of a release with most seeds, whatever attacked it; None if it was not run.

    Of several variants the default one, if it was run; a row of an older version where there is no other.
    """
    usual = registry.variants("method", method)[-1]
    found = of(name, method, options, variant)
    return max(
        found,
        key=lambda row: (row["variant"] == usual, not older(row), len(row["seeds"].split()), row["attack"] == "gmi"),
        default=None,
    )


def older(row: Row) -> bool:
    """Whether the method or the attack has changed since."""
    return "older-version" in row["flags"].split()


def accuracy(row: Row | None) -> str:
    """Mean and standard deviation of a row, in percent."""
    if row is None:
        return ""
    spread = f" ± {100 * float(row['accuracy_std']):.1f}" if row["accuracy_std"] else ""
    return f"{100 * float(row['accuracy_mean']):.1f}{spread} %"


def epsilon(row: Row, number: str, unit: str) -> str:
    """A claimed or accounted epsilon of a row."""
    if not row[unit]:
        return "none"
    if math.isinf(float(row[number])):
        return "infinite"
    value = float(row[number])
    return f"{value:,.0f}" if value > 100 else f"{value:.3g}"


def claimed(row: Row) -> str:
    """The claim, with its unit where that is not a private record."""
    unit = {"query": " per answer", "label": " per label"}.get(row["claim_unit"], "")
    return epsilon(row, "epsilon_claimed", "claim_unit") + unit


def accounted(row: Row) -> str:
    """The account, with its unit where that is not a private record."""
    return epsilon(row, "epsilon_accounted", "unit") + {"label": " per label", "client": " per client"}.get(
        row["unit"], ""
    )


def attacked(name: str, method: str, options: Changed) -> list[str]:
    """The success of three attacks on the student, in percent; in brackets where an attack did not prove its power."""
    chosen = release(name, method, options)
    same = [] if chosen is None else of(name, method, options, chosen["variant"])
    rows = {row["attack"]: row for row in same if chosen is not None and older(row) == older(chosen)}
    values = []
    for attack in ATTACKS:
        row = rows.get(attack)
        share = f"{100 * float(row['attack_accuracy']):.0f}" if row is not None and row["attack_accuracy"] else ""
        values.append(f"({share})" if row is not None and row["power"] == "inconclusive" else share)
    return values


def results(name: str) -> str:
    """The most telling releases on a data set."""
    rows = []
    for line in LINES:
        row = release(name, line.method, line.options)
        if row is not None:
            cells = [accuracy(row), claimed(row), accounted(row)]
            rows.append([line.label, row["variant"], *cells, *attacked(name, line.method, line.options)])
    return table(["method, options", "variant", "accuracy", "claimed", "proved, per private record", *ATTACKS], rows)


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


def with_seeds(row: Row | None) -> str:
    """Accuracy, and how many seeds where they are not three."""
    if row is None:
        return ""
    count = len(row["seeds"].split())
    return accuracy(row) + ("" if count == 3 else f" ({count} seed{'s' * (count > 1)})")


def measured(folder: str, name: str) -> str:
    """Every variant and setting of the methods of a folder that ran on a data set."""
    rows = []
    for method in names("method", folder):
        kinds = {(row["variant"], row["setting"]): own(row) for row in board(name) if row["method"] == method}
        for variant, setting in sorted(kinds):
            row = release(name, method, kinds[variant, setting], variant)
            if row is not None:
                mine = [records()[each] for each in row["runs"].split()]
                minutes = median(r.provenance["seconds"]["release"] for r in mine) / 60
                rows.append([
                    f"`{method}`", variant, typed(own(row)), accuracy(row) + control(mine), str(len(mine)),
                    claimed(row), accounted(row), printed(row), f"{minutes:.1f}",
                ])  # fmt: skip
    return table(
        ["name", "variant", "options", "accuracy", "seeds", "claimed", "accounted", "printed", "minutes"], rows
    )


def typed(options: Changed) -> str:
    """Options as the command takes them; that nothing is solved for goes without saying."""
    words = []
    for group, held in options.items():
        for name, value in sorted(held.items(), key=lambda item: BUDGET.index(item[0]) if group == "budget" else 0):
            if (name, value) != ("solve", "none"):
                flag = name if group == "budget" else f"{group}.{name}"
                text = str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
                words.append(f"--{flag} {text}")
    return "`" + " ".join(words) + "`" if words else ""


def control(mine: list[Record]) -> str:
    """The accuracy of the control that asks no teacher, where there is one."""
    found = [value for r in mine if (value := r.metrics.get("control_accuracy")) is not None]
    return f" (control {100 * mean(found):.1f})" if len(found) == len(mine) else ""


def printed(row: Row) -> str:
    """What a paper prints."""
    value = row["reported_accuracy"]
    return f"{100 * float(value):.1f} ({row['reported_source']})" if value else ""


@cache
def matrix(name: str) -> dict[str, dict[str, Record]]:
    """Attack to target to record of seed 0; of the attack's newest version and its own options' defaults."""
    found: dict[str, dict[str, Record]] = {}
    for record in records().values():
        attack, method = record.spec["attack"], record.spec["release"]["method"]
        if attack is None or leaderboard.dataset(record) != name or leaderboard.seed(record) != 0:
            continue
        for target, known in TARGETS.items():
            newest = attack["version"] == registry.load("attack", attack["attack"]).version
            if newest and (method, filled(record.options)) == known:
                found.setdefault(attack["attack"], {})[target] = record
    return found


def inversion(name: str) -> str:
    """The matrix of the attacks that reconstruct images and ran on every target."""
    rows = []
    for attack in attacks("inversion"):
        runs = matrix(name).get(attack, {})
        if not runs.keys() >= TARGETS.keys():
            continue
        first = next(iter(runs.values())).metrics
        success = [first["teacher_attack_accuracy"], first["random_attack_accuracy"]]
        success += [runs[target].metrics["attack_accuracy"] for target in TARGETS]
        scores = [first["teacher_inception_score"], *(runs[t].metrics["inception_score"] for t in ("data", "label"))]
        gaps = [first["teacher_knn_gap"], runs["data"].metrics["knn_gap"]]
        rows.append([
            f"`{attack}`", *map(percent, success), joined(scores, 2), joined(gaps, 1),
            power(runs.values()),
        ])  # fmt: skip
    heads = ["attack", "teacher", "random net", "student: dpsd, data", "student: dpsd, label", "no-defence"]
    return table([*heads, "IS teacher / data / label", "KNN gap teacher / data", "power"], rows)


def membership(name: str) -> str:
    """The matrix of the attacks that guess who was in the training data and ran on every target."""
    rows = []
    for attack in attacks("membership"):
        runs = matrix(name).get(attack, {})
        if not runs.keys() >= TARGETS.keys():
            continue
        places = [("data", "teacher_"), ("data", "random_"), ("data", ""), ("label", "")]
        rows.append([
            f"`{attack}`", *(interval(runs[target].metrics, f"{of}auc") for target, of in places), power(runs.values()),
        ])  # fmt: skip
    return table(["attack", "AUC teacher", "AUC random net", "AUC dpsd, data", "AUC dpsd, label", "power"], rows)


def remembered(name: str) -> str:
    """Membership in the training data of teachers that remember them, by `REMEMBERING`, a value per seed."""
    rows = []
    for row in sorted(board(name), key=lambda row: (row["method"] != "no-defence", row["method"], row["setting"])):
        teacher = reported.options(row["options"])["teacher"]
        if row["attack"] == "loss-threshold" and REMEMBERING.items() <= teacher.items():
            mine = [records()[each] for each in row["runs"].split()]
            others = filled(own(row) | {"teacher": {}})
            rows.append([
                f"`{row['method']}`", row["variant"], typed(others), accuracy(row), claimed(row), accounted(row),
                " / ".join(interval(r.metrics, "auc") for r in mine),
                " / ".join(percent(r.metrics["tpr_at_1pct"]) for r in mine), power(mine),
            ])  # fmt: skip
    heads = ["name", "variant", "options", "accuracy", "claimed", "accounted", "AUC of loss-threshold"]
    heads.append(metrics()["tpr_at_1pct"].label)
    return table([*heads, "power"], rows)


def audited(name: str) -> str:
    """What audits of whole releases measured, beside what the releases promise for one private record."""
    rows, kinds = [], {}
    for row in sorted(board(name), key=lambda row: (not older(row), len(row["seeds"].split()))):
        if row["epsilon_audited"]:
            kinds[row["method"], row["variant"], row["setting"]] = row
    for (method, variant, _), row in sorted(kinds.items()):
        found = [row[key] for key in ("epsilon_audited", "audited_teacher", "audited_null", "audited_ceiling")]
        rows.append([
            f"`{method}`" + (", older version" if older(row) else ""), variant, typed(own(row)), claimed(row),
            accounted(row), *(f"{float(value):.2f}" for value in found),
        ])  # fmt: skip
    bounds = ["student, at least", "undefended teacher", "null run", "ceiling"]
    return table(["name", "variant", "options", "claimed", "accounted", *bounds], rows)


def excluded() -> str:
    """The printed accuracies that need more than the settings printed beside them let through; a sentence that repeats
    a table is left out."""
    rows = []
    for entry in reported.load():
        if printed_information.exceeds(entry) and not entry.table.startswith("text"):
            rows.append([
                entry.source, entry.dataset, f"{entry.epsilon:g}", entry.ablation, entry.printed,
                f"{printed_information.allowed(entry):.3f}", f"{printed_information.least(entry):.1f}",
                f"{printed_information.carried(entry):.2f}",
            ])  # fmt: skip
    heads = ["where", "data set", "epsilon", "ablation", "printed accuracy", "possible at most"]
    return table([*heads, "nats needed, at least", "nats carried, at most"], rows)


def ablations(method: str) -> str:
    """docs/ablations.csv: the student's mean accuracy at each setting, per data set, and the versions that ran."""
    found: dict[str, dict[str, list[float]]] = {}
    versions: dict[str, set[str]] = {}
    mine = [row for row in read_rows(ROOT / "docs" / "ablations.csv") if row["method"] == method]
    for row in sorted(mine, key=by_mode):
        options = typed(filled(json.loads(row["options"]))) or "as it is"
        found.setdefault(options, {}).setdefault(row["dataset"], []).append(float(row["accuracy"]))
        versions.setdefault(options, set()).add(row["version"])
    sets = sorted({dataset for by_set in found.values() for dataset in by_set})
    rows = [
        [options, ", ".join(sorted(versions[options])), *(spread(by_set.get(dataset, [])) for dataset in sets)]
        for options, by_set in found.items()
    ]
    return table(["options", "version", *sets], rows)


def by_mode(row: dict[str, str]) -> tuple[bool, int, str]:
    """Where a row of ablations stands: data mode first, in each mode what leaves least out."""
    options = json.loads(row["options"])
    return options["method"].get("mode") == "label", len(options["method"]) + len(options["budget"]), row["options"]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def spread(accuracies: list[float]) -> str:
    """Mean and deviation in percent, with the number of seeds if that is not three; "" of none."""
    if not accuracies:
        return ""
    seeds = "" if len(accuracies) == 3 else f" ({len(accuracies)} seeds)" if len(accuracies) > 1 else " (1 seed)"
    deviation = f" ± {100 * stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * mean(accuracies):.1f}{deviation} %{seeds}"


def percent(value: float | None) -> str:
    """A share in percent, or that there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def interval(metrics: dict[str, Any], key: str) -> str:
    """A metric with its 95 % interval."""
    return f"{metrics[key]:.3f} [{metrics[f'{key}.lo']:.2f}, {metrics[f'{key}.hi']:.2f}]"


def joined(values: Iterable[float | None], places: int) -> str:
    """Numbers with slashes between them."""
    return " / ".join("-" if value is None else f"{value:.{places}f}" for value in values)


def power(runs: Iterable[Record]) -> str:
    """Whether the attack proved its power in every run."""
    return " / ".join(sorted({"pass" if run.status == "ok" else run.status for run in runs}))


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    **{f"results_{name}": partial(results, name) for name in ("digits", "mnist")},
    **{f"methods_{name}": partial(measured, "methods", name) for name in ("digits", "mnist")},
    **{f"baselines_{name}": partial(measured, "baselines", name) for name in ("digits", "mnist")},
    **{f"inversion_{name}": partial(inversion, name) for name in ("digits", "mnist")},
    **{f"membership_{name}": partial(membership, name) for name in ("digits", "mnist")},
    **{f"audited_{name}": partial(audited, name) for name in ("digits", "mnist")},
    "remembered_cifar10": partial(remembered, "cifar10-jpeg"),
    "excluded": excluded,
    "headlines": partial(headlines, "mnist"),
    "ablations_dpsd": partial(ablations, "dpsd"),
}
PAGES = tuple(
    ROOT / "docs" / f"{name}.md" for name in ("results", "methods", "baselines", "attacks", "audits", "information")
)


def rewritten(page: Path) -> str:
    """A page with its tables made again."""
    return PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Write or check all pages. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page would change")
    given = parser.parse_args(arguments)
    stale = [page for page in PAGES if rewritten(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        if given.check:
            print(
                f"{page.relative_to(ROOT)}: a table is not what the boards say; python docs/tables.py", file=sys.stderr
            )
        else:
            page.write_text(rewritten(page), encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
