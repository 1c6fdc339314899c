"""Data-free distillation without noise: what a student could be if the teacher needed no protection.

Reference: Chen et al., "Data-Free Learning of Student Networks" (DAFL), ICCV 2019,
as `bench/distillation/data_free_kd.py` has it.

1. A generator makes images of which the teacher is sure, all classes equally often.
2. The student learns the teacher's answers to them; the teacher is asked, with gradients, as often as is useful.

Privacy. None: the teacher's answers and gradients are used as they are, and the ledger says so. It is the upper end for
methods that make a student of generated images: what they lose beyond this, they lose to their noise and their budget.

Differs from the paper: images are kept and replayed, chosen for balance, and moved about; the feature term is an L2
norm; images of digits and MNIST are strokes of a pen. Tier `quick` takes fewer and larger rounds, for two CPU cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dp_accounting import NonPrivateDpEvent

from bench.api import Context, Release, Teacher
from bench.distillation.data_free_kd import FreeSettings, distil
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.unprotected import refuse_proof

UNITS = (Unit.EXAMPLE, Unit.QUERY)


@dataclass(frozen=True)
class NonPrivateKd:
    """Distils the teacher freely; promises nothing."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen et al., DAFL, ICCV 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.NONE)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"rounds": 2, "images_per_round": 16, "student_steps": 2},
        "quick": {"rounds": 40, "images_per_round": 256, "student_steps": 30, "generator_steps": 3,
                  "rate_generator": 1e-3},
    }  # fmt: skip

    rounds: int = 24000
    """Rounds of generator steps, new images, student steps (the paper: 200 epochs of 120)."""
    images_per_round: int = 512
    """Images per generator step, and images kept per round."""
    choose: int = 4
    """Images made per image kept; the teacher's classes are balanced among those kept."""
    generator_steps: int = 1
    """Generator steps per round."""
    student_steps: int = 1
    """Student steps per round."""
    rate_generator: float = 0.2
    """Learning rate of the generator (Adam)."""
    rate_student: float = 2e-3
    """Learning rate of the student (Adam), falling to 0 along a cosine."""
    images: Literal["auto", "upsample", "strokes"] = "auto"
    """Upsampling convolutions, pen strokes, or strokes on digits and mnist alone (auto)."""
    augment: bool = True
    """Images kept are turned, scaled, sheared and moved a little whenever the student sees them."""

    def __post_init__(self) -> None:
        self._settings()

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Any claimed epsilon will do, as nothing is promised; a finite one that is to be proved is refused."""
        refuse_proof(budget, UNITS, "the teacher's answers are used without noise")

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Distil `teacher.model` into `student`; `budget` has no effect."""
        ledger = Ledger()
        for unit in UNITS:
            ledger.spend(NonPrivateDpEvent(), unit=unit, why="the teacher's answers and gradients, without noise")
        made, generator, shown = distil(
            teacher.model, teacher.dataset, teacher.shape, teacher.classes, student, self._settings(), ctx
        )
        return Release(made, student, ledger, claim=None, generator=generator, synthetic=shown)

    def _settings(self) -> FreeSettings:
        return FreeSettings(
            rounds=self.rounds,
            batch=self.images_per_round,
            choose=self.choose,
            generator_steps=self.generator_steps,
            student_steps=self.student_steps,
            rate_generator=self.rate_generator,
            rate_student=self.rate_student,
            images=self.images,
            augment=self.augment,
        )
