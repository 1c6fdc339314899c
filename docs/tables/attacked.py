"""Rows of the tables of attacks: inversion, its floors, faces, membership."""

from __future__ import annotations

from functools import cache
from statistics import mean, stdev

from bench import boards, registry
from bench.boards.board_cells import options
from bench.errors import BenchError
from bench.metrics.table import metrics
from bench.storage.records import Record
from docs.tables.boards import Row, board, filled, lines, needed, older, own, parsed, records, release, runs, seeds
from docs.tables.cells import interval, percent, power, typed

TARGETS = {"data": ("dpsd", {}), "label": ("dpsd", parsed("mode=label")), "teacher": ("no-defence", {})}
"""Targets of the matrix of attacks: method and options."""
REMEMBERING = {"epochs": 12}
"""Options of the teachers of recipes/membership.toml."""


@cache
def matrix(name: str) -> dict[str, dict[str, Record]]:
    """Attack to target to record of seed 0; of the attack's newest version and its own options' defaults."""
    found: dict[str, dict[str, Record]] = {}
    for record in records().values():
        attack, method = record.spec["attack"], record.spec["release"]["method"]
        if attack is None or boards.dataset(record) != name or boards.seed(record) != 0:
            continue
        for target, known in TARGETS.items():
            newest = attack["version"] == registry.load("attack", attack["attack"]).version
            if newest and (method, filled(record.options)) == known:
                found.setdefault(attack["attack"], {})[target] = record
    return found


def attacks_on_all(goal: str, name: str) -> dict[str, object]:
    """The attacks with a goal that ran on every target of the matrix, with their runs."""
    named = [attack for attack in registry.entries("attack") if registry.load("attack", attack).goal == goal]
    found = [(attack, matrix(name).get(attack, {})) for attack in named]
    return {"rows": [(attack, runs) for attack, runs in found if runs.keys() >= TARGETS.keys()]}


def floors(name: str) -> dict[str, object]:
    """Attacks next to retrieval of the attacker's own images, on each target of their run on the default `dpsd`."""
    return {"rows": [(attack, matrix(name)[attack]["data"].metrics) for attack in ("gmi", "mi-face")]}


def faces(name: str) -> dict[str, object]:
    """Who is given away of a data set whose classes are people, by the judge that this project did not train."""

    def order(row: Row) -> tuple[object, ...]:
        return row["method"] != "no-defence", row["method"], row["attack"], -float(row["teacher_accuracy"])

    found = [row for row in sorted(board(name, "identity"), key=order) if row["judge_accuracy"] and not older(row)]
    return {"rows": [(row, own(row, "teacher", "budget"), runs(row)[0].metrics) for row in found]}


def shown() -> dict[str, object]:
    """How well `gmi` inverts networks of digits that know of their records what a proved epsilon allows."""
    # Measured on the undefended teacher with every student; the row of the teacher itself is older than the floor
    known = (row["teacher_retrieval_accuracy"] for row in board("digits") if row["attack"] == "gmi")
    on_teachers = next(filter(None, known), "")
    found = [(line, needed("digits", line, attack="gmi")) for line in lines("shown")]
    return {
        "rows": [
            (line, row, row["retrieval_accuracy"] or (on_teachers if line.method == "no-defence" else ""))
            for line, row in found
        ]
    }


