"""dp-distill-bench: attack and evaluate privacy-preserving students made by data-free distillation.

    import bench

    result = bench.run("dpsd", "gmi", epsilon=10, seed=0)
    result.accuracy, result.privacy.accounted.epsilon, result.attack.accuracy
    result.student  # an nn.Module in eval mode

`run`, `attack`, `audit` and `sweep` measure; `assess` decides on a finished model, `verify` checks a bundle; `account`
and `compose` compute epsilons; `choose` and `leaderboard` read published results; `methods`, `attacks` and `datasets`
list what there is; `bench.data.from_arrays` and its like take your own images; `bench.errors` has the errors.
docs/python.md is the guide.

Functions print nothing: notices go to the logger "bench", progress to a callback. They leave the process as they found
it: random generators, torch's threads and defaults, filters of warnings, handlers of signals. `keep_freed_memory` makes
work on big tensors several times faster, and changes the whole process: call it at the beginning of a script.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench import data, errors
    from bench.interface.accounting import GaussianAccount, account, compose
    from bench.interface.attacking import attack
    from bench.interface.auditing import AuditResult, audit
    from bench.interface.boards import Chosen, choose, leaderboard, reported
    from bench.interface.listing import DatasetInfo, PluginInfo, attacks, datasets, methods
    from bench.interface.process import keep_freed_memory
    from bench.interface.releasing import verify
    from bench.interface.result import RunResult, load
    from bench.interface.running import run
    from bench.interface.sweeping import CellResult, SweepResult, sweep

__version__ = "0.2.0"
__all__ = [
    "AuditResult",
    "CellResult",
    "Chosen",
    "DatasetInfo",
    "GaussianAccount",
    "PluginInfo",
    "RunResult",
    "SweepResult",
    "account",
    "attack",
    "attacks",
    "audit",
    "choose",
    "compose",
    "data",
    "datasets",
    "errors",
    "keep_freed_memory",
    "leaderboard",
    "load",
    "methods",
    "reported",
    "run",
    "sweep",
    "verify",
]
_MODULES = {
    **dict.fromkeys(("GaussianAccount", "account", "compose"), "accounting"),
    **dict.fromkeys(("AuditResult", "audit"), "auditing"),
    **dict.fromkeys(("Chosen", "choose", "leaderboard", "reported"), "boards"),
    **dict.fromkeys(("DatasetInfo", "PluginInfo", "attacks", "datasets", "methods"), "listing"),
    **dict.fromkeys(("RunResult", "load"), "result"),
    **dict.fromkeys(("CellResult", "SweepResult", "sweep"), "sweeping"),
    "attack": "attacking",
    "keep_freed_memory": "process",
    "run": "running",
    "verify": "releasing",
}
"""Name to the module of `bench.interface` that has it, which its first use imports: so `import bench` is quick."""


def __getattr__(name: str) -> Any:
    if name in ("assess", "data", "errors"):  # packages, of which `assess` can be called
        return import_module(f"bench.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'bench' has no attribute '{name}'")
    return getattr(import_module(f"bench.interface.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({"assess", *__all__, *(name for name in globals() if name.startswith("__"))})
