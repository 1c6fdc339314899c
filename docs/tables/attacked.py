"""Tables of attacks: inversion, its floors, membership."""

from __future__ import annotations

from functools import cache

from bench import boards, registry
from bench.boards.board_cells import options
from bench.metrics.table import metrics
from bench.storage.records import Record
from docs.tables.boards import Row, attacks, board, older, own, records, release
from docs.tables.cells import (
    accounted,
    accuracy,
    claimed,
    interval,
    joined,
    over_seeds,
    percent,
    power,
    table,
    typed,
    with_seeds,
)
from docs.tables.lines import SHOWN, filled

TARGETS = {"data": ("dpsd", {}), "label": ("dpsd", {"method": {"mode": "label"}}), "teacher": ("no-defence", {})}
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


def faces(name: str, split: str = "identity") -> str:
    """Who is given away of a data set whose classes are people, by the judge that this project did not train."""
    lines = []
    for row in sorted(
        board(name, split),
        key=lambda row: (row["method"] != "no-defence", row["method"], row["attack"], -float(row["teacher_accuracy"])),
    ):
        if not row["judge_accuracy"] or older(row):
            continue
        known = records()[row["runs"].split()[0]].metrics
        gain, low, high = (100 * known[f"above_floor{end}"] for end in ("", ".lo", ".hi"))
        shares = [interval(known, f"{key}judge_accuracy") for key in ("", "retrieval_", "retrieval_mean_")]
        others = typed(filled(own(row) | {"teacher": {}, "budget": {}}))
        lines.append([
            f"`{row['method']}`", row["variant"], others, accuracy(row), percent(float(row["teacher_accuracy"])),
            claimed(row), accounted(row), f"`{row['attack']}`", *shares, f"{gain:.1f} [{low:.1f}, {high:.1f}]",
            interval(known, "judge_near"), percent(known["attack_accuracy"]),
        ])  # fmt: skip
    heads = ["name", "variant", "options", "accuracy", "teacher's", "claimed", "accounted", "attack"]
    heads += [
        "right person, by the judge",
        "retrieval",
        "its mean",
        "above retrieval",
        "nearer than 0.6",
        "right person, by the evaluator",
    ]
    return table(heads, lines)


def shown() -> str:
    """How well `gmi` inverts networks of digits that know of their records what a proved epsilon allows."""
    rows = []
    # Asked of the undefended teacher beside every student; the row of the teacher itself is older than the floor
    on_teachers = next(
        filter(None, (row["teacher_retrieval_accuracy"] for row in board("digits") if row["attack"] == "gmi")), ""
    )
    for line in SHOWN:
        row = release("digits", line.method, line.options, attack="gmi")
        if row is None or row["attack"] != "gmi":
            raise KeyError(f"{line.label} was not attacked by gmi")
        preferred = row["retrieval_accuracy"] or (on_teachers if line.method == "no-defence" else "")
        public = f"{100 * float(preferred):.0f} %" if preferred else "not measured"
        success = f"{100 * float(row['attack_accuracy']):.0f} %"
        rows.append([line.label, with_seeds(row), accounted(row), success, public])
    heads = ["inverted, on digits", "accuracy", "proved, per private record"]
    return table([*heads, "`gmi` shows the class", "the attacker's own images do"], rows)


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


def released(name: str) -> str:
    """Membership by released images and generators, beside generators that remember and that know nothing."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    controls: dict[str, Record] = {}
    accuracies: dict[tuple[str, str, str], str] = {}
    for row in board(name):
        known = records()[row["runs"].split()[0]] if row["runs"] else None
        if known is None or "memorising_auc" not in known.metrics or older(row):
            continue
        key, how = (row["method"], row["variant"], typed(filled(own(row)))), _how(row)
        unsure = "" if power([known]) == "pass" else ", inconclusive"
        found.setdefault(key, {})[how] = interval(known.metrics, "auc") + unsure
        accuracies[key] = accuracy(row)
        if how not in controls or known.metrics["memorising_auc"] > controls[how].metrics["memorising_auc"]:
            controls[how] = known
    attacks = sorted(controls)
    lines = [
        [said, "", "", "", *(interval(controls[how].metrics, f"{of}auc") for how in attacks)]
        for said, of in (("*a generator that remembers*", "memorising_"), ("*one of random weights*", "random_"))
    ]
    for key, cells in sorted(found.items()):
        lines.append([f"`{key[0]}`", *key[1:], accuracies[key], *(cells.get(how, "") for how in attacks)])
    return table(["release", "variant", "options", "accuracy", *(f"AUC {how}" for how in attacks)], lines)


def remembered(name: str) -> str:
    """Membership in the training data of teachers that remember them, by `REMEMBERING`, a value per seed."""
    rows = []
    for row in sorted(board(name), key=lambda row: (row["method"] != "no-defence", row["method"], row["setting"])):
        teacher = options(row["options"])["teacher"]
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


def few(name: str, split: str = "few") -> str:
    """Membership of a split whose teachers remember, by every attack of which the bench has today's version."""
    found: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in board(name, split):
        if row["auc"] and not older(row):
            mine, how = found.setdefault((row["method"], row["variant"], _others(row)), {}), _how(row)
            if how not in mine or _seeds(row) > _seeds(mine[how]):  # more seeds, of a spec with another option
                mine[how] = row
    played = sorted({attack for rows in found.values() for attack in rows})
    lines = []
    for (method, variant, others), rows in sorted(
        found.items(), key=lambda each: (each[0][0] != "no-defence", each[0])
    ):
        most = max(rows.values(), key=_seeds)
        cells = [_area(_measured(rows[attack])) if attack in rows else "" for attack in played]
        lines.append([f"`{method}`", variant, others, accuracy(most), claimed(most), accounted(most), *cells])
    heads = ["name", "variant", "options", "accuracy", "claimed", "accounted"]
    return table([*heads, *(f"AUC {attack}" for attack in played)], lines)


