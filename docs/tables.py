"""The tables of results in docs/, from leaderboards/ and from nothing else.

    python docs/tables.py            # writes them again
    python docs/tables.py --check    # fails if one of them is not what the boards and records say

A table stands between `<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, cast
from unittest.mock import patch

from rich.console import Console

from bench import leaderboard, registry
from bench.cli import result
from bench.leaderboard import printed_information, reported
from bench.metrics.table import metrics
from bench.pipeline.run import Outcome
from bench.pipeline.settings import Settings
from bench.storage.options import BUDGET, Changed
from bench.storage.records import Record

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
ATTACKS = ("gmi", "mi-face", "ami")
TARGETS = {"data": ("dpsd", {}), "label": ("dpsd", {"method": {"mode": "label"}}), "teacher": ("no-defence", {})}
"""Targets of the matrix of attacks: method and options."""
REMEMBERING = {"epochs": 12}
"""Options of the teachers of recipes/membership.toml."""
EXPECTED = (
    ("mnist", "MNIST", 50_000),
    ("fmnist", "Fashion-MNIST", 50_000),
    ("cifar10-jpeg", "CIFAR-10, as JPEG", 41_667),
)
"""Data sets of docs/true-epsilon.md: board, name, private records."""
DEMO = (" gmi on", " attack accuracy", " retrieval  ", " above floor")
"""How the lines of the attack begin that the README shows."""


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
    out there. Of several variants the default one is meant, unless `variant` names another."""

    label: str
    method: str
    options: Changed = field(default_factory=dict)
    variant: str | None = None


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


FINDINGS = {
    "answers": (
        Line("`dpsd`, data mode", "dpsd"),
        Line("`dpsd`, label mode", "dpsd", given(mode="label")),
        Line("`dpdfd`", "dpdfd"),
        Line("`dp-dfd`", "dp-dfd"),
        Line("`fed-dpsd`, data mode", "fed-dpsd"),
    ),
    "free": (
        Line("25,600 answers", "dpsd", given(mode="label")),
        Line("51,200, as many as the paper", "dpsd", given(mode="label", questions=51_200)),
        Line("409,600 answers, at a claimed 1", "dpsd", given(mode="label", questions=409_600, copies=32, epsilon=1.0)),
    ),
    "bound": (
        Line("beta = 0.005", "dpsd"),
        Line("beta = 0.001", "dpsd", given(beta=1e-3)),
    ),
    "nothing": (
        Line("DGD, generator from the baseline classifier", "dgd", {}, "printed"),
        Line("DP-DFD, soft answers", "dp-dfd", given(answers="soft"), "printed"),
        Line("DPSD-T, generator from the teacher", "dpsd", given(discriminator="teacher"), "printed"),
        Line("DPDFD, Table 4, private images in the update", "dpdfd", given(data="private"), "printed"),
    ),
    "printed": (
        Line("DPSD, data mode", "dpsd", {}, "printed"),
        Line("DPSD, label mode", "dpsd", given(mode="label"), "printed"),
        Line("DPDFD", "dpdfd", {}, "printed"),
        Line("DP-DFD", "dp-dfd", {}, "printed"),
        Line("DGD", "dgd", {}, "printed"),
    ),
    "true": (
        Line("`private-features`", "private-features", given(epsilon=1.0)),
        Line(
            "`dp-teacher`, a student that it teaches", "dp-teacher",
            given(teacher="private-features", conversion="transcribe", epsilon=1.0),
        ),
        Line("`class-moments`, 50 teachers", "class-moments", given(teachers=50, epsilon=1.0, **SOUND)),
        Line("`dpsd`", "dpsd", given(epsilon=1.0)),
        Line("`dpdfd`", "dpdfd", given(epsilon=1.0)),
        Line(
            "`dp-dfd`, 409,600 answers", "dp-dfd", given(amount=409_600, copies=32, epsilon=1.0),
        ),
    ),
}  # fmt: skip
"""Of docs/findings.md, all on MNIST."""
SHOWN = (
    Line("no defence: the teacher", "no-defence"),
    Line("`dpsd`, claimed 10 per answer", "dpsd"),
    Line("`dp-sgd`", "dp-sgd"),
    Line("`dp-teacher`, taught by that network", "dp-teacher"),
    Line("`class-moments`, which asks no teacher", "class-moments", given(epsilon=2.0, **SOUND)),
)
"""Networks that `gmi` inverts, of docs/findings.md."""


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


