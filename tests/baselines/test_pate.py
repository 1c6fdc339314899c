"""PATE: which images are queried, the student's training data, and refused settings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, record_calls
from dp_accounting import NonPrivateDpEvent
from pate_made import BOTH, PUBLIC, UNBOUNDED, convert, paper, smoke, toy
from torch import Tensor, nn

from baselines.pate import Pate
from baselines.pate_gnmax import PateGnmax
from bench.config import configure
from bench.distillation.votes import voted_student
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan, posterior
from bench.distillation.votes.pate import NoisyVotes
from bench.errors import BenchError, RunFailed
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.testing import CLASSES, SHAPE, context, toy_private


@pytest.mark.parametrize("images", ["strokes", "generated"])
@BOTH
def test_data_free_images_use_no_records(cls: type[Any], images: str) -> None:
    assert smoke(cls, images=images).needs == {"teacher_ensemble"}
    release = convert(cls, of=toy(private=None), images=images)
    assert all(e.event != NonPrivateDpEvent() for e in release.ledger.entries()) and release.control is None
    shown = release.synthetic
    assert shown is not None and 0 <= shown.min() < shown.max() <= 1 and shown.std() > 0.05


@BOTH
def test_private_images_are_unprotected_in_the_ledger(cls: type[Any]) -> None:
    assert smoke(cls, images="private").needs == {"teacher_ensemble", "private_data"}
    release = convert(cls, of=toy(private=toy_private()), images="private")
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    assert release.claim is not None and release.claim.epsilon <= 10 and "not charged" in release.claim.source
    assert release.synthetic is None and release.control is None


def rows(images: Tensor) -> set[bytes]:
    return {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in images}


@BOTH
def test_public_images_are_the_default(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only public images are queried, each once, and the student is trained on nothing else."""
    assert cls().images == "public" and cls().needs == {"teacher_ensemble", "public_data"}
    calls = record_calls(monkeypatch, NoisyVotes, "_learn")
    release = convert(cls, UNBOUNDED, **({"threshold": "0"} if cls is PateGnmax else {}))
    _, _, _, images, _, further, _ = calls[0].arguments
    answered, rest = rows(images), rows(further)
    queries = smoke(cls).query_count
    assert (len(answered), len(rest)) == (queries, 16) and not answered & rest
    assert answered | rest < rows(PUBLIC / 255)
    assert release.synthetic is None and release.control is None, "neither made here nor to be compared with"


def test_too_few_public_images_are_refused() -> None:
    assert smoke(Pate).least_public() == 4 and smoke(Pate, images="strokes").least_public() == 0
    assert smoke(PateGnmax, responses="2").least_public() == 8, "every image that is put to the threshold"
    with pytest.raises(BenchError, match=r"81 .* 80 "):
        convert(Pate, FREE, query_count="81")
    assert convert(Pate, FREE, query_count="80").solved["queries"] == 80
    with pytest.raises(RuntimeError, match="public_data"):
        convert(Pate, of=toy(private=toy_private()))


def test_images_are_queried_once_each() -> None:
    rng = torch.Generator().manual_seed(0)
    images = voted_student.draw_some(PUBLIC, "private", 10, 70, rng)
    assert images.shape == (70, *SHAPE) and images.dtype == torch.float32 and images.max() <= 1
    assert len(images.flatten(1).unique(dim=0)) == 70
    with pytest.raises(BenchError, match=r"81 .* 80 "):
        voted_student.draw_some(PUBLIC, "private", 81, 90, rng)


