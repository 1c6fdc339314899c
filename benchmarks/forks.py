"""What a run of a sweep saves by being a fork of a process that has imported everything, or the next one of a process
that stays (as on GPUs): seconds a run, each way.

The run is one that is in the cache already, so that beginning is nearly all it does.

python benchmarks/forks.py --runs 5
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from statistics import median

from bench.cli import main as bench
from bench.sweeps.executors import Task
from bench.sweeps.local import Local
from bench.sweeps.staying import Staying


def main() -> None:
    """Make the run once, then begin it again and again in each way; the first of a process that stays is left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = ("run", "--method", "no-defence", "--tier", "smoke", "--attack", "loss-threshold", "--out", folder)
        forked, staying = Local(bench, 1), Staying(bench, 1, ("cpu",))
        for done in forked.run([Task(0, run)]):
            assert done.status == 0, done.tail
        took: dict[str, list[float]] = {"fresh": [], "forked": [], "staying": []}
        for _ in range(given.runs):
            start = time.perf_counter()
            command = [sys.executable, "-m", "bench", *run, "--device", "cpu"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took["fresh"].append(time.perf_counter() - start)
            took["forked"] += [done.seconds for done in forked.run([Task(0, run)])]
        took["staying"] = [done.seconds for done in staying.run([Task(i, run) for i in range(given.runs + 1)])][1:]
    for name, seconds in took.items():
        print(f"{name:7} {median(seconds):6.2f} s, the median of {', '.join(f'{each:.2f}' for each in seconds)}")
    for name in ("forked", "staying"):
        print(f"{name} over fresh {median(took[name]) / median(took['fresh']):6.3f}")


if __name__ == "__main__":
    main()
