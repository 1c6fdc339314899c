"""Smoke runs of any baseline on toy records, shared by the tests of baselines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import DpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import stats
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Teacher
from bench.config import Variant, configure
from bench.dp_training.synthetic_data import Synthesis
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import account
from bench.registry import load
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

FREE = Budget(None, solve="none")
"""The noise of the options."""
NO_NOISE = Budget(math.inf)


class ForbiddenTeacher(nn.Module):
    """A network that must not be queried."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the undefended teacher was queried")


def forbidden_teacher(n: int = 80, seed: int = 0, **parts: Any) -> Teacher:
    """The toy teacher with n private records and a network that must not be queried."""
    return replace(toy_teacher(), **{"model": ForbiddenTeacher(), "private": toy_private(seed, n), **parts})


def teacher_for(method: Any, **parts: Any) -> Teacher:
    """The toy teacher with all inputs that a method names in `needs`; it must not be queried unless it is needed."""
    toy = forbidden_teacher() if "teacher" not in method.needs else replace(toy_teacher(), private=toy_private())
    if "public_data" in method.needs:
        toy = replace(toy, public=toy_private(seed=1)[0])
    if "teacher_ensemble" in method.needs:
        shards = method.shards(toy.arch, toy.dataset)
        members = nets.Ensemble.build(shards.archs, shards.count, SHAPE, CLASSES, range(shards.count))
        toy = replace(toy, ensemble=members.eval().requires_grad_(False))
    return replace(toy, **parts)


def smoke(method: str | type[Any], variant: Variant | None = "printed", **options: Any) -> Any:
    """Build a baseline, given by name or class, at tier smoke."""
    cls = load("method", method) if isinstance(method, str) else method
    return configure(cls, "smoke", {name: str(value) for name, value in options.items()}, "method", variant)


def convert(
    method: str | type[Any],
    budget: Budget = FREE,
    teacher: Teacher | None = None,
    /,
    student: str = "datalens",
    seed: int = 0,
    ctx: Context | None = None,
    variant: Variant | None = "printed",
    **options: Any,
) -> Release:
    """Run a baseline at tier smoke on `teacher`, by default on what it needs; an option may be called teacher too."""
    made = smoke(method, variant, **options)
    given = teacher or teacher_for(made)
    torch.manual_seed(seed)
    release: Release = made.convert(given, student, budget, ctx or context(seed))
    return release


def synthesise(
    method: Any, budget: Budget = FREE, private: tuple[Tensor, Tensor] | None = None, ctx: Context | None = None
) -> Synthesis:
    """Train the generator of a baseline on toy records."""
    torch.manual_seed(0)
    made: Synthesis = method.synthesise(*(private or toy_private()), toy_teacher(), budget, ctx or context())
    return made


def class_share(made: Synthesis, n: int = 80) -> float:
    """Share of generated images that are brightest in the corner of their class."""
    with torch.no_grad():
        images, labels = made.draw(n, rng())
    assert 0 <= images.min() <= images.max() <= 1
    return float((F.avg_pool2d(images, 8).flatten(1).argmax(1) == labels).double().mean())


def accuracy(release: Release, n: int = 80, seed: int = 0) -> float:
    """Accuracy of a student on toy records."""
    images, labels = toy_private(seed, n)
    with torch.no_grad():
        return float((release.student(images.float() / 255).argmax(1) == labels).double().mean())


def flat(network: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def epsilon_of(ledger: Ledger, unit: Unit = Unit.EXAMPLE, delta: float = 1e-5) -> float:
    """The bench's own account of a ledger."""
    return account(ledger, unit, delta).epsilon


def renyi_epsilon(event: DpEvent, steps: int = 1, delta: float = 1e-5) -> float:
    """Epsilon of composed steps by Renyi divergences: another accountant, whose bound is looser."""
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(delta))


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang (2018): Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""
    lower = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    return float(stats.norm.cdf(mu / 2 - epsilon / mu)) - lower


def is_normal(values: Tensor, std: float) -> bool:
    """Whether numbers are draws of N(0, std^2), in shape and in size: half of the size or variance, or twice, fails."""
    values = values.double().flatten()

    def tail(scale: float) -> float:
        total = float((values / (scale * std)).square().sum())
        return float(min(stats.chi2.cdf(total, len(values)), stats.chi2.sf(total, len(values))))

    shape = float(stats.kstest((values / std).numpy(), "norm").pvalue)
    wrong = (0.5, 1 / math.sqrt(2), math.sqrt(2), 2.0)
    return shape > 0.01 and tail(1.0) > 1e-5 and all(tail(scale) < 1e-6 for scale in wrong)


def check_adam_step(
    before: Iterable[Tensor], network: nn.Module, slopes: Iterable[Tensor], rate: float, rtol: float = 0.01
) -> None:
    """Check Adam's first step: the full rate against the sign of every gradient that is not nearly 0."""
    for was, now, slope in zip(before, network.parameters(), slopes, strict=True):
        clear = slope.abs() > 1e-5
        assert clear.any()
        assert torch.allclose((now - was)[clear], -rate * slope[clear].sign(), rtol=rtol)


@contextmanager
def refused(match: str | None = None, error: type[Exception] = BenchError) -> Iterator[None]:
    """Expect an error whose message is one line."""
    with pytest.raises(error, match=match) as caught:
        yield
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Call:
    """Positional arguments and result of a call; of a method, the first argument is the instance."""

    arguments: tuple[Any, ...]
    result: Any


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Call]:
    """Record the calls of a function of a module, or of a method of a class, which run as before."""
    original, calls = getattr(owner, name), list[Call]()

    def recorded(*given: Any, **options: Any) -> Any:
        calls.append(Call(given, original(*given, **options)))
        return calls[-1].result

    monkeypatch.setattr(owner, name, recorded)
    return calls


def rates_of(monkeypatch: pytest.MonkeyPatch, optimiser: type[torch.optim.Optimizer]) -> list[float]:
    """Record the learning rate of every step of an optimiser."""
    rates, step = list[float](), optimiser.step

    def watched(self: torch.optim.Optimizer, *given: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *given)

    monkeypatch.setattr(optimiser, "step", watched)
    return rates
