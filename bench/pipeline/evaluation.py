"""Metrics of the images that an attack reconstructed; the harness computes them, never the attack."""

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
from bench.metrics.metric import Labelled, Metric, Reconstructions
from bench.metrics.pairs import best_match, psnr_pairs, ssim_pairs
from bench.metrics.table import computed
from bench.nets import Classifier
from bench.pipeline.material import Victims
from bench.pipeline.trained import Metrics, with_interval
from bench.teachers import features, predict
from bench.validate import present

SEED = 2020
VERSION = 1
"""Version of the stored features and scores; a new version computes them again."""
DIRECTIONS = 32
"""Number of principal components of the private features in which the Frechet distance is computed."""


@dataclass(frozen=True)
class Scored:
    """The metrics of one target's reconstructions, missing metrics with the reason, and the confusion counts (target
    class, evaluator's class) that the power gate uses."""

    metrics: Metrics
    missing: dict[str, str]
    confusion: Tensor


@dataclass(frozen=True)
class Judge:
    """The evaluator network with the private images, and with the test images, on which neither teacher nor evaluator
    was trained (except if a data set repeats test images in its training part)."""

    evaluator: Classifier
    private: Labelled
    held_out: Labelled
    device: torch.device
    directions: Tensor
    """(d, k) leading principal directions of the private features."""


@dataclass(frozen=True)
class FeatureCache:
    """An evaluator's features of all private (m, d) and held-out (h, d) images, and the (d, k) principal directions of
    the private features: the same for all runs on the same data."""

    private: Tensor
    held_out: Tensor
    directions: Tensor


def extract_features(evaluator: Classifier, private: Tensor, held_out: Tensor, device: torch.device) -> FeatureCache:
    """Compute the features of all private and held-out uint8 images."""
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
    """Build a judge with cached features of the private and held-out (images, labels)."""
    ours, theirs = Labelled(*private, cache.private), Labelled(*held_out, cache.held_out)
    return Judge(evaluator, ours, theirs, device, cache.directions)


def score(
    found: AttackResult,
    judge: Judge,
    target: nn.Module | None,
    victims: Victims | None,
    wanted: Collection[str] | None = None,
) -> Scored:
    """Score reconstructions, images in [0, 1], with a network that the attack did not see.

    Args:
        target: the attacked network on the judge's device; None for images made without a target.
        victims: if the images reconstruct victims: the victims; the intended class is then the victim's.
        wanted: metrics that the caller reads; None = all. Other metrics may be missing.
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
    """Return reconstructions with their intended class: the victim's class if there is a victim."""
    if victims is None:
        return found
    return replace(found, targets=victims.labels[present(found.victims, "victim of the reconstructions")])


def _always(found: AttackResult, seen: Labelled, logits: Tensor, judge: Judge, target: nn.Module | None) -> Metrics:
    """Compute the metrics that exist for every set of images."""
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
    """Return functions by metric for metrics that may be impossible; they raise ValueError with the reason."""
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
    """Compute the Frechet distance in the leading principal directions, against as many private images of each
    class."""
    directions = judge.directions
    reason = too_few_images(len(seen.images), directions.shape[1])
    if reason is not None:
        raise ValueError(reason)
    chosen = matched_subset(judge.private.labels, seen.labels, SEED)
    return frechet_distance(seen.features @ directions, judge.private.features[chosen] @ directions)


def _prdc(seen: Labelled, judge: Judge) -> tuple[float, ...]:
    """Compute precision, recall, density, coverage against as many private images per class as there are
    reconstructions."""
    chosen = matched_subset(judge.private.labels, seen.labels, SEED)
    found = prdc(seen.features, seen.labels, judge.private.features[chosen], judge.private.labels[chosen])
    return found.precision, found.recall, found.density, found.coverage


def _gap(seen: Labelled, judge: Judge, victims: Victims | None) -> float:
    if victims is not None:
        # Sample from the larger side; its victims are not always in the pool that is searched for them
        raise ValueError("unseen images were attacked too, and are the nearest to themselves; read ssim_gap")
    private, unseen = judge.private, judge.held_out
    return knn_gap(seen.features, seen.labels, private.features, private.labels, unseen.features, unseen.labels, SEED)


def _best(seen: Labelled, judge: Judge) -> tuple[float, ...]:
    """Compare with the most similar private image of the class, and with the class's mean image."""
    best = best_match(seen.images, seen.labels, judge.private.images, judge.private.labels)
    return float(best.ssim.mean()), float(best.psnr.mean()), float(best.ssim_mean_image.mean())


def _paired(found: AttackResult, seen: Labelled, victims: Victims) -> tuple[float, ...]:
    """Compare with private victims, and compute the gain over victims that were not in the training data."""
    attacked = present(found.victims, "victim of the reconstructions")
    private = victims.private[attacked]
    ssim, psnr = (f(seen.images, victims.images[attacked]) for f in (ssim_pairs, psnr_pairs))
    means = [(float(x[private].mean()), float(x[~private].mean())) for x in (ssim, psnr)]
    return means[0][0], means[1][0], means[0][0] - means[0][1], means[1][0] - means[1][1]


def _spread_over_draws(hits: Tensor, draws: Tensor) -> float | None:
    """The standard deviation of the accuracy over the attack's independent draws; None with a single draw."""
    shares = torch.stack([hits[draws == d].double().mean() for d in draws.unique()])
    return float(shares.std(unbiased=False)) if len(shares) > 1 else None
