"""The independent judge of reconstructed people, based on dlib's face descriptor.

The evaluator is trained on the same classes and images as a target, so that an image can fool both. This judge was
trained by others on other images. It finds the person whose mean of up to five private images is nearest. It runs
after the attack; no attack, method or teacher sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from bench import data
from bench.data import images_fingerprint
from bench.metrics import face_descriptor
from bench.metrics.identity import Identification, class_means, identify
from bench.metrics.metric import TARGETS
from bench.pipeline.material import quantised, some_of_each_class
from bench.pipeline.trained import Metrics, with_interval

if TYPE_CHECKING:
    from bench.pipeline.job import Job

IMAGES = 5
"""Number of private images in each person's mean, and of images per person and set that are identified; by seed."""
SEED = 2020
NAMES = ("judge_accuracy", "judge_near", "judge_distance")


@dataclass(frozen=True)
class FaceJudge:
    """The judge with the people of a run.

    Attributes:
        job: its store keeps the descriptors.
        means: (people, 128) float64, mean descriptors of the private classes.
    """

    job: Job
    means: Tensor

    def identify(self, images: Tensor, targets: Tensor) -> Identification:
        """Identify (n, c, h, w) images in [0, 1], up to `IMAGES` for each target person."""
        chosen = some_of_each_class(targets, IMAGES)
        return self.identify_descriptors(describe(self.job, quantised(images[chosen])), targets[chosen])

    def identify_descriptors(self, descriptors: Tensor, targets: Tensor) -> Identification:
        """Identify all of (n, 128) descriptors."""
        return identify(descriptors, targets, self.means, face_descriptor.NEAR)


def make_face_judge(job: Job) -> FaceJudge | None:
    """Build the judge of a run whose classes are people; None for other runs, or if dlib is not installed."""
    if not has_people(job) or face_descriptor.absent():
        return None
    images, labels = job.material.private
    chosen = some_of_each_class(labels, IMAGES)
    described = describe(job, images[chosen])
    return FaceJudge(job, class_means(described, labels[chosen], job.material.data.classes))


def has_people(job: Job) -> bool:
    """Whether every class of the data set is a person."""
    return data.facts(job.material.data.name).classes_are_people


def describe(job: Job, images: Tensor) -> Tensor:
    """Return (n, 128) descriptors of (n, c, h, w) uint8 images; stored once for all runs with the same images."""

    def make() -> dict[str, Tensor]:
        with job.context(SEED).track("face judge", len(images)) as advance:
            return {"descriptors": face_descriptor.describe(images, advance)}

    key = {"images": images_fingerprint(images), "shape": list(images.shape), **face_descriptor.identity()}
    return job.store.get("face-descriptors", key, make)["descriptors"]


def face_metrics(found: Identification) -> Metrics:
    """Return the metrics of identified images, by the names of `NAMES`; shares have intervals."""
    shares = {"judge_accuracy": found.right, "judge_near": found.near}
    metrics: Metrics = {}
    for name, count in shares.items():
        metrics |= with_interval(name, count, found.images)
    return metrics | {"judge_distance": found.distance}


def missing_metrics(job: Job) -> dict[str, str]:
    """Return the metrics that a run of people misses without a judge, with the reason; {} for any other run."""
    if not has_people(job) or not (reason := face_descriptor.absent()):
        return {}
    return {f"{target.prefix}{name}": f"no face judge: {reason}" for target in TARGETS for name in NAMES}
