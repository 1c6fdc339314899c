"""The settings of a user: the options of `bench run`, before anything is looked up or loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench import data
from bench.config import EVALUATOR, STUDENT
from bench.data.dataset import AS_DECLARED, Reading
from bench.privacy import Budget
from bench.storage.specs import Numbers

Source = Literal["seeded", "os"]


def usual_noise(dataset: str, has_own_teacher: bool) -> Source:
    """Return the default source of privacy noise: the system's generator for a user's own data or teacher, as such a
    release may be published; else the recorded seed, which makes a published run repeatable.

    >>> usual_noise("npz:mine.npz", False), usual_noise("mnist", False)
    ('os', 'seeded')
    """
    return "os" if data.is_own(dataset) or has_own_teacher else "seeded"


@dataclass(frozen=True)
class Settings:
    """The settings of a user; every field is an option of `bench run`."""

    method: str
    attack: str | None
    dataset: str = "digits"
    split: str = "iid"
    data_root: Path | None = None
    download: bool = False
    skip_broken: bool = False
    reading: Reading = AS_DECLARED
    teacher: str = "resnet18"
    teacher_weights: Path | None = None
    teacher_normalise: tuple[Numbers, Numbers] | None = None
    student: str = STUDENT
    evaluator: str = EVALUATOR
    tier: str = "quick"
    variant: str | None = None
    attack_variant: str | None = None
    budget: Budget = field(default_factory=Budget)
    device: str = "auto"
    devices: int = 1
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    compile: bool = False
    noise: Source = "seeded"
    out: Path = Path("runs")
    fresh: bool = False
    method_options: tuple[tuple[str, str], ...] = ()
    attack_options: tuple[tuple[str, str], ...] = ()
    teacher_options: tuple[tuple[str, str], ...] = ()
    evaluator_options: tuple[tuple[str, str], ...] = ()
    pretrained: Path | None = None
