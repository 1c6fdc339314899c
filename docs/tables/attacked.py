"""Rows of the tables of attacks: inversion, its baselines, faces, membership."""

from __future__ import annotations

from functools import cache
from statistics import mean, stdev

from bench import boards, registry
from bench.boards.best import EPSILONS, Best, Kind, best_releases
from bench.boards.coverage import AttackKind, numbered_reasons
from bench.boards.gaps import covered, read_gaps
from bench.boards.results import Result
from bench.boards.tables import ACCURACY, LOWER, read_board, read_boards
from bench.errors import BenchError
from bench.metrics.table import metrics
from bench.storage.records import Record
from docs.tables.boards import ROOT, attack_of, board, filled, lines, needed, own, parsed, records, release, runs
from docs.tables.cells import interval, percent, power, typed

TARGETS = {"data": ("dpsd", {}), "label": ("dpsd", parsed("mode=label")), "teacher": ("no-defence", {})}
"""Targets of the matrix of attacks: method and options."""
REMEMBERING = {"epochs": 12}
"""Options of the teachers of recipes/membership.toml."""


@cache
def matrix(name: str) -> dict[str, dict[str, Record]]:
    """Return attack to target to record of seed 0, of the attack's newest version and its default options."""
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
    """Return the attacks with a goal that ran on every target of the matrix, with their runs."""
    named = [attack for attack in registry.entries("attack") if registry.load("attack", attack).goal == goal]
    found = [(attack, matrix(name).get(attack, {})) for attack in named]
    return {"rows": [(attack, runs) for attack, runs in found if runs.keys() >= TARGETS.keys()]}


def retrieval(name: str) -> dict[str, object]:
    """Return two attacks next to retrieval of the attacker's own images, on each target of their run on `dpsd`."""
    return {"rows": [(attack, matrix(name)[attack]["data"].metrics) for attack in ("gmi", "mi-face")]}


def faces(name: str) -> dict[str, object]:
    """Return the identification of people on a data set whose classes are people, by the independent judge."""

    def order(each: Result) -> tuple[bool, str, str, float]:
        method = each.release.method
        return method != "no-defence", method, attack_of(each), -(each.on_teacher(ACCURACY) or 0.0)

    judged = [each for each in board(name, "identity") if each.value("judge_accuracy") is not None]
    found = sorted((each for each in judged if not each.is_older), key=order)
    return {
        "rows": [
            (each, own(each, "teacher", "budget"), each.on_teacher(ACCURACY), attack_of(each), runs(each)[0].metrics)
            for each in found
        ]
    }


def shown() -> dict[str, object]:
    """Return how well `gmi` inverts students of digits at several accounted epsilons."""
    # Measured on the unprotected teacher with every student; the result of the teacher itself is older than retrieval
    known = (each.on_teacher("retrieval_accuracy") for each in board("digits") if attack_of(each) == "gmi")
    on_teachers = next(filter(None, known), None)
    rows = []
    for line in lines("shown"):
        result = needed("digits", line, attack="gmi")
        retrieved = result.value("retrieval_accuracy") or (on_teachers if line.method == "no-defence" else None)
        rows.append((line, result, result.value("attack_accuracy"), retrieved))
    return {"rows": rows}


