"""Class moments with and without votes: released values, how votes are read, and the baseline without teacher."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from baseline_runs import forbidden_teacher
from class_moments_made import DELTA, EIGHT, FREE, TEACHERS, VOTES, mu_squared
from dp_accounting import GaussianDpEvent
from scipy import stats
from torch import Tensor, nn

from baselines.class_moments.class_moments import AGREEMENT, ClassMoments
from bench.api import Context, Release, Teacher
from bench.config import configure
from bench.distillation.class_moments import class_images
from bench.nets import Ensemble
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.counts import noisy_counts
from bench.testing import (
    CLASSES,
    SHAPE,
    MemoryArtifacts,
    context,
    recording_context,
    silent,
    toy_private,
    weights,
)

WITH_AND_WITHOUT = pytest.mark.parametrize("teachers", [0, TEACHERS])


class Fixed(nn.Module):
    """Answers every image with the same logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.body = logits, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def members(n: int = TEACHERS) -> Ensemble:
    built = Ensemble.build(("shard-cnn",), n, SHAPE, CLASSES, seeds=range(n))
    return built.eval().requires_grad_(False)


def toy(teachers: int = TEACHERS, private: Any = None) -> Teacher:
    ensemble = members(teachers) if teachers else None
    return forbidden_teacher(ensemble=ensemble, private=private or toy_private())


def smoke(**given: Any) -> ClassMoments:
    return configure(ClassMoments, "smoke", {name: str(value) for name, value in given.items()}, "method")


def convert(
    teachers: int = TEACHERS,
    budget: Budget = EIGHT,
    of: Teacher | None = None,
    ctx: Context | None = None,
    **given: Any,
) -> Release:
    torch.manual_seed(0)
    return smoke(teachers=teachers, **given).convert(of or toy(teachers), "datalens", budget, ctx or context())


# What is done


def count_images(ensemble: Ensemble) -> list[list[int]]:
    """Return the number of images in every member's queries, call by call."""
    asked: list[list[int]] = [[] for _ in ensemble.members]

    def noting(into: list[int]) -> Callable[..., None]:
        return lambda _module, given, _answer: into.append(len(given[0]))

    for member, into in zip(ensemble.members, asked, strict=True):
        member.register_forward_hook(noting(into))
    return asked


