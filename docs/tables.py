"""The tables of results in README.md and docs/, from leaderboards/ and from nothing else.

    python docs/tables.py            # writes them anew
    python docs/tables.py --check    # fails if one of them is not what the boards and records say

A table stands between `<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench import leaderboard, registry
from bench.leaderboard import reported
from bench.storage.records import Record

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(r"(<!-- table (\w+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
ATTACKS = ("gmi", "mi-face", "ami")
INVERSION = ("gmi", "ked-mi", "vmi", "lomma", "plg-mi", "mi-face", "dafl", "deepinversion", "rlb-mi", "brep-mi", "ami")
MEMBERSHIP = ("loss-threshold", "rmia", "lira", "shadow")
TARGETS = {"data": ("dpsd", ""), "label": ("dpsd", "mode=label"), "teacher": ("no-defence", "")}
"""Targets of the matrix of attacks: method and setting."""
METHODS = ("dpsd", "fed-dpsd", "dpdfd", "dp-dfd", "dgd")
BASELINES = (
    "label-smoothing", "non-private-kd", "dp-sgd", "ts-adp", "gm-dp", "zcdp", "dp-teacher", "dp-merf", "p3gm", "psg",
    "dp-gan", "gs-wgan", "dp-sinkhorn", "pate-gan", "pate", "pate-gnmax", "rr", "rr-debiased", "lp-2st", "alibi",
    "fedavg", "feddf",
)  # fmt: skip
CLAIM_HOLDS = ("ts-adp", "dp-sgd", "gm-dp", "zcdp", "dp-teacher", "dp-merf", "p3gm", "psg", "dp-gan", "dp-sinkhorn")
OF_RUN = ("epsilon", "account", "unit", "delta", "teachers", "solve", "teacher", "student", "noise")
"""Settings of a board that are options of every run; others are the method's."""
REMEMBERING = "teacher.epochs=12"
"""The teachers of recipes/membership.toml, in a setting."""
SOUND = "account=accounted"
LABEL = f"epsilon=1.0 {SOUND} unit=label"
NONE = "epsilon=inf solve=none"


@dataclass(frozen=True)
class Line:
    """A row of the README's table: its label, a method, and the setting on each board; None where it is not run."""

    label: str
    method: str
    digits: str | None = ""
    mnist: str | None = ""


LINES = (
    Line("no-defence", "no-defence"),
    Line(
        "dpsd, 40 / 50 teachers, `--epsilon 8 --account accounted`", "dpsd", f"teachers=40 epsilon=8.0 {SOUND}",
        f"teachers=50 epsilon=8.0 {SOUND}",
    ),
    Line("dpsd, 40 teachers, `--epsilon 2 --account accounted`", "dpsd", f"teachers=40 epsilon=2.0 {SOUND}", None),
    Line("dpsd, 50 teachers, `--epsilon 1 --account accounted`", "dpsd", None, f"teachers=50 epsilon=1.0 {SOUND}"),
    Line("dp-dfd", "dp-dfd"),
    Line("dpsd, label mode", "dpsd", "mode=label", "mode=label"),
    Line("dpdfd", "dpdfd"),
    Line("fed-dpsd", "fed-dpsd"),
    Line("fed-dpsd, label mode", "fed-dpsd", "mode=label", "mode=label"),
    Line("dpsd (the default)", "dpsd"),
    Line("dgd", "dgd"),
    *(Line(name, name) for name in CLAIM_HOLDS),
    *(Line(f"{name}, `--account accounted`", name, SOUND, SOUND) for name in ("gs-wgan", "pate", "pate-gnmax")),
    Line("pate-gan, `--account accounted`", "pate-gan", SOUND, SOUND),
    *(Line(f"{m}, `--epsilon 1 --unit label`", m, LABEL, LABEL) for m in ("alibi", "lp-2st", "rr-debiased", "rr")),
    *(Line(name, name, NONE, NONE) for name in ("non-private-kd", "label-smoothing", "fedavg", "feddf")),
)  # fmt: skip
Row = dict[str, str]


@cache
def board(name: str) -> list[Row]:
    """The releases of a committed board; reference images are none."""
    rows = reported.boards(ROOT / "leaderboards")
    return [row for row in rows if row["dataset"] == name and row["kind"] != "reference"]


@cache
def records() -> dict[str, Record]:
    """Every committed record by its hash."""
    return {r.hash: r for r in leaderboard.read((ROOT / "leaderboards" / "records").glob("*.json"))}


def release(name: str, method: str, setting: str | None) -> Row | None:
    """The row of a release with most seeds, whatever attacked it; None if it was not run."""
    found = [row for row in board(name) if (row["method"], row["setting"]) == (method, setting)]
    return max(found, key=lambda row: (len(row["seeds"].split()), row["attack"] == "gmi"), default=None)


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
    if not row[number]:
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


def attacked(name: str, method: str, setting: str | None) -> str:
    """The success of three attacks on the student, in percent; in brackets where an attack did not prove its power."""
    rows = {row["attack"]: row for row in board(name) if (row["method"], row["setting"]) == (method, setting)}
    values = []
    for attack in ATTACKS:
        row = rows.get(attack)
        share = f"{100 * float(row['attack_accuracy']):.0f}" if row is not None and row["attack_accuracy"] else "-"
        values.append(f"({share})" if row is not None and row["power"] == "inconclusive" else share)
    return " / ".join(values) if set(values) != {"-"} else ""


