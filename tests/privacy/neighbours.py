"""Runs of a method on neighbouring toy data sets, and what its ledger allows them to differ by."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor

from bench import nets, registry
from bench.api import Context, Release, Shards, Teacher
from bench.config import Variant, configure
from bench.data.partition import Parts, partition
from bench.distillation.votes.noisy_votes import LARGEST
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.ledger import Entry
from bench.privacy.noise import Kind
from bench.privacy.witness import Step, Trace, Witness
from bench.seeds import derive
from bench.teachers import fit_ensemble
from bench.testing import CLASSES, SHAPE, MemoryArtifacts, silent, toy_private, toy_teacher, weights

N, MISSING = 60, 17
ROUNDING = 1e-6
"""Relative tolerance of a move: that of float32, where sums are formed in it."""
MOMENTS = "class moments of the private images, from which synthetic ones are drawn"
OF_NUMBERS = {LARGEST, MOMENTS}
"""Beginnings of the ledger's entries with one-dimensional releases; all others are of rows."""
OWN = Budget(None, solve="none")
"""The noise of a method's own fields: nothing to be solved for."""
Pair = tuple[Tensor, Tensor]


class WitnessOfNumbers(Witness):
    """A witness that takes a vector as rows of one number each."""

    def entering(self, kind: Kind, values: Tensor, scale: float) -> Tensor:
        super().entering(kind, values[:, None] if values.ndim == 1 else values, scale)
        return values


@dataclass(frozen=True)
class Watched(Context):
    """A context whose noise sources share a witness."""

    trace: Trace | None = None

    def privacy_noise(self, name: str) -> Witness:
        assert self.trace is not None
        return WitnessOfNumbers(self.trace, derive(self.seed, f"privacy-noise/{name}"))


def watched(trace: Trace, seed: int = 5) -> Watched:
    return Watched(torch.device("cpu"), seed, silent, MemoryArtifacts(), trace=trace)


