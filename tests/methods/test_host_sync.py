"""No step of a conversion makes the host wait for an accelerator."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from loops import small_generator
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from bench import registry
from bench.config import Variant, configure
from bench.distillation.transcription import loop
from bench.nets import Ensemble
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

aten = torch.ops.aten
OURS = re.compile(r"/(methods|bench)/(?!.*site-packages)")


class HostSync(Exception):
    """A value would be copied from the device while the host waits."""


class NoHostSync(TorchDispatchMode):
    """Raises if an operation would make the host wait for an accelerator; a substitute for CUDA's own check.

    It does not see copies between host and device, `tolist`, and waits inside an operation. Exceptions are `one_hot`,
    whose range check runs only on the CPU, the check of candidates in `_located`, which does so too, priors, which are
    called once a round and may draw a different number of strokes or parts per picture, and the trial of a newly built
    network on the CPU.
    """

    always = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten.unique_dim)
    where_boolean = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        boolean = packet in self.where_boolean and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if not self.paused and (packet in self.always or boolean):
            asker = next(f for f in reversed(traceback.extract_stack()[:-1]) if OURS.search(f.filename))
            known = asker.name == "_located" or "one_hot(" in (asker.line or "") or "/bench/priors/" in asker.filename
            known |= asker.filename.endswith("/bench/nets/zoo.py")
            if not known:
                raise HostSync(f"{func} at {asker.filename}:{asker.lineno}: {asker.line}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Inside optimiser steps nothing is watched: on the CPU they read their step counts as numbers."""
    mode = NoHostSync()
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: setattr(mode, "paused", True)),
        register_optimizer_step_post_hook(lambda *_: setattr(mode, "paused", False)),
    ]
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: torch.equal(x, x),
        lambda x: x.index_put_((x > 0,), torch.zeros(())),
        lambda x: float(x[0]),
    ],
)
def test_watch_detects_synchronisation(wait: Callable[[Tensor], Any]) -> None:
    with pytest.raises(HostSync), no_host_sync():
        _in_methods(wait, torch.tensor([1.0, -1.0]))


def _in_methods(wait: Callable[[Tensor], Any], x: Tensor) -> Any:
    return wait(x)


@contextmanager
def watched(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar under which nothing may wait: work before the loop is not watched."""
    with no_host_sync():
        yield lambda n: None


def test_watch_covers_the_printed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from methods.dpsd.dpsd import Dpsd

    monkeypatch.setattr(Dpsd, "_annotate", lambda self, x, *_: x.flatten(1)[:, :CLASSES] * x.sum().item())
    with pytest.raises(HostSync):
        convert("dpsd", "printed", {})


@pytest.mark.parametrize("place", ["choose_rows", "draw_children", "compute_logits"])
def test_watch_covers_the_working_rounds(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = getattr(loop, place)

    def waiting(*given: Any) -> Any:
        found = made(*given)
        return found + 0 * int(found.sum().item())

    monkeypatch.setattr(loop, place, waiting)
    with pytest.raises(HostSync):
        convert("dpsd", "working", {})


def convert(name: str, variant: Variant, given: dict[str, str]) -> None:
    method = configure(registry.load("method", name, variant), "smoke", given, "method", variant)
    toy = replace(toy_teacher(), private=toy_private())
    if "teacher_ensemble" in method.needs:
        count = method.shards("shard-cnn", "toy").count
        toy = replace(toy, ensemble=Ensemble.build(["shard-cnn"], count, SHAPE, CLASSES, range(count)).eval())
    method.convert(toy, "datalens", Budget(10.0, account="accounted" if "teachers" in given else "claimed"),
                   replace(context(), track=watched))  # fmt: skip


TERMS = {"ce_weight": "0", "ie_weight": "0", "norm_weight": "0"}
PRINTED: list[tuple[str, dict[str, str]]] = [
    *[("dpsd", {"mode": mode, **given}) for mode in ("data", "label") for given in ({}, TERMS)],
    ("dpsd", {"bound": "clip"}),
    *[("dpdfd", given) for given in ({}, {"bound": "clip"}, TERMS, {"teachers": "2"})],
    *[("fed-dpsd", given) for given in ({}, {"noise_by": "client"}, {"mode": "label"})],
]
GENERATOR, STUDENT, PAPER = {"prior": "generator"}, {"gradient_at": "student"}, {"reading": "printed"}
COMMITTEE: list[tuple[str, dict[str, str]]] = [("dpsd", {"committee": "2"} | each) for each in ({}, PAPER, GENERATOR)]
"""It sees the loss, the prior and readings, but not who answered; so that other cases are without one."""
ALONE: list[tuple[str, dict[str, str]]] = [
    *[("dpsd", {"mode": mode} | given) for mode in ("data", "label") for given in ({}, PAPER)],
    *[("dpsd", given) for given in (GENERATOR, STUDENT, {"bound": "clip"}, {"jitter": "off"})],
    *[("dpdfd", given) for given in ({}, {"bound": "clip"}, PAPER, STUDENT, {"teachers": "2"})],
    *[("fed-dpsd", given) for given in ({}, {"noise_by": "client"}, {"mode": "label"})],
    *[("fed-dpsd", {"mode": mode} | PAPER) for mode in ("data", "label")],
    *[("dp-dfd", given) for given in ({}, PAPER, GENERATOR)],
]
WORKING = COMMITTEE + [(name, {"committee": "1"} | given) for name, given in ALONE]
CASES = [(*case, "printed") for case in PRINTED] + [(*case, "working") for case in WORKING]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "given", "variant"), CASES, ids=str)
def test_convert_does_not_synchronise(
    name: str, given: dict[str, str], variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_generator(monkeypatch)
    convert(name, variant, given)
