"""`bench doctor`: installed packages, devices, available data, and the consequences of each missing part.

It imports no library and opens no data set: versions are those of the installed distributions, devices are listed by
the system, and a data set is available if its files exist.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
from pathlib import Path

from bench.cli import paths
from bench.errors import BenchError
from bench.progress import head, out

HELP = "versions, devices, data found, and what each missing piece blocks"
DESCRIPTION = HELP
BLOCKS = {"opacus": "the DP-SGD family of baselines", "torchmetrics": "every inversion attack (PSNR, FID)"}
NVIDIA = Path("/proc/driver/nvidia/gpus")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench doctor`."""
    parser.add_argument(
        "--data-root",
        type=paths.named,
        metavar="DIR",
        help="where data sets lie (default $BENCH_DATA or ~/.cache/dp-distill-bench)",
    )


def execute(given: argparse.Namespace) -> int:
    """Print the report. Returns status 1 if a part that every run needs is missing."""
    from bench import __version__
    from bench.storage import provenance

    commit = provenance.git_state(Path(__file__).parents[2]).commit
    out.print(f"[bold]dp-distill-bench[/bold] {__version__}, commit {commit}")
    if given.data_root is not None and not given.data_root.is_dir():
        raise BenchError(f"--data-root {given.data_root}: no such directory; give the one that has the data sets")
    missing = 0
    for name, version in provenance.versions().items():
        blocks = BLOCKS.get(name)
        missing += version is None
        _print(name, version or f"missing: blocks {blocks or 'every run'}")
    _print_extras()
    out.print("[bold]devices[/bold]  (as the system lists them; torch is not asked)")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    _print("cpu", f"{cores} cores")
    devices = nvidia_devices()
    for number, device in enumerate(devices):
        _print(f"cuda:{number}", device)
    if not devices:
        out.print("  no NVIDIA device: tier `paper` takes hours to days")
    _print_data(given.data_root)
    return 1 if missing else 0


def _print(name: str, text: str) -> None:
    out.print(f"  {name:<14} {text}", markup=False, soft_wrap=True)


def _print_extras() -> None:
    """Print the features of each optional extra, or what its absence blocks; runs do not need them otherwise."""
    from bench import data
    from bench.metrics import face_descriptor

    people = [name for name in data.names() if ":" not in name and data.dataset(name).facts.classes_are_people]
    sets = " and ".join(people)
    try:
        reason = face_descriptor.absent()
        face_descriptor.check()
    except BenchError as error:
        reason = str(error)
    out.print("[bold]extras[/bold]  (optional)")
    blocks = f"missing: blocks the judge of reconstructed people on {sets}; {reason}"
    _print(face_descriptor.EXTRA, blocks if reason else f"found: judges reconstructed people on {sets}")
    tables = importlib.util.find_spec("pyarrow") is not None
    install = "missing: blocks --dataset hf:PATH; pip install 'dp-distill-bench[hf]'"
    _print("hf", "found: reads folders of the library `datasets`, --dataset hf:PATH" if tables else install)


def _print_data(given: Path | None) -> None:
    from bench import data

    root = data.root_folder(given)
    head("data", f"  (in {root})")
    for name, line in data.names().items():
        if ":" in name:
            continue
        try:
            missing = data.dataset(name).missing(root)
        except (BenchError, ImportError, OSError) as error:
            _print(name, f"not readable: blocks --dataset {name}. {error}")
            continue
        _print(name, f"missing: blocks --dataset {name}; no {missing[0]}" if missing else f"found: {line}")
        if missing and (layout := data.dataset(name).facts.layout):
            _print("", f"expected: {layout}")


def nvidia_devices() -> list[str]:
    """Return the names of the NVIDIA devices that the driver lists; [] without a driver."""
    try:
        listed = [(path / "information").read_text(encoding="utf-8") for path in sorted(NVIDIA.iterdir())]
    except OSError:
        listed = []
    lines = [line for text in listed for line in text.splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")] or _ask_driver()


def _ask_driver() -> list[str]:
    """Query CUDA's driver library, for systems without /proc."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    named = (driver.cuDeviceGetName(name, len(name), number) == 0 and name.value for number in range(count.value))
    return [value.decode() for value in named if value]
