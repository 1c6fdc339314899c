"""How a step runs: its device, seed, noise and precision, and where it keeps what others can reuse."""

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
Network = TypeVar("Network", bound=nn.Module)
Advance = Callable[[int], None]
"""Of a progress bar: so many more are done."""


class Artifacts(Protocol):
    """Where a step keeps what others can reuse, such as an attacker's GAN trained once for many targets."""

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], Tensors]) -> Tensors: ...


@dataclass(frozen=True)
class Context:
    """How to run: nothing in here may change what is being measured.

    Attributes:
        device: where tensors live.
        seed: this step's own seed, derived from the named parts of its spec.
        noise: "seeded" derives the privacy noise from `seed`; "os" takes all of it from the system's entropy.
        track: opens a progress bar; use `with ctx.track("stage", total) as advance: advance(1)`.
        artifacts: the content-addressed store for reusable parts.
        autocast: True where bfloat16 autocast was asked for.
        compile: True where networks are to be compiled.
        ranks: the devices that a training is shared out over, `device` the first; None for one device.
        clients_seed: of who holds which private record where a federation is simulated; all methods of one run's seed
            have the same, so that their clients are the same.
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
        """The module on the device; on an accelerator, its convolutions' weights in the channels-last layout."""
        if self.device.type == "cpu":
            return module.to(self.device)
        return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def compiled(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """The module as it should be called: compiled if the user asked for it (`--compile`)."""
        return torch.compile(module) if self.compile else module

    def generator(self, name: str) -> torch.Generator:
        """A generator on the device, seeded from (this step's seed, name)."""
        return torch.Generator(self.device).manual_seed(derive(self.seed, name))

    def privacy_noise(self, name: str) -> Noise:
        """What a guarantee rests on: noise, and all that is drawn per private record unless it is indexed by it.

        Seeded like any other randomness, or from the system's entropy (`--noise os`).
        """
        seed = derive(self.seed, f"privacy-noise/{name}") if self.noise == "seeded" else None
        return Noise(self.device, seed)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Autocast to bfloat16 if the user asked for it."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            yield
