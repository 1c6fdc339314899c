"""Time of our code compared with other libraries, or a plain loop, for the same task: ratios of one run.

    python benchmarks/peers.py                       # all pairs; a few minutes
    python benchmarks/peers.py --only training --repeats 9

Every pair is first checked to compute the same result; otherwise the script fails. Then both run alternately in one
process that is bound to one core, with one thread. Times are processor times, so that other programs on the machine
do not count; a row has the median of the repeats' ratios and, in brackets, minimum and maximum.

ratio: our time over the peer's. Above 1 ours is SLOWER; `bar` is the largest acceptable ratio, and with
`--strict` a row above its bar makes the exit status 1.

Some peers are not dependencies: pip install 'dp-distill-bench[peers]'. A missing peer is reported in its row.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"  # set before any library reads it

import torch  # noqa: E402
from _timing import machine, positive, run, spread, table  # noqa: E402
from peer_pairs import accounting, image_metrics, latent_search, loading, private_training  # noqa: E402
from peer_pairs._pair import Absent, Different, Pair, measure  # noqa: E402

from bench.errors import BenchError  # noqa: E402

ROWS: dict[str, Callable[[Path], Iterator[Pair | Absent]]] = {
    "training": lambda work: private_training.pairs(),
    "accounting": lambda work: accounting.pairs(),
    "metrics": lambda work: image_metrics.pairs(),
    "search": lambda work: latent_search.pairs(),
    "loading": loading.pairs,
}
HEADS = ["what", "peer", "ours, ms", "peer, ms", "ratio", "bar", ""]


def one_core() -> None:
    """Bind this process and its threads to one core, so that a multi-threaded peer has no advantage."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def rows(name: str, work: Path, repeats: int) -> Iterator[tuple[list[str], bool]]:
    """Yield the table's rows of some pairs, and whether each meets its bar. Raises BenchError for a pair that
    differs."""
    for pair in ROWS[name](work):
        if isinstance(pair, Absent):
            yield [str(pair), *[""] * (len(HEADS) - 1)], True
            continue
        try:
            times = measure(pair, repeats)
        except Different as error:
            raise BenchError(f"{pair.name} and {pair.peer}: different results: {error}") from None
        kept = times.ratio <= pair.bar
        cells = [spread([1000 * s for s in times.ours], 1), spread([1000 * s for s in times.theirs], 1)]
        yield [pair.name, pair.peer, *cells, spread(times.ratios), f"{pair.bar:g}", "" if kept else "ABOVE"], kept


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(ROWS), action="append", help="only these pairs (may be repeated)")
    parser.add_argument("--repeats", type=positive, default=7, help="timed runs of each (default 7)")
    parser.add_argument("--strict", action="store_true", help="exit status 1 where a ratio is above its bar")
    given = parser.parse_args()
    one_core()
    print(f"{machine(torch.device('cpu'))}, one core; median [least, largest] of {given.repeats}; "
          "ratio = our time / the peer's, above 1 ours is slower", flush=True)  # fmt: skip
    made: list[list[str]] = []
    good = True
    for name in given.only or ROWS:
        with tempfile.TemporaryDirectory(prefix="bench-peers-") as work:
            for row, kept in rows(name, Path(work), given.repeats):
                made.append(row)
                good = good and kept
    print(table(HEADS, made))
    if given.strict and not good:
        sys.exit(1)


if __name__ == "__main__":
    run(main)