def released(name: str) -> dict[str, object]:
    """Membership by released images and generators, next to generators that remember and that know nothing."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    controls: dict[str, Record] = {}
    accuracies: dict[tuple[str, str, str], Row] = {}
    for row in board(name):
        known = runs(row)[0] if row["runs"] and not older(row) else None
        if known is None or "memorising_auc" not in known.metrics:
            continue
        key, how = (row["method"], row["variant"], typed(own(row))), _how(row)
        unsure = "" if power([known]) == "pass" else ", inconclusive"
        found.setdefault(key, {})[how] = interval(known.metrics, "auc") + unsure
        accuracies[key] = row
        if how not in controls or known.metrics["memorising_auc"] > controls[how].metrics["memorising_auc"]:
            controls[how] = known
    played = sorted(controls)
    rows = [(key, accuracies[key], [cells.get(how, "") for how in played]) for key, cells in sorted(found.items())]
    return {"attacks": played, "controls": [controls[how].metrics for how in played], "rows": rows}


def remembered(name: str) -> dict[str, object]:
    """Membership in the training data of teachers that remember them, by `REMEMBERING`, a value per seed."""
    rows = [
        (row, own(row, "teacher"), runs(row))
        for row in sorted(board(name), key=lambda row: (row["method"] != "no-defence", row["method"], row["setting"]))
        if row["attack"] == "loss-threshold" and REMEMBERING.items() <= options(row["options"])["teacher"].items()
    ]
    return {"rows": rows, "label": metrics()["tpr_at_1pct"].label}


def few(name: str, split: str = "few") -> dict[str, object]:
    """Membership of a split whose teachers remember, by every attack of which the bench has today's version."""
    found: dict[tuple[bool, str, str, str], dict[str, Row]] = {}
    for row in board(name, split):
        if row["auc"] and not older(row):
            key = (row["method"] != "no-defence", row["method"], row["variant"], typed(own(row, "teacher")))
            mine, how = found.setdefault(key, {}), _how(row)
            if how not in mine or seeds(row) > seeds(mine[how]):  # more seeds, of a spec with another option
                mine[how] = row
    played = sorted({attack for rows in found.values() for attack in rows})
    rows = []
    for (*_, others), mine in sorted(found.items()):
        cells = [_area([run.metrics for run in runs(mine[how])]) if how in mine else "" for how in played]
        rows.append((max(mine.values(), key=seeds), others, cells))
    return {"attacks": played, "rows": rows}


def _how(row: Row) -> str:
    """The attack of a row, and those of its options that make it another one."""
    chosen = options(row["options"]).get("attack", {})
    more = [", white box"] * (chosen.get("box") == "white")
    more += [", not calibrated"] * (chosen.get("calibration") == "none")
    more += [", converted references"] * (chosen.get("reference_kind") == "student")
    return "".join([f"`{row['attack']}`", *more])


def _area(known: list[dict[str, float | None]]) -> str:
    """An AUC, and how far it is above that of a network without the records, where that was measured: of one seed with
    the interval over its suspects, of several their mean and standard deviation."""
    gains = [gain for each in known if (gain := each.get("auc_gain")) is not None]
    if len(known) > 1:
        areas = [each["auc"] for each in known if each["auc"] is not None]
        if len(areas) < len(known):
            raise BenchError(f"{len(areas)} of {len(known)} seeds have an AUC; expected all")
        found = f"{mean(areas):.3f} ± {stdev(areas):.3f}"
        return f"{found}; {mean(gains):+.3f} ± {stdev(gains):.3f}" if len(gains) == len(known) else found
    (only,) = known
    found = interval(only, "auc")
    return f"{found}; {gains[0]:+.3f} [{only['auc_gain.lo']:+.2f}, {only['auc_gain.hi']:+.2f}]" if gains else found


def examples() -> dict[str, object]:
    """Numbers of the kinds that docs/attacks.md explains; the template has the words, which hold for these only."""
    gmi = matrix("digits")["gmi"]["data"].metrics
    bare, unsure = _membership("cifar10-jpeg", "no-defence").metrics, _membership("digits", "dp-sgd")
    caught, held = release("mnist", "no-defence", {}), release("digits", "ts-adp", {})
    if caught is None or held is None:
        raise BenchError("no-defence is not on the board of mnist, or ts-adp not on that of digits")
    part = (gmi["teacher_knn_gap"] - gmi["random_knn_gap"]) / gmi["teacher_knn_distance"]
    fits = gmi["retrieval_accuracy"] > 0.5 and gmi["above_floor"] <= 0 and part < 0.05 and bare["auc.lo"] > 0.5
    fits &= bare["tpr_at_1pct"] < 0.05 and unsure.status == "inconclusive" and float(held["epsilon_audited"]) > 0
    if not fits:
        raise BenchError("docs/templates/examples.j2: the numbers have changed, and its words no longer hold")
    return {"gmi": gmi, "part": percent(part), "bare": bare, "unsure": unsure.metrics, "caught": caught, "held": held}


def _membership(name: str, method: str) -> Record:
    """The first run of `loss-threshold` on a method, in the board's order."""
    return next(runs(row)[0] for row in board(name) if (row["method"], row["attack"]) == (method, "loss-threshold"))
