"""Votes with a release's noise, measured on the test set: their accuracy, by the noise's own distribution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.distillation.votes.noisy_votes import Aggregation, NoisyEnsemble
from bench.nets import Ensemble
from bench.pipeline import run, stages
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget
from bench.privacy.noise import Noise
from tests.distillation.test_noisy_votes import flip_chance

N = 20_000
IMAGES = torch.zeros(N, 1, 2, 2)


class Always(nn.Module):
    """A member that predicts one class for every image."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.body, self.answer = nn.Identity(), answer

    def forward(self, images: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.full((len(images),), self.answer), 2).float()


def ensemble() -> Ensemble:
    """25 members, of which 16 name class 0."""
    return Ensemble([Always(int(j >= 16)) for j in range(25)], classes=2)  # type: ignore[misc]


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_votes_are_as_often_right_as_the_noise_lets_them(law: str) -> None:
    noisy = NoisyEnsemble(ensemble(), Aggregation(law, 8.0), Noise(torch.device("cpu"), 0))  # type: ignore[arg-type]
    counts = noisy(IMAGES)
    wrong = (counts[:, 1] > counts[:, 0]).double().mean() + 0.5 * (counts[:, 1] == counts[:, 0]).double().mean()
    expected = flip_chance(law, 7.0, 8.0)
    # whole numbers: with ties counted as half, within a hundredth of the law of real ones
    assert abs(float(wrong) - expected) < 0.01 + 4 * (expected * (1 - expected) / N) ** 0.5
    assert not torch.equal(noisy(IMAGES), counts), "drawn anew"


def test_without_noise_they_are_the_votes() -> None:
    counts = NoisyEnsemble(ensemble(), Aggregation("laplace", 0.0), Noise(torch.device("cpu"), 0))(IMAGES)
    assert torch.equal(counts, torch.tensor([16.0, 9.0]).expand(N, -1))


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "variant"), [("dgd", "printed"), ("dgd", "working"), ("pate", None)])
def test_a_record_tells_how_often_the_noisy_votes_are_right(tmp_path: Path, method: str, variant: str | None) -> None:
    def metrics(epsilon: float) -> dict[str, float | None]:
        settings = Settings(method, None, tier="smoke", variant=variant, out=tmp_path, budget=Budget(epsilon))
        return run.run(load_job(settings), 0).record.metrics

    plain = metrics(float("inf"))
    assert plain["votes_accuracy"] == plain["ensemble_accuracy"], "where nothing is added"
    noisy = metrics(0.05)
    assert noisy["ensemble_accuracy"] == plain["ensemble_accuracy"] and noisy["votes_accuracy"] is not None
    assert abs(noisy["votes_accuracy"] - 0.1) < 0.09, "much noise: one of ten classes by chance"


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "variant"), [("dgd", "printed"), ("dgd", "working"), ("pate", None)])
def test_measuring_the_votes_changes_nothing_that_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, variant: str | None
) -> None:
    def released(out: str) -> tuple[dict[str, float | None], dict[str, object], bytes]:
        settings = Settings(method, None, tier="smoke", variant=variant, out=tmp_path / out, budget=Budget(10.0))
        record = run.run(load_job(settings), 0).record
        (student,) = (tmp_path / out / "steps" / "release").glob("*/model.safetensors")
        return record.metrics, record.privacy, student.read_bytes()

    with_votes = released("with")
    monkeypatch.setattr(stages, "test_accuracy", lambda model, *given: measured(replaced(model), *given))
    without = released("without")
    assert with_votes[1:] == without[1:]
    different = {name for name, value in with_votes[0].items() if without[0][name] != value}
    assert {name.partition(".")[0] for name in different} == {"votes_accuracy"}


def replaced(model: nn.Module) -> nn.Module:
    """Queries another network instead of the votes, so that no noise is drawn."""
    return Always(0) if isinstance(model, NoisyEnsemble) else model


measured = stages.test_accuracy
