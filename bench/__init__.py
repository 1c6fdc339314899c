"""dp-distill-bench: attack and evaluate privacy-preserving students made by data-free distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.interface import RunResult, keep_freed_memory, load, run

__version__ = "0.2.0"
__all__ = ["RunResult", "keep_freed_memory", "load", "run"]


def __getattr__(name: str) -> Any:
    """Import the Python interface when one of its names is first used, so that `import bench` stays quick."""
    if name == "assess":  # a package that can be called
        import bench.assess

        return bench.assess
    if name not in __all__:
        raise AttributeError(f"module 'bench' has no attribute '{name}'")
    from bench import interface

    return getattr(interface, name)