def results() -> str:
    """The README's table."""
    rows = []
    for line in LINES:
        digits, mnist = release("digits", line.method, line.digits), release("mnist", line.method, line.mnist)
        known = digits or mnist
        if known is None:
            raise SystemExit(f"no row of the boards is '{line.label}'")
        rows.append([
            line.label, accuracy(digits), accuracy(mnist), claimed(known), accounted(known),
            attacked("digits", line.method, line.digits), attacked("mnist", line.method, line.mnist),
        ])  # fmt: skip
    trio = " / ".join(ATTACKS)
    heads = ["method, options", "digits", "MNIST", "claimed", "proved, per private record", f"digits: {trio}"]
    return table([*heads, f"MNIST: {trio}"], rows)


def measured(methods: tuple[str, ...], name: str) -> str:
    """Every setting of some methods that ran on a data set."""
    rows = []
    for method in methods:
        for setting in sorted({row["setting"] for row in board(name) if row["method"] == method}):
            row = release(name, method, setting)
            if row is not None:
                mine = [records()[each] for each in row["runs"].split()]
                minutes = median(r.provenance["seconds"]["release"] for r in mine) / 60
                rows.append([
                    f"`{method}`", options(setting), accuracy(row) + control(mine), str(len(mine)), claimed(row),
                    accounted(row), printed(row), f"{minutes:.1f}",
                ])  # fmt: skip
    return table(["name", "options", "accuracy", "seeds", "claimed", "accounted", "printed", "minutes"], rows)


def options(setting: str) -> str:
    """A board's setting as options of the command."""
    words = [word.split("=", 1) for word in setting.split()]
    given = {key: value.removesuffix(".0") for key, value in words if (key, value) != ("solve", "none")}
    names = {key: key if key in OF_RUN or "." in key else f"method.{key}" for key in given}
    return "`" + " ".join(f"--{names[key]} {value}" for key, value in given.items()) + "`" if given else ""


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
            if newest and (method, record.setting) == known:
                found.setdefault(attack["attack"], {})[target] = record
    return found


def inversion(name: str) -> str:
    """The matrix of the attacks that reconstruct images."""
    rows = []
    for attack in INVERSION:
        runs = matrix(name)[attack]
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
    """The matrix of the attacks that guess who was in the training data."""
    rows = []
    for attack in MEMBERSHIP:
        runs = matrix(name)[attack]
        places = [("data", "teacher_"), ("data", "random_"), ("data", ""), ("label", "")]
        rows.append([
            f"`{attack}`", *(interval(runs[target].metrics, f"{of}auc") for target, of in places), power(runs.values()),
        ])  # fmt: skip
    return table(["attack", "AUC teacher", "AUC random net", "AUC dpsd, data", "AUC dpsd, label", "power"], rows)


def remembered(name: str) -> str:
    """Membership in the training data of teachers that remember them, by `REMEMBERING`, a value per seed."""
    rows = []
    for row in sorted(board(name), key=lambda row: (row["method"] != "no-defence", row["method"], row["setting"])):
        if row["attack"] == "loss-threshold" and REMEMBERING in row["setting"]:
            mine = [records()[each] for each in row["runs"].split()]
            own = " ".join(word for word in row["setting"].split() if not word.startswith("teacher."))
            rows.append([
                f"`{row['method']}`", options(own), accuracy(row), claimed(row), accounted(row),
                " / ".join(interval(r.metrics, "auc") for r in mine),
                " / ".join(percent(r.metrics["tpr_at_1pct"]) for r in mine), power(mine),
            ])  # fmt: skip
    heads = ["name", "options", "accuracy", "claimed", "accounted", "AUC of loss-threshold", "TPR at FPR 1 %"]
    return table([*heads, "power"], rows)


def audited(name: str) -> str:
    """What audits of whole releases measured, beside what the releases promise for one private record."""
    rows = []
    for method, setting in sorted({(row["method"], row["setting"]) for row in board(name) if row["epsilon_audited"]}):
        row = release(name, method, setting)
        if row is not None:
            found = [row[key] for key in ("epsilon_audited", "audited_teacher", "audited_null", "audited_ceiling")]
            rows.append([
                f"`{method}`", options(setting), claimed(row), accounted(row),
                *(f"{float(value):.2f}" for value in found),
            ])  # fmt: skip
    bounds = ["student, at least", "undefended teacher", "null run", "ceiling"]
    return table(["name", "options", "claimed", "accounted", *bounds], rows)


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
    "results": results,
    **{f"methods_{name}": partial(measured, METHODS, name) for name in ("digits", "mnist")},
    **{f"baselines_{name}": partial(measured, BASELINES, name) for name in ("digits", "mnist")},
    **{f"inversion_{name}": partial(inversion, name) for name in ("digits", "mnist")},
    **{f"membership_{name}": partial(membership, name) for name in ("digits", "mnist")},
    **{f"audited_{name}": partial(audited, name) for name in ("digits", "mnist")},
    "remembered_cifar10": partial(remembered, "cifar10-jpeg"),
}
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("methods", "baselines", "attacks", "audits")))


def rewritten(page: Path) -> str:
    """A page with its tables made anew."""
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
