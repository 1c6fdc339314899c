"""Speed-up from keeping freed memory (`bench.interface.process`): processor time and page faults of training steps.

    python benchmarks/heap.py

Each measurement is a separate process, alternately with the C library's default allocator and with the settings of
`bench`. Prints medians, and the ratio of processor times, kernel included, as these do not depend on other programs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys

import torch
from _timing import machine, positive, run, table
from torch.nn import functional as F

from bench import nets
from bench.interface.process import keep_freed_memory

CASES = (
    ("datalens", (1, 28, 28), 256, False),
    ("datalens", (3, 64, 64), 256, False),
    ("datalens", (3, 64, 64), 256, True),
    ("resnet18", (1, 28, 28), 64, False),
    ("resnet18", (3, 64, 64), 64, False),
    ("resnet18", (3, 64, 64), 64, True),
)
"""Network, shape of an image, batch size, whether in bfloat16."""
STEPS, CLASSES = 8, 10


def main() -> None:
    """Print the table; or, for a case given by number, one measurement as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        if given.keep and not keep_freed_memory():
            raise SystemExit("the allocator here is not glibc's, or MALLOC_ variables set it already")
        print(json.dumps(_steps(*CASES[given.case])))
        return
    rows = [_row(case, given.repeats) for case in range(len(CASES))]
    print(machine(torch.device("cpu")))
    head = ("training step", "s before", "s kept", "ratio", "faults before", "faults kept", "peak MiB", "peak MiB kept")
    print(table(head, rows))


def _row(case: int, repeats: int) -> list[str]:
    """Measure pairs alternately: default, kept."""
    pairs = [[_measured(case, keep) for keep in (False, True)] for _ in range(repeats)]
    (s0, f0, m0), (s1, f1, m1) = (
        [statistics.median(x) for x in zip(*side, strict=True)] for side in zip(*pairs, strict=True)
    )
    arch, shape, count, half = CASES[case]
    name = f"{arch} {'x'.join(map(str, shape))}, {count} images, {'bfloat16' if half else 'float32'}"
    return [name, f"{s0:.3f}", f"{s1:.3f}", f"{s1 / s0:.2f}", f"{f0:.0f}", f"{f1:.0f}", f"{m0:.0f}", f"{m1:.0f}"]


def _measured(case: int, keep: bool) -> list[float]:
    command = [sys.executable, __file__, "--case", str(case), *(["--keep"] if keep else [])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _steps(arch: str, shape: tuple[int, int, int], count: int, half: bool) -> list[float]:
    """Return processor seconds and page faults of a step after the first two, and the peak in MiB."""
    torch.set_num_threads(1)
    model = nets.build(arch, shape, CLASSES).train()
    images, labels = torch.rand(count, *shape), torch.arange(count) % CLASSES
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    step()
    step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(STEPS):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [seconds / STEPS, (after.ru_minflt - before.ru_minflt) / STEPS, after.ru_maxrss / 1024]


if __name__ == "__main__":
    run(main)
