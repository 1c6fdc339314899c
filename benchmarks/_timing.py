"""Measure times on a CPU or an accelerator, split a conversion's time into parts, and compute medians."""

from __future__ import annotations

import math
import platform
import re
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from bench.errors import BenchError
from bench.nets import Classifier, Ensemble
from bench.nets.generators import DeconvGenerator, UpsampleGenerator
from bench.nets.stroke_generator import StrokeGenerator
from bench.nets.vae import VAE
from bench.privacy.noise import Noise

NETWORKS: dict[type[nn.Module], tuple[str, ...]] = {
    Classifier: ("forward", "features"),
    Ensemble: ("forward", "votes", "features"),
    UpsampleGenerator: ("forward",),
    DeconvGenerator: ("forward",),
    StrokeGenerator: ("forward",),
    VAE: ("encode", "decode"),
}
"""Functions by which conversions query networks. Each call is timed as a whole, with its part of the backward pass."""

NOISE = ("bits", "uniform", "normal", "integers", "chance", "sample", "gaussian", "laplace")
"""Functions that draw privacy noise; every draw of a conversion is inside one of these."""
SYNCHRONISED = "called a synchronizing CUDA operation"
LEAF = 2**63
"""Nodes that accumulate gradients have sequence numbers above this."""


class Clock:
    """Time marks: the host's clock on a CPU, the stream's on CUDA, where a mark does not wait."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def mark(self) -> Any:
        """Return a mark of the current time."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks; on CUDA both must have passed."""
        return start.elapsed_time(end) / 1000 if self.cuda else end - start

    def wait(self) -> None:
        """Wait until the device has finished all its work."""
        if self.cuda:
            torch.cuda.synchronize()


