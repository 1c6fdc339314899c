"""Time and memory to build a board of many records, as the runner writes them.

python benchmarks/boards.py --records 100000
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.boards.publish import expected
from bench.boards.records import add, locked
from bench.metrics.built_in import BUILT_IN
from bench.storage.records import Record
from bench.storage.specs import AttackSpec, DataSpec, EvaluatorSpec, ReleaseSpec, RunSpec, TeacherSpec

SEEDS = 3
KEYS = [metric.key for metric in BUILT_IN if metric.averaged and metric.of == "reconstructions"]


def record(number: int) -> Record:
    """Build a record with invented numbers; every three share a row."""
    seed, row = number % SEEDS, number // SEEDS
    where = DataSpec("mnist", "f" * 16, "iid")
    teacher = TeacherSpec(where, "resnet18", None, {"epochs": 10, "lr": 0.002, "batch": 64}, seed)
    options = {f"option_{i}": i / 7 for i in range(20)} | {"sigma": row / 10}
    budget = {"epsilon": 10.0, "delta": 1e-5, "account": "claimed", "solve": "sigma", "unit": "example"}
    release = ReleaseSpec(teacher, "dpsd", 2, options, "datalens", budget, "seeded", seed)
    attack = AttackSpec(release, "a" * 16, "gmi", 1, "weights", {"iterations": 50}, seed)
    spec = RunSpec("quick", release, attack, EvaluatorSpec(where, "evaluator-cnn", {}, 1))
    made = Record(
        spec.hash, "ok", "", json.loads(json.dumps(asdict(spec))), {"method": {"sigma": row / 10}}, "datalens"
    )
    made.metrics = {f"{p}{key}": 0.5 for p in ("", "teacher_", "random_") for key in KEYS}
    made.metrics |= {"accuracy": 0.7, "teacher_accuracy": 0.9, "attack_accuracy": 0.5}
    accounted = {"epsilon": 7639.0, "unit": "example", "relation": "add-or-remove", "delta": 1e-5}
    accounted |= {"accountant": "pld", "version": "2"}
    claimed = {"epsilon": 10.0, "delta": 1e-5, "unit": "query", "source": "DPSD, Theorem 1"}
    units = {"example": accounted, "query": accounted | {"unit": "query"}}
    made.privacy = {"claimed": claimed, "accounted": accounted, "accounted_units": units, "audited": None}
    made.privacy |= {"events": [], "noise": "seeded", "solved": {}}
    seconds = {"teacher": 1.5, "release": 20.0}
    made.provenance = {"device": "cpu (2 threads)", "seconds": seconds, "git": {"clean": True}}
    return made


def main() -> None:
    """Write records, build the board from them, print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        boards = Path(folder)
        with locked(boards):
            add(boards, map(record, range(given.records)))
        took = []
        for _ in range(given.repeats):
            start = time.process_time()
            (board,) = expected(boards)
            board.texts()
            took.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{given.records} records, {len(board.releases)} releases, {len(board.attacks)} rows of attacks")
    print(f"{statistics.median(took):.1f} s of CPU time, the median of {', '.join(f'{each:.1f}' for each in took)}")
    print(f"peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()
