"""Records -> rows -> CSV: a pure function, so that the same records give the same bytes.

One row per spec with only the seeds forgotten; one file per data set.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from bench import registry, reported
from bench.errors import BenchError
from bench.privacy.one_run import CONFIDENCE, one_run_epsilon, refutes
from bench.records import AUDIT, RECORD, Audit, Record, canonical
from bench.store import write_atomically

COLUMNS = [
    "tier",
    "split",
    "method",
    "kind",
    "setting",
    "teacher",
    "student",
    "teacher_accuracy",
    "accuracy_mean",
    "accuracy_std",
    "epsilon_claimed",
    "claim_unit",
    "epsilon_accounted",
    "unit",
    "relation",
    "delta",
    "epsilon_audited",
    "attack",
    "access",
    "attack_accuracy",
    "attack_accuracy_std",
    "teacher_attack_accuracy",
    "target_accuracy",
    "power",
    "inception_score",
    "inception_e6",
    "inception_within_class",
    "knn_distance",
    "knn_gap",
    "fid",
    "density",
    "coverage",
    "ssim",
    "ssim_gap",
    "auc",
    "teacher_auc",
    "tpr_at_1pct",
    "tpr_at_01pct",
    "queries",
    "seeds",
    "failed",
    "seconds",
    "device",
    "reported_accuracy",
    "reported_source",
    "reported_difference",
    "flags",
    "runs",
]
AVERAGED = [*COLUMNS[COLUMNS.index("inception_score") : COLUMNS.index("queries") + 1], "target_accuracy"]
"""Columns that are the mean of the metric of the same name."""
REFERENCE = "reference"
REFERENCES = {
    "aux": "the attacker's images",
    "class_mean": "class means",
    "held_out": "unseen images",
    "prior": "random latents",
}
"""Images that no target was asked about, as records and boards name them."""
SORT = ["tier", "split", "method", "setting", "teacher", "student", "attack", "delta", "runs"]


def read(paths: Iterable[Path]) -> list[Record]:
    """The records in files, sorted by hash. Raises ValueError naming a file that is not a record."""
    return sorted((Record.read(path) for path in paths), key=lambda record: record.hash)


def read_audits(paths: Iterable[Path]) -> list[Audit]:
    """The audits in files, sorted by hash. Raises ValueError naming a file that is not an audit."""
    return sorted((Audit.read(path) for path in paths), key=lambda audit: audit.hash)


def audited_release(spec: dict[str, Any]) -> str:
    """What an audit and a run must share for the audit's bound to stand in the run's row.

    That is the tier and the release: method, its version and options, student, budget, noise, data set, split, teacher
    network and seed. The teacher's training recipe is left out, so that an audit on an overfitted teacher counts: a
    promise of privacy holds for every teacher.
    """
    release = dict(spec["release"])
    release["teacher"] = {key: release["teacher"][key] for key in ("data", "arch", "weights", "normalise", "seed")}
    return canonical({"tier": spec["tier"], "release": release})


def dataset(record: Record | Audit) -> str:
    """The data set a record or an audit is about."""
    return record.spec["release"]["teacher"]["data"]["dataset"]


def seed(record: Record) -> int:
    """The seed of a record's release."""
    return record.spec["release"]["seed"]


def without_seeds(spec: Any) -> Any:
    """A spec with every seed forgotten: what a row stands for."""
    if isinstance(spec, dict):
        return {key: without_seeds(value) for key, value in spec.items() if key != "seed"}
    return spec


