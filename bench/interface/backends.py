"""Where the runs of a sweep are computed: processes of this machine, a Slurm cluster or a Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.errors import BadOption

if TYPE_CHECKING:
    from bench.sweeps.executors import Executor, Main

BACKENDS = ("local", "slurm", "ray")
RESERVED = {
    "cpus-per-task": "give cpus",
    "gpus-per-node": "give gpus",
    **dict.fromkeys(("output", "error", "job-name", "array"), "leave it out"),
}
"""Options of sbatch that a sweep sets itself, and the alternative for the user."""


@dataclass(frozen=True)
class Backend:
    """Where the runs of a sweep are computed, and their resources.

    Attributes:
        name: "local", "slurm" or "ray".
        jobs: number of runs at once; None = one per GPU or two cores on this machine, no limit on a cluster.
        devices: devices of this machine, used in turn; () = all GPUs, else the CPU.
        cpus, gpus: cores and GPUs that a cluster reserves for each run.
        slurm: options of sbatch without dashes, such as {"partition": "gpu"}.
        address: address of a running Ray cluster; "auto" finds one, "" starts one on this machine.
    """

    name: Literal["local", "slurm", "ray"] = "local"
    jobs: int | None = None
    devices: tuple[str, ...] = ()
    cpus: float = 1
    gpus: float = 0
    slurm: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    def check(self, prefix: str = "") -> None:
        """Check the ranges, and that the backend uses every given option. Raises BadOption.

        Args:
            prefix: characters before the names of options in messages, such as "--".
        """
        for name, value, least in (("jobs", self.jobs, 1), ("cpus", self.cpus, 0), ("gpus", self.gpus, 0)):
            if value is not None and not least <= value < math.inf:
                raise BadOption(f"{prefix}{name} {value}: expected a number of at least {least}")
        if self.name != "local" and self.devices:
            raise BadOption(f"{prefix}devices {','.join(self.devices)} is for this machine; give {prefix}gpus instead")
        used_by = {
            "address": (self.address, ("ray",)),
            "slurm": (self.slurm, ("slurm",)),
            "cpus": (self.cpus != 1, ("ray", "slurm")),
            "gpus": (self.gpus, ("ray", "slurm")),
        }
        for name, (is_given, backends) in used_by.items():
            if is_given and self.name not in backends:
                wanted = " or ".join(f"{prefix}backend {backend}" for backend in backends)
                raise BadOption(f"{prefix}{name} is for a cluster; give {wanted}, or leave it out")
        if self.address and self.jobs:
            raise BadOption(f"{prefix}jobs {self.jobs}: a running Ray cluster limits its tasks itself; leave it out")
        for name in set(RESERVED) & set(self.slurm):
            raise BadOption(f"{prefix}slurm {name}={self.slurm[name]}: the sweep sets {name}; {RESERVED[name]}")

    @property
    def is_on_gpu(self) -> bool:
        """Whether the runs use a GPU."""
        return set(self.local_devices()) != {"cpu"} if self.name == "local" else self.gpus > 0

    def local_devices(self) -> tuple[str, ...]:
        """Return the devices of this machine to use. Raises BenchError for one that does not exist."""
        from bench.pipeline.devices import pick_device

        if self.devices:
            return tuple(str(pick_device(name)) for name in self.devices)
        import torch

        return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count())) or ("cpu",)

    def executor(self, main: Main, out: Path) -> Executor[Any]:
        """Return the executor that runs commands.

        Args:
            main: a module-level function from the arguments of a command to its exit status.
            out: folder of the runs, which all nodes of a cluster share.
        """
        from bench.sweeps.local import Local
        from bench.sweeps.ray_cluster import Ray
        from bench.sweeps.slurm_cluster import Slurm
        from bench.workers import cores

        if self.name == "ray":
            return Ray(main, self.address, self.cpus, self.gpus, jobs=self.jobs or 0)
        if self.name == "slurm":
            return Slurm(main, out / "sweeps" / "slurm", self.cpus, self.gpus, self.jobs or 0, self.slurm)
        devices = self.local_devices()
        usual = max(1, cores() // 2) if set(devices) == {"cpu"} else len(devices)
        return Local(main, self.jobs or usual, devices)
