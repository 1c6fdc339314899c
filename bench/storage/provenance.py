"""The provenance of a number: code, versions, device, time and memory."""

from __future__ import annotations

import contextlib
import platform
import resource
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench import __version__
from bench.storage.specs import Json, Plain, json_form

if TYPE_CHECKING:
    import torch

    from bench.core.records import Provenance

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
UNREAD = ("leaderboards", "docs", "tests", "recipes", "benchmarks", "*.md")
"""Paths of the checkout that no run reads; publishing writes to some of them."""
CODE = ("bench", "methods", "baselines", "attacks")
"""Directories whose modules run even if they are not committed."""
READ_BY_RUNS = (":(top)", *(f":(top,exclude){name}" for name in UNREAD))


@dataclass(frozen=True)
class GitState:
    """The commit of a checkout, and whether the files that a run reads match it.

    Attributes:
        commit: None outside a checkout.
        clean: tracked files outside `UNREAD` are compared, so that publishing boards in the meantime invalidates no
            record; and untracked modules in `CODE`, as a plug-in may be one.
    """

    commit: str | None = None
    clean: bool = False


@dataclass(frozen=True)
class Origin:
    """The code, versions, device and precision that made a step or a run."""

    git: GitState = GitState()
    device: str = ""
    precision: str = "fp32"
    bench: str = __version__
    python: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def current(cls, git: GitState, device: torch.device, precision: str, devices: int = 1) -> Self:
        """Return the origin of a run and of every step that it makes; call it before anything is made.

        Args:
            git: the code in use: `git_state` at import time.
            device: the device of the run.
            precision: "fp32" or "bf16".
            devices: number of devices over which training is distributed.
        """
        return cls(git, device_name(device, devices), precision, python=platform.python_version(), versions=versions())

    @classmethod
    def from_plain(cls, plain: Plain) -> Self:
        """Read an origin from a file; fields of other versions of this package are ignored."""
        known = {name: plain[name] for name in (field.name for field in fields(cls)) if name in plain}
        git = plain.get("git", {})
        return cls(**known | {"git": GitState(git.get("commit"), bool(git.get("clean")))})

    def differences(self, other: Origin) -> dict[str, Json]:
        """Return the fields in which this origin differs from another one, with its own values."""
        theirs = asdict(other)
        return {name: value for name, value in asdict(self).items() if value != theirs[name]}


@dataclass(frozen=True)
class StepLog:
    """The origin of a run in progress, and the origin of every step that it used, by kind and hash.

    The origin of a step is None if it was made outside a run.
    """

    origin: Origin
    steps: dict[str, Origin | None] = field(default_factory=dict)


def versions() -> dict[str, str | None]:
    """Return the installed version of each package, None if it is missing."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def git_state(root: Path) -> GitState:
    """Return the state of the checkout at `root`."""
    modules = [f":(top,glob){name}/**/*.py" for name in CODE]
    commit = checked_out(root)
    if commit is None:
        return GitState()
    try:
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *READ_BY_RUNS)
        added = _git(root, "ls-files", "--others", "--exclude-standard", "--", *modules)
    except (OSError, subprocess.CalledProcessError):
        return GitState()
    return GitState(commit, clean=changed + added == "")


def checked_out(root: Path) -> str | None:
    """Return the commit of the checkout at `root`; None if it is not a checkout."""
    try:
        return _git(root, "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None


def has_same_code(root: Path, start: GitState) -> bool:
    """Whether the checkout is clean and still has the code of the start of a run, at that commit or a later one."""
    if not (start.clean and start.commit and git_state(root).clean):
        return False
    try:
        return _git(root, "diff", "--name-only", start.commit, "HEAD", "--", *READ_BY_RUNS) == ""
    except (OSError, subprocess.CalledProcessError):  # the commit no longer exists
        return False


def _git(root: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def device_name(device: torch.device, devices: int = 1) -> str:
    """Return a readable name of that many devices, such as "cpu (2 threads)", "NVIDIA H200" or "4 x NVIDIA H200"."""
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{device.type} ({max(1, torch.get_num_threads() // devices)} threads)"
    return f"{devices} x {name}" if devices > 1 else name


def collect(
    root: Path, log: StepLog, seconds: Mapping[str, float], images: Mapping[str, Json] | None = None
) -> Provenance:
    """Return the provenance of a record: the run's origin, and how the origins of reused steps differ from it.

    Args:
        root: the project's checkout; code that changed since the start of the run, even by a commit, counts as not
            committed: modules imported later may be from either version.
        log: the run's origin, and the steps that it used.
        seconds: step to the seconds that making it took, cached or not.
        images: the counts of the images in each part.
    """
    from bench.core.records import Provenance

    reused = {name: made and made.differences(log.origin) for name, made in log.steps.items() if made != log.origin}
    plain = asdict(log.origin) | {
        "git": {"commit": log.origin.git.commit, "clean": has_same_code(root, log.origin.git)},
        "seconds": seconds,
        "peak_memory_mib": peak_memory(),
        "steps": reused,
    }
    return Provenance.model_validate(json_form(plain | ({"images": images} if images else {})))


def devices(provenance: Plain) -> list[str]:
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
