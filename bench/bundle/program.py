"""A student as a program of `torch.export`, which torch loads without this package.

A bundle contains no program: `torch.export.load` runs code from the file, so that loading cannot check it. Users make
the program from a verified bundle themselves.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bench.nets import Classifier

KEPT = ("val", "tensor_meta")
"""Metadata of a program's nodes to remove: it would contain source paths of the machine that made it."""


def write_program(path: Path, model: Classifier, shape: tuple[int, int, int]) -> bool:
    """Write a student as a program for any number of images in [0, 1]; return False, without a file, if torch cannot.

    Args:
        model: the student in eval mode, on the CPU, frozen.
    """
    example = torch.zeros(2, *shape)
    try:
        program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("n")},))
        _forget_sources(program.graph_module)
        torch.export.save(program, path)
        written = torch.export.load(path).module()
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError):
        # Not every network can be traced; users then load the weights with this package.
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
