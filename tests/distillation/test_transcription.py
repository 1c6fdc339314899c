"""The loop of the working variants: queries to each network, the student's training data, and the committee."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.data import to_float
from bench.distillation.transcription import committee, learner, loop
from bench.distillation.transcription.committee import count_steps, mean_log_probabilities
from bench.distillation.transcription.learner import Schedule, StudentTrainer, one_cycle
from bench.distillation.transcription.loop import FEW, MEMBERS, Transcription
from bench.distillation.transcription.queries import AnnotatedImages, draw_children
from bench.errors import BenchError
from bench.testing import CLASSES, SHAPE, context, toy_teacher

SMALL = Transcription(
    queries=30, rounds=3, choose=2.0, evolve=0.5, uncertainty=0.5, steps=9, gamma_s=1e-2, jitter=False, batch=8,
)  # fmt: skip


class Numbered:
    """A source of images whose grey value is their number; counts the requested images."""

    def __init__(self) -> None:
        self.drawn: list[int] = []
        self.learnt = 0

    def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        first = sum(self.drawn)
        self.drawn.append(count)
        return (torch.arange(first, first + count).float() / 255).view(-1, 1, 1, 1).expand(count, *shape)

    def learn(self, student: nn.Module) -> None:
        self.learnt += 1


@dataclass
class Recorder:
    """A query function that records the queries and the student's logits."""

    images: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)

    def __call__(self, images: Tensor, ours: Tensor) -> Tensor:
        self.images.append(images)
        self.logits.append(ours)
        return F.one_hot(torch.arange(len(images)) % CLASSES, CLASSES).float().log()


def train(settings: Transcription, **given: Any) -> tuple[nn.Module, Tensor, Recorder, Numbered]:
    recorder, source = Recorder(), Numbered()
    torch.manual_seed(0)
    phi_s, last = settings.train(toy_teacher(), "datalens", source, recorder, context(), "toy", **given)
    return phi_s, last, recorder, source


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The number of readings and the total steps of every call of the trainer."""
    found: list[tuple[int, int]] = []
    original = StudentTrainer.train

    def spy(self: Any, annotated: Any, until: int, advance: Any) -> None:
        original(self, annotated, until, advance)
        found.append((len(annotated), self._done))

    monkeypatch.setattr(StudentTrainer, "train", spy)
    return found


def test_train_sends_every_query_once_in_8_bits() -> None:
    phi_s, last, recorder, source = train(SMALL)
    images = torch.cat(recorder.images)
    assert len(images) == 30 and max(map(len, recorder.images)) <= 8
    assert torch.equal((images * 255).round() / 255, images)
    assert source.drawn == [10, 10, 10] and source.learnt == 3
    assert torch.equal(last, images[-10:]) and not phi_s.training
    assert not any(ours.requires_grad for ours in recorder.logits)


@pytest.mark.parametrize(
    ("choose", "evolve", "drawn"), [(1.0, 0.0, [10, 10, 10]), (3.0, 0.0, [10, 30, 30]), (2.0, 0.75, [10, 5, 5])]
)
def test_candidates_are_new_images_and_children(choose: float, evolve: float, drawn: list[int]) -> None:
    _, _, recorder, source = train(replace(SMALL, choose=choose, evolve=evolve))
    assert source.drawn == drawn
    if choose == 1:  # without choice and children the queries are the prior's images
        values = (torch.cat(recorder.images)[:, 0, 0, 0] * 255).round().int().tolist()
        assert values == list(range(30))


@pytest.mark.parametrize(("queries", "rounds"), [(30, 7), (5, 9), (12, 1)])
def test_round_sizes_differ_by_at_most_one(queries: int, rounds: int) -> None:
    sizes = replace(SMALL, queries=queries, rounds=rounds)._round_sizes()
    assert sum(sizes) == queries and len(sizes) == min(rounds, queries) and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("replay", "sizes"), [(True, [10, 20, 30]), (False, [10, 10, 10])])
def test_student_trains_on_all_readings_with_replay(
    calls: list[tuple[int, int]], replay: bool, sizes: list[int]
) -> None:
    """Four fifths of the steps are in proportion to the queries."""
    train(replace(SMALL, replay=replay, steps=15))
    assert calls == list(zip(sizes, [4, 8, 15], strict=True))


def test_every_reading_is_used_once_per_pass() -> None:
    batches: list[int] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        batches.append(len(readings))
        return (logits * 0).sum()

    train(replace(SMALL, rounds=1, steps=4), loss=loss)
    assert batches == [8, 8, 8, 6]


class Brightness(nn.Module):
    """A network whose logits are the image's brightness."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return (255 * x[:, 0, 0, :CLASSES]).round() + self.weight


