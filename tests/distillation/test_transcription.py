"""The loop of the working variants: queries to each network, and the student's training data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.data import to_float
from bench.distillation.transcription import committee, learner, loop
from bench.distillation.transcription.committee import mean_log_probabilities
from bench.distillation.transcription.learner import one_cycle
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

    images: list[Tensor]
    logits: list[Tensor]

    def __call__(self, images: Tensor, ours: Tensor) -> Tensor:
        self.images.append(images)
        self.logits.append(ours)
        return F.one_hot(torch.arange(len(images)) % CLASSES, CLASSES).float().log()


def train(
    settings: Transcription, student: str = "datalens", **given: Any
) -> tuple[nn.Module, Tensor, Recorder, Numbered]:
    recorder, source = Recorder([], []), Numbered()
    torch.manual_seed(0)
    phi_s, last = settings.train(toy_teacher(), student, source, recorder, context(), "toy", **given)
    return phi_s, last, recorder, source


def test_train_sends_every_query_once() -> None:
    phi_s, last, recorder, source = train(SMALL)
    assert sum(len(images) for images in recorder.images) == 30 and max(len(images) for images in recorder.images) <= 8
    assert source.drawn == [10, 10, 10] and source.learnt == 3
    assert torch.equal(last, torch.cat(recorder.images)[-10:]) and not phi_s.training
    assert not any(ours.requires_grad for ours in recorder.logits)


def test_queries_have_8_bits() -> None:
    _, _, recorder, _ = train(replace(SMALL, evolve=0.9))
    images = torch.cat(recorder.images)
    assert torch.equal((images * 255).round() / 255, images)


@pytest.mark.parametrize(
    ("choose", "evolve", "drawn"), [(1.0, 0.0, [10, 10, 10]), (3.0, 0.0, [10, 30, 30]), (2.0, 0.75, [10, 5, 5])]
)
def test_candidates_are_new_images_and_children(choose: float, evolve: float, drawn: list[int]) -> None:
    _, _, _, source = train(replace(SMALL, choose=choose, evolve=evolve))
    assert source.drawn == drawn


def test_queries_without_choice_and_children_are_the_priors() -> None:
    _, _, recorder, _ = train(replace(SMALL, choose=1.0, evolve=0.0))
    values = (torch.cat(recorder.images)[:, 0, 0, 0] * 255).round().int().tolist()
    assert values == list(range(30))


@pytest.mark.parametrize(("queries", "rounds"), [(30, 7), (5, 9), (12, 1)])
def test_round_sizes_differ_by_at_most_one(queries: int, rounds: int) -> None:
    sizes = replace(SMALL, queries=queries, rounds=rounds)._round_sizes()
    assert sum(sizes) == queries and len(sizes) == min(rounds, queries) and max(sizes) - min(sizes) <= 1


def spy_on_training(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the number of readings and the total steps of every call of the trainer."""
    seen: list[tuple[int, int]] = []
    original = learner.StudentTrainer.train

    def spy(self: Any, annotated: Any, until: int, advance: Any) -> None:
        original(self, annotated, until, advance)
        seen.append((len(annotated), self._done))

    monkeypatch.setattr(learner.StudentTrainer, "train", spy)
    return seen


@pytest.mark.parametrize(("replay", "sizes"), [(True, [10, 20, 30]), (False, [10, 10, 10])])
def test_student_trains_on_all_readings_with_replay(
    monkeypatch: pytest.MonkeyPatch, replay: bool, sizes: list[int]
) -> None:
    seen = spy_on_training(monkeypatch)
    train(replace(SMALL, replay=replay, steps=15))
    assert [size for size, _ in seen] == sizes
    assert [done for _, done in seen] == [4, 8, 15], "four fifths of the steps in proportion to the queries"


def test_every_reading_is_used_once_per_pass() -> None:
    batches: list[Tensor] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        batches.append(readings)
        return (logits * 0).sum()

    train(replace(SMALL, rounds=1, steps=4), loss=loss)
    assert [len(batch) for batch in batches] == [8, 8, 8, 6]


