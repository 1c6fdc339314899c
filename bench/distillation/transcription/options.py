"""Options shared by the `working` variants of DPSD, DP-DFD, DPDFD and FedDPSD, and their changes from the papers.

The loop itself is `loop.py`. Every `worth` is the measured effect of a change on the student's accuracy: on DPSD
without a committee, three seeds, at a claimed epsilon of 10 and tier `quick`, except where it says otherwise. The runs
are in leaderboards/papers/ablations/runs.csv. Three kinds of runs are not stored: those with gradients at a uniform
output at epsilon 1, those of DPDFD at the student's output, and those of one student at epsilon 1 without the
committee. Effects in label mode have names with `_LABELS`; DP-DFD has no other mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bench import validate
from bench.config import Departure, Size
from bench.distillation.image_source import GENERATOR
from bench.nets.generators import UpsampleGenerator

ONE_STUDENT = "DPSD, data mode, one student: 80.1 % on digits and 77.9 % on MNIST"
"""Baseline that most changes are compared with: without the committee, `--method.committee 1`."""
LABEL_MODE = "label mode, 10,240 queries: 94.1 % on digits and 95.7 % on MNIST"
"""Baseline in label mode."""
CHILDREN_LABELS = f"{LABEL_MODE}, without 92.7 % and 95.2 %"
CHOICE_LABELS = f"{LABEL_MODE}, without 94.5 % and 94.8 %"
COMMITTEE_LABELS = "label mode at a claimed epsilon of 1, MNIST, 25,600 queries, one seed: 66.8 %, without 44.7 %"
READING_LABELS = (
    "label mode, 10,240 queries, at a claimed epsilon of 1: 50.8 % on digits, without 42.6 %; at 10, where one "
    "response in 2,400 is wrong, no effect: 94.1 % on digits and 95.7 % on MNIST, without 94.9 % and 95.7 %"
)
READING_WORTH = f"{ONE_STUDENT}, without 11.7 % and 11.3 %; {READING_LABELS}"
CANDIDATES_WORTH = f"{ONE_STUDENT}, with k 3 72.3 % and 74.6 %; {LABEL_MODE}, with k 3 68.9 % and 58.8 %"
PLAIN_LOSS_WORTH = f"{ONE_STUDENT}, with Eq. 2's 45.8 % and 43.4 %"

FROM_A_PRIOR = Departure(
    "images come from a data-free prior instead of a generator (`--method.prior generator`: a generator that learns "
    "from the student, with other weights and another rate than the paper's)",
    "the teacher assigns an untrained generator's images to few classes; the student learns only those, so the "
    "generator that it trains never makes images of the other classes",
    worth=f"{ONE_STUDENT}, with that generator 49.1 % and 15.7 %; {LABEL_MODE}, with it 87.9 % and 47.5 %",
)
CHILDREN = Departure(
    "seven in ten candidate images are transformed copies (children) of queried ones (`--method.evolve 0`: none)",
    "a prior seldom draws an image that the teacher assigns to a rare class; children of such an image are more often "
    "of that class",
    worth=f"{ONE_STUDENT}, without 73.6 % and 72.2 %; {CHILDREN_LABELS}",
)
CHOICE = Departure(
    "the student chooses half of the candidate images as queries, balanced over its predicted classes, uncertain ones "
    "more often (`--method.choose 1`: no choice)",
    "queries are few, and the teacher assigns a prior's images to some classes much more often than to others",
    worth=f"{ONE_STUDENT}, without 73.9 % and 71.8 %; {CHOICE_LABELS}",
)
REPLAY = Departure(
    "all responses are stored and used again (`--method.replay false`: only the last round's)",
    "steps on stored responses cost no privacy",
    worth=f"{ONE_STUDENT}, without 78.2 % and 73.6 %; {LABEL_MODE}, no effect: without 95.1 % and 94.9 %",
)
ONE_CYCLE = Departure(
    "the student's learning rate is at most 2e-3, in one cycle (`--method.gamma_s 0.1`: the paper's rate)",
    "at 0.1 most of the student's units become inactive in the first steps",
    worth=f"{ONE_STUDENT}, with 0.1 43.4 % and 48.8 %; {LABEL_MODE}, with 0.1 77.6 % and 56.4 %",
)
ROUNDS = Departure(
    "queries are sent in rounds of about 5,000, at least four (`--method.rounds`), not in hundreds of small batches; "
    "images are queried and stored in 8 bits; Adam's betas are 0.9 and 0.99",
    "a student that has learnt from one round chooses the queries of the next; bytes take a quarter of the memory of "
    "floats; the effect of the betas is not measured",
    without={"rounds": 1},
)
MANY_STEPS = Departure(
    "after each round the student takes many steps on stored responses (`--method.student_steps`), with dropout if its "
    "network has any; as printed: one step per batch, without dropout if responses are gradients",
    "steps on stored responses cost no privacy. Dropout is possible because the target is a likelihood; the printed "
    "target is so close to the student's own output that dropout changes the output by more",
    without={"student_steps": 100},
)
JITTER = Departure(
    "if there are fewer than 4,096 stored images, they are randomly rotated, scaled, sheared and shifted a little "
    "whenever they are used again (`--method.jitter off`)",
    "a student memorises a few hundred images",
    worth=f"{ONE_STUDENT}, without 70.3 % and 50.9 %",
)
COMMITTEE = Departure(
    "if responses are few or unreliable, three students learn from all of them, each from new weights, and their mean "
    "teaches the released student on new images (`--method.committee 1`: the querying student is released)",
    "one student's result on noisy responses depends on its initial weights and on the order of the responses",
    worth="DPSD, data mode: 81.6 % on digits and 83.0 % on MNIST, without 79.3 % and 73.9 %; at a claimed epsilon of "
    f"1, digits, 64.1 % and 59.4 %; {COMMITTEE_LABELS}",
)
FLAT_OUTPUT = Departure(
    "gradients are evaluated at a uniform output, where all classes are equally likely (`--method.gradient_at "
    "student`: at the student's output)",
    "at the output of a student that is confident and right the gradient is only rounding error",
    worth="DPSD, data mode, one student, three seeds: 77.9 % on MNIST, at the student's output 72.9 %; on digits no "
    "effect (80.1 % and 80.4 %), at a claimed epsilon of 1 59.4 % and 45.9 %. DPDFD, digits: 78.9 % and 78.1 %, at 1 "
    "21.4 % and 14.9 %",
)
FEW_CLEAR_ANSWERS = Departure(
    "data mode: few queries, at least 256, with little noise each (`--method.max_noise 0`: b T = 51,200 with much)",
    "if the noise is larger than the gradient's bound, the student memorises the noise",
    worth=f"{ONE_STUDENT}, with 10,240 images at sigma 1.7 67.4 % and 49.8 %",
)

SEEN_TEST_SETS = {
    "mnist": "settings of the queries and of the committee were chosen",
    "digits": "settings of the committee were chosen",
}
"""Data sets whose test accuracy was used to design this loop, and the settings chosen; docs/methods.md lists them."""


@dataclass(frozen=True)
class TranscriptionOptions:
    """Options of the queries and of the student's training that the `working` variants share.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    seen_test_sets: ClassVar[dict[str, str]] = SEEN_TEST_SETS

    rounds: Size[int] = 0
    """Rounds of queries, after each of which the student is trained; 0 = one per 5,000 query images, at least 4."""
    prior: str = "auto"
    """Source of new query images: a prior (`bench list priors`), or several that alternate, A+B; auto = the data set's
    prior; generator = a generator trained on the student's outputs (its loss weights and rate are not the paper's)."""
    evolve: float = 0.7
    """Share of the candidate images that are transformed copies (children) of queried images."""
    choose: float = 2.0
    """Number of candidate images per query image, from which the student chooses; 1 = no choice."""
    reading: Literal["likelihood", "printed"] = "likelihood"
    """Target computed from a response: its likelihood under every class, or the paper's target (printed)."""
    jitter: Literal["auto", "on", "off"] = "auto"
    """Randomly rotate, scale, shear and shift stored images a little when they are used again; auto = if fewer than
    4,096."""
    replay: bool = True
    """Train on all responses so far; false = only on those of the last round."""
    copies: int = 1
    """Queries per image: itself and slightly transformed copies, whose log-likelihoods are summed. Queries left over
    if the number of queries is not a multiple are charged to the budget but not sent."""
    committee: int = 0
    """Number of students that learn from all responses and whose mean prediction teaches the released student. 1 = no
    committee, the querying student is released; 0 = three if fewer than 4,096 images are queried or most responses are
    wrong, else 1."""
    gamma_s: float = 2e-3
    """Largest learning rate of the student, in one cycle of increase and decrease."""
    student_steps: Size[int] = 0
    """Total training steps of the student; 0 = 300, and one more per 40 query images."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "choose", "copies")
        validate.at_least(self, 0, "rounds", "student_steps", "committee")
        validate.positive(self, "gamma_s")
        if self.copies > 1 and self.reading == "printed":
            raise ValueError(
                f"copies is {self.copies} and reading is printed; expected reading likelihood, since the paper's "
                "targets cannot be added"
            )
        if not 0 <= self.evolve < 1:
            raise ValueError(f"evolve is {self.evolve}; expected a share from 0 to below 1")

    def check_data(self, shape: tuple[int, int, int], records: int, dataset: str) -> None:
        """Refuse image shapes that the generator, if one is used, cannot make."""
        if self.prior == GENERATOR:
            UpsampleGenerator(shape, 1, 1)
