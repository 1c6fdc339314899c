"""Where a number came from: code, versions, device, time and memory."""

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
"""The code, versions, device and precision that something was made with."""

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
    """A run in the making: its own origin, and the steps that it took, by kind and hash, with the origin of each."""

    origin: Origin
    taken: dict[str, Origin | None] = field(default_factory=dict)


def versions() -> dict[str, str | None]:
    """Package to installed version, None where it is missing."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


UNREAD = ("leaderboards", "docs", "tests", "recipes", "benchmarks", "*.md")
"""What of the checkout no run reads; publishing writes to some of it."""
CODE = ("bench", "methods", "baselines", "attacks")
"""Directories whose modules run, committed or not."""
OTHERS = (":(top)", *(f":(top,exclude){name}" for name in UNREAD))


def git_state(root: Path) -> dict[str, Any]:
    """The commit of the checkout that holds this package, None outside one, and whether what a run reads is that one's.

    Tracked files outside `UNREAD` decide, so that boards published meanwhile spoil no record, and modules in `CODE`
    that are not tracked: a plug-in may be one.
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
    """Whether the checkout holds the code that a run began with, at that commit or at a later one with the same."""
    if not (begun["clean"] and git_state(root)["clean"]):
        return False
    try:
        return _git(root, "diff", "--name-only", begun["commit"], "HEAD", "--", *OTHERS) == ""
    except (OSError, subprocess.CalledProcessError):  # the commit has been thrown away since
        return False


def _git(root: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def device_name(device: Any, devices: int = 1) -> str:
    """A readable name of so many torch devices, such as "cpu (2 threads)", "NVIDIA H200" or "4 x NVIDIA H200"."""
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{device.type} ({max(1, torch.get_num_threads() // devices)} threads)"
    return f"{devices} x {name}" if devices > 1 else name


def origin(code: dict[str, Any], device: Any, precision: str, devices: int = 1) -> Origin:
    """What a run, and every step that it makes, is made with; to be asked before anything is made.

    Args:
        code: that runs, as of `git_state` when it was imported.
        device: the torch device of the run.
        precision: "fp32" or "bf16".
        devices: over how many such devices training is shared out.
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
    """Everything a record says about where it came from: its origin, and under "steps" what came from elsewhere.

    Of a step that the cache had, that is what differs from the run's own origin; None where the step says nothing.

    Args:
        root: the project's checkout; code that was changed since the run began, by a commit too, counts as not
            committed: later modules may have been imported from either.
        run: its origin, and the steps that it took.
        seconds: step to seconds it took when it was made, cached or not.
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
    """What of one origin is not so in another."""
    return {name: value for name, value in made.items() if value != own.get(name)}


def devices(provenance: dict[str, Any]) -> list[str]:
    """What a record was made on, its own device first, then those of the steps that came from elsewhere."""
    others = [(made or {}).get("device") for made in provenance.get("steps", {}).values()]
    return list(dict.fromkeys(name for name in [provenance.get("device"), *others] if name))


def peak_memory() -> int:
    """The most memory that this process has held, in MiB.

    What the system says of its resources counts what the process that began it held, too; Linux tells it apart.
    """
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
