"""What the harness says of the images an attack brought back: the attack never scores itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.api import AttackResult
from bench.metrics.inception import inception, splits_for
from bench.metrics.intervals import clopper_pearson
from bench.metrics.inversion import confusion, feature_distance, knn_distance
from bench.nets import Classifier
from bench.teachers import features, predict

Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Scored:
    """The metrics of one target's reconstructions, those that could not be computed with the reason, and the confusion
    counts (target class, evaluator's class) that the power gate reads."""

    metrics: Metrics
    missing: dict[str, str]
    confusion: Tensor


def with_interval(name: str, successes: int, trials: int) -> Metrics:
    """A share with its 95 % Clopper-Pearson interval, as `name`, `name.lo`, `name.hi`."""
    low, high = clopper_pearson(successes, trials)
    return {name: successes / trials, f"{name}.lo": low, f"{name}.hi": high}


@dataclass(frozen=True)
class Judge:
    """The evaluator network with what it sees in the private images: features (m, d) and labels (m,)."""

    evaluator: Classifier
    features: Tensor
    labels: Tensor
    device: torch.device


def appoint(evaluator: Classifier, private: tuple[Tensor, Tensor], device: torch.device) -> Judge:
    """A judge; looks at all private images (uint8) once."""
    return Judge(evaluator, features(evaluator, private[0], device), private[1], device)


def judge(found: AttackResult, by: Judge) -> Scored:
    """Score reconstructions, images in [0, 1], with a network that the attack never saw."""
    images = (found.images * 255).round().to(torch.uint8)
    logits = predict(by.evaluator, images, by.device).double()
    hits = logits.argmax(1) == found.targets
    metrics = with_interval("attack_accuracy", int(hits.sum()), len(hits))
    metrics["attack_accuracy_std"] = _spread_over_draws(hits, found.draws)
    missing: dict[str, str] = {}
    try:
        score = inception(logits, found.targets, splits=splits_for(len(logits)))
        metrics |= {"inception_score": score.score_mean, "inception_score_std": score.score_std}
        metrics |= {"inception_e6": score.e6_mean, "inception_within_class": score.within_class}
    except ValueError as error:
        names = ("inception_score", "inception_score_std", "inception_e6", "inception_within_class")
        metrics |= dict.fromkeys(names)
        missing |= dict.fromkeys(names, str(error))
    ours = features(by.evaluator, images, by.device)
    metrics["knn_distance"] = knn_distance(ours, found.targets, by.features, by.labels)
    metrics["feature_distance"] = feature_distance(ours, found.targets, by.features, by.labels)
    return Scored(metrics, missing, confusion(logits, found.targets))


def _spread_over_draws(hits: Tensor, draws: Tensor) -> float | None:
    """The standard deviation of the accuracy over the attack's independent draws; None with a single draw."""
    shares = torch.stack([hits[draws == d].double().mean() for d in draws.unique()])
    return float(shares.std(unbiased=False)) if len(shares) > 1 else None