def floors(name: str) -> str:
    """Attacks beside retrieval of the attacker's own images, on each target of their run on the default `dpsd`."""
    rows = []
    for attack in ("gmi", "mi-face"):
        known = matrix(name)[attack]["data"].metrics
        for target, of in (("teacher", "teacher_"), ("student: `dpsd`", ""), ("random net", "random_")):
            gain, low, high = (100 * known[f"{of}above_floor{end}"] for end in ("", ".lo", ".hi"))
            shares = [percent(known[f"{of}{key}_accuracy"]) for key in ("attack", "retrieval")]
            latents = known.get(f"{of}retrieval_latents_accuracy")
            floor = "" if latents is None else percent(latents)
            rows.append([f"`{attack}`", target, *shares, f"{gain:.1f} [{low:.1f}, {high:.1f}]", floor])
    return table(["attack", "target", "attack accuracy", "retrieval", "above floor", "latents retrieved"], rows)


def classifiers() -> str:
    """What `private-features` reaches at three proved epsilons."""
    rows = []
    for name, label, records in EXPECTED:
        of = [row for row in board(name) if row["method"] == "private-features"]
        best = {reported.options(row["options"])["budget"]["epsilon"]: with_seeds(row) for row in of}
        rows.append([label, f"{records:,}", *(best[epsilon] for epsilon in (1.0, 3.0, 8.0))])
    return table(["data", "records", "epsilon 1", "epsilon 3", "epsilon 8"], rows)


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


def found(finding: str) -> str:
    """What docs/findings.md sets side by side: print, and what was measured, claimed and proved here."""
    rows = []
    for line in FINDINGS[finding]:
        row = release("mnist", line.method, line.options, line.variant)
        if row is None:
            raise KeyError(f"{finding}: {line.label} is on no board")
        rows.append([line.label, printed(row), with_seeds(row), claimed(row), accounted(row)])
    return table(["on MNIST", "the paper prints", "here", "claimed", "proved, per private record"], rows)


def shown() -> str:
    """How well `gmi` inverts networks of digits that know of their records what a proved epsilon allows."""
    rows = []
    for line in SHOWN:
        row = release("digits", line.method, line.options)
        if row is None or row["attack"] != "gmi":
            raise KeyError(f"{line.label} was not attacked by gmi")
        public = f"{100 * float(row['retrieval_accuracy']):.0f} %" if row["retrieval_accuracy"] else "not measured"
        success = f"{100 * float(row['attack_accuracy']):.0f} %"
        rows.append([line.label, with_seeds(row), accounted(row), success, public])
    heads = ["inverted, on digits", "accuracy", "proved, per private record"]
    return table([*heads, "`gmi` shows the class", "the attacker's own images do"], rows)


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


def issues() -> str:
    """How many of the papers' printed numbers a contradiction touches, by paper."""
    rows = read_rows(reported.FILE)
    papers = list(dict.fromkeys(row["paper"] for row in rows))
    slugs = sorted({slug for row in rows for slug in row["issue"].split()})
    counts = [
        [slug, *(sum(slug in r["issue"].split() for r in rows if r["paper"] == p) for p in papers)] for slug in slugs
    ]
    touched = [sum(bool(row["issue"]) for row in rows if row["paper"] == paper) for paper in papers]
    every = [sum(row["paper"] == paper for row in rows) for paper in papers]
    lines = [[f"`{slug}`", *(str(count or "") for count in of)] for slug, *of in counts]
    ends = [["touched by any", *map(str, touched)], ["all that are in the file", *map(str, every)]]
    return table(["issue", *(f"`{paper}`" for paper in papers)], [*lines, *ends])


def demo() -> str:
    """What `make demo` ends with, of the published record of its command; most numbers of the attack are left out."""
    row = release("digits", "dpsd", {})
    if row is None or row["attack"] != "gmi":
        raise KeyError("the run of `make demo` is on no board")
    record, settings = records()[row["runs"].split()[0]], Settings("dpsd", "gmi")
    console = Console(file=io.StringIO(), width=120, highlight=False)
    with patch.object(result, "out", console):
        result.show(Outcome(record, settings.out / "records" / record.hash, cached=False), settings)
    lines = [line.rstrip() for line in cast(io.StringIO, console.file).getvalue().strip().splitlines()]
    starts = (" gmi on", " no target asked", "power gate", "record ")
    attack, others, gate, paths = (next(at for at, line in enumerate(lines) if line.startswith(s)) for s in starts)
    some = [line for line in lines[attack:others] if line.startswith(DEMO)]
    return "\n".join(["```", *lines[:attack], *some, " ...", *lines[gate:paths], "```"])


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
    **{f"found_{name}": partial(found, name) for name in FINDINGS},
    "shown": shown,
    "votes": votes,
    "issues": issues,
    "demo": demo,
    "floors_digits": partial(floors, "digits"),
    "classifiers": classifiers,
    "ablations_dpsd": partial(ablations, "dpsd"),
}
DATA_PAGES = ("results", "methods", "baselines", "attacks", "audits", "information", "findings", "true-epsilon")
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in DATA_PAGES))


def rewritten(page: Path) -> str:
    """A page with its tables made again."""
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", page.read_text(encoding="utf-8"))


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
