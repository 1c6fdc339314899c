"""The loop of the working variants: queries to each network, and the student's training data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.distillation.image_source import JudgedGenerator, image_source
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss
from bench.distillation.transcription import committee, learner, loop
from bench.distillation.transcription.committee import mean_log_probabilities
from bench.distillation.transcription.learner import one_cycle
from bench.distillation.transcription.loop import FEW, MEMBERS, Transcription
from bench.distillation.transcription.questions import Answered, as_floats, drawn_children, slightly_moved
from bench.errors import BenchError
from bench.testing import CLASSES, SHAPE, context, toy_teacher

SMALL = Transcription(
    questions=30, rounds=3, choose=2.0, evolve=0.5, unsure=0.5, steps=9, gamma_s=1e-2, jitter=False, batch=8,
)  # fmt: skip


class Numbered:
    """Images of one grey value, the number of the image; counts the requested images."""

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
class Asked:
    """Records the queries, and whether the student was in evaluation mode."""

    images: list[Tensor]
    logits: list[Tensor]

    def __call__(self, images: Tensor, ours: Tensor) -> Tensor:
        self.images.append(images)
        self.logits.append(ours)
        return F.one_hot(torch.arange(len(images)) % CLASSES, CLASSES).float().log()


def train(
    settings: Transcription, student: str = "datalens", **given: Any
) -> tuple[nn.Module, Tensor, Asked, Numbered]:
    asked, source = Asked([], []), Numbered()
    torch.manual_seed(0)
    phi_s, last = settings.train(toy_teacher(), student, source, asked, context(), "toy", **given)
    return phi_s, last, asked, source


def test_every_question_is_asked_once_and_there_are_as_many_as_said() -> None:
    phi_s, last, asked, source = train(SMALL)
    assert sum(len(images) for images in asked.images) == 30 and max(len(images) for images in asked.images) <= 8
    assert source.drawn == [10, 10, 10] and source.learnt == 3
    assert torch.equal(last, torch.cat(asked.images)[-10:]) and not phi_s.training
    assert not any(ours.requires_grad for ours in asked.logits)


def test_questions_have_8_bits() -> None:
    _, _, asked, _ = train(replace(SMALL, evolve=0.9))
    images = torch.cat(asked.images)
    assert torch.equal((images * 255).round() / 255, images)


@pytest.mark.parametrize(
    ("choose", "evolve", "drawn"), [(1.0, 0.0, [10, 10, 10]), (3.0, 0.0, [10, 30, 30]), (2.0, 0.75, [10, 5, 5])]
)
def test_candidates_are_fresh_images_and_children(choose: float, evolve: float, drawn: list[int]) -> None:
    _, _, _, source = train(replace(SMALL, choose=choose, evolve=evolve))
    assert source.drawn == drawn


def test_without_choice_and_children_the_prior_alone_is_asked_about() -> None:
    _, _, asked, _ = train(replace(SMALL, choose=1.0, evolve=0.0))
    values = (torch.cat(asked.images)[:, 0, 0, 0] * 255).round().int().tolist()
    assert values == list(range(30))


@pytest.mark.parametrize(("questions", "rounds"), [(30, 7), (5, 9), (12, 1)])
def test_rounds_are_equal_but_for_one_question(questions: int, rounds: int) -> None:
    sizes = replace(SMALL, questions=questions, rounds=rounds)._sizes()
    assert sum(sizes) == questions and len(sizes) == min(rounds, questions) and max(sizes) - min(sizes) <= 1


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(answers to learn from, steps until then) of every call."""
    seen: list[tuple[int, int]] = []
    learn = learner.Learner.learn

    def spy(self: Any, answered: Any, until: int, advance: Any) -> None:
        learn(self, answered, until, advance)
        seen.append((len(answered), self._done))

    monkeypatch.setattr(learner.Learner, "learn", spy)
    return seen


