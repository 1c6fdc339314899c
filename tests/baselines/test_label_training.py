"""Training on randomised labels, in one stage and in the two of LP-2ST."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import accuracy, flat, forbidden_teacher, record_calls, smoke
from label_privacy_made import METHODS, convert, watched
from torch import Tensor, nn

from baselines import lp_2st
from baselines.alibi import Alibi
from baselines.lp_2st import Lp2st, candidates, likely, stages
from baselines.rr import Rr
from baselines.rr_debiased import RrDebiased
from bench.data import to_float
from bench.dp_training.noisy_label_training import LabelPrivate
from bench.privacy import Budget
from bench.testing import CLASSES, context, toy_private


def test_rate_rises_and_drops() -> None:
    method = Rr(warmup=0.1, drop=0.1)
    found = [method.rate_factor(step, 20) for step in (0, 1, 2, 5, 6, 11, 12, 17, 18, 19)]
    assert found == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cosine = Rr(warmup=0.0, schedule="cosine")
    assert [cosine.rate_factor(step, 4) for step in range(4)] == pytest.approx([1, 0.853553, 0.5, 0.146447], rel=1e-5)
    assert Rr(warmup=0.0, schedule="constant").rate_factor(3, 4) == 1


def trained(records: Tensor, **given: Any) -> tuple[list[Tensor], list[float], Any]:
    """The records of each batch, the share of the training that was done before it, and the model."""
    seen, shares = list[Tensor](), list[float]()

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        seen.append(chosen)
        shares.append(done)
        return logits.sum(1)

    method = smoke(Rr, None, **given)
    model = method.network(forbidden_teacher(), "datalens", context())
    method.train(model, toy_private()[0], records, loss, context(), "test")
    return seen, shares, model


def test_pass_has_every_given_record_once() -> None:
    records = torch.arange(0, 80, 2)
    seen, _, model = trained(records, batch=10, epochs=2)
    assert [len(part) for part in seen] == [10] * 8
    for each in (seen[:4], seen[4:]):
        assert torch.equal(torch.cat(each).sort().values, records)
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:])) and not model.training


def test_small_data_sets_get_more_passes() -> None:
    _, shares, _ = trained(torch.arange(80), batch=80, epochs=2, least_steps=7)
    assert shares == pytest.approx([step / 7 for step in range(7)])


def test_mixup_uses_equal_shares_for_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model whose loss of record r is r: the mixed loss must be the mixed image's number."""
    images = torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1) * 30
    model, found = nn.Flatten(), []

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        found.append((logits.flatten(), images[chosen].float().flatten() / 255))
        return logits.sum(1) * 0 + weight.sum() * 0

    weight = nn.Parameter(torch.zeros(1))
    model.register_parameter("weight", weight)
    method = smoke(Rr, None, batch=8, augment="false")
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
    changed, plain = (flat(convert(cls, **options).student) for options in (given, {}))
    assert changed.isfinite().all() and not torch.equal(changed, plain)


