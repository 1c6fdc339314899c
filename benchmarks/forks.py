"""What a run of a sweep saves by being a fork of a process that has imported everything: seconds a run, both ways.

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


def main() -> None:
    """Make the run once, then begin it again and again in either way, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = ("run", "--method", "no-defence", "--tier", "smoke", "--attack", "loss-threshold", "--out", folder)
        forked = Local(bench, 1, ("cpu",))
        for done in forked.run([Task(0, run)]):
            assert done.status == 0, done.tail
        took: dict[str, list[float]] = {"fresh": [], "forked": []}
        for _ in range(given.runs):
            start = time.perf_counter()
            command = [sys.executable, "-m", "bench", *run, "--device", "cpu"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took["fresh"].append(time.perf_counter() - start)
            took["forked"] += [done.seconds for done in forked.run([Task(0, run)])]
    for name, seconds in took.items():
        print(f"{name:7} {median(seconds):6.2f} s, the median of {', '.join(f'{each:.2f}' for each in seconds)}")
    print(f"ratio   {median(took['forked']) / median(took['fresh']):6.2f}")


if __name__ == "__main__":
    main()