@pytest.mark.parametrize(("replay", "sizes"), [(True, [10, 20, 30]), (False, [10, 10, 10])])
def test_the_student_learns_from_all_answers_so_far(
    monkeypatch: pytest.MonkeyPatch, replay: bool, sizes: list[int]
) -> None:
    seen = spied(monkeypatch)
    train(replace(SMALL, replay=replay, steps=15))
    assert [size for size, _ in seen] == sizes
    assert [done for _, done in seen] == [4, 8, 15], "four fifths of the steps by the questions, the rest at the end"


def test_every_answer_is_seen_once_before_any_twice() -> None:
    batches: list[Tensor] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        batches.append(readings)
        return (logits * 0).sum()

    train(replace(SMALL, rounds=1, steps=4), loss=loss)
    assert [len(batch) for batch in batches] == [8, 8, 8, 6]


@pytest.mark.parametrize("balanced", [True, False])
def test_an_image_is_learnt_with_its_own_answer(balanced: bool) -> None:
    class Shown(nn.Module):
        """Its logits are the image's brightness."""

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
    answered = Answered(SHAPE, CLASSES, torch.device("cpu"))
    numbers = torch.arange(30)
    answered.add(
        numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *SHAPE), numbers.float()[:, None].expand(-1, CLASSES)
    )
    schedule = learner.Schedule(8, 1e-2, 8, jitter=False, balanced=balanced)
    learner.Learner(schedule, Shown(), context(), loss, torch.Generator().manual_seed(0)).learn(
        answered, 8, lambda _: None
    )
    assert len(set(seen)) > 10 and seen[:30] != sorted(seen[:30]), "every pass in an order of its own"


def test_every_step_takes_the_rate_of_its_place_in_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    descend = learner.descend
    monkeypatch.setattr(
        learner,
        "descend",
        lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"]) or descend(optimizer, loss),
    )
    train(replace(SMALL, steps=20))
    assert rates == pytest.approx([1e-2 * one_cycle(step, 20) for step in range(20)])


def test_the_teacher_is_asked_what_the_student_chose_beside_the_students_own_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A student that reads an answer off the first pixels, and a choice of the last candidates."""
    offered: list[Tensor] = []

    def view(network: Any, images: Tensor) -> Tensor:
        return as_floats(images)[:, 0, 0, :CLASSES]

    def last(candidates: Tensor, logits: Tensor, count: int, unsure: float, rng: torch.Generator) -> Tensor:
        assert (count, unsure) == (10, 0.7) and torch.equal(logits, view(None, candidates))
        offered.append(as_floats(candidates[-count:]))
        return torch.arange(len(candidates))[-count:]

    monkeypatch.setattr(loop, "logits_of", view)
    monkeypatch.setattr(loop, "chosen", last)
    _, _, asked, _ = train(replace(SMALL, unsure=0.7))
    images = torch.cat(asked.images)
    assert torch.equal(images[10:], torch.cat(offered)) and len(offered) == 2
    assert torch.equal(torch.cat(asked.logits), images[:, 0, 0, :CLASSES])


def test_children_are_balanced_over_what_answer_and_student_say_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certain responses are kept for all predictions of the students, in the loop and before the committee's
    training."""
    counts: list[int] = []

    def watched(answered: Answered, classes: Tensor, count: int, rng: torch.Generator) -> Tensor:
        assert torch.equal(classes, answered.readings.argmax(1))
        counts.append(count)
        return drawn_children(answered, classes, count, rng)

    for module in (loop, committee):
        monkeypatch.setattr(module, "drawn_children", watched)
    train(replace(SMALL, members=2))
    assert counts == [10, 10, 120], "half of the candidates, and of the lessons"