@pytest.mark.parametrize(("queries", "images", "asked"), [(12, 32, [12]), (300, 300, [256, 44]), (40, 7, [40])])
def test_ledger_counts_every_query(queries: int, images: int, asked: list[int]) -> None:
    of = toy()
    seen = count_images(of.members())
    release = convert(of=of, query_count=queries, images=images)
    assert seen == [asked] * TEACHERS, "once about every image, however often the student learns"
    answers, moments = release.ledger.entries(Unit.EXAMPLE)
    assert answers.count == queries == release.solved["queries"]
    assert answers.event.noise_multiplier == pytest.approx(release.solved["sigma"] / math.sqrt(2))
    assert moments.event.noise_multiplier == release.solved["moments_multiplier"]
    assert account(release.ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(8, rel=1e-3)
    assert release.claim is None and release.control is not None and release.generator is None


@pytest.mark.parametrize(("queries", "images", "learnt"), [(12, 32, 32), (40, 7, 40)])
def test_student_and_control_use_equally_many_images(
    queries: int, images: int, learnt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queried images are among them, or include all of them if more are queried."""
    sizes: list[tuple[int, int]] = []

    def learn(self: ClassMoments, phi: nn.Module, x: Tensor, targets: Tensor, *rest: Any) -> None:
        sizes.append((len(x), len(targets)))

    monkeypatch.setattr(ClassMoments, "_learn", learn)
    convert(query_count=queries, images=images)
    assert sizes == [(learnt, learnt)] * 2


def test_release_without_teachers_has_no_control() -> None:
    release = convert(teachers=0)
    assert release.control is None and release.claim is None and set(release.solved) == {"moments_multiplier"}
    (moments,) = release.ledger.entries(Unit.EXAMPLE)
    assert moments.event == GaussianDpEvent(release.solved["moments_multiplier"])
    assert account(release.ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(8, rel=1e-3)
    shown = release.synthetic
    assert shown is not None and shown.shape == (60, *SHAPE) and 0 <= shown.min() < shown.max() <= 1


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every call of `noisy_moments`."""
    calls: list[dict[str, Any]] = []
    real = class_images.noisy_moments

    def recorded(images: Tensor, labels: Tensor, classes: int, basis: Tensor, multiplier: float, *rest: Any) -> Any:
        given = {"images": images, "labels": labels, "basis": basis, "multiplier": multiplier}
        calls.append(given | {"made": real(images, labels, classes, basis, multiplier, *rest), "pooled": rest[-1]})
        return calls[-1]["made"]

    monkeypatch.setattr(class_images, "noisy_moments", recorded)
    return calls


def test_moments_have_the_noise_of_the_ledger(releases: list[dict[str, Any]]) -> None:
    """The baseline without teacher uses the whole budget for moments; its basis does not depend on private images."""
    private = toy_private()
    release = convert(of=toy(private=private), moments_share=0.3)
    squares = mu_squared(release.ledger)
    assert squares[1] / sum(squares) == pytest.approx(0.3)
    assert [1 / call["multiplier"] ** 2 for call in releases] == [
        pytest.approx(squares[1]),
        pytest.approx(sum(squares)),
    ]
    assert all(call["images"] is private[0] and call["labels"] is private[1] for call in releases)
    convert(of=toy(private=toy_private(seed=9, n=44)))
    assert torch.equal(releases[0]["basis"], releases[2]["basis"])


def test_control_draws_independent_noise(releases: list[dict[str, Any]]) -> None:
    """Equal draws at two scales would reveal the sums: S + a z and S + b z have only S and z unknown."""
    private = toy_private()
    convert(of=toy(private=private), moments_share=0.5)
    convert(of=toy(private=private), budget=FREE, moments_share=0.5)
    first, control, silent_, _ = (call["made"].first.double() for call in releases)
    one, other = ((first - silent_) / releases[0]["multiplier"], (control - silent_) / releases[1]["multiplier"])
    assert abs(float(np.corrcoef(one.flatten(), other.flatten())[0, 1])) < 0.7
    assert not torch.allclose(one, other, atol=0.1)


@pytest.mark.parametrize(
    ("given", "count", "pooled"),
    [({}, 80, True), ({"second_moments": "per-class"}, 80, False), ({}, 1000 * CLASSES, False)],
    ids=str,
)
def test_moments_are_pooled_for_few_records(
    given: dict[str, str], count: int, pooled: bool, releases: list[dict[str, Any]]
) -> None:
    convert(teachers=0, of=toy(0, toy_private(n=count)), **given)
    assert releases[0]["pooled"] is pooled


@WITH_AND_WITHOUT
def test_student_and_control_train_alike_and_end_at_rate_0(teachers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Noted(torch.optim.lr_scheduler.CosineAnnealingLR):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(torch.optim.lr_scheduler, "CosineAnnealingLR", Noted)
    convert(teachers, steps=7)
    assert [each.last_epoch for each in made] == [7] * (2 if teachers else 1)
    assert all(each.get_last_lr()[0] == pytest.approx(0, abs=1e-9) for each in made)


@WITH_AND_WITHOUT
def test_noise_comes_from_the_context(teachers: int) -> None:
    seeded = weights(convert(teachers).student)
    drawn = weights(convert(teachers, ctx=replace(context(), noise="os")).student)
    assert not all(torch.equal(a, b) for a, b in zip(seeded, drawn, strict=True))


@WITH_AND_WITHOUT
def test_privacy_noise_streams_are_distinct(teachers: int) -> None:
    ctx = recording_context()
    convert(teachers, ctx=ctx)
    assert len(ctx.streams) == len(set(ctx.streams)) == (3 if teachers else 1), "two streams with the same draws"


def test_missing_inputs_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="private_data"):
        convert(of=replace(toy(), private=None))
    with pytest.raises(RuntimeError, match="teacher_ensemble"):
        convert(of=replace(toy(), ensemble=None))


def test_noiseless_images_resemble_their_class() -> None:
    """Each toy class is bright in its own corner."""
    made = smoke(dimension=100).class_images(toy(), 0.0, torch.Generator().manual_seed(0), context())
    images, classes = made.draw(80, torch.Generator().manual_seed(1))
    corners = images.unflatten(2, (2, 8)).unflatten(4, (2, 8)).mean((1, 3, 5)).flatten(1)
    assert (corners.argmax(1) == classes).float().mean() > 0.9


# How votes are read


def read(votes: list[int], sigma: float, rows: int, logit: float = 2.0, drawn_for: int = 2, seed: int = 0) -> Tensor:
    """(rows, classes) targets of as many images drawn for one class, a teacher voting for each of the classes named."""
    method = smoke(teachers=len(votes), prior_logit=logit)
    voters = Ensemble([Fixed(torch.eye(CLASSES)[c]) for c in votes], CLASSES)  # type: ignore[misc]
    spending = replace(VOTES, teachers=len(votes), sigma=sigma)
    counts = method.answers(torch.zeros(rows, *SHAPE), voters, spending, torch.Generator().manual_seed(seed))
    return method.targets(torch.full((rows,), drawn_for), CLASSES, method.evidence(counts, spending))


def has_standard_deviation(noise: np.ndarray, std: float) -> None:
    """Gaussian of that standard deviation, and of no other."""
    assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 0.01
    for wrong in (1 / 3, 1 / 2, 1 / math.sqrt(2), 1 / 1.1, 1.1, math.sqrt(2), 2, 3):
        assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-6, wrong


def test_vote_count_noise_has_deviation_sigma() -> None:
    """Read back from the posterior mean, whose log-odds are linear in the counts."""
    sigma = 5.0
    logs = read([0, 0, 1], sigma, 10_000, logit=1e-9).double().log()
    odds = torch.cat([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 3]])
    counts = odds * sigma**2 / (AGREEMENT * 3) - torch.tensor([1.0, 0.0]).repeat_interleave(10_000)
    has_standard_deviation(counts.numpy(), math.sqrt(2) * sigma)


@pytest.mark.parametrize("logit", [0.5, 2.0])
@pytest.mark.parametrize("drawn_for", [0, 2])
def test_targets_are_the_posterior_mean_of_votes(logit: float, drawn_for: int) -> None:
    """Five teachers, counts c with noise of sigma 4. If the class is r, the count of r has mean 0.7 * 5 and the others
    0; before, the class that the image was drawn for is e^logit times as likely as each of the others."""
    got = read([0, 0, 0, 1, 3], 4.0, 7, logit, drawn_for, seed=11)
    votes = torch.tensor([3.0, 1.0, 0.0, 1.0]).expand(7, -1)
    counts = noisy_counts(votes, "gaussian", 4.0, torch.Generator().manual_seed(11))
    for row in range(7):
        products = []
        for r in range(CLASSES):
            before = math.exp(logit) if r == drawn_for else 1.0
            likely = [stats.norm.pdf(counts[row, j], 0.7 * 5 * (j == r), 4.0) for j in range(CLASSES)]
            products.append(before * math.prod(likely))
        by_hand = torch.tensor(products) / sum(products)
        assert torch.allclose(got[row].double(), by_hand, atol=1e-5)


def test_unqueried_image_has_its_prior_as_target() -> None:
    got = smoke(prior_logit=1.5).targets(torch.tensor([1]), CLASSES)
    assert got[0].tolist() == pytest.approx([math.exp(1.5 * (c == 1)) / (3 + math.exp(1.5)) for c in range(CLASSES)])


def test_agreement_of_many_teachers_exceeds_the_noise() -> None:
    """300 teachers sure of a class, sigma 40: votes stand 7 standard deviations out, and beat the prior."""
    assert (read([1] * 300, 40.0, 200).argmax(1) == 1).float().mean() > 0.99


# Golden values

GOLDEN: list[Any] = [
    ("digits", 80, 8.0, 42.9501898534385, 0.6710967164599765, 7.999708833582836,
     [[0.3249612, 0.214242, 0.4504644, 0.9339559], [0.3918192, 0.3278616, 0.4597038, 0.8576655]],
     [[0.245057, -0.0018373, 0.1047364, 0.2445392], [0.1494476, 0.1113601, 0.2498471, 0.0996748]]),
    ("toy", 4400, 2.0, 142.67131616635982, 2.2292393150993717, 1.9999105922796097,
     [[0.3230917, 0.1005481, 0.5095467, 0.8857501], [0.3416921, 0.282167, 0.5339138, 0.7231797]],
     [[0.2976406, -0.0115464, 0.1429496, 0.2831128], [0.300996, 0.0855491, 0.2565403, 0.1878611]]),
]  # fmt: skip
"""Pooled moments in strokes, and one per class in cosines: data set, records, epsilon; both noises, what is spent;
logits of student and control for two images."""


@pytest.mark.thorough
@pytest.mark.usefixtures("double_precision", "usual_draws")
@pytest.mark.parametrize(("dataset", "records", "target", "sigma", "multiplier", "spent", "student", "control"), GOLDEN)
def test_outputs_match_golden_values(
    dataset: str,
    records: int,
    target: float,
    sigma: float,
    multiplier: float,
    spent: float,
    student: list[list[float]],
    control: list[list[float]],
) -> None:
    given = {"teachers": "3", "query_count": "512", "images": "712", "steps": "20"}
    method = configure(ClassMoments, "quick", given, "method")
    ctx = Context(torch.device("cpu"), 3, silent, MemoryArtifacts())
    of = replace(toy(private=toy_private(n=records)), dataset=dataset)  # leaves torch seeded
    release = method.convert(of, "datalens", Budget(target), ctx)
    assert release.solved == {
        "queries": 512,
        "sigma": pytest.approx(sigma, rel=1e-9),
        "moments_multiplier": pytest.approx(multiplier, rel=1e-9),
    }
    assert account(release.ledger, Unit.EXAMPLE, DELTA).epsilon == pytest.approx(spent, rel=1e-9)
    x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert release.control is not None
        assert torch.allclose(release.student.eval()(x), torch.tensor(student), atol=1e-5)
        assert torch.allclose(release.control.eval()(x), torch.tensor(control), atol=1e-5)


def test_release_without_teachers_equals_the_control() -> None:
    """Same multiplier, same draws: the control of a run with teachers and the run without are one implementation."""
    spending = smoke(teachers=TEACHERS).spending(EIGHT)

    class OtherStream(Context):
        def privacy_noise(self, name: str) -> Any:
            return super().privacy_noise("control" if name == "moments" else name)

    before: list[Tensor] = []
    real = ClassMoments._without_votes

    def recorded(self: ClassMoments, *given: Any) -> Any:
        before.append(torch.get_rng_state())
        return real(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClassMoments, "_without_votes", recorded)
        control = convert().control
    alone, of = smoke(multiplier=repr(spending.whole_multiplier)), toy(0)
    torch.set_rng_state(before[0])
    other = OtherStream(torch.device("cpu"), 0, silent, MemoryArtifacts())
    made = alone.convert(of, "datalens", Budget(None, solve="none"), other)
    assert control is not None
    assert all(torch.equal(a, b) for a, b in zip(weights(control), weights(made.student), strict=True))