def table(records: Iterable[Record], audits: Iterable[Audit] = ()) -> pd.DataFrame:
    """One row per spec-without-seeds over all `records`, which must be of one data set; columns as COLUMNS.

    Args:
        records: of runs.
        audits: end-to-end audits, of which each row takes those of its own releases (`audited_release`).
    """
    known: dict[str, list[Audit]] = defaultdict(list)
    for audit in sorted(audits, key=lambda audit: audit.hash):
        known[audited_release(audit.spec)].append(audit)
    records = sorted(records, key=lambda r: r.hash)
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[json.dumps(without_seeds(record.spec), sort_keys=True)].append(record)
    folders = {name: entry.folder for name, entry in registry.entries("method").items()}
    rows = [_row(sorted(group, key=lambda r: (seed(r), r.hash)), known, folders) for group in groups.values()]
    frame = pd.DataFrame(rows + list(_references(records)), columns=COLUMNS)
    return frame.sort_values(SORT, kind="stable", na_position="first").reset_index(drop=True)


def _references(records: list[Record]) -> Iterable[dict[str, Any]]:
    """A row per kind of reference images in each tier and split; those of random latents for each attack."""
    groups: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        where = (record.spec["tier"], record.spec["release"]["teacher"]["data"]["split"])
        for name in REFERENCES:
            if f"{REFERENCE}_{name}_attack_accuracy" in record.metrics:
                attack = record.spec["attack"]["attack"] if name == "prior" else ""
                groups[*where, name, attack].append(record)
    for (tier, split, name, attack), group in groups.items():
        row: dict[str, Any] = {"tier": tier, "split": split, "method": REFERENCE, "kind": REFERENCE}
        row |= {"setting": REFERENCES[name], "attack": attack or None}
        for key in ("attack_accuracy", *AVERAGED):
            row[key] = _mean([r.metrics.get(f"{REFERENCE}_{name}_{key}") for r in group])
        yield row


def _row(group: list[Record], known: dict[str, list[Audit]], folders: dict[str, str]) -> dict[str, Any]:
    spec, done = group[0].spec, [r for r in group if r.status != "failed"]
    release, attack = spec["release"], spec["attack"]
    row: dict[str, Any] = {
        "tier": spec["tier"],
        "split": release["teacher"]["data"]["split"],
        "method": release["method"],
        "kind": folders.get(release["method"], "unknown"),
        "setting": group[0].setting,
        "teacher": release["teacher"]["arch"] + ("" if release["teacher"]["weights"] is None else "+weights"),
        "student": next((r.student for r in done if r.student), release["student"]),
        "attack": None if attack is None else attack["attack"],
        "access": None if attack is None else attack["access"],
        "seeds": " ".join(str(seed(r)) for r in group),
        "failed": len(group) - len(done),
        "runs": " ".join(r.hash for r in group),
    }
    keys = sorted({audited_release(r.spec) for r in done}) if known else []
    audits = [audit for key in keys for audit in known.get(key, [])]
    if not done:
        return row
    row |= _numbers(done) | _privacy(done, audits)
    return row | reported.join(row, dataset(group[0]))


def _numbers(done: list[Record]) -> dict[str, Any]:
    def mean(key: str) -> float | None:
        return _mean([r.metrics.get(key) for r in done])

    return {
        "teacher_accuracy": mean("teacher_accuracy"),
        "accuracy_mean": mean("accuracy"),
        "accuracy_std": _std([r.metrics.get("accuracy") for r in done]),
        "attack_accuracy": mean("attack_accuracy"),
        "attack_accuracy_std": _std([r.metrics.get("attack_accuracy") for r in done]),
        "teacher_attack_accuracy": mean("teacher_attack_accuracy"),
        "power": _power(done),
        **{key: mean(key) for key in AVERAGED},
        "seconds": _mean([sum(r.provenance.get("seconds", {}).values()) for r in done]),
        "device": " | ".join(sorted({r.provenance["device"] for r in done})),
    }


def _power(done: list[Record]) -> str | None:
    states = {r.status for r in done}
    if "inconclusive" in states:
        return "inconclusive"
    return "pass" if any("attack_accuracy" in r.metrics or "auc" in r.metrics for r in done) else None