def test_the_rate_rises_for_a_tenth_of_the_steps_and_falls_to_nothing() -> None:
    rates = [one_cycle(step, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1 and rates[55] == pytest.approx(0.5) and rates[100] == pytest.approx(0)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert one_cycle(0, 1) == 1


@pytest.mark.thorough
def test_the_student_learns_what_was_answered() -> None:
    def ask(images: Tensor, ours: Tensor) -> Tensor:
        return F.one_hot((images.flatten(1).mean(1) > 0.5).long(), CLASSES).float().log()

    settings = replace(SMALL, questions=240, choose=1.0, evolve=0.0, steps=150, gamma_s=2e-3, batch=64)
    torch.manual_seed(0)
    phi_s, _ = settings.train(toy_teacher(), "datalens", Numbered(), ask, context(), "toy")
    images = Numbered().draw(240, SHAPE, torch.Generator())
    with torch.no_grad():
        right = phi_s(images).argmax(1) == (images.flatten(1).mean(1) > 0.5)
    assert float(right.float().mean()) > 0.9


@pytest.mark.parametrize("jitter", [True, False])
def test_jitter_moves_what_is_seen_and_not_what_is_stored(monkeypatch: pytest.MonkeyPatch, jitter: bool) -> None:
    calls: list[int] = []
    monkeypatch.setattr(learner, "random_affine", lambda images, rng: calls.append(len(images)) or images)
    train(replace(SMALL, jitter=jitter))
    assert len(calls) == (9 if jitter else 0)


@dataclass
class Given:
    """Options as a method has them."""

    rounds: int = 0
    choose: float = 2.0
    evolve: float = 0.7
    student_steps: int = 0
    gamma_s: float = 2e-3
    jitter: str = "auto"
    replay: bool = True
    copies: int = 1
    committee: int = 0


def test_sizes_that_are_not_given_follow_the_questions() -> None:
    few, many = Transcription.of(Given(), 768), Transcription.of(Given(), 60_000)
    assert (few.rounds, few.steps, few.jitter) == (4, 319, True)
    assert (many.rounds, many.steps, many.jitter) == (12, 1800, False)
    assert Transcription.of(Given(), FEW - 1).jitter and not Transcription.of(Given(), FEW).jitter
    given = Transcription.of(Given(rounds=3, student_steps=7, jitter="on"), 60_000)
    assert (given.rounds, given.steps, given.jitter) == (3, 7, True)


def test_a_committee_is_formed_where_answers_are_few_or_doubtful() -> None:
    assert Transcription.of(Given(), FEW - 1).members == MEMBERS and Transcription.of(Given(), FEW).members == 1
    assert Transcription.of(Given(), 60_000, doubtful=True).members == MEMBERS
    assert Transcription.of(Given(committee=1), 10, doubtful=True).members == 1
    assert Transcription.of(Given(committee=7), 60_000).members == 7


def test_copies_of_an_image_are_asked_once_each_and_what_they_say_adds_up() -> None:
    seen: list[Tensor] = []

    def loss(logits: Tensor, readings: Tensor) -> Tensor:
        seen.append(readings)
        return (logits * 0).sum()

    answers: list[Tensor] = []

    def ask(images: Tensor, ours: Tensor) -> Tensor:
        answers.append(images)
        return torch.full((len(images), CLASSES), float(len(answers)))

    settings = replace(SMALL, questions=32, copies=4, rounds=1, choose=1.0, evolve=0.0, steps=1)
    source = Numbered()
    settings.train(toy_teacher(), "datalens", source, ask, context(), "toy", loss=loss)
    assert source.drawn == [8] and [len(images) for images in answers] == [8] * 4
    assert torch.equal(seen[0], torch.full((8, CLASSES), 1.0 + 2 + 3 + 4))
    first, *moved = answers
    assert torch.equal(first[:, 0, 0, 0] * 255, torch.arange(8.0)), "the first copy is the image itself"
    assert all(not torch.equal(copy[1:], first[1:]) for copy in moved)
    assert not torch.equal(moved[0], moved[1])


def test_a_copy_is_moved_by_about_a_pixel() -> None:
    rng = torch.Generator().manual_seed(0)
    dot = torch.zeros(200, 1, 28, 28)
    dot[:, :, 13:15, 13:15] = 1
    moved = slightly_moved(dot, rng)
    places = torch.arange(28.0) - 13.5
    mass = moved.sum((1, 2, 3))
    along = (moved.sum((1, 2)) * places).sum(1) / mass
    assert 0.2 < float(along.abs().mean()) < 1 and float(along.abs().max()) < 1.5


def test_sizes_follow_the_images_where_each_is_asked_about_by_copies() -> None:
    found = Transcription.of(Given(copies=16), 16 * 5120, doubtful=True)
    assert (found.images, found.rounds, found.steps) == (5120, 4, 300 + 128) and not found.jitter
    assert Transcription.of(Given(copies=16), 16 * (FEW - 1)).jitter


@pytest.mark.parametrize("copies", [6, 3000])
def test_no_more_copies_are_asked_about_than_there_are_answers(copies: int) -> None:
    """Otherwise the teacher would answer more queries than the ledger contains."""
    with pytest.raises(BenchError, match=f"--method.copies {copies}: expected at most 5"):
        Transcription.of(Given(copies=copies), 5)
    assert Transcription.of(Given(copies=5), 5).images == 1
    with pytest.raises(ValueError, match="answers, but the ledger is told of 5"):
        train(replace(SMALL, questions=5, copies=copies))


class TestCommittee:
    def test_every_member_learns_from_all_answers_and_the_released_student_from_the_committee(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = spied(monkeypatch)
        _, last, asked, source = train(replace(SMALL, members=3))
        assert seen == [(10, 2), (20, 4), (30, 9), *[(30, 9)] * 3, (8 * 30, 18)]
        assert sum(len(images) for images in asked.images) == 30, "the teacher is asked nothing more"
        assert source.drawn == [10, 10, 10, 120] and torch.equal(last, torch.cat(asked.images)[-10:])

    def test_without_replay_it_knows_the_last_round_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = spied(monkeypatch)
        train(replace(SMALL, members=2, replay=False))
        assert [size for size, _ in seen] == [10, 10, 10, 10, 10, 80]

    def test_its_members_differ_and_its_answer_is_their_mean(self) -> None:
        torch.manual_seed(0)
        one, two = (toy_teacher(seed=seed).model for seed in (0, 1))
        images = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8)
        found = mean_log_probabilities([one, two], images).exp()
        with torch.no_grad():
            expected = (one(images / 255).softmax(1) + two(images / 255).softmax(1)) / 2
        torch.testing.assert_close(found, expected)

    def test_its_lessons_are_fresh_images_and_children_with_the_answers_of_all_members(self) -> None:
        members: list[nn.Module] = [toy_teacher(seed=seed).model for seed in (0, 1)]
        answered = Answered(SHAPE, CLASSES, torch.device("cpu"))
        answered.add(torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8), torch.zeros(5, CLASSES))
        lessons = committee._lessons(members, answered, Numbered(), torch.Generator().manual_seed(0))
        assert torch.equal(lessons.images[:20, 0, 0, 0], torch.arange(20, dtype=torch.uint8))
        assert len(lessons) == 40 and float(lessons.images[20:].float().std(0).mean()) > 20, "no grey images"
        torch.testing.assert_close(lessons.readings, mean_log_probabilities(members, lessons.images))

    def test_it_is_taught_by_soft_answers_on_images_that_are_not_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        moved, taught, learnt = [], [], []
        built: list[nn.Module] = []

        def loss(logits: Tensor, readings: Tensor) -> Tensor:
            learnt.append(len(logits))
            return logits.sum() * 0

        def soft(logits: Tensor, answers: Tensor) -> Tensor:
            torch.testing.assert_close(answers.exp().sum(1), torch.ones(len(answers)))
            taught.append(len(logits))
            return logits.sum() * 0

        monkeypatch.setattr(learner, "random_affine", lambda images, rng: moved.append(len(images)) or images)
        build = loop.nets.build
        monkeypatch.setattr(committee, "soft_loss", soft)
        monkeypatch.setattr(loop.nets, "build", lambda *given: built.append(build(*given)) or built[-1])
        train(replace(SMALL, members=2, jitter=True), loss=loss)
        assert (len(learnt), len(moved), len(taught)) == (3 * 9, 3 * 9, 2 * 9)
        assert len(built) == 2 + 2 + 1, "the teacher, who asked, the members, and one more that is released"

    @pytest.mark.thorough
    def test_of_answers_that_are_often_wrong_it_knows_more_than_the_student_that_asked(self) -> None:
        def ask(images: Tensor, ours: Tensor) -> Tensor:
            """The class, bright or dark, which is given wrongly four times in ten."""
            right = (images.flatten(1).mean(1) > 0.5).long()
            wrong = (torch.rand(len(right), generator=rng) < 0.4).long()
            return (0.6 * F.one_hot(right ^ wrong, CLASSES) + 0.4 * F.one_hot(1 - (right ^ wrong), CLASSES)).log()

        def accuracy(members: int) -> float:
            torch.manual_seed(0)
            phi_s, _ = replace(settings, members=members).train(
                toy_teacher(), "datalens", Numbered(), ask, context(), "toy"
            )
            images = Numbered().draw(240, SHAPE, torch.Generator())
            with torch.no_grad():
                right = phi_s(images).argmax(1) == (images.flatten(1).mean(1) > 0.5)
            return float(right.float().mean())

        settings = replace(SMALL, questions=240, choose=1.0, evolve=0.0, steps=60, gamma_s=2e-3, batch=64)
        rng = torch.Generator().manual_seed(0)
        alone = accuracy(1)
        rng.manual_seed(0)
        assert accuracy(3) > alone


class TestSources:
    def test_a_prior_by_its_name_or_the_data_sets_own(self) -> None:
        teacher = replace(toy_teacher(), dataset="mnist")
        own, named = (image_source(name, teacher, context()) for name in ("auto", "pen"))
        drawn = [source.draw(4, SHAPE, torch.Generator().manual_seed(0)) for source in (own, named)]
        assert torch.equal(*drawn)

    def test_another_name_is_refused_with_those_that_there_are(self) -> None:
        with pytest.raises(BenchError, match=r"pencil.*pen"):
            image_source("pencil", toy_teacher(), context())

    @pytest.mark.thorough
    def test_the_generator_descends_its_loss_and_leaves_the_student_as_it_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bench.distillation.image_source.BATCH", 64)
        torch.manual_seed(0)
        student, made = toy_teacher(seed=1).model, JudgedGenerator(SHAPE, context())
        before = {name: value.clone() for name, value in student.state_dict().items()}
        z = torch.randn(64, 100, generator=torch.Generator().manual_seed(1))

        def loss() -> float:
            with torch.no_grad():
                images = made._phi_g(z)
                logits = student(images)
                value = confidence_loss(logits) + 5 * balance_loss(logits, per_sample=False)
                return float(value + 0.02 * activation_loss(student.features(images), up=True))

        first = loss()
        made.learn(student)
        assert loss() < first - 0.01
        assert all(torch.equal(before[name], value) for name, value in student.state_dict().items())
        images = made.draw(5, SHAPE, torch.Generator().manual_seed(2))
        assert images.shape == (5, *SHAPE) and images.min() >= 0 and images.max() <= 1 and not images.requires_grad

    def test_of_many_answers_it_gives_no_more_lessons_than_help(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(committee, "MOST_LESSONS", 44)
        monkeypatch.setattr(committee, "LONGEST", 5)
        seen = spied(monkeypatch)
        train(replace(SMALL, members=2))
        assert seen[-1] == (44, 5) and committee.steps(2, replace(SMALL, members=2).schedule) == 2 * 9 + 5
