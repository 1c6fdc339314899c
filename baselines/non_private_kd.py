"""Data-free distillation without noise: the accuracy of a student if the teacher is not protected.

Reference: Chen et al., "Data-Free Learning of Student Networks" (DAFL), ICCV 2019, implemented in
`bench/distillation/data_free_kd.py`.

1. A generator makes images that the teacher classifies with high confidence, all classes equally often.
2. The student learns the teacher's responses to them; queries and gradients of the teacher are unlimited.

Privacy. None: the teacher's responses and gradients are used without noise, and the ledger says so. It is the upper
limit for methods that train a student on generated images: their further loss of accuracy is due to noise and budget.

Differs from the paper: the student learns from a random draw of the images of the last 40 rounds, not only of the
current round; the feature term is an L2 norm of weight 0.02, not the mean absolute value of weight 0.1; the generator
ends in a sigmoid, not in a tanh that is normalised by the batch; the student's rate falls along a cosine, while DAFL's
on MNIST is constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from dp_accounting import NonPrivateDpEvent

from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.distillation.data_free_kd import DataFreeKDSettings, distil
from bench.distillation.generator_training import make_generator
from bench.nets import Classifier
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.budget import refuse_finite_budget

UNITS = (Unit.EXAMPLE, Unit.QUERY)


@dataclass(frozen=True)
class NonPrivateKd:
    """Distil the teacher with unlimited queries; without a privacy guarantee."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen et al., DAFL, ICCV 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.NONE)
    tiers: ClassVar[Tiers] = {
        "smoke": {"rounds": 2, "images_per_round": 16, "student_steps": 2, "student_batch": 128,
                  "generator_steps": 1, "width": 32},
        "quick": {"rounds": 40, "images_per_round": 256, "student_steps": 30, "student_batch": 128,
                  "generator_steps": 3, "width": 32},
    }  # fmt: skip
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="a learning rate of 1e-3 for the generator instead of 0.2",
            why="the paper's rate is for 24,000 rounds of one step; tier quick has 40 rounds of 3 steps",
            sets={"rate_generator": 1e-3},
        ),
        Departure(
            what="the entropy of the batch's mean output has weight 5 in natural logarithms, not in base 10",
            why="all generators here use one balance term of this weight, which is 2.3 times the paper's",
            sets={"balance": 5.0},
        ),
        Departure(
            what="four images are generated for every image that is kept, so that the teacher's classes are balanced",
            why="a generator with few training steps favours some classes",
            sets={"oversample": 4},
        ),
        Departure(
            what="the student's images are augmented by small random affine maps",
            why="tier quick keeps 10,240 images, and the student sees each of them 15 times",
            sets={"augment": True},
        ),
        Departure(
            what="images of digits and MNIST are pen strokes",
            why="an upsampling generator needs far more rounds to resemble glyphs; strokes are a hand-written prior",
            sets={"generator": "auto"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {
        "width": "generator=upsample|auto",
        "balance": "generator_steps>0",
        "rate_generator": "generator_steps>0",
    }

    rounds: Size[int] = 24000
    """Rounds of generator steps, new images, student steps (the paper: 200 epochs of 120)."""
    images_per_round: Size[int] = 512
    """Images per generator step, and images kept per round."""
    generator_steps: Size[int] = 1
    """Generator steps per round."""
    student_steps: Size[int] = 1
    """Student steps per round."""
    student_batch: Size[int] = 512
    """Images per student step."""
    width: Size[int] = 64
    """Channels of the upsampling generator's last hidden layer."""
    balance: float = 2.17147
    """Weight of the balance term L_ie in natural logarithms: 5 / ln 10, because the paper's 5 is for base 10."""
    rate_generator: float = 0.2
    """Learning rate of the generator (Adam)."""
    rate_student: float = 2e-3
    """Learning rate of the student (Adam), falling to 0 along a cosine."""
    oversample: int = 1
    """Generated images per kept image; kept images are balanced over the teacher's classes. 1 = all are kept."""
    generator: Literal["upsample", "strokes", "auto"] = "upsample"
    """Upsampling convolutions, pen strokes, or (auto) strokes if the data set's prior is the pen."""
    augment: bool = False
    """Apply small random affine maps to the student's images."""

    def __post_init__(self) -> None:
        self._settings()

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse to account a finite epsilon; any claimed epsilon is accepted, because there is no guarantee."""
        refuse_finite_budget(budget, UNITS, "the teacher's answers are used without noise")

    def check_data(self, shape: tuple[int, int, int], records: int, dataset: str) -> None:
        """Refuse images that the generator cannot make."""
        make_generator(self.generator, dataset, shape, 1, 1)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Distil `teacher.model` into `student`; `budget` has no effect."""
        ledger = Ledger()
        for unit in UNITS:
            ledger.spend(NonPrivateDpEvent(), unit=unit, why="the teacher's answers and gradients, without noise")
        made, generator, shown = distil(
            cast(Classifier, teacher.model),
            teacher.dataset,
            teacher.shape,
            teacher.classes,
            student,
            self._settings(),
            ctx,
        )
        return Release(made, student, ledger, claim=None, generator=generator, synthetic=shown)

    def _settings(self) -> DataFreeKDSettings:
        return DataFreeKDSettings(
            rounds=self.rounds,
            batch=self.images_per_round,
            oversample=self.oversample,
            generator_steps=self.generator_steps,
            student_steps=self.student_steps,
            student_batch=self.student_batch,
            width=self.width,
            balance=self.balance,
            rate_generator=self.rate_generator,
            rate_student=self.rate_student,
            generator=self.generator,
            augment=self.augment,
        )