@pytest.mark.parametrize("balanced", [True, False])
def test_images_are_trained_with_their_own_readings(balanced: bool) -> None:
    seen: list[float] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        assert torch.equal(logits.detach(), readings)
        seen.extend(readings[:, 0].tolist())
        return logits.sum() * 0

    annotated, numbers = AnnotatedImages(SHAPE, CLASSES, torch.device("cpu")), torch.arange(30)
    images = numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *SHAPE)
    annotated.add(images, numbers.float()[:, None].expand(-1, CLASSES))
    schedule = Schedule(8, 1e-2, 8, jitter=False, balanced=balanced)
    trainer = StudentTrainer(schedule, Brightness(), context(), loss, torch.Generator().manual_seed(0))
    trainer.train(annotated, 8, lambda _: None)
    assert len(set(seen)) > 10 and seen[:30] != sorted(seen[:30]), "every pass has another order"


def test_learning_rate_follows_one_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    descend = learner.descend

    def spy(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        descend(optimizer, loss)

    monkeypatch.setattr(learner, "descend", spy)
    train(replace(SMALL, steps=20))
    assert rates == pytest.approx([1e-2 * one_cycle(step, 20) for step in range(20)])


def test_one_cycle_rises_for_a_tenth_and_falls_to_zero() -> None:
    rates = [one_cycle(step, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1 and rates[55] == pytest.approx(0.5) and rates[100] == pytest.approx(0)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert one_cycle(0, 1) == 1


def test_chosen_candidates_are_queried_with_their_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The student's logits are the first pixels, and the last candidates are chosen."""
    offered: list[Tensor] = []

    def last(logits: Tensor, count: int, uncertainty: float, rng: torch.Generator) -> Tensor:
        assert (count, uncertainty) == (10, 0.7)
        offered.append(logits[-count:])
        return torch.arange(len(logits))[-count:]

    monkeypatch.setattr(loop, "compute_logits", lambda network, images: to_float(images)[:, 0, 0, :CLASSES])
    monkeypatch.setattr(loop, "choose_rows", last)
    _, _, recorder, _ = train(replace(SMALL, uncertainty=0.7))
    pixels = torch.cat(recorder.images)[:, 0, 0, :CLASSES]
    assert torch.equal(pixels[10:], torch.cat(offered)) and len(offered) == 2
    assert torch.equal(torch.cat(recorder.logits), pixels)


def test_parents_classes_combine_readings_and_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certain readings outweigh any prediction, in the loop and before the committee's training."""
    counts: list[int] = []

    def watched(annotated: AnnotatedImages, classes: Tensor, count: int, rng: torch.Generator) -> Tensor:
        assert torch.equal(classes, annotated.readings.argmax(1))
        counts.append(count)
        return draw_children(annotated, classes, count, rng)

    for module in (loop, committee):
        monkeypatch.setattr(module, "draw_children", watched)
    train(replace(SMALL, members=2))
    assert counts == [10, 10, 120], "half of the candidates, and of the committee's images"


def is_bright(images: Tensor) -> Tensor:
    return (images.flatten(1).mean(1) > 0.5).long()


def accuracy(settings: Transcription, query: loop.Query) -> float:
    """Return the share of 240 numbered images that a trained student classifies correctly as bright or dark."""
    torch.manual_seed(0)
    phi_s, _ = settings.train(toy_teacher(), "datalens", Numbered(), query, context(), "toy")
    images = Numbered().draw(240, SHAPE, torch.Generator())
    with torch.no_grad():
        return float((phi_s(images).argmax(1) == is_bright(images)).float().mean())


LONGER = replace(SMALL, queries=240, choose=1.0, evolve=0.0, gamma_s=2e-3, batch=64)


@pytest.mark.thorough
def test_student_learns_the_responses() -> None:
    def query(images: Tensor, ours: Tensor) -> Tensor:
        return F.one_hot(is_bright(images), CLASSES).float().log()

    assert accuracy(replace(LONGER, steps=150), query) > 0.9


@pytest.mark.thorough
def test_committee_is_more_accurate_on_wrong_responses() -> None:
    """Four in ten responses are wrong."""
    rng = torch.Generator()

    def query(images: Tensor, ours: Tensor) -> Tensor:
        response = is_bright(images) ^ (torch.rand(len(images), generator=rng) < 0.4).long()
        return (0.6 * F.one_hot(response, CLASSES) + 0.4 * F.one_hot(1 - response, CLASSES)).log()

    found = []
    for members in (1, 3):
        rng.manual_seed(0)
        found.append(accuracy(replace(LONGER, steps=60, members=members), query))
    assert found[1] > found[0]


@pytest.mark.parametrize("jitter", [True, False])
def test_jitter_augments_every_step(monkeypatch: pytest.MonkeyPatch, jitter: bool) -> None:
    steps: list[int] = []
    monkeypatch.setattr(learner, "random_affine", lambda images, rng: steps.append(len(images)) or images)
    train(replace(SMALL, jitter=jitter))
    assert len(steps) == (9 if jitter else 0)


def options_of(**changes: Any) -> Any:
    """Return options of a method, as it has them by default."""
    usual = {"rounds": 0, "choose": 2.0, "evolve": 0.7, "student_steps": 0, "gamma_s": 2e-3, "jitter": "auto"}
    return SimpleNamespace(**usual | {"replay": True, "copies": 1, "committee": 0} | changes)


@pytest.mark.parametrize(
    ("options", "queries", "unreliable", "expected"),
    [
        (options_of(), 768, False, {"images": 768, "rounds": 4, "steps": 319, "jitter": True, "members": MEMBERS}),
        (options_of(), 60_000, False, {"rounds": 12, "steps": 1800, "jitter": False, "members": 1}),
        (options_of(), FEW - 1, False, {"jitter": True, "members": MEMBERS}),
        (options_of(), FEW, False, {"jitter": False, "members": 1}),
        (options_of(rounds=3, student_steps=7, jitter="on"), 60_000, False, {"rounds": 3, "steps": 7, "jitter": True}),
        (options_of(), 60_000, True, {"members": MEMBERS}),
        (options_of(committee=1), 10, True, {"members": 1}),
        (options_of(committee=7), 60_000, False, {"members": 7}),
        (options_of(copies=16), 16 * 5120, True, {"images": 5120, "rounds": 4, "steps": 300 + 128, "jitter": False}),
        (options_of(copies=16), 16 * (FEW - 1), False, {"jitter": True}),
        (options_of(copies=5), 5, False, {"images": 1}),
    ],
)
def test_default_settings_follow_the_number_of_queries(
    options: Any, queries: int, unreliable: bool, expected: dict[str, Any]
) -> None:
    settings = Transcription.of(options, queries, unreliable)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_readings_of_copies_are_added() -> None:
    readings, sent = [], []

    def loss(logits: Tensor, given: Tensor) -> Tensor:
        readings.append(given)
        return (logits * 0).sum()

    def query(images: Tensor, ours: Tensor) -> Tensor:
        sent.append(images)
        return torch.full((len(images), CLASSES), float(len(sent)))

    settings = replace(SMALL, queries=32, copies=4, rounds=1, choose=1.0, evolve=0.0, steps=1)
    source = Numbered()
    settings.train(toy_teacher(), "datalens", source, query, context(), "toy", loss=loss)
    assert source.drawn == [8] and [len(images) for images in sent] == [8] * 4
    assert torch.equal(readings[0], torch.full((8, CLASSES), 1.0 + 2 + 3 + 4))
    first, *moved = sent
    assert torch.equal(first[:, 0, 0, 0] * 255, torch.arange(8.0)), "the first copy is the image itself"
    assert all(not torch.equal(copy[1:], first[1:]) for copy in moved)
    assert not torch.equal(moved[0], moved[1])


@pytest.mark.parametrize("copies", [6, 3000])
def test_copies_are_at_most_the_number_of_queries(copies: int) -> None:
    """Otherwise the teacher would receive more queries than the ledger contains."""
    with pytest.raises(BenchError, match=rf"--method.copies {copies}\b.*\b5\b"):
        Transcription.of(options_of(copies=copies), 5)
    with pytest.raises(ValueError, match=r"\b5\b"):
        train(replace(SMALL, queries=5, copies=copies))


def test_committee_learns_from_readings_and_teaches(calls: list[tuple[int, int]]) -> None:
    _, last, recorder, source = train(replace(SMALL, members=3))
    assert calls == [(10, 2), (20, 4), (30, 9), *[(30, 9)] * 3, (8 * 30, 18)]
    assert sum(map(len, recorder.images)) == 30, "the committee sends no queries"
    assert source.drawn == [10, 10, 10, 120] and torch.equal(last, torch.cat(recorder.images)[-10:])


def test_committee_without_replay_uses_the_last_round(calls: list[tuple[int, int]]) -> None:
    train(replace(SMALL, members=2, replay=False))
    assert [readings for readings, _ in calls] == [10, 10, 10, 10, 10, 80]


def test_committee_limits_images_and_steps(calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committee, "MOST_IMAGES", 44)
    monkeypatch.setattr(committee, "MOST_STEPS", 5)
    train(replace(SMALL, members=2))
    assert calls[-1] == (44, 5) and count_steps(2, SMALL.schedule) == 2 * 9 + 5


def test_mean_log_probabilities_by_hand() -> None:
    torch.manual_seed(0)
    one, two = (toy_teacher(seed=seed).model for seed in (0, 1))
    images = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8)
    found = mean_log_probabilities([one, two], images).exp()
    with torch.no_grad():
        expected = (one(images / 255).softmax(1) + two(images / 255).softmax(1)) / 2
    torch.testing.assert_close(found, expected)


def test_label_images_labels_new_images_and_children() -> None:
    members: list[nn.Module] = [toy_teacher(seed=seed).model for seed in (0, 1)]
    annotated = AnnotatedImages(SHAPE, CLASSES, torch.device("cpu"))
    annotated.add(torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8), torch.zeros(5, CLASSES))
    labelled = committee.label_images(members, annotated, Numbered(), torch.Generator().manual_seed(0))
    assert torch.equal(labelled.images[:20, 0, 0, 0], torch.arange(20, dtype=torch.uint8))
    assert len(labelled) == 40 and float(labelled.images[20:].float().std(0).mean()) > 20, "no grey images"
    torch.testing.assert_close(labelled.readings, mean_log_probabilities(members, labelled.images))


def test_committee_teaches_by_soft_targets_without_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    jittered, soft_steps, steps = [], [], []
    built: list[nn.Module] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        steps.append(len(logits))
        return logits.sum() * 0

    def soft(logits: Tensor, targets: Tensor) -> Tensor:
        torch.testing.assert_close(targets.exp().sum(1), torch.ones(len(targets)))
        soft_steps.append(len(logits))
        return logits.sum() * 0

    build = loop.nets.build
    monkeypatch.setattr(learner, "random_affine", lambda images, rng: jittered.append(len(images)) or images)
    monkeypatch.setattr(committee, "soft_loss", soft)
    monkeypatch.setattr(loop.nets, "build", lambda *given: built.append(build(*given)) or built[-1])
    train(replace(SMALL, members=2, jitter=True), loss=loss)
    assert (len(steps), len(jittered), len(soft_steps)) == (3 * 9, 3 * 9, 2 * 9)
    assert len(built) == 2 + 2 + 1, "the teacher, the querying student, the members, and the released student"