def _how(row: Row) -> str:
    """The attack of a row, and what of its options makes it another one."""
    given = options(row["options"]).get("attack", {})
    more = [", white box"] * (given.get("box") == "white")
    more += [", not calibrated"] * (given.get("calibration") == "none")
    more += [", converted references"] * (given.get("reference_kind") == "student")
    return "".join([f"`{row['attack']}`", *more])


def _seeds(row: Row) -> int:
    return len(row["seeds"].split())


def _measured(row: Row) -> list[dict[str, float | None]]:
    """The metrics of a row's runs, a seed each."""
    return [records()[each].metrics for each in row["runs"].split()]


def _area(seeds: list[dict[str, float | None]]) -> str:
    """An AUC, and how far it lies beyond the unaware net's, where that was measured: of one seed with the interval over
    its suspects, of several their mean and standard deviation."""
    gains = [gain for each in seeds if (gain := each.get("auc_gain")) is not None]
    if len(seeds) > 1:
        found = over_seeds([each["auc"] for each in seeds])
        return f"{found}; {over_seeds(gains, '+')}" if len(gains) == len(seeds) else found
    (known,) = seeds
    found = interval(known, "auc")
    return f"{found}; {gains[0]:+.3f} [{known['auc_gain.lo']:+.2f}, {known['auc_gain.hi']:+.2f}]" if gains else found


def _others(row: Row) -> str:
    """The options of a row that are not the teacher's or the attack's, as typed."""
    return typed(filled(own(row) | {"teacher": {}}))


def examples() -> str:
    """What numbers of the kinds that docs/attacks.md explains are on the boards, and what they say."""
    gmi = matrix("digits")["gmi"]["data"].metrics
    asked, unsure = _memberships("cifar10-jpeg", "no-defence"), _memberships("digits", "dp-sgd")
    bare = asked.metrics
    caught, held = release("mnist", "no-defence", {}), release("digits", "ts-adp", {})
    if caught is None or held is None:
        raise KeyError("no-defence is not on mnist, or ts-adp not on digits")
    gain = 100 * gmi["above_floor"]
    part = (gmi["teacher_knn_gap"] - gmi["random_knn_gap"]) / gmi["teacher_knn_distance"]
    fits = gmi["retrieval_accuracy"] > 0.5 and gain <= 0 and part < 0.05 and bare["auc.lo"] > 0.5
    fits &= bare["tpr_at_1pct"] < 0.05 and unsure.status == "inconclusive" and float(held["epsilon_audited"]) > 0
    if not fits:
        raise ValueError("the numbers have changed, and the words of this table are no longer what they say")
    near = f"{gmi['teacher_knn_gap']:.1f} of {gmi['teacher_knn_distance']:.0f}"
    near += f" (a random network: {gmi['random_knn_gap']:.1f})"
    beyond = f"nearer to records than what knows none, by {percent(part)} of the distance"
    rows = [
        ["`attack_accuracy`", "`gmi` on `dpsd`, digits", percent(gmi["attack_accuracy"]), "classes are recognised"],
        ["`retrieval_accuracy`", "the attacker's own images there", percent(gmi["retrieval_accuracy"]), "so they are"],
        ["`above_floor`", "the same attack", f"{gain:.1f} points", "it adds nothing to them"],
        ["`knn_gap`", "`gmi` on the teacher of digits", near, beyond],
        ["`auc`", "`loss-threshold`, teacher of CIFAR-10 (JPEG)", f"{bare['auc']:.2f}", "more bets are won than lost"],
        ["`tpr_at_1pct`", "the same", percent(bare["tpr_at_1pct"]), "hardly anybody is named for certain"],
        ["`auc`, `inconclusive`", "`loss-threshold`, `dp-sgd`, digits", f"{unsure.metrics['auc']:.2f}", "nothing"],
        ["`epsilon_audited`", "no defence, MNIST", least(caught), "canaries are told apart"],
        ["`epsilon_audited`", "`ts-adp`, digits, at 10", least(held), "a little of them shows"],
    ]  # fmt: skip
    return table(["number", "of", "measured", "that is"], rows)


def least(row: Row) -> str:
    """What an audit found of a release."""
    return f"at least {float(row['epsilon_audited']):.2f}"


def _memberships(name: str, method: str) -> Record:
    """The first run of `loss-threshold` on a method, in the board's order."""
    rows = [row for row in board(name) if row["method"] == method and row["attack"] == "loss-threshold"]
    return records()[rows[0]["runs"].split()[0]]
