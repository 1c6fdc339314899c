"""The provenance of a number: code, versions, device, time and memory."""

from __future__ import annotations

import contextlib
import platform
import resource
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import __version__

Origin = dict[str, Any]
"""The code, versions, device and precision that made something."""

PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "dp-accounting",
    "opacus",
    "torchmetrics",
)


@dataclass(frozen=True)
class Followed:
    """A run in progress: its own origin, and the steps that it used, by kind and hash, each with its origin."""

    origin: Origin
    taken: dict[str, Origin | None] = field(default_factory=dict)


def versions() -> dict[str, str | None]:
    """Return the installed version of each package, None if it is missing."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


UNREAD = ("leaderboards", "docs", "tests", "recipes", "benchmarks", "*.md")
"""Paths of the checkout that no run reads; publishing writes to some of them."""
CODE = ("bench", "methods", "baselines", "attacks")
"""Directories whose modules run even if they are not committed."""
OTHERS = (":(top)", *(f":(top,exclude){name}" for name in UNREAD))


def git_state(root: Path) -> dict[str, Any]:
    """Return the commit of the checkout with this package, None outside one, and whether the files that a run reads
    match.

    Tracked files outside `UNREAD` are compared, so that publishing boards in the meantime invalidates no record, and
    untracked modules in `CODE`: a plug-in may be one.
    """
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *OTHERS)
        modules = [f":(top,glob){name}/**/*.py" for name in CODE]
        added = _git(root, "ls-files", "--others", "--exclude-standard", "--", *modules)
        return {"commit": commit, "clean": changed + added == ""}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "clean": False}


def _is_still(root: Path, begun: dict[str, Any]) -> bool:
    """Whether the checkout still holds the code at the start of a run, at that commit or a later one with equal
    code."""
    if not (begun["clean"] and git_state(root)["clean"]):
        return False
    try:
        return _git(root, "diff", "--name-only", begun["commit"], "HEAD", "--", *OTHERS) == ""
    except (OSError, subprocess.CalledProcessError):  # the commit no longer exists
        return False


def _git(root: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def device_name(device: Any, devices: int = 1) -> str:
    """Return a readable name of `devices` torch devices, such as "cpu (2 threads)", "NVIDIA H200" or "4 x NVIDIA
    H200"."""
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{device.type} ({max(1, torch.get_num_threads() // devices)} threads)"
    return f"{devices} x {name}" if devices > 1 else name


def origin(code: dict[str, Any], device: Any, precision: str, devices: int = 1) -> Origin:
    """Return the origin of a run and of every step that it makes; call it before anything is made.

    Args:
        code: the code in use: `git_state` at import time.
        device: the torch device of the run.
        precision: "fp32" or "bf16".
        devices: number of devices over which training is distributed.
    """
    return {
        "bench": __version__,
        "git": code,
        "python": platform.python_version(),
        "versions": versions(),
        "device": device_name(device, devices),
        "precision": precision,
    }


def collect(root: Path, run: Followed, seconds: dict[str, float]) -> dict[str, Any]:
    """Return all provenance of a record: its origin, and under "steps" how reused steps differ from it.

    For a step from the cache this is its difference from the run's origin; None if the step has no origin.

    Args:
        root: the project's checkout; code that changed since the start of the run, even by a commit, counts as not
            committed: modules imported later may be from either version.
        run: its origin, and the steps that it used.
        seconds: step to the seconds that making it took, cached or not.
    """
    own, git = run.origin, run.origin["git"]
    steps = {name: made and unlike(made, own) for name, made in run.taken.items() if made != own}
    return own | {
        "git": git | {"clean": _is_still(root, git)},
        "seconds": seconds,
        "peak_memory_mib": peak_memory(),
        "steps": steps,
    }


def unlike(made: Origin, own: Origin) -> Origin:
    """Return the fields of one origin that differ from the other."""
    return {name: value for name, value in made.items() if value != own.get(name)}


def devices(provenance: dict[str, Any]) -> list[str]:
    """Return the devices of a record, its own first, then those of reused steps."""
    others = [(made or {}).get("device") for made in provenance.get("steps", {}).values()]
    return list(dict.fromkeys(name for name in [provenance.get("device"), *others] if name))


def peak_memory() -> int:
    """Return the peak memory of this process, in MiB.

    The system's resource usage includes the peak of the parent process; on Linux, /proc has the process's own peak.
    """
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