class Watch:
    """Splits the time while `running` into networks, optimisers and privacy noise. Its overhead makes totals unusable.

    A network's share of a backward pass is between the first and the last autograd node of its output. Sequence numbers
    identify these nodes; the engine processes them from high to low.

    Attributes:
        images: number of images through each network, without those through networks inside another one.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.running, self.depth, self.drawing = clock, False, 0, False
        self.spans: dict[str, list[tuple[Any, Any]]] = {"networks": [], "optimiser": [], "noise": []}
        self.images: Counter[nn.Module] = Counter()
        self._step: Any = None

    def seconds(self, where: str) -> float:
        """Return the seconds in "networks", in "optimiser" or in "noise"."""
        return sum(self.clock.between(*span) for span in self.spans[where])

    @contextmanager
    def installed(self, compiled: bool) -> Iterator[None]:
        """Record every call of `NETWORKS` and every optimiser step inside the block.

        Args:
            compiled: whether calls may be inside code compiled by `torch.compile`, which is then not instrumented.
        """
        with ExitStack() as stack:
            for network, names in NETWORKS.items():
                for name in names:
                    seen = self._seen(getattr(network, name))
                    if compiled:
                        seen = torch._dynamo.disable(seen, recursive=False)
                    stack.enter_context(mock.patch.object(network, name, seen))
            for name in NOISE:
                stack.enter_context(mock.patch.object(Noise, name, self._noise(getattr(Noise, name))))
            hooks = (
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            )
            for hook in hooks:
                stack.callback(hook.remove)
            yield

    def _before_step(self, *_: Any) -> None:
        self._step = self.clock.mark()

    def _after_step(self, *_: Any) -> None:
        if self.running:
            self.spans["optimiser"].append((self._step, self.clock.mark()))

    def _noise(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def draw(*given: Any) -> Any:
            if not self.running or self.drawing:
                return function(*given)
            self.drawing, start = True, self.clock.mark()
            try:
                return function(*given)
            finally:
                self.drawing = False
                self.spans["noise"].append((start, self.clock.mark()))

        return draw

    def _seen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(network: nn.Module, *arguments: Any) -> Any:
            if not self.running or self.depth:
                return function(network, *arguments)
            self.images[network] += len(arguments[0])
            oldest, start = _next_sequence_number(), self.clock.mark()
            self.depth += 1
            try:
                answer = function(network, *arguments)
            finally:
                self.depth -= 1
            self.spans["networks"].append((start, self.clock.mark()))
            self._watch_backward(answer if isinstance(answer, tuple) else (answer,), oldest)
            return answer

        return call

    def _watch_backward(self, answers: Sequence[Tensor], oldest: int) -> None:
        first = [answer.grad_fn for answer in answers if answer.grad_fn is not None]
        if not first:
            return
        begun: list[Any] = []

        def begin(_gradients: Any) -> None:
            begun.append(self.clock.mark())

        def end(_inputs: Any, _outputs: Any) -> None:
            if begun:
                self.spans["networks"].append((begun[0], self.clock.mark()))
                begun.clear()

        for node in first:
            node.register_prehook(begin)
        _last_of(first, oldest).register_hook(end)


def _next_sequence_number() -> int:
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).view(()).grad_fn
    assert node is not None
    return node._sequence_nr() + 1


def _last_of(first: Sequence[Any], oldest: int) -> Any:
    """Return the last node that a backward pass reaches from `first`, among those not older than `oldest`."""
    found, open_nodes = set(first), list(first)
    while open_nodes:
        for node, _ in open_nodes.pop().next_functions:
            if node is not None and node not in found and oldest <= node._sequence_nr() < LEAF:
                found.add(node)
                open_nodes.append(node)
    return min(found, key=lambda node: node._sequence_nr())


class Loop:
    """A context's `track` that measures only the time inside the loops that use it.

    Attributes:
        seconds: seconds in loops.
        steps: number of steps that the loops reported.
        synchronisations: number of waits of the host for a CUDA device, if `watch` was given.
    """

    def __init__(self, clock: Clock, watch: Watch | None = None) -> None:
        self.clock, self.watch = clock, watch
        self.seconds, self.steps, self.synchronisations = 0.0, 0, 0

    @contextmanager
    def track(self, stage: str, total: int) -> Iterator[Callable[[int], None]]:
        """Track a loop, as `bench.api.Context.track`."""
        with ExitStack() as stack:
            caught = stack.enter_context(self._synchronisations_seen())
            self.clock.wait()
            if self.watch is not None:
                self.watch.running = True
            start = time.perf_counter()
            yield self._advance
            if self.watch is not None:
                self.watch.running = False
            stack.close()
            self.clock.wait()
            self.seconds += time.perf_counter() - start
            self.synchronisations += sum(SYNCHRONISED in str(each.message) for each in caught)

    def _advance(self, steps: int) -> None:
        self.steps += steps

    @contextmanager
    def _synchronisations_seen(self) -> Iterator[list[warnings.WarningMessage]]:
        if self.watch is None or not self.clock.cuda:
            yield []
            return
        self.clock.wait()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield caught
            finally:
                torch.cuda.set_sync_debug_mode("default")


def device_named(name: str) -> torch.device:
    """Return the device. Raises BenchError for CUDA where there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise BenchError("--device cuda: this machine has no CUDA device that torch can use; use --device cpu")
    return torch.device(name)


def machine(device: torch.device) -> str:
    """Describe the measured machine in a line."""
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return f"torch {torch.__version__}, {device.type} ({where}), {torch.get_num_threads()} CPU thread(s)"


def shape_of(text: str) -> tuple[int, int, int]:
    """Parse (c, h, w) written as CxHxW. Raises BenchError."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise BenchError(f"--shape {text}: expected CxHxW, such as 1x28x28")
    return int(match[1]), int(match[2]), int(match[3])


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def above_zero(text: str) -> float:
    """Parse a finite number above 0, for argparse."""
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format median, and in brackets minimum and maximum: robust for repeats on a machine with other load."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format columns of text, the first one left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(_padded(line, widths)).rstrip() for line in lines)


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]


def run(main: Callable[[], None]) -> None:
    """Call `main`; errors that the user can fix are printed in one line."""
    try:
        main()
    except BenchError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