@pytest.mark.parametrize("balanced", [True, False])
def test_images_are_trained_with_their_own_readings(balanced: bool) -> None:
    class Brightness(nn.Module):
        """A network whose logits are the image's brightness."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return (255 * x[:, 0, 0, :CLASSES]).round() + self.weight

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        assert torch.equal(logits.detach(), readings)
        seen.extend(readings[:, 0].tolist())
        return logits.sum() * 0

    seen: list[float] = []
    annotated = AnnotatedImages(SHAPE, CLASSES, torch.device("cpu"))
    numbers = torch.arange(30)
    annotated.add(
        numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *SHAPE), numbers.float()[:, None].expand(-1, CLASSES)
    )
    schedule = learner.Schedule(8, 1e-2, 8, jitter=False, balanced=balanced)
    learner.StudentTrainer(schedule, Brightness(), context(), loss, torch.Generator().manual_seed(0)).train(
        annotated, 8, lambda _: None
    )
    assert len(set(seen)) > 10 and seen[:30] != sorted(seen[:30]), "every pass has another order"


def test_learning_rate_follows_one_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    descend = learner.descend
    monkeypatch.setattr(
        learner,
        "descend",
        lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"]) or descend(optimizer, loss),
    )
    train(replace(SMALL, steps=20))
    assert rates == pytest.approx([1e-2 * one_cycle(step, 20) for step in range(20)])


def test_chosen_candidates_are_queried_with_their_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The student's logits are the first pixels, and the last candidates are chosen."""
    offered: list[Tensor] = []

    def view(network: Any, images: Tensor) -> Tensor:
        return to_float(images)[:, 0, 0, :CLASSES]

    def last(logits: Tensor, count: int, uncertainty: float, rng: torch.Generator) -> Tensor:
        assert (count, uncertainty) == (10, 0.7)
        offered.append(logits[-count:])
        return torch.arange(len(logits))[-count:]

    monkeypatch.setattr(loop, "compute_logits", view)
    monkeypatch.setattr(loop, "choose_rows", last)
    _, _, recorder, _ = train(replace(SMALL, uncertainty=0.7))
    images = torch.cat(recorder.images)
    assert torch.equal(images[10:, 0, 0, :CLASSES], torch.cat(offered)) and len(offered) == 2
    assert torch.equal(torch.cat(recorder.logits), images[:, 0, 0, :CLASSES])


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


