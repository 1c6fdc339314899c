"""The baseline attack without queries: its score comes from the distribution of the data only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from conftest import write_toy
from torch import nn

from attacks.random_guess import RandomGuess
from bench.api import Attack, AttackResult, Context, Target
from bench.metrics.power import power
from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.testing import CLASSES, SHAPE, AttackContract, context, toy_aux


class Untouchable(nn.Module):
    """A target that cannot answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a random guess must not query the target")


def guess(seed: int = 0, aux: torch.Tensor | None = None, **changes: int) -> AttackResult:
    target = Target(Untouchable(), "label", SHAPE, CLASSES)
    return RandomGuess(**changes).run(target, toy_aux() if aux is None else aux, context(seed))


def test_attack_returns_the_attackers_images_per_cell() -> None:
    found, aux = guess(draws=3, images_per_class=5), toy_aux()
    assert all(bool((image == aux).flatten(1).all(1).any()) for image in found.images)
    for draw in range(3):
        assert found.targets[found.draws == draw].bincount().tolist() == [5] * CLASSES


def test_attack_draws_uniformly_for_every_class() -> None:
    aux = torch.arange(4).view(4, 1, 1, 1).expand(4, *SHAPE) / 4
    found = guess(aux=aux, draws=10, images_per_class=200)
    which = (4 * found.images[:, 0, 0, 0]).long()
    for c in range(CLASSES):
        counts = which[found.targets == c].bincount(minlength=4)
        assert ((counts - 500).abs() < 100).all(), "five standard deviations"


def test_seeds_and_draws_differ() -> None:
    found = guess(0, draws=2)
    assert not torch.equal(found.images[found.draws == 0], found.images[found.draws == 1])
    assert not torch.equal(found.images, guess(1, draws=2).images)


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
@pytest.mark.parametrize("luck", ["none", "all"])
def test_power_of_equal_images_never_passes(classes: int, luck: str) -> None:
    """Not even with all images right by chance: on the random network they are right as well."""
    hits = 20 * torch.eye(classes) if luck == "all" else torch.full((classes, classes), 5.0)
    assert not power(hits, hits).passed


@pytest.mark.thorough
def test_run_is_inconclusive_without_queries(tmp_path: Path) -> None:
    write_toy(tmp_path, 160)
    toy = {"dataset": f"npz:{tmp_path}/toy.npz", "teacher": "datalens", "tier": "smoke", "out": tmp_path / "runs"}
    settings = Settings(method="no-defence", attack="random-guess", **toy)  # type: ignore[arg-type]
    record = run.run(load_job(settings), 0).record
    assert record.status == "inconclusive" and "chance" in record.reason
    assert record.metrics["queries"] == 0
    assert record.metrics["attack_accuracy"] == record.metrics["teacher_attack_accuracy"]
    assert record.metrics["attack_accuracy"] == record.metrics["random_attack_accuracy"]


@dataclass(frozen=True)
class Deaf(RandomGuess):
    """Declares queries, but sends none."""

    is_null: ClassVar[bool] = False


@dataclass(frozen=True)
class Curious(RandomGuess):
    """Declares no queries, but sends some."""

    def run(self, target: Target, aux: torch.Tensor, ctx: Context) -> AttackResult:
        target.labels(aux)
        return super().run(target, aux, ctx)


@pytest.mark.parametrize("plugin", [Deaf, Curious])
def test_contract_refuses_a_wrong_is_null(plugin: type[RandomGuess]) -> None:
    contract = type("Contract", (AttackContract,), {"plugin": plugin})()
    with pytest.raises(AssertionError):
        contract.test_reconstructs_images_of_every_class()


def test_attack_protocol_requires_observes_and_is_null() -> None:
    said = {name: getattr(RandomGuess, name) for name in dir(RandomGuess) if not name.startswith("_")}
    assert isinstance(type("Whole", (), said)(), Attack)
    for name in ("observes", "is_null"):
        assert not isinstance(type("Part", (), {key: said[key] for key in said if key != name})(), Attack)