def _privacy(done: list[Record], audits: list[Audit]) -> dict[str, Any]:
    claims = [r.privacy["claimed"] for r in done]
    accounted = [r.privacy["accounted"] for r in done]
    claim = claims[0]
    found = {flag for r in done for flag in flags(r)} | ({"refuted"} if is_refuted(audits) else set())
    return {
        "epsilon_claimed": None if claim is None else _mean([c["epsilon"] for c in claims]),
        "claim_unit": None if claim is None else claim["unit"],
        "epsilon_accounted": _mean([a["epsilon"] for a in accounted]),
        "unit": accounted[0]["unit"],
        "relation": accounted[0]["relation"],
        "delta": accounted[0]["delta"],
        "epsilon_audited": max(map(_rounded, bounds(audits)), default=None),
        "flags": " ".join(sorted(found)),
    }


def _note(record: Record, audits: list[Audit], path: Path) -> None:
    """Write the strongest audit of a record's release into the record, if that is news."""
    mine = [audit for audit in audits if audited_release(audit.spec) == audited_release(record.spec)]
    if not mine or not record.privacy:
        return
    bound, audit = max(zip(bounds(mine), mine, strict=True), key=lambda pair: pair[0])
    found = {
        "epsilon_lower": bound,
        "confidence": CONFIDENCE,
        "unit": "example",
        "delta": audit.delta,
        "ceiling": audit.ceiling,
        "canaries": audit.canaries["number"],
        "null_run": audit.lines["null"]["epsilon_lower"],
        "audits": [each.hash for each in mine],
    }
    if record.privacy.get("audited") != found:
        record.privacy["audited"] = found
        write_atomically(path, record.to_json())


def bounds(audits: list[Audit]) -> list[float]:
    """The student's lower bound from each audit, all holding together at 95 %: Bonferroni over their number."""
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(audits))
    return [
        one_run_epsilon(
            audit.spec["guesses"],
            audit.lines["student"]["correct"],
            audit.canaries["number"],
            audit.delta,
            confidence,
        )
        for audit in audits
    ]


def is_refuted(audits: list[Audit]) -> bool:
    """Whether one of the bounds is above the audited release's claim, or accounted epsilon, for one example."""
    return any(
        refutes(bound, audit.delta, number)
        for bound, audit in zip(bounds(audits), audits, strict=True)
        for number in (audit.privacy["claimed"], audit.privacy["accounted_units"].get("example"))
    )


def _rounded(value: float) -> float:
    return round(value, 6)


def flags(record: Record) -> list[str]:
    """What a reader must know before using a row.

    `claim!=accounted`: the paper's number is not what is proved for the same unit; `other-unit`: the claim is for
    another unit than the row's account; `disputed:REASON`: the claim's proof does not cover what the algorithm does;
    `teacher-reference`: a membership attack compared a student with models that were not converted as it was;
    `membership>accounted`: the scores point at more than the accounted epsilon of one example, an indication alone.
    """
    return _flags_of_claim(record) + _flags_of_membership(record)


def _flags_of_claim(record: Record) -> list[str]:
    claim, accounted = record.privacy["claimed"], record.privacy["accounted"]
    if claim is None:
        return []
    found = [f"disputed:{claim['disputed']}"] if claim.get("disputed") else []
    if claim["unit"] != accounted["unit"]:
        found.append("other-unit")
    proved = record.privacy["accounted_units"].get(claim["unit"])
    a, b = claim["epsilon"], proved and proved["epsilon"]
    same = a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6)
    return [*found, "claim!=accounted"] if proved is None or not same else found


def _flags_of_membership(record: Record) -> list[str]:
    if "auc" not in record.metrics:
        return []
    found = ["teacher-reference"] if record.spec["attack"]["options"].get("reference_kind") == "teacher" else []
    proved = record.privacy["accounted_units"].get("example")
    seen = record.metrics["membership_epsilon_lower"]
    if proved is not None and proved["finite"] and seen is not None and seen > proved["epsilon"]:
        found.append("membership>accounted")
    return found


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return round(math.fsum(known) / len(known), 6) if known and len(known) == len(values) else None