@BOTH
def test_noiseless_targets_are_the_pluralities(cls: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls, of = record_calls(monkeypatch, NoisyVotes, "_learn"), toy()
    release = convert(cls, UNBOUNDED, of, **({"threshold": "0"} if cls is PateGnmax else {}))
    (votes,) = of.members().seen  # type: ignore[misc]
    targets = calls[0].arguments[4]
    assert torch.equal(targets.argmax(1), votes.argmax(1)) and (targets.sum(1) == 1).all()  # type: ignore[attr-defined]
    assert release.claim is not None and math.isinf(release.claim.epsilon) and release.solved["scale"] == 0
    assert all(e.event == NonPrivateDpEvent() for e in release.ledger.entries(Unit.EXAMPLE))


def test_answers_stay_with_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the images that pass are those on which most teachers agree.

    The student also learns from the eight further images, but not from those that fail the threshold.
    """
    calls, of = record_calls(monkeypatch, NoisyVotes, "_learn"), toy(5)
    convert(PateGnmax, UNBOUNDED, of, threshold="0.7", query_count="40", responses="40", unlabelled="8", teachers="5")
    _, _, _, images, targets, further, _ = calls[0].arguments
    (votes,) = of.members().seen  # type: ignore[misc]
    assert len(votes) == 40 and len(further) == len(rows(further)) == 8
    assert not rows(images) & rows(further)
    most = votes.amax(1)
    assert 0 < len(images) == int((most > 3.5).sum()) < 40
    again = of.members().votes(images)
    assert bool((again.amax(1) > 3.5).all()) and torch.equal(again.argmax(1), targets.argmax(1))
    assert len(targets.argmax(1).unique()) > 1


def test_student_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown(nn.Module):
        """Its logits are the image's first pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, 0, 0, :CLASSES] + self.weight

    cross_entropy, seen, steps = F.cross_entropy, [], []

    def spy(logits: Tensor, targets: Tensor, **given: Any) -> Tensor:
        torch.testing.assert_close(logits.detach(), targets)
        seen.append(len(targets))
        return 0 * cross_entropy(logits, targets, **given)

    def step(self: torch.optim.Adam, closure: Any = None) -> None:
        (weight,) = self.param_groups[0]["params"]
        steps.append((self.param_groups[0]["lr"], float(weight.grad)))

    monkeypatch.setattr(voted_student.F, "cross_entropy", spy)
    monkeypatch.setattr(voted_student.nets, "build", lambda *given: Shown())
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    monkeypatch.setattr(Pate, "_self_training_loss", lambda self, made, *rest: made.weight.sum())
    images = torch.rand(30, *SHAPE, generator=torch.Generator().manual_seed(0))
    method = smoke(Pate, steps="4", batch="20", unlabelled_weight="0.5", augment="false", lr="0.01")
    method._learn("shown", toy(), images, images[:, 0, 0, :CLASSES], images[:5], context())
    rates, gradients = zip(*steps, strict=True)
    assert seen == [20] * 4 and rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    assert gradients == (0.5,) * 4, "the other images' loss has the weight of the option"


def test_targets_are_the_plurality_or_posterior() -> None:
    """At Gaussian noise of 3 votes among 9 teachers, and 4 queries."""
    counts = torch.tensor([[6.0, 2.0, 1.0, 0.0], [3.0, 4.0, 1.0, 1.0]])
    plan = VotePlan(Aggregation("gaussian", 3.0), queries=4, candidates=4, teachers=9)
    plurality, spread = (
        smoke(Pate, target_estimator=estimator)._targets(counts, plan) for estimator in ("argmax", "posterior")
    )
    assert plurality.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    torch.testing.assert_close(spread, posterior(counts, plan.aggregation, 9))
    assert not torch.allclose(spread, posterior(counts, plan.aggregation, 4), atol=1e-3)


class Fixed(nn.Module):
    """Logits (mean of the image, 0), scaled."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1) * self.scale
        return torch.stack([mean, torch.zeros_like(mean)], 1)


def test_pseudo_labels_need_a_confident_student(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of means 0, 1, 1 under logits (4 m, 0): p = 1/2, s, s = sigmoid(4); mean of 0, -log s, -log s."""
    monkeypatch.setattr(voted_student, "random_affine", lambda images, rng: images)
    images = torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE), torch.ones(SHAPE)])
    net, s = Fixed(4.0), 1 / (1 + math.exp(-4))
    loss = smoke(Pate, sure="0.9")._self_training_loss(net, net, images, torch.Generator())
    assert float(loss.detach()) == pytest.approx(-2 * math.log(s) / 3, rel=1e-5)
    assert net.training
    (gradient,) = torch.autograd.grad(loss, [net.scale])
    assert float(gradient) == pytest.approx(-2 * (1 - s) / 3, rel=1e-4), "no gradient flows through the answer"
    never = smoke(Pate, sure="1")._self_training_loss(net, net, images, torch.Generator())
    assert float(never.detach()) == 0


