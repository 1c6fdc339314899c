"""Made-up records for the tests of boards."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from records_made import BUDGET, accounted, privacy

from bench import boards
from bench.boards import Board
from bench.boards.results import Result
from bench.storage.records import Audit, Record
from bench.storage.specs import (
    AttackSpec,
    DataSpec,
    EvaluatorSpec,
    ReleaseSpec,
    RunSpec,
    TeacherSpec,
)

NEWER = 99
"""A version that no installed plug-in has reached."""


def record(seed: int, accuracy: float, status: Any = "ok", **changes: Any) -> Record:
    """A record as the runner writes it, with made-up numbers."""
    where = DataSpec("digits", "f" * 16, changes.get("split", "iid"))
    teacher = TeacherSpec(where, "resnet18", None, {}, seed)
    options = {"sigma": changes.get("sigma", 1.0)}
    release = ReleaseSpec(teacher, "dpsd", NEWER, options, "datalens", BUDGET, "os", seed)
    attack = AttackSpec(release, "a" * 16, "gmi", NEWER, "weights", {}, seed)
    spec = RunSpec(changes.get("tier", "quick"), release, attack, EvaluatorSpec(where, "evaluator-cnn", {}, 1))
    result = Record(spec.hash, status, "", json.loads(json.dumps(asdict(spec))))
    if status == "failed":
        return result
    result.metrics = {"accuracy": accuracy, "teacher_accuracy": 0.9, "attack_accuracy": 0.5, "inception_score": 2.0}
    claim = {"epsilon": 10.0, "delta": 1e-5, "unit": changes.get("claim_unit", "example"), "source": "Theorem 1"}
    found = accounted(changes.get("accounted", 7639.0) or "inf")
    result.privacy = privacy(found, claimed=claim, noise="os", noise_version=2)
    result.privacy["accounted"] = dict(found)
    result.provenance = {"device": "cpu (2 threads)", "seconds": {"teacher": 1.5}, "git": {"clean": True}}
    return result


def board(records: Iterable[Record], audits: Iterable[Audit] = ()) -> Board:
    """Their board."""
    return boards.build(records, audits)


def results(records: Iterable[Record], audits: Iterable[Audit] = ()) -> list[Result]:
    """The results on their board."""
    return boards.results(board(records, audits))


def text(records: Iterable[Record]) -> str:
    """The CSV files of their board, one after the other."""
    return "".join(board(records).texts().values())
