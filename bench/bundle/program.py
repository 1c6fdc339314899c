"""A student as a program of `torch.export`, which torch loads without this package.

A bundle holds no program: `torch.export.load` runs code of the file, so that no one can check one by loading it.
Whoever has verified a bundle makes the program of its student for themselves.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bench.nets import Classifier

KEPT = ("val", "tensor_meta")
"""Of what torch notes about each node of a program: not where its source lay on the machine that made it."""


def write_program(path: Path, model: Classifier, shape: tuple[int, int, int]) -> bool:
    """Write a student as a program for any number of images in [0, 1]; False, and no file, if torch cannot.

    Args:
        model: in eval mode, on the CPU, frozen.
    """
    example = torch.zeros(2, *shape)
    try:
        program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("n")},))
        _forget_sources(program.graph_module)
        torch.export.save(program, path)
        written = torch.export.load(path).module()
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError):
        # Not every network can be traced; the weights and this package are then the way to load it.
        path.unlink(missing_ok=True)
        return False
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    if torch.allclose(written(images), model(images), rtol=1e-4, atol=1e-5):
        return True
    path.unlink()
    return False


def _forget_sources(graph: torch.fx.GraphModule) -> None:
    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                for name in set(node.meta) - set(KEPT):
                    del node.meta[name]
