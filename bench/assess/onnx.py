"""ONNX models, run by onnxruntime on the CPU (extra `onnx`); a graph consists of known operators and runs no Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import BenchError
from bench.escape import visible


class OnnxModel(nn.Module):
    """An ONNX graph with one input, images; only its first output is read.

    Args:
        path: the file.
        shape: (c, h, w) of the images.

    Raises:
        BenchError: onnxruntime is missing, the file is not ONNX, it has several inputs, a fixed batch size, or takes
            images of another shape.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int]) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError:
            raise BenchError(f"'{path}' needs onnxruntime: pip install 'dp-distill-bench[onnx]'") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common public class
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise BenchError(f"'{path}' cannot be read as ONNX ({visible(first)}); export it again") from error
        inputs = session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in ("tensor(float)", "tensor(float16)", "tensor(double)"):
            kinds = ", ".join(f"{visible(each.name)} of {each.type}" for each in inputs)
            raise BenchError(f"'{path}' has the inputs {kinds}; expected one input of floating-point images")
        batch, *rest = inputs[0].shape
        if isinstance(batch, int):
            raise BenchError(
                f"'{path}' has a fixed batch size of {batch}; export it with a dynamic first dimension "
                "(torch.onnx.export(..., dynamic_axes={'input': {0: 'batch'}}))"
            )
        known = [(own, given) for own, given in zip(rest, shape, strict=False) if isinstance(own, int)]
        if len(rest) != 3 or any(own != given for own, given in known):
            raise BenchError(
                f"'{path}' takes images of {tuple(map(str, rest))} (channels, height, width), and these are {shape}; "
                "give --size and --channels to match"
            )
        self._session: list[Any] = [session]
        self._name, self._kind = inputs[0].name, inputs[0].type

    def forward(self, x: Tensor) -> Tensor:
        """Return the first output, (n, classes) float32."""
        kinds = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(double)": torch.float64}
        found = self._session[0].run(None, {self._name: x.to(kinds[self._kind]).numpy()})[0]
        return torch.from_numpy(found).float()