def _std(values: list[float | None]) -> float | None:
    """The sample standard deviation over seeds; None with fewer than two."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return None
    centre = math.fsum(known) / len(known)
    return round(math.sqrt(math.fsum((v - centre) ** 2 for v in known) / (len(known) - 1)), 6)


def to_csv(records: Iterable[Record], audits: Iterable[Audit] = ()) -> str:
    """The CSV text of a board."""
    return table(records, audits).to_csv(index=False, lineterminator="\n")


def refresh(out: Path, name: str) -> Path:
    """Rebuild `<out>/leaderboards/<name>.csv` from records and audits below `out`; safe with several processes.

    A record whose release has been audited is given the bound first, as `privacy.audited`.
    """
    path = out / "leaderboards" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        records = [r for r in read(out.glob(f"records/[!.]*/{RECORD}")) if dataset(r) == name]
        audits = [a for a in read_audits(out.glob(f"audits/[!.]*/{AUDIT}")) if dataset(a) == name]
        for record in records:
            _note(record, audits, out / "records" / record.hash / RECORD)
        write_atomically(path, to_csv(records, audits))
    return path


def publish(boards: Path, runs: Iterable[Path]) -> list[Path]:
    """Copy records into `boards/records/`, audits into `boards/audits/`, and rebuild the CSV files there.

    Args:
        boards: the committed directory.
        runs: directories of runs or audits, or their record.json and audit.json.

    Raises:
        BenchError: not a record; a smoke run; a failed run; code that was not committed when it ran.
    """
    chosen = [_publishable(path) for path in runs]
    for found in chosen:
        folder = "audits" if isinstance(found, Audit) else "records"
        write_atomically(boards / folder / f"{found.hash}.json", found.to_json())
    return rebuild(boards)


def _publishable(given: Path) -> Record | Audit:
    name = AUDIT if AUDIT in (given.name, *(child.name for child in given.glob(AUDIT))) else RECORD
    path = given / name if given.is_dir() else given
    try:
        record = Audit.read(path) if name == AUDIT else Record.read(path)
    except (OSError, ValueError) as error:
        raise BenchError(f"--publish {path}: {error}; give the directory of a run, such as runs/records/HASH") from None
    git = record.provenance.get("git", {})
    if record.spec["tier"] == "smoke":
        raise BenchError(f"--publish {path}: a smoke run, its numbers mean nothing; run tier quick or paper")
    if isinstance(record, Record) and record.status == "failed":
        raise BenchError(f"--publish {path}: the run failed ({record.reason}); publish finished runs only")
    if not git.get("clean"):
        raise BenchError(f"--publish {path}: made by uncommitted code; commit, then run again with --fresh")
    return record


def rebuild(boards: Path) -> list[Path]:
    """Write every data set's CSV from `boards/records/` and `boards/audits/`."""
    paths = []
    for name, text in expected(boards).items():
        paths.append(boards / f"{name}.csv")
        write_atomically(paths[-1], text)
    return paths


def expected(boards: Path) -> dict[str, str]:
    """Data set to the CSV text that the committed records and audits give."""
    by_dataset: dict[str, list[Record]] = defaultdict(list)
    for record in read((boards / "records").glob("*.json")):
        by_dataset[dataset(record)].append(record)
    audits = read_audits((boards / "audits").glob("*.json"))
    return {
        name: to_csv(records, [audit for audit in audits if dataset(audit) == name])
        for name, records in sorted(by_dataset.items())
    }


def differences(boards: Path) -> list[str]:
    """One line per committed CSV that is not exactly what the records give; empty when all is well."""
    wanted = expected(boards)
    there = {p.stem: p.read_text(encoding="utf-8") for p in boards.glob("*.csv") if p.stem != "reported"}
    lines = [f"{boards}/{name}.csv is missing" for name in wanted if name not in there]
    lines += [f"{boards}/{name}.csv has no records" for name in there if name not in wanted]
    lines += [
        f"{boards}/{name}.csv is not what its records give"
        for name in wanted
        if name in there and wanted[name] != there[name]
    ]
    return lines
