"""Part of this repository that one run executes: files, their lines, and the executed lines.

    python benchmarks/trace_run.py
    python benchmarks/trace_run.py --files -- --method pate --tier smoke

A file counts if one of its functions is executed; importing it does not count, with the class bodies and calls that the
import executes. Lines of a file are all its lines, as a reader who follows the run sees them. The run is made in an
empty folder, so that no step is cached. Arguments after `--` are those of `bench run`; without them the run is DPSD
attacked by GMI, tier smoke.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = tuple(f"{ROOT / name}/" for name in ("bench", "methods", "attacks", "baselines"))
RUN = ["--method", "dpsd", "--attack", "gmi", "--tier", "smoke"]


class Tracer:
    """Records the executed lines of functions in this repository."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = defaultdict(set)
        self.importing = 0

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace function of `sys.settrace`: follow the lines of functions of this repository only."""
        name = frame.f_code.co_filename
        if not name.startswith(FOLDERS):
            return None
        if frame.f_code.co_name == "<module>":
            self.importing += 1
            return self.end_import
        if self.importing:
            return None
        executed = self.lines[name]
        executed.add(frame.f_lineno)

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            executed.add(frame.f_lineno)
            return line

        return line

    def end_import(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Local trace function of a module that is imported."""
        if event == "return":
            self.importing -= 1
        return self.end_import


def traced(arguments: list[str]) -> dict[str, set[int]]:
    """Return the lines of each file that `bench run` executes with these arguments."""
    from bench.cli import main

    tracer = Tracer()
    with tempfile.TemporaryDirectory() as out:
        threading.settrace(tracer.call)
        sys.settrace(tracer.call)
        try:
            status = main(["run", *arguments, "--out", out])
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
    if status:
        raise SystemExit(f"bench run {' '.join(arguments)} ended with status {status}")
    return tracer.lines


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="print every file")
    parser.add_argument("run", nargs="*", default=RUN, help="arguments of `bench run`, after --")
    given = parser.parse_args()
    found = traced(given.run)
    sizes = {name: len(Path(name).read_text(encoding="utf-8").splitlines()) for name in found}
    if given.files:
        for name in sorted(found, key=lambda name: -sizes[name]):
            print(f"{sizes[name]:6} {len(found[name]):6}  {Path(name).relative_to(ROOT)}")
    rooms = sorted({Path(name).relative_to(ROOT).parts[1] for name in found if name.startswith(f"{ROOT}/bench/")})
    print(f"files {len(found)}, their lines {sum(sizes.values())}, executed lines {sum(map(len, found.values()))}")
    print(f"rooms of bench: {', '.join(rooms)}")


if __name__ == "__main__":
    main()
