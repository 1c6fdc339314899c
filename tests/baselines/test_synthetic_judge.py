"""The judge of synthetic images: selection of the student's pass on held-out images, and logistic regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from baseline_runs import FREE, flat, forbidden_teacher, rng
from torch import Tensor, nn

from bench.api import Context, Release, Teacher
from bench.config import plain
from bench.data import to_float
from bench.dp_training import synthetic_data
from bench.dp_training.synthetic_data import (
    BestPass,
    FiniteSet,
    PrivateGenerator,
    Synthesis,
    fit,
    hold_out,
    logistic_regression,
)
from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.events import gaussian_event
from bench.testing import CLASSES, SHAPE, context, toy_private


class Tripwire(Tensor):
    """Private records that must not be read once a generator has released its images."""

    armed = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if cls.armed:
            raise AssertionError(f"private records were read by {func}")
        return super().__torch_function__(func, types, args, kwargs or {})


@dataclass(frozen=True)
class ToyImages(PrivateGenerator):
    """Releases toy images; nothing may read the private records afterwards."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "a toy"
    tiers: ClassVar[dict[str, Any]] = {}

    samples: int = 80
    passes: int = 4
    student_batch: int = 16
    student_optimiser: Any = "adam"

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        ledger = Ledger()
        ledger.spend(gaussian_event(1.0), why="a toy")
        Tripwire.armed = True
        return Synthesis(FiniteSet(*toy_private(seed=3)), ledger, Claim(1.0, 1e-5, Unit.EXAMPLE, "a toy"))


@pytest.fixture
def guarded() -> Any:
    """A teacher whose private records are guarded by tripwires."""
    images, labels = toy_private()
    Tripwire.armed = False
    yield replace(forbidden_teacher(), private=(images.as_subclass(Tripwire), labels.as_subclass(Tripwire)))
    Tripwire.armed = False


def converted(teacher: Teacher, **given: Any) -> Release:
    torch.manual_seed(0)
    Tripwire.armed = False
    return ToyImages(**given).convert(teacher, "datalens", FREE, context())


@pytest.mark.parametrize("selection", ["last", "syn"])
def test_judge_reads_no_private_record(guarded: Teacher, selection: str) -> None:
    assert converted(guarded, selection=selection).linear is not None
    assert Tripwire.armed and guarded.private is not None
    with pytest.raises(AssertionError, match="private records were read"):
        guarded.private[0].float()


def test_syn_keeps_the_most_accurate_pass(guarded: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies of the four passes are set by hand; the first of the two best ones is kept, bit by bit."""
    states: list[Tensor] = []
    correct = [1, 5, 5, 2]
    usual = BestPass.see

    def see(self: BestPass, network: nn.Module) -> None:
        states.append(flat(network).clone())
        self._labels = torch.full_like(self._labels, -1)
        with torch.no_grad():
            network.eval()
            predicted = network(self._images).argmax(1)
        self._labels[: correct[len(states) - 1]] = predicted[: correct[len(states) - 1]]
        usual(self, network)
        assert network.training

    monkeypatch.setattr(BestPass, "see", see)
    release = converted(guarded, selection="syn")
    assert len(states) == 4 and torch.equal(flat(release.student), states[1])
    assert not torch.equal(states[1], states[3]) and not release.student.training


def test_last_pass_is_the_default_and_unchanged(guarded: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, named = converted(guarded), converted(guarded, selection="last")
    assert torch.equal(flat(usual.student), flat(named.student))
    assert not torch.equal(flat(usual.student), flat(converted(guarded, selection="syn").student))
    monkeypatch.setattr(synthetic_data, "logistic_regression", lambda *_: None)
    assert torch.equal(flat(converted(guarded).student), flat(usual.student)), "the second judge changes nothing"


def test_held_out_images_are_one_in_twelve_and_not_trained_on() -> None:
    images, labels = to_float(toy_private(n=60)[0]), torch.arange(60)
    (x, y), (held, answers) = hold_out(images, labels, rng())
    assert len(x) == 55 and len(held) == 5
    assert sorted([*y.tolist(), *answers.tolist()]) == list(range(60))
    assert torch.equal(x, images[y]) and torch.equal(held, images[answers])
    (x, _), (held, _) = hold_out(images[:2], labels[:2], rng())
    assert len(x) == len(held) == 1


def test_one_sample_cannot_be_held_out() -> None:
    with pytest.raises(ValueError, match="samples is 1 and selection syn"):
        ToyImages(samples=1, selection="syn")


def test_spec_holds_the_selection_only_if_it_is_not_the_default() -> None:
    """Rows that were published before the option keep their hashes."""
    assert "selection" not in plain(ToyImages()) and plain(ToyImages(selection="syn"))["selection"] == "syn"
    assert plain(ToyImages(passes=7))["passes"] == 7


def test_logistic_regression_learns_and_draws_nothing() -> None:
    images, labels = toy_private(n=400)
    state = torch.random.get_rng_state()
    network = logistic_regression(to_float(images), labels, CLASSES, ToyImages(passes=10), context())
    assert torch.equal(torch.random.get_rng_state(), state)
    new, truth = toy_private(seed=8)
    with torch.no_grad():
        assert float((network(to_float(new)).argmax(1) == truth).double().mean()) > 0.95
    assert sum(p.numel() for p in network.parameters()) == CLASSES * (SHAPE[1] * SHAPE[2] + 1)


def test_pass_hook_is_called_after_every_pass() -> None:
    steps: list[int] = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES))
    images, labels = toy_private(n=50)
    fit(network, to_float(images), labels, ToyImages(passes=3), context(), "toy", lambda _: steps.append(1))
    assert len(steps) == 3


def test_record_has_the_accuracy_of_the_logistic_regression(tmp_path: Path) -> None:
    settings = Settings("dp-merf", None, tier="smoke", device="cpu", out=tmp_path)
    metrics = run.run(load_job(settings), 0).record.metrics
    assert {f"linear_accuracy{bound}" for bound in ("", ".lo", ".hi")} <= metrics.keys()
    assert metrics["linear_accuracy"] is not None and 0 <= metrics["linear_accuracy"] <= 1
