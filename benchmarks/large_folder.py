"""Run on a folder of image files that is larger than memory: time, and memory without the mapped file.

    python benchmarks/large_folder.py --images 50000 --side 128 --work FOLDER

Writes the folder, unless it exists, runs `bench run --method no-defence --attack loss-threshold --tier smoke` on
it, reads the folder again as a second run does, and runs once more, each time with its peak memory: `anonymous` is the
memory of the process itself (RssAnon of /proc/PID/status, sampled ten times a second); `resident` is the system's count
(VmHWM), which includes pages of mapped files that can be reclaimed. The script fails if an `anonymous` is above
`--limit-gib`.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
CLASSES = 10
READ = """
from pathlib import Path
from bench.pipeline.material import Wanted, load_material
load_material(Wanted({0!r}, "iid", out=Path({1!r}))).data.fingerprint
"""
"""The reading part of a run, before any training."""
TONES = 32
"""Number of patterns that are blended: enough that no two images are equal."""


def write_folder(folder: Path, images: int, side: int) -> None:
    """Write `images` JPEG files in ten class folders, a sixth of them in test/: the class's waves with random noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:side, 0:side] / side
    noise = rng.integers(0, 120, (TONES, side, side, 3))
    for number in range(images):
        label = number % CLASSES
        wave = np.sin((label + 1) * (x + y * (number // CLASSES % 7)) * np.pi) * 60 + 64
        first, second = rng.integers(0, TONES, 2)
        moved = np.roll(noise[second], tuple(rng.integers(0, side, 2)), (0, 1))
        pixels = wave[..., None] + noise[first] / 2 + moved / 2 + 8 * rng.standard_normal(3)
        part = "test" if number // CLASSES % 6 == 0 else "train"
        path = folder / part / f"class{label}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=85)
        path.write_bytes(stream.getvalue())


def measured(command: list[str]) -> tuple[float, float, float]:
    """Return seconds, and the peaks of anonymous and resident memory in GiB, of a command. Raises SystemExit if it
    fails."""
    start, anonymous, resident = time.perf_counter(), 0, 0
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    while process.poll() is None:
        found = _status(process.pid)
        anonymous = max(anonymous, found.get("RssAnon", 0))
        resident = max(resident, found.get("VmHWM", 0))
        time.sleep(0.1)
    if process.returncode != 0:
        raise SystemExit(f"the run failed with status {process.returncode}")
    return time.perf_counter() - start, anonymous / 2**20, resident / 2**20


def _status(process: int) -> dict[str, int]:
    """Return the KiB values of /proc for a process; {} if it has just ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}


def main() -> int:
    """Write, run twice, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--work", type=Path, required=True, help="where folder and runs are written; kept")
    parser.add_argument("--limit-gib", type=float, default=2.0)
    given = parser.parse_args()
    folder = given.work / f"folder-{given.images}-{given.side}"
    if not folder.exists():
        write_folder(folder, given.images, given.side)
    dataset, out = f"imagefolder:{folder}@{given.side}", str(given.work / "runs")
    command = [sys.executable, "-m", "bench", "run", "--method", "no-defence", "--attack", "loss-threshold"]
    command += ["--tier", "smoke", "--dataset", dataset, "--out", out]
    commands = {"first": [*command, "--seeds", "0"], "read": [sys.executable, "-c", READ.format(dataset, out)]}
    commands |= {"second": [*command, "--seeds", "1"]}
    print(f"{given.images} images of {given.side} pixels, {given.images * given.side**2 * 3 / 2**30:.2f} GiB decoded")
    print(f"{'run':<8}{'seconds':>9}{'anonymous GiB':>15}{'resident GiB':>14}\n{'-' * 46}")
    worst = 0.0
    for name, words in commands.items():
        seconds, anonymous, resident = measured(words)
        worst = max(worst, anonymous)
        print(f"{name:<8}{seconds:>9.1f}{anonymous:>15.2f}{resident:>14.2f}", flush=True)
    return 0 if worst <= given.limit_gib else 1


if __name__ == "__main__":
    raise SystemExit(main())