@pytest.mark.parametrize(
    "given",
    [{"unlabelled": "0"}, {"unlabelled_weight": "0", "augment": "false"}, {"target_estimator": "posterior"},
     {"sure": "0"}],
    ids=lambda given: "-".join(given),
)  # fmt: skip
def test_every_option_changes_the_student(given: dict[str, str]) -> None:
    x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    plain, changed = convert(Pate).student(x), convert(Pate, **given).student(x)
    assert changed.isfinite().all() and not torch.equal(plain, changed)


def test_threshold_without_answers_is_an_error() -> None:
    with pytest.raises(RunFailed, match="threshold"):
        convert(PateGnmax, UNBOUNDED, threshold="1.5")


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_default_number_of_teachers_by_data_set(name: str) -> None:
    assert paper(Pate, teachers="0").shards("resnet18", name).count == {"digits": 48, "mnist": 250}[name]
    assert paper(Pate, teacher_net="same").shards("resnet18", name).archs == ("resnet18",)


def test_missing_records_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="private_data"):
        convert(Pate, images="private")


def test_variants_have_the_settings_of_old_tiers() -> None:
    """Until version 1, tier quick also set `augment` and the threshold, and its images came from class moments."""
    quick = {"teachers": 0, "teacher_net": "scatter-linear", "unlabelled": 3000, "steps": 600, "batch": 64}
    assert configure(Pate, "quick", {}, "method") == Pate(**quick, augment=True)
    fewer = {"query_count": 100, "responses": 50}
    assert configure(PateGnmax, "quick", {}, "method") == PateGnmax(**quick, **fewer, augment=True, threshold=0.6)
    for cls in (Pate, PateGnmax):
        assert paper(cls) == cls() and not cls().augment


GOLDEN: list[Any] = [
    (Pate, "printed", "strokes", {"scale": 4.498113352967674}, 8.893768454719526, 7.999674368963196,
     [[0.0156368, 0.6358707, 0.0725104, -0.1601128], [0.2518874, 0.3696991, 0.2139836, -0.3993086]]),
    (PateGnmax, "working", "private", {"scale": 3.1952803759994803, "threshold_scale": 11.982301409998051},
     7.99984067809311, math.inf,
     [[1.1573278, -1.2705559, -0.2711231, -0.1422350], [1.0827701, -1.9268242, 0.1623490, 0.2969910]]),
]  # fmt: skip
"""Golden values of version 1, tiers paper and quick: noise, claim, accounted epsilon and two rows of logits."""


@pytest.mark.thorough
@pytest.mark.usefixtures("usual_draws")
@pytest.mark.parametrize(("cls", "variant", "images", "solved", "claimed", "proved", "logits"), GOLDEN)
def test_outputs_with_strokes_match_golden_values(
    cls: type[Any],
    variant: Any,
    images: str,
    solved: dict[str, float],
    claimed: float,
    proved: float,
    logits: list[list[float]],
) -> None:
    given = {"images": images, "query_count": "20", "unlabelled": "30", "steps": "30", "teachers": "3", "batch": "16",
             "teacher_net": "shard-cnn"} | ({"responses": "10"} if cls is PateGnmax else {})  # fmt: skip
    method = configure(cls, "paper" if variant == "printed" else "quick", given, "method", variant)
    against: Any = "claimed" if images == "private" else "accounted"
    of = toy(private=toy_private())  # leaves torch seeded
    release = method.convert(of, "datalens", Budget(8.0, account=against), replace(context(), seed=3))
    assert {name: release.solved[name] for name in solved} == pytest.approx(solved, rel=1e-9)
    assert release.claim is not None and release.claim.epsilon == pytest.approx(claimed, rel=1e-6)
    assert account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon == pytest.approx(proved, rel=1e-6)
    x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(release.student.eval()(x), torch.tensor(logits), atol=1e-4)
