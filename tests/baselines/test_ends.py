"""The two extremes without noise: training with smoothed labels, and distillation with unlimited queries."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import record_calls, rng

from baselines import label_smoothing, non_private_kd
from baselines.label_smoothing import LabelSmoothing, rate, shifted, smoothed_loss
from baselines.non_private_kd import NonPrivateKd
from bench import nets
from bench.api import Release, Teacher
from bench.distillation.losses import balance_loss
from bench.errors import RunFailed
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, toy_private, toy_teacher


def toy(**parts: Any) -> Teacher:
    return replace(toy_teacher(), private=toy_private(), **parts)


def convert(cls: type[Any], of: Teacher | None = None, student: str = "datalens", **given: Any) -> Release:
    return baseline_runs.convert(cls, Budget(10.0), of or toy(), student, **given)


def test_needs_depend_on_the_network() -> None:
    assert LabelSmoothing().needs == {"private_data", "teacher_network"}
    assert LabelSmoothing(network="student").needs == {"private_data"} and NonPrivateKd.needs == {"teacher"}


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5])
def test_positive_smoothing_matches_torch(alpha: float) -> None:
    logits, labels = torch.randn(9, 5, generator=rng()), torch.arange(9) % 5
    ours = smoothed_loss(logits, labels, alpha)
    assert torch.allclose(ours, F.cross_entropy(logits, labels, label_smoothing=alpha))


def test_negative_smoothing_by_hand() -> None:
    """p = (3/4, 1/4), y = 0, alpha = -0.2: targets 1.2 - 0.1 = 1.1 and -0.1."""
    logits = torch.tensor([[math.log(3.0), 0.0]])
    expected = -1.1 * math.log(0.75) + 0.1 * math.log(0.25)
    assert float(smoothed_loss(logits, torch.tensor([0]), -0.2)) == pytest.approx(expected, rel=1e-5)


def test_rate_rises_and_falls() -> None:
    assert [round(rate(step, 8, 0.5), 3) for step in range(8)] == [0.25, 0.5, 0.75, 1.0, 1.0, 0.854, 0.5, 0.146]
    assert rate(8, 8, 1.0) <= 1


def test_shifts_move_whole_images_with_black_borders() -> None:
    images = torch.rand(400, 2, 6, 6, generator=rng()) + 0.1
    moved = shifted(images, 1, rng(1))
    assert moved.shape == images.shape
    offsets = set()
    for before, after in zip(images, moved, strict=True):
        padded = F.pad(before, (1, 1, 1, 1))
        places = [(y, x) for y in range(3) for x in range(3) if torch.equal(padded[:, y : y + 6, x : x + 6], after)]
        assert len(places) == 1
        offsets.add(places[0])
    assert len(offsets) == 9
    assert shifted(images, 0, torch.Generator()) is images


@pytest.mark.parametrize(("network", "arch"), [("teacher", "datalens"), ("student", "shard-cnn")])
def test_network_is_that_of_teacher_or_student(network: str, arch: str) -> None:
    release = convert(LabelSmoothing, student="shard-cnn", network=network)
    assert release.arch == arch
    nets.build(arch, SHAPE, CLASSES).load_state_dict(release.student.state_dict())


def test_smoothing_changes_confidence_not_accuracy() -> None:
    images, labels = toy_private()
    sure = []
    for alpha in ("-0.05", "0.0", "0.3"):
        release = convert(LabelSmoothing, smoothing=alpha, network="student", student="shard-cnn", max_steps="60",
                          epochs="60", batch="32")  # fmt: skip
        with torch.no_grad():
            p = release.student(images.float() / 255).softmax(1)
        assert (p.argmax(1) == labels).float().mean() > 0.95
        sure.append(float((1 - p.amax(1)).mean()))
    assert 1 - sure[2] < 0.9 and sure[0] < sure[1] < sure[2] / 5


def test_pass_has_every_image_with_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, losses = (record_calls(monkeypatch, label_smoothing, name) for name in ("shifted", "smoothed_loss"))
    convert(LabelSmoothing, epochs="2", batch="20", max_steps="0", smoothing="0.3")
    seen = [call.arguments[0] for call in batches]
    for images, loss in zip(seen, losses, strict=True):
        assert loss.arguments[2] == 0.3
        assert torch.equal(F.avg_pool2d(images, 8).flatten(1).argmax(1), loss.arguments[1])
    assert [len(images) for images in seen] == [20] * 8
    for each in (seen[:4], seen[4:]):
        assert len(torch.cat(each).flatten(1).unique(dim=0)) == 80


def test_steps_are_epochs_or_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: steps.append(1))
    convert(LabelSmoothing, epochs="2", batch="32", max_steps="0")
    assert len(steps) == 2 * 3, "80 images in batches of 32, twice"
    convert(LabelSmoothing, epochs="2", batch="32", max_steps="4")
    assert len(steps) == 6 + 4


def test_diverged_training_is_an_error() -> None:
    with pytest.raises(RunFailed, match=r"--method.lr"):
        convert(LabelSmoothing, lr="1e30", network="student", student="shard-cnn")


def test_all_options_reach_the_distillation(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, of = record_calls(monkeypatch, non_private_kd, "distil"), toy()
    given = {"generator_steps": "2", "oversample": "3", "augment": "true", "rate_student": "0.005"}
    convert(NonPrivateKd, of, student_batch="24", width="8", **given)
    seen = calls[0].arguments
    assert seen[0] is of.model and seen[1:5] == (of.dataset, SHAPE, CLASSES, "datalens")
    s = seen[5]
    assert (s.rounds, s.batch, s.student_steps, s.generator_steps, s.oversample) == (2, 16, 2, 2, 3)
    assert (s.augment, s.rate_student, s.rate_generator, s.generator) == (True, 0.005, 0.2, "upsample")
    assert (s.student_batch, s.width) == (24, 8)


def test_printed_entropy_has_base_10() -> None:
    """DAFL: 5 sum p log10 p of the batch's mean output, of two outputs whose mean is (0.5, 0.4, 0.1)."""
    logits = torch.tensor([[0.6, 0.3, 0.1], [0.4, 0.5, 0.1]]).log()
    wanted = 5 * (0.5 * math.log10(0.5) + 0.4 * math.log10(0.4) + 0.1 * math.log10(0.1))
    assert NonPrivateKd().balance * float(balance_loss(logits, per_sample=False)) == pytest.approx(wanted, rel=1e-5)


def test_distillation_needs_no_records() -> None:
    release = convert(NonPrivateKd, replace(toy(), private=None))
    assert release.arch == "datalens" and release.generator is not None
    assert release.synthetic is not None and release.synthetic.shape[1:] == SHAPE
