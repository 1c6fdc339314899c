"""Training on randomised labels: passes, rates, mixing, options, and that it learns."""

from __future__ import annotations

import pytest
import torch
from baseline_runs import accuracy
from label_privacy_made import METHODS, convert, toy, weights
from torch import Tensor, nn

from baselines.alibi import Alibi
from baselines.lp_2st import Lp2st
from baselines.rr import Rr
from baselines.rr_debiased import RrDebiased
from bench.config import configure
from bench.dp_training.noisy_label_training import LabelPrivate
from bench.privacy import Budget
from bench.testing import context, toy_private

# Training.


def test_rate_rises_and_drops() -> None:
    method = Rr(warmup=0.1, drop=0.1)
    found = [method.rate_factor(step, 20) for step in (0, 1, 2, 5, 6, 11, 12, 17, 18, 19)]
    assert found == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cosine = Rr(warmup=0.0, schedule="cosine")
    assert [cosine.rate_factor(step, 4) for step in range(4)] == pytest.approx([1, 0.853553, 0.5, 0.146447], rel=1e-5)
    assert Rr(warmup=0.0, schedule="constant").rate_factor(3, 4) == 1


def test_pass_has_every_given_record_once() -> None:
    seen: list[Tensor] = []

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        seen.append(chosen)
        return logits.sum(1)

    images, _ = toy_private()
    records = torch.arange(0, 80, 2)
    method = configure(Rr, "smoke", {"batch": "10", "epochs": "2"}, "method")
    model = method.network(toy(), "datalens", context())
    method.train(model, images, records, loss, context(), "test")
    assert [len(part) for part in seen] == [10] * 8
    for each in (seen[:4], seen[4:]):
        assert torch.equal(torch.cat(each).sort().values, records)
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:])) and not model.training


def test_small_data_sets_get_more_passes() -> None:
    steps: list[float] = []

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        steps.append(done)
        return logits.sum(1)

    images, _ = toy_private()
    method = configure(Rr, "smoke", {"batch": "80", "epochs": "2", "least_steps": "7"}, "method")
    method.train(method.network(toy(), "datalens", context()), images, torch.arange(80), loss, context(), "test")
    assert steps == pytest.approx([step / 7 for step in range(7)])


def test_mixup_uses_equal_shares_for_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model whose loss of record r is r: the mixed loss must be the mixed image's number."""
    images = torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1) * 30
    model, found = nn.Flatten(), []

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        found.append((logits.flatten(), images[chosen].float().flatten() / 255))
        return logits.sum(1) * 0 + weight.sum() * 0

    weight = nn.Parameter(torch.zeros(1))
    model.register_parameter("weight", weight)
    method = configure(Rr, "smoke", {"batch": "8", "augment": "false"}, "method")
    method.train(model, images, torch.arange(8), loss, context(), "test", 8.0)  # type: ignore[arg-type]
    (mixed, own), (same, partner) = found
    assert torch.equal(mixed, same)
    apart = own != partner
    shares = ((mixed - partner) / (own - partner))[apart]
    assert len(shares) > 2 and 0 < float(shares[0]) < 1
    torch.testing.assert_close(shares, shares[:1].expand(len(shares)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (Rr, {"loss": "forward"}),
        (Rr, {"mixup": "8"}),
        (Rr, {"augment": "false"}),
        (Rr, {"optimizer": "sgd"}),
        (Rr, {"schedule": "constant", "warmup": "0"}),
        (RrDebiased, {"least_steps": "4"}),
        (Lp2st, {"mixup": "-1"}),
        (Lp2st, {"resume": "false"}),
        (Lp2st, {"share": "0.3"}),
        (Lp2st, {"epochs": "20", "temperature": "0.05"}),
        (Alibi, {"noise": "gaussian"}),
        (Alibi, {"uniform": "1"}),
    ],
)
def test_every_option_changes_the_result(cls: type[LabelPrivate], given: dict[str, str]) -> None:
    changed, plain = weights(convert(cls, **given)), weights(convert(cls))
    assert changed.isfinite().all() and not torch.equal(changed, plain)


LEARNING = {"epochs": "6", "batch": "32"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cls", "given"),
    [(Rr, {}), (Rr, {"loss": "forward"}), (RrDebiased, {}), (Lp2st, {}), (Alibi, {"uniform": "0.2"})],
)
def test_student_learns_from_one_third_wrong_labels(cls: type[LabelPrivate], given: dict[str, str]) -> None:
    """epsilon 2 of 4 classes keeps 71 % of the labels; the classes are a bright corner each."""
    release = convert(cls, Budget(2.0), private=toy_private(n=400), **LEARNING, **given)
    assert accuracy(release, 200, 9) >= 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("cls", METHODS)
def test_student_of_random_labels_is_at_chance(cls: type[LabelPrivate]) -> None:
    """Two seeds, as the images of a class are similar; the same training reaches 0.9 at epsilon 2."""
    runs = [convert(cls, Budget(0.01), private=toy_private(n=400), seed=s, **LEARNING) for s in range(2)]
    found = [accuracy(release, 200, 9) for release in runs]
    assert sum(found) / 2 < 0.6
