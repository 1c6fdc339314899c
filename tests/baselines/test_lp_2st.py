"""LP-2ST: disjoint stages, queries and training data of the second one, and the paper's settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from label_privacy_made import convert, watched
from torch import Tensor

from baselines import lp_2st
from baselines.lp_2st import Lp2st, candidates, likely, rr_with_prior, stages
from bench.data import to_float
from bench.dp_training.noisy_label_training import LabelPrivate
from bench.privacy import Budget
from bench.testing import CLASSES, context, toy_private


@pytest.mark.parametrize(("records", "share"), [(4, 0.1), (4, 0.9), (101, 0.6), (1000, 0.8)])
def test_stages_are_disjoint_and_complete(records: int, share: float) -> None:
    first, second = stages(records, share, torch.Generator().manual_seed(0))
    assert sorted(first.tolist() + second.tolist()) == list(range(records))
    assert len(first) == min(max(round(share * records), 2), records - 2)
    again = stages(records, share, torch.Generator().manual_seed(1))[0]
    assert records == 4 or not torch.equal(first, again)


def test_second_stage_prior_is_the_first_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prior sharpened by the temperature, of records that the first stage did not see."""
    priors: list[Tensor] = []

    def spy(y: Tensor, prior: Tensor, *rest: Any) -> Tensor:
        priors.append(prior)
        return rr_with_prior(y, prior, *rest)

    trained: list[Tensor] = []
    train = LabelPrivate.train

    def watch(self: Any, model: Any, images: Tensor, records: Tensor, *rest: Any) -> None:
        train(self, model, images, records, *rest)
        trained.append(records)
        if len(trained) == 1:
            outside = [r for r in range(len(images)) if r not in set(records.tolist())]
            logits.update({r: model(images[r : r + 1].float() / 255).detach()[0] for r in outside})

    logits: dict[int, Tensor] = {}
    monkeypatch.setattr(lp_2st, "rr_with_prior", spy)
    monkeypatch.setattr(LabelPrivate, "train", watch)
    release = convert(Lp2st, Budget(2.0), temperature="0.5", share="0.5")
    first, second = priors
    assert torch.equal(first, torch.full((40, CLASSES), 1 / CLASSES))
    _, numbers = stages(80, 0.5, context().generator("lp-2st/stages"))
    expected = torch.stack([(logits[r] / 0.5).softmax(0) for r in numbers.tolist()])
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-5)
    assert set(numbers.tolist()) <= set(trained[1].tolist()) and len(trained[1]) <= 80
    assert 1 <= release.solved["mean_candidates"] <= CLASSES


def corners(model: Any, images: Tensor) -> Tensor:
    """A first model that knows the class by the brightest corner, the more surely the brighter the last pixel is."""
    x = to_float(images)
    return 8 * x[:, :, -1, -1] * F.avg_pool2d(x, 8).flatten(1)


@pytest.mark.parametrize("given", [{}, {"select": "false"}, {"resume": "false"}], ids=str)
def test_second_stage_leaves_out_unlikely_labels(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    """Return records of the first part whose noisy label is among as many of the likeliest classes as the mean k*."""
    asked, _, answers = watched(monkeypatch)
    trained: list[tuple[Any, Tensor, float]] = []
    monkeypatch.setattr(lp_2st, "logits_of", corners)
    monkeypatch.setattr(
        LabelPrivate,
        "train",
        lambda self, model, images, rows, loss, ctx, stage, mixup: trained.append((model, rows, mixup)),
    )
    images, labels = toy_private()
    release = convert(Lp2st, Budget(1.0), private=(images, labels), temperature="0.5", mixup="-1", share="0.5", **given)
    first, second = stages(80, 0.5, context().generator("lp-2st/stages"))
    assert torch.equal(asked[0], labels[first]) and torch.equal(asked[1], labels[second])
    sizes = candidates((corners(None, images[second]) / 0.5).softmax(1), 1.0).sum(1)
    mean = float(sizes.double().mean())
    assert release.solved["mean_candidates"] == mean and 1 < mean < 4 and mean != int(mean)
    order = corners(None, images[first]).argsort(1, descending=True)[:, : int(mean)]
    kept = torch.tensor([bool(answer in row) for answer, row in zip(answers[0], order, strict=True)])
    assert 0 < int(kept.sum()) < 40
    (one, rows, alpha), (other, both, less) = trained
    assert torch.equal(rows, first) and (alpha, less) == (16, 8)
    assert torch.equal(both, torch.cat([first if given.get("select") else first[kept], second]))
    assert (one is other) == ("resume" not in given), "starts from the first model, or from new weights"


def test_selection_keeps_likely_labels() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert likely(logits, torch.tensor([1, 2, 2]), 2).tolist() == [True, False, True]
    assert likely(logits, torch.tensor([1, 2, 2]), 1).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("eps", "expected"),
    [
        (0.5, (0.8, 0.6, 16, 8)),
        (1.0, (0.8, 0.6, 16, 8)),
        (2.0, (0.7, 0.5, 8, 8)),
        (3.0, (0.6, 0.5, 8, 4)),
        (8.0, (0.6, 0.5, 4, 4)),
        (math.inf, (0.6, 0.5, 4, 4)),
    ],
)
def test_settings_depend_on_epsilon_as_in_the_paper(eps: float, expected: tuple[float, ...]) -> None:
    assert Lp2st()._settings(eps) == expected
    assert Lp2st(share=0.3, temperature=0.9, mixup=0.0)._settings(eps) == (0.3, 0.9, 0.0, 0.0)
