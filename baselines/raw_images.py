"""Raw images: the student of DGD's Fig. 4 (RAW), which learns from the private images themselves.

Reference: Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative
Distillation" (DGD), IEEE TIP 2023, section IV-B and Fig. 4.

1. Some of the private images, D^_s, are put to the teachers, each of which was trained on another part of them.
2. The student learns the noisy votes on D^_s, and the other private images without their labels.

Privacy. None: the student sees the private images as they are, and the ledger says so. It is the upper end of the
figure: what students of generated images lose to it, they lose to their generators.

Differs from the paper: as `bench/distillation/unprotected_images.py` says, which has all but the images. `dgd
--variant printed --method.images private` is the same images with the paper's VAE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.api import Context, Teacher
from bench.distillation.unprotected_images import QUICK, SMOKE, UnprotectedImages
from bench.distillation.votes.noisy_votes import VotePlan
from bench.distillation.votes.voted_student import StudentImages, draw_some


@dataclass(frozen=True)
class RawImages(UnprotectedImages):
    """The private images, answered by noisy votes; promises nothing."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Ge et al., DGD, IEEE TIP 2023, Fig. 4 (RAW)"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": SMOKE, "quick": QUICK}

    @property
    def unprotected(self) -> str:
        """What is taken from the private data without protection."""
        return "private images train the student and are put to the teachers"

    def _images(self, teacher: Teacher, plan: VotePlan, ctx: Context) -> StudentImages:
        if teacher.private is None:
            raise RuntimeError('the private images are used; the method\'s `needs` must name "private_data"')
        count, rng = plan.candidates + self.unlabelled, ctx.generator("images")
        return StudentImages(draw_some(teacher.private[0], "private", plan.candidates, count, rng), shown=False)
