"""Records -> rows -> CSV: a pure function, so that the same records give the same bytes.

One row per spec with only the seeds forgotten; one file per data set.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from bench import registry
from bench.errors import BenchError
from bench.records import RECORD, Record, canonical
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
    "power",
    "inception_score",
    "inception_e6",
    "inception_within_class",
    "knn_distance",
    "fid",
    "queries",
    "seeds",
    "failed",
    "seconds",
    "device",
    "reported_accuracy",
    "reported_source",
    "flags",
    "runs",
]
SORT = ["tier", "split", "method", "setting", "teacher", "student", "attack", "delta", "runs"]


def read(paths: Iterable[Path]) -> list[Record]:
    """The records in files, sorted by hash. Raises ValueError naming a file that is not a record."""
    return sorted((Record.read(path) for path in paths), key=lambda record: record.hash)


def dataset(record: Record) -> str:
    """The data set a record is about."""
    return record.spec["release"]["teacher"]["data"]["dataset"]


def seed(record: Record) -> int:
    """The seed of a record's release."""
    return record.spec["release"]["seed"]


def without_seeds(spec: Any) -> Any:
    """A spec with every seed forgotten: what a row stands for."""
    if isinstance(spec, dict):
        return {key: without_seeds(value) for key, value in spec.items() if key != "seed"}
    return spec


def table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per spec-without-seeds over all `records`, which must be of one data set; columns as COLUMNS."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[canonical(without_seeds(record.spec))].append(record)
    rows = [_row(sorted(group, key=lambda r: (seed(r), r.hash))) for group in groups.values()]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.sort_values(SORT, kind="stable", na_position="first").reset_index(drop=True)


def _row(group: list[Record]) -> dict[str, Any]:
    spec, done = group[0].spec, [r for r in group if r.status != "failed"]
    release, attack = spec["release"], spec["attack"]
    row: dict[str, Any] = {
        "tier": spec["tier"],
        "split": release["teacher"]["data"]["split"],
        "method": release["method"],
        "kind": _folder(release["method"]),
        "setting": group[0].setting,
        "teacher": release["teacher"]["arch"] + ("" if release["teacher"]["weights"] is None else "+weights"),
        "student": release["student"],
        "attack": None if attack is None else attack["attack"],
        "access": None if attack is None else attack["access"],
        "seeds": " ".join(str(seed(r)) for r in group),
        "failed": len(group) - len(done),
        "runs": " ".join(r.hash for r in group),
    }
    return row | _numbers(done) | _privacy(done) if done else row


def _folder(method: str) -> str:
    known = registry.entries("method")
    return known[method].folder if method in known else "unknown"


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
        **{
            key: mean(key)
            for key in ("inception_score", "inception_e6", "inception_within_class", "knn_distance", "fid", "queries")
        },
        "seconds": _mean([sum(r.provenance.get("seconds", {}).values()) for r in done]),
        "device": " | ".join(sorted({r.provenance["device"] for r in done})),
    }


def _power(done: list[Record]) -> str | None:
    states = {r.status for r in done}
    if "inconclusive" in states:
        return "inconclusive"
    return "pass" if any("attack_accuracy" in r.metrics for r in done) else None


def _privacy(done: list[Record]) -> dict[str, Any]:
    claims = [r.privacy["claimed"] for r in done]
    accounted = [r.privacy["accounted"] for r in done]
    claim = claims[0]
    return {
        "epsilon_claimed": None if claim is None else _mean([c["epsilon"] for c in claims]),
        "claim_unit": None if claim is None else claim["unit"],
        "epsilon_accounted": _mean([a["epsilon"] for a in accounted]),
        "unit": accounted[0]["unit"],
        "relation": accounted[0]["relation"],
        "delta": accounted[0]["delta"],
        "epsilon_audited": None,
        "flags": " ".join(sorted({flag for r in done for flag in flags(r)})),
    }


def flags(record: Record) -> list[str]:
    """What a reader must know before using a row: `claim!=accounted` where the paper's number is not what is proved."""
    claim, accounted = record.privacy["claimed"], record.privacy["accounted"]
    if claim is None:
        return []
    a, b = claim["epsilon"], accounted["epsilon"]
    same = a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6)
    return [] if same and claim["unit"] == accounted["unit"] else ["claim!=accounted"]


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


def to_csv(records: Iterable[Record]) -> str:
    """The CSV text of a board."""
    return table(records).to_csv(index=False, lineterminator="\n")


def refresh(out: Path, name: str) -> Path:
    """Rebuild `<out>/leaderboards/<name>.csv` from the records below `out`; safe with several processes."""
    path = out / "leaderboards" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        records = [r for r in read(out.glob(f"records/[!.]*/{RECORD}")) if dataset(r) == name]
        write_atomically(path, to_csv(records))
    return path


def publish(boards: Path, runs: Iterable[Path]) -> list[Path]:
    """Copy records into `boards/records/` and rebuild the CSV files there.

    Args:
        boards: the committed directory.
        runs: run directories or record files.

    Raises:
        BenchError: not a record; a smoke run; a failed run; code that was not committed when it ran.
    """
    chosen = [_publishable(path / RECORD if path.is_dir() else path) for path in runs]
    for record in chosen:
        write_atomically(boards / "records" / f"{record.hash}.json", record.to_json())
    return rebuild(boards)


def _publishable(path: Path) -> Record:
    try:
        record = Record.read(path)
    except (OSError, ValueError) as error:
        raise BenchError(f"--publish {path}: {error}; give the directory of a run, such as runs/records/HASH") from None
    git = record.provenance.get("git", {})
    if record.spec["tier"] == "smoke":
        raise BenchError(f"--publish {path}: a smoke run, its numbers mean nothing; run tier quick or paper")
    if record.status == "failed":
        raise BenchError(f"--publish {path}: the run failed ({record.reason}); publish finished runs only")
    if not git.get("clean"):
        raise BenchError(f"--publish {path}: made by uncommitted code; commit, then run again with --fresh")
    return record


def rebuild(boards: Path) -> list[Path]:
    """Write every data set's CSV from the records in `boards/records/`."""
    paths = []
    for name, text in expected(boards).items():
        paths.append(boards / f"{name}.csv")
        write_atomically(paths[-1], text)
    return paths


def expected(boards: Path) -> dict[str, str]:
    """Data set to the CSV text that the committed records give."""
    by_dataset: dict[str, list[Record]] = defaultdict(list)
    for record in read((boards / "records").glob("*.json")):
        by_dataset[dataset(record)].append(record)
    return {name: to_csv(records) for name, records in sorted(by_dataset.items())}


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
