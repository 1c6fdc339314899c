"""The execution context of a step: device, seeds, privacy noise, precision, and a store for reusable parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from bench.privacy.noise import Noise
from bench.ranks import Ranks
from bench.seeds import derive

Tensors = dict[str, Tensor]
Tiers = dict[str, dict[str, Any]]
"""Tier ("smoke", "quick", "standard") to option to value; field defaults are the settings of tier `paper`."""
Network = TypeVar("Network", bound=nn.Module)
Advance = Callable[[int], None]
"""Progress callback: report that this many more units of work are done."""


class Artifacts(Protocol):
    """Store for parts that several runs reuse, such as an attacker's GAN trained once for many targets."""

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], Tensors]) -> Tensors:
        """Return the tensors stored under (kind, key); if there are none, call `make` and store its result."""
        ...


@dataclass(frozen=True)
class Context:
    """Execution settings of a step of a run. None of them may change the quantity that the step measures.

    Attributes:
        device: device of all tensors.
        seed: the seed of this step, derived from the step's specification.
        noise: "seeded" derives the privacy noise from `seed`; "os" draws all of it from the system's entropy.
        track: opens a progress bar; use `with ctx.track("stage", total) as advance: advance(1)`.
        artifacts: the content-addressed store for reusable parts.
        autocast: True if the user requested bfloat16 autocast.
        compile: True if networks are to be compiled.
        ranks: devices for data-parallel training, `device` first; None for one device.
        clients_seed: seed of the assignment of private records to simulated federated clients; the same for all methods
            with the same run seed, so that their clients are the same.
    """

    device: torch.device
    seed: int
    track: Callable[[str, int], Any]
    artifacts: Artifacts
    noise: Literal["seeded", "os"] = "seeded"
    autocast: bool = False
    compile: bool = False
    ranks: Ranks | None = None
    clients_seed: int = 0

    def prepared(self, module: Network) -> Network:
        """Move the module to the device; on an accelerator, convert its convolution weights to channels-last."""
        if self.device.type == "cpu":
            return module.to(self.device)
        return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def compiled(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the module, compiled if the user requested it (`--compile`)."""
        return torch.compile(module) if self.compile else module

    def generator(self, name: str) -> torch.Generator:
        """Return a generator on the device, seeded from (this step's seed, name)."""
        return torch.Generator(self.device).manual_seed(derive(self.seed, name))

    def privacy_noise(self, name: str) -> Noise:
        """Return a source for the draws on which privacy relies: noise, and draws made once per private record.

        Examples of the latter are Poisson samples and augmentation (`bench.privacy.noise`). The source is seeded like
        any other randomness, or uses the system's entropy (`--noise os`).

        Args:
            name: of this source; two sources of one name return the same draws if they are seeded.
        """
        seed = derive(self.seed, f"privacy-noise/{name}") if self.noise == "seeded" else None
        return Noise(self.device, seed)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Context manager: autocast to bfloat16 if the user requested it."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            yield