def released(name: str) -> dict[str, object]:
    """Return membership by released images and generators, next to memorising and untrained generators."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    controls: dict[str, Record] = {}
    accuracies: dict[tuple[str, str, str], Result] = {}
    for each in board(name):
        known = None if each.is_older else runs(each)[0]
        if known is None or "memorising_auc" not in known.metrics:
            continue
        key, attack = (each.release.method, each.release.variant, typed(own(each))), _attack_name(each)
        unsure = "" if power([known]) == "pass" else ", inconclusive"
        found.setdefault(key, {})[attack] = interval(known.metrics, "auc") + unsure
        accuracies[key] = each
        if attack not in controls or known.metrics["memorising_auc"] > controls[attack].metrics["memorising_auc"]:
            controls[attack] = known
    attacks = sorted(controls)
    rows = [(key, accuracies[key], [cells.get(name, "") for name in attacks]) for key, cells in sorted(found.items())]
    return {"attacks": attacks, "controls": [controls[attack].metrics for attack in attacks], "rows": rows}


def remembered(name: str) -> dict[str, object]:
    """Return membership in the training data of teachers that memorise it (`REMEMBERING`), a value per seed."""

    def order(each: Result) -> tuple[bool, str, str]:
        return each.release.method != "no-defence", each.release.method, each.setting

    found = sorted((each for each in board(name) if attack_of(each) == "loss-threshold"), key=order)
    overfitted = [each for each in found if REMEMBERING.items() <= each.options["teacher"].items()]
    rows = [(each, own(each, "teacher"), runs(each)) for each in overfitted]
    return {"rows": rows, "label": metrics()["tpr_at_1pct"].label}


def few(name: str, split: str = "few") -> dict[str, object]:
    """Return membership on a split whose teachers memorise, by every attack at its present version."""
    found: dict[tuple[bool, str, str, str], dict[str, Result]] = {}
    for each in board(name, split):
        if each.value("auc") is not None and not each.is_older:
            row = each.release
            mine = found.setdefault(
                (row.method != "no-defence", row.method, row.variant, typed(own(each, "teacher"))), {}
            )
            attack = _attack_name(each)
            if attack not in mine or len(each.runs) > len(mine[attack].runs):  # of a spec with another option
                mine[attack] = each
    attacks = sorted({attack for rows in found.values() for attack in rows})
    rows = []
    for (*_, others), mine in sorted(found.items(), key=lambda kind: kind[0]):
        cells = [_area([run.metrics for run in runs(mine[each])]) if each in mine else "" for each in attacks]
        rows.append((max(mine.values(), key=lambda each: len(each.runs)), others, cells))
    return {"attacks": attacks, "rows": rows}


def _attack_name(result: Result) -> str:
    """Return the attack of a result, with the options that make it another attack."""
    chosen = result.options["attack"]
    more = [", white box"] * (chosen.get("box") == "white")
    more += [", not calibrated"] * (chosen.get("calibration") == "none")
    more += [", converted references"] * (chosen.get("reference_kind") == "student")
    return "".join([f"`{attack_of(result)}`", *more])


def _area(known: list[dict[str, float | None]]) -> str:
    """Format an AUC, and its gain over a network without the records where that was measured.

    One seed has the interval over its suspects; several have their mean and standard deviation.
    """
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


def coverage(name: str) -> dict[str, object]:
    """Return the recommended releases of a board with a cell for each kind of attack, and the numbered reasons."""
    folder = ROOT / "leaderboards"
    found = covered(read_board(folder, name), read_gaps(folder) or [])
    reasons = numbered_reasons(found)
    rows = [
        (each.release, [f"{cell} ({reasons[cell.reason]})" if cell.reason else str(cell) for cell in each.cells])
        for each in found
    ]
    return {"kinds": [*AttackKind], "rows": rows, "reasons": reasons}


def best() -> dict[str, object]:
    """Return for every data set and kind the best release within each epsilon, and the attacks on the last one."""
    found = [(board.dataset, each) for board in read_boards(ROOT / "leaderboards") for each in best_releases(board)]
    kinds: dict[tuple[str, Kind], dict[float, Best]] = {}
    for dataset, each in found:
        kinds.setdefault((dataset, each.kind), {})[each.limit] = each
    return {"limits": EPSILONS, "rows": list(kinds.items())}


def examples() -> dict[str, object]:
    """Return numbers of the kinds that docs/attacks.md explains; the template's words hold for these only."""
    gmi = matrix("digits")["gmi"]["data"].metrics
    bare, unsure = _membership("cifar10-jpeg", "no-defence").metrics, _membership("digits", "dp-sgd")
    caught, held = release("mnist", "no-defence", {}), release("digits", "ts-adp", {})
    if caught is None or held is None:
        raise BenchError("no-defence is not on the board of mnist, or ts-adp not on that of digits")
    part = (gmi["teacher_knn_gap"] - gmi["random_knn_gap"]) / gmi["teacher_knn_distance"]
    bounds = [each.value(LOWER) or 0.0 for each in (caught, held)]
    fits = gmi["retrieval_accuracy"] > 0.5 and gmi["above_floor"] <= 0 and part < 0.05 and bare["auc.lo"] > 0.5
    fits &= bare["tpr_at_1pct"] < 0.05 and unsure.status == "inconclusive" and bounds[1] > 0
    if not fits:
        raise BenchError("docs/templates/examples.j2: the numbers have changed, and its words no longer hold")
    return {"gmi": gmi, "part": percent(part), "bare": bare, "unsure": unsure.metrics, "bounds": bounds}


def _membership(name: str, method: str) -> Record:
    """Return the first run of `loss-threshold` on a method, in the board's order."""
    found = (each for each in board(name) if (each.release.method, attack_of(each)) == (method, "loss-threshold"))
    return runs(next(found))[0]
