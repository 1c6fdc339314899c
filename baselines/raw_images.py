"""Raw images: the student of DGD's Fig. 4 (RAW), trained on the private images.

Reference: Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative
Distillation" (DGD), IEEE TIP 2023, section IV-B and Fig. 4.

1. The teachers, each trained on a different part of the private images, vote on some of these images, D^_s.
2. The student learns the noisy votes on D^_s, and the other private images without their labels.

Privacy. None: the student is trained on the private images, and the ledger says so. It is the upper limit of the
figure: students that learn from generated images are less accurate only because of their generators.

Differs from the paper: as described in `bench/distillation/unprotected_images.py`, which has everything except the
images. `dgd --variant printed --method.images private` uses the same images with the paper's VAE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.api import Context, Teacher
from bench.api.context import Tiers
from bench.distillation.unprotected_images import QUICK, SMOKE, UnprotectedImages
from bench.distillation.votes.noisy_votes import VotePlan
from bench.distillation.votes.voted_student import StudentImages, draw_some


@dataclass(frozen=True)
class RawImages(UnprotectedImages):
    """Train a student on the private images and noisy votes of the teachers; without a privacy guarantee."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Ge et al., DGD, IEEE TIP 2023, Fig. 4 (RAW)"
    tiers: ClassVar[Tiers] = {"smoke": SMOKE, "quick": QUICK}

    @property
    def unprotected(self) -> str:
        """The unprotected use of the private data."""
        return "private images train the student and are put to the teachers"

    def _images(self, teacher: Teacher, plan: VotePlan, ctx: Context) -> StudentImages:
        if teacher.private is None:
            raise RuntimeError('the private images are used; the method\'s `needs` must name "private_data"')
        count, rng = plan.candidates + self.unlabelled, ctx.generator("images")
        return StudentImages(draw_some(teacher.private[0], "private", plan.candidates, count, rng), shown=False)
