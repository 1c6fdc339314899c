"""Seconds of a run in a process that is reused, as in a sweep, and in a new process.

The run is cached, so that the time is almost only the start.

python benchmarks/warm.py --runs 5
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


def main() -> None:
    """Make the run once, then repeat it both ways; the first run of a reused process is left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = ("run", "--method", "no-defence", "--tier", "smoke", "--attack", "loss-threshold", "--out", folder)
        results = list(Local(bench, 1).run([Task(i, run) for i in range(given.runs + 2)]))
        for done in results:
            assert done.status == 0, done.tail
        took: dict[str, list[float]] = {"fresh": [], "staying": [done.seconds for done in results[2:]]}
        for _ in range(given.runs):
            start = time.perf_counter()
            command = [sys.executable, "-m", "bench", *run, "--device", "cpu"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took["fresh"].append(time.perf_counter() - start)
    for name, seconds in took.items():
        print(f"{name:7} {median(seconds):6.2f} s, the median of {', '.join(f'{each:.2f}' for each in seconds)}")
    print(f"staying over fresh {median(took['staying']) / median(took['fresh']):6.3f}")


if __name__ == "__main__":
    main()