def test_one_cycle_rises_for_a_tenth_and_falls_to_zero() -> None:
    rates = [one_cycle(step, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1 and rates[55] == pytest.approx(0.5) and rates[100] == pytest.approx(0)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert one_cycle(0, 1) == 1


@pytest.mark.thorough
def test_student_learns_the_responses() -> None:
    def query(images: Tensor, ours: Tensor) -> Tensor:
        return F.one_hot((images.flatten(1).mean(1) > 0.5).long(), CLASSES).float().log()

    settings = replace(SMALL, queries=240, choose=1.0, evolve=0.0, steps=150, gamma_s=2e-3, batch=64)
    torch.manual_seed(0)
    phi_s, _ = settings.train(toy_teacher(), "datalens", Numbered(), query, context(), "toy")
    images = Numbered().draw(240, SHAPE, torch.Generator())
    with torch.no_grad():
        right = phi_s(images).argmax(1) == (images.flatten(1).mean(1) > 0.5)
    assert float(right.float().mean()) > 0.9


@pytest.mark.parametrize("jitter", [True, False])
def test_jitter_augments_every_step(monkeypatch: pytest.MonkeyPatch, jitter: bool) -> None:
    calls: list[int] = []
    monkeypatch.setattr(learner, "random_affine", lambda images, rng: calls.append(len(images)) or images)
    train(replace(SMALL, jitter=jitter))
    assert len(calls) == (9 if jitter else 0)


@dataclass
class Options:
    """Options of a method."""

    rounds: int = 0
    choose: float = 2.0
    evolve: float = 0.7
    student_steps: int = 0
    gamma_s: float = 2e-3
    jitter: str = "auto"
    replay: bool = True
    copies: int = 1
    committee: int = 0


def test_default_sizes_follow_the_number_of_queries() -> None:
    few, many = Transcription.of(Options(), 768), Transcription.of(Options(), 60_000)
    assert (few.rounds, few.steps, few.jitter) == (4, 319, True)
    assert (many.rounds, many.steps, many.jitter) == (12, 1800, False)
    assert Transcription.of(Options(), FEW - 1).jitter and not Transcription.of(Options(), FEW).jitter
    given = Transcription.of(Options(rounds=3, student_steps=7, jitter="on"), 60_000)
    assert (given.rounds, given.steps, given.jitter) == (3, 7, True)


def test_committee_exists_if_responses_are_few_or_unreliable() -> None:
    assert Transcription.of(Options(), FEW - 1).members == MEMBERS and Transcription.of(Options(), FEW).members == 1
    assert Transcription.of(Options(), 60_000, unreliable=True).members == MEMBERS
    assert Transcription.of(Options(committee=1), 10, unreliable=True).members == 1
    assert Transcription.of(Options(committee=7), 60_000).members == 7


def test_readings_of_copies_are_added() -> None:
    seen: list[Tensor] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        seen.append(readings)
        return (logits * 0).sum()

    sent: list[Tensor] = []

    def query(images: Tensor, ours: Tensor) -> Tensor:
        sent.append(images)
        return torch.full((len(images), CLASSES), float(len(sent)))

    settings = replace(SMALL, queries=32, copies=4, rounds=1, choose=1.0, evolve=0.0, steps=1)
    source = Numbered()
    settings.train(toy_teacher(), "datalens", source, query, context(), "toy", loss=loss)
    assert source.drawn == [8] and [len(images) for images in sent] == [8] * 4
    assert torch.equal(seen[0], torch.full((8, CLASSES), 1.0 + 2 + 3 + 4))
    first, *moved = sent
    assert torch.equal(first[:, 0, 0, 0] * 255, torch.arange(8.0)), "the first copy is the image itself"
    assert all(not torch.equal(copy[1:], first[1:]) for copy in moved)
    assert not torch.equal(moved[0], moved[1])


def test_default_sizes_follow_the_images_of_copies() -> None:
    found = Transcription.of(Options(copies=16), 16 * 5120, unreliable=True)
    assert (found.images, found.rounds, found.steps) == (5120, 4, 300 + 128) and not found.jitter
    assert Transcription.of(Options(copies=16), 16 * (FEW - 1)).jitter


@pytest.mark.parametrize("copies", [6, 3000])
def test_copies_are_at_most_the_number_of_queries(copies: int) -> None:
    """Otherwise the teacher would receive more queries than the ledger contains."""
    with pytest.raises(BenchError, match=rf"--method.copies {copies}\b.*\b5\b"):
        Transcription.of(Options(copies=copies), 5)
    assert Transcription.of(Options(copies=5), 5).images == 1
    with pytest.raises(ValueError, match=r"\b5\b"):
        train(replace(SMALL, queries=5, copies=copies))


class TestCommittee:
    def test_members_learn_from_readings_and_the_student_from_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = spy_on_training(monkeypatch)
        _, last, recorder, source = train(replace(SMALL, members=3))
        assert seen == [(10, 2), (20, 4), (30, 9), *[(30, 9)] * 3, (8 * 30, 18)]
        assert sum(len(images) for images in recorder.images) == 30, "the committee sends no queries"
        assert source.drawn == [10, 10, 10, 120] and torch.equal(last, torch.cat(recorder.images)[-10:])

    def test_committee_without_replay_uses_the_last_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = spy_on_training(monkeypatch)
        train(replace(SMALL, members=2, replay=False))
        assert [size for size, _ in seen] == [10, 10, 10, 10, 10, 80]

    def test_mean_log_probabilities_by_hand(self) -> None:
        torch.manual_seed(0)
        one, two = (toy_teacher(seed=seed).model for seed in (0, 1))
        images = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8)
        found = mean_log_probabilities([one, two], images).exp()
        with torch.no_grad():
            expected = (one(images / 255).softmax(1) + two(images / 255).softmax(1)) / 2
        torch.testing.assert_close(found, expected)

    def test_label_images_labels_new_images_and_children(self) -> None:
        members: list[nn.Module] = [toy_teacher(seed=seed).model for seed in (0, 1)]
        annotated = AnnotatedImages(SHAPE, CLASSES, torch.device("cpu"))
        annotated.add(torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8), torch.zeros(5, CLASSES))
        labelled = committee.label_images(members, annotated, Numbered(), torch.Generator().manual_seed(0))
        assert torch.equal(labelled.images[:20, 0, 0, 0], torch.arange(20, dtype=torch.uint8))
        assert len(labelled) == 40 and float(labelled.images[20:].float().std(0).mean()) > 20, "no grey images"
        torch.testing.assert_close(labelled.readings, mean_log_probabilities(members, labelled.images))

    def test_committee_teaches_by_soft_targets_without_jitter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        moved, taught, learnt = [], [], []
        built: list[nn.Module] = []

        def loss(logits: Tensor, readings: Tensor) -> Tensor:
            learnt.append(len(logits))
            return logits.sum() * 0

        def soft(logits: Tensor, targets: Tensor) -> Tensor:
            torch.testing.assert_close(targets.exp().sum(1), torch.ones(len(targets)))
            taught.append(len(logits))
            return logits.sum() * 0

        monkeypatch.setattr(learner, "random_affine", lambda images, rng: moved.append(len(images)) or images)
        build = loop.nets.build
        monkeypatch.setattr(committee, "soft_loss", soft)
        monkeypatch.setattr(loop.nets, "build", lambda *given: built.append(build(*given)) or built[-1])
        train(replace(SMALL, members=2, jitter=True), loss=loss)
        assert (len(learnt), len(moved), len(taught)) == (3 * 9, 3 * 9, 2 * 9)
        assert len(built) == 2 + 2 + 1, "the teacher, the querying student, the members, and the released student"

    @pytest.mark.thorough
    def test_committee_is_more_accurate_on_wrong_responses(self) -> None:
        def query(images: Tensor, ours: Tensor) -> Tensor:
            """Return the class, bright or dark, which is wrong four times in ten."""
            right = (images.flatten(1).mean(1) > 0.5).long()
            wrong = (torch.rand(len(right), generator=rng) < 0.4).long()
            return (0.6 * F.one_hot(right ^ wrong, CLASSES) + 0.4 * F.one_hot(1 - (right ^ wrong), CLASSES)).log()

        def accuracy(members: int) -> float:
            torch.manual_seed(0)
            phi_s, _ = replace(settings, members=members).train(
                toy_teacher(), "datalens", Numbered(), query, context(), "toy"
            )
            images = Numbered().draw(240, SHAPE, torch.Generator())
            with torch.no_grad():
                right = phi_s(images).argmax(1) == (images.flatten(1).mean(1) > 0.5)
            return float(right.float().mean())

        settings = replace(SMALL, queries=240, choose=1.0, evolve=0.0, steps=60, gamma_s=2e-3, batch=64)
        rng = torch.Generator().manual_seed(0)
        one_student = accuracy(1)
        rng.manual_seed(0)
        assert accuracy(3) > one_student

    def test_committee_labels_at_most_so_many_images(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(committee, "MOST_IMAGES", 44)
        monkeypatch.setattr(committee, "MOST_STEPS", 5)
        seen = spy_on_training(monkeypatch)
        train(replace(SMALL, members=2))
        assert seen[-1] == (44, 5) and committee.count_steps(2, replace(SMALL, members=2).schedule) == 2 * 9 + 5