def records(n: int = N) -> Pair:
    """Toy records that are all different, in an order that classes do not show in."""
    images, labels = toy_private(3, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def without(pair: Pair, missing: int = MISSING) -> Pair:
    """The records but one."""
    kept = torch.arange(len(pair[0])) != missing
    return pair[0][kept], pair[1][kept]


def with_another(pair: Pair, missing: int | Tensor = MISSING) -> Pair:
    """One record, or each of a group, replaced by another one with another label; a group is (n,) bool."""
    images, labels = pair[0].clone(), pair[1].clone()
    images[missing], labels[missing] = 255 - images[missing], (labels[missing] + 1) % CLASSES
    return images, labels


def with_another_label(pair: Pair, missing: int = MISSING) -> Pair:
    labels = pair[1].clone()
    labels[missing] = (labels[missing] + 1) % CLASSES
    return pair[0], labels


def teachers(shards: Shards, private: Pair, seed: int = 9, missing: int | None = None) -> nets.Ensemble:
    """Train the ensemble as the bench does, without the record `missing` in its part."""
    images, labels = private
    parts = parts_of(shards, private, seed)
    if missing is not None:
        parts = [part[part != missing] for part in parts]
    seeds = [derive(seed, "member", j) for j in range(shards.count)]
    made = nets.Ensemble.build(shards.archs, shards.count, SHAPE, CLASSES, seeds)
    short = replace(shards, steps=min(shards.steps, 2), batch=8)
    fit_ensemble(made, images, labels, parts, short, device=torch.device("cpu"), seed=seed)
    return made


def differing(one: nets.Ensemble, other: nets.Ensemble) -> int:
    """How many members differ, buffers included."""
    pairs = zip(one.members, other.members, strict=True)
    return sum(
        any(not torch.equal(a, b) for a, b in zip(x.state_dict().values(), y.state_dict().values(), strict=True))
        for x, y in pairs
    )


def method(name: str, options: dict[str, Any], variant: Variant | None = None) -> Any:
    """At tier smoke; the default variant, unless one is named."""
    plugin = registry.load("method", name, variant)
    return configure(plugin, "smoke", {k: str(v) for k, v in options.items()}, "method", variant)


def two_runs(
    plugin: Any, budget: Budget, first: Teacher, second: Teacher, absent: bool, missing: int = MISSING
) -> tuple[Trace, Release, Release]:
    """Both runs have the same public seed; the second one gets the inputs of the first one."""
    trace = Trace(missing, absent)
    releases = []
    for teacher in (first, second):
        torch.manual_seed(11)
        releases.append(plugin.convert(teacher, "datalens", budget, watched(trace)))
        trace.start_second_run()
    trace.end_second_run()
    return trace, releases[0], releases[1]


def compare(
    plugin: Any, first: Teacher, second: Teacher, absent: bool = False, budget: Budget = OWN, missing: int = MISSING
) -> tuple[Trace, Release]:
    """Run a method on neighbouring data; both released students must be equal bit by bit."""
    trace, one, other = two_runs(plugin, budget, first, second, absent, missing)
    pairs = zip(weights(one.student), weights(other.student), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "the record reaches the release outside the mechanisms"
    return trace, one


def held(private: Pair, ensemble: nets.Ensemble | None = None) -> Teacher:
    """Return the toy teacher with these records or these teachers, and public images."""
    return replace(toy_teacher(), private=private, ensemble=ensemble, public=toy_private(1)[0])


def sensitivities(entries: Iterable[Entry]) -> Iterator[tuple[str, float, int]]:
    """Yield kind, sensitivity over the noise's scale, and count of every protected entry."""
    for entry in entries:
        event = entry.event.event if isinstance(entry.event, dp_event.PoissonSampledDpEvent) else entry.event
        if isinstance(event, dp_event.GaussianDpEvent):
            yield "gaussian", 1 / event.noise_multiplier, entry.count
        elif isinstance(event, dp_event.LaplaceDpEvent):
            yield "laplace", 1 / event.noise_multiplier, entry.count
        elif isinstance(event, dp_event.RandomizedResponseDpEvent):
            yield "response", 1.0, entry.count
        else:
            raise AssertionError(f"an unprotected entry: {entry.event}")


def violations(
    trace: Trace, ledger: Ledger, unit: Unit = Unit.EXAMPLE, twice: bool = False, rows: bool = False
) -> list[str]:
    """Return the values that moved further than the ledger says.

    Args:
        rows: each row is a separate response, and a separate use in the ledger, as is each number of a vector.
        twice: outside of Poisson samples a record was replaced, not removed: two moves.
    """
    found = []
    entries = ledger.entries(unit)
    if any(_is_sampled(entry) for entry in entries) and not trace.samples:
        found.append("the ledger has Poisson samples, and the run took none")
    for steps, written in by_shape(trace, entries) if rows else [(list(trace.protected()), entries)]:
        for kind in ("gaussian", "laplace", "response"):
            of_kind = [step for step in steps if step.kind == kind]
            allowed = [(reach, count) for name, reach, count in sensitivities(written) if name == kind]
            if kind == "response":
                answers, uses = sum(step.difference or 0 for step in of_kind), sum(count for _, count in allowed)
                found += [f"response: {answers} answers to other labels, the ledger has {uses}"] * (answers > uses)
                continue
            found += _too_far(kind, _rows(of_kind) if rows else _per_use(of_kind, twice), allowed)
    return found


def _is_sampled(entry: Entry) -> bool:
    event = entry.event
    return isinstance(event, dp_event.PoissonSampledDpEvent) and event.sampling_probability < 1


def by_shape(trace: Trace, entries: Iterable[Entry]) -> list[tuple[list[Step], list[Entry]]]:
    """The steps that rows entered with the ledger's entries of them, and those that numbers entered with theirs."""
    entries, found = list(entries), []
    for numbers in (False, True):
        steps = [step for step in trace.protected() if _of_numbers(step) == numbers]
        written = [entry for entry in entries if (entry.why in OF_NUMBERS) == numbers]
        assert bool(steps) == bool(written), f"{len(steps)} steps of numbers: {numbers}, but in the ledger {written}"
        found.append((steps, written))
    return found


def unmoved(trace: Trace, ledger: Ledger) -> set[str]:
    """Return the ledger's text of entries, by shape, in whose steps nothing moved."""
    parts = by_shape(trace, ledger.entries(Unit.EXAMPLE))
    return {entry.why for steps, written in parts for entry in written if not any(step.difference for step in steps)}


def _of_numbers(step: Step) -> bool:
    return step.kind != "response" and step.input.shape[1:] == (1,)


def _too_far(kind: str, moved: list[tuple[float, bool]], allowed: list[tuple[float, int]]) -> list[str]:
    """Return the faults of the moves, each with whether it may have moved; `allowed` is how far, and how often."""
    found = []
    uses, often = sum(count for _, count in allowed), sum(distance > ROUNDING for distance, _ in moved)
    if often > uses:
        found.append(f"{kind}: moved in {often} steps, the ledger has {uses}")
    power = 1 if kind == "laplace" else 2
    room, most = sum(reach**power * count for reach, count in allowed), max((r for r, _ in allowed), default=0.0)
    total = sum(distance**power for distance, _ in moved)
    farthest = max((distance for distance, _ in moved), default=0.0)
    outside = max((distance for distance, sampled in moved if not sampled), default=0.0)
    if outside > ROUNDING:
        found.append(f"{kind}: moved by {outside:.3g} in a step whose sample does not hold the record")
    if farthest > most * (1 + ROUNDING) + ROUNDING:
        found.append(f"{kind}: moved by {farthest:.4g} in a step, the ledger has {most:.4g}")
    if total > room * (1 + ROUNDING) + ROUNDING:
        found.append(f"{kind}: moved by {total ** (1 / power):.4g} in all, the ledger has {room ** (1 / power):.4g}")
    return found


def _rows(steps: Iterable[Step]) -> list[tuple[float, bool]]:
    """Return how far each row moved. Values that are neither rows nor numbers must not move."""
    found: list[tuple[float, bool]] = []
    for step in steps:
        assert step.row_differences or not step.difference, f"{step.kind} of {tuple(step.input.shape)}: no rows"
        found += [(distance, True) for distance in step.row_differences]
    return found


def _per_use(steps: Iterable[Step], twice: bool) -> list[tuple[float, bool]]:
    """How far each use of a mechanism moved, the groups of one Poisson sample together, and whether it may have."""
    uses: dict[object, list[Step]] = defaultdict(list)
    for i, step in enumerate(steps):
        uses[("draw", step.draw) if step.draw else i].append(step)
    moved = []
    for together in uses.values():
        distance = math.sqrt(sum((step.difference or 0.0) ** 2 for step in together))
        moved.append((distance / 2 if twice and not together[0].draw else distance, together[0].sampled))
    return moved


@contextmanager
def planted(target: Any, name: str, faulty: Callable[..., Any]) -> Iterator[None]:
    """With a fault instead of a function."""
    original = getattr(target, name)
    setattr(target, name, faulty)
    try:
        yield
    finally:
        setattr(target, name, original)


def parts_of(shards: Shards, private: Pair, seed: int = 9) -> Parts:
    salt = derive(seed, "partition") % 2**32
    return partition(*private, shards.count, shards.partition, shards.alpha, salt)


def empty_parts(shards: Shards, private: Pair) -> int:
    """How many of the teachers have no record."""
    return sum(len(part) == 0 for part in parts_of(shards, private))


def only_record(shards: Shards, private: Pair) -> int:
    """Return a record that is the only one of its teacher; `MISSING` if none is."""
    return next((int(part[0]) for part in parts_of(shards, private) if len(part) == 1), MISSING)
