"""`bench doctor`: installed packages, devices, available data, and the consequences of each missing part.

It imports no library and opens no data set: versions are those of the installed distributions, devices are listed by
the system, and a data set is available if its files exist.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path

from bench.cli.parsing import Command, file_path
from bench.errors import BenchError
from bench.progress import out, print_heading, print_line

BLOCKS = {"opacus": "the DP-SGD family of baselines", "torchmetrics": "every inversion attack (PSNR, FID)"}
"""Packages that only some runs need, and what their absence blocks."""
EXTRAS = (
    ("hf", "pyarrow", "reads folders of the library `datasets`, --dataset hf:PATH", "--dataset hf:PATH"),
    ("onnx", "onnxruntime", "assesses ONNX models", "`bench assess` of ONNX models"),
    ("ray", "ray", "distributes sweeps with Ray", "`bench sweep --backend ray`"),
    ("slurm", "submitit", "submits sweeps to Slurm", "`bench sweep --backend slurm`"),
)
"""Optional extras: name, module, use, and what their absence blocks."""
NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Folder in which NVIDIA's driver lists its devices."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench doctor`."""
    parser.add_argument(
        "--data-root",
        type=file_path,
        metavar="DIR",
        help="folder of the data sets (default $BENCH_DATA or ~/.cache/dp-distill-bench)",
    )


def execute(given: argparse.Namespace) -> int:
    """Print the report. Returns exit status 1 if a required package is missing, else 0."""
    from bench import __version__
    from bench.storage import provenance

    commit = provenance.checked_out(Path(__file__).parents[2])
    out.print(f"[bold]dp-distill-bench[/bold] {__version__}, commit {commit}")
    if given.data_root is not None and not given.data_root.is_dir():
        raise BenchError(f"--data-root {given.data_root}: no such directory; give the folder of the data sets")
    versions = provenance.versions()
    for name, version in versions.items():
        _print(name, version or f"missing: blocks {BLOCKS.get(name, 'every run')}")
    print_extras()
    out.print("[bold]devices[/bold]  (as the operating system lists them; torch is not imported)")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    _print("cpu", f"{cores} cores")
    devices = nvidia_devices()
    for number, device in enumerate(devices):
        _print(f"cuda:{number}", device)
    if not devices:
        print_line("  no NVIDIA device: tier `paper` takes hours to days")
    print_data(given.data_root)
    return 1 if None in versions.values() else 0


def _print(name: str, text: str) -> None:
    print_line(f"  {name:<14} {text}")


def print_extras() -> None:
    """Print each optional extra with its features, or with what its absence blocks."""
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
    blocks = f"missing: blocks the independent recognition of faces in reconstructions on {sets}; {reason}"
    _print(face_descriptor.EXTRA, blocks if reason else f"found: recognises faces in reconstructions on {sets}")
    for extra, module, use, blocked in EXTRAS:
        found = importlib.util.find_spec(module) is not None
        _print(
            extra, f"found: {use}" if found else f"missing: blocks {blocked}; pip install 'dp-distill-bench[{extra}]'"
        )


def print_data(given: Path | None) -> None:
    """Print for each data set whether its files exist, and the expected files if not."""
    from bench import data

    root = data.root_folder(given)
    print_heading("data", f"  (in {root})")
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
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")] or query_driver()


def query_driver() -> list[str]:
    """Return the names of the devices from CUDA's driver library, for systems without /proc."""
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    named = (driver.cuDeviceGetName(name, len(name), number) == 0 and name.value for number in range(count.value))
    return [value.decode() for value in named if value]


DOCTOR = Command(
    "Shows the installed packages, the devices and the available data sets, and what each missing part blocks.",
    add_arguments,
    execute,
)
