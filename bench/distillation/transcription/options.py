"""Options shared by the `working` variants of DPSD, DP-DFD, DPDFD and FedDPSD, and their changes from the papers.

The loop itself is `loop.py`. Every `worth` here is the effect measured on DPSD without a committee, on three seeds, at
a claimed epsilon of 10 and tier `quick`, except where stated; the runs are in leaderboards/papers/ablations/runs.csv.
Not stored are the runs with flat queries at epsilon 1, those of DPDFD at the student's output, and those of one student
at epsilon 1 without the committee. Numbers of label mode have names with `_LABELS`; DP-DFD has no other mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bench import validate
from bench.config import Departure, Size
from bench.distillation.image_source import GENERATOR
from bench.nets.generators import UpsampleGenerator

CHILDREN_LABELS = "label mode, 10,240 questions: 94.1 % on digits and 95.7 % on MNIST, without 92.7 % and 95.2 %"
CHOICE_LABELS = "label mode, 10,240 questions: 94.1 % on digits and 95.7 % on MNIST, without 94.5 % and 94.8 %"
COMMITTEE_LABELS = "label mode at 1, MNIST, 25,600 questions, one seed: 66.8 %, without 44.7 %"
READING_LABELS = (
    "label mode at claimed 1, 10,240 questions: 50.8 % on digits, without 42.6 %; at 10, where one answer in 2,400 is "
    "wrong, nothing: 94.1 % on digits and 95.7 % on MNIST, without 94.9 % and 95.7 %"
)

ONE_STUDENT = "DPSD, data mode, one student: 80.1 % on digits and 77.9 % on MNIST"
"""Baseline that most changes are compared with: without the committee, `--method.committee 1`."""
FROM_A_PRIOR = Departure(
    "images come from a data-free prior instead of a generator (`--method.prior generator`: a generator that learns "
    "from the student, not the paper's: other weights and rate)",
    "an untrained generator's images are of few classes to the teacher; a student that agrees shows it no other",
    worth=f"{ONE_STUDENT}, with that generator 49.1 % and 15.7 %; label mode, "
    "10,240 questions: 94.1 % and 95.7 %, with it 87.9 % and 47.5 %",
)
CHILDREN = Departure(
    "seven in ten candidate images are children of answered ones (`--method.evolve 0`: none)",
    "a prior seldom draws what the teacher takes for a rare class; children of the few that it did are of that class "
    "more often",
    worth=f"{ONE_STUDENT}, without 73.6 % and 72.2 %; {CHILDREN_LABELS}",
)
CHOICE = Departure(
    "the student chooses every second candidate, balanced and unsure ones first (`--method.choose 1`: no choice)",
    "answers are few, and the teacher's classes on drawn images are not even",
    worth=f"{ONE_STUDENT}, without 73.9 % and 71.8 %; {CHOICE_LABELS}",
)
REPLAY = Departure(
    "all answers are kept and learnt from again (`--method.replay false`: the last round's alone)",
    "steps on stored answers cost no privacy",
    worth=f"{ONE_STUDENT}, without 78.2 % and 73.6 %; label mode, 10,240 "
    "questions, nothing: 94.1 % and 95.7 %, without 95.1 % and 94.9 %",
)
ONE_CYCLE = Departure(
    "the student's rate is 2e-3 at most, in one cycle (`--method.gamma_s 0.1`: the paper's rate)",
    "at 0.1 most units of the student die at once",
    worth=f"{ONE_STUDENT}, with 0.1 43.4 % and 48.8 %; label mode, 10,240 "
    "questions: 94.1 % and 95.7 %, with 0.1 77.6 % and 56.4 %",
)
ROUNDS = Departure(
    "questions are asked in rounds of about 5,000, four at the least (`--method.rounds`), not in hundreds of small "
    "batches; images are asked about and stored in 8 bits; Adam's betas are 0.9 and 0.99",
    "a student that has learnt from one round chooses the next one's questions; bytes take a quarter of the memory of "
    "floats; of the betas nothing is known",
    without={"rounds": 1},
)
MANY_STEPS = Departure(
    "after each round the student takes many steps on stored answers (`--method.student_steps`), with dropout where "
    "its network has any; printed: one step for each batch, without dropout where answers are gradients",
    "steps on stored answers cost no privacy; and a likelihood is no target near the student's own output, which "
    "dropout would move further than one step of a gradient",
    without={"student_steps": 100},
)
JITTER = Departure(
    "fewer than 4,096 stored images are moved a little when they are seen again (`--method.jitter off`)",
    "a few hundred images are learnt by heart",
    worth=f"{ONE_STUDENT}, without 70.3 % and 50.9 %",
)
COMMITTEE = Departure(
    "three students learn from few or doubtful answers, each from new weights, and their mean teaches the released one "
    "on fresh images (`--method.committee 1`: the student that asked is released)",
    "what one student makes of noisy answers depends on where it started and on which it saw first",
    worth="DPSD, data mode: 81.6 % on digits and 83.0 % on MNIST, without 79.3 % and 73.9 %; at claimed 1, digits, "
    f"64.1 % and 59.4 %; {COMMITTEE_LABELS}",
)
FLAT_QUESTIONS = Departure(
    "gradients are taken where all classes are equally likely (`--method.asked_at student`: at the student's output)",
    "at the output of a student that is sure and right nothing but rounding is left of the gradient",
    worth="DPSD, data mode, one student, three seeds: 77.9 % on MNIST, at the student's output 72.9 %; on digits "
    "nothing (80.1 % and 80.4 %), at a claimed epsilon of 1 59.4 % and 45.9 %. DPDFD, digits: 78.9 % and 78.1 %, at 1 "
    "21.4 % and 14.9 %",
)
FEW_CLEAR_ANSWERS = Departure(
    "gradients: few images, 256 at least, with little noise each (`--method.most_noise 0`: b T = 51,200 with much)",
    "beyond a noise of the bound itself a student learns the noise by heart",
    worth=f"{ONE_STUDENT}, with 10,240 images at sigma 1.7 67.4 % and 49.8 %",
)
READING_WORTH = f"{ONE_STUDENT}, without 11.7 % and 11.3 %; {READING_LABELS}"
CANDIDATES_WORTH = (
    f"{ONE_STUDENT}, with k 3 72.3 % and 74.6 %; label mode, 10,240 questions: "
    "94.1 % and 95.7 %, with k 3 68.9 % and 58.8 %"
)
PLAIN_LOSS_WORTH = f"{ONE_STUDENT}, with Eq. 2's 45.8 % and 43.4 %"


SEEN_TEST_SETS = {
    "mnist": "settings of the questions and of the committee were chosen",
    "digits": "settings of the committee were chosen",
}
"""Changes of all methods that use this loop; docs/methods.md lists the settings."""


@dataclass(frozen=True)
class TranscriptionOptions:
    """Options of the queries and of the student's training.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    seen_test_sets: ClassVar[dict[str, str]] = SEEN_TEST_SETS

    rounds: Size[int] = 0
    """Rounds of questions, the student learning after each; 0 = one for 5,000 questions, at least 4."""
    prior: str = "auto"
    """Where fresh images come from: a prior (`bench list priors`) or several in turns, A+B; auto = the data set's;
    generator = one that learns from the student alone, not the paper's: other weights and rate."""
    evolve: float = 0.7
    """Share of the candidate images that are children of answered ones."""
    choose: float = 2.0
    """Candidate images for each question; the student chooses among them."""
    reading: Literal["likelihood", "printed"] = "likelihood"
    """What the student learns of an answer: its likelihood under every class, or the paper's target."""
    jitter: Literal["auto", "on", "off"] = "auto"
    """Whether stored images are moved a little when they are seen again; auto = where there are fewer than 4,096."""
    replay: bool = True
    """Learn from all answers so far, or from the last round's alone."""
    copies: int = 1
    """Answers about each image, to copies of it that are moved a little; what they say is added up. At most as many as
    answers in all; an incomplete last set of copies is charged and not asked."""
    committee: int = 0
    """Students that learn from all answers and whose mean teaches the released one; 1 = none, the student that asked is
    released; 0 = three where fewer than 4,096 images are asked about, or answers are more often wrong than right."""
    gamma_s: float = 2e-3
    """Largest learning rate of the student, of one cycle."""
    student_steps: Size[int] = 0
    """Student steps in all; 0 = 300 and one more for every 40 images asked about."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "choose", "copies")
        validate.at_least(self, 0, "rounds", "student_steps", "committee")
        validate.positive(self, "gamma_s")
        if self.copies > 1 and self.reading == "printed":
            raise ValueError(
                f"copies is {self.copies} and reading is printed; expected reading likelihood: the paper's targets do "
                "not add up"
            )
        if not 0 <= self.evolve < 1:
            raise ValueError(f"evolve is {self.evolve}; expected a share from 0 to below 1")

    def check_data(self, shape: tuple[int, int, int], records: int, dataset: str) -> None:
        """Refuse image shapes that the generator, if one is used, cannot make."""
        if self.prior == GENERATOR:
            UpsampleGenerator(shape, 1, 1)
