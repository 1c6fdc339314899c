"""What the harness says of the images an attack brought back: the attack never scores itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from bench.api import AttackResult
from bench.metrics.distribution import frechet_distance, knn_gap, matched_subset, prdc, too_few_images
from bench.metrics.inception import inception, splits_for
from bench.metrics.inversion import confusion, knn_distance
from bench.metrics.metric import Metric
from bench.metrics.pairs import best_match, psnr_pairs, ssim_pairs
from bench.metrics.reconstructions import Labelled, Reconstructions
from bench.metrics.table import computed
from bench.nets import Classifier
from bench.pipeline.material import Victims
from bench.pipeline.trained import Metrics, with_interval
from bench.teachers import features, predict
from bench.validate import present

SEED = 2020
VERSION = 1
"""Of what is kept of features and scores; with another one they are made again."""
DIRECTIONS = 32
"""Principal components of the private features in which the Frechet distance is taken."""


@dataclass(frozen=True)
class Scored:
    """The metrics of one target's reconstructions, those that could not be computed with the reason, and the confusion
    counts (target class, evaluator's class) that the power gate reads."""

    metrics: Metrics
    missing: dict[str, str]
    confusion: Tensor


@dataclass(frozen=True)
class Judge:
    """The evaluator network with the private images, and test images, which trained neither teacher nor evaluator (but
    for copies of them that a data set may have among its training images)."""

    evaluator: Classifier
    private: Labelled
    held_out: Labelled
    device: torch.device
    directions: Tensor
    """(d, k) leading principal directions of the private features."""


@dataclass(frozen=True)
class FeatureCache:
    """An evaluator's features of all private (m, d) and held-out (h, d) images, and the (d, k) principal directions of
    the private ones: the same for all runs on the same data."""

    private: Tensor
    held_out: Tensor
    directions: Tensor


def extract_features(evaluator: Classifier, private: Tensor, held_out: Tensor, device: torch.device) -> FeatureCache:
    """The features of all private and held-out images, uint8."""
    ours, theirs = (features(evaluator, images, device) for images in (private, held_out))
    centred = (ours - ours.mean(0)).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    return FeatureCache(ours, theirs, vectors[:, -DIRECTIONS:].float())


def make_judge(
    evaluator: Classifier,
    private: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    cache: FeatureCache,
    device: torch.device,
) -> Judge:
    """A judge, with the cached features of private and held-out (images, labels)."""
    ours, theirs = Labelled(*private, cache.private), Labelled(*held_out, cache.held_out)
    return Judge(evaluator, ours, theirs, device, cache.directions)


def score(
    found: AttackResult,
    judge: Judge,
    target: nn.Module | None,
    victims: Victims | None,
    wanted: Collection[str] | None = None,
) -> Scored:
    """Score reconstructions, images in [0, 1], with a network that the attack never saw.

    Args:
        target: what was attacked, on the judge's device; None for images that no target was asked about.
        victims: where the images are reconstructions of victims; the class aimed at is then the victim's.
        wanted: metrics that will be read; None = all. Others may be missing.
    """
    found = aimed(found, victims)
    images = (found.images * 255).round().to(torch.uint8)
    logits = predict(judge.evaluator, images, judge.device).double()
    seen = Labelled(images, found.targets, features(judge.evaluator, images, judge.device))
    metrics = _always(found, seen, logits, judge, target)
    missing: dict[str, str] = {}
    for names, measure in _measures(found, seen, logits, judge, victims):
        if wanted is not None and not set(names) & set(wanted):
            continue
        try:
            metrics |= dict(zip(names, measure(), strict=True))
        except ValueError as error:
            metrics |= dict.fromkeys(names)
            missing |= dict.fromkeys(names, str(error))
    return Scored(metrics, missing, confusion(logits, found.targets))


def aimed(found: AttackResult, victims: Victims | None) -> AttackResult:
    """Reconstructions with the class that each is to show: that of its victim, where it has one."""
    if victims is None:
        return found
    return replace(found, targets=victims.labels[present(found.victims, "victim of the reconstructions")])


def _always(found: AttackResult, seen: Labelled, logits: Tensor, judge: Judge, target: nn.Module | None) -> Metrics:
    """What every set of images has a number for."""
    hits = logits.argmax(1) == found.targets
    metrics = with_interval("attack_accuracy", int(hits.sum()), len(hits))
    metrics["attack_accuracy_std"] = _spread_over_draws(hits, found.draws)
    if target is not None:
        agreed = predict(target, seen.images, judge.device).argmax(1) == found.targets
        metrics["target_accuracy"] = float(agreed.double().mean())
    private = judge.private
    metrics["knn_distance"] = knn_distance(seen.features, seen.labels, private.features, private.labels)
    return metrics


Measure = tuple[tuple[str, ...], Callable[[], tuple[float | None, ...]]]


def _measures(
    found: AttackResult, seen: Labelled, logits: Tensor, judge: Judge, victims: Victims | None
) -> list[Measure]:
    """What may be impossible to compute, for a reason that ValueError gives: names, and what computes them."""
    inceptions = ("inception_score", "inception_score_std", "inception_e6", "inception_within_class")
    likeness: Measure
    if victims is None:
        likeness = (("ssim", "psnr", "ssim_class_mean"), lambda: _best(seen, judge))
    else:
        likeness = (("ssim", "psnr", "ssim_gap", "psnr_gap"), lambda: _paired(found, seen, victims))
    given = Reconstructions(seen.images, seen.labels, seen.features, logits, judge.private, judge.held_out)
    return [
        (inceptions, lambda: _inception(logits, found.targets)),
        (("fid",), lambda: (_frechet(seen, judge),)),
        (("precision", "recall", "density", "coverage"), lambda: _prdc(seen, judge)),
        (("knn_gap",), lambda: (_gap(seen, judge, victims),)),
        likeness,
        *(((metric.key,), partial(_alone, metric, given)) for metric in computed()),
    ]


def _alone(metric: Metric, given: Reconstructions) -> tuple[float]:
    return (metric.measure(given),)


def _inception(logits: Tensor, targets: Tensor) -> tuple[float, ...]:
    found = inception(logits, targets, splits=splits_for(len(logits)))
    return found.score_mean, found.score_std, found.e6_mean, found.within_class


def _frechet(seen: Labelled, judge: Judge) -> float:
    """In the leading principal directions of the private features, against as many private images of each class."""
    directions = judge.directions
    reason = too_few_images(len(seen.images), directions.shape[1])
    if reason is not None:
        raise ValueError(reason)
    chosen = matched_subset(judge.private.labels, seen.labels, SEED)
    return frechet_distance(seen.features @ directions, judge.private.features[chosen] @ directions)


def _prdc(seen: Labelled, judge: Judge) -> tuple[float, ...]:
    """Against as many private images of each class as there are reconstructions."""
    chosen = matched_subset(judge.private.labels, seen.labels, SEED)
    found = prdc(seen.features, seen.labels, judge.private.features[chosen], judge.private.labels[chosen])
    return found.precision, found.recall, found.density, found.coverage


def _gap(seen: Labelled, judge: Judge, victims: Victims | None) -> float:
    if victims is not None:
        # Of the larger part some are drawn: its victims are not always in the pool that they are looked for in
        raise ValueError("unseen images were attacked too, and are the nearest to themselves; read ssim_gap")
    private, unseen = judge.private, judge.held_out
    return knn_gap(seen.features, seen.labels, private.features, private.labels, unseen.features, unseen.labels, SEED)


def _best(seen: Labelled, judge: Judge) -> tuple[float, ...]:
    """The private image of the class that is most similar, and the class's mean image."""
    best = best_match(seen.images, seen.labels, judge.private.images, judge.private.labels)
    return float(best.ssim.mean()), float(best.psnr.mean()), float(best.ssim_mean_image.mean())


def _paired(found: AttackResult, seen: Labelled, victims: Victims) -> tuple[float, ...]:
    """Of private victims, and by how much more than of victims that were in no training records."""
    attacked = present(found.victims, "victim of the reconstructions")
    private = victims.private[attacked]
    ssim, psnr = (f(seen.images, victims.images[attacked]) for f in (ssim_pairs, psnr_pairs))
    means = [(float(x[private].mean()), float(x[~private].mean())) for x in (ssim, psnr)]
    return means[0][0], means[1][0], means[0][0] - means[0][1], means[1][0] - means[1][1]


def _spread_over_draws(hits: Tensor, draws: Tensor) -> float | None:
    """The standard deviation of the accuracy over the attack's independent draws; None with a single draw."""
    shares = torch.stack([hits[draws == d].double().mean() for d in draws.unique()])
    return float(shares.std(unbiased=False)) if len(shares) > 1 else None