LEARNING = {"epochs": "6", "batch": "32"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cls", "given"), [(Rr, {}), (Rr, {"loss": "forward"}), (RrDebiased, {}), (Lp2st, {}), (Alibi, {"uniform": "0.2"})]
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


@pytest.mark.parametrize(("records", "share"), [(4, 0.1), (4, 0.9), (101, 0.6), (1000, 0.8)])
def test_stages_are_disjoint_and_complete(records: int, share: float) -> None:
    first, second = stages(records, share, torch.Generator().manual_seed(0))
    assert sorted(first.tolist() + second.tolist()) == list(range(records))
    assert len(first) == min(max(round(share * records), 2), records - 2)
    again = stages(records, share, torch.Generator().manual_seed(1))[0]
    assert records == 4 or not torch.equal(first, again)


def test_second_stage_prior_is_the_first_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prior sharpened by the temperature, of records that the first stage did not see."""
    calls, logits = record_calls(monkeypatch, lp_2st, "rr_with_prior"), list[Tensor]()
    train, trained = LabelPrivate.train, list[Tensor]()

    def watch(self: Any, model: Any, images: Tensor, records: Tensor, *rest: Any) -> None:
        train(self, model, images, records, *rest)
        trained.append(records)
        logits.append(model(to_float(images)).detach())

    monkeypatch.setattr(LabelPrivate, "train", watch)
    release = convert(Lp2st, Budget(2.0), temperature="0.5", share="0.5")
    first, second = (call.arguments[1] for call in calls)
    assert torch.equal(first, torch.full((40, CLASSES), 1 / CLASSES))
    _, numbers = stages(80, 0.5, context().generator("lp-2st/stages"))
    torch.testing.assert_close(second, (logits[0][numbers] / 0.5).softmax(1), rtol=1e-4, atol=1e-5)
    assert not set(numbers.tolist()) & set(trained[0].tolist())
    assert set(numbers.tolist()) <= set(trained[1].tolist()) and len(trained[1]) <= 80
    assert 1 <= release.solved["mean_candidates"] <= CLASSES


def corners(model: Any, images: Tensor) -> Tensor:
    """A first model that knows the class by the brightest corner, the more surely the brighter the last pixel is."""
    x = to_float(images)
    return 8 * x[:, :, -1, -1] * F.avg_pool2d(x, 8).flatten(1)


@pytest.mark.parametrize("given", [{}, {"select": "false"}, {"resume": "false"}], ids=str)
def test_second_stage_leaves_out_unlikely_labels(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    """Return records of the first part whose noisy label is among as many of the likeliest classes as the mean k*."""
    queried, _, answers = watched(monkeypatch)
    monkeypatch.setattr(lp_2st, "logits_of", corners)
    monkeypatch.setattr(LabelPrivate, "train", lambda *given: None)
    calls = record_calls(monkeypatch, LabelPrivate, "train")
    images, labels = toy_private()
    release = convert(Lp2st, Budget(1.0), private=(images, labels), temperature="0.5", mixup="-1", share="0.5", **given)
    first, second = stages(80, 0.5, context().generator("lp-2st/stages"))
    assert torch.equal(queried[0], labels[first]) and torch.equal(queried[1], labels[second])
    sizes = candidates((corners(None, images[second]) / 0.5).softmax(1), 1.0).sum(1)
    mean = float(sizes.double().mean())
    assert release.solved["mean_candidates"] == mean and 1 < mean < 4 and mean != int(mean)
    order = corners(None, images[first]).argsort(1, descending=True)[:, : int(mean)]
    kept = torch.tensor([bool(answer in row) for answer, row in zip(answers[0], order, strict=True)])
    assert 0 < int(kept.sum()) < 40
    (_, one, _, rows, *_, alpha), (_, other, _, both, *_, less) = (call.arguments for call in calls)
    assert torch.equal(rows, first) and (alpha, less) == (16, 8)
    assert torch.equal(both, torch.cat([first if given.get("select") else first[kept], second]))
    assert (one is other) == ("resume" not in given), "starts from the first model, or from new weights"


def test_selection_keeps_likely_labels() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert likely(logits, torch.tensor([1, 2, 2]), 2).tolist() == [True, False, True]
    assert likely(logits, torch.tensor([1, 2, 2]), 1).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("eps", "expected"),
    [(0.5, (0.8, 0.6, 16, 8)), (1.0, (0.8, 0.6, 16, 8)), (2.0, (0.7, 0.5, 8, 8)), (3.0, (0.6, 0.5, 8, 4)),
     (8.0, (0.6, 0.5, 4, 4)), (math.inf, (0.6, 0.5, 4, 4))],
)  # fmt: skip
def test_settings_depend_on_epsilon_as_in_the_paper(eps: float, expected: tuple[float, ...]) -> None:
    assert Lp2st()._settings(eps) == expected
    assert Lp2st(share=0.3, temperature=0.9, mixup=0.0)._settings(eps) == (0.3, 0.9, 0.0, 0.0)
